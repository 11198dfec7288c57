//! Set an event aside that the broker will never take. Under `halt` its pending row stays, in state `dead`, and holds the
//! lane: no owner overtakes it. Under `skip` it is discarded at once, and a tombstone goes in its place.

use std::time::{Duration, Instant};

use diesel::sql_types::{Array, BigInt, Bool, Integer, Text, Uuid};
use diesel_async::{AsyncPgConnection, RunQueryDsl};

use super::claim::Claimed;
use super::lease::Tenancy;
use super::publish::{Interrupted, Tenure};
use crate::broker::Refusal;
use crate::postgres::statement;
use crate::telemetry;

/// What becomes of a dead event of an aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnDeath {
    /// It holds its lane until somebody resolves it.
    Halt,
    /// It is discarded.
    Skip,
}

impl Tenure {
    /// The event can never be published: it is set aside, and its lane waits behind it, or behind its tombstone.
    pub(super) async fn set_aside(&mut self, claimed: &Claimed, refusal: Refusal) -> Result<(), Interrupted> {
        let reason = refusal.to_string();
        let (seq, id) = (claimed.row.seq, &claimed.envelope.id);
        let skip = &self.ground.limits.skip;
        let on_death = match &claimed.envelope.aggregate {
            // Discarded already, and its tombstone is refused too: once more would change nothing.
            Some(aggregate) if skip.contains(&aggregate.r#type) && !claimed.envelope.tombstone => OnDeath::Skip,
            Some(_) | None => OnDeath::Halt,
        };
        match on_death {
            OnDeath::Halt => tracing::error!(
                seq,
                id,
                reason,
                "an event can never be published and is set aside; its aggregate waits behind it"
            ),
            OnDeath::Skip => tracing::error!(
                seq,
                id,
                reason,
                "an event can never be published and is discarded, as this relay is told for its aggregate type"
            ),
        }
        // Of a lane that is skipped the tombstone is found by what has come due.
        self.lanes.hold_until(claimed.row.lane, Instant::now() + HELD);
        self.lanes.give_back_from(claimed.row.lane, claimed.row.seq, claimed.row.previous);
        let tenancy = self.tenancy;
        let setting =
            self.ground.pool.run(async |connection| dead(connection, &tenancy, claimed, &reason, on_death).await);
        let ours = setting.await?;
        telemetry::dead("relay");
        self.still_ours(ours)
    }
}

/// Writes the dead letter; `false` if the partition is not ours any more.
async fn dead(
    connection: &mut AsyncPgConnection,
    tenancy: &Tenancy,
    row: &Claimed,
    reason: &str,
    on_death: OnDeath,
) -> diesel::QueryResult<bool> {
    let statement = Dead {
        partition: tenancy.partition.0,
        node: tenancy.node,
        epoch: tenancy.epoch.0,
        seq: row.row.seq,
        id_hash: row.id_hash,
        event_id: row.envelope.id.clone(),
        reason: reason.to_owned(),
        skip: on_death == OnDeath::Skip,
    };
    let ours: i64 = RunQueryDsl::get_result(statement, connection).await?;
    Ok(ours == 1)
}

/// The stream holds these events themselves, whatever was decided about them meanwhile: no tombstone stands for them.
pub(super) async fn stored_after_all(connection: &mut AsyncPgConnection, seqs: Vec<i64>) -> diesel::QueryResult<()> {
    let _: usize = RunQueryDsl::execute(StoredAfterAll { seqs }, connection).await?;
    Ok(())
}

/// The stream holds tombstones of these events, although the database may have lost that they were discarded.
pub(super) async fn tombstone_after_all(connection: &mut AsyncPgConnection, seqs: Vec<i64>) -> diesel::QueryResult<()> {
    let _: usize = RunQueryDsl::execute(TombstoneAfterAll { seqs }, connection).await?;
    Ok(())
}

statement! {
    /// State and dead letter in one statement, under the partition's row.
    struct Dead {
        partition: Integer = i32,
        node: Uuid = uuid::Uuid,
        epoch: BigInt = i64,
        seq: BigInt = i64,
        id_hash: BigInt = i64,
        event_id: Text = String,
        reason: Text = String,
        skip: Bool = bool,
    } -> BigInt;
    "WITH ours AS (
        SELECT p.id FROM tidings.partition p
         WHERE p.id = {partition} AND p.owner = {node} AND p.epoch = {epoch} FOR SHARE
     ), died AS (
        UPDATE tidings.pending q
           SET state = CASE WHEN {skip} THEN 'tombstone' ELSE 'dead' END::tidings.pending_state, last_error = {reason},
               next_attempt_at = CASE WHEN {skip} THEN now() END, attempts = least(q.attempts, 2147483646) + 1
          FROM ours WHERE q.partition = ours.id AND q.seq = {seq} AND q.id_hash = {id_hash}
        RETURNING q.seq, q.attempts
     ), letter AS (
        INSERT INTO tidings.dead_letter (seq, partition, event_id, reason, attempts, epoch,
                                         resolved_at, resolution, resolved_by)
        SELECT died.seq, {partition}, {event_id}, {reason}, died.attempts, {epoch},
               CASE WHEN {skip} THEN now() END, CASE WHEN {skip} THEN 'skipped' END,
               CASE WHEN {skip} THEN 'relay ' || {node}::text END
          FROM died
        ON CONFLICT (seq) DO UPDATE SET reason = excluded.reason, attempts = excluded.attempts, epoch = excluded.epoch,
               died_at = now(), resolved_at = excluded.resolved_at, resolution = excluded.resolution,
               resolved_by = excluded.resolved_by, resolved_why = NULL
     ), skipped AS (
        INSERT INTO tidings.discarded (seq, event_id, how, by, reason)
        SELECT died.seq, {event_id}, 'skipped', 'relay ' || {node}::text, {reason} FROM died WHERE {skip}
        ON CONFLICT (seq) DO NOTHING
     )
     SELECT count(*) FROM ours"
}

statement! {
    struct StoredAfterAll { seqs: Array<BigInt> = Vec<i64> } -> BigInt;
    "WITH gone AS (
        DELETE FROM tidings.discarded d WHERE d.seq = ANY ({seqs}) RETURNING d.seq
     )
     UPDATE tidings.dead_letter l SET resolution = 'stored after all', resolved_at = coalesce(l.resolved_at, now())
      WHERE l.seq = ANY ({seqs}) AND (l.resolved_at IS NULL OR EXISTS (SELECT FROM gone WHERE gone.seq = l.seq))"
}

statement! {
    /// One that was confirmed before stays as it is.
    struct TombstoneAfterAll { seqs: Array<BigInt> = Vec<i64> } -> BigInt;
    "WITH decided AS (
        INSERT INTO tidings.discarded (seq, event_id, how, by, reason)
        SELECT e.seq, e.id, 'discarded', 'relay', 'the stream holds its tombstone' FROM tidings.event e
         WHERE e.seq = ANY ({seqs}) AND NOT EXISTS (SELECT FROM tidings.confirmation c WHERE c.seq = e.seq)
        ON CONFLICT (seq) DO NOTHING RETURNING seq
     )
     UPDATE tidings.dead_letter l SET resolution = 'discarded', resolved_at = now(), resolved_by = 'relay'
       FROM decided WHERE l.seq = decided.seq AND l.resolved_at IS NULL"
}

/// Its lane is asked for again after this, and at once when it is resolved.
const HELD: Duration = Duration::from_secs(60);
