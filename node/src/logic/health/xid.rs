//! Classes of Xids as data: a table of text, built in or given by the operator. An Xid that it does not have is a fault
//! of the card until somebody knows better.

use std::collections::BTreeMap;

/// The table that this build brings.
const BUILT_IN: &str = include_str!("xids.txt");
/// The version of tables that this build reads.
const VERSION: u32 = 1;
/// Most Xids of one table.
const XIDS_MAX: usize = 4_096;

/// What an Xid means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// The program did something wrong.
    Program,
    /// The card lost one program's data.
    Contained,
    /// Worth showing.
    Note,
    /// Worth counting.
    Ignore,
    /// A reset mends it.
    Reset,
    /// Fast links are in doubt.
    Fabric,
    /// A restart of the host mends it.
    Node,
    /// The driver advises something new.
    Action,
    /// Not in the table.
    Unknown,
}

impl Class {
    const ALL: [Self; 9] = [
        Self::Program,
        Self::Contained,
        Self::Note,
        Self::Ignore,
        Self::Reset,
        Self::Fabric,
        Self::Node,
        Self::Action,
        Self::Unknown,
    ];

    /// Its word in tables and metrics.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Program => "program",
            Self::Contained => "contained",
            Self::Note => "note",
            Self::Ignore => "ignore",
            Self::Reset => "reset",
            Self::Fabric => "fabric",
            Self::Node => "node",
            Self::Action => "action",
            Self::Unknown => "unknown",
        }
    }
}

/// Why a text is no table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}; a good line is `79 node fallen off the bus`")]
pub struct TableError {
    /// Which line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub what: String,
}

/// What each Xid means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XidTable {
    rows: BTreeMap<u32, (Class, String)>,
}

impl XidTable {
    /// The table that this build brings.
    #[must_use]
    pub fn built_in() -> Self {
        // That the built-in text is a table is tested; were it none, every Xid would be unknown, which is the safe side.
        Self::parse(BUILT_IN).unwrap_or(Self { rows: BTreeMap::new() })
    }

    /// The built-in table with an operator's lines over it.
    ///
    /// # Errors
    /// The first line that is none.
    pub fn with(text: &str) -> Result<Self, TableError> {
        let mut table = Self::built_in();
        table.rows.extend(Self::parse(text)?.rows);
        Ok(table)
    }

    fn parse(text: &str) -> Result<Self, TableError> {
        let mut rows = BTreeMap::new();
        for (at, line) in text.lines().enumerate() {
            let wrong = |what: String| TableError { line: at + 1, what };
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
            if first == "version" {
                match rest.trim().parse::<u32>() {
                    Ok(VERSION) => continue,
                    _ => return Err(wrong(format!("version `{rest}` is not {VERSION}"))),
                }
            }
            let xid: u32 = first.parse().map_err(|_| wrong(format!("`{first}` is no number")))?;
            let (word, words) = rest.trim().split_once(' ').unwrap_or((rest.trim(), ""));
            let class = Class::ALL.into_iter().find(|class| class.word() == word);
            let class = class.ok_or_else(|| wrong(format!("`{word}` is no class")))?;
            if rows.len() >= XIDS_MAX {
                return Err(wrong(format!("more than {XIDS_MAX} Xids")));
            }
            rows.insert(xid, (class, words.trim().chars().take(120).collect()));
        }
        Ok(Self { rows })
    }

    /// What an Xid means, and words for people.
    #[must_use]
    pub fn of(&self, xid: u32) -> (Class, &str) {
        self.rows.get(&xid).map_or((Class::Unknown, "not in the table"), |(class, words)| (*class, words))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The classes as they are promised (FAULTS, GPU).
    #[test]
    fn the_built_in_table_has_every_class() {
        let table = XidTable::built_in();
        let promised: [(Class, &[u32]); 8] = [
            (Class::Program, &[8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80]),
            (Class::Contained, &[94]),
            (Class::Note, &[63, 92]),
            (Class::Ignore, &[37, 38, 43, 44, 45, 66, 67, 93, 121, 137, 141, 157]),
            (Class::Reset, &[46, 48, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158]),
            (Class::Fabric, &[74, 144, 145, 146, 147, 148, 149, 150]),
            (Class::Node, &[54, 79, 151]),
            (Class::Action, &[154]),
        ];
        let mut count = 0;
        for (class, xids) in promised {
            for xid in xids {
                assert_eq!(table.of(*xid).0, class, "Xid {xid}");
                count += 1;
            }
        }
        assert_eq!(table.rows.len(), count, "a class that is promised nowhere");
        assert_eq!(table.of(999).0, Class::Unknown);
    }

    #[test]
    fn an_operators_lines_win_and_bad_ones_are_named() {
        let table =
            XidTable::with("# ours\n\n63 reset remap at once\n 999 ignore a new one\n").expect("fair");
        assert_eq!(table.of(63), (Class::Reset, "remap at once"));
        assert_eq!((table.of(999).0, table.of(79).0), (Class::Ignore, Class::Node));
        for (text, line, what) in [
            ("79 nodes x", 1, "`nodes` is no class"),
            ("\nx79 node", 2, "`x79` is no number"),
            ("version 2", 1, "version `2` is not 1"),
            ("79", 1, "`` is no class"),
        ] {
            let error = XidTable::with(text).expect_err(text);
            assert_eq!((error.line, error.what.as_str()), (line, what));
            assert!(error.to_string().contains("79 node fallen off the bus"), "{error}");
        }
    }
}
