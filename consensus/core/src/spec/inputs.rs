//! Names of inputs: short relative paths that lead nowhere else, each of its own.

use rota_protocol::PublicError;
use rota_protocol::data::Input;
use rota_protocol::limits::{INPUT_NAME_BYTES_MAX, INPUTS_MAX};
use std::collections::BTreeSet;

const FIELD: &str = "input";
const EXAMPLE: &str =
    "data/train.bin=sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

pub(super) fn check(inputs: &[Input]) -> Result<(), PublicError> {
    if inputs.len() > INPUTS_MAX {
        let message = format!("{} inputs are above {INPUTS_MAX}", inputs.len());
        return Err(PublicError::invalid(FIELD, message, "one archive of many files"));
    }
    let mut names = BTreeSet::new();
    for Input { name, .. } in inputs {
        if let Some(why) = fault(name) {
            return Err(refuse(name, why));
        }
        if !names.insert(name.as_str()) {
            return Err(refuse(name, "is given twice"));
        }
    }
    // A file cannot be a folder of another.
    let above = |name: &&str| name.rmatch_indices('/').any(|(at, _)| names.contains(&name[..at]));
    match names.iter().find(|name| above(name)) {
        Some(name) => Err(refuse(name, "lies below another input, which is a file")),
        None => Ok(()),
    }
}

fn refuse(name: &str, why: &str) -> PublicError {
    let shown: String = name.chars().take(INPUT_NAME_BYTES_MAX).collect();
    PublicError::invalid(FIELD, format!("the name {shown:?} {why}"), EXAMPLE)
}

fn fault(name: &str) -> Option<&'static str> {
    match name {
        _ if name.len() > INPUT_NAME_BYTES_MAX => Some("is longer than 255 bytes"),
        _ if name.chars().any(char::is_control) => Some("has a control character"),
        _ if name.starts_with('/') => Some("is absolute"),
        _ if name.split('/').any(|part| matches!(part, "" | "." | "..")) => {
            Some("has an empty part, `.` or `..`")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rota_protocol::data::BlobId;

    fn of(names: &[&str]) -> Result<(), PublicError> {
        let input = |name: &&str| Input { name: (*name).to_owned(), blob: BlobId([1; 32]) };
        check(&names.iter().map(input).collect::<Vec<_>>())
    }

    #[test]
    fn names_stay_below_the_folder_and_apart() {
        for good in [&[][..], &["a"], &["a", "b/c", "b/d", "b.c"], &["..a", "a..", ".x/y"]] {
            assert_eq!(of(good), Ok(()), "{good:?}");
        }
        let long = "x".repeat(INPUT_NAME_BYTES_MAX + 1);
        for bad in [
            &[""][..],
            &["/a"],
            &["a/"],
            &["a//b"],
            &[".."],
            &["a/../b"],
            &["./a"],
            &["a\nb"],
            &[&long],
            &["a", "a"],
            &["a/b", "a"],
            &["a", "a/b/c"],
        ] {
            let error = of(bad).expect_err("a name that leads elsewhere");
            assert_eq!(error.field.as_deref(), Some("input"), "{bad:?}: {error}");
        }
        let many: Vec<String> = (0..=INPUTS_MAX).map(|n| n.to_string()).collect();
        assert!(of(&many.iter().map(String::as_str).collect::<Vec<_>>()).is_err());
    }
}
