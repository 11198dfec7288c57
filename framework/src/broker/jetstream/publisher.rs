//! Publishing over one connection and none after it, and what the answers mean.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use async_nats::client::PublishErrorKind;
use async_nats::connection::State;
use async_nats::jetstream::Context;
use async_nats::jetstream::context::RequestErrorKind;
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::RawMessageErrorKind;
use async_nats::{Client, HeaderMap};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use tokio::runtime::Handle;

use super::ack::{Ack, Acks, Ask};
use super::connect::Connection;
use super::headers::{EXPECTED, Identity, batch_headers, header_map, message_of};
use super::provision::{Provisioned, incarnation};
use crate::broker::{Error, Message, Outage, Outcome, Position, Publisher, Refusal, Stored, Unclear};
use crate::failpoint::left_out;

/// A publisher lives as long as its connection: once that is lost nothing is published any more, and dropping it drops
/// what the client has not written yet.
pub(super) struct Publishing {
    link: Arc<Link>,
    stream: Provisioned,
    ack_timeout: Duration,
    /// Ends the connection when it is dropped.
    connection: Connection,
}

/// What is needed to ask the stream. Answers that are still awaited hold it weakly.
struct Link {
    context: Context,
    client: Client,
    acks: Arc<Acks>,
    stream: String,
    ack_timeout: Duration,
}

impl Publishing {
    pub(super) async fn open(
        connection: Connection,
        stream: Provisioned,
        ack_timeout: Duration,
    ) -> Result<Publishing, Error> {
        let (context, client) = (connection.context.clone(), connection.context.client());
        let acks = Acks::new(client.new_inbox(), stream.name.clone());
        let subscriber = client
            .subscribe(acks.subject())
            .await
            .map_err(|error| Error::Unreachable(format!("no inbox for acknowledgements: {error}")))?;
        connection.spawn(Arc::clone(&acks).listen(subscriber));
        let ended = Arc::clone(&acks);
        connection.spawn(connection.ended().map(move |()| ended.lose()));
        let link = Arc::new(Link { context, client, acks, stream: stream.name.clone(), ack_timeout });
        Ok(Publishing { link, stream, ack_timeout, connection })
    }
}

/// Nobody is left to hear the answers.
impl Drop for Publishing {
    fn drop(&mut self) {
        self.link.acks.lose();
    }
}

impl Publisher for Publishing {
    #[expect(
        clippy::async_yields_async,
        reason = "the outer future hands the message over, the inner one is the answer"
    )]
    fn send(&self, message: Message, expected: Option<u64>) -> BoxFuture<'_, BoxFuture<'static, Outcome>> {
        async move {
            let Some(ask) = self.link.ask() else { return ready(Outcome::Unavailable(Outage::Down)).boxed() };
            let identity = Identity::of(&message);
            let Message { subject, message_id, headers, payload } = message;
            let Some(mut headers) = header_map(&message_id, headers) else {
                return ready(Outcome::Refused(Refusal::Header)).boxed();
            };
            if let Some(expected) = expected.filter(|_| !left_out!("relay::skip-expected-sequence")) {
                headers.insert(EXPECTED, expected.to_string());
            }
            let sending = self.link.hand_over(subject, Some(ask.reply()), headers, payload);
            if let Err(outcome) = within(Instant::now() + self.ack_timeout, sending).await {
                return ready(outcome).boxed();
            }
            let link = Arc::downgrade(&self.link);
            async move {
                match ask.answer().await {
                    Ok(ack) => believe(&link, ack, &identity).await,
                    Err(outcome) => outcome,
                }
            }
            .boxed()
        }
        .boxed()
    }

    fn batch(&self) -> Option<usize> {
        self.stream.atomic_batches.then_some(MOST_IN_A_BATCH)
    }

    #[expect(
        clippy::async_yields_async,
        reason = "the outer future hands the messages over, the inner one is the answer"
    )]
    fn send_batch(&self, messages: Vec<Message>, expected: u64) -> BoxFuture<'_, BoxFuture<'static, Outcome>> {
        async move {
            if !self.stream.atomic_batches || messages.is_empty() || messages.len() > MOST_IN_A_BATCH {
                return ready(Outcome::Abandoned).boxed();
            }
            let Some(ask) = self.link.ask() else { return ready(Outcome::Unavailable(Outage::Down)).boxed() };
            let wanted = messages.len() as u64;
            let sending = within(Instant::now() + self.ack_timeout, self.link.hand_over_all(&ask, messages, expected));
            if let Err(outcome) = sending.await {
                return ready(outcome).boxed();
            }
            async move {
                match ask.answer().await {
                    Ok(Ack { stream_seq, duplicate: false, batch: Some(count) }) if count == wanted => {
                        Outcome::Stored(Stored { stream_seq, duplicate: false })
                    }
                    Ok(_) => Outcome::Unconfirmed(Unclear::Elsewhere),
                    Err(outcome) => outcome,
                }
            }
            .boxed()
        }
        .boxed()
    }

    fn answers_within(&self) -> Duration {
        self.ack_timeout
    }

    fn runtime(&self) -> Option<Handle> {
        Some(self.connection.runtime())
    }

    fn lost(&self) -> BoxFuture<'static, ()> {
        self.link.acks.lost().boxed()
    }

    fn position(&self) -> BoxFuture<'_, Result<Position, Error>> {
        async {
            let name = &self.stream.name;
            let asking = async { Some(self.link.context.get_stream_no_info(name).await.ok()?.get_info().await) };
            let info = match self.link.answered(asking).await? {
                Some(Ok(info)) => info,
                Some(Err(error)) if matches!(error.kind(), RequestErrorKind::TimedOut | RequestErrorKind::Other) => {
                    return Err(self.link.silent());
                }
                Some(Err(error)) => return Err(refused(name, error.to_string())),
                None => return Err(refused(name, "no valid name".into())),
            };
            Ok(Position {
                incarnation: incarnation(&info),
                first_seq: info.state.first_sequence,
                last_seq: info.state.last_sequence,
            })
        }
        .boxed()
    }

    fn read(&self, stream_seq: u64) -> BoxFuture<'_, Result<Option<Message>, Error>> {
        async move { Ok(self.link.read(stream_seq).await?.map(message_of)) }.boxed()
    }

    fn probe(&self) -> BoxFuture<'_, bool> {
        async { self.link.is_open() && self.position().await.is_ok() }.boxed()
    }

    fn incarnation(&self) -> i64 {
        self.stream.incarnation
    }

    fn max_message_bytes(&self) -> usize {
        self.stream.max_message_bytes
    }
}

impl Link {
    /// A client that has lost its connection would queue the message, and send it long after we gave up on it.
    fn is_open(&self) -> bool {
        !self.acks.is_lost() && self.client.connection_state() == State::Connected
    }

    fn ask(&self) -> Option<Ask> {
        if self.is_open() { self.acks.ask() } else { None }
    }

    async fn hand_over(
        &self,
        subject: String,
        reply: Option<String>,
        headers: HeaderMap,
        payload: Bytes,
    ) -> Result<(), Outcome> {
        let sent = match reply {
            Some(reply) => self.client.publish_with_reply_and_headers(subject, reply, headers, payload).await,
            None => self.client.publish_with_headers(subject, headers, payload).await,
        };
        sent.map_err(|error| match error.kind() {
            PublishErrorKind::MaxPayloadExceeded => Outcome::Refused(Refusal::TooLarge),
            PublishErrorKind::InvalidSubject => Outcome::Refused(Refusal::Subject),
            PublishErrorKind::Send => Outcome::Unavailable(Outage::Down),
        })
    }

    /// Only the last message, which commits, has an answer. A batch without it stores nothing.
    async fn hand_over_all(&self, ask: &Ask, messages: Vec<Message>, expected: u64) -> Result<(), Outcome> {
        let id = ask.batch_id();
        let mut ready = Vec::with_capacity(messages.len());
        let last = messages.len();
        for (number, message) in (1..).zip(messages) {
            let Message { subject, message_id, headers, payload } = message;
            let mut headers = header_map(&message_id, headers).ok_or(Outcome::Abandoned)?;
            batch_headers(&mut headers, &id, number, number == last);
            if number == 1 && !left_out!("relay::skip-expected-sequence") {
                headers.insert(EXPECTED, expected.to_string());
            }
            ready.push((subject, (number == last).then(|| ask.reply()), headers, payload));
        }
        for (subject, reply, headers, payload) in ready {
            self.hand_over(subject, reply, headers, payload).await.map_err(|outcome| match outcome {
                Outcome::Refused(_) => Outcome::Abandoned,
                other => other,
            })?;
        }
        Ok(())
    }

    async fn read(&self, stream_seq: u64) -> Result<Option<StreamMessage>, Error> {
        let asking =
            async { Some(self.context.get_stream_no_info(&self.stream).await.ok()?.get_raw_message(stream_seq).await) };
        match self.answered(asking).await? {
            Some(Ok(there)) => Ok(Some(there)),
            Some(Err(error)) => match error.kind() {
                RawMessageErrorKind::NoMessageFound => Ok(None),
                RawMessageErrorKind::JetStream(answer) => Err(refused(&self.stream, answer.to_string())),
                RawMessageErrorKind::InvalidSubject | RawMessageErrorKind::Other => Err(self.silent()),
            },
            None => Err(refused(&self.stream, "no valid name".into())),
        }
    }

    /// What a question over this connection is answered, in time and while the connection is there.
    async fn answered<T>(&self, asking: impl Future<Output = T>) -> Result<T, Error> {
        if !self.is_open() {
            return Err(self.gone());
        }
        tokio::select! {
            biased;
            () = self.acks.lost() => Err(self.gone()),
            answer = tokio::time::timeout(self.ack_timeout, asking) => answer.map_err(|_| self.silent()),
        }
    }

    fn gone(&self) -> Error {
        Error::Unreachable(format!("the connection of the publisher of stream `{}` was lost", self.stream))
    }

    fn silent(&self) -> Error {
        let within = humantime::format_duration(self.ack_timeout);
        Error::Unreachable(format!("no answer about stream `{}` within {within}", self.stream))
    }
}

fn refused(stream: &str, problem: String) -> Error {
    Error::Refused { what: format!("to tell about stream `{stream}`"), problem }
}

/// A client that stands still may never take what it is handed.
async fn within(deadline: Instant, sending: impl Future<Output = Result<(), Outcome>>) -> Result<(), Outcome> {
    match tokio::time::timeout_at(deadline.into(), sending).await {
        Ok(handed_over) => handed_over,
        Err(_) => Err(Outcome::Unconfirmed(Unclear::TimedOut)),
    }
}

/// A duplicate answer is believed only after the message at its sequence was read and bears this source and id: another
/// message with the same `Nats-Msg-Id` is answered the same way, and after a purge the sequence may hold nothing.
async fn believe(link: &Weak<Link>, ack: Ack, ours: &Identity) -> Outcome {
    let stored = Outcome::Stored(Stored { stream_seq: ack.stream_seq, duplicate: ack.duplicate });
    if !ack.duplicate {
        return stored;
    }
    let Some(link) = link.upgrade() else { return Outcome::Unconfirmed(Unclear::ConnectionLost) };
    match link.read(ack.stream_seq).await {
        Ok(Some(there)) if Identity::there(&there.headers) == *ours => stored,
        Ok(_) | Err(Error::Refused { .. }) => Outcome::Unconfirmed(Unclear::NotOurs),
        Err(_) if link.is_open() => Outcome::Unconfirmed(Unclear::TimedOut),
        Err(_) => Outcome::Unconfirmed(Unclear::ConnectionLost),
    }
}

/// The server's own limit.
const MOST_IN_A_BATCH: usize = 1_000;
