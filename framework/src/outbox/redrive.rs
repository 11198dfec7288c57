//! Try a dead event again, with the same id and version.

use diesel::sql_types::{Array, BigInt, Integer, Nullable, Text};
use diesel_async::{AsyncPgConnection, RunQueryDsl};

use super::letters::{By, Done, Which, resolved, settle};
use super::wake;
use crate::postgres::statement;

/// Makes dead events ready again, attempts forgotten. What was discarded before, and whose tombstone died, goes as a
/// tombstone again.
///
/// Of an event that is not dead any more nothing changes, so it may be repeated. In a transaction of yours it counts with the
/// commit.
///
/// # Errors
/// Those of the database.
pub async fn redrive(connection: &mut AsyncPgConnection, which: &Which, by: &By) -> diesel::QueryResult<Done> {
    let stored_after_all = settle(connection, which).await?;
    let rows = which.rows();
    let Which { seqs, event_ids, event_type, aggregate_type, aggregate_id, partition, after, .. } = which.clone();
    let (by, why) = (by.name.clone(), by.why.clone());
    let statement =
        Redrive { seqs, event_ids, event_type, aggregate_type, aggregate_id, partition, after, rows, by, why };
    let rows: Vec<(i64, String)> = RunQueryDsl::load(statement, connection).await?;
    wake::all();
    Ok(Done { events: rows.into_iter().map(resolved).collect(), stored_after_all })
}

statement! {
    /// Letters first, since they are few; the pending row decides, under its lock. The time makes the relay look at once.
    struct Redrive {
        seqs: Nullable<Array<BigInt>> = Option<Vec<i64>>,
        event_ids: Nullable<Array<Text>> = Option<Vec<String>>,
        event_type: Nullable<Text> = Option<String>,
        aggregate_type: Nullable<Text> = Option<String>,
        aggregate_id: Nullable<Text> = Option<String>,
        partition: Nullable<Integer> = Option<i32>,
        after: BigInt = i64,
        rows: BigInt = i64,
        by: Text = String,
        why: Nullable<Text> = Option<String>,
    } -> (BigInt, Text);
    "WITH chosen AS (
        SELECT q.partition, q.seq
          FROM tidings.dead_letter d JOIN tidings.event e ON e.seq = d.seq
          JOIN tidings.pending q ON q.partition = d.partition AND q.seq = d.seq
         WHERE d.resolved_at IS NULL AND q.state = 'dead' AND d.seq > {after}
           AND ({seqs} IS NULL OR d.seq = ANY ({seqs})) AND ({event_ids} IS NULL OR d.event_id = ANY ({event_ids}))
           AND ({event_type} IS NULL OR e.type = {event_type})
           AND ({aggregate_type} IS NULL OR e.aggregate_type = {aggregate_type})
           AND ({aggregate_id} IS NULL OR e.aggregate_id = {aggregate_id})
           AND ({partition} IS NULL OR d.partition = {partition})
         ORDER BY d.seq LIMIT {rows} FOR UPDATE OF q
     ), moved AS (
        UPDATE tidings.pending q
           SET state = CASE WHEN EXISTS (SELECT FROM tidings.discarded g WHERE g.seq = q.seq)
                            THEN 'tombstone' ELSE 'ready' END::tidings.pending_state,
               attempts = 0, last_error = NULL, next_attempt_at = now()
          FROM chosen c WHERE q.partition = c.partition AND q.seq = c.seq
        RETURNING q.seq
     ), told AS (
        UPDATE tidings.dead_letter d
           SET resolved_at = now(), resolution = 'redriven', resolved_by = {by}, resolved_why = {why}, redriven = d.redriven + 1
          FROM moved WHERE d.seq = moved.seq
        RETURNING d.seq, d.event_id
     )
     SELECT seq, event_id FROM told ORDER BY seq"
}
