//! What a refusal says: the part at fault, not another one of the same value.

use super::{by_flag, defaults};
use crate::parse::{JobDraft, Key, draft_from_json, draft_from_toml, read_script};
use rota_protocol::PublicError;
use rota_protocol::job::JobSpec;

fn says(error: &PublicError, field: &str, parts: &[&str]) {
    assert_eq!(error.field.as_deref(), Some(field), "{error}");
    for part in parts {
        assert!(error.message.contains(part), "{error}: no {part:?}");
    }
}

fn script(head: &str) -> Result<JobSpec, PublicError> {
    let text = format!("#!/bin/sh\n{head}\ntrue\n");
    read_script(text.as_bytes(), b"job.sh", &[]).and_then(|script| script.draft.build(&defaults()))
}

#[test]
fn of_an_array_the_number_that_is_too_large() {
    for (text, part) in [
        ("0-3%99999999999", "a cap on tasks at once above 4294967295"),
        ("0-9:99999999999", "a step above 4294967295"),
        ("99999999999", "an index above 4294967295"),
        ("99999999999-5", "an index above 4294967295"),
        ("0-99999999999", "more than 4294967295 tasks"),
    ] {
        let error = by_flag(Key::Array, text).unwrap_err();
        says(&error, "array", &[part, text]);
        assert!(!error.message.contains("tasks,") || part.ends_with("tasks"), "{error}");
    }
}

#[test]
fn times_as_times() {
    let error = script("#ROTA --begin now+2h --deadline now+1h").unwrap_err();
    says(&error, "deadline", &["1 h before the begin"]);
    assert!(!error.message.contains("ms"), "{error}");
    says(&script("#ROTA --begin now+2h --deadline now+2h").unwrap_err(), "deadline", &["the begin itself"]);
}

#[test]
fn numbers_beyond_any_machine_word() {
    for number in ["99999999999999999999", "18446744073709551616", "170141183460469231731687303715884105727"]
    {
        for (key, parts) in [("gpus", &[number, "128"][..]), ("retries", &[number]), ("mem", &[number])] {
            let toml = format!("command = [\"true\"]\n{key} = {number}\n");
            let error = draft_from_toml(toml.as_bytes()).unwrap_err();
            says(&error, key, parts);
            assert!(!error.message.contains("expected text"), "{error}");
        }
        let json = format!("{{\"command\": [\"true\"], \"gpus\": {number}}}");
        says(&draft_from_json(json.as_bytes()).unwrap_err(), "gpus", &["128"]);
        says(&by_flag(Key::Gpus, number).unwrap_err(), "gpus", &[number, "128"]);
    }
    let toml = "command = [\"true\"]\ngpus = -99999999999999999999\n";
    says(&draft_from_toml(toml.as_bytes()).unwrap_err(), "gpus", &["-99999999999999999999"]);
}

/// Twice by one word is no matter of two words.
#[test]
fn given_twice() {
    let twice = "is given twice";
    let two_words = "say the same in two ways";
    for (head, field, other) in [
        ("#ROTA --gpus 1\n#ROTA --gpus 2", "gpus", false),
        ("#ROTA --gpu-share 50%\n#ROTA --gpu-share 50%", "gpu-share", false),
        ("#ROTA --gpus 1\n#ROTA --gpu-share 50%", "gpu-share", true),
        ("#ROTA --gpu-share 50% --gpus 1", "gpus", true),
        ("#ROTA --gang 2 --gang 3", "gang", false),
        ("#ROTA --nodes 2 --nodes 3", "nodes", false),
        ("#ROTA --gang 2 --nodes 3", "nodes", true),
        ("#ROTA --or \"gpus=1 gpus=2\"", "or", false),
        ("#ROTA --or \"gpus=1 gpu-share=50%\"", "or", true),
    ] {
        let error = script(head).unwrap_err();
        says(&error, field, &[twice]);
        assert_eq!(error.message.contains(two_words), other, "{head}: {error}");
    }
    // Over a head, a flag says it once more, and that is what it is for.
    let head = read_script(b"#!/bin/sh\n#ROTA --gpus 1\ntrue\n", b"job.sh", &[]).unwrap().draft;
    let mut flag = JobDraft::default();
    flag.set(Key::Gpus, &super::Value::text("2")).unwrap();
    assert_eq!(flag.over(head).build(&defaults()).unwrap().ask.gpu_milli, 2_000);
}

#[test]
fn shares_below_the_smallest() {
    for (key, text) in
        [(Key::Gpus, "0.000001"), (Key::Gpus, "0.0009"), (Key::GpuShare, "0.0001"), (Key::GpuShare, "0.05%")]
    {
        says(&by_flag(key, text).unwrap_err(), key.name(), &[text, "0.001", "smallest"]);
    }
    for (key, text, milli) in
        [(Key::Gpus, "0.001", 1), (Key::GpuShare, "0.1%", 1), (Key::Gpus, "0.3333", 334)]
    {
        assert_eq!(by_flag(key, text).unwrap().ask.gpu_milli, milli);
    }
}
