//! The demonstration: fifty exports, a relay that is killed twice, and the account.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use diesel::QueryableByName;
use diesel::sql_types::{BigInt, Integer, Text};
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};
use futures_util::{StreamExt, TryStreamExt};
use serde::Deserialize;
use stage::Error;
use stage::crash::Crash;
use stage::journal;
use stage::relay::RelayProcess;
use stage::streams::Streams;
use tidings::services::Provided;
use uuid::Uuid;

use crate::account::{Witnessed, account, numbers, whole_files};
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
    let died = entries.len() + second.len();
    let in_a_batch = journal::sent_of(&second, partition).map(|id| (id.to_owned(), died));
    let mut unrecorded: HashMap<String, usize> = in_a_batch.collect();
    println!(
        "relay 2 was killed in a batch: {} of {waiting} messages of partition {partition} were out",
        unrecorded.len()
    );
    unrecorded.insert(acknowledged, entries.len());
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
    account.verdict()?;
    settled?;
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

/// How many.
pub(crate) const EXPORTS: i32 = 50;
const SETTLES_WITHIN: Duration = Duration::from_secs(60);
