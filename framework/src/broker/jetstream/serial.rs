//! Publishing, and what the answers mean. The *serial* strategy: the relay keeps at most one message of a lane in flight.

use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::publish::PublishAck;
use async_nats::jetstream::stream::RawMessageErrorKind;
use async_nats::jetstream::{self, Context};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::connect::is_connected;
use super::provision::{Provisioned, incarnation};
use crate::broker::{Error, Message, Outage, Outcome, Position, Publisher, Refusal, Stored, Unclear};
use crate::protocol::outcome::of_error;

pub(super) struct Serial {
    context: Context,
    stream: Provisioned,
    ack_timeout: Duration,
}

impl Serial {
    pub(super) fn new(context: Context, stream: Provisioned, ack_timeout: Duration) -> Serial {
        Serial { context, stream, ack_timeout }
    }
}

impl Publisher for Serial {
    #[expect(
        clippy::async_yields_async,
        reason = "the outer future hands the message over, the inner one is the answer"
    )]
    fn send(&self, message: Message, expected: Option<u64>) -> BoxFuture<'_, BoxFuture<'static, Outcome>> {
        async move {
            // A disconnected client would queue the message, and send it long after we gave up on it.
            if !is_connected(&self.context) {
                return futures_util::future::ready(Outcome::Unavailable(Outage::Down)).boxed();
            }
            let Some(headers) = header_map(&message) else {
                return futures_util::future::ready(Outcome::Refused(Refusal::Header)).boxed();
            };
            let identity = Identity::of(&message);
            let id = message.message_id;
            let deadline = Instant::now() + self.ack_timeout;
            let mut publish = PublishMessage::build().payload(message.payload).headers(headers).message_id(&id);
            if let Some(expected) = expected {
                publish = publish.expected_last_sequence(expected);
            }
            // Handing over waits for a place in the client, which one that stands still may never give.
            let handing_over = self.context.send_publish(message.subject, publish);
            match tokio::time::timeout_at(deadline.into(), handing_over).await {
                Err(_) => futures_util::future::ready(Outcome::Unconfirmed(Unclear::TimedOut)).boxed(),
                Ok(Err(error)) => futures_util::future::ready(outcome_of(&error)).boxed(),
                Ok(Ok(acknowledgement)) => {
                    let (context, stream) = (self.context.clone(), self.stream.name.clone());
                    async move {
                        let answer = tokio::time::timeout_at(deadline.into(), acknowledgement.into_future()).await;
                        match answer {
                            Err(_) => Outcome::Unconfirmed(Unclear::TimedOut),
                            Ok(Err(error)) => outcome_of(&error),
                            Ok(Ok(ack)) => believe(&context, &stream, ack, &identity).await,
                        }
                    }
                    .boxed()
                }
            }
        }
        .boxed()
    }

    fn position(&self) -> BoxFuture<'_, Result<Position, Error>> {
        async {
            let unreachable = |error: String| Error::Unreachable(error);
            let asking = self.context.get_stream(&self.stream.name);
            let stream = tokio::time::timeout(self.ack_timeout, asking)
                .await
                .map_err(|_| unreachable("no answer in time".into()))?
                .map_err(|error| unreachable(error.to_string()))?;
            let info = stream.cached_info();
            Ok(Position {
                incarnation: incarnation(info),
                first_seq: info.state.first_sequence,
                last_seq: info.state.last_sequence,
            })
        }
        .boxed()
    }

    fn read(&self, stream_seq: u64) -> BoxFuture<'_, Result<Option<Message>, Error>> {
        async move {
            let unreachable = |error: String| Error::Unreachable(error);
            let stream = self.context.get_stream_no_info(&self.stream.name).await;
            let stream = stream.map_err(|error| unreachable(error.to_string()))?;
            match tokio::time::timeout(self.ack_timeout, stream.get_raw_message(stream_seq)).await {
                Err(_) => Err(unreachable("no answer in time".into())),
                Ok(Ok(there)) => {
                    let headers = there.headers.iter().flat_map(|(name, values)| {
                        values.iter().map(|value| (name.to_string(), value.as_str().to_owned()))
                    });
                    let headers: Vec<(String, String)> = headers.collect();
                    let id = headers.iter().find(|(name, _)| name == "Nats-Msg-Id").map(|(_, id)| id.clone());
                    Ok(Some(Message::new(there.subject.to_string(), id.unwrap_or_default(), headers, there.payload)))
                }
                Ok(Err(error)) => match error.kind() {
                    RawMessageErrorKind::NoMessageFound => Ok(None),
                    _ => Err(unreachable(error.to_string())),
                },
            }
        }
        .boxed()
    }

    fn probe(&self) -> BoxFuture<'_, bool> {
        async {
            let asking = self.context.get_stream(&self.stream.name);
            is_connected(&self.context) && tokio::time::timeout(self.ack_timeout, asking).await.is_ok_and(|a| a.is_ok())
        }
        .boxed()
    }

    fn incarnation(&self) -> i64 {
        self.stream.incarnation
    }

    fn max_message_bytes(&self) -> usize {
        self.stream.max_message_bytes
    }
}

/// What makes a message this event and no other, as it stands in the headers.
#[derive(PartialEq, Eq)]
struct Identity {
    message_id: Option<String>,
    source: Option<String>,
    id: Option<String>,
}

impl Identity {
    fn of(message: &Message) -> Identity {
        let header = |wanted: &str| message.headers.iter().find(|(name, _)| name == wanted).map(|(_, v)| v.clone());
        Identity { message_id: Some(message.message_id.clone()), source: header("ce-source"), id: header("ce-id") }
    }

    fn there(headers: &HeaderMap) -> Identity {
        let header = |name: &str| headers.get(name).map(|value| value.as_str().to_owned());
        Identity { message_id: header("Nats-Msg-Id"), source: header("ce-source"), id: header("ce-id") }
    }
}

/// A duplicate answer is believed only after the message at its sequence was read and bears this source and id: another
/// message with the same `Nats-Msg-Id` is answered the same way, and after a purge the sequence may hold nothing.
async fn believe(context: &Context, stream: &str, ack: PublishAck, ours: &Identity) -> Outcome {
    let stored = Outcome::Stored(Stored { stream_seq: ack.sequence, duplicate: ack.duplicate });
    if ack.stream != stream {
        return Outcome::Unconfirmed(Unclear::NotOurs);
    }
    if !ack.duplicate {
        return stored;
    }
    let Ok(handle) = context.get_stream_no_info(stream).await else {
        return Outcome::Unconfirmed(Unclear::TimedOut);
    };
    match handle.get_raw_message(ack.sequence).await {
        Ok(there) if Identity::there(&there.headers) == *ours => stored,
        Ok(_) => Outcome::Unconfirmed(Unclear::NotOurs),
        Err(error) => match error.kind() {
            RawMessageErrorKind::JetStream(_)
            | RawMessageErrorKind::NoMessageFound
            | RawMessageErrorKind::InvalidSubject => Outcome::Unconfirmed(Unclear::NotOurs),
            RawMessageErrorKind::Other => Outcome::Unconfirmed(Unclear::TimedOut),
        },
    }
}

fn outcome_of(error: &PublishError) -> Outcome {
    match error.kind() {
        PublishErrorKind::TimedOut => Outcome::Unconfirmed(Unclear::TimedOut),
        PublishErrorKind::BrokenPipe => Outcome::Unconfirmed(Unclear::ConnectionLost),
        PublishErrorKind::StreamNotFound => Outcome::Unavailable(Outage::Absent),
        PublishErrorKind::MaxAckPending => Outcome::Unavailable(Outage::Down),
        PublishErrorKind::WrongLastSequence | PublishErrorKind::WrongLastMessageId => Outcome::OutOfStep,
        PublishErrorKind::MaxPayloadExceeded => Outcome::Refused(Refusal::TooLarge),
        PublishErrorKind::Other => of_source(error),
    }
}

/// The code is in the source of the error: the kinds cover few of them.
fn of_source(error: &PublishError) -> Outcome {
    let Some(source) = std::error::Error::source(error) else { return Outcome::Unconfirmed(Unclear::ConnectionLost) };
    if let Some(answer) = source.downcast_ref::<jetstream::Error>() {
        return of_error(answer.error_code().0, u16::try_from(answer.code()).unwrap_or(0));
    }
    if source
        .downcast_ref::<async_nats::client::PublishError>()
        .is_some_and(|e| matches!(e.kind(), async_nats::client::PublishErrorKind::InvalidSubject))
    {
        return Outcome::Refused(Refusal::Subject);
    }
    Outcome::Unconfirmed(Unclear::ConnectionLost)
}

/// `None` if a name or a value cannot be sent.
fn header_map(message: &Message) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    for (name, value) in &message.headers {
        let lower = name.to_ascii_lowercase();
        if lower.starts_with("nats-") {
            return None;
        }
        let name: async_nats::HeaderName = name.parse().ok()?;
        let value: async_nats::HeaderValue = value.parse().ok()?;
        headers.append(name, value);
    }
    Some(headers)
}
