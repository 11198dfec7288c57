//! Durable pull consumers: explicit acknowledgements, no limit on deliveries (we count), no inactivity threshold.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::jetstream::consumer::pull::{self, BatchConfig};
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer};
use async_nats::jetstream::message::{AckKind, Acker};
use async_nats::jetstream::stream::{ConsumerCreateStrictErrorKind, Stream};
use async_nats::jetstream::{self, Context};
use async_nats::{Client, StatusCode, Subscriber};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};
use tokio::time::Instant;

use super::connect::is_connected;
use super::subject::{durable_name, filters};
use crate::broker::{Delivery, Error, Message, Room, Settle, Settlement, Subscription, SubscriptionSpec};

/// Makes the durable, or brings the settings that may change up to date. What it listens to only grows here: in a
/// rolling deploy the older release must not take a type away from the newer one. The position is never touched.
pub(super) async fn subscribe(context: Context, spec: SubscriptionSpec) -> Result<Box<dyn Subscription>, Error> {
    let name = durable_name(&spec.consumer);
    let refused = |problem: String| Error::Refused {
        what: format!("durable `{name}` on stream `{}`", spec.stream.name),
        problem,
    };
    let stream = context.get_stream(&spec.stream.name).await.map_err(|error| Error::Unreachable(error.to_string()))?;
    let wanted = filters(&spec.source, spec.stream.partition, &spec.consumer, &spec.event_types, spec.commands);
    let consumer = match stream.get_consumer::<pull::Config>(&name).await {
        Ok(existing) => update(&stream, existing, &spec, wanted).await.map_err(refused)?,
        Err(_) => match stream.create_consumer_strict(durable(&name, &spec, wanted)).await {
            Ok(made) => made,
            Err(error)
                if matches!(
                    error.kind(),
                    ConsumerCreateStrictErrorKind::TimedOut | ConsumerCreateStrictErrorKind::Request
                ) =>
            {
                return Err(Error::Unreachable(error.to_string()));
            }
            Err(error) => return Err(refused(error.to_string())),
        },
    };
    Ok(Box::new(Pull { context, consumer, state: State::Idle, barren: false }))
}

fn durable(name: &str, spec: &SubscriptionSpec, filter_subjects: Vec<String>) -> pull::Config {
    pull::Config {
        durable_name: Some(name.to_owned()),
        description: Some(format!("consumer {}", spec.consumer)),
        deliver_policy: DeliverPolicy::All,
        ack_policy: AckPolicy::Explicit,
        ack_wait: spec.ack_wait,
        max_deliver: -1,
        max_ack_pending: MAX_ACK_PENDING,
        filter_subjects,
        ..pull::Config::default()
    }
}

async fn update(
    stream: &Stream,
    existing: PullConsumer,
    spec: &SubscriptionSpec,
    wanted: Vec<String>,
) -> Result<PullConsumer, String> {
    let has = existing.cached_info().config.clone();
    if has.ack_policy != AckPolicy::Explicit {
        return Err(
            "its ack policy is not `explicit`: it was not made by this framework; give the consumer another name"
                .into(),
        );
    }
    let mut subjects: BTreeSet<String> = has.filter_subjects.iter().cloned().collect();
    if !has.filter_subject.is_empty() {
        subjects.insert(has.filter_subject.clone());
    }
    let before = subjects.clone();
    subjects.extend(wanted);
    let same = subjects == before
        && has.ack_wait == spec.ack_wait
        && has.max_deliver == -1
        && has.max_ack_pending == MAX_ACK_PENDING;
    if same {
        return Ok(existing);
    }
    let name = durable_name(&spec.consumer);
    let config =
        pull::Config { deliver_policy: has.deliver_policy, ..durable(&name, spec, subjects.into_iter().collect()) };
    stream.update_consumer(config).await.map_err(|error| error.to_string())
}

/// Pulls as much as there is room for, and the next time when that has come in: what is in hand is what was asked for.
///
/// The pulls are our own: those of the client cannot be closed without losing what is on its way.
struct Pull {
    context: Context,
    consumer: PullConsumer,
    state: State,
    /// The last pull ended with a status and no message.
    barren: bool,
}

enum State {
    Idle,
    /// Kept here, so that giving up waiting for it loses no message.
    Asking(BoxFuture<'static, Result<Receiving, Error>>),
    Receiving(Box<Receiving>),
    Closed,
}

/// A pull under way.
struct Receiving {
    subscriber: Subscriber,
    left: usize,
    /// How often the client had connected when it was asked: a server it comes back to may have forgotten the pull.
    connects: u64,
    until: Instant,
    /// When to look whether it is forgotten.
    look: Instant,
    closing: bool,
}

impl Subscription for Pull {
    fn next(&mut self, room: Room) -> BoxFuture<'_, Result<Delivery, Error>> {
        async move {
            loop {
                match &mut self.state {
                    State::Idle if room.messages == 0 || room.bytes == 0 => std::future::pending().await,
                    State::Idle => self.state = State::Asking(self.ask(room)),
                    State::Asking(asking) => {
                        let asked = asking.await;
                        self.state = State::Idle;
                        self.state = State::Receiving(Box::new(asked?));
                    }
                    State::Receiving(receiving) => match receiving.next(&self.context).await {
                        Received::Message(message) => {
                            self.barren = false;
                            return delivery(jetstream::Message { message, context: self.context.clone() });
                        }
                        Received::End if receiving.closing => self.state = State::Closed,
                        Received::End => self.state = State::Idle,
                        // The bytes asked for are used up, the server is leaving, or the durable is gone.
                        Received::Status(status) => {
                            let again = std::mem::replace(&mut self.barren, true);
                            self.state = if receiving.closing { State::Closed } else { State::Idle };
                            if again || self.consumer.get_info().await.is_err() {
                                return Err(Error::Ended(status));
                            }
                        }
                    },
                    State::Closed => return Err(Error::Ended("it was closed".into())),
                }
            }
        }
        .boxed()
    }

    fn close(&mut self) -> BoxFuture<'_, ()> {
        async move {
            if let State::Asking(asking) = &mut self.state {
                let asked = asking.await;
                self.state = asked.map_or(State::Closed, |receiving| State::Receiving(Box::new(receiving)));
            }
            let State::Receiving(receiving) = &mut self.state else {
                self.state = State::Closed;
                return;
            };
            // The subscriber ends when the server has confirmed that it sends no more.
            receiving.closing = true;
            if receiving.subscriber.drain().await.is_err() {
                self.state = State::Closed;
            }
        }
        .boxed()
    }
}

impl Pull {
    fn ask(&self, room: Room) -> BoxFuture<'static, Result<Receiving, Error>> {
        let consumer = self.consumer.clone();
        let client = self.context.client();
        // A single message must always fit, with its subjects, or it would never come.
        let max_bytes = room.bytes.max(client.max_payload() + SUBJECTS);
        let batch =
            BatchConfig { batch: room.messages, max_bytes, expires: Some(PULL_EXPIRES), ..BatchConfig::default() };
        async move {
            let ended = |error: &dyn std::error::Error| Error::Ended(error.to_string());
            let connects = connects(&client);
            let inbox = client.new_inbox();
            let subscriber = client.subscribe(inbox.clone()).await.map_err(|error| ended(&error))?;
            consumer.request_batch(batch, inbox.into()).await.map_err(|error| ended(&error))?;
            let now = Instant::now();
            let (until, look) = (now + PULL_EXPIRES + ANSWERS_WITHIN, now + LOOK_AFTER);
            Ok(Receiving { subscriber, left: room.messages, connects, until, look, closing: false })
        }
        .boxed()
    }
}

enum Received {
    Message(async_nats::Message),
    Status(String),
    End,
}

impl Receiving {
    /// What comes next of this pull. Messages that have arrived come before any reason to end it.
    async fn next(&mut self, context: &Context) -> Received {
        while self.left > 0 || self.closing {
            let message = tokio::select! {
                biased;
                message = self.subscriber.next() => message,
                () = tokio::time::sleep_until(self.look) => {
                    self.look = Instant::now() + LOOK_AFTER;
                    let forgotten = connects(&context.client()) != self.connects || self.look > self.until;
                    if forgotten { None } else { continue }
                }
            };
            let Some(message) = message else { return Received::End };
            match message.status {
                None | Some(StatusCode::OK) => {
                    self.left = self.left.saturating_sub(1);
                    return Received::Message(message);
                }
                Some(StatusCode::IDLE_HEARTBEAT) => {}
                Some(StatusCode::TIMEOUT | StatusCode::NOT_FOUND) if self.closing => {}
                Some(StatusCode::TIMEOUT | StatusCode::NOT_FOUND) => return Received::End,
                Some(status) => {
                    return Received::Status(format!("{status} {}", message.description.unwrap_or_default()));
                }
            }
        }
        Received::End
    }
}

fn connects(client: &Client) -> u64 {
    client.statistics().connects.load(Ordering::Relaxed)
}

fn delivery(message: jetstream::Message) -> Result<Delivery, Error> {
    let (stream, stream_seq, delivered) = {
        let info =
            message.info().map_err(|error| Error::Ended(format!("a message without delivery information: {error}")))?;
        (info.stream.to_owned(), info.stream_sequence, u64::try_from(info.delivered).unwrap_or(1))
    };
    let context = message.context.clone();
    let (message, acker) = message.split();
    let mut message_id = String::new();
    let mut headers = Vec::new();
    for (name, values) in message.headers.iter().flat_map(|map| map.iter()) {
        for value in values {
            if name.to_string() == "Nats-Msg-Id" {
                message_id = value.as_str().to_owned();
            }
            headers.push((name.to_string().into(), value.as_str().to_owned()));
        }
    }
    // The map has no order of its own; a dead letter should look the same each time.
    headers.sort();
    let message = Message { subject: message.subject.to_string(), message_id, headers, payload: message.payload };
    Ok(Delivery { message, stream, stream_seq, delivered, settle: Arc::new(Ackers(Arc::new(acker), context)) })
}

struct Ackers(Arc<Acker>, Context);

impl Settle for Ackers {
    fn settle(&self, settlement: Settlement) -> BoxFuture<'static, Result<(), Error>> {
        let (acker, context) = (Arc::clone(&self.0), self.1.clone());
        async move {
            let kind = match settlement {
                Settlement::Ack => AckKind::Ack,
                Settlement::Nak(delay) => AckKind::Nak(Some(delay)),
                // Of no use later, and the client's queue, once full, would hold up whoever sends.
                Settlement::InProgress if !is_connected(&context) => {
                    return Err(Error::Unreachable("no connection".into()));
                }
                Settlement::InProgress => AckKind::Progress,
            };
            match tokio::time::timeout(ANSWERS_WITHIN, acker.ack_with(kind)).await {
                Ok(sent) => sent.map_err(|error| Error::Ended(error.to_string())),
                Err(_) => Err(Error::Unreachable("the client's queue is full".into())),
            }
        }
        .boxed()
    }
}

/// How long the server keeps a pull that finds nothing.
const PULL_EXPIRES: Duration = Duration::from_secs(2);
/// How much later than that its answer may come before the pull counts as lost.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// How often a waiting pull looks whether the connection is still the one it was asked on.
const LOOK_AFTER: Duration = Duration::from_millis(250);
/// The server counts subject and reply subject as bytes of a message too.
const SUBJECTS: usize = 16 * 1024;
/// Messages that wait for a later delivery count too, so this is far above what is in hand.
const MAX_ACK_PENDING: i64 = 20_000;
