//! Tables of what a person may write and what becomes of it, through every entry.

mod image;
mod shape;
mod told;

use super::*;
use proptest::prelude::*;
use rota_protocol::api::OutputStream;
use rota_protocol::job::{ArraySpec, JobSpec, JobState};
use rota_protocol::limits::TIME_LIMIT_MS_MAX;
use rota_protocol::{ErrorCode, JobId, PublicError};
use std::path::PathBuf;

/// 2026-12-01 00:00:00 UTC.
const NOW_MS: u64 = 1_796_083_200_000;

fn defaults() -> Defaults {
    Defaults { workdir: PathBuf::from("/home/u1"), now_ms: NOW_MS }
}

/// The spec that a job of `key = text` becomes through flags.
fn by_flag(key: Key, text: &str) -> Result<JobSpec, PublicError> {
    let mut draft = JobDraft::default();
    draft.set(Key::Command, &Value::List(vec![Scalar::Text(b"true".into())]))?;
    draft.set(key, &Value::text(text))?;
    draft.build(&defaults())
}

/// The same through a spec file, a JSON body and a script's head; the command of the last is put back.
fn by_all(key: Key, text: &str) -> Vec<Result<JobSpec, PublicError>> {
    let name = key.name();
    let toml = format!("command = [\"true\"]\n{name} = {text:?}\n");
    let mut json = format!("{{\"command\": [\"true\"], {name:?}: {text:?}");
    let mut script = format!("#!/bin/sh\n#ROTA --{name}=\"{text}\"\n");
    json.push('}');
    script.push_str("true\n");
    let build = |draft: Result<JobDraft, PublicError>| draft?.build(&defaults());
    let by_script = read_script(script.as_bytes(), b"j.sh", &[]).and_then(|script| {
        let mut spec = script.draft.build(&defaults())?;
        spec.argv = vec![b"true".to_vec()];
        spec.name = "true".into();
        Ok(spec)
    });
    vec![
        by_flag(key, text),
        build(draft_from_toml(toml.as_bytes())),
        build(draft_from_json(json.as_bytes())),
        by_script,
    ]
}

/// Every entry agrees: the stored value, or none and a refusal that names the field and shows an example.
fn check(key: Key, text: &str, read: impl Fn(&JobSpec) -> Option<u64>, stored: Option<u64>) {
    for (entry, result) in by_all(key, text).into_iter().enumerate() {
        match (result, stored) {
            (Ok(spec), Some(_)) => assert_eq!(read(&spec), stored, "{text:?} by entry {entry}"),
            (Err(error), None) => {
                assert_eq!(error.code, ErrorCode::Invalid, "{text:?} by entry {entry}");
                assert_eq!(error.field.as_deref(), Some(key.name()), "{text:?} by entry {entry}");
                let example = error.example.as_deref().unwrap_or_default();
                assert!(by_flag(key, example).is_ok(), "{example:?} is no example for {key:?}");
            }
            (result, stored) => panic!("{text:?} by entry {entry}: {result:?}, not {stored:?}"),
        }
    }
}

#[test]
fn one_memory_text_has_one_meaning_everywhere() {
    // Field report R001.
    for (text, mib) in [
        ("1024K", Some(1)),
        ("1M", Some(1)),
        ("1g", Some(1_024)),
        ("1T", Some(1 << 20)),
        ("1.5G", Some(1_536)),
        ("4096", Some(4_096)),
        ("16GiB", Some(16_384)),
        ("16 G", Some(16_384)),
        ("80GB", Some(81_920)),
        ("80gib", Some(81_920)),
        ("80 gb", Some(81_920)),
        (" 1 Mi ", Some(1)),
        ("1K", Some(1)),
        ("1025k", Some(2)),
        ("0.0001G", Some(1)),
        ("1024T", Some(1 << 30)),
        ("0", None),
        ("0.0G", None),
        ("-1", None),
        ("-1G", None),
        ("", None),
        (" ", None),
        ("1e3G", None),
        ("NaN", None),
        ("inf", None),
        ("99999999T", None),
        ("1025T", None),
        ("999999999999999999999999999999999999999T", None),
        ("12X", None),
        ("12B", None),
        ("G", None),
        ("1.G", None),
        (".5G", None),
        ("1,5G", None),
        ("+1G", None),
        ("1G1", None),
        ("1_000", None),
    ] {
        check(Key::Mem, text, |spec| Some(spec.ask.mem_mib), mib);
        check(Key::Vram, text, |spec| Some(spec.ask.vram_mib), mib);
    }
}

#[test]
fn one_time_text_has_one_meaning_and_a_positive_one_is_never_none() {
    // Field report R001.
    for (text, ms) in [
        ("29s", Some(29_000)),
        ("59s", Some(59_000)),
        ("1m", Some(60_000)),
        ("90", Some(90_000)),
        ("0.5", Some(500)),
        ("0.0001", Some(1)),
        ("1ms", Some(1)),
        ("2h", Some(7_200_000)),
        ("1d", Some(86_400_000)),
        ("1.5h", Some(5_400_000)),
        ("1h30m", Some(5_400_000)),
        ("1H 30M", Some(5_400_000)),
        ("1d2h3m4s5ms", Some(93_784_005)),
        ("30:00", Some(1_800_000)),
        ("90:00", Some(5_400_000)),
        ("01:30:00", Some(5_400_000)),
        ("100:00:00", Some(360_000_000)),
        ("2-00:00:00", Some(172_800_000)),
        ("1-12", Some(129_600_000)),
        ("1-12:30", Some(131_400_000)),
        ("3660d", Some(TIME_LIMIT_MS_MAX)),
        ("0", None),
        ("0s", None),
        ("0:00", None),
        ("-5m", None),
        ("", None),
        ("NaN", None),
        ("inf", None),
        ("1e308", None),
        ("3661d", None),
        ("99999999999999999d", None),
        ("1h30", None),
        ("30m1h", None),
        ("1m1m", None),
        ("1y", None),
        ("1:60", None),
        ("1:60:00", None),
        ("1-24:00:00", None),
        ("1:2:3:4", None),
        ("1-", None),
        (":30", None),
        ("1--2", None),
        ("five", None),
    ] {
        check(Key::Time, text, |spec| spec.time_limit_ms, ms);
    }
}

#[test]
fn gpus_are_whole_cards_or_a_share_of_one_and_cpus_may_be_parts() {
    for (text, milli) in [
        ("2", Some(2_000)),
        ("0", Some(0)),
        (" 8 ", Some(8_000)),
        ("0.5", Some(500)),
        ("0.001", Some(1)),
        ("0.0001", None),
        ("0.0000001", None),
        ("1.0", Some(1_000)),
        ("0.9999999", None),
        ("1.0000001", None),
        ("2.5", None),
        ("NaN", None),
        ("inf", None),
        ("-1", None),
        ("-0.5", None),
        ("two", None),
        ("2xH100", None),
        ("4294967295", None),
        ("18446744073709551615", None),
        ("", None),
    ] {
        check(Key::Gpus, text, |spec| Some(u64::from(spec.ask.gpu_milli)), milli);
    }
    for (text, milli) in [
        ("0.5", Some(500)),
        ("50%", Some(500)),
        (" 12.5 % ", Some(125)),
        ("100%", Some(1_000)),
        ("1", Some(1_000)),
        ("0.1%", Some(1)),
        ("0.0999%", None),
        ("0", None),
        ("0%", None),
        ("-50%", None),
        ("101%", None),
        ("1.0000001", None),
        ("2", None),
        ("NaN", None),
        ("half", None),
        ("50%%", None),
        ("", None),
    ] {
        check(Key::GpuShare, text, |spec| Some(u64::from(spec.ask.gpu_milli)), milli);
    }
    for (text, milli) in [
        ("4", Some(4_000)),
        ("0.5", Some(500)),
        ("0.0001", Some(1)),
        ("1000000", Some(1_000_000_000)),
        ("1000001", None),
        ("0", None),
        ("-1", None),
        ("500m", None),
        ("NaN", None),
    ] {
        check(Key::Cpus, text, |spec| Some(u64::from(spec.ask.cpus_milli)), milli);
    }
}

#[test]
fn counts_have_ranges() {
    for (key, most) in [(Key::Priority, 100), (Key::Retries, 1_000)] {
        let read = move |spec: &JobSpec| {
            Some(u64::from(match key {
                Key::Priority => spec.priority,
                _ => spec.retries,
            }))
        };
        check(key, "0", read, Some(0));
        check(key, &most.to_string(), read, Some(most));
        for text in ["-1", "", "1.5", "2147483648", "99999999999999999999", "+1", "x"] {
            check(key, text, read, None);
        }
        check(key, &(most + 1).to_string(), read, None);
    }
    let grace = |spec: &JobSpec| spec.grace_ms.map(u64::from);
    check(Key::Grace, "0s", grace, Some(0));
    check(Key::Grace, "1h", grace, Some(3_600_000));
    check(Key::Grace, "61m", grace, None);
    let fpga = |spec: &JobSpec| Some(spec.ask.devices.get("fpga").copied().map_or(0, u64::from));
    check(Key::Fpga, "1", fpga, Some(1));
    check(Key::Fpga, "0", fpga, Some(0));
    check(Key::Fpga, "many", fpga, None);
}

#[test]
fn arrays_are_ranges() {
    let array = |start, end, step, parallel_max| Some(ArraySpec { start, end, step, parallel_max });
    for (text, wanted) in [
        ("1-100", array(1, 100, 1, 0)),
        ("0-9:2", array(0, 9, 2, 0)),
        ("1-1000%50", array(1, 1_000, 1, 50)),
        ("0-9:3%2", array(0, 9, 3, 2)),
        ("5", array(5, 5, 1, 0)),
        ("1-10000000", array(1, 10_000_000, 1, 0)),
        ("0-10000000", None),
        ("1-20000000%50", None),
        ("0-4294967295", None),
        ("0-9223372036854775808", None),
        ("9-1", None),
        ("1-9:0", None),
        ("1-9%0", None),
        ("1,3", None),
        ("-1", None),
        ("1-", None),
        ("", None),
        ("a-b", None),
        ("1-9%", None),
    ] {
        let got = by_flag(Key::Array, text);
        match wanted {
            Some(_) => assert_eq!(got.unwrap().array, wanted, "{text:?}"),
            None => assert_eq!(got.unwrap_err().field.as_deref(), Some("array"), "{text:?}"),
        }
    }
}

#[test]
fn an_array_above_the_limit_is_told_the_limit_its_size_and_how_to_cap() {
    // Field report R010.
    for (text, tasks) in [
        ("1-20000000", "20000000 tasks"),
        ("0-10000000%50", "10000001 tasks"),
        ("0-4294967295", "4294967295 tasks"),
        ("0-9223372036854775808", "more than 4294967295 tasks"),
    ] {
        let error = by_flag(Key::Array, text).unwrap_err();
        for part in [tasks, "the limit is 10000000", "at once with %"] {
            assert!(error.message.contains(part), "{text}: {error}");
        }
        assert!(by_flag(Key::Array, error.example.as_deref().unwrap()).is_ok(), "{error}");
    }
}

#[test]
fn misspelt_keys_and_words_are_refused_with_the_nearest_and_the_list() {
    // Field report R005.
    let unknown = draft_from_toml(b"command = [\"true\"]\ngpuz = 1\n").unwrap_err();
    assert_eq!(unknown.field.as_deref(), Some("gpuz"));
    assert_eq!(unknown.example.as_deref(), Some("gpus"));
    assert!(unknown.message.contains("did you mean gpus?"), "{unknown}");
    assert!(unknown.message.contains("gpu-model, vram, cpus, mem"), "{unknown}");
    let unknown = draft_from_json(br#"{"policy": "spreed"}"#).unwrap_err();
    assert_eq!(unknown.field.as_deref(), Some("policy"));
    let unknown = read_script(b"#!/bin/sh\n#ROTA --gpus 1\n#ROTA --tiem 5m\ntrue\n", b"s", &[]);
    let unknown = unknown.unwrap_err();
    assert_eq!(unknown.field.as_deref(), Some("tiem"));
    assert!(unknown.message.starts_with("line 3: "), "{unknown}");
    let unknown = word::states("state", "runing").unwrap_err();
    assert_eq!(unknown.example.as_deref(), Some("running"));
    assert!(word::signal("signal", "URS1").unwrap_err().message.contains("USR1"));
}

#[test]
fn double_keys_are_refused_at_every_entry() {
    let mut flags = JobDraft::default();
    flags.set(Key::Gpus, &Value::text("1")).unwrap();
    for (error, field) in [
        (flags.set(Key::Gpus, &Value::text("1")), "gpus"),
        (draft_from_toml(b"gpus = 1\ngpus = 2\n").map(|_| ()), "gpus"),
        (draft_from_toml(b"gpu-model = \"a\"\ngpu_model = \"b\"\n").map(|_| ()), "gpu-model"),
        (draft_from_json(br#"{"gpus": 1, "gpus": 1}"#).map(|_| ()), "gpus"),
        (read_script(b"#ROTA --gpus 1 --gpus 2\ntrue\n", b"s", &[]).map(|_| ()), "gpus"),
        (draft_from_toml(b"env = [\"A=1\", \"A=2\"]\n").map(|_| ()), "env.A"),
        (draft_from_json(br#"{"label": {"a": "1", "a": "2"}}"#).map(|_| ()), "label.a"),
    ] {
        let error = error.unwrap_err();
        assert_eq!(error.code, ErrorCode::Invalid);
        assert_eq!(error.field.as_deref(), Some(field), "{error}");
    }
}

#[test]
fn wrong_types_and_shapes_are_refused_with_their_key() {
    for (text, field) in [
        ("gpus = \"two\"", "gpus"),
        ("gpus = true", "gpus"),
        ("gpus = [1]", "gpus"),
        ("gpus = {n = 1}", "gpus"),
        ("gpus = nan", "gpus"),
        ("gpus = 1.5", "gpus"),
        ("hold = 1", "hold"),
        ("hold = \"maybe\"", "hold"),
        ("preemptible = 0", "preemptible"),
        ("or = 1", "or"),
        ("or = [1]", "or"),
        ("or = {}", "or"),
        ("or = \"\"", "or"),
        ("after = 12", "after"),
        ("after = {a = 1}", "after"),
        ("device = 1", "device"),
        ("device = {fpga = true}", "device"),
        ("begin = true", "begin"),
        ("queue = []", "queue"),
        ("compute-cap = inf", "compute-cap"),
        ("time = inf", "time"),
        ("time = 1e308", "time"),
        ("mem = -16", "mem"),
        ("name = 5", "name"),
        ("name = \"\"", "name"),
        ("name = \"a\\u0000b\"", "name"),
        ("name = \"a\\u001b[31m\"", "name"),
        ("command = [1]", "command"),
        ("command = {a = 1}", "command"),
        ("command = [[\"a\"]]", "command"),
        ("env = {A = 1}", "env"),
        ("env = {\"\" = \"x\"}", "env."),
        ("env = [\"=x\"]", "env."),
        ("env = {ROTA_JOB = \"x\"}", "env.ROTA_JOB"),
        ("env = \"PATH\"", "env"),
        ("label = \"pool\"", "label"),
        ("label = \"=a\"", "label"),
        ("workdir = \"\"", "workdir"),
        ("gpus = ", "gpus"),
        ("gpus", "gpus"),
    ] {
        let error = draft_from_toml(text.as_bytes()).unwrap_err();
        assert_eq!(error.code, ErrorCode::Invalid, "{text}");
        assert_eq!(error.field.as_deref(), Some(field), "{text}: {error}");
    }
    for text in ["", "[]", "1", "null", "{", "{\"gpus\": null}", &"[".repeat(10_000)] {
        let refused = draft_from_json(text.as_bytes());
        assert!(refused.is_err(), "{text}");
    }
    let deep = format!("label = {}", "[".repeat(10_000));
    assert!(draft_from_toml(deep.as_bytes()).is_err());
    let long = vec![b'x'; 10 << 20];
    assert_eq!(draft_from_toml(&long).unwrap_err().code, ErrorCode::TooLarge);
    assert!(draft_from_toml(b"name = \"\xff\"").unwrap_err().message.contains("byte 9"));
}

#[test]
fn numbers_need_no_quotes_and_odd_line_ends_are_no_matter() {
    let text = "\u{feff}name = \"t\"\r\ncommand = \"echo $X\"\r\ngpus = 2\r\ngpu_model = [\"H100\", \"A100\"]\r\nvram = 81920\r\n\tcpus = 1.5\r\nmem = \"16 G\"\r\ntime = 01:30:00\r\npriority = 70\r\n[env]\r\nX = \"a\"\r\n[label]\r\npool = \"a\"\r\n";
    let spec = draft_from_toml(text.as_bytes()).unwrap().build(&defaults()).unwrap();
    assert_eq!(spec.ask.gpu_milli, 2_000);
    assert_eq!(spec.ask.gpu_models, ["A100", "H100"]);
    assert_eq!(spec.ask.cpus_milli, 1_500);
    assert_eq!(spec.ask.mem_mib, 16_384);
    assert_eq!(spec.time_limit_ms, Some(5_400_000));
    assert_eq!(spec.ask.labels["pool"], "a");
    assert_eq!(spec.env, [(b"X".to_vec(), b"a".to_vec())]);
    assert_eq!(spec.argv, [&b"/bin/sh"[..], b"-c", b"echo $X"]);
    assert_eq!(spec.workdir, b"/home/u1");
}

#[test]
fn a_plain_job_gets_the_documented_defaults() {
    let mut draft = JobDraft::default();
    let argv = vec![Scalar::Text(b"/opt/bin/train\x1b".to_vec()), Scalar::Text(b"\xff\xfe".to_vec())];
    draft.set(Key::Command, &Value::List(argv)).unwrap();
    draft.set(Key::Workdir, &Value::text("sub/../x")).unwrap();
    let spec = draft.build(&defaults()).unwrap();
    assert_eq!(spec.name, "train");
    assert_eq!(spec.argv[1], b"\xff\xfe");
    assert_eq!((spec.ask.cpus_milli, spec.ask.gpu_milli, spec.ask.mem_mib), (1_000, 0, 0));
    assert_eq!((spec.priority, spec.retries, spec.time_limit_ms, spec.grace_ms), (50, 0, None, None));
    assert_eq!(spec.workdir, b"/home/u1/sub/../x");
}

#[test]
fn a_job_that_is_no_job_or_too_large_is_refused() {
    let build = |argv: Vec<Vec<u8>>| {
        let mut draft = JobDraft::default();
        let argv = argv.into_iter().map(Scalar::Text).collect();
        draft.set(Key::Command, &Value::List(argv)).unwrap();
        draft.build(&defaults()).unwrap_err()
    };
    for (argv, code) in [
        (vec![], ErrorCode::Invalid),
        (vec![vec![]], ErrorCode::Invalid),
        (vec![b"a\0b".to_vec()], ErrorCode::Invalid),
        (vec![vec![b'x'; 1 << 20]], ErrorCode::TooLarge),
        (vec![b"x".to_vec(); 5_000], ErrorCode::TooLarge),
        (vec![vec![b'x'; 100_000]; 14], ErrorCode::TooLarge),
    ] {
        let error = build(argv);
        assert_eq!((error.code, error.field.as_deref()), (code, Some("command")), "{error}");
    }
    let mut draft = JobDraft::default();
    draft.set(Key::Command, &Value::text("true")).unwrap();
    draft.inherit_env((0..1_000_000_u32).map(|i| (format!("V{i}").into_bytes(), b"1".to_vec())));
    assert_eq!(draft.build(&defaults()).unwrap_err().code, ErrorCode::TooLarge);
    for text in ["vram = \"1G\"\ngpus = 0\ncommand=\"x\"", "gpu-model = \"H100\"\ngpus = 0\ncommand=\"x\""] {
        let error = draft_from_toml(text.as_bytes()).unwrap().build(&defaults()).unwrap_err();
        assert_eq!(error.code, ErrorCode::Invalid, "{text}");
        assert!(error.field.is_some());
    }
}

#[test]
fn flags_win_over_a_scripts_head() {
    // Field report R004.
    let text = b"#!/bin/bash -l\n# a comment\n\n#ROTA --gpus 1 --time=5m # half a day?\n#ROTA --env \"A=x y\" --env B=1\necho hi\n";
    let script = read_script(text, b"/w/s.sh", &[b"one".to_vec()]).unwrap();
    let mut flags = JobDraft::default();
    flags.set(Key::Gpus, &Value::text("2")).unwrap();
    flags.set(Key::Env, &Value::text("B=2")).unwrap();
    let spec = flags.over(script.draft).build(&defaults()).unwrap();
    assert_eq!((spec.ask.gpu_milli, spec.time_limit_ms), (2_000, Some(300_000)));
    assert_eq!(spec.env, [(b"A".to_vec(), b"x y".to_vec()), (b"B".to_vec(), b"2".to_vec())]);
    let words: Vec<&[u8]> = spec.argv.iter().map(Vec::as_slice).collect();
    assert_eq!(words, [&b"/bin/bash"[..], b"-l", b"-c", text, b"/w/s.sh", b"one"]);
    let python = read_script(b"#!/usr/bin/env python3\nprint(1)\n", b"t.py", &[b"-x".to_vec()]).unwrap();
    let spec = python.draft.build(&defaults()).unwrap();
    let words: Vec<&[u8]> = spec.argv.iter().map(Vec::as_slice).collect();
    assert_eq!(words[..3], [&b"/usr/bin/env"[..], b"python3", b"-c"]);
    assert_eq!(words[4..], [b"-x"]);
}

#[test]
fn scripts_with_odd_bytes_are_mended_or_refused_at_submit() {
    // Field report R003.
    let told = |text: &[u8]| read_script(text, b"s", &[]).map(|script| script.notes.len());
    assert_eq!(told(b"#!/bin/bash\necho hi\n"), Ok(0));
    assert_eq!(told(b"#!/bin/bash\r\necho hi\r\n"), Ok(1));
    assert_eq!(told(b"\xef\xbb\xbf#!/bin/sh\necho hi\n"), Ok(1));
    assert_eq!(told(b"echo hi\n"), Ok(0));
    let kept = b"#!/bin/sh\nprintf 'a\r\nb'\n";
    let spec = read_script(kept, b"s", &[]).unwrap().draft.build(&defaults()).unwrap();
    assert_eq!(spec.argv[2], kept);
    let mended = read_script(b"#!/bin/sh\r\n#ROTA --gpus 1\r\nx\r\n", b"s", &[]).unwrap();
    let spec = mended.draft.build(&defaults()).unwrap();
    assert_eq!(spec.argv[2], b"#!/bin/sh\n#ROTA --gpus 1\nx\n");
    assert_eq!(spec.ask.gpu_milli, 1_000);
    for text in [
        &b""[..],
        b"  \n\n",
        b"#!/bin/sh\r\necho\n",
        b"#!/bin/sh\necho \0\n",
        b"#!/bin/sh\n\xff\n",
        b"#!/opt/own\nx\n",
        b"#!/bin/sh\n#SBATCH --gres=gpu:8\nx\n",
        b"#!/bin/sh\nx\n#ROTA --gpus 1\n",
        b"#!/bin/sh\n#ROTA gpus 1\nx\n",
        b"#!/bin/sh\n#ROTA --name \"x\nx\n",
        &[b'#'; 200_000],
    ] {
        let error = told(text).unwrap_err();
        assert_eq!(error.field.as_deref(), Some("script"), "{error}");
    }
    assert!(script::has_asks(b"#!/bin/sh\n#ROTA --gpus 1\n"));
    assert!(!script::has_asks(b"#!/bin/sh\n#ROTATE\n"));
}

#[test]
fn words_of_the_command_line() {
    assert_eq!(word::signal("signal", "usr1"), Ok(10));
    assert_eq!(word::signal("signal", "SIGTERM"), Ok(15));
    assert_eq!(word::signal("signal", "9"), Ok(9));
    for bad in ["0", "65", "-1", "SIG", ""] {
        assert!(word::signal("signal", bad).is_err(), "{bad}");
    }
    assert_eq!(
        word::states("state", "PD,running, cg"),
        Ok(vec![JobState::Pending, JobState::Running, JobState::Ending])
    );
    assert_eq!(
        word::states("state", "TO,pr,DF,DL,nf,time-limit,host lost"),
        Ok(vec![
            JobState::TimedOut,
            JobState::Preempted,
            JobState::DependencyFailed,
            JobState::DeadlineMissed,
            JobState::HostLost,
            JobState::TimedOut,
            JobState::HostLost,
        ])
    );
    assert!(word::states("state", "").is_err());
    assert_eq!(word::output_stream("stream", "err"), Ok(OutputStream::Stderr));
    let number = |job, index| Ok(JobRef::Number { job: JobId(job), index });
    assert_eq!(word::job_ref("job", "123"), number(123, None));
    assert_eq!(word::job_ref("job", "123_4"), number(123, Some(4)));
    assert_eq!(word::job_ref("job", "last"), Ok(JobRef::Last { index: None }));
    assert_eq!(word::job_ref("job", "last_4"), Ok(JobRef::Last { index: Some(4) }));
    for bad in [
        "",
        "_",
        "last_",
        "last4",
        "1_",
        "_1",
        "1_2_3",
        "-1",
        "1.5",
        "+1",
        "99999999999999999999",
        "1_4294967296",
        "١",
    ] {
        assert!(word::job_ref("job", bad).is_err(), "{bad}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_a_parser_panic(text in ".{0,40}", odd in "[-0-9.:%_=,dhmsKMGTi \"'#\\r\\n]{0,24}") {
        for text in [&text, &odd] {
            for key in Key::ALL {
                let _ = by_all(key, text);
            }
            let _ = word::job_ref("job", text);
            let _ = word::signal("signal", text);
            let _ = word::states("state", text);
            let _ = word::label("label", text);
            let _ = Key::parse(text);
        }
    }

    #[test]
    fn one_text_gives_one_spec_through_every_entry(
        text in "[ a-zA-Z0-9.:%@,+/=_-]{0,12}",
        near in "(ok|any|each-ok|afterok|USR1|B:TERM|now|fpga|mig|gpus|cpus|pack|yes|no)?[:@+=,. -]{0,1}[0-9]{0,3}(\\.[0-9])?[%KMGThms]{0,1}",
    ) {
        // A script is its own command, and is called by its name.
        let keys = Key::ALL.into_iter().filter(|key| !matches!(key, Key::Command | Key::Name));
        for (key, text) in keys.flat_map(|key| [(key, &text), (key, &near)]) {
            let all: Vec<_> = by_all(key, text).into_iter().map(|result| result.map_err(|error| error.code)).collect();
            for other in &all[1..] {
                prop_assert_eq!(other, &all[0], "{:?} {:?}", key, text);
            }
        }
    }

    #[test]
    fn no_bytes_make_an_entry_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = draft_from_toml(&bytes);
        let _ = draft_from_json(&bytes);
        let _ = read_script(&bytes, b"s", &[]);
    }

    #[test]
    fn what_is_echoed_reads_back_the_same(mib in 1..=amount::MEM_MIB_MAX, ms in 0..=TIME_LIMIT_MS_MAX, milli in 1..=amount::CPUS_MILLI_MAX) {
        prop_assert_eq!(amount::memory_mib("mem", &amount::memory_text(mib)), Ok(mib));
        prop_assert_eq!(time::duration_or_zero_ms("time", &time::duration_text(ms)), Ok(ms));
        prop_assert_eq!(amount::cpus_milli("cpus", &amount::milli_text(milli)), Ok(milli));
    }
}

#[test]
fn output_and_input_are_said_like_everything_else() {
    let draft = |text: &str| draft_from_toml(format!("command = \"x\"\n{text}").as_bytes());
    let spec = draft("output = \"%j.out\"\nerror = \"e\"\noutput-max = \"10MiB\"\nopen-mode = \"truncate\"");
    let output = spec.unwrap().build(&defaults()).unwrap().output().clone();
    assert_eq!((output.stdout, output.stderr), (Some(b"%j.out".to_vec()), Some(b"e".to_vec())));
    assert_eq!((output.bytes_max, output.replace, output.stdin), (Some(10 << 20), true, None));
    let refused = |text: &str| match draft(text) {
        Ok(draft) => draft.build(&defaults()).unwrap_err(),
        Err(error) => error,
    };
    for (text, field, part) in [
        ("output = \"%q\"", "output", "'%q' in '%q' means nothing"),
        ("output = 3", "output", "takes text"),
        ("output-max = \"1KiB\"", "output-max", "1024 bytes are not between"),
        ("output-max = \"much\"", "output-max", ""),
        ("output-mode = \"apend\"", "output-mode", "append"),
        ("stdin = \"data\"", "stdin", "only the command line reads"),
        ("outptu = \"x\"", "outptu", "output"),
    ] {
        let error = refused(text);
        assert_eq!(error.field.as_deref(), Some(field), "{text}: {error}");
        assert!(error.to_string().contains(part), "{text}: {error}");
    }
    let mut draft = draft("stdin = \"data\"").unwrap();
    assert_eq!(draft.stdin_file(), Some(&b"data"[..]));
    draft.give_stdin(vec![0, 255]);
    assert_eq!(draft.clone().build(&defaults()).unwrap().output().stdin, Some(vec![0, 255]));
    draft.give_stdin(vec![7; rota_protocol::limits::STDIN_BYTES_MAX + 1]);
    assert_eq!(draft.build(&defaults()).unwrap_err().field.as_deref(), Some("stdin"));
}
