//! The node: heartbeat, leases, and which partitions have an actor here. It runs on an arbiter on which nothing else runs,
//! and over a connection of its own.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{self, Arc};
use std::time::{Duration, Instant};

use actix::prelude::*;
use diesel_async::AsyncPgConnection;
use futures_util::FutureExt;
use tokio::sync::Mutex;

use super::Drain;
use super::partition::{Partition, Seed};
use super::supervisor::{Panics, supervise};
use crate::broker::Error as BrokerError;
use crate::failpoint::failpoint;
use crate::outbox::lease::{self, Look, Tenancy, Trust};
use crate::outbox::pause::Pause;
use crate::postgres::{Database, Error as DatabaseError};
use crate::protocol::lease::{Epoch, Partition as Number, Terms};
use crate::protocol::membership::{Plan, Watch};
use crate::telemetry;

/// When the broker was last reached.
#[derive(Debug, Default)]
pub(crate) struct Reach(sync::Mutex<Option<Instant>>);

impl Reach {
    fn now(&self) {
        *self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(Instant::now());
    }

    /// One look that had no answer makes nobody unable.
    fn within(&self, time: Duration) -> bool {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).is_some_and(|last| last.elapsed() < time)
    }
}

/// A node's place among the others: a fresh random id at every start.
pub(crate) struct Membership {
    pub(crate) database: Database,
    pub(crate) id: uuid::Uuid,
    pub(crate) name: String,
    pub(crate) terms: Terms,
    pub(crate) reach: Arc<Reach>,
    pub(crate) connection: Option<AsyncPgConnection>,
    pub(crate) watch: Watch,
    /// When the leases were last renewed, and what was said of us then.
    pub(crate) renewed: Option<(Instant, bool)>,
}

impl Membership {
    fn renewal_in(&self) -> Duration {
        let due = self.renewed.map(|(at, _)| at + self.terms.renew_every);
        due.map_or(Duration::ZERO, |due| due.saturating_duration_since(Instant::now()))
    }
}

pub(crate) struct Node {
    seed: Seed,
    work: Vec<ArbiterHandle>,
    terms: Terms,
    id: uuid::Uuid,
    membership: Option<Membership>,
    owned: HashMap<Number, Owned>,
    /// When a partition was let go: what an earlier heartbeat says about it is out of date.
    let_go: HashMap<Number, Instant>,
    /// Held by a heartbeat under way.
    beating: Arc<Mutex<()>>,
    paused: Option<Pause>,
    draining: bool,
    panics: Panics,
    rebuild: Box<dyn Fn() -> Membership + Send>,
}

struct Owned {
    epoch: Epoch,
    trust: Arc<Trust>,
    actor: Option<Addr<Partition>>,
    leaving: bool,
}

impl Node {
    pub(crate) fn new(seed: Seed, work: Vec<ArbiterHandle>, rebuild: impl Fn() -> Membership + Send + 'static) -> Node {
        let membership = rebuild();
        let panics = Panics::new("the node".into(), seed.fatal.clone());
        Node {
            seed,
            work,
            terms: membership.terms,
            id: membership.id,
            membership: Some(membership),
            owned: HashMap::new(),
            let_go: HashMap::new(),
            beating: Arc::default(),
            paused: None,
            draining: false,
            panics,
            rebuild: Box::new(rebuild),
        }
    }

    fn beat(&mut self, context: &mut Context<Self>) {
        if self.draining {
            return;
        }
        // One that was under way when this actor was started again ends soon: it is bounded.
        let Ok(beating) = Arc::clone(&self.beating).try_lock_owned() else {
            context.run_later(SOON, Self::beat);
            return;
        };
        let membership = self.membership.take().unwrap_or_else(|| (self.rebuild)());
        // A panic may have taken the membership with it: the new one has another id, and owns nothing yet.
        self.id = membership.id;
        let leaving = self.owned.iter().filter(|(_, owned)| owned.leaving).map(|(number, _)| *number).collect();
        let step = self.seed.engine.spawn(async move {
            let _beating = beating;
            beat(membership, leaving).await
        });
        context.spawn(step.into_actor(self).map(|ended, node, context| node.beaten(ended, context)));
    }

    fn beaten(
        &mut self,
        ended: Result<(Membership, Result<Report, DatabaseError>), tokio::task::JoinError>,
        context: &mut Context<Self>,
    ) {
        let wait = match ended {
            Ok((membership, report)) => {
                self.membership = Some(membership);
                match report {
                    Ok(report) => {
                        let look = if report.alert { LOOK } else { LOOK_AT_REST };
                        self.follow(report, context);
                        look.min(self.membership.as_ref().map_or(look, Membership::renewal_in))
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the leases could not be renewed; nothing is published once they run out");
                        self.terms.renew_every / 4
                    }
                }
            }
            Err(error) if error.is_panic() => self.panics.another(),
            Err(_) => return,
        };
        context.run_later(wait, Self::beat);
    }

    /// Brings the actors in line with what the database says we own.
    fn follow(&mut self, report: Report, context: &mut Context<Self>) {
        self.say_pause(report.pause);
        if report.partitions != self.seed.ground.partitions {
            tracing::info!(
                before = self.seed.ground.partitions,
                now = report.partitions,
                "the number of partitions changed"
            );
            self.seed.ground.partitions = report.partitions;
        }
        let lost: Vec<Number> = self
            .owned
            .iter()
            .filter(|(number, owned)| {
                !report.owned.iter().any(|own| (own.number, own.epoch) == (**number, owned.epoch))
            })
            .map(|(number, _)| *number)
            .collect();
        for number in lost {
            if let Some(owned) = self.owned.remove(&number) {
                tracing::warn!(partition = number.0, epoch = owned.epoch.0, "another node owns the partition now");
                owned.trust.revoke();
                if let Some(actor) = owned.actor {
                    actor.do_send(Drain);
                }
            }
        }
        for Own { number, epoch, trusted_until } in report.owned {
            // Only looked at, not renewed: what it knew before holds.
            let Some(trusted_until) = trusted_until else { continue };
            match self.owned.get(&number) {
                Some(owned) => owned.trust.extend(trusted_until),
                None if self.draining => {}
                None if self.let_go.get(&number).is_some_and(|let_go| report.sent < *let_go) => {}
                None => self.begin(number, epoch, trusted_until, context),
            }
        }
        telemetry::owned(self.owned.len());
        for number in report.give_up {
            self.give_up(number, context);
        }
    }

    fn say_pause(&mut self, pause: Option<Pause>) {
        telemetry::paused(pause.is_some());
        match (&pause, &self.paused) {
            (Some(Pause { at, by, reason }), None) => {
                tracing::warn!(since = %at, by, reason, "the relay is paused: events are appended, and none is published");
            }
            (None, Some(_)) => tracing::info!("the relay is resumed"),
            (Some(_), Some(_)) | (None, None) => {}
        }
        self.paused = pause;
    }

    fn begin(&mut self, number: Number, epoch: Epoch, trusted_until: Instant, context: &mut Context<Self>) {
        let trust = Arc::new(Trust::until(trusted_until));
        self.owned.insert(number, Owned { epoch, trust: Arc::clone(&trust), actor: None, leaving: false });
        let tenancy = Tenancy { node: self.id, partition: number, epoch };
        tracing::info!(partition = number.0, epoch = epoch.0, "owns a partition");
        let (seed, what) = (self.seed.clone(), format!("the actor of partition {number}"));
        let place = usize::try_from(number.0).unwrap_or(0) % self.work.len();
        let (arbiter, fatal) = (self.work[place].clone(), self.seed.fatal.clone());
        let starting =
            async move { supervise(&arbiter, what, fatal, move || Partition::new(seed, tenancy, trust)).await };
        context.spawn(starting.into_actor(self).map(move |actor, node, _| {
            let Some(actor) = actor else { return };
            match node.owned.get_mut(&number) {
                Some(owned) if owned.epoch == epoch => owned.actor = Some(actor),
                // It was lost, or the node drained, while it started.
                Some(_) | None => actor.do_send(Drain),
            }
        }));
    }

    /// Drains a partition, then lets go of its lease, so that the next owner need not wait for the end of it.
    fn give_up(&mut self, number: Number, context: &mut Context<Self>) {
        let Some(owned) = self.owned.get_mut(&number).filter(|owned| !owned.leaving) else { return };
        let Some(actor) = owned.actor.clone() else { return };
        owned.leaving = true;
        let tenancy = Tenancy { node: self.id, partition: number, epoch: owned.epoch };
        let giving = release(self.seed.clone(), actor, tenancy);
        context.spawn(giving.into_actor(self).map(move |(), node, _| {
            // By now it may have been lost, and taken again.
            if node.owned.get(&number).is_some_and(|owned| owned.epoch == tenancy.epoch) {
                node.owned.remove(&number);
            }
            node.let_go.insert(number, Instant::now());
            tracing::info!(partition = number.0, "gave a partition up");
        }));
    }
}

async fn release(seed: Seed, actor: Addr<Partition>, tenancy: Tenancy) {
    let _ = actor.send(Drain).await;
    let pool = seed.ground.pool.clone();
    let releasing =
        seed.engine.spawn(async move { pool.run(async |connection| lease::give_up(connection, &tenancy).await).await });
    if let Ok(Err(error)) = releasing.await {
        tracing::warn!(partition = tenancy.partition.0, %error, "the lease could not be given up; it ends by itself");
    }
}

/// What a look says is to be done.
struct Report {
    sent: Instant,
    owned: Vec<Own>,
    give_up: Vec<Number>,
    alert: bool,
    partitions: i32,
    pause: Option<Pause>,
}

struct Own {
    number: Number,
    epoch: Epoch,
    trusted_until: Option<Instant>,
}

/// One look at the others, with a heartbeat when it is time for it. An answer that comes too late is no answer.
async fn beat(mut membership: Membership, leaving: Vec<Number>) -> (Membership, Result<Report, DatabaseError>) {
    failpoint!("relay::beat");
    let connection = match membership.connection.take() {
        Some(connection) => Ok(connection),
        None => membership.database.open().await,
    };
    let mut connection = match connection {
        Ok(connection) => connection,
        Err(error) => return (membership, Err(error)),
    };
    // Opening one has a limit of its own: a busy server that takes its time for it would never be through otherwise.
    let within = membership.terms.ttl / 2;
    let report = match tokio::time::timeout(within, beat_on(&mut membership, &mut connection, &leaving)).await {
        Ok(Ok(report)) => {
            membership.connection = Some(connection);
            return (membership, Ok(report));
        }
        Ok(Err(error)) => Err(error),
        Err(_) => Err(DatabaseError::NoAnswer),
    };
    // Something may have been taken in vain: what is ours then is renewed at the next try, and begun.
    membership.renewed = None;
    (membership, report)
}

async fn beat_on(
    membership: &mut Membership,
    connection: &mut AsyncPgConnection,
    leaving: &[Number],
) -> Result<Report, DatabaseError> {
    let Membership { id, terms, .. } = *membership;
    let sent = Instant::now();
    let able = membership.reach.within(terms.ttl);
    let told = membership.renewed.map(|(_, able)| able);
    let mut renewed = Vec::new();
    if membership.renewal_in().is_zero() || told != Some(able) {
        renewed = lease::renew(connection, id, &membership.name, able, &terms).await?;
        membership.renewed = Some((sent, able));
    }
    let Look { view, partitions, pause } = lease::look(connection).await?;
    let Plan { owned, take, give_up, alert } = membership.watch.look(&view, able, leaving, Instant::now());
    let trusted = |own: &(Number, Epoch)| renewed.contains(own).then(|| terms.trusted_until(sent));
    let mut owned: Vec<Own> =
        owned.iter().map(|own| Own { number: own.0, epoch: own.1, trusted_until: trusted(own) }).collect();
    if !take.is_empty() {
        let trusted_until = Some(terms.trusted_until(Instant::now()));
        let taken = lease::take(connection, id, &take, &terms).await?;
        owned.extend(taken.into_iter().map(|(number, epoch)| Own { number, epoch, trusted_until }));
    }
    Ok(Report { sent, owned, give_up, alert, partitions, pause })
}

impl Actor for Node {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        self.beat(context);
    }
}

impl Supervised for Node {
    /// The actors of the partitions go on under leases that nobody renews; a fresh node takes them over.
    fn restarting(&mut self, _: &mut Context<Self>) {
        for owned in self.owned.drain().map(|(_, owned)| owned) {
            owned.trust.revoke();
            if let Some(actor) = owned.actor {
                actor.do_send(Drain);
            }
        }
        let membership = (self.rebuild)();
        self.id = membership.id;
        self.membership = Some(membership);
    }
}

impl Handler<Drain> for Node {
    type Result = ResponseFuture<bool>;

    fn handle(&mut self, _: Drain, _: &mut Context<Self>) -> Self::Result {
        self.draining = true;
        let (seed, id, beating) = (self.seed.clone(), self.id, Arc::clone(&self.beating));
        let leaving: Vec<_> = self
            .owned
            .drain()
            .filter_map(|(number, owned)| {
                owned.trust.revoke();
                let tenancy = Tenancy { node: id, partition: number, epoch: owned.epoch };
                owned.actor.map(|actor| release(seed.clone(), actor, tenancy))
            })
            .collect();
        Box::pin(async move {
            let sign_off = async {
                // A heartbeat under way may still take something, and would count the node in again.
                let last_beat = beating.lock_owned().await;
                let pool = seed.ground.pool.clone();
                let signing = seed
                    .engine
                    .spawn(async move { pool.run(async |connection| lease::sign_off(connection, id).await).await });
                // If it could not be said now, it is said at the end.
                drop(signing.await);
                last_beat
            };
            let (_last_beat, _) = tokio::join!(sign_off, futures_util::future::join_all(leaving));
            let pool = seed.ground.pool.clone();
            let leaving =
                seed.engine.spawn(async move { pool.run(async |connection| lease::leave(connection, id).await).await });
            match leaving.await {
                Ok(Ok(())) => true,
                Ok(Err(error)) => {
                    tracing::warn!(%error, "the node could not sign off; its leases end by themselves");
                    false
                }
                Err(_) => false,
            }
        })
    }
}

/// Asks now and then whether the broker is there; a node that does not reach it takes no share.
pub(crate) async fn watch_broker(seed: Seed, reach: Arc<Reach>, every: Duration) {
    let mut away: Option<Instant> = None;
    loop {
        // The broker may be a user's own.
        let asking = AssertUnwindSafe(async { seed.ground.broker.reachable().await }).catch_unwind();
        let answer = asking.await.unwrap_or_else(|_| Err(BrokerError::Unreachable("asking it panicked".into())));
        let reachable = answer.is_ok();
        match answer {
            Ok(()) => {
                reach.now();
                if away.take().is_some() {
                    tracing::info!("the broker is reached again");
                }
            }
            Err(error) if away.is_none_or(|said| said.elapsed() > SAY_AGAIN) => {
                tracing::warn!(%error, "nothing is published until the broker is reached");
                away = Some(Instant::now());
            }
            Err(_) => {}
        }
        tokio::time::sleep(if reachable { every } else { every.min(SOON) }).await;
    }
}

/// While others are there, or something is free: a hand-over takes as long.
const LOOK: Duration = Duration::from_millis(300);
const LOOK_AT_REST: Duration = Duration::from_secs(2);
const SAY_AGAIN: Duration = Duration::from_secs(30);
const SOON: Duration = Duration::from_millis(250);
