//! The headers of a message that is published, and of one that is read.

use std::borrow::Cow;

use async_nats::jetstream::message::StreamMessage;
use async_nats::{HeaderMap, HeaderName, HeaderValue};

use crate::broker::Message;

/// `None` if a name or a value cannot be sent, or would tell the server what to do.
pub(super) fn header_map(message_id: &str, headers: Vec<(Cow<'static, str>, String)>) -> Option<HeaderMap> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        if name.get(..RESERVED.len()).is_some_and(|start| start.eq_ignore_ascii_case(RESERVED)) {
            return None;
        }
        match name {
            // Without a copy; each of these stands there once.
            Cow::Borrowed(name) if is_name(name) => map.insert(HeaderName::from_static(name), sendable(value)?),
            Cow::Borrowed(_) => return None,
            Cow::Owned(name) => map.append(name.parse::<HeaderName>().ok()?, sendable(value)?),
        }
    }
    map.insert(MESSAGE_ID, sendable(message_id.to_owned())?);
    Some(map)
}

pub(super) fn batch_headers(headers: &mut HeaderMap, id: &str, number: usize, last: bool) {
    headers.insert("Nats-Batch-Id", id);
    headers.insert("Nats-Batch-Sequence", number.to_string());
    if last {
        headers.insert("Nats-Batch-Commit", "1");
    }
}

/// What the client asks of a name that it parses.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':')
}

/// Without a copy; the client itself looks only at what it parses.
fn sendable(value: String) -> Option<HeaderValue> {
    (!value.contains(['\r', '\n'])).then(|| HeaderValue::from(value))
}

/// What makes a message this event and no other, as it stands in the headers.
#[derive(PartialEq, Eq)]
pub(super) struct Identity {
    message_id: Option<String>,
    source: Option<String>,
    id: Option<String>,
}

impl Identity {
    pub(super) fn of(message: &Message) -> Identity {
        let header = |wanted: &str| message.headers.iter().find(|(name, _)| name == wanted).map(|(_, v)| v.clone());
        Identity { message_id: Some(message.message_id.clone()), source: header("ce-source"), id: header("ce-id") }
    }

    pub(super) fn there(headers: &HeaderMap) -> Identity {
        let header = |name: &str| headers.get(name).map(|value| value.as_str().to_owned());
        Identity { message_id: header(MESSAGE_ID), source: header("ce-source"), id: header("ce-id") }
    }
}

/// A message as it stands in the stream. The map has no order of its own; it should look the same each time.
pub(super) fn message_of(there: StreamMessage) -> Message {
    let headers = there.headers.iter();
    let mut headers: Vec<(Cow<'static, str>, String)> = headers
        .flat_map(|(name, values)| values.iter().map(|value| (Cow::Owned(name.to_string()), value.as_str().to_owned())))
        .collect();
    headers.sort();
    let id = there.headers.get(MESSAGE_ID).map(|id| id.as_str().to_owned());
    Message::new(there.subject.to_string(), id.unwrap_or_default(), headers, there.payload)
}

pub(super) const EXPECTED: &str = "Nats-Expected-Last-Sequence";
const MESSAGE_ID: &str = "Nats-Msg-Id";
const RESERVED: &str = "nats-";
