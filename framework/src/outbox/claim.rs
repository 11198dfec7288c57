//! Step 2: what of a partition may be published now.

use std::collections::BTreeMap;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use diesel::sql_types::{Array, BigInt, Binary, Bool, Integer, Nullable, Text, Timestamptz};
use diesel_async::{AsyncPgConnection, RunQueryDsl};

use crate::envelope::Envelope;
use crate::event::{Aggregate, Kind, Version};
use crate::postgres::statement;
use crate::protocol::lease::Partition;
use crate::protocol::outcome::Refusal;

/// A pending row with its event.
#[derive(Debug, Clone)]
pub(super) struct Claimed {
    pub(super) seq: i64,
    pub(super) lane: i64,
    pub(super) id_hash: i64,
    pub(super) attempts: i32,
    pub(super) envelope: Envelope,
    /// What was stored cannot be sent as it is; decided here, so that one such row never stops those around it.
    pub(super) unreadable: Option<Refusal>,
}

/// The bounds of one claim.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    pub(super) rows: i64,
    pub(super) bytes: i64,
    /// A row above this is not read: it could never be sent, and its size is for nobody's memory.
    pub(super) row_bytes: i64,
    /// A retry further away than this was written before the clock was set back: it is due.
    pub(super) retry_ceiling_ms: i64,
}

/// The due rows of a partition in the order of the outbox, without the lanes in `held`. A lane is due only if its lowest
/// row is: whatever waits, is delayed or is dead holds all behind it.
pub(super) async fn claim(
    connection: &mut AsyncPgConnection,
    source: &str,
    partition: Partition,
    held: Vec<i64>,
    window: Window,
) -> diesel::QueryResult<Vec<Claimed>> {
    let statement = Claim {
        partition: partition.0,
        held,
        rows: window.rows,
        bytes: window.bytes,
        row_bytes: window.row_bytes,
        ceiling_ms: window.retry_ceiling_ms,
    };
    let rows: Vec<Row> = RunQueryDsl::load(statement, connection).await?;
    Ok(rows.into_iter().map(|row| claimed(source, row)).collect())
}

type Row = (
    (i64, i64, i64, i32),
    (String, String, i32, String, Option<String>),
    (Option<String>, Option<String>, Option<i64>, Option<i64>),
    (String, Vec<u8>, Option<String>, bool),
    (Option<String>, Option<String>, Option<String>, Option<String>),
    (Option<DateTime<Utc>>, DateTime<Utc>),
);

fn claimed(source: &str, row: Row) -> Claimed {
    let (
        (seq, lane, id_hash, attempts),
        (id, r#type, schema_version, kind, recipient),
        (aggregate_type, aggregate_id, version, previous),
        (content_type, data, headers, too_large),
        (correlation_id, causation_id, traceparent, tracestate),
        (occurred_at, created_at),
    ) = row;
    let aggregate = aggregate_type.zip(aggregate_id).map(|(r#type, id)| Aggregate { r#type, id });
    let (headers, unreadable) = match strings(headers) {
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
    };
    Claimed { seq, lane, id_hash, attempts, envelope, unreadable }
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
    /// A row waits only as the head of its lane, so a lane in which one waits is left out whole. `NOT IN` is hashed
    /// unless the planner thinks that they are too many for `work_mem`, and goes through them row by row then; of an array
    /// it thinks that they are few. An anti-join was not hashed when it thought that they were few.
    ///
    /// The narrow rows first, with both bounds; only what fits is joined with its payload. At least one row comes, however
    /// large it is. A time that CloudEvents has no word for (`infinity`) is left out, and headers come as text: a value
    /// that the driver cannot read would fail the claim of all.
    struct Claim {
        partition: Integer = i32,
        held: Array<BigInt> = Vec<i64>,
        rows: BigInt = i64,
        bytes: BigInt = i64,
        row_bytes: BigInt = i64,
        ceiling_ms: BigInt = i64,
    } -> (
        (BigInt, BigInt, BigInt, Integer),
        (Text, Text, Integer, Text, Nullable<Text>),
        (Nullable<Text>, Nullable<Text>, Nullable<BigInt>, Nullable<BigInt>),
        (Text, Binary, Nullable<Text>, Bool),
        (Nullable<Text>, Nullable<Text>, Nullable<Text>, Nullable<Text>),
        (Nullable<Timestamptz>, Timestamptz),
    );
    "WITH due AS MATERIALIZED (
        SELECT p.seq, p.lane, p.id_hash, p.attempts FROM tidings.pending p
         WHERE p.partition = {partition}
           AND p.lane NOT IN (SELECT unnest({held} || ARRAY(
                SELECT h.lane FROM tidings.pending h
                 WHERE h.partition = {partition} AND h.state <> 'ready'
                   AND (h.state IN ('dead', 'delayed')
                        OR (h.next_attempt_at > now() AND h.next_attempt_at <= now() + {ceiling_ms} * interval '1 millisecond')))))
         ORDER BY p.seq LIMIT {rows}
     ), weighed AS (
        SELECT d.*, octet_length(e.data) + coalesce(octet_length(e.headers::text), 0) AS bytes
          FROM due d JOIN tidings.event e ON e.seq = d.seq
     ), sized AS (
        SELECT w.*, w.bytes > {row_bytes} AS too_large,
               sum(least(w.bytes, {row_bytes})) OVER (ORDER BY w.seq) - least(w.bytes, {row_bytes}) AS before
          FROM weighed w
     )
     SELECT s.seq, s.lane, s.id_hash, s.attempts,
            e.id, e.type, e.schema_version, e.kind, e.recipient,
            e.aggregate_type, e.aggregate_id, e.version, e.previous,
            e.content_type, CASE WHEN s.too_large THEN ''::bytea ELSE e.data END,
            CASE WHEN NOT s.too_large THEN e.headers::text END, s.too_large,
            e.correlation_id, e.causation_id, e.traceparent, e.tracestate,
            CASE WHEN e.occurred_at BETWEEN '0001-01-01 00:00Z' AND '9999-12-31 00:00Z' THEN e.occurred_at END,
            CASE WHEN e.created_at BETWEEN '0001-01-01 00:00Z' AND '9999-12-31 00:00Z' THEN e.created_at ELSE now() END
       FROM sized s JOIN tidings.event e ON e.seq = s.seq
      WHERE s.before < {bytes}
      ORDER BY s.seq"
}
