//! Give up a dead event: it is never published, and a tombstone stands for its version.

use diesel::sql_types::{Array, BigInt, Integer, Nullable, Text};
use diesel_async::{AsyncPgConnection, RunQueryDsl};

use super::letters::{By, Done, Which, resolved, settle};
use super::wake;
use crate::postgres::statement;

/// Ends the duty to publish dead events, and records who decided it. An event with a version is replaced by a tombstone, now
/// and whenever it is published again; one without is gone from the outbox, and stays in `tidings.event`.
///
/// Only what is dead is discarded. Such an event is never under way: it died by the broker's definite answer to its last
/// try, and its lane is held. Should the broker have stored it all the same, which only an earlier try whose answer was lost
/// could do, the relay finds it when it reads the stream, before it publishes anything else, and says so: in
/// [`Done::stored_after_all`] if that was known before, else in the letter, as `stored after all` (invariant 8).
///
/// Of an event that is not dead any more nothing changes, so it may be repeated. In a transaction of yours it counts with the
/// commit.
///
/// # Errors
/// Those of the database.
pub async fn discard(connection: &mut AsyncPgConnection, which: &Which, by: &By) -> diesel::QueryResult<Done> {
    let stored_after_all = settle(connection, which).await?;
    let rows = which.rows();
    let Which { seqs, event_ids, event_type, aggregate_type, aggregate_id, partition, after, .. } = which.clone();
    let (by, why) = (by.name.clone(), by.why.clone());
    let statement =
        Discard { seqs, event_ids, event_type, aggregate_type, aggregate_id, partition, after, rows, by, why };
    let rows: Vec<(i64, String)> = RunQueryDsl::load(statement, connection).await?;
    wake::all();
    Ok(Done { events: rows.into_iter().map(resolved).collect(), stored_after_all })
}

statement! {
    /// Letters first, since they are few; the pending row decides, under its lock. The time makes the relay look at once.
    struct Discard {
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
        SELECT q.partition, q.seq, d.event_id, e.version
          FROM tidings.dead_letter d JOIN tidings.event e ON e.seq = d.seq
          JOIN tidings.pending q ON q.partition = d.partition AND q.seq = d.seq
         WHERE d.resolved_at IS NULL AND q.state = 'dead' AND d.seq > {after}
           AND ({seqs} IS NULL OR d.seq = ANY ({seqs})) AND ({event_ids} IS NULL OR d.event_id = ANY ({event_ids}))
           AND ({event_type} IS NULL OR e.type = {event_type})
           AND ({aggregate_type} IS NULL OR e.aggregate_type = {aggregate_type})
           AND ({aggregate_id} IS NULL OR e.aggregate_id = {aggregate_id})
           AND ({partition} IS NULL OR d.partition = {partition})
         ORDER BY d.seq LIMIT {rows} FOR UPDATE OF q
     ), replaced AS (
        UPDATE tidings.pending q SET state = 'tombstone', attempts = 0, last_error = NULL, next_attempt_at = now()
          FROM chosen c WHERE q.partition = c.partition AND q.seq = c.seq AND c.version IS NOT NULL
     ), ended AS (
        DELETE FROM tidings.pending q
         USING chosen c WHERE q.partition = c.partition AND q.seq = c.seq AND c.version IS NULL
     ), recorded AS (
        INSERT INTO tidings.discarded (seq, event_id, how, by, reason)
        SELECT c.seq, c.event_id, 'discarded', {by}, {why} FROM chosen c
        ON CONFLICT (seq) DO NOTHING
     ), told AS (
        UPDATE tidings.dead_letter d
           SET resolved_at = now(), resolution = 'discarded', resolved_by = {by}, resolved_why = {why}
          FROM chosen c WHERE d.seq = c.seq
        RETURNING d.seq, d.event_id
     )
     SELECT seq, event_id FROM told ORDER BY seq"
}
