//! Give a claimed row back after a failure of its own: the lane waits, and the row says why.

use std::time::Duration;

use diesel::sql_types::{BigInt, Integer, Text, Uuid};
use diesel_async::{AsyncPgConnection, RunQueryDsl};

use super::claim::Claimed;
use super::lease::Tenancy;
use crate::postgres::statement;

/// Records a failed attempt; `false` if the partition is not ours any more.
pub(super) async fn release(
    connection: &mut AsyncPgConnection,
    tenancy: &Tenancy,
    row: &Claimed,
    delay: Duration,
    error: &str,
) -> diesel::QueryResult<bool> {
    let statement = Release {
        partition: tenancy.partition.0,
        node: tenancy.node,
        epoch: tenancy.epoch.0,
        seq: row.seq,
        id_hash: row.id_hash,
        delay_ms: i64::try_from(delay.as_millis()).unwrap_or(i64::MAX),
        error: error.to_owned(),
    };
    let ours: i64 = RunQueryDsl::get_result(statement, connection).await?;
    Ok(ours == 1)
}

statement! {
    /// The partition's row is held meanwhile, so that no new owner takes over between the check and the change.
    struct Release {
        partition: Integer = i32,
        node: Uuid = uuid::Uuid,
        epoch: BigInt = i64,
        seq: BigInt = i64,
        id_hash: BigInt = i64,
        delay_ms: BigInt = i64,
        error: Text = String,
    } -> BigInt;
    "WITH ours AS (
        SELECT p.id FROM tidings.partition p
         WHERE p.id = {partition} AND p.owner = {node} AND p.epoch = {epoch} FOR SHARE
     ), released AS (
        UPDATE tidings.pending q
           SET state = 'retrying', attempts = least(q.attempts, 2147483646) + 1, last_error = {error},
               next_attempt_at = now() + {delay_ms} * interval '1 millisecond'
          FROM ours WHERE q.partition = ours.id AND q.seq = {seq} AND q.id_hash = {id_hash}
     )
     SELECT count(*) FROM ours"
}
