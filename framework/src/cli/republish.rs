//! `tidings republish`

use std::error::Error;
use std::io::Write;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::dead::at;
use crate::dead::By;
use crate::republish::{Error as Refused, What, count, republish};
use crate::services::DATABASE_URL;

/// Publish again what was published before, with the same ids and versions, in the order of each aggregate.
///
/// For a consumer that lost its data, or a stream that is gone for good. Consumers that remember an event settle its copy
/// without an effect; one that has forgotten it applies it again, so what is older than their inboxes is refused. What was
/// discarded goes as the tombstone it was. The broker drops copies of what it stored within its window for duplicates.
///
/// Without --yes it only counts. With it, it is said in the log who did it and why.
///
/// Exit codes: 0 done, counted, or nothing to do; 1 failed or refused, and nothing was done; 2 wrong arguments.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("which").required(true).args(["since", "aggregate"]))]
pub(crate) struct Arguments {
    /// The database, postgres://user:password@host:port/name. The variable keeps the password out of the process list.
    #[arg(long, value_name = "URL", env = DATABASE_URL, hide_env_values = true)]
    database_url: String,

    /// What was appended since then: a time such as 2026-01-31T12:00:00Z, or how far back, such as 2h
    #[arg(long, value_name = "TIME", value_parser = since)]
    since: Option<What>,

    /// Everything of one aggregate
    #[arg(long, value_name = "TYPE/ID", value_parser = aggregate)]
    aggregate: Option<What>,

    /// How far back the inboxes of all consumers remember
    #[arg(long, value_name = "DURATION", default_value = "38d", value_parser = humantime::parse_duration)]
    inbox_horizon: Duration,

    /// Yes, publish them again
    #[arg(long)]
    yes: bool,

    /// Who decides this
    #[arg(long, value_name = "NAME", env = "USER", hide_env_values = true, default_value = "nobody named")]
    by: String,

    /// Why
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// Counts, or publishes again.
pub(crate) fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let Arguments { database_url, since, aggregate, inbox_horizon, yes, by, reason } = arguments;
    let Some(what) = since.or(aggregate) else { return Err("say --since or --aggregate".into()) };
    let by = reason.into_iter().fold(By::name(by), By::why);
    let parts = at(&database_url, async |connection| {
        diesel_async::RunQueryDsl::execute(diesel::sql_query("SET statement_timeout = 0"), connection).await?;
        if !yes {
            return Ok(Ok(count(connection, &what).await?));
        }
        match republish(connection, &what, inbox_horizon, &by).await {
            Ok(parts) => Ok(Ok(parts)),
            Err(Refused::Query(error)) => Err(error),
            Err(refused) => Ok(Err(refused)),
        }
    })?;
    let parts = parts.map_err(|refused| format!("{refused}. If they remember longer, say so with --inbox-horizon"))?;
    let mut out = std::io::stdout().lock();
    for part in &parts {
        let (oldest, events) = (part.oldest.to_rfc3339_opts(chrono::SecondsFormat::Secs, true), part.events);
        writeln!(out, "partition {}: {events} events, the oldest of {oldest}", part.partition)?;
    }
    let events: u64 = parts.iter().map(|part| part.events).sum();
    match (events, yes) {
        (0, _) => writeln!(out, "nothing to do: no published event is meant that is not on its way already")?,
        (_, true) => writeln!(out, "{events} events are published again")?,
        (_, false) => writeln!(out, "{events} events would be published again; nothing was done: say --yes")?,
    }
    Ok(())
}

fn since(text: &str) -> Result<What, String> {
    if let Ok(back) = humantime::parse_duration(text) {
        return Ok(What::appended_within(back));
    }
    let time = DateTime::parse_from_rfc3339(text)
        .map_err(|_| "give a time with its zone, such as 2026-01-31T12:00:00Z, or a duration such as 2h")?;
    Ok(What::appended_since(time.with_timezone(&Utc)))
}

fn aggregate(text: &str) -> Result<What, String> {
    let (r#type, id) = text.split_once('/').ok_or("give the type and the id of an aggregate, such as order/7")?;
    Ok(What::aggregate(r#type, id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_horizon_is_the_one_of_the_code() {
        assert_eq!(humantime::parse_duration("38d"), Ok(crate::republish::INBOX_HORIZON));
    }

    #[test]
    fn a_time_is_one_that_cannot_be_misread() {
        assert_eq!(since("2h"), Ok(What::appended_within(Duration::from_secs(7_200))));
        assert!(since("2026-01-31T12:00:00+01:00").is_ok());
        for wrong in ["yesterday", "2026-01-31", "2026-01-31T12:00:00", ""] {
            assert!(since(wrong).is_err(), "{wrong}");
        }
        assert!(aggregate("order").is_err());
        assert_eq!(aggregate("order/a/b"), Ok(What::aggregate("order", "a/b")));
    }
}
