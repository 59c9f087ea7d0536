//! Attempts that could not have their inputs: nobody suspends a host for that, and a wrong hash does not go round.

use crate::lab::Lab;
use rota_core::state::host::LaunchRecord;
use rota_core::view;
use rota_protocol::job::{AttemptEnd, JobState};
use rota_protocol::report::AttemptFact;
use rota_protocol::view::JobView;

fn ends(lab: &mut Lab, line: &str, nowhere: bool) -> JobView {
    let job = lab.submit(line);
    assert_eq!(lab.begin(job, "0@h1:0"), Ok(()), "{line}");
    let token = lab.tokens(job)[0];
    let end = AttemptEnd::InputsMissing { nowhere, reason: "sha256:ab".into() };
    lab.report(token, AttemptFact::Ended { end, ran_ms: 0 });
    view::job(&lab.state, job).expect("known")
}

#[test]
fn what_no_host_has_is_the_jobs_own_failure() {
    let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB cpus=16", "h2 gpus=4xA100:80GiB cpus=16"]);
    for _ in 0..20 {
        let view = ends(&mut lab, "gpus=1", true);
        assert_eq!((view.row.state, view.exit_status), (JobState::Failed, Some(127)));
        // It never ran.
        assert_eq!(view.attempts[0].started_ms, None);
    }
    assert!(lab.state.hosts().all(|host| host.launches == LaunchRecord::default()));
    // With a retry it is looked for again.
    assert_eq!(ends(&mut lab, "gpus=1 retries=1", true).row.state, JobState::Pending);
}

#[test]
fn what_one_host_cannot_have_is_tried_on_another() {
    let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB cpus=16", "h2 gpus=4xA100:80GiB cpus=16"]);
    let view = ends(&mut lab, "gpus=1", false);
    assert_eq!(view.row.state, JobState::Pending);
    assert!(lab.state.hosts().all(|host| host.launches == LaunchRecord::default()));
    let job = lab.state.job(view.row.job).expect("known");
    let h1 = lab.state.host_by_name_or_id("h1").expect("known").id;
    assert!(job.avoid.contains_key(&h1), "{:?}", job.avoid);
}
