//! Inputs of a job: `NAME=sha256:HEX`, piece by piece, or a table of names.

use super::amount::quoted;
use super::draft::{scalars, twice};
use super::key::{Key, Value};
use rota_protocol::PublicError;
use rota_protocol::data::{BlobId, Input};
use rota_protocol::job::JobSpec;
use std::collections::BTreeMap;

const EXAMPLE: &str = "train.bin=sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Blobs by the names under which tasks find them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Inputs(BTreeMap<String, BlobId>);

impl Inputs {
    /// Reads one value; false if the key is another.
    pub(super) fn set(&mut self, key: Key, value: &Value) -> Result<bool, PublicError> {
        if key != Key::Input {
            return Ok(false);
        }
        let field = key.name();
        match value {
            Value::Map(pairs) => {
                for (name, blob) in pairs {
                    self.add(field, name, blob.text(field)?)?;
                }
            }
            _ => {
                for pair in scalars(value) {
                    let text = pair.text(field)?;
                    let Some((name, blob)) = text.rsplit_once('=') else {
                        let message =
                            format!("{} has no =; a file for standard input is --stdin", quoted(text));
                        return Err(PublicError::invalid(field, message, EXAMPLE));
                    };
                    self.add(field, name, blob)?;
                }
            }
        }
        Ok(true)
    }

    fn add(&mut self, field: &str, name: &str, blob: &str) -> Result<(), PublicError> {
        let blob = blob.trim().parse().map_err(|why| {
            let message = format!("{} is {why}; `rota data add` prints it", quoted(blob));
            PublicError::invalid(field, message, EXAMPLE)
        })?;
        match self.0.insert(name.to_owned(), blob) {
            Some(_) => Err(twice(&format!("{field}.{name}"))),
            None => Ok(()),
        }
    }

    /// Lays these over others, name by name.
    pub(super) fn over(self, mut base: Self) -> Self {
        base.0.extend(self.0);
        base
    }

    /// Writes what was said into a spec.
    pub(super) fn fill(self, spec: &mut JobSpec) {
        spec.inputs = self.0.into_iter().map(|(name, blob)| Input { name, blob }).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Defaults, draft_from_toml, read_script};
    use super::*;

    fn hex(digit: char) -> String {
        format!("sha256:{}", String::from(digit).repeat(64))
    }

    fn inputs(text: &str) -> Result<Vec<String>, PublicError> {
        let draft = draft_from_toml(format!("command = \"x\"\n{text}").as_bytes())?;
        let spec = draft.build(&Defaults { workdir: "/w".into(), now_ms: 0 })?;
        Ok(spec.inputs.iter().map(|input| format!("{}={}", input.name, input.blob)).collect())
    }

    #[test]
    fn inputs_are_names_and_hashes_in_every_entry() {
        let (a, b) = (hex('a'), hex('b'));
        let both = [format!("a={a}"), format!("d/b={b}")];
        assert_eq!(inputs(&format!("input = [\"d/b={b}\", \"a={a}\"]")).unwrap(), both);
        assert_eq!(inputs(&format!("[input]\na = \"{a}\"\n\"d/b\" = \"{b}\"")).unwrap(), both);
        let script = format!("#!/bin/sh\n#ROTA --input a={a} --input d/b={b}\ntrue\n");
        let script = read_script(script.as_bytes(), b"s", &[]).unwrap();
        let spec = script.draft.build(&Defaults { workdir: "/w".into(), now_ms: 0 }).unwrap();
        assert_eq!(spec.inputs.len(), 2);
        for (text, part) in [
            ("input = \"data.txt\"".to_owned(), "has no =; a file for standard input is --stdin"),
            ("input = \"a=sha256:12\"".to_owned(), "`rota data add` prints it"),
            (format!("input = [\"a={a}\", \"a={b}\"]"), "twice"),
            (format!("input = \"../a={a}\""), "`..`"),
            (format!("input = \"/a={a}\""), "is absolute"),
        ] {
            let error = inputs(&text).unwrap_err();
            assert!(error.field.as_deref().unwrap_or_default().starts_with("input"), "{text}: {error}");
            assert!(error.to_string().contains(part), "{text}: {error}");
        }
    }
}
