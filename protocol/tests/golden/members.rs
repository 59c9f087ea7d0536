//! Fixed values of what is said about membership.

use super::values::{error, text};
use rota_protocol::command::Command;
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::follow::FollowView;
use rota_protocol::members::{
    Admission, DataLife, MemberChange, MemberNote, MembersAnswer, MembersAsk, MembersView, NotLetIn, PeerLife,
};
use rota_protocol::peer::{PeerReply, PeerRequest, Renewal};
use rota_protocol::{HostId, LeaseEpoch, RequestId};

fn life() -> DataLife {
    DataLife { data: u128::MAX / 3, starts: 301, session: 0x0123_4567_89ab_cdef }
}

pub(crate) fn peer_life() -> PeerLife {
    PeerLife { life: life(), machine: text("gpu-07"), addr: text("10.0.0.7:7600") }
}

pub(crate) fn admissions() -> Vec<Admission> {
    let busy = PublicError::new(ErrorCode::Busy, "ask again").retry_after(300);
    let refused = |why| Admission::Refused { why, text: text("no") };
    let whys = [NotLetIn::Removed, NotLetIn::InUse, NotLetIn::Copied, NotLetIn::Older, NotLetIn::OtherData];
    let mut all = vec![Admission::LetIn(peer_life()), Admission::NotYet(busy)];
    all.extend(whys.map(refused));
    all
}

pub(crate) fn commands() -> Vec<(&'static str, Command)> {
    let host = HostId(7);
    let changes = [
        ("Members remove", MemberChange::Remove { host, reason: text("burnt") }),
        ("Members promote", MemberChange::Promote { host }),
        ("Members started", MemberChange::Started { host, life: life() }),
        ("Members note", MemberChange::Note { text: text("n4 votes instead of n2") }),
    ];
    changes.map(|(label, change)| (label, Command::Members(change))).to_vec()
}

pub(crate) fn asks() -> Vec<(&'static str, MembersAsk)> {
    let request = RequestId(0xfeed);
    let host = text("n7");
    vec![
        (
            "Members remove",
            MembersAsk::Remove { request, host: host.clone(), reason: text("burnt"), only_look: true },
        ),
        ("Members promote", MembersAsk::Promote { request, host: host.clone() }),
        ("Members address", MembersAsk::Address { host, addr: text("10.0.0.9:7420") }),
        ("Members backup", MembersAsk::Backup { stale: true }),
    ]
}

pub(crate) fn answers() -> Vec<(&'static str, MembersAnswer)> {
    vec![
        ("Members told", MembersAnswer::Told(vec![text("done")])),
        ("Members backup", MembersAnswer::Backup { total: 301, index: 7, piece: vec![1, 0xff] }),
    ]
}

pub(crate) fn view() -> MembersView {
    MembersView {
        epoch: 2,
        tolerates: 1,
        wanted: 3,
        next: text("n4 is not caught up"),
        advice: vec![text("n2 is lost")],
        notes: vec![MemberNote { at_ms: 301, text: text("n4 votes") }],
        follow: FollowView {
            members_max: 7,
            followers: 993,
            parent: Some(HostId(6)),
            depth: 2,
            children: 16,
            moves: 1,
            snapshots: 3,
            sent_bytes: 70_000,
        },
    }
}

pub(crate) fn renewals() -> PeerRequest {
    PeerRequest::Renewals {
        renewals: vec![(HostId(7), LeaseEpoch(3)), (HostId(301), LeaseEpoch(1))],
        hops: 2,
    }
}

pub(crate) fn renewed() -> PeerReply {
    let refused = Renewal::Refused(error());
    PeerReply::Renewals(vec![Renewal::Renewed, Renewal::NotLeader { leader: Some(HostId(2)) }, refused])
}
