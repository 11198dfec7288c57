//! What is said: the [`Event`] trait, what a derive fills in, and [`NewEvent`], one event about to be appended.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use chrono::{DateTime, Utc};
use serde::{Serialize, de::DeserializeOwned};

use crate::protocol::token::{self, Unfit};

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

    /// The event's id.
    pub fn event_id(&self) -> &str {
        &self.id
    }

    /// Checks everything that would make the event impossible to publish, before it is committed.
    ///
    /// # Errors
    /// [`Invalid`] names the first field that is wrong.
    pub fn check(&self, limits: &Limits) -> Result<(), Invalid> {
        named("id", token::check_name(&self.id))?;
        named("type", token::check_token(&self.r#type))?;
        if self.schema_version == 0 || i32::try_from(self.schema_version).is_err() {
            return Err(Invalid { field: "schema_version".into(), problem: Problem::NotPositive });
        }
        if let Some(recipient) = &self.recipient {
            named("recipient", token::check_token(recipient))?;
        }
        if let Some(aggregate) = &self.aggregate {
            if self.kind == Kind::Command {
                return Err(Invalid { field: "aggregate".into(), problem: Problem::CommandWithAggregate });
            }
            named("aggregate_type", token::check_token(&aggregate.r#type))?;
            named("aggregate_id", token::check_name(&aggregate.id))?;
        }
        match self.version {
            Some(_) if self.aggregate.is_none() => {
                return Err(Invalid { field: "version".into(), problem: Problem::VersionWithoutAggregate });
            }
            Some(Version(version)) if version < 1 => {
                return Err(Invalid { field: "version".into(), problem: Problem::NotPositive });
            }
            Some(_) | None => {}
        }
        check_plain("content_type", &self.content_type, true)?;
        for (field, value) in [("correlation_id", &self.correlation_id), ("causation_id", &self.causation_id)] {
            value.as_ref().map_or(Ok(()), |value| check_value(field, value, true))?;
        }
        for (field, value) in [("traceparent", &self.traceparent), ("tracestate", &self.tracestate)] {
            value.as_ref().map_or(Ok(()), |value| check_plain(field, value, true))?;
        }
        if let Some(traceparent) = &self.traceparent
            && !is_traceparent(traceparent)
        {
            return Err(Invalid { field: "traceparent".into(), problem: Problem::NotTraceparent });
        }
        for (name, value) in &self.headers {
            check_header(name, value)?;
        }
        let size = self.size();
        if size > limits.max_event_bytes {
            let problem = Problem::TooLarge { size, limit: limits.max_event_bytes };
            return Err(Invalid { field: "data".into(), problem });
        }
        Ok(())
    }

    /// The bytes it takes on the wire, at the most: data, headers and the attributes the framework adds.
    pub fn size(&self) -> usize {
        // Percent-encoding makes at most three bytes of one.
        let encoded = |text: &str| text.len() * 3;
        let optional = |text: &Option<String>| text.as_deref().map_or(0, encoded);
        self.data.len()
            + ATTRIBUTE_BYTES
            + encoded(&self.id) * 2
            + encoded(&self.r#type) * 2
            + optional(&self.recipient) * 2
            + self.aggregate.as_ref().map_or(0, |a| encoded(&a.r#type) * 2 + encoded(&a.id) * 3)
            + encoded(&self.content_type)
            + optional(&self.correlation_id)
            + optional(&self.causation_id)
            + optional(&self.traceparent)
            + optional(&self.tracestate)
            + self.headers.iter().map(|(name, value)| name.len() + value.len() + 4).sum::<usize>()
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

/// How large an event may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Data, headers and attributes together, in bytes. Default 1,000,000, below the 1 MiB that a NATS server allows
    /// unless told otherwise.
    pub max_event_bytes: usize,
}

impl Limits {
    /// The limits in force in this process: the default, or less once a relay here has learnt what its broker takes.
    pub fn in_force() -> Limits {
        Limits { max_event_bytes: MAX_EVENT_BYTES.load(Ordering::Relaxed) }
    }

    /// A broker of this process takes no more than `max_payload` bytes.
    pub(crate) fn lower_to(max_payload: usize) {
        MAX_EVENT_BYTES.fetch_min(max_payload, Ordering::Relaxed);
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits { max_event_bytes: DEFAULT_MAX_EVENT_BYTES }
    }
}

/// A field of an event that cannot be stored or published.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the event's {field} {problem}")]
pub struct Invalid {
    /// The field, by its name in [`NewEvent`]; a header as `header name`.
    pub field: String,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a field of an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// A name that cannot stand in a subject or a header.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// A header value with a line break or another control character in it.
    #[error("contains a line break or another control character, which a header cannot carry")]
    ControlInValue,
    /// A header value with white space around it, which does not survive the wire.
    #[error("starts or ends with white space, which a header loses on its way: trim it")]
    SpaceAround,
    /// A header value over the limit.
    #[error("is longer than {MAX_VALUE_BYTES} bytes")]
    ValueTooLong,
    /// A header name outside the characters HTTP and NATS share.
    #[error("is not a header name: use letters, digits and `-`, `_`, `.`")]
    NotAHeaderName,
    /// A header that the framework, NATS or CloudEvents gives its own meaning.
    #[error("is reserved: choose another name")]
    Reserved,
    /// More than what a broker message carries.
    #[error(
        "takes {size} bytes with headers, above the limit of {limit}: store the data elsewhere and append a reference to it"
    )]
    TooLarge {
        /// The size at the most.
        size: usize,
        /// The limit in force.
        limit: usize,
    },
    /// A number that has to be at least 1.
    #[error("must be between 1 and 2147483647")]
    NotPositive,
    /// Versions count within an aggregate.
    #[error("is given, but the event has no aggregate: versions count within one")]
    VersionWithoutAggregate,
    /// Commands are unordered.
    #[error("is given for a command: commands are unordered, only events keep an aggregate's order")]
    CommandWithAggregate,
    /// Not `version-traceid-parentid-flags` (W3C Trace Context, section 3.2).
    #[error("is not a W3C traceparent (00-<32 hex digits>-<16 hex digits>-<2 hex digits>)")]
    NotTraceparent,
    /// `serde_json` could not write it.
    #[error("does not serialize as JSON ({at:?}): map keys must be strings and custom `Serialize` code must not fail")]
    NotSerializable {
        /// The class of the failure.
        at: serde_json::error::Category,
    },
}

fn named(field: &str, checked: Result<(), Unfit>) -> Result<(), Invalid> {
    checked.map_err(|unfit| Invalid { field: field.into(), problem: unfit.into() })
}

/// A value that travels as it is; attributes of CloudEvents are percent-encoded.
fn check_plain(field: &str, value: &str, required: bool) -> Result<(), Invalid> {
    if value.trim() != value {
        return Err(Invalid { field: field.into(), problem: Problem::SpaceAround });
    }
    check_value(field, value, required)
}

fn check_value(field: &str, value: &str, required: bool) -> Result<(), Invalid> {
    let problem = if required && value.is_empty() {
        Problem::Unfit(Unfit::Empty)
    } else if value.chars().any(char::is_control) {
        Problem::ControlInValue
    } else if value.len() > MAX_VALUE_BYTES {
        Problem::ValueTooLong
    } else {
        return Ok(());
    };
    Err(Invalid { field: field.into(), problem })
}

pub(crate) fn check_header(name: &str, value: &str) -> Result<(), Invalid> {
    let field = || format!("header {}", name.escape_debug());
    named(&field(), token::check_name(name))?;
    if !name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.')) {
        return Err(Invalid { field: field(), problem: Problem::NotAHeaderName });
    }
    let lower = name.to_ascii_lowercase();
    if RESERVED_PREFIXES.iter().any(|p| lower.starts_with(p)) || RESERVED_HEADERS.contains(&lower.as_str()) {
        return Err(Invalid { field: field(), problem: Problem::Reserved });
    }
    check_plain(&field(), value, false)
}

/// `version-traceid-parentid-flags`, lower-case hexadecimal (W3C Trace Context, section 3.2.2).
pub(crate) fn is_traceparent(value: &str) -> bool {
    let parts: Vec<&str> = value.split('-').collect();
    let hex = |part: &str, len| part.len() == len && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let nonzero = |part: &str| part.bytes().any(|b| b != b'0');
    matches!(parts.as_slice(), [version, trace, parent, flags]
        if hex(version, 2) && *version != "ff" && hex(trace, 32) && nonzero(trace)
            && hex(parent, 16) && nonzero(parent) && hex(flags, 2))
}

const DEFAULT_MAX_EVENT_BYTES: usize = 1_000_000;

static MAX_EVENT_BYTES: AtomicUsize = AtomicUsize::new(DEFAULT_MAX_EVENT_BYTES);

/// What the attribute names, times and numbers of one message take, generously.
const ATTRIBUTE_BYTES: usize = 1_024;

/// The longest header value, in bytes.
pub const MAX_VALUE_BYTES: usize = 4_096;

const RESERVED_PREFIXES: &[&str] = &["ce-", "nats-", "tidings-"];
const RESERVED_HEADERS: &[&str] = &["content-type", "traceparent", "tracestate", "status", "description"];
