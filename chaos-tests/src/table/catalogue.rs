//! The ids of the catalogue of faults of network, processes, clocks, disks, agreement and operators, and words for rows of
//! real processes. What is tried says the table, not this list.

/// All ids.
pub(super) const CATALOGUE: [&str; 62] = [
    "N1", "N2", "N3", "N4", "N5", "N6", "N7", "N8", "N9", "N10", "N11", "N12", "N13", "N14", //
    "P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P9", "P10", "P11", //
    "C1", "C2", "C3", "C4", "C5", "C6", //
    "D1", "D2", "D3", "D4", "D5", "D6", "D7", "D8", "D9", "D10", "D11", "D12", "D13", "D14", //
    "R1", "R2", "R3", "R4", "R5", "R6", "R7", "R8", "R9", "R10", "R11", //
    "O1", "O2", "O3", "O4", "O5", "O6",
];

/// What a short budget should see first.
pub(super) const WORTH: [&str; 10] = ["P3", "N1", "P1", "D4", "P4", "P6", "D1", "R9", "C2", "N7"];

/// Whether a row is one of a catalogue's id: `N1b` and `O3-ca` are of `N1` and `O3`.
pub(super) fn belongs_to(row: &str, id: &str) -> bool {
    let Some(rest) = row.strip_prefix(id) else { return false };
    !rest.starts_with(|next: char| next.is_ascii_digit())
}

/// Rounds of one try of a row of real processes: some do something else in each.
pub(super) fn rounds_of(id: &str) -> usize {
    match id {
        "P1" | "P3" | "R9" => 4,
        "R065" => 3,
        "O3-revoke" => 2,
        _ => 1,
    }
}

/// Why Rota has nothing that a fault could be about.
pub(super) fn subject_of(id: &str) -> Option<&'static str> {
    let why = "entries are sent from memory: the log is read from the disk at the start alone, and D2 is about that";
    (id == "D9").then_some(why)
}

/// What a row of real processes is about.
pub(super) fn what_of(id: &str) -> &'static str {
    match id {
        "P1" => "leader killed again and again under submits: longest gap",
        "P2" => "all agents killed at once: until they serve",
        "P3" => "leader frozen: no stale answer when it wakes; longest gap of the others",
        "P3F" => "follower frozen: longest gap of the others",
        "P4" => "agent frozen past its lease: its task ends before the next begins",
        "P5" => "a whole host frozen past its lease: how long its task lives when it wakes",
        "P6" => "agent killed and started again: until its tasks are adopted",
        "P6-slow" => "agent killed, the next takes longer to start than its lease lasts: nothing ends",
        "P7" => "agent or shim killed for good: until the task is gone",
        "P8" => "actors panic: until they work again",
        "P11" => "two agents on one data directory: until the second has ended",
        "R9" => "answers lost while leaders die: one job for each request",
        "N1" => "leader cut off: longest gap of the others",
        "N3" => "one-way cuts: longest gap",
        "N5" => "a fifth of all packets lost",
        "N7" => "packets doubled and out of order",
        "N11" => "a link that flaps",
        "O1" => "agents restarted in turn: gap at a leader's restart",
        "O1-hasty" => "agents restarted without waiting for each other: no two attempts at once",
        "O2" => "upgrade, downgrade, upgrade",
        "O3" => "certificates renewed under load",
        "O3-revoke" => "revoked hosts are cut",
        "O3-ca" => "the authority is replaced under load",
        "O4" => "wrong settings: until the agent that starts with them has ended",
        "R065" => "any one of three hosts gone: until all that clients do works again through another",
        "R070" => "drained off the only host that fits: until it runs there again",
        "O5" => "leader's host drained: until another leads",
        "D6" => "full disks: until another leads",
        "D7" => "a disk turns read-only: longest gap",
        "D8" => "a slow disk: until another leads",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_belong_to_their_ids_alone() {
        for (row, id, is) in
            [("N1", "N1", true), ("N1b", "N1", true), ("N10", "N1", false), ("O3-ca", "O3", true)]
        {
            assert_eq!(belongs_to(row, id), is, "{row} {id}");
        }
        assert!(
            !belongs_to("R084", "R8") && !belongs_to("R039-6", "R3"),
            "a report is no fault of the catalogue"
        );
    }
}
