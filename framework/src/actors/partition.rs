//! One actor per owned partition: when to make a pass. The pass itself is `outbox::publish`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::prelude::*;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;

use super::Drain;
use super::supervisor::{Fatal, Panics};
use crate::outbox::lease::{Tenancy, Trust};
use crate::outbox::look::Resting;
use crate::outbox::publish::{Ground, Interrupted, Rest, Tenure};
use crate::outbox::wake;
use crate::protocol::backoff::Backoff;

/// What every partition of a node works with.
#[derive(Clone)]
pub(crate) struct Seed {
    pub(crate) engine: Handle,
    pub(crate) ground: Ground,
    pub(crate) resting: Arc<Resting>,
    pub(crate) fatal: Fatal,
}

pub(crate) struct Partition {
    seed: Seed,
    tenancy: Tenancy,
    trust: Arc<Trust>,
    tenure: Option<Box<Tenure>>,
    failures: u32,
    /// The last pass looked for rows.
    looked: bool,
    /// There was a pass before.
    passed: bool,
    running: bool,
    timer: Option<SpawnHandle>,
    step: Option<AbortHandle>,
    said: Option<(String, Instant)>,
    drained: Vec<oneshot::Sender<()>>,
    over: bool,
    panics: Panics,
}

impl Partition {
    pub(crate) fn new(seed: Seed, tenancy: Tenancy, trust: Arc<Trust>) -> Partition {
        let panics = Panics::new(format!("the relay of partition {}", tenancy.partition), seed.fatal.clone());
        Partition {
            seed,
            tenancy,
            trust,
            tenure: None,
            failures: 0,
            looked: true,
            passed: false,
            running: false,
            timer: None,
            step: None,
            said: None,
            drained: Vec::new(),
            over: false,
            panics,
        }
    }

    fn step(&mut self, context: &mut Context<Self>) {
        if let Some(timer) = self.timer.take() {
            context.cancel_future(timer);
        }
        if self.running || self.over {
            return;
        }
        self.running = true;
        self.seed.resting.works(self.tenancy.partition);
        let (seed, tenancy, trust) = (self.seed.clone(), self.tenancy, Arc::clone(&self.trust));
        let passed = std::mem::replace(&mut self.passed, true);
        let new = move || Box::new(Tenure::new(seed.ground, tenancy, trust, wake::subscribe(), passed));
        let step = self.seed.engine.spawn(step(self.tenure.take().unwrap_or_else(new)));
        self.step = Some(step.abort_handle());
        context.spawn(step.into_actor(self).map(|ended, actor, context| actor.stepped(ended, context)));
    }

    fn stepped(&mut self, ended: Result<Step, tokio::task::JoinError>, context: &mut Context<Self>) {
        self.running = false;
        let wait = match ended {
            Ok(Step::Passed(tenure, rest)) => {
                self.tenure = Some(tenure);
                self.looked = rest.floor.is_some();
                if self.looked {
                    self.failures = 0;
                    self.said = None;
                    self.seed.ground.board.goes_on(self.tenancy.partition);
                }
                if let Some(floor) = rest.floor.filter(|_| self.drained.is_empty()) {
                    let address = context.address();
                    self.seed.resting.rests(self.tenancy.partition, floor, Box::new(move || address.do_send(Wake)));
                }
                rest.wait
            }
            Ok(Step::Failed(tenure, interrupted)) => {
                self.tenure = Some(tenure);
                self.failures = self.failures.saturating_add(1);
                let wait = FAILED.delay(self.failures, rand::random());
                self.note(&interrupted);
                self.say(interrupted.to_string(), interrupted.is_alarming());
                wait
            }
            Ok(Step::Over) => {
                tracing::warn!(
                    partition = self.tenancy.partition.0,
                    epoch = self.tenancy.epoch.0,
                    "another node owns the partition now"
                );
                return self.end(context);
            }
            Ok(Step::Ended) => return self.end(context),
            Err(error) if error.is_panic() => {
                // A wake must not cut the wait short, or the appends of others become a storm of panics.
                self.failures = self.failures.saturating_add(1);
                self.panics.another()
            }
            Err(_) => return self.end(context),
        };
        if !self.drained.is_empty() {
            return self.end(context);
        }
        if self.heeds_hints() && self.tenure.as_ref().is_some_and(|tenure| tenure.has_hint()) {
            return self.step(context);
        }
        self.timer = Some(context.run_later(wait, |actor, context| {
            actor.timer = None;
            actor.step(context);
        }));
    }

    /// While something fails, the broker takes nothing, or nothing may be published, a hint must not cut the wait short: it
    /// would stay unread, and the next pass would follow at once.
    fn heeds_hints(&self) -> bool {
        self.looked && self.failures == 0 && !self.tenure.as_ref().is_some_and(|tenure| tenure.is_barren())
    }

    /// For the alarms, which ask whether it lasts.
    fn note(&self, interrupted: &Interrupted) {
        let (board, partition) = (&self.seed.ground.board, self.tenancy.partition);
        match interrupted {
            Interrupted::Unclear(what) => board.unconfirmed(partition, what),
            stopped if stopped.is_alarming() => board.stopped(partition, &stopped.to_string()),
            Interrupted::Stopped(_) | Interrupted::Database(_) | Interrupted::LeaseLost(_) => {}
        }
    }

    /// A trouble that lasts is said now and then, not at every try.
    fn say(&mut self, what: String, alarming: bool) {
        let now = Instant::now();
        if self.said.as_ref().is_some_and(|(said, at)| *said == what && now - *at < SAY_AGAIN) {
            return;
        }
        let (partition, failures) = (self.tenancy.partition.0, self.failures);
        if alarming {
            tracing::error!(partition, failures, what, "nothing of this partition is published");
        } else {
            tracing::warn!(partition, failures, what, "nothing of this partition is published for now");
        }
        self.said = Some((what, now));
    }

    /// Drops the connection of this epoch with all it has not sent.
    fn end(&mut self, context: &mut Context<Self>) {
        self.over = true;
        self.trust.revoke();
        self.tenure = None;
        self.seed.ground.board.clear(self.tenancy.partition);
        for drained in self.drained.drain(..) {
            let _ = drained.send(());
        }
        context.stop();
    }
}

enum Step {
    Passed(Box<Tenure>, Rest),
    Failed(Box<Tenure>, Interrupted),
    Over,
    Ended,
}

/// A plain function of the state: one pass.
async fn step(tenure: Box<Tenure>) -> Step {
    match tenure.pass().await {
        Some((tenure, Ok(rest))) => Step::Passed(tenure, rest),
        Some((_, Err(Interrupted::LeaseLost(_)))) => Step::Over,
        Some((tenure, Err(interrupted))) => Step::Failed(tenure, interrupted),
        None => Step::Ended,
    }
}

impl Actor for Partition {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        let wakes = wake::subscribe();
        context.add_stream(stream_of(wakes));
        self.step(context);
    }
}

impl Supervised for Partition {
    fn restarting(&mut self, _: &mut Context<Self>) {
        // Two passes at once would not keep the order.
        if let Some(step) = self.step.take() {
            step.abort();
        }
        self.tenure = None;
        self.running = false;
        self.timer = None;
    }
}

/// A hint: somebody in this process has appended, or a look has found something. Hints that come while one is unread are
/// one; those that come during a pass are for the pass.
#[derive(Message)]
#[rtype(result = "()")]
struct Wake;

impl Handler<Wake> for Partition {
    type Result = ();

    fn handle(&mut self, _: Wake, context: &mut Context<Self>) {
        if self.heeds_hints() {
            self.step(context);
        }
    }
}

fn stream_of(wakes: watch::Receiver<u64>) -> impl futures_util::Stream<Item = Wake> {
    futures_util::stream::unfold(wakes, |mut wakes| async move { wakes.changed().await.ok().map(|()| (Wake, wakes)) })
}

impl StreamHandler<Wake> for Partition {
    fn handle(&mut self, _: Wake, context: &mut Context<Self>) {
        if self.heeds_hints() {
            self.step(context);
        }
    }

    /// The hints never end; actix would stop the actor with the stream.
    fn finished(&mut self, _: &mut Context<Self>) {}
}

impl Handler<Drain> for Partition {
    type Result = ResponseFuture<bool>;

    fn handle(&mut self, _: Drain, context: &mut Context<Self>) -> Self::Result {
        let (done, drained) = oneshot::channel();
        self.drained.push(done);
        self.trust.revoke();
        if !self.running {
            self.end(context);
        }
        Box::pin(async { drained.await.is_ok() })
    }
}

const SAY_AGAIN: Duration = Duration::from_secs(30);
const FAILED: Backoff = Backoff { min: Duration::from_millis(50), max: Duration::from_secs(2) };
