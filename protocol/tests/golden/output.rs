//! What jobs and clients say of output.

use super::values::token;
use rota_protocol::JobId;
use rota_protocol::api::OutputStream;
use rota_protocol::output::{AttemptName, LogAsk, LogNews, LogNote, LogStart, OutputOrder, OutputSpec};

pub(crate) fn spec() -> OutputSpec {
    OutputSpec {
        bytes_max: Some(10 << 20),
        stdout: Some(b"%j.out".to_vec()),
        stderr: Some(b"%j.err".to_vec()),
        replace: true,
        stdin: Some(vec![0, 10, 255]),
    }
}

pub(crate) fn order() -> OutputOrder {
    OutputOrder {
        bytes_max: 10 << 20,
        rate_bytes: 4 << 30,
        stdout: b"/home/ada/7.out".to_vec(),
        stderr: Vec::new(),
        replace: true,
        separator: b"--- attempt 2\n".to_vec(),
        stdin: vec![0, 10, 255],
    }
}

pub(crate) fn ask() -> LogAsk {
    LogAsk {
        job: JobId(11),
        index: 3,
        attempt: Some(AttemptName::Number(2)),
        after: Some(token()),
        stream: OutputStream::Stderr,
        start: LogStart::Lines(20),
        follow: true,
    }
}

pub(crate) fn begins() -> LogNote {
    let what = LogNews::Begins { host: "gpu-07".into(), because: Some("preempted".into()) };
    LogNote { attempt: token(), number: 2, what }
}

pub(crate) fn unreachable() -> LogNote {
    LogNote { what: LogNews::Unreachable { host: "gpu-07".into(), offset: 4_097 }, ..begins() }
}
