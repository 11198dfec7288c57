//! Publish again what was published before: for a consumer that lost its data, or a stream that was lost for good.
//!
//! Copies bear the id and version that they bore the first time, so a consumer whose inbox remembers the event settles it
//! without an effect. One that has forgotten it would apply it a second time, which is why events older than the inboxes reach
//! are refused. The broker drops copies, too, of what it stored within its window for duplicates (2 minutes).
//!
//! ```no_run
//! use std::time::Duration;
//! use tidings::{dead::By, republish::{self, What}};
//!
//! # async fn example(conn: &mut diesel_async::AsyncPgConnection) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let what = What::appended_within(Duration::from_secs(7_200));
//! println!("{} events", republish::count(conn, &what).await?.iter().map(|part| part.events).sum::<u64>());
//! republish::republish(conn, &what, republish::INBOX_HORIZON, &By::name("ana").why("statistics was restored")).await?;
//! # Ok(())
//! # }
//! ```

use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use diesel::sql_types::{Array, BigInt, Integer, Nullable, Text, Timestamptz};
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};

use super::letters::By;
use super::wake;
use crate::postgres::statement;

/// Which published events are meant: those whose confirmation is on record, and tombstones that stand for discarded ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct What {
    since: Option<DateTime<Utc>>,
    back_ms: Option<i64>,
    aggregate_type: Option<String>,
    aggregate_id: Option<String>,
}

impl What {
    /// What was appended at this time or later, by the database's clock.
    pub fn appended_since(time: DateTime<Utc>) -> What {
        What { since: Some(time), back_ms: None, aggregate_type: None, aggregate_id: None }
    }

    /// What was appended so long ago or later, by the database's clock.
    pub fn appended_within(back: Duration) -> What {
        let back_ms = Some(millis(back));
        What { since: None, back_ms, aggregate_type: None, aggregate_id: None }
    }

    /// Everything of one aggregate.
    pub fn aggregate(r#type: impl Into<String>, id: impl Into<String>) -> What {
        What { since: None, back_ms: None, aggregate_type: Some(r#type.into()), aggregate_id: Some(id.into()) }
    }
}

/// Events of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Part {
    /// The partition.
    pub partition: i32,
    /// How many.
    pub events: u64,
    /// When the oldest of them was appended.
    pub oldest: DateTime<Utc>,
}

/// Why nothing is published again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Consumers may have forgotten some of these events, and would apply them again.
    #[error(
        "{events} of the events that are meant are older than {horizon}, the oldest is of {oldest}: that is as far back as the inboxes of consumers are known to remember, and one that has forgotten an event applies it again. Nothing was done",
        horizon = told(*horizon),
        oldest = oldest.to_rfc3339_opts(SecondsFormat::Secs, true)
    )]
    TooOld {
        /// How many.
        events: u64,
        /// When the oldest was appended.
        oldest: DateTime<Utc>,
        /// How far back inboxes remember, as it was said.
        horizon: Duration,
    },
    /// The database failed.
    #[error("the database failed: {0}")]
    Query(#[from] diesel::result::Error),
}

/// How many events would be published again; changes nothing.
///
/// # Errors
/// Those of the database.
pub async fn count(connection: &mut AsyncPgConnection, what: &What) -> diesel::QueryResult<Vec<Part>> {
    Ok(counted(connection, what, Duration::MAX).await?.into_iter().map(|meant| meant.part).collect())
}

/// Gives the duty to publish these events again, in one transaction. Versions of an aggregate go in their order; what was
/// discarded goes as the tombstone it was, or not at all if it has no version; what is pending stays as it is. It goes by the
/// partition that its aggregate has now. The owners of the partitions concerned lose them, so that the next begins with the
/// first row.
///
/// `horizon` says how far back the inboxes of all consumers remember, [`INBOX_HORIZON`] unless you keep them otherwise. It is
/// logged who did it and why.
///
/// # Errors
/// [`Error::TooOld`] with the numbers, and those of the database. Nothing was done then.
pub async fn republish(
    connection: &mut AsyncPgConnection,
    what: &What,
    horizon: Duration,
    by: &By,
) -> Result<Vec<Part>, Error> {
    let opening = connection.transaction::<_, Error, _>(async |connection| {
        connection.batch_execute(CLOSE).await?;
        let meant = counted(connection, what, horizon).await?;
        refuse_old(&meant, horizon)?;
        // Those where the events were, too: nothing is opened again there beside it.
        let partitions =
            meant.iter().flat_map(|meant| meant.from.iter().copied().chain([meant.part.partition])).collect();
        let _: usize = RunQueryDsl::execute(TakeAway { partitions }, connection).await?;
        let What { since, back_ms, aggregate_type, aggregate_id } = what.clone();
        let partitions = meant.iter().map(|meant| meant.part.partition).collect();
        let horizon_ms = millis(horizon);
        let statement = Open { since, back_ms, aggregate_type, aggregate_id, partitions, horizon_ms };
        let opened: Vec<Counted> = RunQueryDsl::load(statement, connection).await?;
        let opened: Vec<Meant> = opened.into_iter().map(meant_of).collect();
        refuse_old(&opened, horizon)?;
        Ok(opened.into_iter().map(|meant| meant.part).collect())
    });
    let opened: Vec<Part> = opening.await?;
    let (events, by, why) = (opened.iter().map(|part| part.events).sum::<u64>(), &by.name, by.why.as_deref());
    tracing::warn!(events, by, why, "these events are published again");
    wake::all();
    Ok(opened)
}

/// Partition, events, when the oldest was appended, how many are older than inboxes remember, where they were.
type Counted = (i32, i64, DateTime<Utc>, i64, Vec<i32>);

struct Meant {
    part: Part,
    old: u64,
    /// The partitions by which they went, where the number has changed since.
    from: Vec<i32>,
}

async fn counted(
    connection: &mut AsyncPgConnection,
    what: &What,
    horizon: Duration,
) -> diesel::QueryResult<Vec<Meant>> {
    let What { since, back_ms, aggregate_type, aggregate_id } = what.clone();
    let statement = Count { since, back_ms, aggregate_type, aggregate_id, horizon_ms: millis(horizon) };
    let rows: Vec<Counted> = RunQueryDsl::load(statement, connection).await?;
    Ok(rows.into_iter().map(meant_of).collect())
}

fn meant_of((partition, events, oldest, old, from): Counted) -> Meant {
    Meant { part: Part { partition, events: unsigned(events), oldest }, old: unsigned(old), from }
}

fn refuse_old(meant: &[Meant], horizon: Duration) -> Result<(), Error> {
    let old = || meant.iter().filter(|meant| meant.old > 0);
    let Some(oldest) = old().map(|meant| meant.part.oldest).min() else { return Ok(()) };
    Err(Error::TooOld { events: old().map(|meant| meant.old).sum(), oldest, horizon })
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// Whole days as days, not as months and hours.
fn told(duration: Duration) -> String {
    match (duration.as_secs() / DAY, duration.as_secs() % DAY) {
        (days @ 2.., 0) => format!("{days} days"),
        _ => humantime::format_duration(duration).to_string(),
    }
}

/// As far back as PostgreSQL's calendar goes, at the most.
fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.min(MOST).as_millis()).unwrap_or(i64::MAX)
}

/// As in [`adopt`](super::adopt): nobody changes the number of partitions meanwhile, and who does takes these first.
const CLOSE: &str = "LOCK TABLE tidings.aggregate, tidings.event IN ROW EXCLUSIVE MODE";

statement! {
    struct Count {
        since: Nullable<Timestamptz> = Option<DateTime<Utc>>,
        back_ms: Nullable<BigInt> = Option<i64>,
        aggregate_type: Nullable<Text> = Option<String>,
        aggregate_id: Nullable<Text> = Option<String>,
        horizon_ms: BigInt = i64,
    } -> (Integer, BigInt, Timestamptz, BigInt, Array<Integer>);
    "SELECT coalesce(a.partition, tidings.partition_of(tidings.lane(NULL, NULL, e.id), s.partitions)), count(*), min(e.created_at),
            count(*) FILTER (WHERE e.created_at < now() - {horizon_ms} * interval '1 millisecond'), array_agg(DISTINCT e.partition)
       FROM tidings.event e
      CROSS JOIN tidings.setting s
       LEFT JOIN tidings.aggregate a ON a.type = e.aggregate_type AND a.id = e.aggregate_id
      WHERE e.created_at >= coalesce({since}, now() - {back_ms} * interval '1 millisecond', '-infinity')
        AND ({aggregate_type} IS NULL OR (e.aggregate_type = {aggregate_type} AND e.aggregate_id = {aggregate_id}))
        AND EXISTS (SELECT FROM tidings.confirmation c WHERE c.seq = e.seq)
        AND (e.version IS NOT NULL OR NOT EXISTS (SELECT FROM tidings.discarded d WHERE d.seq = e.seq))
        AND NOT EXISTS (SELECT FROM tidings.pending q WHERE q.partition = e.partition AND q.seq = e.seq)
      GROUP BY 1 ORDER BY 1"
}

statement! {
    /// In one order, so that two of these do not wait for each other.
    struct TakeAway { partitions: Array<Integer> = Vec<i32> } -> Integer;
    "WITH meant AS (
        SELECT p.id FROM tidings.partition p WHERE p.id = ANY ({partitions}) ORDER BY p.id FOR UPDATE
     )
     UPDATE tidings.partition p SET owner = NULL, epoch = p.epoch + 1, lease_until = now(), lease_ttl = NULL
       FROM meant WHERE p.id = meant.id"
}

statement! {
    /// Asked anew, under the partitions' rows: nothing is confirmed or opened beside it.
    struct Open {
        since: Nullable<Timestamptz> = Option<DateTime<Utc>>,
        back_ms: Nullable<BigInt> = Option<i64>,
        aggregate_type: Nullable<Text> = Option<String>,
        aggregate_id: Nullable<Text> = Option<String>,
        partitions: Array<Integer> = Vec<i32>,
        horizon_ms: BigInt = i64,
    } -> (Integer, BigInt, Timestamptz, BigInt, Array<Integer>);
    "WITH meant AS (
        SELECT e.seq, e.id, e.aggregate_type, e.aggregate_id, e.version, e.created_at, e.partition AS was,
               coalesce(a.partition, tidings.partition_of(tidings.lane(NULL, NULL, e.id), s.partitions)) AS partition,
               EXISTS (SELECT FROM tidings.discarded d WHERE d.seq = e.seq) AS discarded
          FROM tidings.event e
         CROSS JOIN tidings.setting s
          LEFT JOIN tidings.aggregate a ON a.type = e.aggregate_type AND a.id = e.aggregate_id
         WHERE e.created_at >= coalesce({since}, now() - {back_ms} * interval '1 millisecond', '-infinity')
           AND ({aggregate_type} IS NULL OR (e.aggregate_type = {aggregate_type} AND e.aggregate_id = {aggregate_id}))
           AND EXISTS (SELECT FROM tidings.confirmation c WHERE c.seq = e.seq)
           AND NOT EXISTS (SELECT FROM tidings.pending q WHERE q.partition = e.partition AND q.seq = e.seq)
     ), opened AS (
        INSERT INTO tidings.pending (partition, seq, lane, id_hash, state)
        SELECT m.partition, m.seq, tidings.lane(m.aggregate_type, m.aggregate_id, m.id), hashtextextended(m.id, 0),
               CASE WHEN m.discarded THEN 'tombstone' ELSE 'ready' END::tidings.pending_state
          FROM meant m WHERE m.partition = ANY ({partitions}) AND (m.version IS NOT NULL OR NOT m.discarded)
        ON CONFLICT (partition, seq) DO NOTHING
        RETURNING seq
     ), moved AS (
        UPDATE tidings.event e SET partition = m.partition
          FROM meant m JOIN opened ON opened.seq = m.seq WHERE e.seq = m.seq AND m.was <> m.partition
     ), letters AS (
        UPDATE tidings.dead_letter d SET partition = m.partition
          FROM meant m JOIN opened ON opened.seq = m.seq WHERE d.seq = m.seq AND m.was <> m.partition
     )
     SELECT m.partition, count(*), min(m.created_at),
            count(*) FILTER (WHERE m.created_at < now() - {horizon_ms} * interval '1 millisecond'), array_agg(DISTINCT m.was)
       FROM opened JOIN meant m ON m.seq = opened.seq GROUP BY 1 ORDER BY 1"
}

/// How long inboxes remember unless told otherwise: 38 days.
pub const INBOX_HORIZON: Duration = Duration::from_secs(38 * DAY);
const DAY: u64 = 24 * 3600;
const MOST: Duration = Duration::from_secs(6_000 * 365 * DAY);
