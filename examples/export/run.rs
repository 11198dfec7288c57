//! The demonstration: fifty exports, a relay that is killed twice, and the account.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use diesel::QueryableByName;
use diesel::sql_types::{BigInt, Integer, Nullable, Text};
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};
use futures_util::{StreamExt, TryStreamExt};
use serde::Deserialize;
use stage::Error;
use stage::account::Account;
use stage::crash::Crash;
use stage::journal::{self, Entry};
use stage::relay::RelayProcess;
use stage::streams::Streams;
use tidings::services::Provided;
use uuid::Uuid;

use crate::api::{self, ExportRequest};
use crate::consumers;
use crate::messages::SOURCE;

pub(crate) async fn run(services: &Provided, folder: &Path) -> Result<(), Error> {
    let started = Instant::now();
    // Everything of this run belongs to a tenant of its own, so that a database that is used again counts anew.
    let tenant = format!("run-{}", Uuid::now_v7());
    let journals = tempfile::tempdir()?;
    let journal = |n: u32| journals.path().join(format!("relay-{n}"));
    let mut conn = AsyncPgConnection::establish(&services.database_url()).await?;

    let running = consumers(services, folder).start().await?;
    let (server, address) = api::listen(&services.database_url())?;
    let api = server.handle();
    actix_web::rt::spawn(server);
    println!("the API listens on http://{address}; asking for {EXPORTS} exports, each twice");

    let relay = RelayProcess::start(services, &journal(1), Some(Crash::Acknowledged(20)))?;
    let created = ask_for_all(address, &tenant).await?;
    let mut entries = relay.killed().await?;
    let acknowledged = journal::last_stored(&entries).ok_or("relay 1 died without an acknowledgement")?.to_owned();
    let state = state_of(&mut conn, &acknowledged).await?;
    println!("relay 1 was killed with the acknowledgement of {acknowledged} in its hands; the outbox says `{state}`");
    if state == "confirmed" {
        return Err("relay 1 should have died before it confirmed that".into());
    }

    let (partition, waiting) = longest_queue(&mut conn).await?;
    let half = Crash::Sent { partition, messages: u64::try_from(waiting / 2)? };
    let second = RelayProcess::start(services, &journal(2), Some(half))?.killed().await?;
    let mut unrecorded: HashSet<String> = journal::sent_of(&second, partition).map(str::to_owned).collect();
    println!(
        "relay 2 was killed in a batch: {} of {waiting} messages of partition {partition} were out",
        unrecorded.len()
    );
    unrecorded.insert(acknowledged);
    entries.extend(second);

    let relay = RelayProcess::start(services, &journal(3), None)?;
    let streams = Streams::connect(&services.nats_url(), SOURCE).await?;
    let settled = settle(&mut conn, &streams, &tenant).await;
    entries.extend(relay.end().await?);
    api.stop(true).await;
    running.drain(Duration::from_secs(10)).await?;

    let files = whole_files(&mut conn, &tenant, folder).await?;
    let account = account(&mut conn, &streams, &tenant, Witnessed { created, files, unrecorded, entries }).await?;
    println!("\n{account}");
    settled?;
    account.verdict()?;
    println!("it adds up, after {:.1} s", started.elapsed().as_secs_f32());
    Ok(())
}

/// Asks through the API as clients do that never know whether they were heard: every request goes out twice, of every
/// second pair both at the same time. Returns how many answers were `201 Created`.
async fn ask_for_all(address: SocketAddr, tenant: &str) -> Result<u64, Error> {
    let pairs = (1..=EXPORTS).map(|n| {
        let request = request(tenant, n);
        let key = format!("{tenant}/export-intent-{n}");
        async move {
            let one = post(address, key.clone(), request.clone());
            let other = post(address, key, request);
            let (one, other) = if n % 2 == 0 { tokio::try_join!(one, other)? } else { (one.await?, other.await?) };
            if one.id.is_none() || one.id != other.id {
                return Err(Error::from(format!("export {n}: one key, and the answers {one:?} and {other:?}")));
            }
            Ok([one, other].iter().filter(|answer| answer.status == 201).count() as u64)
        }
    });
    let created: Vec<u64> = futures_util::stream::iter(pairs).buffer_unordered(8).try_collect().await?;

    let other_body = ExportRequest { rows: 1_000, ..request(tenant, 1) };
    let refused = post(address, format!("{tenant}/export-intent-1"), other_body).await?;
    if refused.status != 409 {
        return Err(format!("a used key with another body should be answered 409, and was {refused:?}").into());
    }
    println!("asked: a repeated key was answered with the same job every time, and with 409 for another body");
    Ok(created.iter().sum())
}

fn request(tenant: &str, n: i32) -> ExportRequest {
    let dataset = ["courses", "students", "grades", "rooms"][n as usize % 4];
    ExportRequest { tenant: tenant.to_owned(), dataset: dataset.to_owned(), rows: n }
}

#[derive(Debug)]
struct Answer {
    status: u16,
    id: Option<String>,
}

async fn post(address: SocketAddr, key: String, request: ExportRequest) -> Result<Answer, Error> {
    #[derive(Deserialize)]
    struct Body {
        id: Option<String>,
    }
    tokio::task::spawn_blocking(move || {
        let mut response = ureq::post(format!("http://{address}/exports"))
            .config()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(10)))
            .build()
            .header("Idempotency-Key", key)
            .send_json(&request)?;
        let body: Body = response.body_mut().read_json()?;
        Ok(Answer { status: response.status().as_u16(), id: body.id })
    })
    .await?
}

/// What the outbox says of an event.
async fn state_of(conn: &mut AsyncPgConnection, id: &str) -> Result<String, Error> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Text)]
        state: String,
    }
    let row: Row = diesel::sql_query("SELECT state FROM tidings.event_state WHERE id = $1")
        .bind::<Text, _>(id)
        .get_result(conn)
        .await?;
    Ok(row.state)
}

/// The partition in which most events are pending, and how many.
async fn longest_queue(conn: &mut AsyncPgConnection) -> Result<(i32, i64), Error> {
    #[derive(QueryableByName)]
    struct Queue {
        #[diesel(sql_type = Integer)]
        partition: i32,
        #[diesel(sql_type = BigInt)]
        waiting: i64,
    }
    let queue: Queue = diesel::sql_query(
        "SELECT partition, count(*) AS waiting FROM tidings.pending WHERE state = 'ready'
          GROUP BY partition ORDER BY waiting DESC, partition LIMIT 1",
    )
    .get_result(conn)
    .await?;
    // A crash after half of them has to leave both halves something.
    if queue.waiting < 4 {
        return Err(format!("only {} events are pending, too few for a crash in the middle", queue.waiting).into());
    }
    Ok((queue.partition, queue.waiting))
}

/// Waits until nothing is left to do. Waiting longer would change nothing in a run that lost something, so there is an
/// end to it; the account then says what is missing.
async fn settle(conn: &mut AsyncPgConnection, streams: &Streams, tenant: &str) -> Result<(), Error> {
    let started = Instant::now();
    loop {
        let numbers = numbers(conn, tenant).await?;
        let all = EXPORTS as i64;
        let there = [numbers.succeeded, numbers.counted, numbers.found].iter().all(|number| *number >= all);
        if there && numbers.pending == 0 && streams.all_settled(&["export-worker", "statistics", "search"]).await? {
            println!("everything has settled");
            return Ok(());
        }
        if started.elapsed() > SETTLES_WITHIN {
            return Err(format!("not settled within {SETTLES_WITHIN:?}: {numbers:?}").into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What was seen from outside during the run.
struct Witnessed {
    /// Answers `201 Created`.
    created: u64,
    /// Whole files.
    files: u64,
    /// Events that the broker had stored when a relay died that did not know it.
    unrecorded: HashSet<String>,
    /// The journals of all relays.
    entries: Vec<Entry>,
}

/// Each number is counted where the thing itself is, not where it was done.
async fn account(
    conn: &mut AsyncPgConnection,
    streams: &Streams,
    tenant: &str,
    witnessed: Witnessed,
) -> Result<Account, Error> {
    let exports = EXPORTS as u64;
    let appended = appended(conn, tenant).await?;
    let copies = streams.copies(&appended).await?;
    let numbers = numbers(conn, tenant).await?;
    let rows = i64::from(EXPORTS * (EXPORTS + 1) / 2);
    let number = |n: i64| u64::try_from(n).unwrap_or(0);
    // Whatever was said and is not in the streams, or is there and had no effect.
    let unheard = appended.iter().filter(|id| !copies.contains_key(*id)).count() as u64;
    let missing = [numbers.succeeded, numbers.counted, numbers.found_jobs]
        .iter()
        .map(|there| exports.saturating_sub(number(*there)))
        .sum::<u64>();

    let mut account = Account::default();
    account.exactly(exports, "exports", number(numbers.jobs), "rows of export.job; each was asked for twice");
    account.exactly(exports, "answered 201", witnessed.created, "of 100 POSTs; the others got the same job and 200");
    account.exactly(
        2 * exports,
        "events appended",
        appended.len() as u64,
        "rows of tidings.event: a command and an event each",
    );
    account.road(&appended, &witnessed.unrecorded, &witnessed.entries, &copies);
    account.exactly(exports, "jobs succeeded", number(numbers.succeeded), "effect of export-worker");
    account.exactly(exports, "files", witnessed.files, "whole ones, read back from the folder");
    account.exactly(
        exports,
        "statistics total",
        number(numbers.counted),
        "effect of statistics: `exports + 1` for each event",
    );
    account.exactly(number(rows), "rows counted", number(numbers.rows), "the same, `rows + rows of the event`");
    account.exactly(exports, "search entries", number(numbers.found), "effect of search: one row for each event");
    account.exactly(0, "lost", unheard + missing, "appended and not in the streams, or without its effect somewhere");
    Ok(account)
}

#[derive(Debug, QueryableByName)]
struct Numbers {
    #[diesel(sql_type = BigInt)]
    jobs: i64,
    #[diesel(sql_type = BigInt)]
    succeeded: i64,
    #[diesel(sql_type = BigInt)]
    counted: i64,
    #[diesel(sql_type = BigInt)]
    rows: i64,
    #[diesel(sql_type = BigInt)]
    found: i64,
    #[diesel(sql_type = BigInt)]
    found_jobs: i64,
    #[diesel(sql_type = BigInt)]
    pending: i64,
}

async fn numbers(conn: &mut AsyncPgConnection, tenant: &str) -> Result<Numbers, Error> {
    let statement = format!(
        "SELECT (SELECT count(*) FROM export.job WHERE tenant = $1) AS jobs,
                (SELECT count(*) FROM export.job WHERE tenant = $1 AND state = 'succeeded') AS succeeded,
                coalesce((SELECT exports FROM export.statistics WHERE tenant = $1), 0) AS counted,
                coalesce((SELECT rows FROM export.statistics WHERE tenant = $1), 0) AS rows,
                (SELECT count(*) FROM export.search_entry WHERE tenant = $1) AS found,
                (SELECT count(DISTINCT job_id) FROM export.search_entry WHERE tenant = $1) AS found_jobs,
                (SELECT count(*) FROM tidings.pending p JOIN ({APPENDED}) e ON p.partition = e.partition AND p.seq = e.seq)
                    AS pending"
    );
    Ok(diesel::sql_query(statement).bind::<Text, _>(tenant).get_result(conn).await?)
}

/// The ids of this run's events.
async fn appended(conn: &mut AsyncPgConnection, tenant: &str) -> Result<HashSet<String>, Error> {
    #[derive(QueryableByName)]
    struct Id {
        #[diesel(sql_type = Text)]
        id: String,
    }
    let ids: Vec<Id> = diesel::sql_query(APPENDED).bind::<Text, _>(tenant).load(conn).await?;
    Ok(ids.into_iter().map(|row| row.id).collect())
}

/// How many jobs have a file with as many lines as were asked for.
async fn whole_files(conn: &mut AsyncPgConnection, tenant: &str, folder: &Path) -> Result<u64, Error> {
    #[derive(QueryableByName)]
    struct Promised {
        #[diesel(sql_type = Nullable<Text>)]
        file: Option<String>,
        #[diesel(sql_type = Integer)]
        rows: i32,
    }
    let all: Vec<Promised> = diesel::sql_query("SELECT file, rows FROM export.job WHERE tenant = $1")
        .bind::<Text, _>(tenant)
        .load(conn)
        .await?;
    let whole = |promised: &Promised| {
        let text = promised.file.as_ref().and_then(|file| std::fs::read_to_string(folder.join(file)).ok());
        text.is_some_and(|text| text.ends_with('\n') && text.lines().count() as i64 == i64::from(promised.rows) + 1)
    };
    Ok(all.iter().filter(|promised| whole(promised)).count() as u64)
}

const EXPORTS: i32 = 50;
const SETTLES_WITHIN: Duration = Duration::from_secs(60);

/// The commands by their ids, which are made of the job's, and the events by their aggregate.
const APPENDED: &str = "
    SELECT e.id, e.seq, e.partition FROM export.job j JOIN tidings.event e ON e.id = 'cmd-' || substr(j.id, 5)
     WHERE j.tenant = $1
     UNION ALL
    SELECT e.id, e.seq, e.partition FROM export.job j
      JOIN tidings.event e ON e.aggregate_type = 'job' AND e.aggregate_id = j.id
     WHERE j.tenant = $1";
