//! Give a claimed row back after a failure of its own: the lane waits, and the row says why.

use std::time::{Duration, Instant};

use diesel::sql_types::{BigInt, Integer, Text, Uuid};
use diesel_async::{AsyncPgConnection, RunQueryDsl};

use super::claim::{Claimed, ClaimedRow};
use super::lease::Tenancy;
use super::link::Link;
use super::publish::{Interrupted, Tenure};
use crate::postgres::statement;

impl Tenure {
    /// What stands behind a row in its lane leaves the queue before that row is given back: it is claimed anew, behind it.
    pub(super) fn withdraw(&mut self, link: &mut Link, claimed: &Claimed) {
        let (lane, seq) = (claimed.row.lane, claimed.row.seq);
        let is_behind = |queued: &ClaimedRow| queued.row.lane == lane && queued.row.seq > seq;
        let (behind, others): (Vec<ClaimedRow>, Vec<ClaimedRow>) =
            std::mem::take(&mut link.queue).into_iter().partition(is_behind);
        link.queue = others.into();
        for claimed in behind {
            link.queue_bytes -= claimed.bytes;
            self.lanes.give_back_from(lane, claimed.row.seq, claimed.row.previous);
        }
    }

    /// The event waits, longer with each failure, and all behind it in its lane; `counted` is 0 where it is not to blame.
    pub(super) async fn retry(&mut self, claimed: &Claimed, error: &str, counted: i32) -> Result<(), Interrupted> {
        let (now, backoff) = (Instant::now(), self.ground.limits.backoff);
        let delay = match u32::try_from(claimed.attempts.saturating_add(counted)) {
            Ok(attempts) if counted > 0 => {
                let delay = backoff.delay(attempts, rand::random());
                self.lanes.hold_until(claimed.row.lane, now + delay);
                delay
            }
            Ok(_) | Err(_) => self.lanes.hold(claimed.row.lane, now, &backoff, rand::random()),
        };
        self.lanes.give_back_from(claimed.row.lane, claimed.row.seq, claimed.row.previous);
        let (seq, id) = (claimed.row.seq, &claimed.envelope.id);
        tracing::warn!(seq, id, ?delay, error, "an event could not be published; it will be tried again");
        let tenancy = self.tenancy;
        let releasing = self
            .ground
            .pool
            .run(async |connection| release(connection, &tenancy, claimed, delay, error, counted).await);
        let ours = releasing.await?;
        self.still_ours(ours)
    }
}

/// Records a failed attempt; `false` if the partition is not ours any more.
async fn release(
    connection: &mut AsyncPgConnection,
    tenancy: &Tenancy,
    row: &Claimed,
    delay: Duration,
    error: &str,
    counted: i32,
) -> diesel::QueryResult<bool> {
    let statement = Release {
        partition: tenancy.partition.0,
        node: tenancy.node,
        epoch: tenancy.epoch.0,
        seq: row.row.seq,
        id_hash: row.id_hash,
        delay_ms: i64::try_from(delay.as_millis()).unwrap_or(i64::MAX),
        error: error.to_owned(),
        counted,
    };
    let ours: i64 = RunQueryDsl::get_result(statement, connection).await?;
    Ok(ours == 1)
}

statement! {
    /// The partition's row is held meanwhile, so that no new owner takes over between the check and the change. A tombstone
    /// stays one: what it stands for was discarded.
    struct Release {
        partition: Integer = i32,
        node: Uuid = uuid::Uuid,
        epoch: BigInt = i64,
        seq: BigInt = i64,
        id_hash: BigInt = i64,
        delay_ms: BigInt = i64,
        error: Text = String,
        counted: Integer = i32,
    } -> BigInt;
    "WITH ours AS (
        SELECT p.id FROM tidings.partition p
         WHERE p.id = {partition} AND p.owner = {node} AND p.epoch = {epoch} FOR SHARE
     ), released AS (
        UPDATE tidings.pending q
           SET state = CASE q.state WHEN 'tombstone' THEN q.state ELSE 'retrying' END, attempts = least(q.attempts, 2147483646) + {counted}, last_error = {error},
               next_attempt_at = now() + {delay_ms} * interval '1 millisecond'
          FROM ours WHERE q.partition = ours.id AND q.seq = {seq} AND q.id_hash = {id_hash}
     )
     SELECT count(*) FROM ours"
}
