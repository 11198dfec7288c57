//! What is said: the [`Event`] trait, what a derive fills in, and [`NewEvent`], one event about to be appended.

mod check;

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Serialize, de::DeserializeOwned};

pub use check::{Invalid, Limits, MAX_HEADER_BYTES, MAX_VALUE_BYTES, Problem};
pub(crate) use check::{check_header, check_plain, check_value, is_traceparent};

/// A type whose values can be appended to the outbox and handled by consumers.
///
/// Derive it: `#[derive(Event)]` for a fact that any consumer may hear, `#[derive(Command)]` for a request to exactly
/// one consumer. Values travel as JSON.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use tidings::Event;
///
/// #[derive(Event, Serialize, Deserialize)]
/// #[event(type = "exports.completed", version = 2, aggregate = "job", key = job_id)]
/// struct ExportCompleted {
///     job_id: String,
///     rows: i64,
/// }
///
/// assert_eq!(ExportCompleted::TYPE, "exports.completed");
/// assert_eq!(ExportCompleted { job_id: "job-42".into(), rows: 7 }.key().as_deref(), Some("job-42"));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither an event nor a command",
    label = "not an event",
    note = "add `#[derive(Event, Serialize, Deserialize)]` and `#[event(type = \"…\")]` to `{Self}`"
)]
pub trait Event: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The CloudEvents `type`, for example `exports.completed`.
    const TYPE: &'static str;
    /// The version of the shape of the data, from 1 upwards.
    const SCHEMA_VERSION: u32;
    /// The type of the aggregate whose events keep their order; `None` for commands and unordered events.
    const AGGREGATE: Option<&'static str>;
    /// The one consumer a command is for; `None` for events.
    const RECIPIENT: Option<&'static str>;

    /// The id of the aggregate; `None` exactly when [`AGGREGATE`](Self::AGGREGATE) is.
    fn key(&self) -> Option<String>;
}

/// A request to exactly one consumer. Derive it: `#[derive(Command)]`, `#[command(type = "…", to = "consumer")]`.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use tidings::{Command, Event};
///
/// #[derive(Command, Serialize, Deserialize)]
/// #[command(type = "exports.start", to = "export-worker")]
/// struct StartExport {
///     job_id: String,
/// }
///
/// assert_eq!(StartExport::TO, "export-worker");
/// assert_eq!(StartExport::RECIPIENT, Some("export-worker"));
/// ```
pub trait Command: Event {
    /// The name of the consumer that handles it.
    const TO: &'static str;
}

/// A fact that happened, or a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A fact that happened, for any consumer.
    Event,
    /// A request for exactly one consumer.
    Command,
}

impl Kind {
    /// The word in the table and on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Event => "event",
            Kind::Command => "command",
        }
    }

    /// The kind a word in the table or on the wire stands for.
    pub fn parse(word: &str) -> Option<Kind> {
        match word {
            "event" => Some(Kind::Event),
            "command" => Some(Kind::Command),
            _ => None,
        }
    }
}

/// The thing whose events keep their order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Aggregate {
    /// For example `job`.
    pub r#type: String,
    /// For example `job-42`.
    pub id: String,
}

/// The number of an event within its aggregate: from 1 upwards, strictly increasing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Version(pub i64);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// One event about to be appended: a typed value with its identity, or raw bytes.
///
/// ```
/// # use serde::{Deserialize, Serialize};
/// # use tidings::{Event, NewEvent};
/// # #[derive(Event, Serialize, Deserialize)]
/// # #[event(type = "exports.completed", aggregate = "job", key = job_id)]
/// # struct ExportCompleted { job_id: String }
/// let event = NewEvent::of(&ExportCompleted { job_id: "job-42".into() })?
///     .id("evt-90")
///     .header("tenant", "academy");
/// # Ok::<(), tidings::event::Invalid>(())
/// ```
#[derive(Clone, PartialEq)]
pub struct NewEvent {
    pub(crate) id: String,
    pub(crate) r#type: String,
    pub(crate) schema_version: u32,
    pub(crate) kind: Kind,
    pub(crate) recipient: Option<String>,
    pub(crate) aggregate: Option<Aggregate>,
    pub(crate) version: Option<Version>,
    pub(crate) content_type: String,
    pub(crate) data: Vec<u8>,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) correlation_id: Option<String>,
    pub(crate) causation_id: Option<String>,
    pub(crate) traceparent: Option<String>,
    pub(crate) tracestate: Option<String>,
    pub(crate) occurred_at: Option<DateTime<Utc>>,
    pub(crate) not_before: Option<DateTime<Utc>>,
}

impl NewEvent {
    /// The event of a typed value: its data as JSON, a fresh time-ordered UUID as its id.
    ///
    /// # Errors
    /// [`Invalid`] naming `data` if the value does not serialize.
    pub fn of<E: Event>(event: &E) -> Result<NewEvent, Invalid> {
        let data = serde_json::to_vec(event).map_err(|error| Invalid {
            field: "data".into(),
            problem: Problem::NotSerializable { at: error.classify() },
        })?;
        let mut new = NewEvent::raw(E::TYPE, data);
        new.schema_version = E::SCHEMA_VERSION;
        new.content_type = "application/json".into();
        if let Some(recipient) = E::RECIPIENT {
            new.kind = Kind::Command;
            new.recipient = Some(recipient.into());
        }
        if let (Some(aggregate), Some(key)) = (E::AGGREGATE, event.key()) {
            new = new.aggregate(aggregate, key);
        }
        Ok(new)
    }

    /// An unordered event of any bytes, with the content type `application/octet-stream`.
    pub fn raw(r#type: impl Into<String>, data: impl Into<Vec<u8>>) -> NewEvent {
        NewEvent {
            id: uuid::Uuid::now_v7().to_string(),
            r#type: r#type.into(),
            schema_version: 1,
            kind: Kind::Event,
            recipient: None,
            aggregate: None,
            version: None,
            content_type: "application/octet-stream".into(),
            data: data.into(),
            headers: BTreeMap::new(),
            correlation_id: None,
            causation_id: None,
            traceparent: None,
            tracestate: None,
            occurred_at: None,
            not_before: None,
        }
    }

    /// The event's id; with the source it is its identity, for ever. Appending the same id and content again does nothing.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = id.into();
        self
    }

    /// The version of the shape of the data. Default 1, or that of the typed value.
    pub fn schema_version(mut self, version: u32) -> Self {
        self.schema_version = version;
        self
    }

    /// Makes it a command to this consumer.
    pub fn to(mut self, recipient: impl Into<String>) -> Self {
        self.kind = Kind::Command;
        self.recipient = Some(recipient.into());
        self
    }

    /// The aggregate whose order it keeps.
    pub fn aggregate(mut self, r#type: impl Into<String>, id: impl Into<String>) -> Self {
        self.aggregate = Some(Aggregate { r#type: r#type.into(), id: id.into() });
        self
    }

    /// An explicit version, which must be above the aggregate's head. Default: the next one.
    pub fn version(mut self, version: i64) -> Self {
        self.version = Some(Version(version));
        self
    }

    /// The media type of the data.
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = content_type.into();
        self
    }

    /// A header of your own, carried to the consumers. Names are case-insensitive; `ce-…`, `nats-…`, `tidings-…` and a
    /// few others are reserved.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into().to_ascii_lowercase(), value.into());
        self
    }

    /// Groups events that belong to one piece of work. Default: that of the event being handled, else none.
    pub fn correlation_id(mut self, id: impl Into<String>) -> Self {
        self.correlation_id = Some(id.into());
        self
    }

    /// The id of the event that caused this one. Default: that of the event being handled, else none.
    pub fn causation_id(mut self, id: impl Into<String>) -> Self {
        self.causation_id = Some(id.into());
        self
    }

    /// The trace context (W3C Trace Context). Default: that of the event being handled, else none.
    pub fn trace(mut self, traceparent: impl Into<String>, tracestate: Option<String>) -> Self {
        self.traceparent = Some(traceparent.into());
        self.tracestate = tracestate;
        self
    }

    /// When it happened. Default: the database's time of the append.
    pub fn occurred_at(mut self, at: DateTime<Utc>) -> Self {
        self.occurred_at = Some(at);
        self
    }

    /// Not to be published before this time of the database's clock, and to be taken back until then with
    /// [`Tx::cancel`](crate::Tx::cancel). A time that has passed is no delay.
    ///
    /// An event of an aggregate holds its lane meanwhile: those appended after it wait behind it, since order comes first.
    /// Give it no aggregate where that is not what you want.
    pub fn not_before(mut self, time: DateTime<Utc>) -> Self {
        self.not_before = Some(time);
        self
    }

    /// The event's id.
    pub fn event_id(&self) -> &str {
        &self.id
    }
}

/// The identity and size only: never the data, never a header's value.
impl std::fmt::Debug for NewEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewEvent")
            .field("id", &self.id)
            .field("type", &self.r#type)
            .field("schema_version", &self.schema_version)
            .field("aggregate", &self.aggregate)
            .field("version", &self.version)
            .field("data_bytes", &self.data.len())
            .finish_non_exhaustive()
    }
}

/// What can be appended: a reference to an [`Event`], or a [`NewEvent`].
pub trait IntoNewEvent {
    /// The event to append.
    ///
    /// # Errors
    /// [`Invalid`] if the value does not serialize.
    fn into_new_event(self) -> Result<NewEvent, Invalid>;
}

impl<E: Event> IntoNewEvent for &E {
    fn into_new_event(self) -> Result<NewEvent, Invalid> {
        NewEvent::of(self)
    }
}

impl IntoNewEvent for NewEvent {
    fn into_new_event(self) -> Result<NewEvent, Invalid> {
        Ok(self)
    }
}
