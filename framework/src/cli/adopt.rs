//! `tidings adopt`

use std::error::Error;
use std::io::Write;
use std::time::Duration;

use super::migrate::place;
use crate::adopt::{self, Found, InTheWay, Renumbered, Unknown};
use crate::broker::JetStream;
use crate::postgres::Database;
use crate::services::{DATABASE_URL, NATS_URL};

/// Take over what a stream holds and the database does not know, after the database went back in time.
///
/// A restored backup, or a standby without the last commits, has lost events that were published, and consumers may have
/// applied them. The relay of such a partition stands still. This writes those events again, as the stream has them. What was
/// appended since then under versions that are taken gets the next ones; where its producer had chosen the version, it
/// becomes a dead letter (`tidings dead list`). The relay goes on by itself afterwards.
///
/// Without --yes it only lists. A message that is none of ours, or contradicts the database, is in the way: remove it from
/// the stream by hand (`nats stream rmm STREAM SEQUENCE`); until then nothing of its partition is adopted.
///
/// Exit codes: 0 done, listed, or nothing to do; 1 failed, or something is in the way; 2 wrong arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The database, postgres://user:password@host:port/name. The variable keeps the password out of the process list.
    #[arg(long, value_name = "URL", env = DATABASE_URL, hide_env_values = true)]
    database_url: String,

    /// The broker, nats://user:password@host:port, several of one cluster separated by commas.
    #[arg(long, value_name = "URL", env = NATS_URL, hide_env_values = true)]
    nats_url: String,

    /// Only this partition
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..1024))]
    partition: Option<i32>,

    /// Yes, adopt them
    #[arg(long)]
    yes: bool,

    /// Who decides this; said in the log, and recorded with tombstones
    #[arg(long, value_name = "NAME", env = "USER", hide_env_values = true, default_value = "nobody named")]
    by: String,
}

/// Lists, or adopts.
pub(crate) fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let Arguments { database_url, nats_url, partition, yes, by } = arguments;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let database = Database::url(&database_url);
    // Whatever the relays have asked of their streams is enough here.
    let broker = JetStream::url(nats_url).max_age(Duration::ZERO).duplicate_window(Duration::ZERO);
    let working = async {
        let partitions = match partition {
            Some(partition) => vec![partition],
            None => adopt::partitions(&database).await?,
        };
        let mut found = Vec::new();
        for partition in partitions {
            let one = if yes {
                adopt::adopt(&database, &broker, partition, &by).await
            } else {
                adopt::look(&database, &broker, partition).await
            };
            // Told as it is done: a later partition may fail.
            let one = one?;
            let _ = tell(&mut std::io::stdout().lock(), &one);
            found.push(one);
        }
        Ok::<_, adopt::Error>(found)
    };
    let found = runtime.block_on(working).map_err(|error| format!("{error} ({})", place(&database_url)))?;
    let blocked = found.iter().filter(|found| found.in_the_way > 0).count();
    let waiting = found.iter().any(|found| found.unknown > 0 && !found.adopted && found.in_the_way == 0);
    if blocked > 0 {
        return Err(format!(
            "{blocked} partitions have messages in the way, and nothing of them was adopted: look at each, remove it from the stream by hand, and run this again"
        )
        .into());
    }
    if waiting {
        println!("nothing was done: say --yes");
    }
    Ok(())
}

fn tell(out: &mut impl Write, found: &Found) -> std::io::Result<()> {
    let Found { partition, beyond, known, unknown, in_the_way, .. } = found;
    writeln!(
        out,
        "partition {partition}: beyond sequence {beyond} the stream holds {known} messages that are known, {unknown} that are not, {in_the_way} that are in the way"
    )?;
    for Unknown { stream_seq, event_id, event_type, aggregate, version, .. } in &found.first_unknown {
        let aggregate = aggregate.as_ref().zip(*version);
        let aggregate = aggregate
            .map_or("-".into(), |(aggregate, version)| format!("{}/{} v{version}", aggregate.r#type, aggregate.id));
        let verb = if found.adopted { "adopted" } else { "unknown" };
        let (event_type, aggregate, id) =
            (event_type.escape_debug(), aggregate.escape_debug(), event_id.escape_debug());
        writeln!(out, "  {verb} {stream_seq}  {event_type}  {aggregate}  {id}")?;
    }
    for InTheWay { stream_seq, why, .. } in &found.first_in_the_way {
        writeln!(out, "  in the way {stream_seq}: {}", why.escape_debug())?;
    }
    for Renumbered { event_id, from, to, dead, .. } in &found.first_renumbered {
        let dead = if *dead { ", and is dead until somebody decides" } else { "" };
        writeln!(out, "  renumbered {}: version {from} is {to} now{dead}", event_id.escape_debug())?;
    }
    let shown = found.first_unknown.len() + found.first_in_the_way.len() + found.first_renumbered.len();
    let all = unknown + in_the_way + found.renumbered;
    if (shown as u64) < all {
        writeln!(out, "  … and {} more", all - shown as u64)?;
    }
    Ok(())
}
