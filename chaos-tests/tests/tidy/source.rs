//! Rust source as the tidy rules see it: comments and texts blanked out, so that a word in prose is no finding, and
//! inline test modules marked. A scanner, no parser: it knows comments, literals and braces.

use std::fs;
use std::path::Path;

/// One file.
pub(crate) struct Source {
    /// Relative to the workspace's root, with `/`.
    pub(crate) path: String,
    /// As it stands.
    pub(crate) text: String,
    /// The same lines with comments, string and character literals blanked out.
    pub(crate) code: String,
    /// For each line, whether it belongs to a test.
    pub(crate) is_test: Vec<bool>,
}

impl Source {
    /// Takes in a text.
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let code = blank(text);
        let of_tests =
            path.split('/').any(|part| matches!(part, "tests" | "tests.rs" | "benches" | "examples"));
        let is_test = if of_tests { vec![true; code.lines().count()] } else { test_lines(&code) };
        Self { path: path.to_owned(), text: text.to_owned(), code, is_test }
    }

    /// Lines of code that is shipped, with their numbers from 1.
    pub(crate) fn shipped(&self) -> impl Iterator<Item = (usize, &str)> {
        self.lines().filter(|(number, _)| !self.is_test_line(*number))
    }

    /// Whether the line of this number, from 1, belongs to a test.
    pub(crate) fn is_test_line(&self, number: usize) -> bool {
        self.is_test.get(number - 1).copied().unwrap_or(false)
    }

    /// All lines of code, with their numbers from 1.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.code.lines())
    }

    /// Functions: name, line number, and how many lines they take, body included.
    pub(crate) fn functions(&self) -> Vec<(String, usize, usize)> {
        let mut found = Vec::new();
        let bytes = self.code.as_bytes();
        for (at, _) in self.code.match_indices("fn ") {
            let starts = at == 0 || !is_word(bytes[at - 1]);
            let name: String =
                self.code[at + 3..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            if !starts || name.is_empty() {
                continue;
            }
            let end = match self.code[at..].find(['{', ';']).map(|offset| at + offset) {
                Some(open) if bytes[open] == b'{' => closing(bytes, open),
                _ => continue,
            };
            let line = 1 + self.code[..at].matches('\n').count();
            found.push((name, line, 1 + self.code[at..end].matches('\n').count()));
        }
        found
    }
}

/// Every Rust file of the workspace, and nothing that was built.
pub(crate) fn all(root: &Path) -> Vec<Source> {
    let mut sources = Vec::new();
    for path in files(root) {
        if path.ends_with(".rs") {
            let text = fs::read_to_string(root.join(&path)).unwrap_or_else(|error| panic!("{path}: {error}"));
            sources.push(Source::new(&path, &text));
        }
    }
    assert!(sources.len() > 50, "only {} files were found below {}", sources.len(), root.display());
    sources
}

/// Paths of every file below the root, without build output and hidden folders other than `.ci`.
pub(crate) fn files(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(root.join(&folder)).unwrap_or_else(|error| panic!("{folder}: {error}"));
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let skipped =
                name == "target" || name == ".git" || (name.starts_with('.') && is_folder && name != ".ci");
            match (skipped, is_folder) {
                (true, _) => {}
                (false, true) => folders.push(path),
                (false, false) => found.push(path),
            }
        }
    }
    found.sort();
    found
}

/// Whether `word` stands in `line` as a word of its own.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    let bytes = line.as_bytes();
    line.match_indices(word).any(|(at, _)| {
        let before = at.checked_sub(1).is_none_or(|before| !is_word(bytes[before]));
        let after = bytes.get(at + word.len()).is_none_or(|after| !is_word(*after));
        before && after
    })
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Replaces everything that is not code by spaces, keeping lines where they are.
fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes.get(at + 1) == Some(&b'/') => line_end(bytes, at),
            b'/' if bytes.get(at + 1) == Some(&b'*') => comment_end(bytes, at),
            b'"' => quote_end(bytes, at + 1, b'"'),
            b'r' if at == 0 || !is_word(bytes[at - 1]) || bytes[at - 1] == b'b' => match raw_end(bytes, at) {
                Some(end) => end,
                None => {
                    at += 1;
                    continue;
                }
            },
            b'\'' if is_char(bytes, at) => quote_end(bytes, at + 1, b'\''),
            _ => {
                at += 1;
                continue;
            }
        };
        for byte in &mut out[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end;
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|b| *b == b'\n').map_or(bytes.len(), |offset| at + offset)
}

fn comment_end(bytes: &[u8], at: usize) -> usize {
    let (mut depth, mut at) = (0usize, at);
    while at + 1 < bytes.len() {
        match (bytes[at], bytes[at + 1]) {
            (b'/', b'*') => (depth, at) = (depth + 1, at + 2),
            (b'*', b'/') => {
                (depth, at) = (depth - 1, at + 2);
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    bytes.len()
}

fn quote_end(bytes: &[u8], mut at: usize, quote: u8) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b if b == quote => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The end of `r"..."` or `r#"..."#`; `None` when no raw string starts here.
fn raw_end(bytes: &[u8], at: usize) -> Option<usize> {
    let hashes = bytes[at + 1..].iter().take_while(|b| **b == b'#').count();
    let open = at + 1 + hashes;
    if bytes.get(open) != Some(&b'"') {
        return None;
    }
    let close = [b"\"".as_slice(), &vec![b'#'; hashes]].concat();
    let found = bytes[open + 1..].windows(close.len()).position(|window| window == close);
    Some(found.map_or(bytes.len(), |offset| open + 1 + offset + close.len()))
}

/// A character literal, not a lifetime.
fn is_char(bytes: &[u8], at: usize) -> bool {
    match bytes.get(at + 1) {
        Some(b'\\') => true,
        Some(b) if b.is_ascii() => bytes.get(at + 2) == Some(&b'\''),
        Some(_) => true,
        None => false,
    }
}

/// Where the brace that opens at `open` closes.
fn closing(code: &[u8], open: usize) -> usize {
    let mut depth = 0usize;
    for (at, byte) in code.iter().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

/// Marks items under `#[cfg(test)]` or `#[test]`.
fn test_lines(code: &str) -> Vec<bool> {
    let bytes = code.as_bytes();
    let mut marks = vec![false; code.lines().count()];
    for mark in ["#[cfg(test)]", "#[cfg(all(test", "#[test]"] {
        for (at, _) in code.match_indices(mark) {
            let end = match code[at + mark.len()..].find(['{', ';']).map(|offset| at + mark.len() + offset) {
                Some(open) if bytes[open] == b'{' => closing(bytes, open),
                Some(end) => end,
                None => bytes.len(),
            };
            let first = code[..at].matches('\n').count();
            let last = code[..end].matches('\n').count();
            for line in marks.iter_mut().take(last + 1).skip(first) {
                *line = true;
            }
        }
    }
    marks
}

#[test]
fn prose_and_literals_are_no_code() {
    let text = "let a = \"unsafe \\\" {\"; // unsafe\n/* unsafe /* { */ unsafe */ let b = 'x'; let c: &'a str = r#\"unsafe \" \"#;\nunsafe {}\n";
    let source = Source::new("node/src/x.rs", text);
    let found: Vec<usize> =
        source.lines().filter(|(_, line)| has_word(line, "unsafe")).map(|(n, _)| n).collect();
    assert_eq!(found, [3]);
    assert!(source.code.contains("&'a str"), "{}", source.code);
    assert_eq!(source.code.lines().count(), 3);
    assert!(!has_word("unsafe_code", "unsafe") && has_word("(unsafe)", "unsafe"));
}

#[test]
fn test_modules_are_not_shipped_and_functions_are_measured() {
    let text = "fn one() {\n  two();\n}\n#[cfg(test)]\nmod tests {\n  fn three() {}\n}\nfn four();\n";
    let source = Source::new("node/src/x.rs", text);
    let shipped: Vec<usize> = source.shipped().map(|(number, _)| number).collect();
    assert_eq!(shipped, [1, 2, 3, 8]);
    assert_eq!(source.functions(), [("one".to_owned(), 1, 3), ("three".to_owned(), 6, 1)]);
    assert_eq!(Source::new("node/tests/x.rs", text).shipped().count(), 0);
}
