//! What a job says of its output and input: sizes within their limits, names of files that can be filled in.

use rota_protocol::PublicError;
use rota_protocol::limits::{OUTPUT_BYTES_MAX, OUTPUT_BYTES_MIN, PATH_BYTES_MAX, STDIN_BYTES_MAX};
use rota_protocol::output::{OutputSpec, PATTERN_LETTERS};

pub(super) fn check(output: &OutputSpec) -> Result<(), PublicError> {
    if let Some(bytes) = output.bytes_max
        && !(OUTPUT_BYTES_MIN..=OUTPUT_BYTES_MAX).contains(&bytes)
    {
        let message = format!("{bytes} bytes are not between {OUTPUT_BYTES_MIN} and {OUTPUT_BYTES_MAX}");
        return Err(PublicError::invalid("output-max", message, "10MiB"));
    }
    for (field, pattern) in [("output", &output.stdout), ("error", &output.stderr)] {
        if let Some(pattern) = pattern {
            check_pattern(field, pattern)?;
        }
    }
    match &output.stdin {
        Some(stdin) if stdin.len() > STDIN_BYTES_MAX => {
            let message = format!("{} bytes are above {STDIN_BYTES_MAX}", stdin.len());
            Err(PublicError::invalid("stdin", message, "a file that the job opens itself"))
        }
        _ => Ok(()),
    }
}

fn check_pattern(field: &str, pattern: &[u8]) -> Result<(), PublicError> {
    const EXAMPLE: &str = "logs/%j-%a.out";
    let shown = String::from_utf8_lossy(pattern);
    if pattern.is_empty() || pattern.ends_with(b"/") {
        return Err(PublicError::invalid(field, format!("'{shown}' names no file"), EXAMPLE));
    }
    if pattern.len() > PATH_BYTES_MAX {
        let message = format!("{} bytes are above {PATH_BYTES_MAX}", pattern.len());
        return Err(PublicError::invalid(field, message, EXAMPLE));
    }
    if pattern.contains(&0) {
        return Err(PublicError::invalid(field, "contains a zero byte", EXAMPLE));
    }
    let mut bytes = pattern.iter();
    while let Some(byte) = bytes.next() {
        if *byte != b'%' {
            continue;
        }
        let letter = bytes.next();
        if letter.is_none_or(|letter| !PATTERN_LETTERS.contains(letter)) {
            let what = letter.map_or(String::new(), |letter| char::from(*letter).to_string());
            let known: Vec<String> = PATTERN_LETTERS.iter().map(|l| format!("%{}", char::from(*l))).collect();
            let message = format!("'%{what}' in '{shown}' means nothing: there are {}", known.join(" "));
            return Err(PublicError::invalid(field, message, EXAMPLE));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(output: OutputSpec) -> String {
        check(&output).expect_err("it is no output").to_string()
    }

    #[test]
    fn what_cannot_be_kept_or_named_is_refused_with_what_could() {
        let pattern = |text: &str| OutputSpec { stdout: Some(text.into()), ..OutputSpec::default() };
        for good in ["x", "/a/%j_%a.%t.%h.%r", "%x-%A-%N-%u-100%%"] {
            assert_eq!(check(&pattern(good)), Ok(()), "{good}");
        }
        assert!(refused(pattern("a%z")).starts_with("output: '%z' in 'a%z' means nothing: there are %j %A"));
        assert!(refused(pattern("a%")).contains("'%' in 'a%' means nothing"));
        assert!(refused(pattern("logs/")).contains("names no file"));
        assert!(refused(pattern("a\0b")).contains("zero byte"));
        assert!(refused(pattern(&"x".repeat(5_000))).contains("5000 bytes are above 4095"));
        let error = OutputSpec { stderr: Some(b"%q".to_vec()), ..OutputSpec::default() };
        assert!(refused(error).starts_with("error: "));
        for bytes in [0, 1, OUTPUT_BYTES_MIN - 1, OUTPUT_BYTES_MAX + 1] {
            let size = OutputSpec { bytes_max: Some(bytes), ..OutputSpec::default() };
            assert!(refused(size).starts_with(&format!("output-max: {bytes} bytes are not between")));
        }
        let stdin = |len| OutputSpec { stdin: Some(vec![0; len]), ..OutputSpec::default() };
        assert_eq!(check(&stdin(STDIN_BYTES_MAX)), Ok(()));
        assert!(refused(stdin(STDIN_BYTES_MAX + 1)).starts_with("stdin: 262145 bytes are above 262144"));
    }
}
