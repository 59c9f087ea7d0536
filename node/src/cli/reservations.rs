//! `rota reserve`, `rota unreserve`, `rota reservations`: hosts kept for a time.

use super::context::{Context, ReadArgs, document, say};
use super::failure::Failure;
use super::times::{stamp, wall_ms};
use crate::client::{fresh_request, unexpected};
use crate::parse::moment::moment;
use crate::parse::{time, word};
use crate::table::{Table, clean};
use clap::Args;
use rota_protocol::PublicError;
use rota_protocol::api::{ApiReply, ApiRequest};
use rota_protocol::reservation::{ReservationAsk, ReservedFor};
use rota_protocol::view::ReservationRow;
use serde_json::json;

/// Keep hosts for a time. Work of others that might run into it is not started there.
#[derive(Debug, Args)]
pub struct ReserveArgs {
    /// A name of its own; one that exists is replaced
    pub name: String,
    /// Names or numbers of hosts
    #[arg(long, required = true, value_name = "HOST,..")]
    pub hosts: String,
    /// From when: now, now+1h, 2026-12-01T08:00 (UTC)
    #[arg(long, value_name = "WHEN", default_value = "now")]
    pub from: String,
    /// For how long
    #[arg(long = "for", value_name = "TIME", required_unless_present = "until", conflicts_with = "until")]
    pub length: Option<String>,
    /// Until when
    #[arg(long, value_name = "WHEN")]
    pub until: Option<String>,
    /// For jobs of these queues and those below them
    #[arg(long, value_name = "PATH,..", conflicts_with = "maintenance")]
    pub queues: Option<String>,
    /// For nobody: this or --queues must be given
    #[arg(long)]
    pub maintenance: bool,
    /// For others to read
    #[arg(long, default_value = "")]
    pub reason: String,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Give reserved hosts back.
#[derive(Debug, Args)]
pub struct UnreserveArgs {
    /// The reservation's name
    pub name: String,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// List reservations.
#[derive(Debug, Args)]
pub struct ReservationsArgs {
    /// How to read.
    #[command(flatten)]
    pub read: ReadArgs,
}

impl ReserveArgs {
    /// What is asked for.
    fn ask(&self, now_ms: u64) -> Result<ReservationAsk, PublicError> {
        let names = |field: &str, text: &str| -> Result<Vec<String>, PublicError> {
            let all = text.split(',').map(|name| word::name(field, name)).collect::<Result<Vec<_>, _>>()?;
            word::once_each(field, all)
        };
        let start_ms = moment("from", &self.from)?.at_ms(now_ms);
        let end_ms = match (&self.length, &self.until) {
            (Some(length), _) => start_ms.saturating_add(time::duration_ms("for", length)?),
            (None, Some(until)) => moment("until", until)?.at_ms(now_ms),
            (None, None) => return Err(PublicError::invalid("for", "is not given", "2h")),
        };
        if end_ms <= start_ms {
            return Err(PublicError::invalid("until", "lies before its begin", "now+2h"));
        }
        let kept_for = match &self.queues {
            None if self.maintenance => ReservedFor::Nobody,
            None => {
                let message =
                    "is not given: --queues PATH for jobs of these queues, or --maintenance for nobody";
                return Err(PublicError::invalid("queues", message, "--maintenance"));
            }
            Some(paths) => ReservedFor::Queues(
                paths
                    .split(',')
                    .map(|path| word::queue("queues", path))
                    .collect::<Result<_, _>>()
                    .and_then(|all| word::once_each("queues", all))?,
            ),
        };
        Ok(ReservationAsk {
            name: word::name("name", &self.name)?,
            hosts: names("hosts", &self.hosts)?,
            start_ms,
            end_ms,
            kept_for,
            reason: self.reason.clone(),
        })
    }
}

/// Runs `rota reserve`.
///
/// # Errors
/// Something malformed, no such host or queue, too few rights, or no cluster.
pub async fn reserve(context: &Context, args: &ReserveArgs) -> Result<u8, Failure> {
    let reservation = args.ask(wall_ms())?;
    let line = format!(
        "reservation {}: {} from {} until {}, for {}",
        reservation.name,
        reservation.hosts.join(","),
        stamp(reservation.start_ms),
        stamp(reservation.end_ms),
        kept_for_text(&reservation.kept_for)
    );
    let request = ApiRequest::Reserve { request: fresh_request(), reservation: reservation.clone() };
    match context.client.call(request).await? {
        ApiReply::Done if args.json => document(&json!({ "reservation": reservation }))?,
        ApiReply::Done => say(&format!("{}\n", clean(&line)))?,
        other => return Err(unexpected(&other).into()),
    }
    Ok(0)
}

/// Runs `rota unreserve`.
///
/// # Errors
/// No such reservation, too few rights, or no cluster.
pub async fn unreserve(context: &Context, args: &UnreserveArgs) -> Result<u8, Failure> {
    let request = ApiRequest::Unreserve { request: fresh_request(), name: args.name.clone() };
    match context.client.call(request).await? {
        ApiReply::Done if args.json => document(&json!({ "reservation": args.name, "now": "given back" }))?,
        ApiReply::Done => say(&format!("reservation {}: given back\n", clean(&args.name)))?,
        other => return Err(unexpected(&other).into()),
    }
    Ok(0)
}

/// Runs `rota reservations`.
///
/// # Errors
/// No cluster.
pub async fn reservations(context: &Context, args: &ReservationsArgs) -> Result<u8, Failure> {
    let freshness = args.read.freshness();
    match context.client.call(ApiRequest::Reservations { freshness }).await? {
        ApiReply::Reservations { index, rows } if args.read.json => {
            document(&json!({ "index": index, "reservations": rows }))?;
        }
        ApiReply::Reservations { rows, .. } => say(&reservation_table(&rows).to_string())?,
        other => return Err(unexpected(&other).into()),
    }
    Ok(0)
}

fn reservation_table(rows: &[ReservationRow]) -> Table {
    let mut table =
        Table::new(&["NAME", "STATE", "FROM", "UNTIL", "HOSTS", "FOR", "FOREIGN TASKS>", "REASON"]);
    for row in rows {
        table.row([
            row.spec.name.clone(),
            if row.active { "active" } else { "ahead" }.to_owned(),
            stamp(row.spec.start_ms),
            stamp(row.spec.end_ms),
            row.host_names.join(","),
            kept_for_text(&row.spec.kept_for),
            row.foreign_tasks.to_string(),
            row.spec.reason.clone(),
        ]);
    }
    table
}

fn kept_for_text(kept_for: &ReservedFor) -> String {
    match kept_for {
        ReservedFor::Nobody => "maintenance".to_owned(),
        ReservedFor::Queues(paths) => paths.join(","),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(from: &str, length: Option<&str>, until: Option<&str>) -> ReserveArgs {
        ReserveArgs {
            name: "m".into(),
            hosts: "a,b".into(),
            from: from.into(),
            length: length.map(str::to_owned),
            until: until.map(str::to_owned),
            queues: None,
            maintenance: true,
            reason: String::new(),
            json: false,
        }
    }

    #[test]
    fn a_reservation_has_a_begin_and_a_later_end() {
        let ask = args("now+1h", Some("2h"), None).ask(1_000).unwrap();
        assert_eq!((ask.start_ms, ask.end_ms), (3_601_000, 10_801_000));
        assert_eq!((ask.hosts, ask.kept_for), (vec!["a".to_owned(), "b".to_owned()], ReservedFor::Nobody));
        let ask = args("1970-01-02", None, Some("1970-01-02T06:00")).ask(1_000).unwrap();
        assert_eq!((ask.start_ms, ask.end_ms), (86_400_000, 108_000_000));
        for (bad, field) in [
            (args("yesterday", Some("2h"), None), "from"),
            (args("now", Some("0"), None), "for"),
            (args("now", None, Some("now")), "until"),
            (ReserveArgs { hosts: "a,,b".into(), ..args("now", Some("1h"), None) }, "hosts"),
            (ReserveArgs { maintenance: false, ..args("now", Some("1h"), None) }, "queues"),
            (ReserveArgs { queues: Some("a//b".into()), ..args("now", Some("1h"), None) }, "queues"),
        ] {
            assert_eq!(bad.ask(1_000).unwrap_err().field.as_deref(), Some(field));
        }
        for (bad, field) in [
            (ReserveArgs { hosts: "n1,n2,n1".into(), ..args("now", Some("1h"), None) }, "hosts"),
            (ReserveArgs { queues: Some("n1,n1".into()), ..args("now", Some("1h"), None) }, "queues"),
        ] {
            let error = bad.ask(1_000).unwrap_err();
            assert_eq!(
                (error.field.as_deref(), error.message.contains("\"n1\" is given twice")),
                (Some(field), true),
                "{error}"
            );
        }
    }
}
