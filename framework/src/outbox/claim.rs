//! Step 2: what of a partition may be published now.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use diesel::sql_types::{Array, BigInt, Binary, Bool, Integer, Nullable, Text, Timestamptz, Uuid};
use diesel_async::{AsyncPgConnection, RunQueryDsl};

use super::lease::Tenancy;
use crate::envelope::Envelope;
use crate::event::{Aggregate, Kind, Version};
use crate::postgres::statement;
use crate::protocol::lanes::{Blocked, Row};
use crate::protocol::lease::Partition;
use crate::protocol::outcome::Refusal;

/// A pending row with its event.
#[derive(Debug, Clone)]
pub(super) struct Claimed {
    pub(super) row: Row,
    pub(super) id_hash: i64,
    pub(super) attempts: i32,
    /// As the bounds of the window count it.
    pub(super) bytes: i64,
    pub(super) envelope: Envelope,
    /// What was stored cannot be sent as it is; decided here, so that one such row never stops those around it.
    pub(super) unreadable: Option<Refusal>,
}

/// Boxed: it goes from one collection to the next, and is no small thing.
pub(super) type ClaimedRow = Box<Claimed>;

/// What to read.
#[derive(Debug, Clone)]
pub(super) struct Window {
    pub(super) partition: Partition,
    /// Rows above this `seq`, in their order, without the lanes in `held`.
    pub(super) above: i64,
    pub(super) rows: i64,
    pub(super) held: Vec<i64>,
    /// And of each of these lanes what follows after a `seq`, whatever its state, `slice` rows at most.
    pub(super) lanes: Vec<(i64, i64)>,
    pub(super) slice: i64,
    pub(super) bytes: i64,
    /// A row above this is not read: it could never be sent, and its size is for nobody's memory.
    pub(super) row_bytes: i64,
    /// A retry further away than this was written before the clock was set back: it is due.
    pub(super) ceiling_ms: i64,
}

/// Reads a window, in the order of the outbox. Rows that stand in it twice come twice.
pub(super) async fn claim(
    connection: &mut AsyncPgConnection,
    source: &str,
    window: Window,
) -> diesel::QueryResult<Vec<ClaimedRow>> {
    let (lanes, aboves) = window.lanes.into_iter().unzip();
    let statement = Claim {
        partition: window.partition.0,
        above: window.above,
        rows: window.rows,
        held: window.held,
        lanes,
        aboves,
        slice: window.slice,
        bytes: window.bytes,
        row_bytes: window.row_bytes,
        ceiling_ms: window.ceiling_ms,
    };
    let rows: Vec<Raw> = RunQueryDsl::load(statement, connection).await?;
    Ok(rows.into_iter().map(|row| Box::new(claimed(source, row))).collect())
}

/// The lowest row of each lane above a `seq`: the narrow row only.
pub(super) async fn lowest(
    connection: &mut AsyncPgConnection,
    partition: Partition,
    lanes: Vec<(i64, i64)>,
    ceiling_ms: i64,
) -> diesel::QueryResult<Vec<Row>> {
    let (lanes, aboves) = lanes.into_iter().unzip();
    let statement = Lowest { partition: partition.0, lanes, aboves, ceiling_ms };
    let rows: Vec<(i64, i64, i64)> = RunQueryDsl::load(statement, connection).await?;
    let row = |(seq, lane, waits)| Row {
        seq,
        lane,
        version: None,
        previous: None,
        blocked: blocked(waits),
        next_in_lane: true,
    };
    Ok(rows.into_iter().map(row).collect())
}

/// Moves what is due from `delayed` to `ready`, and says in which lanes something was changed or has come due.
pub(super) async fn due(
    connection: &mut AsyncPgConnection,
    tenancy: &Tenancy,
    limit: i64,
    ceiling_ms: i64,
) -> diesel::QueryResult<Vec<(i64, i64)>> {
    let statement =
        Due { partition: tenancy.partition.0, node: tenancy.node, epoch: tenancy.epoch.0, rows: limit, ceiling_ms };
    RunQueryDsl::load(statement, connection).await
}

/// Rows that could go between two places, without the lanes in `held`: `(seq, lane)`.
pub(super) async fn sweep(
    connection: &mut AsyncPgConnection,
    partition: Partition,
    above: i64,
    up_to: i64,
    held: Vec<i64>,
    rows: i64,
) -> diesel::QueryResult<Vec<(i64, i64)>> {
    RunQueryDsl::load(Sweep { partition: partition.0, above, up_to, held, rows }, connection).await
}

/// The highest place of a partition above a place, if there is any.
pub(super) async fn top(
    connection: &mut AsyncPgConnection,
    partition: Partition,
    above: i64,
) -> diesel::QueryResult<Option<i64>> {
    RunQueryDsl::get_result(Top { partition: partition.0, above }, connection).await
}

fn blocked(waits: i64) -> Blocked {
    match u64::try_from(waits) {
        Ok(0) => Blocked::No,
        Ok(ms) => Blocked::For(Duration::from_millis(ms)),
        Err(_) => Blocked::Dead,
    }
}

type Raw = (
    (i64, i64, i64, i32, i64, i64, bool, bool),
    (String, String, i32, String, Option<String>),
    (Option<String>, Option<String>, Option<i64>, Option<i64>),
    (String, Vec<u8>, Option<String>, bool),
    (Option<String>, Option<String>, Option<String>, Option<String>),
    (Option<DateTime<Utc>>, DateTime<Utc>),
);

fn claimed(source: &str, row: Raw) -> Claimed {
    let (
        (seq, lane, id_hash, attempts, bytes, waits, next_in_lane, tombstone),
        (id, r#type, schema_version, kind, recipient),
        (aggregate_type, aggregate_id, version, previous),
        (content_type, data, headers, too_large),
        (correlation_id, causation_id, traceparent, tracestate),
        (occurred_at, created_at),
    ) = row;
    let aggregate = aggregate_type.zip(aggregate_id).map(|(r#type, id)| Aggregate { r#type, id });
    let (headers, unreadable) = match strings(headers) {
        _ if tombstone => (BTreeMap::new(), None),
        _ if too_large => (BTreeMap::new(), Some(Refusal::TooLarge)),
        Some(headers) => (headers, None),
        None => (BTreeMap::new(), Some(Refusal::Header)),
    };
    let envelope = Envelope {
        source: source.to_owned(),
        id,
        r#type,
        schema_version: u32::try_from(schema_version).unwrap_or(1),
        kind: Kind::parse(&kind).unwrap_or(Kind::Event),
        recipient,
        aggregate,
        version: version.map(Version),
        previous: previous.map(Version),
        content_type: Some(content_type),
        headers,
        correlation_id,
        causation_id,
        traceparent,
        tracestate,
        occurred_at,
        recorded_at: Some(created_at),
        data: Bytes::from(data),
        tombstone: false,
    };
    let envelope = if tombstone { envelope.into_tombstone() } else { envelope };
    let row = Row { seq, lane, version, previous, blocked: blocked(waits), next_in_lane };
    Claimed { row, id_hash, attempts, bytes, envelope, unreadable }
}

/// The table takes any JSON, numbers beyond any float too; headers are an object of strings. `None` for what is neither
/// that nor nothing.
fn strings(headers: Option<String>) -> Option<BTreeMap<String, String>> {
    let Some(headers) = headers else { return Some(BTreeMap::new()) };
    let headers: Option<BTreeMap<String, serde_json::Value>> = serde_json::from_str(&headers).ok()?;
    let text = |value: serde_json::Value| match value {
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    };
    Some(headers.into_iter().flatten().map(|(name, value)| (name.to_ascii_lowercase(), text(value))).collect())
}

statement! {
    /// From the cursor on, so that what was confirmed before, and what is held there, is not walked over again; a lane that
    /// is held in memory is left out, and a row that is not `ready` is no reason to read its event. `NOT IN` of an array is
    /// hashed, of a subquery only while the planner thinks that it is small.
    ///
    /// The narrow rows first, with both bounds; each is joined with its payload by one index look-up (`OFFSET 0` keeps the
    /// planner, whose statistics of a queue are always wrong, from any other plan). At least one row comes, however large it
    /// is. A time that CloudEvents has no word for (`infinity`) is left out, and headers come as text: a value that the
    /// driver cannot read would fail the claim of all.
    struct Claim {
        partition: Integer = i32,
        above: BigInt = i64,
        rows: BigInt = i64,
        held: Array<BigInt> = Vec<i64>,
        lanes: Array<BigInt> = Vec<i64>,
        aboves: Array<BigInt> = Vec<i64>,
        slice: BigInt = i64,
        bytes: BigInt = i64,
        row_bytes: BigInt = i64,
        ceiling_ms: BigInt = i64,
    } -> (
        (BigInt, BigInt, BigInt, Integer, BigInt, BigInt, Bool, Bool),
        (Text, Text, Integer, Text, Nullable<Text>),
        (Nullable<Text>, Nullable<Text>, Nullable<BigInt>, Nullable<BigInt>),
        (Text, Binary, Nullable<Text>, Bool),
        (Nullable<Text>, Nullable<Text>, Nullable<Text>, Nullable<Text>),
        (Nullable<Timestamptz>, Timestamptz),
    );
    "SELECT s.seq, s.lane, s.id_hash, s.attempts, least(s.bytes, {row_bytes})::bigint,
            CASE WHEN s.state = 'dead' THEN -1
                 WHEN s.state = 'delayed' THEN greatest(1, ceil(extract(epoch FROM s.next_attempt_at - now()) * 1000))::bigint
                 WHEN s.state = 'retrying' AND s.next_attempt_at > now()
                      AND s.next_attempt_at <= now() + {ceiling_ms} * interval '1 millisecond'
                 THEN ceil(extract(epoch FROM s.next_attempt_at - now()) * 1000)::bigint ELSE 0 END,
            s.next_in_lane, s.state = 'tombstone',
            s.id, s.type, s.schema_version, s.kind, s.recipient,
            s.aggregate_type, s.aggregate_id, s.version, s.previous,
            s.content_type, CASE WHEN s.bytes > {row_bytes} OR s.state NOT IN ('ready', 'retrying') THEN ''::bytea ELSE s.data END,
            CASE WHEN s.bytes <= {row_bytes} THEN s.headers::text END, s.bytes > {row_bytes},
            s.correlation_id, s.causation_id, s.traceparent, s.tracestate,
            CASE WHEN s.occurred_at BETWEEN '0001-01-01 00:00Z' AND '9999-12-31 00:00Z' THEN s.occurred_at END,
            CASE WHEN s.created_at BETWEEN '0001-01-01 00:00Z' AND '9999-12-31 00:00Z' THEN s.created_at ELSE now() END
       FROM (SELECT q.*, sum(least(q.bytes, {row_bytes})::integer) OVER (ORDER BY q.seq, q.next_in_lane DESC ROWS UNBOUNDED PRECEDING)
                         - least(q.bytes, {row_bytes}) AS before
               FROM (SELECT p.lane, p.id_hash, p.attempts, p.state, p.next_attempt_at, p.next_in_lane, e.*,
                            octet_length(e.data) + coalesce(octet_length(e.headers::text), 0) AS bytes
                       FROM ((SELECT r.seq, r.lane, r.id_hash, r.attempts, r.state, r.next_attempt_at, false AS next_in_lane
                                FROM tidings.pending r
                               WHERE r.partition = {partition} AND r.seq > {above} AND r.state IN ('ready', 'tombstone')
                                 AND r.lane NOT IN (SELECT unnest({held}))
                               ORDER BY r.seq LIMIT {rows})
                             UNION ALL
                             SELECT n.*, true
                               FROM unnest({lanes}, {aboves}) AS u(lane, above)
                              CROSS JOIN LATERAL (
                                    SELECT r.seq, r.lane, r.id_hash, r.attempts, r.state, r.next_attempt_at
                                      FROM tidings.pending r
                                     WHERE r.partition = {partition} AND r.lane = u.lane AND r.seq > u.above
                                     ORDER BY r.seq LIMIT {slice}) n) p
                      CROSS JOIN LATERAL (SELECT * FROM tidings.event e WHERE e.seq = p.seq OFFSET 0) e) q) s
      WHERE s.before < {bytes}
      ORDER BY s.seq, s.next_in_lane DESC"
}

statement! {
    struct Lowest {
        partition: Integer = i32,
        lanes: Array<BigInt> = Vec<i64>,
        aboves: Array<BigInt> = Vec<i64>,
        ceiling_ms: BigInt = i64,
    } -> (BigInt, BigInt, BigInt);
    "SELECT n.seq, u.lane,
            CASE WHEN n.state = 'dead' THEN -1
                 WHEN n.state = 'delayed' THEN greatest(1, ceil(extract(epoch FROM n.next_attempt_at - now()) * 1000))::bigint
                 WHEN n.state = 'retrying' AND n.next_attempt_at > now()
                      AND n.next_attempt_at <= now() + {ceiling_ms} * interval '1 millisecond'
                 THEN ceil(extract(epoch FROM n.next_attempt_at - now()) * 1000)::bigint ELSE 0 END
       FROM unnest({lanes}, {aboves}) AS u(lane, above)
      CROSS JOIN LATERAL (SELECT r.seq, r.state, r.next_attempt_at FROM tidings.pending r
                           WHERE r.partition = {partition} AND r.lane = u.lane AND r.seq > u.above
                           ORDER BY r.seq LIMIT 1) n"
}

statement! {
    /// A delayed row goes only after it was moved, so that a cancel under its lock is either in time or too late.
    struct Due {
        partition: Integer = i32,
        node: Uuid = uuid::Uuid,
        epoch: BigInt = i64,
        rows: BigInt = i64,
        ceiling_ms: BigInt = i64,
    } -> (BigInt, BigInt);
    "WITH ours AS (
        SELECT p.id FROM tidings.partition p
         WHERE p.id = {partition} AND p.owner = {node} AND p.epoch = {epoch} FOR SHARE
     ), over AS (
        SELECT q.partition, q.seq FROM tidings.pending q, ours
         WHERE q.partition = ours.id AND q.state = 'delayed' AND q.next_attempt_at <= now()
         ORDER BY q.next_attempt_at LIMIT {rows} FOR UPDATE OF q SKIP LOCKED
     ), moved AS (
        UPDATE tidings.pending q SET state = 'ready', next_attempt_at = NULL FROM over WHERE q.partition = over.partition AND q.seq = over.seq
        RETURNING q.seq, q.lane
     )
     SELECT seq, lane FROM moved
      UNION ALL
     (SELECT q.seq, q.lane FROM tidings.pending q
       WHERE q.partition = {partition} AND q.next_attempt_at <= now() AND q.state <> 'delayed'
       ORDER BY q.next_attempt_at LIMIT {rows})
      UNION ALL
     (SELECT q.seq, q.lane FROM tidings.pending q
       WHERE q.partition = {partition} AND q.state <> 'delayed'
         AND q.next_attempt_at > now() + {ceiling_ms} * interval '1 millisecond'
       ORDER BY q.next_attempt_at LIMIT {rows})"
}

statement! {
    struct Sweep {
        partition: Integer = i32,
        above: BigInt = i64,
        up_to: BigInt = i64,
        held: Array<BigInt> = Vec<i64>,
        rows: BigInt = i64,
    } -> (BigInt, BigInt);
    "SELECT r.seq, r.lane FROM tidings.pending r
      WHERE r.partition = {partition} AND r.seq > {above} AND r.seq <= {up_to} AND r.state IN ('ready', 'tombstone')
        AND r.lane NOT IN (SELECT unnest({held}))
      ORDER BY r.seq LIMIT {rows}"
}

statement! {
    /// Above a place only: the end of the index is where confirmed rows are still lying about.
    struct Top { partition: Integer = i32, above: BigInt = i64 } -> Nullable<BigInt>;
    "SELECT max(r.seq) FROM tidings.pending r WHERE r.partition = {partition} AND r.seq > {above}"
}
