//! From the append until the broker has stored it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};

use super::producer::{Producer, Side, lay_out};
use super::{Size, say};
use crate::ground::{Error, Ground, Kind, Servers, now};
use crate::report::{Limit, Report, median, quantile};

/// 500 events a second, one a transaction; relay and loop run in the process that appends, and are woken by its commit.
pub(super) async fn latency(size: Size, runs: usize) -> Result<Report, Error> {
    let servers = Servers::start(Kind::Plain)?;
    let time = size.seconds(30, 10);
    let mut pairs = Vec::new();
    for _ in 0..runs {
        pairs.push((measure(&servers, Side::Tidings, time).await?, measure(&servers, Side::Bare, time).await?));
    }
    let of = |figure: fn(&(Figures, Figures)) -> f64| median(pairs.iter().map(figure).collect());
    let (ratio, p99_ratio) = (of(|(relay, bare)| relay.p50 / bare.p50), of(|(relay, bare)| relay.p99 / bare.p99));
    let report = Report {
        bare: Some(of(|(_, bare)| bare.p50)),
        ratio: Some(ratio),
        cpu_s_per_100k: Some(of(|(relay, _)| relay.cpu)),
        cpu_ratio: Some(of(|(relay, bare)| relay.cpu / bare.cpu)),
        wal_bytes_per_event: Some(of(|(relay, _)| relay.wal)),
        more: vec![
            ("p99_ratio", p99_ratio),
            ("p99", of(|(relay, _)| relay.p99)),
            ("bare_p99", of(|(_, bare)| bare.p99)),
        ],
        ..Report::new("latency", of(|(relay, _)| relay.p50), "ms", runs)
    };
    Ok(report.bar("p50 × bare loop", ratio, Limit::AtMost(2.0)).bar("p99 × bare loop", p99_ratio, Limit::AtMost(4.0)))
}

struct Figures {
    p50: f64,
    p99: f64,
    cpu: f64,
    wal: f64,
}

async fn measure(servers: &Servers, side: Side, time: Duration) -> Result<Figures, Error> {
    let ground = Arc::new(servers.ground().await?);
    lay_out(&ground).await?;
    let (wake, woken) = watch::channel(0u64);
    let relay = match side {
        Side::Tidings => Some(ground.relay().await?),
        Side::Bare => None,
    };
    let bare = match side {
        Side::Tidings => None,
        Side::Bare => {
            let bare = ground.bare(1_000).await?;
            Some(tokio::spawn(async move { bare.follow(woken).await }))
        }
    };
    // Leases are taken, connections opened and statements prepared before anything is counted.
    produce(&ground, side, &wake, Duration::from_secs(3), PRODUCERS, RATE).await?;
    let from = now();
    let before = ground.before().await?;
    let appended = produce(&ground, side, &wake, time, PRODUCERS, RATE).await?;
    let used = ground.used_since(&before).await?;
    until_all_stored(&ground, side).await?;
    if let Some(relay) = relay {
        relay.drain(Duration::from_secs(20)).await?;
    }
    if let Some(bare) = bare {
        bare.abort();
    }
    let mut times =
        times(&ground).await?.into_iter().filter(|(at, _)| *at >= from).map(|(_, ms)| ms).collect::<Vec<_>>();
    let appended = appended as f64;
    let figures = Figures {
        p50: quantile(&mut times, 0.5),
        p99: quantile(&mut times, 0.99),
        cpu: used.seconds.all() / appended * 100_000.0,
        wal: used.wal_bytes / appended,
    };
    let most = times.last().copied().unwrap_or(f64::NAN);
    say(format_args!(
        "{side:?}: p50 {:.2} ms, p99 {:.2} ms, most {most:.1} ms, of {}",
        figures.p50,
        figures.p99,
        times.len()
    ));
    if let Ok(ground) = Arc::try_unwrap(ground) {
        servers.clear(ground).await?;
    }
    Ok(figures)
}

/// Appends so many events a second, by an even schedule; answers with how many there were.
pub(super) async fn produce(
    ground: &Arc<Ground>,
    side: Side,
    wake: &watch::Sender<u64>,
    time: Duration,
    producers: u32,
    rate: u32,
) -> Result<u64, Error> {
    let every = Duration::from_secs(1) * producers / rate;
    let started = Instant::now();
    let mut tasks = Vec::new();
    for number in 0..producers {
        let mut producer = Producer::new(ground, u64::from(number)).await?;
        let wake = wake.clone();
        tasks.push(tokio::spawn(async move {
            let mut ticks = tokio::time::interval_at(Instant::now() + every * number / producers, every);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            let mut done = 0;
            while started.elapsed() < time {
                ticks.tick().await;
                producer.business(side, stamped).await?;
                wake.send_modify(|count| *count += 1);
                done += 1;
            }
            Ok::<u64, Error>(done)
        }));
    }
    let mut done = 0;
    for task in tasks {
        done += task.await??;
    }
    Ok(done)
}

pub(super) async fn until_all_stored(ground: &Ground, side: Side) -> Result<(), Error> {
    let pending = match side {
        Side::Tidings => "SELECT count(*) FROM tidings.pending",
        Side::Bare => "SELECT count(*) FROM outbox",
    };
    let started = Instant::now();
    while ground.number(pending).await? > 0 {
        if started.elapsed() > Duration::from_secs(60) {
            return Err("not everything was stored within a minute".into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Of each message when it was appended, in seconds since 1970, and how many milliseconds later it was stored.
pub(super) async fn times(ground: &Ground) -> Result<Vec<(f64, f64)>, Error> {
    let messages = ground.messages().await?;
    let times = messages.iter().filter_map(|(data, stored)| {
        let appended: f64 = std::str::from_utf8(data.get(..STAMP)?).ok()?.trim().parse().ok()?;
        Some((appended, (stored - appended) * 1e3))
    });
    Ok(times.collect())
}

/// 256 bytes that begin with the time.
fn stamped() -> Vec<u8> {
    let mut data = format!("{:<STAMP$.6}", now()).into_bytes();
    data.resize(256, b'x');
    data
}

const STAMP: usize = 20;
const PRODUCERS: u32 = 4;
const RATE: u32 = 500;
