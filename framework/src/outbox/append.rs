//! Step 1: write the event and its pending row in the caller's transaction.

use std::collections::BTreeMap;

use diesel::result::Error as DieselError;
use diesel::sql_types::{Array, BigInt, Binary, Integer, Jsonb, Nullable, Record, Text, Timestamptz};

use crate::event::{Invalid, Limits, NewEvent, Version};
use crate::postgres::statement;

/// What an append did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Appended {
    /// The place in the outbox. Within an aggregate it follows the version.
    pub seq: i64,
    /// The number within the aggregate; `None` for commands and unordered events.
    pub version: Option<Version>,
    /// The version before; `None` for the first of an aggregate.
    pub previous: Option<Version>,
    /// Whether the event is new.
    pub outcome: Outcome,
}

/// Whether an appended event is new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It is new.
    Appended,
    /// The same id with the same content was there before: nothing changed, no version was used.
    AlreadyAppended,
}

/// Why an append failed. Whatever came from the server has ended the transaction: roll it back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The event could never be published. Found before anything was sent; the transaction is still good.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The id belongs to an event with another type, recipient, aggregate or data.
    #[error("{0}: an id names one event for ever; use a new id, or append the same content again")]
    IdConflict(String),
    /// The explicit version is not above the aggregate's head.
    #[error(
        "{0}: another writer was faster, or the version is wrong; read the aggregate again, or leave the version out"
    )]
    VersionConflict(String),
    /// The connection is in no transaction, so event and change could not commit together.
    #[error(
        "the connection is in no transaction: use `tidings::transaction`, or call `Tx::join` inside `conn.transaction`"
    )]
    NotInTransaction,
    /// More events in one call than one statement should carry.
    #[error(
        "{0} events in one call, above the limit of {MAX_BATCH}: split them over several calls in the same transaction"
    )]
    TooMany(usize),
    /// The database failed; a serialization failure keeps its kind.
    #[error("the append failed: {0}")]
    Query(#[source] DieselError),
}

impl From<DieselError> for Error {
    /// The name of the constraint says which refusal of the SQL function it is, whatever the server's language.
    fn from(error: DieselError) -> Error {
        if let DieselError::DatabaseError(_, information) = &error {
            match information.constraint_name() {
                Some("tidings_id_conflict") => return Error::IdConflict(information.message().into()),
                Some("tidings_version_conflict") => return Error::VersionConflict(information.message().into()),
                _ => {}
            }
        }
        Error::Query(error)
    }
}

/// What the framework fills in where the event leaves it out: taken from the event being handled.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cause {
    pub(crate) correlation_id: Option<String>,
    pub(crate) causation_id: Option<String>,
    pub(crate) traceparent: Option<String>,
    pub(crate) tracestate: Option<String>,
}

/// Checks an event and fills in its cause.
pub(crate) fn prepare(mut event: NewEvent, cause: &Cause, limits: &Limits) -> Result<NewEvent, Invalid> {
    event.correlation_id = event.correlation_id.or_else(|| cause.correlation_id.clone());
    event.causation_id = event.causation_id.or_else(|| cause.causation_id.clone());
    if event.traceparent.is_none() {
        event.traceparent = cause.traceparent.clone();
        event.tracestate = cause.tracestate.clone();
    }
    event.check(limits)?;
    Ok(event)
}

fn json(headers: BTreeMap<String, String>) -> Option<serde_json::Value> {
    (!headers.is_empty())
        .then(|| headers.into_iter().map(|(name, value)| (name, serde_json::Value::from(value))).collect())
}

fn int(version: u32) -> i32 {
    i32::try_from(version).unwrap_or(i32::MAX)
}

/// The columns of `tidings.appended`.
pub(crate) type Row = (BigInt, Nullable<BigInt>, Nullable<BigInt>, Text);

statement! {
    /// The short way: one call, one row of locks. As a value, not as a table, of which PostgreSQL would make a copy first. Explicit versions take the batch way inside the function.
    pub(crate) struct AppendOne {
        r#type: Text = String,
        data: Binary = Vec<u8>,
        id: Text = String,
        aggregate_type: Nullable<Text> = Option<String>,
        aggregate_id: Nullable<Text> = Option<String>,
        version: Nullable<BigInt> = Option<i64>,
        schema_version: Integer = i32,
        recipient: Nullable<Text> = Option<String>,
        content_type: Text = String,
        headers: Nullable<Jsonb> = Option<serde_json::Value>,
        correlation_id: Nullable<Text> = Option<String>,
        causation_id: Nullable<Text> = Option<String>,
        traceparent: Nullable<Text> = Option<String>,
        tracestate: Nullable<Text> = Option<String>,
        occurred_at: Nullable<Timestamptz> = Option<chrono::DateTime<chrono::Utc>>,
        not_before: Nullable<Timestamptz> = Option<chrono::DateTime<chrono::Utc>>,
    } -> Record<Row>;
    "SELECT tidings.append_checked({r#type}, {data}, {id}, {aggregate_type}, {aggregate_id},
            {version}, {schema_version}, {recipient}, {content_type}, {headers}, {correlation_id}, {causation_id},
            {traceparent}, {tracestate}, {occurred_at}, {not_before})"
}

impl From<NewEvent> for AppendOne {
    fn from(event: NewEvent) -> AppendOne {
        let (aggregate_type, aggregate_id) = event.aggregate.map(|a| (a.r#type, a.id)).unzip();
        AppendOne {
            r#type: event.r#type,
            data: event.data,
            id: event.id,
            aggregate_type,
            aggregate_id,
            version: event.version.map(|v| v.0),
            schema_version: int(event.schema_version),
            recipient: event.recipient,
            content_type: event.content_type,
            headers: json(event.headers),
            correlation_id: event.correlation_id,
            causation_id: event.causation_id,
            traceparent: event.traceparent,
            tracestate: event.tracestate,
            occurred_at: event.occurred_at,
            not_before: event.not_before,
        }
    }
}

statement! {
    /// The batch way: all locks in one order, all rows in one insert. Rows come back in the order of the call.
    #[derive(Default)]
    pub(crate) struct AppendBatch {
        ids: Array<Text> = Vec<String>,
        types: Array<Text> = Vec<String>,
        datas: Array<Binary> = Vec<Vec<u8>>,
        aggregate_types: Array<Nullable<Text>> = Vec<Option<String>>,
        aggregate_ids: Array<Nullable<Text>> = Vec<Option<String>>,
        versions: Array<Nullable<BigInt>> = Vec<Option<i64>>,
        schema_versions: Array<Integer> = Vec<i32>,
        recipients: Array<Nullable<Text>> = Vec<Option<String>>,
        content_types: Array<Text> = Vec<String>,
        headers: Array<Nullable<Jsonb>> = Vec<Option<serde_json::Value>>,
        correlation_ids: Array<Nullable<Text>> = Vec<Option<String>>,
        causation_ids: Array<Nullable<Text>> = Vec<Option<String>>,
        traceparents: Array<Nullable<Text>> = Vec<Option<String>>,
        tracestates: Array<Nullable<Text>> = Vec<Option<String>>,
        occurred_ats: Array<Nullable<Timestamptz>> = Vec<Option<chrono::DateTime<chrono::Utc>>>,
        not_befores: Array<Nullable<Timestamptz>> = Vec<Option<chrono::DateTime<chrono::Utc>>>,
    } -> Row;
    "SELECT seq, version, previous, outcome FROM tidings.append_batch({ids}, {types}, {datas}, {aggregate_types},
            {aggregate_ids}, {versions}, {schema_versions}, {recipients}, {content_types}, {headers}, {correlation_ids},
            {causation_ids}, {traceparents}, {tracestates}, {occurred_ats}, {not_befores})"
}

impl AppendBatch {
    /// # Errors
    /// [`Error::TooMany`] above [`MAX_BATCH`].
    pub(crate) fn of(events: Vec<NewEvent>) -> Result<AppendBatch, Error> {
        if events.len() > MAX_BATCH {
            return Err(Error::TooMany(events.len()));
        }
        let mut batch = AppendBatch::default();
        for event in events {
            let one = AppendOne::from(event);
            batch.ids.push(one.id);
            batch.types.push(one.r#type);
            batch.datas.push(one.data);
            batch.aggregate_types.push(one.aggregate_type);
            batch.aggregate_ids.push(one.aggregate_id);
            batch.versions.push(one.version);
            batch.schema_versions.push(one.schema_version);
            batch.recipients.push(one.recipient);
            batch.content_types.push(one.content_type);
            batch.headers.push(one.headers);
            batch.correlation_ids.push(one.correlation_id);
            batch.causation_ids.push(one.causation_id);
            batch.traceparents.push(one.traceparent);
            batch.tracestates.push(one.tracestate);
            batch.occurred_ats.push(one.occurred_at);
            batch.not_befores.push(one.not_before);
        }
        Ok(batch)
    }
}

impl From<(i64, Option<i64>, Option<i64>, String)> for Appended {
    fn from((seq, version, previous, outcome): (i64, Option<i64>, Option<i64>, String)) -> Appended {
        Appended {
            seq,
            version: version.map(Version),
            previous: previous.map(Version),
            outcome: if outcome == "appended" { Outcome::Appended } else { Outcome::AlreadyAppended },
        }
    }
}

/// The most events one call takes.
pub const MAX_BATCH: usize = 10_000;
