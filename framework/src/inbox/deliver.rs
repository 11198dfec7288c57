//! Step 5: take messages from one stream, spread them over lanes, and see each to its end.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::task::{self, JoinSet};

use super::apply::{Ending, Key, Terms, apply};
use super::settle::settle;
use super::{attempts, dead};
use crate::broker::{
    Broker, Delivery, Error as BrokerError, Room, Settle, Settlement, StreamInfo, Subscription, SubscriptionSpec,
};
use crate::consumer::{Accepts, Consumer, Options};
use crate::envelope::Envelope;
use crate::postgres::{Error as DatabaseError, Pool};
use crate::protocol::attempt::{Failure, Next, Restarts, after, counted};
use crate::protocol::backoff::Backoff;
use crate::telemetry;

/// How much a consumer holds in hand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) ack_wait: Duration,
    pub(crate) prefetch: usize,
    pub(crate) prefetch_bytes: usize,
}

/// One consumer of this process.
pub(crate) struct Worker<C> {
    pub(crate) consumer: C,
    pub(crate) options: Options,
    pub(crate) limits: Limits,
    pub(crate) generation: i32,
    pub(crate) pool: Pool,
    pub(crate) broker: Arc<dyn Broker>,
    /// Where handlers run, and nothing of ours that others wait for.
    pub(crate) handlers: Handle,
    pub(crate) slots: Arc<Semaphore>,
}

/// A consumer without its type.
pub(crate) trait Work: Send + Sync {
    fn name(&self) -> &'static str;
    fn source(&self) -> &'static str;
    /// Works on one stream until told to drain; returns when nothing is in hand any more.
    fn run(self: Arc<Self>, stream: StreamInfo, drain: watch::Receiver<bool>) -> BoxFuture<'static, ()>;
}

impl<C: Consumer> Work for Worker<C> {
    fn name(&self) -> &'static str {
        C::NAME
    }

    fn source(&self) -> &'static str {
        C::SOURCE
    }

    fn run(self: Arc<Self>, stream: StreamInfo, drain: watch::Receiver<bool>) -> BoxFuture<'static, ()> {
        Stream::new(self, stream, drain).run().boxed()
    }
}

impl<C: Consumer> Worker<C> {
    fn subscription(&self, stream: &StreamInfo) -> SubscriptionSpec {
        let is_command = |accepts: &&Accepts| accepts.recipient.is_some();
        SubscriptionSpec {
            stream: stream.clone(),
            source: C::SOURCE.to_owned(),
            consumer: C::NAME.to_owned(),
            event_types: C::ACCEPTS.iter().filter(|a| !is_command(a)).map(|a| a.r#type.to_owned()).collect(),
            commands: C::ACCEPTS.iter().any(|accepts| is_command(&accepts)),
            ack_wait: self.limits.ack_wait,
        }
    }
}

/// One stream of one consumer: what is in hand, and which lanes are busy.
struct Stream<C> {
    worker: Arc<Worker<C>>,
    info: StreamInfo,
    drain: watch::Receiver<bool>,
    in_hand: HashMap<u64, InHand>,
    waiting: HashMap<String, VecDeque<Delivery>>,
    busy: HashSet<String>,
    running: JoinSet<()>,
    /// What each of the running is about: a task that panics says only its id.
    tasks: HashMap<task::Id, (String, u64)>,
    lost: u32,
}

/// Where messages come from: kept while other things happen, so that making a subscription is not begun anew each time.
enum Source {
    Live(Box<dyn Subscription>),
    Making(BoxFuture<'static, Result<Box<dyn Subscription>, BrokerError>>),
}

struct InHand {
    settle: Arc<dyn Settle>,
    bytes: usize,
}

impl<C: Consumer> Stream<C> {
    fn new(worker: Arc<Worker<C>>, info: StreamInfo, drain: watch::Receiver<bool>) -> Stream<C> {
        Stream {
            worker,
            info,
            drain,
            in_hand: HashMap::new(),
            waiting: HashMap::new(),
            busy: HashSet::new(),
            running: JoinSet::new(),
            tasks: HashMap::new(),
            lost: 0,
        }
    }

    async fn run(mut self) {
        let mut source = self.subscribe();
        let mut signs_of_life = tokio::time::interval(self.worker.limits.ack_wait / 3);
        signs_of_life.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut drain = self.drain.clone();
        while !*drain.borrow() {
            let room = self.room();
            tokio::select! {
                biased;
                // Without an actor that could say so it ends as well.
                changed = drain.changed() => if changed.is_err() { break },
                Some(done) = self.running.join_next_with_id(), if !self.running.is_empty() => self.finished(done),
                _ = signs_of_life.tick() => self.signal().await,
                next = source.next(room) => match next {
                    Ok(delivery) => {
                        self.lost = 0;
                        self.take(delivery);
                    }
                    Err(error) => {
                        self.lost = self.lost.saturating_add(1);
                        tracing::warn!(consumer = C::NAME, stream = self.info.name, %error, "no messages for now; trying again");
                        source = self.subscribe();
                    }
                },
            }
        }
        self.finish(source, &mut signs_of_life).await;
    }

    /// Subscribes, after a pause if the last subscription was lost.
    fn subscribe(&self) -> Source {
        let (worker, info, lost) = (Arc::clone(&self.worker), self.info.clone(), self.lost);
        Source::Making(
            async move {
                if lost > 0 {
                    tokio::time::sleep(RESUBSCRIBE.delay(lost, rand::random())).await;
                }
                worker.broker.subscribe(worker.subscription(&info)).await
            }
            .boxed(),
        )
    }

    /// What was not begun goes back at once, also what is on its way; what was begun is finished.
    async fn finish(&mut self, source: Source, signs_of_life: &mut tokio::time::Interval) {
        let on_its_way = async {
            let Source::Live(mut subscription) = source else { return Vec::new() };
            let mut late = Vec::new();
            let ending = async {
                subscription.close().await;
                while let Ok(delivery) = subscription.next(Room { messages: 0, bytes: 0 }).await {
                    late.push(delivery);
                }
            };
            let _ = tokio::time::timeout(ON_ITS_WAY, ending).await;
            // Given back only when nothing more is asked for here, or some of it would come back to us.
            drop(subscription);
            late
        };
        let late = on_its_way.await;
        let late = late.into_iter().filter(|delivery| !self.in_hand.contains_key(&delivery.stream_seq));
        for delivery in late.collect::<Vec<_>>() {
            settle(&delivery, Settlement::Nak(Duration::ZERO)).await;
        }
        for delivery in self.waiting.drain().flat_map(|(_, queue)| queue) {
            self.in_hand.remove(&delivery.stream_seq);
            settle(&delivery, Settlement::Nak(Duration::ZERO)).await;
        }
        while !self.running.is_empty() {
            tokio::select! {
                Some(done) = self.running.join_next_with_id() => self.finished(done),
                _ = signs_of_life.tick() => self.signal().await,
            }
        }
    }

    fn room(&self) -> Room {
        let Limits { prefetch, prefetch_bytes, .. } = self.worker.limits;
        let bytes: usize = self.in_hand.values().map(|in_hand| in_hand.bytes).sum();
        Room { messages: prefetch.saturating_sub(self.in_hand.len()), bytes: prefetch_bytes.saturating_sub(bytes) }
    }

    fn take(&mut self, delivery: Delivery) {
        // Delivered again while we are still at it: settling the first settles both.
        if self.in_hand.contains_key(&delivery.stream_seq) {
            return;
        }
        let bytes = delivery.message.payload.len()
            + delivery.message.headers.iter().map(|(n, v)| n.len() + v.len()).sum::<usize>();
        self.in_hand.insert(delivery.stream_seq, InHand { settle: Arc::clone(&delivery.settle), bytes });
        let lane = lane_of(&delivery);
        self.waiting.entry(lane.clone()).or_default().push_back(delivery);
        self.start(lane);
    }

    /// At most one of a lane at a time.
    fn start(&mut self, lane: String) {
        if self.busy.contains(&lane) {
            return;
        }
        let Some(queue) = self.waiting.get_mut(&lane) else { return };
        let Some(delivery) = queue.pop_front() else { return };
        if queue.is_empty() {
            self.waiting.remove(&lane);
        }
        self.busy.insert(lane.clone());
        let (worker, mut drain) = (Arc::clone(&self.worker), self.drain.clone());
        let stream_seq = delivery.stream_seq;
        let task = self.running.spawn(async move {
            let waiting = Arc::clone(&worker.slots).acquire_owned();
            let slot = tokio::select! {
                biased;
                () = told_to_drain(&mut drain) => None,
                slot = waiting => slot.ok(),
            };
            match slot {
                Some(_slot) => one(&worker, &delivery, drain).await,
                None => settle(&delivery, Settlement::Nak(Duration::ZERO)).await,
            }
        });
        self.tasks.insert(task.id(), (lane, stream_seq));
    }

    fn finished(&mut self, done: Result<(task::Id, ()), task::JoinError>) {
        let id = match done {
            Ok((id, ())) => id,
            // A fault of ours. It is not signalled for any more, times out, and comes again.
            Err(error) => {
                tracing::error!(consumer = C::NAME, %error, "a delivery ended in a panic of the framework; it will be delivered again");
                error.id()
            }
        };
        if let Some((lane, stream_seq)) = self.tasks.remove(&id) {
            self.in_hand.remove(&stream_seq);
            self.busy.remove(&lane);
            self.start(lane);
        }
    }

    /// From the engine, which runs no user code: a handler that blocks its thread delays no sign of life.
    async fn signal(&self) {
        for in_hand in self.in_hand.values() {
            let _ = in_hand.settle.settle(Settlement::InProgress).await;
        }
    }
}

impl Source {
    /// The next delivery. Waiting for it may be given up at any time.
    async fn next(&mut self, room: Room) -> Result<Delivery, BrokerError> {
        if let Source::Making(making) = self {
            *self = Source::Live(making.await?);
        }
        match self {
            Source::Live(subscription) => subscription.next(room).await,
            Source::Making(_) => std::future::pending().await,
        }
    }
}

/// Sees one delivery to its end: applied, a duplicate, set aside, or given back.
async fn one<C: Consumer>(worker: &Arc<Worker<C>>, delivery: &Delivery, drain: watch::Receiver<bool>) {
    let envelope = match Envelope::read(&delivery.message.headers, delivery.message.payload.clone()) {
        Ok(envelope) => Arc::new(envelope),
        Err(malformed) => {
            let key = nameless(worker, delivery);
            return set_aside(worker, &key, delivery, "malformed", &malformed.to_string(), drain).await;
        }
    };
    let key = Key {
        consumer: C::NAME.to_owned(),
        generation: worker.generation,
        source: envelope.source.clone(),
        event_id: envelope.id.clone(),
    };
    let mut restarts = Restarts::default();
    loop {
        let (failure, text) = match attempt(worker, &key, &envelope).await {
            Ending::Applied => {
                telemetry::consumer(telemetry::APPLIED, C::NAME);
                return settle(delivery, Settlement::Ack).await;
            }
            Ending::Duplicate => {
                telemetry::consumer(telemetry::DUPLICATES, C::NAME);
                tracing::debug!(consumer = C::NAME, id = key.event_id, "applied before");
                // Another copy of it may have failed while this one was applied.
                if delivery.delivered > 1 {
                    forget_attempts(worker, &key).await;
                }
                return settle(delivery, Settlement::Ack).await;
            }
            Ending::Later(reason) => {
                telemetry::consumer(telemetry::DEFERRED, C::NAME);
                tracing::warn!(
                    consumer = C::NAME,
                    id = key.event_id,
                    reason,
                    "given back for a release that can; tried again in {LATER:?}"
                );
                return settle(delivery, Settlement::Nak(LATER)).await;
            }
            Ending::Failed(failure, text) => (failure, text),
        };
        match after(failure, &mut restarts, rand::random()) {
            Next::Restart(delay) => {
                telemetry::consumer(telemetry::RESTARTS, C::NAME);
                tell_restart::<C>(&key, failure, &restarts, delay);
                if !paused(delay, drain.clone()).await {
                    return settle(delivery, Settlement::Nak(Duration::ZERO)).await;
                }
            }
            Next::Count => {
                telemetry::consumer(telemetry::FAILED_ATTEMPTS, C::NAME);
                let counting = insist(worker, Note::Attempt { key: &key, error: &text }, drain.clone());
                let Some(attempts) = counting.await else {
                    return settle(delivery, Settlement::Nak(Duration::ZERO)).await;
                };
                match counted(&worker.options.policy(), attempts, rand::random()) {
                    Some(delay) => {
                        tracing::warn!(
                            consumer = C::NAME,
                            id = key.event_id,
                            attempts,
                            ?failure,
                            ?delay,
                            "an attempt failed; the reason is in tidings.attempt"
                        );
                        return settle(delivery, Settlement::Nak(delay)).await;
                    }
                    None => return set_aside(worker, &key, delivery, "attempts exhausted", &text, drain).await,
                }
            }
            Next::Die => {
                let class =
                    if failure == Failure::EndedTransaction { "handler ended the transaction" } else { "permanent" };
                return set_aside(worker, &key, delivery, class, &text, drain).await;
            }
        }
    }
}

/// An outage is told now and then for as long as it lasts; the others are everyday.
fn tell_restart<C: Consumer>(key: &Key, failure: Failure, restarts: &Restarts, delay: Duration) {
    let (consumer, id) = (C::NAME, &key.event_id);
    if failure == Failure::Outage && restarts.outage.is_power_of_two() {
        tracing::warn!(
            consumer,
            id,
            times = restarts.outage,
            ?delay,
            "the database did not take an event; trying again, nothing is counted"
        );
    } else {
        tracing::debug!(consumer, id, ?failure, ?delay, "running it again; nothing is counted");
    }
}

/// Runs apply where handlers run. A panic that gets out of there is one more failure.
async fn attempt<C: Consumer>(worker: &Arc<Worker<C>>, key: &Key, envelope: &Arc<Envelope>) -> Ending {
    let terms = Terms { isolation: worker.options.isolation, timeout: worker.options.timeout };
    let (worker, key, envelope) = (Arc::clone(worker), key.clone(), Arc::clone(envelope));
    let handlers = worker.handlers.clone();
    let applying = handlers.spawn(async move { apply(&worker.consumer, &worker.pool, &key, &envelope, terms).await });
    applying.await.unwrap_or_else(|error| {
        if error.is_panic() {
            Ending::Failed(Failure::Transient, "the handler panicked".into())
        } else {
            Ending::Failed(Failure::Outage, "the handlers' runtime is stopping".into())
        }
    })
}

/// In our tables first, then forgotten by the broker (invariant 7).
async fn set_aside<C: Consumer>(
    worker: &Arc<Worker<C>>,
    key: &Key,
    delivery: &Delivery,
    class: &str,
    reason: &str,
    drain: watch::Receiver<bool>,
) {
    if insist(worker, Note::Dead { key, delivery, class, reason }, drain).await.is_none() {
        return settle(delivery, Settlement::Nak(Duration::ZERO)).await;
    }
    telemetry::dead(C::NAME);
    tracing::error!(
        consumer = C::NAME,
        id = key.event_id,
        class,
        "an event is set aside; message and reason are in tidings.consumer_dead_letter"
    );
    settle(delivery, Settlement::Ack).await;
}

/// Something that must be on record before the delivery is settled.
enum Note<'a> {
    Attempt { key: &'a Key, error: &'a str },
    Dead { key: &'a Key, delivery: &'a Delivery, class: &'a str, reason: &'a str },
}

impl Note<'_> {
    /// Returns the number of attempts on record, 0 for a dead letter.
    async fn write(&self, pool: &Pool) -> Result<u32, DatabaseError> {
        let mut connection = pool.get().await?;
        match self {
            Note::Attempt { key, error } => Ok(attempts::record(&mut connection, key, error).await?),
            Note::Dead { key, delivery, class, reason } => {
                dead::dead(&mut connection, key, delivery, class, reason).await?;
                Ok(0)
            }
        }
    }
}

/// Writes it, again and again until the database has answered; `None` when told to drain meanwhile.
async fn insist<C: Consumer>(worker: &Worker<C>, note: Note<'_>, drain: watch::Receiver<bool>) -> Option<u32> {
    let mut restarts = Restarts::default();
    loop {
        match note.write(&worker.pool).await {
            Ok(attempts) => return Some(attempts),
            Err(error) => {
                tracing::warn!(consumer = C::NAME, %error, "the database did not take a record; trying again");
                let Next::Restart(delay) = after(Failure::Outage, &mut restarts, rand::random()) else { return None };
                if !paused(delay, drain.clone()).await {
                    return None;
                }
            }
        }
    }
}

async fn forget_attempts<C: Consumer>(worker: &Worker<C>, key: &Key) {
    if let Ok(mut connection) = worker.pool.get().await {
        let _ = attempts::clear(&mut connection, key).await;
    }
}

/// Waits; `false` when told to drain meanwhile.
async fn paused(delay: Duration, mut drain: watch::Receiver<bool>) -> bool {
    tokio::time::timeout(delay, told_to_drain(&mut drain)).await.is_err()
}

/// Without an actor that could say so it is said.
async fn told_to_drain(drain: &mut watch::Receiver<bool>) {
    let _ = drain.wait_for(|draining| *draining).await;
}

/// The aggregate, or the message itself where there is none.
fn lane_of(delivery: &Delivery) -> String {
    let header = |wanted: &str| {
        delivery
            .message
            .headers
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(wanted))
            .map(|(_, value)| value.as_str())
    };
    match (header("ce-aggregatetype"), header("ce-aggregateid")) {
        (Some(r#type), Some(id)) => format!("{type} {id}"),
        _ => format!(" {}", delivery.stream_seq),
    }
}

/// A message without a usable identity is known by its place.
fn nameless<C: Consumer>(worker: &Worker<C>, delivery: &Delivery) -> Key {
    Key {
        consumer: C::NAME.to_owned(),
        generation: worker.generation,
        source: delivery.stream.clone(),
        event_id: format!("{}/{}", delivery.stream, delivery.stream_seq),
    }
}

/// For events of a newer release: long enough to cost nothing, short enough for a rolling deploy.
const LATER: Duration = Duration::from_secs(15);
const RESUBSCRIBE: Backoff = Backoff { min: Duration::from_millis(50), max: Duration::from_secs(2) };
/// What the broker had sent already when a drain began; it answers at once or not at all.
const ON_ITS_WAY: Duration = Duration::from_secs(2);
