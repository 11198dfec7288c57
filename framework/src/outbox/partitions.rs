//! Another number of partitions.
//!
//! An aggregate that moves to another stream must have nothing on its way in the old one, or two relays would publish it
//! side by side. So appends are closed, the relays finish what may go, every aggregate gets its new partition, and what
//! is held (dead, delayed, and all behind it) moves along. All of that is one transaction: whatever dies in the middle,
//! it has not happened, and appends go on.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use diesel::sql_types::{BigInt, Bool, Integer, Nullable, Text, Timestamptz};
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};

use crate::postgres::{Fault, classify, statement};

/// What became of another number of partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Changed {
    pub(crate) before: i32,
    pub(crate) aggregates: i64,
    pub(crate) held: i64,
    /// How long appends were kept waiting.
    pub(crate) closed: Duration,
}

/// Why the number stays as it is.
#[derive(Debug)]
pub(crate) enum Unchanged {
    /// It is that already.
    Already,
    /// Events were on their way until the end of the time: so many in each of these partitions, counted up to a bound.
    OnTheWay(Vec<(i32, i64)>),
    /// Other transactions held the tables until the end of the time.
    Locked,
    Failed(diesel::result::Error),
}

impl From<diesel::result::Error> for Unchanged {
    fn from(error: diesel::result::Error) -> Self {
        Unchanged::Failed(error)
    }
}

/// How long it may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// In all.
    pub(crate) within: Duration,
    /// With appends kept waiting.
    pub(crate) hold: Duration,
}

/// Tries until the time is up; between two tries appends go on.
pub(crate) async fn set(
    connection: &mut AsyncPgConnection,
    number: i32,
    patience: Patience,
) -> Result<Changed, Unchanged> {
    let before: i32 = RunQueryDsl::get_result(Count {}, connection).await?;
    let stray: bool = RunQueryDsl::get_result(Stray { number }, connection).await?;
    if before == number && !stray {
        return Err(Unchanged::Already);
    }
    let deadline = Instant::now() + patience.within;
    loop {
        let tried = match on_the_way(connection, NEAR_THE_END).await? {
            far if far.iter().map(|(_, events)| events).sum::<i64>() >= NEAR_THE_END => Unchanged::OnTheWay(far),
            _ => match attempt(connection, number, patience.hold).await {
                Ok((aggregates, held, closed)) => return Ok(Changed { before, aggregates, held, closed }),
                Err(Unchanged::Failed(error)) if classify(&error) == Fault::Serialization => Unchanged::Locked,
                Err(other @ (Unchanged::OnTheWay(_) | Unchanged::Locked)) => other,
                Err(other @ (Unchanged::Already | Unchanged::Failed(_))) => return Err(other),
            },
        };
        if Instant::now() >= deadline {
            return Err(tried);
        }
        tokio::time::sleep(BETWEEN_TRIES).await;
    }
}

async fn attempt(
    connection: &mut AsyncPgConnection,
    number: i32,
    hold: Duration,
) -> Result<(i64, i64, Duration), Unchanged> {
    connection
        .transaction::<_, Unchanged, _>(async |connection| {
            connection.batch_execute(CLOSE).await?;
            let closed = Instant::now();
            wait(connection, closed + hold).await?;
            let aggregates = RunQueryDsl::execute(MoveAggregates { number }, connection).await?;
            RunQueryDsl::execute(LayOut { number }, connection).await?;
            // From here on nobody takes, confirms, holds or redrives; a delayed event may have come due just before.
            connection.batch_execute(FENCE).await?;
            let late = on_the_way(connection, 1).await?;
            if !late.is_empty() {
                return Err(Unchanged::OnTheWay(late));
            }
            RunQueryDsl::execute(MoveEvents { number }, connection).await?;
            let held = RunQueryDsl::execute(MovePending { number }, connection).await?;
            RunQueryDsl::execute(ChangeHands { number }, connection).await?;
            RunQueryDsl::execute(SetCount { number }, connection).await?;
            let count = |rows| i64::try_from(rows).unwrap_or(i64::MAX);
            Ok((count(aggregates), count(held), closed.elapsed()))
        })
        .await
}

/// Waits until nothing is on its way any more.
async fn wait(connection: &mut AsyncPgConnection, until: Instant) -> Result<(), Unchanged> {
    loop {
        let left = on_the_way(connection, NEAR_THE_END).await?;
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(Unchanged::OnTheWay(left));
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
}

/// What may be published, by partition, up to so many in all.
async fn on_the_way(connection: &mut AsyncPgConnection, most: i64) -> diesel::QueryResult<Vec<(i32, i64)>> {
    RunQueryDsl::load(OnTheWay { most }, connection).await
}

/// A partition, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Its number.
    pub id: i32,
    /// The name of the node that owns it, or its id where it has signed off; `None` for a partition without an owner.
    pub owner: Option<String>,
    /// Grows by one with each change of owner.
    pub epoch: i64,
    /// Until when the lease lasts; without an owner, since when there is none.
    pub lease_until: Option<DateTime<Utc>>,
    /// The lease is over by the database's clock.
    pub over: bool,
    /// It is not one of the number any more, and serves only what is pending in it.
    pub retired: bool,
    /// How many events are pending in it, counted up to [`MOST_COUNTED`].
    pub pending: i64,
}

/// The partitions of a database, in order.
pub(crate) async fn list(connection: &mut AsyncPgConnection) -> diesel::QueryResult<Vec<Status>> {
    type Row = (i32, Option<String>, i64, Option<DateTime<Utc>>, bool, bool, i64);
    let rows: Vec<Row> = RunQueryDsl::load(List { most: MOST_COUNTED }, connection).await?;
    let status = |(id, owner, epoch, lease_until, over, retired, pending)| Status {
        id,
        owner,
        epoch,
        lease_until,
        over,
        retired,
        pending,
    };
    Ok(rows.into_iter().map(status).collect())
}

/// Waits for the appends under way and keeps out new ones; the relays need neither table but to read. Both are waited
/// for a shorter time than the server takes to look for deadlocks: an append that holds one and waits for the other is
/// never the one to be ended, and none waits long behind a transaction that takes its time. The driver tells no lock that
/// was not to be had from any other error; a serialization failure, which nothing here has otherwise, it does tell.
const CLOSE: &str = "SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0; \
     SET LOCAL lock_timeout = '500ms'; \
     DO 'BEGIN LOCK TABLE tidings.aggregate, tidings.event IN SHARE ROW EXCLUSIVE MODE; \
         EXCEPTION WHEN lock_not_available OR deadlock_detected THEN \
         RAISE EXCEPTION USING ERRCODE = ''serialization_failure''; END'; \
     SET LOCAL lock_timeout = '5s'";

/// In one order, like all that locks several.
const FENCE: &str = "DO 'BEGIN PERFORM id FROM tidings.partition ORDER BY id FOR UPDATE; END'";

statement! {
    struct Count {} -> Integer;
    "SELECT partitions FROM tidings.setting"
}

statement! {
    /// An aggregate that was made meanwhile by a transaction whose snapshot was older than the last change.
    struct Stray { number: Integer = i32 } -> Bool;
    "SELECT EXISTS (SELECT FROM tidings.aggregate WHERE partition >= {number})"
}

statement! {
    /// What stands behind something dead or delayed in its lane goes nowhere, and need not be waited for.
    struct OnTheWay { most: BigInt = i64 } -> (Integer, BigInt);
    "SELECT partition, count(*) FROM (
        SELECT p.partition FROM tidings.pending p
         WHERE p.state IN ('ready', 'retrying', 'tombstone')
           AND NOT EXISTS (SELECT FROM tidings.pending h
                            WHERE h.partition = p.partition AND h.lane = p.lane AND h.seq < p.seq
                              AND h.state IN ('dead', 'delayed'))
         LIMIT {most}) counted
     GROUP BY 1 ORDER BY 1"
}

statement! {
    struct MoveAggregates { number: Integer = i32 } -> Integer;
    "UPDATE tidings.aggregate SET partition = tidings.partition_of(tidings.lane(type, id, NULL), {number})
      WHERE partition <> tidings.partition_of(tidings.lane(type, id, NULL), {number})"
}

statement! {
    /// One that was retired earlier goes on with its epoch and its anchor.
    struct LayOut { number: Integer = i32 } -> Integer;
    "INSERT INTO tidings.partition (id, lease_until) SELECT g, now() FROM generate_series(0, {number} - 1) g
     ON CONFLICT (id) DO NOTHING"
}

statement! {
    struct MoveEvents { number: Integer = i32 } -> Integer;
    "WITH moved AS (
        SELECT seq, tidings.partition_of(lane, {number}) AS partition FROM tidings.pending
         WHERE partition <> tidings.partition_of(lane, {number})
     ), letters AS (
        UPDATE tidings.dead_letter d SET partition = moved.partition FROM moved WHERE d.seq = moved.seq
     )
     UPDATE tidings.event e SET partition = moved.partition FROM moved WHERE e.seq = moved.seq"
}

statement! {
    struct MovePending { number: Integer = i32 } -> Integer;
    "UPDATE tidings.pending SET partition = tidings.partition_of(lane, {number})
      WHERE partition <> tidings.partition_of(lane, {number})"
}

statement! {
    /// All of them: whoever has claimed something of the old order may not go on with it.
    struct ChangeHands { number: Integer = i32 } -> Integer;
    "UPDATE tidings.partition
        SET owner = NULL, epoch = epoch + 1, lease_until = now(), lease_ttl = NULL,
            retired_at = CASE WHEN id >= {number} THEN coalesce(retired_at, now()) END"
}

statement! {
    struct SetCount { number: Integer = i32 } -> Integer;
    "UPDATE tidings.setting SET partitions = {number}"
}

statement! {
    struct List { most: BigInt = i64 } -> (Integer, Nullable<Text>, BigInt, Nullable<Timestamptz>, Bool, Bool, BigInt);
    "SELECT p.id, CASE WHEN p.owner IS NOT NULL THEN coalesce(n.name, p.owner::text) END, p.epoch, p.lease_until,
            p.owner IS NOT NULL AND coalesce(p.lease_until NOT BETWEEN now() AND now() + p.lease_ttl, true),
            p.retired_at IS NOT NULL,
            (SELECT count(*) FROM (SELECT FROM tidings.pending q WHERE q.partition = p.id LIMIT {most}) counted)
       FROM tidings.partition p LEFT JOIN tidings.node n ON n.id = p.owner
      ORDER BY p.id"
}

/// Pending events are counted no further than this.
pub const MOST_COUNTED: i64 = 10_000;
/// With more on the way, appends are not closed: the relays would take too long.
const NEAR_THE_END: i64 = 5_000;
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
const BETWEEN_TRIES: Duration = Duration::from_millis(500);
