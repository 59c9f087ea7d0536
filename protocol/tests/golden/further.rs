//! The fixed values: further parts of answers to clients.

use crate::values::*;
use rota_protocol::JobId;
use rota_protocol::api::ApiReply;
use rota_protocol::why_more::{UsageRow, WhyHolder, WhyMore, WhyShare};

pub(crate) fn more() -> WhyMore {
    WhyMore {
        reservation: Some(text("maintenance-7")),
        shares: vec![WhyShare {
            queue: text("vision"),
            part: text("gpus"),
            held: 3_000,
            held_by_user: 2_000,
            whole: 12_000,
            weight: 1,
            weights: 4,
            users: 2,
        }],
        evicted: Some(text("asked to end")),
        partly: true,
        staging: vec![super::data::staging()],
        holders: vec![WhyHolder {
            job: JobId(71),
            host: text("gpu-01"),
            until_ms: Some(NOW_MS + 40_000),
            gpu_milli: 4_000,
            preemptible: false,
            ending: true,
        }],
        more_holders: 2,
    }
}

pub(crate) fn usage() -> ApiReply {
    ApiReply::Usage(vec![UsageRow {
        tenant: text("vision"),
        user: text("ada"),
        queue: text("vision/night"),
        gpu_ms: 91,
        cpu_ms: 92,
        attempts: 93,
        live: vec![JobId(70_000)],
    }])
}
