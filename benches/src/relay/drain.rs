//! How fast what stands in the outbox is published: `drain`, `hot`, `sync-always`, `backlog`, `held-lanes`, `delayed`.

use std::fmt;
use std::time::Duration;

use super::load::{Load, Obstacle};
use super::{Size, say};
use crate::bare::BATCHES;
use crate::ground::{Error, Ground, Kind, Servers, Used, now};
use crate::report::{Limit, Report, median};
use crate::usage::Seconds;

/// One side's way through a load.
#[derive(Debug, Clone, Copy)]
pub(super) struct Drained {
    pub(super) rate: f64,
    cpu: f64,
    /// Where it went: this program, PostgreSQL, nats-server.
    shares: Seconds,
    wal: f64,
}

impl Drained {
    fn of(events: i64, seconds: f64, used: Used) -> Drained {
        let events = events as f64;
        let each = |seconds: f64| seconds / events * 100_000.0;
        let Seconds { program, postgres, nats } = used.seconds;
        Drained {
            rate: events / seconds,
            cpu: each(used.seconds.all()),
            shares: Seconds { program: each(program), postgres: each(postgres), nats: each(nats) },
            wal: used.wal_bytes / events,
        }
    }
}

impl fmt::Display for Drained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Seconds { program, postgres, nats } = self.shares;
        let (rate, cpu) = (self.rate, self.cpu);
        write!(
            f,
            "{rate:.0} events/s, {cpu:.2} CPU s / 100k ({program:.2} here, {postgres:.2} PostgreSQL, {nats:.2} NATS)"
        )
    }
}

/// From the first message stored until nothing is pending; the relay's start is not in it, nor is the loop's.
pub(super) async fn relay(servers: &Servers, load: Load, obstacle: Obstacle) -> Result<Drained, Error> {
    let ground = servers.ground().await?;
    load.fill_outbox(&ground, obstacle).await?;
    let expected = expected(&ground).await?;
    let before = ground.before().await?;
    let running = ground.relay().await?;
    for (partition, messages) in expected {
        ground.until_stored(partition, messages).await?;
    }
    let first = ground.number("SELECT min(seq) FROM tidings.event WHERE aggregate_type = 'order'").await?;
    let pending = ground.admin.prepare(STILL_PENDING).await?;
    while ground.admin.query_one(&pending, &[&first]).await?.get(0) {
        tokio::time::sleep(LOOK).await;
    }
    let ended = now();
    let used = ground.used_since(&before).await?;
    let drained = Drained::of(load.events, ended - ground.first_stored().await?, used);
    running.drain(Duration::from_secs(20)).await?;
    check(&ground, load).await?;
    servers.clear(ground).await?;
    say(format_args!("relay {load:?} {obstacle:?}: {drained}"));
    Ok(drained)
}

async fn bare(servers: &Servers, load: Load, batch: i64) -> Result<Drained, Error> {
    let ground = servers.ground().await?;
    load.fill_bare(&ground).await?;
    let before = ground.before().await?;
    ground.bare(batch).await?.drain().await?;
    let ended = now();
    let used = ground.used_since(&before).await?;
    let drained = Drained::of(load.events, ended - ground.first_stored().await?, used);
    check(&ground, load).await?;
    servers.clear(ground).await?;
    say(format_args!("bare loop, batch {batch}: {drained}"));
    Ok(drained)
}

/// The best batch.
async fn best_bare(servers: &Servers, load: Load) -> Result<Drained, Error> {
    let mut best: Option<Drained> = None;
    for batch in BATCHES {
        let drained = bare(servers, load, batch).await?;
        best = best.filter(|best| best.rate >= drained.rate).or(Some(drained));
    }
    best.ok_or_else(|| "no batch was tried".into())
}

/// A figure of a run that lost or repeated something is none.
async fn check(ground: &Ground, load: Load) -> Result<(), Error> {
    let stored = ground.stored().await?;
    if i64::try_from(stored)? == load.events {
        return Ok(());
    }
    Err(format!("{} events made {stored} messages", load.events).into())
}

async fn expected(ground: &Ground) -> Result<Vec<(i32, u64)>, Error> {
    let count = "SELECT partition, count(*) FROM tidings.event WHERE aggregate_type = 'order' GROUP BY partition";
    let rows = ground.admin.query(count, &[]).await?;
    rows.iter().map(|row| Ok((row.get(0), u64::try_from(row.get::<_, i64>(1))?))).collect()
}

pub(super) async fn drain(size: Size, runs: usize) -> Result<Report, Error> {
    let servers = Servers::start(Kind::Plain)?;
    beside_bare(&servers, "drain", Load { events: size.events(), aggregates: 10_000, bytes: 256 }, runs).await
}

async fn beside_bare(servers: &Servers, name: &'static str, load: Load, runs: usize) -> Result<Report, Error> {
    let mut pairs = Vec::new();
    for _ in 0..runs {
        pairs.push((relay(servers, load, Obstacle::None).await?, best_bare(servers, load).await?));
    }
    let of = |figure: fn(&(Drained, Drained)) -> f64| median(pairs.iter().map(figure).collect());
    let (ratio, cpu_ratio) = (of(|(relay, bare)| relay.rate / bare.rate), of(|(relay, bare)| relay.cpu / bare.cpu));
    let report = Report {
        bare: Some(of(|(_, bare)| bare.rate)),
        ratio: Some(ratio),
        cpu_s_per_100k: Some(of(|(relay, _)| relay.cpu)),
        cpu_ratio: Some(cpu_ratio),
        wal_bytes_per_event: Some(of(|(relay, _)| relay.wal)),
        more: vec![
            ("bare_cpu_s_per_100k", of(|(_, bare)| bare.cpu)),
            ("bare_wal_bytes_per_event", of(|(_, bare)| bare.wal)),
        ],
        ..Report::new(name, of(|(relay, _)| relay.rate), "events/s", runs)
    };
    Ok(match name {
        "drain" => {
            report.bar("× bare loop", ratio, Limit::AtLeast(1.0)).bar("CPU × bare loop", cpu_ratio, Limit::AtMost(1.5))
        }
        _ => report.bar("× bare loop", ratio, Limit::AtLeast(5.0)),
    })
}

/// Every message waits for the disk, so there are fewer of them.
pub(super) async fn sync_always(size: Size, runs: usize) -> Result<Report, Error> {
    let servers = Servers::start(Kind::SyncAlways)?;
    let load = Load { events: size.events() / 10, aggregates: 10_000, bytes: 256 };
    beside_bare(&servers, "sync-always", load, runs).await
}

/// The relay with one thing changed, beside itself.
struct Pair {
    name: &'static str,
    plain: (Load, Obstacle),
    changed: (Load, Obstacle),
    what: &'static str,
    at_least: f64,
}

impl Pair {
    async fn measure(self, runs: usize) -> Result<Report, Error> {
        let servers = Servers::start(Kind::Plain)?;
        let mut pairs = Vec::new();
        for _ in 0..runs {
            let plain = relay(&servers, self.plain.0, self.plain.1).await?;
            pairs.push((relay(&servers, self.changed.0, self.changed.1).await?, plain));
        }
        let of = |figure: fn(&(Drained, Drained)) -> f64| median(pairs.iter().map(figure).collect());
        let ratio = of(|(changed, plain)| changed.rate / plain.rate);
        let report = Report {
            bare: Some(of(|(_, plain)| plain.rate)),
            ratio: Some(ratio),
            cpu_s_per_100k: Some(of(|(changed, _)| changed.cpu)),
            cpu_ratio: Some(of(|(changed, plain)| changed.cpu / plain.cpu)),
            wal_bytes_per_event: Some(of(|(changed, _)| changed.wal)),
            ..Report::new(self.name, of(|(changed, _)| changed.rate), "events/s", runs)
        };
        Ok(report.bar(self.what, ratio, Limit::AtLeast(self.at_least)))
    }
}

fn usual(size: Size) -> Load {
    Load { events: size.events(), aggregates: 10_000, bytes: 256 }
}

pub(super) async fn hot(size: Size, runs: usize) -> Result<Report, Error> {
    let (plain, hot) = (usual(size), Load { aggregates: 1, ..usual(size) });
    let pair = Pair {
        name: "hot",
        plain: (plain, Obstacle::None),
        changed: (hot, Obstacle::None),
        what: "× drain",
        at_least: 0.9,
    };
    pair.measure(runs).await
}

pub(super) async fn backlog(size: Size, runs: usize) -> Result<Report, Error> {
    let (small, large) = (usual(size), Load { events: size.events() * 10, ..usual(size) });
    let pair = Pair {
        name: "backlog",
        plain: (small, Obstacle::None),
        changed: (large, Obstacle::None),
        what: "× a tenth of it",
        at_least: 0.8,
    };
    pair.measure(runs).await
}

pub(super) async fn held_lanes(size: Size, runs: usize) -> Result<Report, Error> {
    let pair = Pair {
        name: "held-lanes",
        plain: (usual(size), Obstacle::None),
        changed: (usual(size), Obstacle::BehindOneDead(size.events())),
        what: "× without them",
        at_least: 0.9,
    };
    pair.measure(runs).await
}

pub(super) async fn delayed(size: Size, runs: usize) -> Result<Report, Error> {
    let pair = Pair {
        name: "delayed",
        plain: (usual(size), Obstacle::None),
        changed: (usual(size), Obstacle::DueTomorrow(size.events())),
        what: "× without them",
        at_least: 0.9,
    };
    pair.measure(runs).await
}

/// Of the load; what stands in its way is older and stays.
const STILL_PENDING: &str = "SELECT EXISTS (SELECT FROM generate_series(0, 3) n,
    LATERAL (SELECT FROM tidings.pending p WHERE p.partition = n AND p.seq >= $1 LIMIT 1) first)";
const LOOK: Duration = Duration::from_millis(10);
