//! The end of a stream, in a temporary table: read in chunks that are bounded by count and bytes, so it may be larger than
//! memory.

use std::ops::RangeInclusive;

use diesel::sql_types::{Array, BigInt, Binary, Text};
use diesel_async::{AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use futures_util::{StreamExt, TryStreamExt, stream};
use serde_json::{Value, json};

use super::super::reconcile::{CHUNK, CHUNK_BYTES, READS};
use super::Error;
use crate::broker::{Error as BrokerError, Message, Publisher};
use crate::envelope::Envelope;
use crate::event::Kind;
use crate::postgres::statement;

/// Reads these sequences into `pg_temp.tidings_tail`.
pub(super) async fn stage(
    connection: &mut AsyncPgConnection,
    publisher: &dyn Publisher,
    source: &str,
    sequences: RangeInclusive<u64>,
) -> Result<(), Error> {
    connection.batch_execute(TAIL).await?;
    let tail = stream::iter(sequences)
        .map(|seq| async move { Ok::<_, BrokerError>(publisher.read(seq).await?.map(|message| (seq, message))) });
    let mut tail = std::pin::pin!(tail.buffered(READS).try_filter_map(async |found| Ok(found)));
    loop {
        let (mut rows, mut datas, mut bytes) = (Vec::new(), Vec::new(), 0);
        while rows.len() < CHUNK
            && bytes < CHUNK_BYTES
            && let Some((seq, message)) = tail.try_next().await?
        {
            let (row, data) = row(source, seq, &message);
            bytes += message.payload.len();
            rows.push(row);
            datas.push(data);
        }
        if rows.is_empty() {
            break;
        }
        let rows = Value::from(rows).to_string();
        let _: usize = RunQueryDsl::execute(Stage { rows, datas }, connection).await?;
    }
    Ok(connection.batch_execute(INDICES).await?)
}

/// A message, or what is wrong with it.
fn row(source: &str, seq: u64, message: &Message) -> (Value, Vec<u8>) {
    match envelope(source, message) {
        Ok(envelope) => (attributes(seq, &envelope), envelope.data.to_vec()),
        Err(unread) => (json!({ "stream_seq": seq, "unread": unread }), Vec::new()),
    }
}

fn envelope(source: &str, message: &Message) -> Result<Envelope, String> {
    let envelope = Envelope::read(&message.headers, message.payload.clone())
        .map_err(|malformed| format!("it is no CloudEvent of ours: {malformed}"))?;
    if envelope.source != source {
        return Err("its source is another one".into());
    }
    let is_shaped = envelope.aggregate.is_some() == envelope.version.is_some()
        && match envelope.kind {
            Kind::Event => envelope.recipient.is_none(),
            Kind::Command => envelope.recipient.is_some() && envelope.aggregate.is_none(),
        };
    if !is_shaped || (envelope.tombstone && envelope.version.is_none()) {
        return Err("its aggregate, version and recipient are not those of an event or a command".into());
    }
    if i32::try_from(envelope.schema_version).is_err() {
        return Err("its schema version is too large".into());
    }
    if envelope.content_type.as_ref().is_some_and(|content_type| content_type.contains('\0')) {
        return Err("its content type is not text".into());
    }
    match envelope.refusal() {
        Some(refusal) => Err(format!("it could not have been published from here: {refusal}")),
        None => Ok(envelope),
    }
}

/// The names of the columns; absent ones are null.
fn attributes(seq: u64, envelope: &Envelope) -> Value {
    json!({
        "stream_seq": seq,
        "id": envelope.id,
        "tombstone": envelope.tombstone,
        "type": envelope.r#type,
        "schema_version": envelope.schema_version,
        "kind": envelope.kind.as_str(),
        "recipient": envelope.recipient,
        "aggregate_type": envelope.aggregate.as_ref().map(|aggregate| &aggregate.r#type),
        "aggregate_id": envelope.aggregate.as_ref().map(|aggregate| &aggregate.id),
        "version": envelope.version.map(|version| version.0),
        "previous": envelope.previous.map(|version| version.0),
        "content_type": envelope.content_type,
        "headers": (!envelope.headers.is_empty() && !envelope.tombstone).then_some(&envelope.headers),
        "correlation_id": envelope.correlation_id,
        "causation_id": envelope.causation_id,
        "traceparent": envelope.traceparent,
        "tracestate": envelope.tracestate,
        "occurred_at": envelope.occurred_at,
        "recorded_at": envelope.recorded_at,
    })
}

/// `verdict` is `known`, `adopt` or `copy` (an event of which another message is adopted); null if it is in the way, and then
/// `why` says so.
const TAIL: &str = "CREATE TEMP TABLE tidings_tail (
    stream_seq bigint PRIMARY KEY, unread text, id text COLLATE \"C\", tombstone boolean, type text COLLATE \"C\",
    schema_version integer, kind text, recipient text, aggregate_type text COLLATE \"C\", aggregate_id text COLLATE \"C\",
    version bigint, previous bigint, content_type text, headers jsonb, correlation_id text, causation_id text,
    traceparent text, tracestate text, occurred_at timestamptz, recorded_at timestamptz, data bytea,
    verdict text, why text, seq bigint
)";

const INDICES: &str =
    "CREATE INDEX ON tidings_tail (id); CREATE INDEX ON tidings_tail (aggregate_type, aggregate_id, version);
    ANALYZE tidings_tail";

statement! {
    struct Stage { rows: Text = String, datas: Array<Binary> = Vec<Vec<u8>> } -> BigInt;
    "INSERT INTO pg_temp.tidings_tail (stream_seq, unread, id, tombstone, type, schema_version, kind, recipient, aggregate_type,
            aggregate_id, version, previous, content_type, headers, correlation_id, causation_id, traceparent, tracestate,
            occurred_at, recorded_at, data)
     SELECT r.stream_seq, r.unread, r.id, r.tombstone, r.type, r.schema_version, r.kind, r.recipient, r.aggregate_type,
            r.aggregate_id, r.version, r.previous, r.content_type, r.headers, r.correlation_id, r.causation_id, r.traceparent,
            r.tracestate, r.occurred_at, r.recorded_at, r.data
       FROM ROWS FROM (
            jsonb_to_recordset({rows}::jsonb) AS (
                stream_seq bigint, unread text, id text, tombstone boolean, type text, schema_version integer, kind text,
                recipient text, aggregate_type text, aggregate_id text, version bigint, previous bigint, content_type text,
                headers jsonb, correlation_id text, causation_id text, traceparent text, tracestate text,
                occurred_at timestamptz, recorded_at timestamptz),
            unnest({datas})
       ) AS r(stream_seq, unread, id, tombstone, type, schema_version, kind, recipient, aggregate_type, aggregate_id, version,
              previous, content_type, headers, correlation_id, causation_id, traceparent, tracestate, occurred_at, recorded_at,
              data)"
}
