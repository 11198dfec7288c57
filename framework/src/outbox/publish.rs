//! Steps 2 to 4 at work: one owner's time with one partition. Rows are read ahead, published as a chain, and confirmed in
//! batches, all at the same time; nothing is held over the broker's answers, and anything unclear ends the connection and is
//! decided by reading the stream.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{FutureExt, StreamExt};
use tokio::sync::watch;

use super::board::Board;
use super::claim::ClaimedRow;
use super::confirm::{Confirming, LINGER};
use super::lease::{Tenancy, Trust};
use super::link::{Link, message_of};
use super::read::{Answer, Reader};
use super::reconcile::{Stopped, reconcile};
use super::task::Task;
use crate::broker::{Broker, Message, StreamSpec};
use crate::event;
use crate::failpoint::failpoint;
use crate::postgres::{Error as DatabaseError, Pool};
use crate::protocol::backoff::Backoff;
use crate::protocol::breaker::{Ask, Breaker};
use crate::protocol::lanes::Lanes;
use crate::protocol::lease::Epoch;
use crate::telemetry;

/// The limits of a relay.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    pub(crate) window: usize,
    pub(crate) window_bytes: usize,
    pub(crate) in_flight: usize,
    pub(crate) backoff: Backoff,
    pub(crate) sync_horizon: Duration,
    /// Aggregate types in which a dead event is discarded automatically.
    pub(crate) skip: Arc<BTreeSet<String>>,
}

/// What a tenure works with.
#[derive(Clone)]
pub(crate) struct Ground {
    pub(crate) pool: Pool,
    pub(crate) broker: Arc<dyn Broker>,
    pub(crate) source: String,
    pub(crate) partitions: i32,
    pub(crate) limits: Limits,
    pub(crate) board: Board,
}

/// One owner's time with one partition, over one connection after another.
pub(crate) struct Tenure {
    pub(super) ground: Ground,
    pub(super) tenancy: Tenancy,
    trust: Arc<Trust>,
    wakes: watch::Receiver<u64>,
    pub(super) lanes: Lanes,
    pub(super) breaker: Breaker,
    /// Messages that go one at a time, after a run in which it was not clear which of them was to blame.
    pub(super) singly: usize,
    /// Runs in a row in which the broker took nothing because it is full.
    pub(super) barren: u32,
    pub(super) said_full: Option<Instant>,
    /// There was a connection before.
    linked: bool,
    link: Option<Link>,
    /// A confirmation that a pass has left behind.
    confirming: Option<Task<Confirming>>,
}

/// Why a pass ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Interrupted {
    /// Another node owns the partition now.
    #[error("the lease of partition {0} was lost to another node")]
    LeaseLost(i32),
    /// It is not known what the broker stored; the stream is read before anything else is published.
    #[error("{0}; the stream is read before anything else is published")]
    Unclear(String),
    /// The stream and the database do not fit together, or one of them does not answer.
    #[error(transparent)]
    Stopped(Stopped),
    /// The database did not answer; what was claimed is dropped.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

impl Interrupted {
    /// It does not go away by itself.
    pub(crate) fn is_alarming(&self) -> bool {
        matches!(self, Interrupted::Stopped(Stopped::Foreign { .. }))
    }
}

/// How a pass ended: nothing is in hand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rest {
    /// When to make the next one, unless woken.
    pub(crate) wait: Duration,
    /// Something new would stand above this place; `None` while the broker takes nothing.
    pub(crate) floor: Option<i64>,
}

impl Tenure {
    /// `linked`: there may have been a connection of this tenancy before.
    pub(crate) fn new(
        ground: Ground,
        tenancy: Tenancy,
        trust: Arc<Trust>,
        wakes: watch::Receiver<u64>,
        linked: bool,
    ) -> Tenure {
        telemetry::breaker(tenancy.partition, false);
        Tenure {
            ground,
            tenancy,
            trust,
            wakes,
            lanes: Lanes::new(MEMORY),
            breaker: Breaker::new(PROBES),
            singly: 0,
            barren: 0,
            said_full: None,
            linked,
            link: None,
            confirming: None,
        }
    }

    /// The broker answers and takes nothing, as with a full stream: a hint that there is more to publish changes nothing.
    pub(crate) fn is_barren(&self) -> bool {
        self.barren > 0
    }

    /// Somebody in this process has appended since it was looked last.
    pub(crate) fn has_hint(&self) -> bool {
        self.wakes.has_changed().unwrap_or(false)
    }

    /// Publishes what there is, until nothing is in hand. `None`: the runtime ended.
    ///
    /// # Errors
    /// [`Interrupted::LeaseLost`] ends the tenure; after everything else the next pass begins with a new connection.
    pub(crate) async fn pass(mut self: Box<Tenure>) -> Option<(Box<Tenure>, Result<Rest, Interrupted>)> {
        if !self.trust.holds() {
            return Some((self, Ok(Rest { wait: UNTRUSTED, floor: None })));
        }
        if let Ask::Wait(wait) = self.breaker.ask(Instant::now()) {
            return Some((self, Ok(Rest { wait, floor: None })));
        }
        let mut link = match self.link.take() {
            Some(link) => link,
            None => match self.open().await {
                Ok(link) => link,
                Err(interrupted) => return Some((self, Err(interrupted))),
            },
        };
        let runtime = link.publisher.runtime();
        let running = async move {
            let result = self.run(&mut link).await;
            (self, link, result)
        };
        let (mut tenure, link, result) = match runtime {
            Some(runtime) => Task::spawn_on(&runtime, running).join().await?,
            None => running.await,
        };
        match result {
            Ok(_) => tenure.link = Some(link),
            // What was claimed is claimed anew; the connection goes with all that it has not sent.
            Err(_) => tenure.lanes.give_back(),
        }
        Some((tenure, result))
    }

    async fn open(&mut self) -> Result<Link, Interrupted> {
        // It may still move the anchor: what it said of the stream has to be there before the stream is read.
        if let Some(mut confirming) = self.confirming.take() {
            let _ = confirming.join().await;
        }
        let history = self.ground.pool.history();
        let spec = StreamSpec {
            source: self.ground.source.clone(),
            partition: self.tenancy.partition.0,
            partitions: self.ground.partitions,
        };
        let publisher = self.ground.broker.publisher(spec).await.map_err(|error| Interrupted::Stopped(error.into()))?;
        event::Limits::lower_to(publisher.max_message_bytes());
        let (pool, horizon) = (&self.ground.pool, self.ground.limits.sync_horizon);
        let reconciling = reconcile(pool, history, &*publisher, &self.ground.source, &self.tenancy, horizon);
        let reconciled = reconciling.await;
        telemetry::stopped(self.tenancy.partition, matches!(reconciled, Err(Stopped::Foreign { .. })));
        let last = reconciled.map_err(|stopped| match stopped {
            Stopped::LeaseLost => Interrupted::LeaseLost(self.tenancy.partition.0),
            Stopped::Database(error) => Interrupted::Database(error),
            other @ (Stopped::Broker(_) | Stopped::Foreign { .. }) => Interrupted::Stopped(other),
        })?;
        self.breaker.close();
        telemetry::breaker(self.tenancy.partition, false);
        let earlier = self.tenancy.epoch != Epoch(1) || std::mem::replace(&mut self.linked, true);
        Ok(Link::new(publisher, self.tenancy, &self.ground.limits, last, earlier, history))
    }

    async fn run(&mut self, link: &mut Link) -> Result<Rest, Interrupted> {
        let mut confirming = None;
        let result = self.work(link, &mut confirming).await;
        self.confirming = confirming;
        result
    }

    async fn work(&mut self, link: &mut Link, confirming: &mut Option<Task<Confirming>>) -> Result<Rest, Interrupted> {
        self.check_position(link).await?;
        link.reader.hint();
        let barren = self.barren;
        let mut reading: Option<Task<Result<Answer, DatabaseError>>> = None;
        loop {
            let now = Instant::now();
            // Tried once more in vain: the next try is the next pass.
            let stops = !self.trust.holds() || self.barren > barren;
            if self.ground.pool.history() != link.history {
                return Err(Interrupted::Unclear("PostgreSQL was restarted, or is another server now".into()));
            }
            if reading.is_none() && !stops {
                reading = self.read(link, now);
            }
            if !stops {
                self.send(link).await?;
            }
            if confirming.is_none() {
                let idle = link.in_flight.is_empty() && (stops || (link.queue.is_empty() && reading.is_none()));
                *confirming = self.confirm(link, idle, now);
            }
            let nothing_to_send = stops || (link.queue.is_empty() && reading.is_none());
            if nothing_to_send && link.in_flight.is_empty() && confirming.is_none() && link.stored.is_empty() {
                return Ok(self.rest(link));
            }
            let deadline = link.deadline(now);
            let linger = link.stored_at.filter(|_| confirming.is_none()).map(|at| at + LINGER);
            tokio::select! {
                biased;
                Some((ticket, outcome)) = link.in_flight.next(), if !link.in_flight.is_empty() => {
                    self.answered(link, ticket, outcome).await?;
                    while let Some(Some((ticket, outcome))) = link.in_flight.next().now_or_never() {
                        self.answered(link, ticket, outcome).await?;
                    }
                    self.ended(link).await?;
                }
                answer = async { reading.as_mut().expect("guarded").join().await }, if reading.is_some() => {
                    reading = None;
                    self.took(link, answer.unwrap_or(Err(DatabaseError::Stopping))?);
                }
                done = async { confirming.as_mut().expect("guarded").join().await }, if confirming.is_some() => {
                    *confirming = None;
                    self.confirmed(done)?;
                }
                () = until(deadline), if deadline.is_some() => {
                    for ticket in link.chain.gave_up() {
                        link.sent.remove(&ticket);
                    }
                    link.in_flight.clear();
                    return Err(Interrupted::Unclear("the broker did not acknowledge what was published in time".into()));
                }
                () = until(linger), if linger.is_some() => {}
                Ok(()) = self.wakes.changed() => link.reader.hint(),
            }
        }
    }

    fn read(&mut self, link: &mut Link, now: Instant) -> Option<Task<Result<Answer, DatabaseError>>> {
        let limits = &self.ground.limits;
        let full = link.queue_bytes >= i64::try_from(limits.window_bytes).unwrap_or(i64::MAX);
        let room = if full || self.barren > 0 { 0 } else { limits.window.saturating_sub(link.queue.len()) };
        // Half a window at least, or a long queue would be topped up row by row.
        let room = if room * 2 < limits.window { 0 } else { limits.window };
        let query = link.reader.next(&mut self.lanes, room, now)?;
        let ceiling_ms = i64::try_from(limits.backoff.max.as_millis()).unwrap_or(i64::MAX);
        let (pool, source) = (self.ground.pool.clone(), self.ground.source.clone());
        Some(Task::spawn(Reader::ask_database(pool, source, self.tenancy, ceiling_ms, query)))
    }

    fn took(&mut self, link: &mut Link, answer: Answer) {
        let claimed = link.reader.took(answer, &mut self.lanes, Instant::now());
        if !claimed.is_empty() {
            failpoint!("relay::claimed");
        }
        link.queue_bytes += claimed.iter().map(|claimed| claimed.bytes).sum::<i64>();
        link.queue.extend(claimed);
    }

    /// Sends as much as may be in flight. Trust is looked at before every message.
    async fn send(&mut self, link: &mut Link) -> Result<(), Interrupted> {
        let batch = link.publisher.batch().filter(|_| self.singly == 0 && self.barren == 0);
        let careful = link.chain.last() < link.careful_until;
        let limit = match batch {
            Some(_) if careful => 1,
            Some(_) => BATCHES_IN_FLIGHT,
            None if self.singly > 0 || self.barren > 0 => 1,
            None => self.ground.limits.in_flight,
        };
        let bytes = i64::try_from(self.ground.limits.window_bytes).unwrap_or(i64::MAX);
        let mut publishes = 0;
        while link.chain.in_flight() < limit
            && link.sent_bytes < bytes
            && !link.chain.is_broken()
            && !link.queue.is_empty()
            && self.trust.holds()
        {
            let want = batch.map_or(1, |most| most.min(BATCH));
            if want > 1 && link.queue.len() < SMALL_BATCH && link.chain.in_flight() > 0 {
                break;
            }
            let (rows, mut messages) = self.take(link, want, careful).await?;
            let Some(last) = messages.pop() else { break };
            let expected = link.chain.expected();
            let count = rows.len();
            let answer = if messages.is_empty() {
                link.publisher.send(last, Some(expected)).await
            } else {
                messages.push(last);
                link.publisher.send_batch(messages, expected).await
            };
            failpoint!("relay::sent");
            publishes += count;
            self.singly = self.singly.saturating_sub(count);
            let ticket = link.chain.sent(u64::try_from(count).unwrap_or(u64::MAX));
            link.sent_bytes += rows.iter().map(|claimed| claimed.bytes).sum::<i64>();
            link.sent.insert(ticket, rows);
            link.deadlines.push_back((ticket, Instant::now() + link.publisher.answers_within()));
            link.in_flight.push(async move { (ticket, answer.await) }.boxed());
            // What is only queued is not on its way: a process that is frozen now would send it when it wakes up.
            if publishes % SENT_AT_ONCE < count {
                tokio::task::yield_now().await;
            }
        }
        telemetry::publishes(self.tenancy.partition, publishes);
        Ok(())
    }

    /// Takes rows from the queue that can be sent; what cannot be is set aside here. `careful`: up to one whose lane has
    /// another in flight.
    async fn take(
        &mut self,
        link: &mut Link,
        want: usize,
        careful: bool,
    ) -> Result<(Vec<ClaimedRow>, Vec<Message>), Interrupted> {
        let (mut rows, mut messages) = (Vec::with_capacity(want), Vec::with_capacity(want));
        let mut bytes = 0;
        let now = Instant::now();
        while rows.len() < want && bytes < BATCH_BYTES {
            let Some(claimed) = link.queue.pop_front() else { break };
            if careful && link.is_in_flight(claimed.row.lane) {
                link.queue.push_front(claimed);
                break;
            }
            link.queue_bytes -= claimed.bytes;
            if self.lanes.is_held(claimed.row.lane, now) {
                self.lanes.give_back_from(claimed.row.lane, claimed.row.seq, claimed.row.previous);
                continue;
            }
            match message_of(&claimed, self.tenancy.partition.0, link.publisher.max_message_bytes()) {
                Ok(message) => {
                    bytes += message.payload.len();
                    rows.push(claimed);
                    messages.push(message);
                }
                Err(refusal) => {
                    self.withdraw(link, &claimed);
                    self.set_aside(&claimed, refusal).await?;
                }
            }
        }
        Ok((rows, messages))
    }

    fn rest(&mut self, link: &mut Link) -> Rest {
        let now = Instant::now();
        if self.barren > 0 {
            return Rest { wait: BARREN.delay(self.barren, rand::random()), floor: None };
        }
        link.reader.rest();
        let next = link.reader.next_look(&self.lanes).min(link.position_at + POSITION_EVERY);
        Rest { wait: next.saturating_duration_since(now), floor: Some(link.reader.floor()) }
    }

    /// Now and then at rest: whether the stream still ends where our last message is.
    async fn check_position(&mut self, link: &mut Link) -> Result<(), Interrupted> {
        if link.position_at.elapsed() < POSITION_EVERY || !link.queue.is_empty() {
            return Ok(());
        }
        let position = link.publisher.position().await.map_err(|error| Interrupted::Stopped(error.into()))?;
        link.position_at = Instant::now();
        if position.incarnation == link.publisher.incarnation() && position.last_seq == link.chain.expected() {
            return Ok(());
        }
        Err(Interrupted::Unclear("the stream does not end with our last message".into()))
    }

    pub(super) fn still_ours(&self, ours: bool) -> Result<(), Interrupted> {
        if ours { Ok(()) } else { Err(Interrupted::LeaseLost(self.tenancy.partition.0)) }
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

/// Lanes remembered, so that their next row need not be asked for.
const MEMORY: usize = 100_000;
pub(super) const BATCH: usize = 500;
const BATCH_BYTES: usize = 4 * 1024 * 1024;
pub(super) const BATCHES_IN_FLIGHT: usize = 4;
/// A batch that is smaller waits for more, while another one is under way.
const SMALL_BATCH: usize = 32;
/// Messages handed over before the connection, which runs on the same thread, writes them.
const SENT_AT_ONCE: usize = 16;
const POSITION_EVERY: Duration = Duration::from_secs(30);
const UNTRUSTED: Duration = Duration::from_millis(100);
const PROBES: Backoff = Backoff { min: Duration::from_millis(100), max: Duration::from_secs(2) };
/// While the broker takes nothing.
const BARREN: Backoff = Backoff { min: Duration::from_millis(50), max: Duration::from_secs(5) };
