//! Durable pull consumers: explicit acknowledgements, no limit on deliveries (we count), no inactivity threshold.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer, pull};
use async_nats::jetstream::message::{AckKind, Acker};
use async_nats::jetstream::stream::{ConsumerCreateStrictErrorKind, Stream};
use async_nats::jetstream::{self, Context};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};

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
    let max_payload = context.client().max_payload();
    Ok(Box::new(Pull { consumer, max_payload, state: State::Idle }))
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
struct Pull {
    consumer: PullConsumer,
    max_payload: usize,
    state: State,
}

enum State {
    Idle,
    /// Kept here, so that giving up waiting for it loses no message.
    Asking(BoxFuture<'static, Result<pull::Batch, pull::BatchError>>),
    Receiving(Box<pull::Batch>),
}

impl Subscription for Pull {
    fn next(&mut self, room: Room) -> BoxFuture<'_, Result<Delivery, Error>> {
        async move {
            loop {
                match &mut self.state {
                    State::Idle if room.messages == 0 || room.bytes == 0 => std::future::pending().await,
                    State::Idle => self.state = State::Asking(self.ask(room)),
                    State::Asking(asking) => match asking.await {
                        Ok(batch) => self.state = State::Receiving(Box::new(batch)),
                        Err(error) => {
                            self.state = State::Idle;
                            return Err(Error::Ended(error.to_string()));
                        }
                    },
                    State::Receiving(batch) => match batch.next().await {
                        Some(Ok(message)) => return delivery(message),
                        None => self.state = State::Idle,
                        // A status: the bytes asked for are used up, the server is leaving, or the durable is gone.
                        Some(Err(status)) => {
                            self.state = State::Idle;
                            if self.consumer.get_info().await.is_err() {
                                return Err(Error::Ended(status.to_string()));
                            }
                        }
                    },
                }
            }
        }
        .boxed()
    }
}

impl Pull {
    fn ask(&self, room: Room) -> BoxFuture<'static, Result<pull::Batch, pull::BatchError>> {
        let consumer = self.consumer.clone();
        // A single message must always fit, or it would never come.
        let bytes = room.bytes.max(self.max_payload);
        async move {
            consumer.batch().max_messages(room.messages).max_bytes(bytes).expires(PULL_EXPIRES).messages().await
        }
        .boxed()
    }
}

fn delivery(message: jetstream::Message) -> Result<Delivery, Error> {
    let (stream, stream_seq, delivered) = {
        let info =
            message.info().map_err(|error| Error::Ended(format!("a message without delivery information: {error}")))?;
        (info.stream.to_owned(), info.stream_sequence, u64::try_from(info.delivered).unwrap_or(1))
    };
    let (message, acker) = message.split();
    let mut message_id = String::new();
    let mut headers = Vec::new();
    for (name, values) in message.headers.iter().flat_map(|map| map.iter()) {
        for value in values {
            if name.to_string() == "Nats-Msg-Id" {
                message_id = value.as_str().to_owned();
            }
            headers.push((name.to_string(), value.as_str().to_owned()));
        }
    }
    // The map has no order of its own; a dead letter should look the same each time.
    headers.sort();
    let message = Message { subject: message.subject.to_string(), message_id, headers, payload: message.payload };
    Ok(Delivery { message, stream, stream_seq, delivered, settle: Arc::new(Ackers(Arc::new(acker))) })
}

struct Ackers(Arc<Acker>);

impl Settle for Ackers {
    fn settle(&self, settlement: Settlement) -> BoxFuture<'static, Result<(), Error>> {
        let acker = Arc::clone(&self.0);
        async move {
            let kind = match settlement {
                Settlement::Ack => AckKind::Ack,
                Settlement::Nak(delay) => AckKind::Nak(Some(delay)),
                Settlement::InProgress => AckKind::Progress,
            };
            acker.ack_with(kind).await.map_err(|error| Error::Ended(error.to_string()))
        }
        .boxed()
    }
}

/// A pull that a restarted server has forgotten is noticed five seconds after this.
const PULL_EXPIRES: Duration = Duration::from_secs(2);
/// Messages that wait for a later delivery count too, so this is far above what is in hand.
const MAX_ACK_PENDING: i64 = 20_000;
