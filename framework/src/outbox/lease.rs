//! Membership and leases: who relays which partition. Every time that decides is the database's.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use diesel::sql_types::{Array, BigInt, Bool, Integer, Nullable, Text, Timestamptz, Uuid};
use diesel_async::{AsyncPgConnection, RunQueryDsl};

use super::pause::Pause;
use crate::postgres::statement;
use crate::protocol::lease::{Epoch, Partition, Terms};
use crate::protocol::membership::{Lease, Peer, View};

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

/// What a look showed.
#[derive(Debug, Clone)]
pub(crate) struct Look {
    pub(crate) view: View,
    pub(crate) partitions: i32,
    pub(crate) pause: Option<Pause>,
}

/// Says that the node lives, and renews what it owns: one statement. A row that another transaction holds is waited for.
pub(crate) async fn renew(
    connection: &mut AsyncPgConnection,
    node: uuid::Uuid,
    name: &str,
    able: bool,
    terms: &Terms,
) -> diesel::QueryResult<Vec<(Partition, Epoch)>> {
    let statement = Renew { node, name: name.to_owned(), able, ttl_ms: millis(terms.ttl) };
    let renewed: Vec<(i32, i64)> = RunQueryDsl::load(statement, connection).await?;
    Ok(owned(renewed))
}

/// Who owns what, and who is there.
pub(crate) async fn look(connection: &mut AsyncPgConnection) -> diesel::QueryResult<Look> {
    let ((partitions, paused_at, paused_by, paused_reason), leases, owners, nodes): LookRow =
        RunQueryDsl::get_result(ReadAll {}, connection).await?;
    let pause =
        paused_at.map(|at| Pause { at, by: paused_by.unwrap_or_default(), reason: paused_reason.unwrap_or_default() });
    let (ids, epochs, untils, ttls, lefts, served) = leases;
    let lease = |place: usize, id: i32| {
        Some(Lease {
            partition: Partition(id),
            owner: *owners.get(place)?,
            epoch: Epoch(*epochs.get(place)?),
            until: *untils.get(place)?,
            ttl: duration(*ttls.get(place)?),
            left_ms: *lefts.get(place)?,
            served: *served.get(place)?,
        })
    };
    let leases = ids.iter().enumerate().filter_map(|(place, id)| lease(place, *id)).collect();
    let (ids, ables, heartbeats, ttls, ages) = nodes;
    let peer = |place: usize, id: uuid::Uuid| {
        Some(Peer {
            id,
            able: *ables.get(place)?,
            heartbeat: *heartbeats.get(place)?,
            ttl: duration(*ttls.get(place)?),
            age_ms: *ages.get(place)?,
        })
    };
    let nodes = ids.iter().enumerate().filter_map(|(place, id)| peer(place, *id)).collect();
    Ok(Look { view: View { leases, nodes, paused: pause.is_some() }, partitions, pause })
}

/// Takes partitions, as long as they are as they were seen. Each gets a new epoch.
pub(crate) async fn take(
    connection: &mut AsyncPgConnection,
    node: uuid::Uuid,
    free: &[Lease],
    terms: &Terms,
) -> diesel::QueryResult<Vec<(Partition, Epoch)>> {
    let statement = Take {
        node,
        ids: free.iter().map(|lease| lease.partition.0).collect(),
        epochs: free.iter().map(|lease| lease.epoch.0).collect(),
        untils: free.iter().map(|lease| lease.until).collect(),
        ttl_ms: millis(terms.ttl),
    };
    let taken: Vec<(i32, i64)> = RunQueryDsl::load(statement, connection).await?;
    Ok(owned(taken))
}

fn owned(rows: Vec<(i32, i64)>) -> Vec<(Partition, Epoch)> {
    rows.into_iter().map(|(id, epoch)| (Partition(id), Epoch(epoch))).collect()
}

/// Gives a partition up after it was drained, so that the next owner need not wait for the lease to end.
pub(crate) async fn give_up(connection: &mut AsyncPgConnection, tenancy: &Tenancy) -> diesel::QueryResult<()> {
    let statement = GiveUp { partition: tenancy.partition.0, node: tenancy.node, epoch: tenancy.epoch.0 };
    RunQueryDsl::execute(statement, connection).await.map(drop)
}

/// Takes the node out of the count, at the beginning of a drain: what it gives up from then on is the share of others.
pub(crate) async fn sign_off(connection: &mut AsyncPgConnection, node: uuid::Uuid) -> diesel::QueryResult<()> {
    RunQueryDsl::execute(SignOff { node }, connection).await.map(drop)
}

/// Frees what a last heartbeat may have taken, at the end of a drain.
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

fn duration(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

type LookRow = (
    (i32, Option<DateTime<Utc>>, Option<String>, Option<String>),
    (Vec<i32>, Vec<i64>, Vec<i64>, Vec<i64>, Vec<i64>, Vec<bool>),
    Vec<Option<uuid::Uuid>>,
    (Vec<uuid::Uuid>, Vec<bool>, Vec<i64>, Vec<i64>, Vec<i64>),
);

statement! {
    /// The rows are locked in one order, since two statements that lock several would otherwise wait for each other.
    struct Renew {
        node: Uuid = uuid::Uuid,
        name: Text = String,
        able: Bool = bool,
        ttl_ms: BigInt = i64,
    } -> (Integer, BigInt);
    "WITH me AS (
        INSERT INTO tidings.node (id, name, able, ttl) VALUES ({node}, {name}, {able}, {ttl_ms} * interval '1 millisecond')
        ON CONFLICT (id) DO UPDATE SET heartbeat_at = now(), able = excluded.able, ttl = excluded.ttl
     ), gone AS (
        DELETE FROM tidings.node WHERE heartbeat_at < now() - interval '1 day' AND id <> {node}
     ), mine AS (
        SELECT id FROM tidings.partition WHERE owner = {node} ORDER BY id FOR NO KEY UPDATE
     )
     UPDATE tidings.partition p
        SET lease_until = now() + {ttl_ms} * interval '1 millisecond', lease_ttl = {ttl_ms} * interval '1 millisecond'
       FROM mine WHERE p.id = mine.id
     RETURNING p.id, p.epoch"
}

statement! {
    /// One row of arrays: the tables are small, and the node asks often while others are there. What the times mean is
    /// decided in `protocol/membership.rs`. A retired partition is served as long as something is pending in it.
    struct ReadAll {} -> (
        (Integer, Nullable<Timestamptz>, Nullable<Text>, Nullable<Text>),
        (Array<Integer>, Array<BigInt>, Array<BigInt>, Array<BigInt>, Array<BigInt>, Array<Bool>),
        Array<Nullable<Uuid>>,
        (Array<Uuid>, Array<Bool>, Array<BigInt>, Array<BigInt>, Array<BigInt>)
    );
    "WITH lease AS (
        SELECT id, owner, epoch, retired_at IS NULL OR EXISTS (SELECT FROM tidings.pending q WHERE q.partition = id) AS served,
               coalesce((extract(epoch FROM lease_until) * 1000000)::bigint, 0) AS until,
               coalesce((extract(epoch FROM lease_ttl) * 1000)::bigint, 0) AS ttl,
               coalesce((extract(epoch FROM lease_until - now()) * 1000)::bigint, -1) AS remains
          FROM tidings.partition
     ), ours AS (
        SELECT * FROM lease WHERE served OR owner IS NOT NULL
     ), peer AS (
        SELECT id, able, (extract(epoch FROM heartbeat_at) * 1000000)::bigint AS heartbeat,
               (extract(epoch FROM ttl) * 1000)::bigint AS ttl, (extract(epoch FROM now() - heartbeat_at) * 1000)::bigint AS age
          FROM tidings.node
     )
     SELECT s.partitions, s.paused_at, s.paused_by, s.paused_reason,
            ARRAY(SELECT id FROM ours ORDER BY id), ARRAY(SELECT epoch FROM ours ORDER BY id),
            ARRAY(SELECT until FROM ours ORDER BY id), ARRAY(SELECT ttl FROM ours ORDER BY id),
            ARRAY(SELECT remains FROM ours ORDER BY id), ARRAY(SELECT served FROM ours ORDER BY id),
            ARRAY(SELECT owner FROM ours ORDER BY id),
            ARRAY(SELECT id FROM peer ORDER BY id), ARRAY(SELECT able FROM peer ORDER BY id),
            ARRAY(SELECT heartbeat FROM peer ORDER BY id), ARRAY(SELECT ttl FROM peer ORDER BY id),
            ARRAY(SELECT age FROM peer ORDER BY id)
       FROM tidings.setting s"
}

statement! {
    /// Whoever owned it, and whatever the clock says: it is taken as it was seen, or not at all. A row that somebody
    /// holds is not waited for.
    struct Take {
        node: Uuid = uuid::Uuid,
        ids: Array<Integer> = Vec<i32>,
        epochs: Array<BigInt> = Vec<i64>,
        untils: Array<BigInt> = Vec<i64>,
        ttl_ms: BigInt = i64,
    } -> (Integer, BigInt);
    "WITH free AS (
        SELECT p.id FROM tidings.partition p
          JOIN unnest({ids}, {epochs}, {untils}) AS seen(id, epoch, until)
            ON p.id = seen.id AND p.epoch = seen.epoch
           AND coalesce((extract(epoch FROM p.lease_until) * 1000000)::bigint, 0) = seen.until
         ORDER BY p.id FOR NO KEY UPDATE OF p SKIP LOCKED
     )
     UPDATE tidings.partition p
        SET owner = {node}, epoch = epoch + 1,
            lease_until = now() + {ttl_ms} * interval '1 millisecond', lease_ttl = {ttl_ms} * interval '1 millisecond'
       FROM free WHERE p.id = free.id
     RETURNING p.id, p.epoch"
}

statement! {
    struct GiveUp { partition: Integer = i32, node: Uuid = uuid::Uuid, epoch: BigInt = i64 } -> Nullable<Integer>;
    "UPDATE tidings.partition SET owner = NULL, lease_until = now(), lease_ttl = NULL
      WHERE id = {partition} AND owner = {node} AND epoch = {epoch}"
}

statement! {
    struct SignOff { node: Uuid = uuid::Uuid } -> Nullable<Integer>;
    "DELETE FROM tidings.node WHERE id = {node}"
}

statement! {
    struct Leave { node: Uuid = uuid::Uuid } -> Nullable<Integer>;
    "WITH signed_off AS (
        DELETE FROM tidings.node WHERE id = {node}
     )
     UPDATE tidings.partition SET owner = NULL, lease_until = now(), lease_ttl = NULL WHERE owner = {node}"
}

statement! {
    struct SettleSource { source: Text = String } -> Text;
    "UPDATE tidings.setting SET source = coalesce(source, {source}) RETURNING source"
}

statement! {
    struct PartitionCount {} -> Integer;
    "SELECT partitions FROM tidings.setting"
}
