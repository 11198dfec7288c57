//! The broker: what the relay and the consumers need of one.
//!
//! [`JetStream`] is the one to use. The traits are public so that a program can stand in between, to count, delay or
//! break what passes; the examples do.

pub mod jetstream;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;

pub use jetstream::JetStream;

pub use crate::protocol::anchor::Position;
pub use crate::protocol::outcome::{Outage, Outcome, Refusal, Stored, Unclear};

/// One message on its way to the broker, or from it.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// Where it goes.
    pub subject: String,
    /// What the broker's window for duplicates compares.
    pub message_id: String,
    /// In order; names may repeat.
    pub headers: Vec<(Cow<'static, str>, String)>,
    /// Byte for byte.
    pub payload: Bytes,
}

impl Message {
    /// A message of its parts.
    pub fn new(
        subject: impl Into<String>,
        message_id: impl Into<String>,
        headers: Vec<(Cow<'static, str>, String)>,
        payload: Bytes,
    ) -> Message {
        Message { subject: subject.into(), message_id: message_id.into(), headers, payload }
    }
}

/// Never the payload, never a header's value.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("subject", &self.subject)
            .field("message_id", &self.message_id)
            .field("payload_bytes", &self.payload.len())
            .finish_non_exhaustive()
    }
}

/// A broker of the right kind: durable streams that acknowledge what they stored, and durable consumers.
///
/// All methods are called on the engine's runtime; those of a [`Publisher`] also on its own, where it has one.
pub trait Broker: Send + Sync + 'static {
    /// What is wrong with its settings, found before anything is tried. Default: nothing.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// Whether it can be reached now, and takes what we send.
    fn reachable(&self) -> BoxFuture<'_, Result<(), Error>>;

    /// Makes the stream of a partition if it is missing, checks its settings if it is there, and opens a publishing
    /// connection for one owner of the partition.
    fn publisher(&self, stream: StreamSpec) -> BoxFuture<'_, Result<Box<dyn Publisher>, Error>>;

    /// The streams of a source that exist now, those of other services too.
    fn streams<'a>(&'a self, source: &'a str) -> BoxFuture<'a, Result<Vec<StreamInfo>, Error>>;

    /// Makes or updates the durable consumer of a stream and starts to receive.
    fn subscribe(&self, subscription: SubscriptionSpec) -> BoxFuture<'_, Result<Box<dyn Subscription>, Error>>;

    /// Sends out what was settled and is still in a buffer, at the end of a drain.
    fn flush(&self) -> BoxFuture<'_, ()>;
}

/// A publishing connection of one owner of a partition. It lives as long as its connection: once that is lost nothing is
/// published any more, and the owner opens another. Dropping it drops what it has not sent yet.
pub trait Publisher: Send + Sync {
    /// Hands a message over; the inner future is the broker's answer, and may never come: whoever waits for it gives up
    /// [`answers_within`](Self::answers_within) the send, by dropping it. Handing over takes no longer than that either.
    /// When the connection is lost, all answers that are awaited are [`Unclear::ConnectionLost`] at once.
    ///
    /// Messages go out in the order of the calls, each of which is awaited before the next. With `expected` the broker
    /// stores it only as the message right after that sequence, and answers [`Outcome::OutOfStep`] otherwise.
    fn send(&self, message: Message, expected: Option<u64>) -> BoxFuture<'_, BoxFuture<'static, Outcome>>;

    /// How long to wait for an answer, counted from the send. Default 5 s.
    fn answers_within(&self) -> Duration {
        Duration::from_secs(5)
    }

    /// The runtime that drives the connection, if it is one of its own: whoever publishes much runs there, so that no
    /// message and no answer wakes another thread. It ends with the publisher. Default: none.
    fn runtime(&self) -> Option<Handle> {
        None
    }

    /// Resolves when the connection is lost and the publisher with it. Default: never.
    fn lost(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }

    /// The most messages that [`send_batch`](Self::send_batch) takes at once. Default: the stream takes no batches.
    fn batch(&self) -> Option<usize> {
        None
    }

    /// Hands over messages that are stored all, right after the sequence `expected`, or not at all. The answer speaks of the
    /// last of them; [`Outcome::Abandoned`] says that nothing is stored and that they should go one at a time. Called only
    /// where [`batch`](Self::batch) allows it.
    fn send_batch(&self, messages: Vec<Message>, expected: u64) -> BoxFuture<'_, BoxFuture<'static, Outcome>> {
        let _ = (messages, expected);
        let abandoned: BoxFuture<'static, Outcome> = Box::pin(std::future::ready(Outcome::Abandoned));
        Box::pin(std::future::ready(abandoned))
    }

    /// Where the stream stands now, by the word of its leader.
    fn position(&self) -> BoxFuture<'_, Result<Position, Error>>;

    /// The message at a sequence of the stream, by the word of its leader; `None` if there is none, or none any more. Many
    /// may be asked for at once.
    fn read(&self, stream_seq: u64) -> BoxFuture<'_, Result<Option<Message>, Error>>;

    /// Whether the stream answers.
    fn probe(&self) -> BoxFuture<'_, bool>;

    /// The stream's creation time, in nanoseconds since 1970: another one is another stream.
    fn incarnation(&self) -> i64;

    /// The most bytes one message may have, headers included.
    fn max_message_bytes(&self) -> usize;
}

/// The stream that a partition needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamSpec {
    /// Whose events.
    pub source: String,
    /// Which of its partitions.
    pub partition: i32,
    /// How many there are.
    pub partitions: i32,
}

/// A stream that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamInfo {
    /// Its name.
    pub name: String,
    /// Which partition of the source it carries.
    pub partition: i32,
}

/// The durable consumer that a consumer needs on one stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionSpec {
    /// The stream.
    pub stream: StreamInfo,
    /// Whose events.
    pub source: String,
    /// The consumer's name.
    pub consumer: String,
    /// The event types it takes.
    pub event_types: Vec<String>,
    /// Whether it takes commands too.
    pub commands: bool,
    /// After this long without a sign of life a message is delivered again.
    pub ack_wait: Duration,
}

/// How much more may be in hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// So many messages.
    pub messages: usize,
    /// So many bytes.
    pub bytes: usize,
}

/// Messages as they come.
pub trait Subscription: Send {
    /// The next message; never more of them than there was room for. Waiting for it may be given up at any time without
    /// losing one. An error ends the subscription, and another one is made.
    fn next(&mut self, room: Room) -> BoxFuture<'_, Result<Delivery, Error>>;

    /// Asks for no more. From then on [`next`](Self::next) yields what was on its way already, and then an error.
    /// Default: it does nothing, and what is on its way is delivered to others after the time for a sign of life.
    fn close(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// A message in hand, to be settled.
pub struct Delivery {
    /// The message.
    pub message: Message,
    /// Which stream it came from.
    pub stream: String,
    /// Its sequence there.
    pub stream_seq: u64,
    /// How often it was delivered, this time included, by the broker's count.
    pub delivered: u64,
    /// How to settle it.
    pub settle: Arc<dyn Settle>,
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("message", &self.message)
            .field("stream", &self.stream)
            .field("stream_seq", &self.stream_seq)
            .field("delivered", &self.delivered)
            .finish_non_exhaustive()
    }
}

/// What to tell the broker about a message in hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// Done with it: applied, a duplicate, or set aside in our tables.
    Ack,
    /// Deliver it again after this long.
    Nak(Duration),
    /// Still at it: count the time from now.
    InProgress,
}

/// Tells the broker about one message.
pub trait Settle: Send + Sync {
    /// Sends it. A lost acknowledgement costs a redelivery, which the inbox absorbs.
    fn settle(&self, settlement: Settlement) -> BoxFuture<'static, Result<(), Error>>;
}

/// Why the broker could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No connection, or no answer.
    #[error("NATS is not reachable: {0}")]
    Unreachable(String),
    /// It answers, but has no JetStream for us.
    #[error(
        "NATS answers, but JetStream does not ({0}): start nats-server with `-js`, or enable JetStream for this account"
    )]
    NoJetStream(String),
    /// A stream has settings that would lose, repeat or reorder events.
    #[error("stream `{stream}`: {setting} {problem}")]
    Drift {
        /// The stream.
        stream: String,
        /// The setting, by its name in the stream's configuration.
        setting: &'static str,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// The broker refused to make or change something.
    #[error("the broker refused {what}: {problem}")]
    Refused {
        /// What was asked.
        what: String,
        /// Its answer.
        problem: String,
    },
    /// The subscription ended.
    #[error("the subscription ended: {0}")]
    Ended(String),
}
