//! `tidings partitions`

use std::error::Error;
use std::io::Write;
use std::time::Duration;

use super::migrate::explain;
use crate::operate::{self, MOST_COUNTED, PartitionStatus, PartitionsError, SetPartitions};
use crate::postgres::Database;
use crate::services::DATABASE_URL;

/// Show the partitions of a database, or give it another number of them
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    List(List),
    Set(Set),
}

/// Show who owns each partition, until when, and how much is pending in it
#[derive(Debug, clap::Args)]
struct List {
    /// The database, postgres://user:password@host:port/name. The variable keeps the password out of the process list.
    #[arg(long, value_name = "URL", env = DATABASE_URL, hide_env_values = true)]
    database_url: String,
}

/// Give the database another number of partitions, while services and relays run
///
/// Appends wait until the relays have published what is on its way, then every aggregate gets its new partition and
/// appends go on; what is held (dead, delayed, and what stands behind it) moves along. It is one transaction: where it
/// fails, nothing has changed. The relays notice by themselves and make the new streams; the streams of partitions that
/// are no more stay, for consumers that have not read them to the end.
///
/// A consumer may meet a later event of an aggregate in its new stream before it has read the earlier ones in the old: let
/// consumers for which the order matters catch up first.
///
/// Exit codes: 0 done, or nothing to do; 1 failed, and nothing was changed; 2 wrong arguments.
#[derive(Debug, clap::Args)]
struct Set {
    /// The number, 1 to 1024.
    #[arg(value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    number: u16,

    /// The database, postgres://user:password@host:port/name. The variable keeps the password out of the process list.
    #[arg(long, value_name = "URL", env = DATABASE_URL, hide_env_values = true)]
    database_url: String,

    /// How long to try.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    within: Duration,

    /// How long appends may wait at once for what is on its way; then they go on, and it is tried again.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    hold: Duration,
}

pub(super) fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    match arguments.what {
        What::List(List { database_url }) => list(&database_url),
        What::Set(set) => set_number(&set),
    }
}

fn list(url: &str) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let partitions = runtime.block_on(operate::partitions(&Database::url(url))).map_err(|error| explain(error, url))?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{:>9}  {:>8}  {:>8}  {:<44}  owner", "partition", "epoch", "pending", "lease")?;
    for partition in partitions {
        let pending = partition.pending.to_string() + if partition.pending >= MOST_COUNTED { "+" } else { "" };
        let owner = partition.owner.as_deref().unwrap_or("-");
        writeln!(out, "{:>9}  {:>8}  {pending:>8}  {:<44}  {owner}", partition.id, partition.epoch, lease(&partition))?;
    }
    Ok(())
}

fn lease(partition: &PartitionStatus) -> String {
    let at = partition.lease_until.map_or_else(|| "ever".into(), |at| at.format("%F %T UTC").to_string());
    match (&partition.owner, partition.over, partition.retired) {
        (Some(_), false, _) => format!("until {at}"),
        (Some(_), true, _) => format!("over, it was until {at}"),
        (None, _, true) => "retired".into(),
        (None, _, false) => format!("unowned since {at}"),
    }
}

fn set_number(set: &Set) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let database = Database::url(&set.database_url);
    let setting = SetPartitions::to(set.number).within(set.within).hold(set.hold).run(&database);
    let mut out = std::io::stdout();
    match runtime.block_on(setting) {
        Ok(done) => Ok(writeln!(
            out,
            "{} partitions instead of {}: {} aggregates and {} held events moved, appends waited for {}",
            done.now,
            done.before,
            done.aggregates,
            done.held,
            humantime::format_duration(Duration::from_millis(done.closed.as_millis().try_into()?))
        )?),
        Err(PartitionsError::Already(number)) => {
            Ok(writeln!(out, "nothing to do: the database has {number} partitions already")?)
        }
        Err(PartitionsError::Database(error)) => Err(explain(error, &set.database_url)),
        Err(other) => Err(other.into()),
    }
}
