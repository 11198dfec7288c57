//! An event on the wire: CloudEvents 1.0.2 in binary mode, in NATS headers.
//!
//! Attributes travel as `ce-…` headers, percent-encoded as the HTTP binding of CloudEvents does it (section 3.1.3.2);
//! `content-type` is the attribute `datacontenttype`; the data is the payload, byte for byte. Extensions carry the
//! aggregate, the version and the version before, causation and correlation; `traceparent` and `tracestate` are those of
//! W3C Trace Context. A plain consumer in any language can read it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use chrono::{DateTime, SecondsFormat, Utc};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use crate::event::{Aggregate, Kind, Version, check_header, check_plain, check_value, is_traceparent};
use crate::protocol::outcome::Refusal;
use crate::protocol::token::{self, Unfit};

/// An event as a consumer gets it: everything but the decoded value.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct Envelope {
    /// Whose event it is: one database is one source.
    pub source: String,
    /// With the source, its identity; the same on every resend.
    pub id: String,
    /// For example `exports.completed`.
    pub r#type: String,
    /// The version of the shape of the data; 1 where a foreign producer says nothing.
    pub schema_version: u32,
    /// A fact or a request.
    pub kind: Kind,
    /// The consumer a command is for.
    pub recipient: Option<String>,
    /// What it belongs to, if it is ordered.
    pub aggregate: Option<Aggregate>,
    /// The number within the aggregate.
    pub version: Option<Version>,
    /// The version before; `None` for the first.
    pub previous: Option<Version>,
    /// The media type of the data.
    pub content_type: Option<String>,
    /// The producer's own headers, names in lower case.
    pub headers: BTreeMap<String, String>,
    /// Groups events that belong to one piece of work.
    pub correlation_id: Option<String>,
    /// The id of the event that caused this one.
    pub causation_id: Option<String>,
    /// W3C Trace Context.
    pub traceparent: Option<String>,
    /// W3C Trace Context.
    pub tracestate: Option<String>,
    /// When it happened.
    pub occurred_at: Option<DateTime<Utc>>,
    /// When it was appended.
    pub recorded_at: Option<DateTime<Utc>>,
    /// The data, byte for byte.
    pub data: Bytes,
    /// It stands for a version that was discarded or cancelled, so that ordered consumers can go on. Its type is
    /// [`TOMBSTONE`], and there is no data in it.
    pub tombstone: bool,
}

/// Why a message is not an event that can be told apart from others.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A required attribute of CloudEvents is missing.
    #[error("the CloudEvents attribute `{0}` is missing (header `ce-{0}`)")]
    Missing(&'static str),
    /// Another version of CloudEvents.
    #[error("the CloudEvents `specversion` is not 1.0")]
    SpecVersion,
    /// An attribute that cannot be read.
    #[error("the CloudEvents attribute `{0}` {1}")]
    Attribute(&'static str, BadAttribute),
}

/// What is wrong with an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadAttribute {
    /// Not a name that can be stored.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// Not a number of the right size.
    #[error("is not a positive number")]
    NotANumber,
    /// Not RFC 3339.
    #[error("is not a time (RFC 3339)")]
    NotATime,
    /// Not `event` or `command`.
    #[error("is neither `event` nor `command`")]
    NotAKind,
    /// Percent-encoding of something that is not UTF-8, or a control character.
    #[error("is not text")]
    NotText,
}

impl Envelope {
    /// The headers of the message, in a fixed order.
    pub fn to_headers(&self) -> Vec<(Cow<'static, str>, String)> {
        let mut headers = Vec::with_capacity(20);
        let mut attribute = |name: &'static str, value: &str| headers.push((Cow::Borrowed(name), encode(value)));
        attribute("ce-specversion", "1.0");
        attribute("ce-id", &self.id);
        attribute("ce-source", &self.source);
        attribute("ce-type", &self.r#type);
        attribute("ce-kind", self.kind.as_str());
        attribute("ce-schemaversion", &self.schema_version.to_string());
        let aggregate = self.aggregate.as_ref();
        let (version, previous) = (self.version.map(|v| v.to_string()), self.previous.map(|v| v.to_string()));
        let (occurred_at, recorded_at) = (self.occurred_at.map(rfc3339), self.recorded_at.map(rfc3339));
        let optional = [
            ("ce-recipient", self.recipient.as_deref()),
            ("ce-aggregatetype", aggregate.map(|a| a.r#type.as_str())),
            ("ce-aggregateid", aggregate.map(|a| a.id.as_str())),
            ("ce-partitionkey", aggregate.map(|a| a.id.as_str())),
            ("ce-aggregateversion", version.as_deref()),
            ("ce-previousversion", previous.as_deref()),
            ("ce-correlationid", self.correlation_id.as_deref()),
            ("ce-causationid", self.causation_id.as_deref()),
            ("ce-time", occurred_at.as_deref()),
            ("ce-recordedtime", recorded_at.as_deref()),
            ("ce-tombstone", self.tombstone.then_some("true")),
        ];
        for (name, value) in optional {
            if let Some(value) = value {
                attribute(name, value);
            }
        }
        let plain = [
            ("content-type", &self.content_type),
            ("traceparent", &self.traceparent),
            ("tracestate", &self.tracestate),
        ];
        for (name, value) in plain {
            if let Some(value) = value {
                headers.push((Cow::Borrowed(name), value.clone()));
            }
        }
        headers.extend(self.headers.iter().map(|(name, value)| (Cow::Owned(name.clone()), value.clone())));
        headers
    }

    /// Reads an event from the headers and the payload of a message. Names are matched without regard to case.
    ///
    /// # Errors
    /// [`Malformed`] names the attribute.
    pub fn read(headers: &[(Cow<'static, str>, String)], data: Bytes) -> Result<Envelope, Malformed> {
        let lower: BTreeMap<String, &str> =
            headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.as_str())).collect();
        let tombstone = lower.get("ce-tombstone").is_some_and(|mark| *mark == "true");
        // What was discarded because of its name is named by its tombstone all the same; NUL is in no database.
        let fit: fn(&str) -> bool =
            if tombstone { |text| !text.contains('\0') } else { |text| !text.chars().any(char::is_control) };
        let attribute = |name: &'static str| -> Result<Option<String>, Malformed> {
            lower
                .get(&format!("ce-{name}"))
                .map(|value| {
                    decode(value).filter(|text| fit(text)).ok_or(Malformed::Attribute(name, BadAttribute::NotText))
                })
                .transpose()
        };
        let required = |name: &'static str| attribute(name)?.ok_or(Malformed::Missing(name));
        if required("specversion")? != "1.0" {
            return Err(Malformed::SpecVersion);
        }
        let name = |attribute: &'static str, value: String| {
            let checked = if tombstone { check_storable(&value) } else { token::check_name(&value) };
            checked.map_err(|unfit| Malformed::Attribute(attribute, unfit.into()))?;
            Ok::<_, Malformed>(value)
        };
        let number = |attribute_name: &'static str| -> Result<Option<i64>, Malformed> {
            let bad = Malformed::Attribute(attribute_name, BadAttribute::NotANumber);
            let value = attribute(attribute_name)?.map(|value| value.parse::<i64>().ok().filter(|n| *n > 0).ok_or(bad));
            value.transpose()
        };
        let time = |attribute_name: &'static str| -> Result<Option<DateTime<Utc>>, Malformed> {
            let bad = Malformed::Attribute(attribute_name, BadAttribute::NotATime);
            let read = |value: String| DateTime::parse_from_rfc3339(&value).map(|time| time.to_utc()).map_err(|_| bad);
            attribute(attribute_name)?.map(read).transpose()
        };
        let aggregate = match (attribute("aggregatetype")?, attribute("aggregateid")?) {
            (Some(r#type), Some(id)) => {
                Some(Aggregate { r#type: name("aggregatetype", r#type)?, id: name("aggregateid", id)? })
            }
            (Some(_), None) => return Err(Malformed::Missing("aggregateid")),
            (None, Some(_)) => return Err(Malformed::Missing("aggregatetype")),
            (None, None) => None,
        };
        let kind = match attribute("kind")? {
            Some(word) => Kind::parse(&word).ok_or(Malformed::Attribute("kind", BadAttribute::NotAKind))?,
            None => Kind::Event,
        };
        let schema_version = match number("schemaversion")? {
            Some(version) => {
                u32::try_from(version).map_err(|_| Malformed::Attribute("schemaversion", BadAttribute::NotANumber))?
            }
            None => 1,
        };
        let traceparent = lower.get("traceparent").filter(|value| is_traceparent(value)).map(|value| value.to_string());
        Ok(Envelope {
            source: name("source", required("source")?)?,
            id: name("id", required("id")?)?,
            r#type: name("type", required("type")?)?,
            schema_version,
            kind,
            recipient: attribute("recipient")?,
            aggregate,
            version: number("aggregateversion")?.map(Version),
            previous: number("previousversion")?.map(Version),
            content_type: lower.get("content-type").map(|value| value.to_string()),
            correlation_id: attribute("correlationid")?.filter(|id| check_value("correlationid", id, true).is_ok()),
            causation_id: attribute("causationid")?,
            tracestate: traceparent
                .as_ref()
                .and_then(|_| lower.get("tracestate"))
                .filter(|value| check_plain("tracestate", value, true).is_ok())
                .map(|value| value.to_string()),
            traceparent,
            occurred_at: time("time")?,
            recorded_at: time("recordedtime")?,
            headers: own_headers(&lower),
            data,
            tombstone,
        })
    }

    /// What stands in the place of a discarded or cancelled version: the same id, version and version before, and nothing of
    /// what the producer said. Whatever was wrong with the event, this can be published.
    pub(crate) fn into_tombstone(self) -> Envelope {
        Envelope {
            r#type: TOMBSTONE.into(),
            schema_version: 1,
            content_type: None,
            headers: BTreeMap::new(),
            correlation_id: None,
            causation_id: None,
            traceparent: None,
            tracestate: None,
            data: Bytes::new(),
            tombstone: true,
            ..self
        }
    }

    /// Whether it can be published at all; SQL producers append without the checks of [`NewEvent`](crate::NewEvent).
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        if self.tombstone {
            return None;
        }
        let tokens = [Some(&self.r#type), self.recipient.as_ref(), self.aggregate.as_ref().map(|a| &a.r#type)];
        let names = [Some(&self.id), self.aggregate.as_ref().map(|a| &a.id)];
        let fit = tokens.into_iter().flatten().all(|token| token::check_token(token).is_ok())
            && names.into_iter().flatten().all(|name| token::check_name(name).is_ok());
        if !fit {
            return Some(Refusal::Subject);
        }
        // What nobody could read back.
        let causes = [self.correlation_id.as_ref(), self.causation_id.as_ref()];
        if causes.into_iter().flatten().any(|id| id.chars().any(char::is_control)) {
            return Some(Refusal::Header);
        }
        let headers = self.headers.iter().all(|(name, value)| check_header(name, value).is_ok());
        (!headers).then_some(Refusal::Header)
    }

    /// `source#id`: the identity that the broker's window for duplicates compares. A tombstone has one of its own, or the
    /// broker would take it for a repeat of the event; a `%` with no number behind it stands in no event's.
    pub fn message_id(&self) -> String {
        let id = encode(&format!("{}#{}", self.source, self.id));
        if self.tombstone { format!("{id}%tombstone") } else { id }
    }
}

/// The identity only: never the data, never a header's value.
impl std::fmt::Debug for Envelope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Envelope")
            .field("source", &self.source)
            .field("id", &self.id)
            .field("type", &self.r#type)
            .field("schema_version", &self.schema_version)
            .field("aggregate", &self.aggregate)
            .field("version", &self.version)
            .field("tombstone", &self.tombstone)
            .field("data_bytes", &self.data.len())
            .finish_non_exhaustive()
    }
}

/// An event handed to a handler: the decoded value, and the envelope it came in.
///
/// It derefs to the value.
#[derive(Debug, Clone)]
pub struct Received<E> {
    /// The decoded value.
    pub event: E,
    /// Everything else.
    pub envelope: Envelope,
}

impl<E> std::ops::Deref for Received<E> {
    type Target = E;

    fn deref(&self) -> &E {
        &self.event
    }
}

fn own_headers(lower: &BTreeMap<String, &str>) -> BTreeMap<String, String> {
    const NOT_THEIRS: &[&str] = &["content-type", "traceparent", "tracestate"];
    let own = |name: &str| !name.starts_with("ce-") && !name.starts_with("nats-") && !NOT_THEIRS.contains(&name);
    lower.iter().filter(|(name, _)| own(name)).map(|(name, value)| (name.clone(), value.to_string())).collect()
}

fn rfc3339(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Micros, true)
}

fn encode(value: &str) -> String {
    Cow::from(utf8_percent_encode(value, ENCODED)).into_owned()
}

/// Not empty, and not longer than the tables carry.
fn check_storable(name: &str) -> Result<(), Unfit> {
    match name.len() {
        0 => Err(Unfit::Empty),
        1..=token::MAX_NAME_BYTES => Ok(()),
        _ => Err(Unfit::NameTooLong),
    }
}

fn decode(value: &str) -> Option<String> {
    percent_decode_str(value).decode_utf8().ok().map(|text| text.into_owned())
}

/// The CloudEvents `type` of a tombstone, and the token in the place of the event type in its subject: no event type is
/// escaped into one that begins with `_`.
pub const TOMBSTONE: &str = "_tombstone";

/// CloudEvents HTTP binding 1.0.2, section 3.1.3.2: space, double quote, percent, and all outside printable ASCII.
const ENCODED: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn envelope(id: &str, aggregate_id: &str, data: Vec<u8>) -> Envelope {
        Envelope {
            source: "academy.exports".into(),
            id: id.into(),
            r#type: "exports.completed".into(),
            schema_version: 2,
            kind: Kind::Event,
            recipient: None,
            aggregate: Some(Aggregate { r#type: "job".into(), id: aggregate_id.into() }),
            version: Some(Version(7)),
            previous: Some(Version(6)),
            content_type: Some("application/json".into()),
            headers: BTreeMap::from([("tenant".into(), "a b%c".into())]),
            correlation_id: Some("with \"quotes\" and ünicode".into()),
            causation_id: None,
            traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
            tracestate: Some("vendor=1".into()),
            occurred_at: DateTime::from_timestamp(1_700_000_000, 123_456_000),
            recorded_at: DateTime::from_timestamp(1_700_000_001, 0),
            data: data.into(),
            tombstone: false,
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(id in "[^\\s*>\\pC]{1,40}", aggregate in "[^\\s*>\\pC]{1,40}", data: Vec<u8>) {
            let sent = envelope(&id, &aggregate, data);
            let headers = sent.to_headers();
            prop_assert!(headers.iter().all(|(n, v)| n.is_ascii() && !v.contains(['\r', '\n'])));
            prop_assert_eq!(Envelope::read(&headers, sent.data.clone()), Ok(sent));
        }
    }

    proptest! {
        #[test]
        fn a_tombstone_is_read_back_whatever_was_wrong_with_the_event(id in "[^\0]{1,40}", aggregate in "[^\0]{1,40}") {
            let event = envelope(&id, &aggregate, b"secret".to_vec());
            let event_id = event.message_id();
            let sent = Envelope { traceparent: Some("a\nb".into()), content_type: Some("a\r\nb".into()), ..event }.into_tombstone();
            prop_assert_eq!(sent.refusal(), None);
            prop_assert_ne!(sent.message_id(), event_id);
            let headers = sent.to_headers();
            prop_assert!(headers.iter().all(|(n, v)| n.starts_with("ce-") && !v.contains(['\r', '\n'])));
            prop_assert!(headers.contains(&("ce-tombstone".into(), "true".into())));
            prop_assert_eq!(Envelope::read(&headers, sent.data.clone()), Ok(sent));
        }

        /// Not even one that tries.
        #[test]
        fn no_event_has_the_message_id_of_a_tombstone(id in "[^\\pC]{1,40}", other in "[^\\pC]{0,20}(%tombstone)?") {
            let tombstone = envelope(&id, "a", vec![]).into_tombstone();
            for event in [envelope(&other, "a", vec![]), envelope(&format!("{id}%tombstone"), "a", vec![])] {
                prop_assert_ne!(event.message_id(), tombstone.message_id());
            }
        }
    }

    #[test]
    fn a_missing_attribute_is_named() {
        let mut headers = envelope("e", "a", vec![]).to_headers();
        headers.retain(|(name, _)| name != "ce-source");
        assert_eq!(Envelope::read(&headers, Bytes::new()), Err(Malformed::Missing("source")));
    }

    #[test]
    fn a_nul_in_an_id_never_reaches_the_database() {
        let mut headers = envelope("e", "a", vec![]).to_headers();
        headers.iter_mut().filter(|(name, _)| name == "ce-id").for_each(|(_, value)| *value = "a%00b".into());
        assert!(matches!(Envelope::read(&headers, Bytes::new()), Err(Malformed::Attribute("id", _))));
    }

    #[test]
    fn a_malformed_trace_context_is_dropped_and_the_event_is_not() {
        let mut headers = envelope("e", "a", vec![]).to_headers();
        headers.iter_mut().filter(|(name, _)| name == "traceparent").for_each(|(_, value)| *value = "garbage".into());
        assert_eq!(Envelope::read(&headers, Bytes::new()).map(|e| (e.traceparent, e.tracestate)), Ok((None, None)));
    }

    #[test]
    fn a_context_that_could_not_be_appended_again_is_dropped_and_the_event_is_not() {
        let too_long = "x".repeat(4_097);
        let read = |name: &str, value: &str| {
            let mut headers = envelope("e", "a", vec![]).to_headers();
            headers.iter_mut().filter(|(n, _)| n == name).for_each(|(_, v)| *v = value.into());
            Envelope::read(&headers, Bytes::new()).unwrap()
        };
        for value in ["", too_long.as_str()] {
            assert_eq!(read("ce-correlationid", value).correlation_id, None, "{value:?}");
        }
        for value in ["", " a=b", "a\tb", too_long.as_str()] {
            let read = read("tracestate", value);
            assert_eq!((read.traceparent.is_some(), read.tracestate), (true, None), "{value:?}");
        }
    }
}
