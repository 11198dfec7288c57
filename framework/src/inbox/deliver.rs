//! Step 5: take messages from one stream, spread them over lanes, and see each to its end (`follow.rs`).

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::task::{self, JoinSet};

use super::follow::{one, told_to_drain};
use super::settle::settle;
use crate::broker::{
    Broker, Delivery, Error as BrokerError, Room, Settle, Settlement, StreamInfo, Subscription, SubscriptionSpec,
};
use crate::consumer::{Accepts, Consumer, Options};
use crate::postgres::Pool;
use crate::protocol::backoff::Backoff;

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

const RESUBSCRIBE: Backoff = Backoff { min: Duration::from_millis(50), max: Duration::from_secs(2) };
/// What the broker had sent already when a drain began; it answers at once or not at all.
const ON_ITS_WAY: Duration = Duration::from_secs(2);
