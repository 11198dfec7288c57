//! What follows a delivery: it is applied, found done, tried again, given back, or set aside.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::apply::{Ending, Key, Terms, apply};
use super::deliver::Worker;
use super::settle::settle;
use super::{attempts, dead};
use crate::broker::{Delivery, Settlement};
use crate::consumer::Consumer;
use crate::envelope::Envelope;
use crate::postgres::{Error as DatabaseError, Pool};
use crate::protocol::attempt::{Failure, Next, Restarts, after, counted};
use crate::telemetry;

/// Sees one delivery to its end: applied, a duplicate, set aside, or given back.
pub(super) async fn one<C: Consumer>(worker: &Arc<Worker<C>>, delivery: &Delivery, drain: watch::Receiver<bool>) {
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
                if delivery.delivered > MAX_LATER {
                    return set_aside(worker, &key, delivery, "another release", &reason, drain).await;
                }
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
                tell_restart::<C>(&key, failure, &text, &restarts, delay);
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
/// Its text is that of our own statements; those of a handler may hold anything.
fn tell_restart<C: Consumer>(key: &Key, failure: Failure, text: &str, restarts: &Restarts, delay: Duration) {
    let (consumer, id) = (C::NAME, &key.event_id);
    if failure == Failure::Outage && restarts.outage.is_power_of_two() {
        tracing::warn!(
            consumer,
            id,
            times = restarts.outage,
            error = text,
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
        pool.run(async |connection| match self {
            Note::Attempt { key, error } => attempts::record(connection, key, error).await,
            Note::Dead { key, delivery, class, reason } => {
                dead::dead(connection, key, delivery, class, reason).await.map(|()| 0)
            }
        })
        .await
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
pub(super) async fn told_to_drain(drain: &mut watch::Receiver<bool>) {
    let _ = drain.wait_for(|draining| *draining).await;
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

/// Deliveries after which an event that no release here takes is set aside: about an hour.
const MAX_LATER: u64 = 240;
/// For events of a newer release: long enough to cost nothing, short enough for a rolling deploy.
const LATER: Duration = Duration::from_secs(15);
