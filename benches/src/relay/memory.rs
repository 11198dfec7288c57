//! How much memory a relay takes before a large backlog.

use std::process::Stdio;
use std::time::Duration;

use tidings::{Database, JetStream, Relay, Tidings};
use tokio::io::AsyncReadExt;
use tokio::process::Command;

use super::load::{Load, Obstacle};
use super::{Size, say};
use crate::ground::{Error, Kind, PARTITIONS, Servers, now};
use crate::report::{Limit, Report};
use crate::usage::peak_memory;

/// The most that a process had resident which did nothing but relay 1,000,000 events of 2 KiB.
pub(super) async fn memory(size: Size) -> Result<Report, Error> {
    let servers = Servers::start(Kind::Plain)?;
    let ground = servers.ground().await?;
    let load = Load { events: size.of(1_000_000, 50_000), aggregates: 10_000, bytes: 2_048 };
    load.fill_outbox(&ground, Obstacle::None).await?;
    let mut child = Command::new(std::env::current_exe()?)
        .arg("relay-process")
        .env(DATABASE, &ground.url)
        .env(NATS, &ground.nats_url)
        .env(SOURCE, &ground.source)
        .stdin(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let pid = child.id().ok_or("the relay's process has ended")?;
    for partition in 0..PARTITIONS {
        let count = format!("SELECT count(*) FROM tidings.event WHERE partition = {partition}");
        ground.until_stored(partition, u64::try_from(ground.number(&count).await?)?).await?;
    }
    let seconds = now() - ground.first_stored().await?;
    let megabytes = peak_memory(pid).ok_or("the memory of a process cannot be read here")?;
    drop(child.stdin.take());
    let status = child.wait().await?;
    if !status.success() {
        return Err(format!("the relay's process ended with {status}").into());
    }
    servers.clear(ground).await?;
    say(format_args!("{megabytes:.0} MB at most, {:.0} events/s", load.events as f64 / seconds));
    let report = Report {
        more: vec![("events_per_s", load.events as f64 / seconds)],
        ..Report::new("memory", megabytes, "MB", 1)
    };
    Ok(report.bar("MB resident", megabytes, Limit::AtMost(100.0)))
}

/// The process that relays until its input is closed.
pub(crate) async fn process() -> Result<(), Error> {
    let (database, nats) = (std::env::var(DATABASE)?, std::env::var(NATS)?);
    let tidings = Tidings::new(Database::url(database), JetStream::url(nats)).source(std::env::var(SOURCE)?);
    let running = tidings.relay(Relay::default()).start().await?;
    tokio::io::stdin().read_to_end(&mut Vec::new()).await?;
    Ok(running.drain(Duration::from_secs(20)).await?)
}

const DATABASE: &str = "TIDINGS_BENCH_DATABASE";
const NATS: &str = "TIDINGS_BENCH_NATS";
const SOURCE: &str = "TIDINGS_BENCH_SOURCE";
