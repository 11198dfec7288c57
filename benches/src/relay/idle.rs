//! What a relay costs that has nothing to do.

use std::time::Duration;

use super::{Size, say};
use crate::ground::{Error, Ground, Kind, Servers};
use crate::report::{Limit, Report};

/// Statements a second of a relay that owns four partitions, and what it takes of a core.
pub(super) async fn idle(size: Size) -> Result<Report, Error> {
    let servers = Servers::start(Kind::Counting)?;
    let ground = servers.ground().await?;
    ground.admin.batch_execute("CREATE EXTENSION pg_stat_statements").await?;
    ground.settle().await?;
    let time = size.seconds(60, 20);
    // What the servers do by themselves is not the relay's.
    let alone = busy(&ground, time / 2).await?;
    let running = ground.relay().await?;
    let owned = "SELECT count(*) FROM tidings.partition WHERE owner IS NOT NULL";
    while ground.number(owned).await? < 4 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let statements = statements(&ground).await?;
    let with = busy(&ground, time).await?;
    // Two of them are our own counting.
    let rate = (self::statements(&ground).await? - statements - 3) as f64 / time.as_secs_f64();
    running.drain(Duration::from_secs(20)).await?;
    servers.clear(ground).await?;
    let (program, servers) = (with.0 * 100.0, (with.1 - alone.1).max(0.0) * 100.0);
    say(format_args!("{rate:.1} statements/s, {program:.2} % of a core, and {servers:.2} % in the servers"));
    let report = Report {
        more: vec![("cpu_percent", program), ("servers_cpu_percent", servers)],
        ..Report::new("idle", rate, "stmts/s", 1)
    };
    Ok(report.bar("statements/s", rate, Limit::AtMost(10.0)).bar(
        "% of a core, all together",
        program + servers,
        Limit::AtMost(1.0),
    ))
}

/// Which share of a core this program and the servers took.
async fn busy(ground: &Ground, time: Duration) -> Result<(f64, f64), Error> {
    let before = ground.before().await?;
    tokio::time::sleep(time).await;
    let used = ground.used_since(&before).await?.seconds;
    Ok((used.program / time.as_secs_f64(), used.servers() / time.as_secs_f64()))
}

async fn statements(ground: &Ground) -> Result<i64, Error> {
    ground.number("SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements").await
}
