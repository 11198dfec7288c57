//! Membership and leases: who relays which partition. Every time that decides is the database's.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use diesel::sql_types::{Array, BigInt, Bool, Integer, Nullable, Text, Uuid};
use diesel_async::{AsyncPgConnection, RunQueryDsl};

use crate::postgres::statement;
use crate::protocol::lease::{Epoch, Partition, Terms};

/// A partition, owned by a node under an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tenancy {
    pub(crate) node: uuid::Uuid,
    pub(crate) partition: Partition,
    pub(crate) epoch: Epoch,
}

/// Until when the owner trusts its lease; moved by the renewals, read before everything that is published.
#[derive(Debug)]
pub(crate) struct Trust(Mutex<Option<Instant>>);

impl Trust {
    pub(crate) fn until(deadline: Instant) -> Trust {
        Trust(Mutex::new(Some(deadline)))
    }

    /// Renewed. What was revoked stays so.
    pub(crate) fn extend(&self, deadline: Instant) {
        if let Some(until) = self.lock().as_mut() {
            *until = deadline;
        }
    }

    /// Nothing more is to be published: drain, or the lease was lost.
    pub(crate) fn revoke(&self) {
        *self.lock() = None;
    }

    pub(crate) fn holds(&self) -> bool {
        self.lock().is_some_and(|until| Instant::now() < until)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// What a heartbeat learnt.
#[derive(Debug, Clone)]
pub(crate) struct Beat {
    pub(crate) owned: Vec<(Partition, Epoch)>,
    pub(crate) able_nodes: usize,
    pub(crate) partitions: usize,
    pub(crate) trusted_until: Instant,
}

/// Says that the node lives, renews what it owns, and counts the others: one statement.
pub(crate) async fn beat(
    connection: &mut AsyncPgConnection,
    node: uuid::Uuid,
    name: &str,
    able: bool,
    terms: &Terms,
) -> diesel::QueryResult<Beat> {
    let sent = Instant::now();
    let statement = Heartbeat { node, name: name.to_owned(), able, ttl_ms: millis(terms.ttl) };
    let (ids, epochs, others, partitions): (Vec<i32>, Vec<i64>, i64, i32) =
        RunQueryDsl::get_result(statement, connection).await?;
    Ok(Beat {
        owned: ids.into_iter().map(Partition).zip(epochs.into_iter().map(Epoch)).collect(),
        able_nodes: usize::try_from(others).unwrap_or(0) + usize::from(able),
        partitions: usize::try_from(partitions).unwrap_or(0),
        trusted_until: terms.trusted_until(sent),
    })
}

/// Takes up to `count` partitions that nobody owns, or whose lease is over. Each gets a new epoch.
pub(crate) async fn take(
    connection: &mut AsyncPgConnection,
    node: uuid::Uuid,
    count: usize,
    terms: &Terms,
) -> diesel::QueryResult<(Vec<(Partition, Epoch)>, Instant)> {
    let sent = Instant::now();
    let statement = Take { node, count: i64::try_from(count).unwrap_or(i64::MAX), ttl_ms: millis(terms.ttl) };
    let taken: Vec<(i32, i64)> = RunQueryDsl::load(statement, connection).await?;
    let taken = taken.into_iter().map(|(id, epoch)| (Partition(id), Epoch(epoch))).collect();
    Ok((taken, terms.trusted_until(sent)))
}

/// Gives a partition up after it was drained, so that the next owner need not wait for the lease to end.
pub(crate) async fn give_up(connection: &mut AsyncPgConnection, tenancy: &Tenancy) -> diesel::QueryResult<()> {
    let statement = GiveUp { partition: tenancy.partition.0, node: tenancy.node, epoch: tenancy.epoch.0 };
    RunQueryDsl::execute(statement, connection).await.map(drop)
}

/// Takes the node out of the count, at the end of a drain, and frees what a last heartbeat may have taken for it.
pub(crate) async fn leave(connection: &mut AsyncPgConnection, node: uuid::Uuid) -> diesel::QueryResult<()> {
    RunQueryDsl::execute(Leave { node }, connection).await.map(drop)
}

/// The source of this database: set by the first that says one, and returned as it is.
pub(crate) async fn settle_source(connection: &mut AsyncPgConnection, source: &str) -> diesel::QueryResult<String> {
    RunQueryDsl::get_result(SettleSource { source: source.to_owned() }, connection).await
}

/// How many partitions the database has.
pub(crate) async fn partition_count(connection: &mut AsyncPgConnection) -> diesel::QueryResult<i32> {
    RunQueryDsl::get_result(PartitionCount {}, connection).await
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

statement! {
    /// A node counts as able if its heartbeat is younger than the lease and not from the future (the clock was set back).
    struct Heartbeat {
        node: Uuid = uuid::Uuid,
        name: Text = String,
        able: Bool = bool,
        ttl_ms: BigInt = i64,
    } -> (Array<Integer>, Array<BigInt>, BigInt, Integer);
    "WITH me AS (
        INSERT INTO tidings.node (id, name, able) VALUES ({node}, {name}, {able})
        ON CONFLICT (id) DO UPDATE SET heartbeat_at = now(), able = excluded.able
     ), gone AS (
        DELETE FROM tidings.node WHERE heartbeat_at < now() - interval '1 day'
     ), mine AS (
        UPDATE tidings.partition
           SET lease_until = now() + {ttl_ms} * interval '1 millisecond', lease_ttl = {ttl_ms} * interval '1 millisecond'
         WHERE owner = {node} RETURNING id, epoch
     )
     SELECT coalesce((SELECT array_agg(id ORDER BY id) FROM mine), ARRAY[]::integer[]),
            coalesce((SELECT array_agg(epoch ORDER BY id) FROM mine), ARRAY[]::bigint[]),
            (SELECT count(*) FROM tidings.node n
              WHERE n.able AND n.id <> {node}
                AND n.heartbeat_at BETWEEN now() - {ttl_ms} * interval '1 millisecond' AND now() + {ttl_ms} * interval '1 millisecond'),
            (SELECT partitions FROM tidings.setting)"
}

statement! {
    /// A lease that ends later than it could have been granted for counts as over: the clock was set back.
    struct Take {
        node: Uuid = uuid::Uuid,
        count: BigInt = i64,
        ttl_ms: BigInt = i64,
    } -> (Integer, BigInt);
    "WITH free AS (
        SELECT id FROM tidings.partition
         WHERE owner IS NULL OR lease_until < now() OR lease_until > now() + lease_ttl
         ORDER BY lease_until NULLS FIRST, id LIMIT {count} FOR UPDATE SKIP LOCKED
     )
     UPDATE tidings.partition p
        SET owner = {node}, epoch = p.epoch + 1, lease_until = now() + {ttl_ms} * interval '1 millisecond',
            lease_ttl = {ttl_ms} * interval '1 millisecond'
       FROM free WHERE p.id = free.id
     RETURNING p.id, p.epoch"
}

statement! {
    struct GiveUp { partition: Integer = i32, node: Uuid = uuid::Uuid, epoch: BigInt = i64 } -> Nullable<Integer>;
    "UPDATE tidings.partition SET owner = NULL, lease_until = now(), lease_ttl = NULL
      WHERE id = {partition} AND owner = {node} AND epoch = {epoch}"
}

statement! {
    struct Leave { node: Uuid = uuid::Uuid } -> Nullable<Integer>;
    "WITH freed AS (
        UPDATE tidings.partition SET owner = NULL, lease_until = now(), lease_ttl = NULL WHERE owner = {node}
     )
     DELETE FROM tidings.node WHERE id = {node}"
}

statement! {
    struct SettleSource { source: Text = String } -> Text;
    "UPDATE tidings.setting SET source = coalesce(source, {source}) RETURNING source"
}

statement! {
    struct PartitionCount {} -> Integer;
    "SELECT partitions FROM tidings.setting"
}
