//! Reasons that a newcomer could act on: what `why` advises is true, and what it foretells agrees with what is promised.

use crate::lab::{Lab, job_spec, user};
use rota_core::explain::why;
use rota_protocol::command::{Command, Outcome};
use rota_protocol::job::EndReason;
use rota_protocol::job::JobSpec;
use rota_protocol::why::{StartBasis, WhyView};
use rota_protocol::work::Warning;
use rota_protocol::{JobId, RequestId};

fn submit(lab: &mut Lab, spec: JobSpec) -> JobId {
    match lab.ask(user("t"), RequestId::NONE, Command::Submit { spec }) {
        Outcome::Submitted { job } => job,
        other => panic!("{other:?}"),
    }
}

fn ask(lab: &Lab, job: JobId) -> WhyView {
    why(&lab.state, job, lab.now_ms).expect("known")
}

/// Whoever others are evicted for waits for their warnings, cut where evictions cut them, and for their graces.
#[test]
fn what_makes_room_is_foretold_with_its_warning_and_its_grace() {
    for (before_ms, given_ms) in [(10_000, 10_000), (60_000, 30_000)] {
        let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB cpus=64"]);
        let warning = Some(Warning { signal: 10, before_ms, leader_only: false });
        let low = submit(&mut lab, JobSpec { warning, grace_ms: Some(5_000), ..job_spec("gpus=4 prio=10") });
        assert_eq!(lab.begin(low, "0@h1:0,1,2,3"), Ok(()));
        lab.all_started();
        let high = lab.submit("gpus=4 prio=90");
        let victim = lab.token(low);
        assert_eq!(lab.evict(Some(high), EndReason::Preempt, &[victim], "h1:0,1,2,3"), Ok(()));
        let asked_ms = lab.now_ms;
        lab.now_ms += 1_000;
        let start = ask(&lab, high).expected.expect("foretold");
        assert_eq!((start.basis, start.at_ms - asked_ms), (StartBasis::Victims, given_ms + 5_000));
        assert_eq!(ask(&lab, high).promise.map(|promise| promise.at_ms), Some(start.at_ms));
    }
}
