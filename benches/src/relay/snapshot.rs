//! A steady stream of events while somebody holds a snapshot open, as a report or a dump does: dead rows stay.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::latency::{produce, times, until_all_stored};
use super::producer::{Side, lay_out};
use super::{Size, say};
use crate::ground::{Error, Ground, Kind, Servers, now};
use crate::report::{Limit, Report, quantile};

/// How the last part of it compares with the first.
pub(super) async fn held_snapshot(size: Size) -> Result<Report, Error> {
    let servers = Servers::start(Kind::Counting)?;
    let ground = Arc::new(servers.ground().await?);
    ground.admin.batch_execute("CREATE EXTENSION pg_stat_statements").await?;
    lay_out(&ground).await?;
    let running = ground.relay().await?;
    let (wake, _) = watch::channel(0);
    let (part, middle) = (size.seconds(30, 8), size.seconds(120, 24));
    produce(&ground, Side::Tidings, &wake, Duration::from_secs(5), PRODUCERS, RATE).await?;

    let reader = ground.client().await?;
    reader.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").await?;
    let before = ground.before().await?;
    let counted = claims(&ground).await?;
    let first_from = now();
    let mut appended = produce(&ground, Side::Tidings, &wake, part, PRODUCERS, RATE).await?;
    let (first_until, first_claims) = (now(), claims(&ground).await?);
    appended += produce(&ground, Side::Tidings, &wake, middle, PRODUCERS, RATE).await?;
    let (last_from, between) = (now(), claims(&ground).await?);
    appended += produce(&ground, Side::Tidings, &wake, part, PRODUCERS, RATE).await?;
    let last_claims = claims(&ground).await?;
    let took = now() - first_from;
    let used = ground.used_since(&before).await?;
    until_all_stored(&ground, Side::Tidings).await?;
    reader.batch_execute("COMMIT").await?;
    running.drain(Duration::from_secs(20)).await?;

    let times = times(&ground).await?;
    let within = |from: f64, until: f64| {
        times.iter().filter(|(at, _)| *at >= from && *at < until).map(|(_, ms)| *ms).collect::<Vec<_>>()
    };
    let (first, last) =
        (quantile(&mut within(first_from, first_until), 0.99), quantile(&mut within(last_from, f64::INFINITY), 0.99));
    let (buffers_first, buffers_last) = (first_claims.each_since(counted), last_claims.each_since(between));
    say(format_args!(
        "p99 {first:.2} ms, then {last:.2} ms; buffers a claim {buffers_first:.1}, then {buffers_last:.1}"
    ));
    let (ratio, buffers_ratio) = (last / first, buffers_last / buffers_first);
    let events = appended as f64;
    let report = Report {
        bare: Some(first),
        ratio: Some(ratio),
        cpu_s_per_100k: Some(used.seconds.all() / events * 100_000.0),
        wal_bytes_per_event: Some(used.wal_bytes / events),
        more: vec![
            // The schedule asks for RATE; a machine that is too slow gives less.
            ("events_per_s", events / took),
            ("buffers_per_claim_first", buffers_first),
            ("buffers_per_claim_last", buffers_last),
            ("buffers_ratio", buffers_ratio),
        ],
        ..Report::new("held-snapshot", last, "ms", 1)
    };
    if let Ok(ground) = Arc::try_unwrap(ground) {
        servers.clear(ground).await?;
    }
    Ok(report.bar("p99 last × first", ratio, Limit::AtMost(1.5)).bar(
        "buffers a claim × first",
        buffers_ratio,
        Limit::AtMost(2.0),
    ))
}

/// The statements that read what is pending, whatever their text is.
#[derive(Debug, Clone, Copy)]
struct Claims {
    calls: f64,
    buffers: f64,
}

impl Claims {
    fn each_since(self, before: Claims) -> f64 {
        (self.buffers - before.buffers) / (self.calls - before.calls)
    }
}

async fn claims(ground: &Ground) -> Result<Claims, Error> {
    let count = "SELECT coalesce(sum(calls), 0)::bigint, coalesce(sum(shared_blks_hit + shared_blks_read), 0)::bigint
                   FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
                  WHERE d.datname = current_database() AND query ~ 'FROM tidings\\.pending'
                    AND query !~* 'DELETE FROM|INSERT INTO|UPDATE tidings|pg_stat_statements|count\\(\\*\\)'";
    let row = ground.admin.query_one(count, &[]).await?;
    Ok(Claims { calls: row.get::<_, i64>(0) as f64, buffers: row.get::<_, i64>(1) as f64 })
}

const PRODUCERS: u32 = 8;
const RATE: u32 = 2_000;
