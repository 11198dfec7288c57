//! Step 3: one pass over a partition: claim, publish, confirm, and look again when it pays.
//!
//! The *serial* strategy: at most one message of a lane is in flight, many lanes at once. What follows from each answer
//! is decided in [`outcome`](crate::protocol::outcome).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::task::{JoinError, JoinHandle};

use super::claim::{Claimed, Window, claim};
use super::confirm::{Confirmed, Evidence, confirm};
use super::dead::dead;
use super::lease::{Tenancy, Trust};
use super::release::release;
use crate::broker::jetstream::subject_of;
use crate::broker::{Message, Outcome, Publisher, Refusal, Unclear};
use crate::failpoint::failpoint;
use crate::postgres::{Error as DatabaseError, Pool};
use crate::protocol::backoff::Backoff;
use crate::protocol::breaker::{Ask, Breaker};
use crate::protocol::lanes::{Lanes, queues};
use crate::protocol::outcome::{Next, next};
use crate::protocol::pace::{Found, Pace};
use crate::telemetry;

/// The limits of a relay.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) window: usize,
    pub(crate) window_bytes: usize,
    pub(crate) in_flight: usize,
    pub(crate) backoff: Backoff,
}

/// One owner's time with one partition: everything in it is forgotten with the epoch.
pub(crate) struct Tenure {
    pool: Pool,
    publisher: Box<dyn Publisher>,
    source: String,
    tenancy: Tenancy,
    trust: Arc<Trust>,
    limits: Limits,
    lanes: Lanes,
    breaker: Breaker,
    pace: Pace,
    /// Stored by the broker and not yet recorded: the database did not answer.
    evidence: Vec<Evidence>,
    /// Events that waited since the last probe, and when that was last said.
    waited: u64,
    said: Option<Instant>,
    /// Passes in a row in which the broker took nothing of what it was offered.
    barren: u32,
}

/// Why a pass ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Interrupted {
    /// Another node owns the partition now.
    #[error("the lease of partition {0} was lost to another node")]
    LeaseLost(i32),
    /// The stream does not answer; another connection finds it, or makes it again.
    #[error("the stream does not answer; its connection is opened anew")]
    Silent,
    /// The database did not answer; what was claimed is dropped.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

impl Tenure {
    pub(crate) fn new(
        pool: Pool,
        publisher: Box<dyn Publisher>,
        source: String,
        tenancy: Tenancy,
        trust: Arc<Trust>,
        limits: Limits,
    ) -> Tenure {
        telemetry::breaker(tenancy.partition, false);
        let breaker = Breaker::new(Backoff { min: Duration::from_millis(100), max: Duration::from_secs(2) });
        Tenure {
            pool,
            publisher,
            source,
            tenancy,
            trust,
            limits,
            lanes: Lanes::default(),
            breaker,
            pace: Pace::new(),
            evidence: Vec::new(),
            waited: 0,
            said: None,
            barren: 0,
        }
    }

    /// One pass; returns how long to wait before the next, unless woken.
    ///
    /// # Errors
    /// [`Interrupted::LeaseLost`] ends the tenure, [`Interrupted::Silent`] asks for another one; after
    /// [`Interrupted::Database`] the next pass starts anew.
    pub(crate) async fn pass(&mut self) -> Result<Duration, Interrupted> {
        if !self.trust.holds() {
            return Ok(self.pace.after(Found::Nothing));
        }
        self.record_what_is_stored().await?;
        match self.breaker.ask(Instant::now()) {
            Ask::Publish => {}
            Ask::Wait(time) => return Ok(time),
            Ask::Probe => {
                let answers = self.publisher.probe().await;
                let now = Instant::now();
                if answers {
                    self.breaker.close();
                    self.say_what_waits(now);
                } else {
                    self.breaker.open(now, rand::random())
                }
                telemetry::breaker(self.tenancy.partition, self.breaker.is_open());
                if self.breaker.failures() >= SILENT_AFTER {
                    return Err(Interrupted::Silent);
                }
                if let Ask::Wait(time) = self.breaker.ask(now) {
                    tracing::warn!(
                        partition = self.tenancy.partition.0,
                        "the broker does not answer; nothing is published until it does"
                    );
                    return Ok(time);
                }
            }
        }
        let rows = self.claim().await?;
        failpoint!("relay::claimed");
        let found = match rows.len() {
            0 => Found::Nothing,
            full if full >= self.limits.window => Found::Full,
            _ => Found::Some,
        };
        if !rows.is_empty() {
            self.publish(rows).await?;
        }
        let wait = self.pace.after(found);
        let now = Instant::now();
        let wait = self.lanes.next_free(now).map_or(wait, |free| wait.min(free - now));
        Ok(if self.is_barren() { wait.max(LANE_BACKOFF.delay(self.barren, rand::random())) } else { wait })
    }

    /// The broker answers and takes nothing, as with a full stream: a hint that there is more to publish changes nothing.
    pub(crate) fn is_barren(&self) -> bool {
        self.barren > 0
    }

    async fn claim(&mut self) -> Result<Vec<Claimed>, Interrupted> {
        let window = Window {
            rows: i64::try_from(self.limits.window).unwrap_or(i64::MAX),
            bytes: i64::try_from(self.limits.window_bytes).unwrap_or(i64::MAX),
            row_bytes: i64::try_from(self.publisher.max_message_bytes()).unwrap_or(i64::MAX),
            retry_ceiling_ms: i64::try_from(self.limits.backoff.max.as_millis()).unwrap_or(i64::MAX),
        };
        let held = self.lanes.held(Instant::now());
        let (source, partition) = (self.source.as_str(), self.tenancy.partition);
        // The connection goes back before anything is published: none is held over broker I/O.
        let claiming = self.pool.run(async |connection| claim(connection, source, partition, held, window).await);
        Ok(claiming.await?)
    }

    async fn publish(&mut self, rows: Vec<Claimed>) -> Result<(), Interrupted> {
        let mut queues = queues(rows, |row| row.lane);
        let mut ready: VecDeque<usize> = (0..queues.len()).collect();
        let mut in_flight = FuturesUnordered::new();
        let mut confirming: Option<JoinHandle<Confirming>> = None;
        let mut counts = Counts::default();
        let mut result = Ok(());
        let in_flight_limit = if self.is_barren() { 1 } else { self.limits.in_flight };
        loop {
            while in_flight.len() < in_flight_limit && result.is_ok() && self.may_publish() {
                let Some(queue) = ready.pop_front() else { break };
                let Some(row) = queues[queue].pop_front() else { continue };
                counts.publishes += 1;
                let outcome = self.send(&row).await;
                in_flight.push(async move { (queue, row, outcome.await) });
            }
            if confirming.is_none() && !self.evidence.is_empty() && result.is_ok() {
                confirming = Some(self.confirming());
            }
            if in_flight.is_empty() && confirming.is_none() {
                break;
            }
            tokio::select! {
                biased;
                Some((queue, row, outcome)) = in_flight.next(), if !in_flight.is_empty() => {
                    match self.follow(&row, &outcome, &mut counts).await {
                        Ok(true) => ready.push_back(queue),
                        Ok(false) => {}
                        Err(interrupted) => result = result.and(Err(interrupted)),
                    }
                }
                done = async { confirming.as_mut().expect("guarded").await }, if confirming.is_some() => {
                    confirming = None;
                    if let Err(interrupted) = self.confirmed(joined(done)) {
                        result = result.and(Err(interrupted));
                    }
                }
            }
        }
        telemetry::published(self.tenancy.partition, counts.publishes, counts.duplicates);
        self.barren = match counts {
            Counts { stored: 1.., .. } => 0,
            Counts { waited: 0, .. } => self.barren,
            Counts { .. } => self.barren.saturating_add(1),
        };
        result
    }

    /// Trust is looked at before every message, and silence of the broker stops the pass.
    fn may_publish(&self) -> bool {
        self.trust.holds() && self.breaker.ask(Instant::now()) == Ask::Publish
    }

    async fn send(&self, row: &Claimed) -> BoxFuture<'static, Outcome> {
        if let Some(refusal) = row.unreadable.or_else(|| row.envelope.refusal()) {
            return futures_util::future::ready(Outcome::Refused(refusal)).boxed();
        }
        let subject = subject_of(&row.envelope, self.tenancy.partition.0);
        let headers = row.envelope.to_headers();
        let bytes = row.envelope.data.len() + headers.iter().map(|(n, v)| n.len() + v.len() + 4).sum::<usize>();
        if bytes > self.publisher.max_message_bytes() {
            return futures_util::future::ready(Outcome::Refused(Refusal::TooLarge)).boxed();
        }
        let message = Message::new(subject, row.envelope.message_id(), headers, row.envelope.data.clone());
        let deadline = Instant::now() + self.publisher.answers_within();
        let acknowledgement = self.publisher.send(message, None).await;
        failpoint!("relay::sent");
        async move {
            let answer = tokio::time::timeout_at(deadline.into(), acknowledgement).await;
            answer.unwrap_or(Outcome::Unconfirmed(Unclear::TimedOut))
        }
        .boxed()
    }

    /// Does what follows from an answer; `true` if the lane may go on.
    async fn follow(&mut self, row: &Claimed, outcome: &Outcome, counts: &mut Counts) -> Result<bool, Interrupted> {
        match next(outcome) {
            Next::Confirm(stored) => {
                failpoint!("relay::acknowledged");
                counts.stored += 1;
                counts.duplicates += u64::from(stored.duplicate);
                self.lanes.free(row.lane);
                let stream_seq = i64::try_from(stored.stream_seq).unwrap_or(i64::MAX);
                self.evidence.push(Evidence { seq: row.seq, id_hash: row.id_hash, stream_seq });
                Ok(true)
            }
            Next::Wait => {
                let now = Instant::now();
                self.lanes.hold(row.lane, now, &LANE_BACKOFF, rand::random());
                self.breaker.suspect(now);
                self.waited += 1;
                counts.waited += 1;
                Ok(false)
            }
            Next::Retry(error) => {
                let attempts = u32::try_from(row.attempts).unwrap_or(0).saturating_add(1);
                let delay = self.limits.backoff.delay(attempts, rand::random());
                tracing::warn!(
                    seq = row.seq,
                    id = row.envelope.id,
                    attempts,
                    ?delay,
                    error,
                    "an event could not be published; it will be tried again"
                );
                let tenancy = self.tenancy;
                let releasing =
                    self.pool.run(async |connection| release(connection, &tenancy, row, delay, &error).await);
                let ours = releasing.await?;
                self.still_ours(ours).map(|()| false)
            }
            Next::Die(reason) => {
                tracing::error!(
                    seq = row.seq,
                    id = row.envelope.id,
                    reason,
                    "an event can never be published and is set aside; its aggregate waits behind it"
                );
                let tenancy = self.tenancy;
                let ours = self.pool.run(async |connection| dead(connection, &tenancy, row, &reason).await).await?;
                telemetry::dead("relay");
                self.still_ours(ours).map(|()| false)
            }
        }
    }

    /// One confirmation in flight; what is acknowledged meanwhile makes the next batch. It runs by itself, so that its
    /// connection comes back while the pass waits for another.
    fn confirming(&mut self) -> JoinHandle<Confirming> {
        let batch = std::mem::take(&mut self.evidence);
        let (pool, tenancy, incarnation) = (self.pool.clone(), self.tenancy, self.publisher.incarnation());
        tokio::spawn(async move {
            let evidence = batch.clone();
            let recording =
                pool.run(async |connection| confirm(connection, &tenancy, incarnation, evidence).await).await;
            match recording {
                Ok(confirmed) => Confirming::Done(confirmed),
                Err(error) => Confirming::Failed(batch, error),
            }
        })
    }

    fn confirmed(&mut self, done: Confirming) -> Result<(), Interrupted> {
        match done {
            Confirming::Done(confirmed) => {
                failpoint!("relay::confirmed");
                telemetry::confirmed(self.tenancy.partition, u64::try_from(confirmed.ended).unwrap_or(0));
                self.still_ours(confirmed.ours)
            }
            // Kept: it is recorded before anything else is published.
            Confirming::Failed(batch, error) => {
                self.evidence.extend(batch);
                Err(error.into())
            }
        }
    }

    /// The broker is there and events were turned away, as by a full stream: nothing is counted, so nothing else would
    /// say it.
    fn say_what_waits(&mut self, now: Instant) {
        let waited = std::mem::take(&mut self.waited);
        if waited > 0 && self.said.is_none_or(|said| now - said > SAY_AGAIN) {
            self.said = Some(now);
            tracing::warn!(
                partition = self.tenancy.partition.0,
                waited,
                "the stream answers, but did not take or acknowledge events: is it full? They are tried again"
            );
        }
    }

    async fn record_what_is_stored(&mut self) -> Result<(), Interrupted> {
        if self.evidence.is_empty() {
            return Ok(());
        }
        let done = joined(self.confirming().await);
        self.confirmed(done)
    }

    fn still_ours(&self, ours: bool) -> Result<(), Interrupted> {
        if ours { Ok(()) } else { Err(Interrupted::LeaseLost(self.tenancy.partition.0)) }
    }
}

enum Confirming {
    Done(Confirmed),
    Failed(Vec<Evidence>, DatabaseError),
}

/// A panic in it is one of the pass; what it was to record is published again and found stored.
fn joined(ended: Result<Confirming, JoinError>) -> Confirming {
    match ended.map_err(JoinError::try_into_panic) {
        Ok(confirming) => confirming,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        Err(Err(_)) => Confirming::Failed(Vec::new(), DatabaseError::Stopping),
    }
}

#[derive(Default)]
struct Counts {
    publishes: u64,
    duplicates: u64,
    stored: u64,
    waited: u64,
}

/// Probes without an answer before the connection is opened anew.
const SILENT_AFTER: u32 = 3;
const SAY_AGAIN: Duration = Duration::from_secs(10);
/// For lanes whose message had no answer: the breaker usually closes first.
const LANE_BACKOFF: Backoff = Backoff { min: Duration::from_millis(50), max: Duration::from_secs(5) };
