//! Columns of text for terminals, and the cleaning of names that others chose.
//!
//! What this is not: it knows no colours and no widths of wide characters; a column is as wide as its most characters.

use std::borrow::Cow;
use std::fmt;

/// Blanks between columns.
const GAP: &str = "  ";

/// Rows under a header. A header that ends in `>` names a column that is aligned to the right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    header: Vec<&'static str>,
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    #[must_use]
    pub fn new(header: &[&'static str]) -> Self {
        Self {
            header: header.iter().map(|h| h.trim_end_matches('>')).collect(),
            right: header.iter().map(|h| h.ends_with('>')).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; its cells are cleaned.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.header.len());
        self.rows.push(cells.iter().map(|cell| clean(cell).into_owned()).collect());
    }

    /// Whether it has no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut widths: Vec<usize> = self.header.iter().map(|h| h.chars().count()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let header = self.header.iter().map(|h| (*h).to_owned()).collect();
        for row in std::iter::once(&header).chain(&self.rows) {
            let mut line = String::new();
            for ((cell, width), right) in row.iter().zip(&widths).zip(&self.right) {
                if !line.is_empty() {
                    line.push_str(GAP);
                }
                if *right {
                    line.push_str(&format!("{cell:>width$}"));
                } else {
                    line.push_str(&format!("{cell:<width$}"));
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// A text that cannot steer a terminal: control characters, and those that turn the direction of writing, are shown
/// as their codes (requirement S19).
#[must_use]
pub fn clean(text: &str) -> Cow<'_, str> {
    if !text.chars().any(steers) {
        return Cow::Borrowed(text);
    }
    let mut cleaned = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if steers(c) {
            cleaned.extend(c.escape_unicode());
        } else {
            cleaned.push(c);
        }
    }
    Cow::Owned(cleaned)
}

/// The text, cut to at most `chars_max` characters.
#[must_use]
pub fn cut(text: &str, chars_max: usize) -> String {
    if text.chars().count() <= chars_max {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(chars_max.saturating_sub(2)).collect();
    short.push_str("..");
    short
}

fn steers(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{200e}' | '\u{200f}' | '\u{61c}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["JOB>", "NAME", "WHERE"]);
        table.row(["7".into(), "train".into(), "n1".into()]);
        table.row(["1234".into(), "é".into(), String::new()]);
        assert_eq!(table.to_string(), " JOB  NAME   WHERE\n   7  train  n1\n1234  é\n");
    }

    #[test]
    fn names_of_others_cannot_steer_the_terminal() {
        let mut table = Table::new(&["NAME"]);
        for name in ["\u{1b}[2J\u{1b}]0;x\u{7}", "a\nb\rc\td", "\u{9b}31m", "\u{202e}gpj", "x\u{7f}"] {
            table.row([name.to_owned()]);
        }
        let text = table.to_string();
        assert_eq!(text.lines().count(), 6);
        assert!(text.chars().all(|c| c == '\n' || !steers(c)), "{text:?}");
        assert!(text.contains("\\u{1b}[2J"));
        assert!(matches!(clean("plain ünïcode 数"), Cow::Borrowed(_)));
    }

    #[test]
    fn long_texts_are_cut_at_characters() {
        assert_eq!(cut("abcdef", 6), "abcdef");
        assert_eq!(cut("äbcdefg", 6), "äbcd..");
    }
}
