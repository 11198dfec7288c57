//! What makes an event impossible to publish, found before it is committed: afterwards it is too late.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Kind, NewEvent, Version};
use crate::protocol::token::{self, Unfit};

impl NewEvent {
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
        let around = self.size() - self.data.len();
        if around > MAX_HEADER_BYTES {
            let problem = Problem::TooLarge { size: around, limit: MAX_HEADER_BYTES };
            return Err(Invalid { field: "headers".into(), problem });
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
pub(crate) fn check_plain(field: &str, value: &str, required: bool) -> Result<(), Invalid> {
    if value.trim() != value {
        return Err(Invalid { field: field.into(), problem: Problem::SpaceAround });
    }
    check_value(field, value, required)
}

pub(crate) fn check_value(field: &str, value: &str, required: bool) -> Result<(), Invalid> {
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

/// All headers of a message, attributes included, in bytes: a server takes 64 KiB.
pub const MAX_HEADER_BYTES: usize = 64 * 1024 - 1;

/// The longest header value, in bytes.
pub const MAX_VALUE_BYTES: usize = 4_096;

const RESERVED_PREFIXES: &[&str] = &["ce-", "nats-", "tidings-"];
const RESERVED_HEADERS: &[&str] = &["content-type", "traceparent", "tracestate", "status", "description"];
