//! What an append costs the business transaction.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::producer::{Producer, Side, lay_out};
use super::{Size, say};
use crate::ground::{Error, Ground, Kind, Servers};
use crate::report::{Limit, Report, median};

/// One update and one event a transaction, by eight clients at once, against the same with a plain insert.
pub(super) async fn append(size: Size, runs: usize) -> Result<Report, Error> {
    let servers = Servers::start(Kind::Plain)?;
    let mut pairs = Vec::new();
    let mut calls = Vec::new();
    for _ in 0..runs {
        let bare = transactions(&servers, Side::Bare, size.seconds(8, 3)).await?;
        let tidings = transactions(&servers, Side::Tidings, size.seconds(8, 3)).await?;
        pairs.push((tidings, bare));
        calls.push(hundred(&servers, size.of(100, 30)).await?);
    }
    let of = |figure: fn(&(Figures, Figures)) -> f64| median(pairs.iter().map(figure).collect());
    let ratio = of(|(tidings, bare)| tidings.rate / bare.rate);
    let batch_ratio = median(calls.iter().map(|(one, many)| one / many).collect());
    let one_call = median(calls.iter().map(|(one, _)| *one).collect());
    let report = Report {
        bare: Some(of(|(_, bare)| bare.rate)),
        ratio: Some(ratio),
        cpu_s_per_100k: Some(of(|(tidings, _)| tidings.cpu)),
        cpu_ratio: Some(of(|(tidings, bare)| tidings.cpu / bare.cpu)),
        wal_bytes_per_event: Some(of(|(tidings, _)| tidings.wal)),
        more: vec![("batch_ratio", batch_ratio), ("batch_us_per_event", one_call / HUNDRED as f64 * 1e6)],
        ..Report::new("append", of(|(tidings, _)| tidings.rate), "tx/s", runs)
    };
    Ok(report.bar("× plain insert", ratio, Limit::AtLeast(0.75)).bar(
        "100 in one call × 100",
        batch_ratio,
        Limit::AtMost(0.5),
    ))
}

struct Figures {
    rate: f64,
    cpu: f64,
    wal: f64,
}

async fn transactions(servers: &Servers, side: Side, time: Duration) -> Result<Figures, Error> {
    let ground = Arc::new(servers.ground().await?);
    lay_out(&ground).await?;
    let mut producers = Vec::new();
    for number in 0..CLIENTS {
        let mut producer = Producer::new(&ground, number).await?;
        for _ in 0..WARM_UP {
            producer.business(side, data).await?;
        }
        producers.push(producer);
    }
    let before = ground.before().await?;
    let started = Instant::now();
    let clients = producers.into_iter().map(|mut producer| {
        tokio::spawn(async move {
            let mut done = 0u32;
            while started.elapsed() < time {
                producer.business(side, data).await?;
                done += 1;
            }
            Ok::<_, Error>(done)
        })
    });
    let mut done = 0;
    for client in clients.collect::<Vec<_>>() {
        done += client.await??;
    }
    let (seconds, done) = (started.elapsed().as_secs_f64(), f64::from(done));
    let used = ground.used_since(&before).await?;
    let figures =
        Figures { rate: done / seconds, cpu: used.seconds.all() / done * 100_000.0, wal: used.wal_bytes / done };
    say(format_args!(
        "{side:?}: {:.0} tx/s, {:.1} CPU s / 100k ({:.1} PostgreSQL)",
        figures.rate,
        figures.cpu,
        used.seconds.postgres / done * 100_000.0
    ));
    if let Ok(ground) = Arc::try_unwrap(ground) {
        servers.clear(ground).await?;
    }
    Ok(figures)
}

/// Seconds for a hundred events in one call, and in a hundred calls.
async fn hundred(servers: &Servers, times: u32) -> Result<(f64, f64), Error> {
    let ground: Ground = servers.ground().await?;
    lay_out(&ground).await?;
    let mut producer = Producer::new(&ground, 1).await?;
    let (mut one, mut many) = (Duration::ZERO, Duration::ZERO);
    for round in 0..times + 3 {
        let started = Instant::now();
        producer.in_one_call(HUNDRED, data).await?;
        let between = Instant::now();
        producer.one_by_one(HUNDRED, data).await?;
        // The first ones prepare the statements.
        if round >= 3 {
            one += between - started;
            many += between.elapsed();
        }
    }
    servers.clear(ground).await?;
    let (one, many) = (one.as_secs_f64() / f64::from(times), many.as_secs_f64() / f64::from(times));
    say(format_args!("a hundred events: {:.1} ms in one call, {:.1} ms in a hundred", one * 1e3, many * 1e3));
    Ok((one, many))
}

fn data() -> Vec<u8> {
    vec![b'x'; 256]
}

const CLIENTS: u64 = 8;
const WARM_UP: usize = 50;
const HUNDRED: usize = 100;
