//! Set an event aside that the broker will never take. Under `halt` its pending row stays, in state `dead`, and holds the
//! lane: no owner overtakes it.

use std::time::{Duration, Instant};

use diesel::sql_types::{BigInt, Integer, Text, Uuid};
use diesel_async::{AsyncPgConnection, RunQueryDsl};

use super::claim::Claimed;
use super::lease::Tenancy;
use super::publish::{Interrupted, Tenure};
use crate::broker::Refusal;
use crate::postgres::statement;
use crate::telemetry;

impl Tenure {
    /// The event can never be published: it is set aside, and its lane waits behind it.
    pub(super) async fn set_aside(&mut self, claimed: &Claimed, refusal: Refusal) -> Result<(), Interrupted> {
        let reason = refusal.to_string();
        let (seq, id) = (claimed.row.seq, &claimed.envelope.id);
        tracing::error!(
            seq,
            id,
            reason,
            "an event can never be published and is set aside; its aggregate waits behind it"
        );
        self.lanes.hold_until(claimed.row.lane, Instant::now() + HELD);
        self.lanes.give_back_from(claimed.row.lane, claimed.row.seq, claimed.row.previous, 1);
        let tenancy = self.tenancy;
        let setting = self.ground.pool.run(async |connection| dead(connection, &tenancy, claimed, &reason).await);
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
) -> diesel::QueryResult<bool> {
    let statement = Dead {
        partition: tenancy.partition.0,
        node: tenancy.node,
        epoch: tenancy.epoch.0,
        seq: row.row.seq,
        id_hash: row.id_hash,
        event_id: row.envelope.id.clone(),
        reason: reason.to_owned(),
    };
    let ours: i64 = RunQueryDsl::get_result(statement, connection).await?;
    Ok(ours == 1)
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
    } -> BigInt;
    "WITH ours AS (
        SELECT p.id FROM tidings.partition p
         WHERE p.id = {partition} AND p.owner = {node} AND p.epoch = {epoch} FOR SHARE
     ), died AS (
        UPDATE tidings.pending q SET state = 'dead', last_error = {reason}, next_attempt_at = NULL,
               attempts = least(q.attempts, 2147483646) + 1
          FROM ours WHERE q.partition = ours.id AND q.seq = {seq} AND q.id_hash = {id_hash}
        RETURNING q.seq, q.attempts
     ), letter AS (
        INSERT INTO tidings.dead_letter (seq, partition, event_id, reason, attempts, epoch)
        SELECT died.seq, {partition}, {event_id}, {reason}, died.attempts, {epoch} FROM died
        ON CONFLICT (seq) DO UPDATE SET reason = excluded.reason, attempts = excluded.attempts, epoch = excluded.epoch,
               died_at = now(), resolved_at = NULL, resolution = NULL
     )
     SELECT count(*) FROM ours"
}

/// Its lane is asked for again after this, and at once when it is resolved.
const HELD: Duration = Duration::from_secs(60);
