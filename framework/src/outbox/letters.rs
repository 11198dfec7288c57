//! Which dead letters there are.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use diesel::result::OptionalExtension;
use diesel::sql_types::{Array, BigInt, Binary, Integer, Nullable, Text, Timestamptz};
use diesel_async::{AsyncPgConnection, RunQueryDsl};

use crate::event::{Aggregate, Version};
use crate::postgres::statement;

/// Which unresolved dead letters are meant, in the order of the outbox: all, narrowed by what is said of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Which {
    pub(super) seqs: Option<Vec<i64>>,
    pub(super) event_ids: Option<Vec<String>>,
    pub(super) event_type: Option<String>,
    pub(super) aggregate_type: Option<String>,
    pub(super) aggregate_id: Option<String>,
    pub(super) partition: Option<i32>,
    pub(super) after: i64,
    pub(super) limit: usize,
}

impl Which {
    /// All of them, [`DEFAULT_LIMIT`] at once.
    pub fn all() -> Which {
        Which {
            seqs: None,
            event_ids: None,
            event_type: None,
            aggregate_type: None,
            aggregate_id: None,
            partition: None,
            after: 0,
            limit: DEFAULT_LIMIT,
        }
    }

    /// The one with this place in the outbox; said several times, any of these.
    pub fn seq(mut self, seq: i64) -> Self {
        self.seqs.get_or_insert_default().push(seq);
        self
    }

    /// The one of this event; said several times, any of these.
    pub fn event_id(mut self, id: impl Into<String>) -> Self {
        self.event_ids.get_or_insert_default().push(id.into());
        self
    }

    /// Events of this type.
    pub fn event_type(mut self, r#type: impl Into<String>) -> Self {
        self.event_type = Some(r#type.into());
        self
    }

    /// Events of one aggregate.
    pub fn aggregate(mut self, r#type: impl Into<String>, id: impl Into<String>) -> Self {
        self.aggregate_type = Some(r#type.into());
        self.aggregate_id = Some(id.into());
        self
    }

    /// Events of all aggregates of a type.
    pub fn aggregate_type(mut self, r#type: impl Into<String>) -> Self {
        self.aggregate_type = Some(r#type.into());
        self
    }

    /// Events of one partition.
    pub fn partition(mut self, partition: u16) -> Self {
        self.partition = Some(partition.into());
        self
    }

    /// Those behind this place in the outbox: the next page.
    pub fn after(mut self, seq: i64) -> Self {
        self.after = seq;
        self
    }

    /// How many at once, [`MAX_LIMIT`] at the most. Default [`DEFAULT_LIMIT`].
    pub fn limit(mut self, letters: usize) -> Self {
        self.limit = letters.min(MAX_LIMIT);
        self
    }

    pub(super) fn rows(&self) -> i64 {
        i64::try_from(self.limit).unwrap_or(i64::MAX)
    }
}

/// Who resolves a dead letter, and why: it is recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct By {
    pub(super) name: String,
    pub(super) why: Option<String>,
}

impl By {
    /// A person or a program, in free text.
    pub fn name(name: impl Into<String>) -> By {
        By { name: name.into(), why: None }
    }

    /// The reason, in free text.
    pub fn why(mut self, why: impl Into<String>) -> By {
        self.why = Some(why.into());
        self
    }
}

/// What was done about dead letters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Done {
    /// The events that were resolved as asked, in the order of the outbox.
    pub events: Vec<Resolved>,
    /// Events that the broker turned out to have stored: there is nothing left to resolve.
    pub stored_after_all: Vec<Resolved>,
}

/// An event whose dead letter was resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// Its place in the outbox.
    pub seq: i64,
    /// Its id.
    pub event_id: String,
}

pub(super) fn resolved((seq, event_id): (i64, String)) -> Resolved {
    Resolved { seq, event_id }
}

/// A dead letter of the outbox: everything but the data.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Letter {
    /// The event's place in the outbox.
    pub seq: i64,
    /// Its id.
    pub event_id: String,
    /// Its type.
    pub event_type: String,
    /// The aggregate, which waits behind it.
    pub aggregate: Option<Aggregate>,
    /// Its version in the aggregate.
    pub version: Option<Version>,
    /// The partition.
    pub partition: i32,
    /// Why it can never be published.
    pub reason: String,
    /// How often it was tried since it was last ready.
    pub attempts: i32,
    /// How often it was tried anew by an operator.
    pub redriven: i32,
    /// When it died last.
    pub died_at: DateTime<Utc>,
    /// The event's state now, in a word of the glossary.
    pub state: String,
    /// What was done about it; `None` while nothing was.
    pub resolution: Option<Resolution>,
}

/// What was done about a dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resolution {
    /// `redriven`, `discarded`, `skipped` or `stored after all`.
    pub how: String,
    /// Who did it.
    pub by: Option<String>,
    /// Why.
    pub why: Option<String>,
    /// When.
    pub at: DateTime<Utc>,
}

/// What stands in a dead event, but for its data and the values of its headers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Content {
    /// The letter.
    pub letter: Letter,
    /// `event` or `command`.
    pub kind: String,
    /// The consumer a command is for.
    pub recipient: Option<String>,
    /// The version of the shape of the data.
    pub schema_version: i32,
    /// The media type of the data.
    pub content_type: String,
    /// The size of the data.
    pub data_bytes: i64,
    /// The names of the producer's own headers, and the length of each value; empty for what is no object.
    pub headers: BTreeMap<String, usize>,
    /// How many events wait behind it in its lane, counted up to 1,000.
    pub waiting: i64,
}

/// One event, by its place or by its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Named {
    /// Its place in the outbox.
    Seq(i64),
    /// Its id.
    Id(String),
}

impl Named {
    fn parts(&self) -> (Option<i64>, Option<String>) {
        match self {
            Named::Seq(seq) => (Some(*seq), None),
            Named::Id(id) => (None, Some(id.clone())),
        }
    }
}

/// The unresolved dead letters, in the order of the outbox. For the next page say [`Which::after`] the last `seq`.
///
/// # Errors
/// Those of the database.
pub async fn list(connection: &mut AsyncPgConnection, which: &Which) -> diesel::QueryResult<Vec<Letter>> {
    let rows = which.rows();
    let Which { seqs, event_ids, event_type, aggregate_type, aggregate_id, partition, after, .. } = which.clone();
    let statement = List { seqs, event_ids, event_type, aggregate_type, aggregate_id, partition, after, rows };
    let rows: Vec<Row> = RunQueryDsl::load(statement, connection).await?;
    Ok(rows.into_iter().map(letter).collect())
}

/// One dead letter, resolved or not; `None` if that event never died.
///
/// # Errors
/// Those of the database.
pub async fn show(connection: &mut AsyncPgConnection, named: &Named) -> diesel::QueryResult<Option<Content>> {
    let (seq, event_id) = named.parts();
    let found: Option<(Row, Rest)> = RunQueryDsl::get_result(Show { seq, event_id }, connection).await.optional()?;
    Ok(found.map(|(row, (kind, recipient, schema_version, content_type, data_bytes, headers, waiting))| {
        let headers: BTreeMap<String, usize> =
            headers.and_then(|headers| serde_json::from_str(&headers).ok()).unwrap_or_default();
        Content { letter: letter(row), kind, recipient, schema_version, content_type, data_bytes, headers, waiting }
    }))
}

/// The data of an event, byte for byte; `None` if there is no such event.
///
/// # Errors
/// Those of the database.
pub async fn data(connection: &mut AsyncPgConnection, named: &Named) -> diesel::QueryResult<Option<Vec<u8>>> {
    let (seq, event_id) = named.parts();
    RunQueryDsl::get_result(Data { seq, event_id }, connection).await.optional()
}

/// Those among the letters that a confirmation has overtaken, as after a reconciliation with the stream.
pub(super) async fn settle(connection: &mut AsyncPgConnection, which: &Which) -> diesel::QueryResult<Vec<Resolved>> {
    let rows = which.rows();
    let Which { seqs, event_ids, event_type, aggregate_type, aggregate_id, partition, after, .. } = which.clone();
    let statement = Settle { seqs, event_ids, event_type, aggregate_type, aggregate_id, partition, after, rows };
    let rows: Vec<(i64, String)> = RunQueryDsl::load(statement, connection).await?;
    Ok(rows.into_iter().map(resolved).collect())
}

type Row = (
    (i64, String, String, Option<String>, Option<String>, Option<i64>, i32),
    (String, i32, i32, DateTime<Utc>, String),
    (Option<String>, Option<String>, Option<String>, Option<DateTime<Utc>>),
);
type Rest = (String, Option<String>, i32, String, i64, Option<String>, i64);

type SqlRow = (
    (BigInt, Text, Text, Nullable<Text>, Nullable<Text>, Nullable<BigInt>, Integer),
    (Text, Integer, Integer, Timestamptz, Text),
    (Nullable<Text>, Nullable<Text>, Nullable<Text>, Nullable<Timestamptz>),
);

fn letter(row: Row) -> Letter {
    let (
        (seq, event_id, event_type, aggregate_type, aggregate_id, version, partition),
        (reason, attempts, redriven, died_at, state),
        (how, by, why, at),
    ) = row;
    Letter {
        seq,
        event_id,
        event_type,
        aggregate: aggregate_type.zip(aggregate_id).map(|(r#type, id)| Aggregate { r#type, id }),
        version: version.map(Version),
        partition,
        reason,
        attempts,
        redriven,
        died_at,
        state,
        resolution: at.map(|at| Resolution { how: how.unwrap_or_default(), by, why, at }),
    }
}

statement! {
    struct List {
        seqs: Nullable<Array<BigInt>> = Option<Vec<i64>>,
        event_ids: Nullable<Array<Text>> = Option<Vec<String>>,
        event_type: Nullable<Text> = Option<String>,
        aggregate_type: Nullable<Text> = Option<String>,
        aggregate_id: Nullable<Text> = Option<String>,
        partition: Nullable<Integer> = Option<i32>,
        after: BigInt = i64,
        rows: BigInt = i64,
    } -> SqlRow;
    "SELECT d.seq, d.event_id, s.type, s.aggregate_type, s.aggregate_id, s.version, d.partition,
            d.reason, d.attempts, d.redriven, d.died_at, s.state, d.resolution, d.resolved_by, d.resolved_why, d.resolved_at
       FROM tidings.dead_letter d JOIN tidings.event_state s ON s.seq = d.seq
      WHERE d.resolved_at IS NULL AND d.seq > {after}
        AND ({seqs} IS NULL OR d.seq = ANY ({seqs})) AND ({event_ids} IS NULL OR d.event_id = ANY ({event_ids}))
        AND ({event_type} IS NULL OR s.type = {event_type})
        AND ({aggregate_type} IS NULL OR s.aggregate_type = {aggregate_type})
        AND ({aggregate_id} IS NULL OR s.aggregate_id = {aggregate_id})
        AND ({partition} IS NULL OR d.partition = {partition})
      ORDER BY d.seq LIMIT {rows}"
}

statement! {
    /// The lengths of headers, not their values: those are the producer's.
    struct Show { seq: Nullable<BigInt> = Option<i64>, event_id: Nullable<Text> = Option<String> }
    -> (SqlRow, (Text, Nullable<Text>, Integer, Text, BigInt, Nullable<Text>, BigInt));
    "SELECT d.seq, d.event_id, s.type, s.aggregate_type, s.aggregate_id, s.version, d.partition,
            d.reason, d.attempts, d.redriven, d.died_at, s.state, d.resolution, d.resolved_by, d.resolved_why, d.resolved_at,
            e.kind, e.recipient, e.schema_version, e.content_type, octet_length(e.data)::bigint,
            CASE jsonb_typeof(e.headers) WHEN 'object' THEN
                (SELECT json_object_agg(h.key, octet_length(h.value)) FROM jsonb_each_text(e.headers) h)::text END,
            (SELECT count(*) FROM (SELECT FROM tidings.pending q
                                    WHERE q.partition = e.partition AND q.seq > e.seq
                                      AND q.lane = tidings.lane(e.aggregate_type, e.aggregate_id, e.id)
                                    LIMIT 1000) w)
       FROM tidings.dead_letter d JOIN tidings.event_state s ON s.seq = d.seq JOIN tidings.event e ON e.seq = d.seq
      WHERE ({seq} IS NULL OR d.seq = {seq}) AND ({event_id} IS NULL OR e.id = {event_id})"
}

statement! {
    struct Data { seq: Nullable<BigInt> = Option<i64>, event_id: Nullable<Text> = Option<String> } -> Binary;
    "SELECT e.data FROM tidings.event e
      WHERE ({seq} IS NULL OR e.seq = {seq}) AND ({event_id} IS NULL OR e.id = {event_id})"
}

statement! {
    struct Settle {
        seqs: Nullable<Array<BigInt>> = Option<Vec<i64>>,
        event_ids: Nullable<Array<Text>> = Option<Vec<String>>,
        event_type: Nullable<Text> = Option<String>,
        aggregate_type: Nullable<Text> = Option<String>,
        aggregate_id: Nullable<Text> = Option<String>,
        partition: Nullable<Integer> = Option<i32>,
        after: BigInt = i64,
        rows: BigInt = i64,
    } -> (BigInt, Text);
    "WITH chosen AS (
        SELECT d.seq FROM tidings.dead_letter d JOIN tidings.event e ON e.seq = d.seq
         WHERE d.resolved_at IS NULL AND d.seq > {after}
           AND ({seqs} IS NULL OR d.seq = ANY ({seqs})) AND ({event_ids} IS NULL OR d.event_id = ANY ({event_ids}))
           AND ({event_type} IS NULL OR e.type = {event_type})
           AND ({aggregate_type} IS NULL OR e.aggregate_type = {aggregate_type})
           AND ({aggregate_id} IS NULL OR e.aggregate_id = {aggregate_id})
           AND ({partition} IS NULL OR d.partition = {partition})
           AND NOT EXISTS (SELECT FROM tidings.pending q WHERE q.partition = d.partition AND q.seq = d.seq)
           AND EXISTS (SELECT FROM tidings.confirmation c WHERE c.seq = d.seq)
         ORDER BY d.seq LIMIT {rows}
     ), told AS (
        UPDATE tidings.dead_letter d SET resolved_at = now(), resolution = 'stored after all'
          FROM chosen WHERE d.seq = chosen.seq
        RETURNING d.seq, d.event_id
     )
     SELECT seq, event_id FROM told ORDER BY seq"
}

/// Letters listed or resolved at once, unless told otherwise.
pub const DEFAULT_LIMIT: usize = 1_000;
/// The most letters listed or resolved at once.
pub const MAX_LIMIT: usize = 10_000;
