//! Writes what is adopted, and numbers anew what stands behind it.

use diesel::sql_types::{BigInt, Bool, Integer, Text};
use diesel_async::{AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};

use super::{Error, Found, Renumbered, SHOWN};
use crate::event::Version;
use crate::postgres::statement;

/// Under the partition's row, and the locks of all heads and of what is pending. The events that are moved get places behind
/// those that are adopted, since within a lane the place must follow the version, whenever these events are published again.
pub(super) async fn write(
    connection: &mut AsyncPgConnection,
    found: &mut Found,
    incarnation: i64,
    epoch: i64,
    by: &str,
) -> Result<(), Error> {
    let partition = found.partition;
    connection.batch_execute(PLACES).await?;
    connection.batch_execute(SUPERSEDED).await?;
    connection.batch_execute(MOVED).await?;
    let _: usize = RunQueryDsl::execute(Events { partition }, connection).await?;
    let statement = EvidenceOf { partition, incarnation, epoch, by: by.to_owned() };
    let _: usize = RunQueryDsl::execute(statement, connection).await?;
    connection.batch_execute(MOVE).await?;
    let _: usize = RunQueryDsl::execute(Dies { epoch }, connection).await?;
    connection.batch_execute(HEADS).await?;
    let renumbered: i64 = RunQueryDsl::get_result(CountMoved {}, connection).await?;
    found.renumbered = u64::try_from(renumbered).unwrap_or(0);
    let rows = i64::try_from(SHOWN).unwrap_or(i64::MAX);
    let rows: Vec<(String, i64, i64, bool)> = RunQueryDsl::load(ListMoved { rows }, connection).await?;
    let renumbered = |(event_id, from, to, dead)| Renumbered { event_id, from: Version(from), to: Version(to), dead };
    found.first_renumbered = rows.into_iter().map(renumbered).collect();
    Ok(())
}

/// Places in the outbox, in the order of the stream; but of an aggregate in that of its versions, should the stream have them
/// otherwise.
const PLACES: &str = "UPDATE pg_temp.tidings_tail t SET seq = n.seq
   FROM (SELECT o.stream_seq, nextval('tidings.event_seq_seq') AS seq
           FROM (SELECT stream_seq,
                        CASE WHEN aggregate_type IS NULL THEN stream_seq
                             ELSE max(stream_seq) OVER (PARTITION BY aggregate_type, aggregate_id ORDER BY version) END AS behind, version
                   FROM pg_temp.tidings_tail WHERE verdict = 'adopt' ORDER BY behind, version OFFSET 0) o) n
  WHERE t.stream_seq = n.stream_seq";

/// Appended anew under its old id, and not published: the one in the stream takes its place.
const SUPERSEDED: &str = "WITH gone AS (
    DELETE FROM tidings.event e USING pg_temp.tidings_tail t WHERE t.verdict = 'adopt' AND e.id = t.id RETURNING e.partition, e.seq
 ), letters AS (
    DELETE FROM tidings.dead_letter d USING gone WHERE d.seq = gone.seq
 ), decisions AS (
    DELETE FROM tidings.discarded d USING gone WHERE d.seq = gone.seq
 )
 DELETE FROM tidings.pending q USING gone WHERE q.partition = gone.partition AND q.seq = gone.seq";

/// What is not published yet of the aggregates concerned, in its order, behind the last version that is. With `n` the number
/// of an event in its row, its version is the highest of its own, and of the version before it and one more: that is
/// `n + max(version - n)` over those up to it.
const MOVED: &str = "CREATE TEMP TABLE tidings_moved ON COMMIT DROP AS
 SELECT o.*, nextval('tidings.event_seq_seq') AS new_seq FROM (
    SELECT m.seq, m.partition, m.id, m.was, m.version, nullif(lag(m.version, 1, m.head) OVER w, 0) AS previous,
           m.version_given AND m.version = m.was AS version_given,
           m.version_given AND m.version <> m.was AND m.state <> 'tombstone' AS dies,
           m.aggregate_type, m.aggregate_id
      FROM (
        SELECT r.*, r.n + greatest(r.head, max(r.was - r.n) OVER (PARTITION BY r.aggregate_type, r.aggregate_id ORDER BY r.n)) AS version
          FROM (
            SELECT e.seq, e.partition, e.id, e.version AS was, e.version_given, e.aggregate_type, e.aggregate_id, q.state, a.head,
                   row_number() OVER (PARTITION BY e.aggregate_type, e.aggregate_id ORDER BY e.seq) AS n
              FROM (
                SELECT t.aggregate_type, t.aggregate_id, greatest(max(t.version), (
                       SELECT v.version FROM tidings.event v
                        WHERE v.aggregate_type = t.aggregate_type AND v.aggregate_id = t.aggregate_id
                          AND (NOT EXISTS (SELECT FROM tidings.pending q WHERE q.partition = v.partition AND q.seq = v.seq)
                               OR EXISTS (SELECT FROM tidings.confirmation c WHERE c.seq = v.seq))
                        ORDER BY v.version DESC LIMIT 1)) AS head
                  FROM pg_temp.tidings_tail t WHERE t.aggregate_type IS NOT NULL
                 GROUP BY t.aggregate_type, t.aggregate_id HAVING bool_or(t.verdict = 'adopt')) a
              JOIN tidings.event e ON e.aggregate_type = a.aggregate_type AND e.aggregate_id = a.aggregate_id
              JOIN tidings.pending q ON q.partition = e.partition AND q.seq = e.seq
             WHERE NOT EXISTS (SELECT FROM tidings.confirmation c WHERE c.seq = e.seq)
               AND NOT EXISTS (SELECT FROM pg_temp.tidings_tail t WHERE t.id = e.id)) r) m
    WINDOW w AS (PARTITION BY m.aggregate_type, m.aggregate_id ORDER BY m.n)
     ORDER BY m.seq OFFSET 0) o;
 -- Out of the way of the versions that come.
 UPDATE tidings.event e SET version = -e.version FROM pg_temp.tidings_moved m WHERE e.seq = m.seq";

statement! {
    /// By id, as append inserts those of one call.
    struct Events { partition: Integer = i32 } -> BigInt;
    "INSERT INTO tidings.event (seq, id, type, schema_version, kind, recipient, aggregate_type, aggregate_id, version, previous,
            partition, content_type, data, headers, correlation_id, causation_id, traceparent, tracestate, occurred_at, created_at)
     OVERRIDING SYSTEM VALUE
     SELECT t.seq, t.id, t.type, t.schema_version, t.kind, t.recipient, t.aggregate_type, t.aggregate_id, t.version, t.previous,
            {partition}, coalesce(t.content_type, 'application/octet-stream'), t.data, t.headers, t.correlation_id, t.causation_id,
            t.traceparent, t.tracestate, coalesce(t.occurred_at, t.recorded_at, now()), coalesce(t.recorded_at, t.occurred_at, now())
       FROM pg_temp.tidings_tail t WHERE t.verdict = 'adopt' ORDER BY t.id"
}

statement! {
    /// Of a tombstone, that its event was discarded, too.
    struct EvidenceOf { partition: Integer = i32, incarnation: BigInt = i64, epoch: BigInt = i64, by: Text = String } -> BigInt;
    "WITH decided AS (
        INSERT INTO tidings.discarded (seq, event_id, how, by, reason)
        SELECT t.seq, t.id, 'discarded', {by}, 'adopted: the stream holds its tombstone'
          FROM pg_temp.tidings_tail t WHERE t.verdict = 'adopt' AND t.tombstone
     )
     INSERT INTO tidings.confirmation (seq, partition, incarnation, stream_seq, epoch)
     SELECT t.seq, {partition}, {incarnation}, t.stream_seq, {epoch}
       FROM pg_temp.tidings_tail t WHERE t.verdict = 'adopt' ORDER BY t.stream_seq"
}

/// A number that is generated cannot be set by an update.
const MOVE: &str = "WITH gone AS (
    DELETE FROM tidings.event e USING pg_temp.tidings_moved m WHERE e.seq = m.seq RETURNING e.*
 )
 INSERT INTO tidings.event (seq, id, type, schema_version, kind, recipient, aggregate_type, aggregate_id, version, previous,
        partition, content_type, data, headers, correlation_id, causation_id, traceparent, tracestate, occurred_at, created_at,
        not_before, version_given)
 OVERRIDING SYSTEM VALUE
 SELECT m.new_seq, g.id, g.type, g.schema_version, g.kind, g.recipient, g.aggregate_type, g.aggregate_id, m.version, m.previous,
        g.partition, g.content_type, g.data, g.headers, g.correlation_id, g.causation_id, g.traceparent, g.tracestate,
        g.occurred_at, g.created_at, g.not_before, m.version_given
   FROM gone g JOIN pg_temp.tidings_moved m ON m.seq = g.seq;
 UPDATE tidings.pending q SET seq = m.new_seq FROM pg_temp.tidings_moved m WHERE q.partition = m.partition AND q.seq = m.seq;
 UPDATE tidings.dead_letter d SET seq = m.new_seq FROM pg_temp.tidings_moved m WHERE d.seq = m.seq;
 UPDATE tidings.discarded d SET seq = m.new_seq FROM pg_temp.tidings_moved m WHERE d.seq = m.seq";

statement! {
    /// Whoever chose a version may have said it elsewhere: it is for somebody to decide whether another one will do.
    struct Dies { epoch: BigInt = i64 } -> BigInt;
    "WITH died AS (
        UPDATE tidings.pending q
           SET state = 'dead', next_attempt_at = NULL,
               last_error = format('its version %s was given by its producer and is taken by an event that was adopted; it is published as version %s if it is redriven', m.was, m.version)
          FROM pg_temp.tidings_moved m WHERE m.dies AND q.partition = m.partition AND q.seq = m.new_seq
        RETURNING q.seq, q.partition, m.id, q.last_error, q.attempts
     )
     INSERT INTO tidings.dead_letter (seq, partition, event_id, reason, attempts, epoch)
     SELECT died.seq, died.partition, died.id, died.last_error, died.attempts, {epoch} FROM died
     ON CONFLICT (seq) DO UPDATE SET reason = excluded.reason, attempts = excluded.attempts, epoch = excluded.epoch,
            died_at = now(), resolved_at = NULL, resolution = NULL, resolved_by = NULL, resolved_why = NULL"
}

/// The last version that there is, also where it is lower now: a head above it would be the version before the next one, and
/// never come.
const HEADS: &str = "UPDATE tidings.aggregate a SET head_version = h.version
   FROM (SELECT t.aggregate_type, t.aggregate_id,
                (SELECT max(e.version) FROM tidings.event e
                  WHERE e.aggregate_type = t.aggregate_type AND e.aggregate_id = t.aggregate_id) AS version
           FROM (SELECT DISTINCT aggregate_type, aggregate_id FROM pg_temp.tidings_tail
                  WHERE verdict = 'adopt' AND aggregate_type IS NOT NULL) t) h
  WHERE a.type = h.aggregate_type AND a.id = h.aggregate_id";

statement! {
    struct CountMoved {} -> BigInt;
    "SELECT count(*) FROM pg_temp.tidings_moved WHERE was <> version"
}

statement! {
    struct ListMoved { rows: BigInt = i64 } -> (Text, BigInt, BigInt, Bool);
    "SELECT id, was, version, dies FROM pg_temp.tidings_moved WHERE was <> version ORDER BY new_seq LIMIT {rows}"
}
