//! The program that the kernel asks about device nodes on hosts without the devices controller of version 1: a list of
//! nodes that may be read and written, as instructions of the kernel's machine. Nothing may be made with mknod.

use super::nodes::{Kind, Node};

const LOAD_WORD: u8 = 0x61;
const AND: u8 = 0x57;
const SHIFT_RIGHT: u8 = 0x77;
const MOVE: u8 = 0xb7;
const COPY: u8 = 0xbf;
const JUMP_NOT_EQUAL: u8 = 0x55;
const JUMP_ANY_BIT: u8 = 0x45;
const EXIT: u8 = 0x95;

/// The access that makes a node.
const MKNOD: i32 = 1;
/// The low half of the first word is the kind, the high half the access.
const KIND_MASK: i32 = 0xffff;

/// The program that lets these nodes be opened.
pub(super) fn program(allowed: &[Node]) -> Vec<u64> {
    let mut steps = vec![
        step(LOAD_WORD, 2, 1, 0, 0),
        step(COPY, 3, 2, 0, 0),
        step(AND, 2, 0, 0, KIND_MASK),
        step(SHIFT_RIGHT, 3, 0, 0, 16),
        step(LOAD_WORD, 4, 1, 4, 0),
        step(LOAD_WORD, 5, 1, 8, 0),
        // Making a node: over the next jump to the refusal.
        step(JUMP_ANY_BIT, 3, 0, 1, MKNOD),
        step(0x05, 0, 0, 2, 0),
        step(MOVE, 0, 0, 0, 0),
        step(EXIT, 0, 0, 0, 0),
    ];
    for node in allowed {
        let kind = match node.kind {
            Kind::Block => 1,
            Kind::Character => 2,
        };
        let mut rule = vec![(2, kind), (4, node.major.cast_signed())];
        rule.extend(node.minor.map(|minor| (5, minor.cast_signed())));
        let len = rule.len();
        for (at, (register, value)) in rule.into_iter().enumerate() {
            // Over the rest of the rule and its two last steps.
            let over = i16::try_from(len - at - 1 + 2).unwrap_or(i16::MAX);
            steps.push(step(JUMP_NOT_EQUAL, register, 0, over, value));
        }
        steps.push(step(MOVE, 0, 0, 0, 1));
        steps.push(step(EXIT, 0, 0, 0, 0));
    }
    steps.push(step(MOVE, 0, 0, 0, 0));
    steps.push(step(EXIT, 0, 0, 0, 0));
    steps
}

/// One instruction: operation, registers, offset, operand.
fn step(operation: u8, to: u8, from: u8, offset: i16, value: i32) -> u64 {
    let offset = u64::from(offset.cast_unsigned());
    u64::from(operation)
        | u64::from(to | from << 4) << 8
        | offset << 16
        | u64::from(value.cast_unsigned()) << 32
}

#[cfg(test)]
mod tests {
    use super::super::nodes::COMMON;
    use super::*;

    /// What the kernel's machine would answer.
    fn ask(program: &[u64], kind: u32, access: u32, major: u32, minor: u32) -> u64 {
        let context = [access << 16 | kind, major, minor];
        let mut registers = [0_u64; 11];
        let mut at = 0_usize;
        loop {
            let word = program[at];
            let [operation, both, ..] = word.to_le_bytes();
            let (to, from) = (usize::from(both & 15), usize::from(both >> 4));
            let offset = i64::from(((word >> 16) as u16).cast_signed());
            let value = u64::from((word >> 32) as u32);
            at += 1;
            let jump = match operation {
                LOAD_WORD => {
                    registers[to] = u64::from(context[usize::try_from(offset / 4).unwrap()]);
                    false
                }
                COPY => {
                    registers[to] = registers[from];
                    false
                }
                AND => {
                    registers[to] &= value;
                    false
                }
                SHIFT_RIGHT => {
                    registers[to] >>= value;
                    false
                }
                MOVE => {
                    registers[to] = value;
                    false
                }
                JUMP_NOT_EQUAL => registers[to] != value,
                JUMP_ANY_BIT => registers[to] & value != 0,
                0x05 => true,
                EXIT => return registers[0],
                other => panic!("operation {other:#x}"),
            };
            if jump {
                at = usize::try_from(i64::try_from(at).unwrap() + offset).unwrap();
            }
        }
    }

    #[test]
    fn only_what_is_listed_may_be_opened_and_nothing_may_be_made() {
        let card = Node { kind: Kind::Character, major: 195, minor: Some(3) };
        let program = program(&[&COMMON[..], &[card]].concat());
        let (read, write) = (2, 4);
        assert_eq!(ask(&program, 2, read | write, 195, 3), 1);
        assert_eq!(ask(&program, 2, read, 195, 2), 0);
        assert_eq!(ask(&program, 1, read, 195, 3), 0, "a block device of that number is another");
        assert_eq!(ask(&program, 2, read | 1, 195, 3), 0);
        assert_eq!(ask(&program, 2, write, 1, 3), 1);
        assert_eq!(ask(&program, 2, write, 136, 77), 1, "every pseudo terminal");
        assert_eq!(ask(&program, 2, read, 1, 11), 0, "the kernel's log");
    }
}
