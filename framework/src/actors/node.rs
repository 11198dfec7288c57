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
use crate::outbox::lease::{self, Beat, Tenancy, Trust};
use crate::postgres::{Database, Error as DatabaseError};
use crate::protocol::lease::{Balance, Epoch, Partition as Number, Terms, balance};
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
        let leaving = self.owned.values().filter(|owned| owned.leaving).count();
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
                        let able = report.able;
                        self.follow(report, context);
                        // Until the broker is reached there is nothing to relay, and then every moment counts.
                        if able { self.terms.renew_every } else { self.terms.renew_every.min(SOON) }
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
        let lost: Vec<Number> = self
            .owned
            .iter()
            .filter(|(number, owned)| !report.owned.contains(&(**number, owned.epoch)))
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
        for (number, epoch) in report.owned {
            match self.owned.get(&number) {
                Some(owned) => owned.trust.extend(report.trusted_until),
                None if self.draining => {}
                None if self.let_go.get(&number).is_some_and(|let_go| report.sent < *let_go) => {}
                None => self.begin(number, epoch, report.trusted_until, context),
            }
        }
        telemetry::owned(self.owned.len());
        for _ in 0..report.give_up {
            let Some(number) = self.owned.iter().filter(|(_, owned)| !owned.leaving).map(|(number, _)| *number).max()
            else {
                break;
            };
            self.give_up(number, context);
        }
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
        let Some(owned) = self.owned.get_mut(&number) else { return };
        let Some(actor) = owned.actor.clone() else { return };
        owned.leaving = true;
        let tenancy = Tenancy { node: self.id, partition: number, epoch: owned.epoch };
        let giving = release(self.seed.clone(), actor, tenancy);
        context.spawn(giving.into_actor(self).map(move |(), node, _| {
            node.owned.remove(&number);
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

/// What a heartbeat says is to be done.
struct Report {
    sent: Instant,
    able: bool,
    owned: Vec<(Number, Epoch)>,
    trusted_until: Instant,
    give_up: usize,
}

/// One heartbeat: renew, count the others, take what is free of our share. An answer that comes too late is no answer.
async fn beat(mut membership: Membership, leaving: usize) -> (Membership, Result<Report, DatabaseError>) {
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
    match tokio::time::timeout(within, beat_on(&membership, &mut connection, leaving)).await {
        Ok(Ok(report)) => {
            membership.connection = Some(connection);
            (membership, Ok(report))
        }
        Ok(Err(error)) => (membership, Err(error)),
        Err(_) => (membership, Err(DatabaseError::NoAnswer)),
    }
}

async fn beat_on(
    membership: &Membership,
    connection: &mut AsyncPgConnection,
    leaving: usize,
) -> Result<Report, DatabaseError> {
    let sent = Instant::now();
    let able = membership.reach.within(membership.terms.ttl);
    let Beat { mut owned, able_nodes, partitions, mut trusted_until } =
        lease::beat(connection, membership.id, &membership.name, able, &membership.terms).await?;
    let mut give_up = 0;
    match balance(owned.len(), partitions, able, able_nodes) {
        Balance::Take(count) => {
            let (taken, until) = lease::take(connection, membership.id, count, &membership.terms).await?;
            owned.extend(taken);
            trusted_until = trusted_until.min(until);
        }
        Balance::GiveUp(count) => give_up = count.saturating_sub(leaving),
        Balance::Keep => {}
    }
    Ok(Report { sent, able, owned, trusted_until, give_up })
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
            futures_util::future::join_all(leaving).await;
            // A heartbeat under way may still take something, and would count the node in again.
            let _last_beat = beating.lock().await;
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

const SAY_AGAIN: Duration = Duration::from_secs(30);
const SOON: Duration = Duration::from_millis(250);
