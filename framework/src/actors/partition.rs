//! One actor per owned partition: when to make a pass. The pass itself is `outbox::publish`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::prelude::*;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;

use super::Drain;
use super::supervisor::{Fatal, Panics};
use crate::broker::{Broker, StreamSpec};
use crate::event;
use crate::outbox::board::Board;
use crate::outbox::lease::{Tenancy, Trust};
use crate::outbox::publish::{Interrupted, Limits, Tenure};
use crate::outbox::wake;
use crate::postgres::Pool;
use crate::protocol::backoff::Backoff;

/// What every partition of a node works with.
#[derive(Clone)]
pub(crate) struct Seed {
    pub(crate) engine: Handle,
    pub(crate) pool: Pool,
    pub(crate) broker: Arc<dyn Broker>,
    pub(crate) source: String,
    pub(crate) partitions: i32,
    pub(crate) limits: Limits,
    pub(crate) fatal: Fatal,
    pub(crate) board: Board,
}

pub(crate) struct Partition {
    seed: Seed,
    tenancy: Tenancy,
    trust: Arc<Trust>,
    tenure: Option<Tenure>,
    failures: u32,
    running: bool,
    woken: bool,
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
            running: false,
            woken: false,
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
        if self.running {
            self.woken = true;
            return;
        }
        if self.over {
            return;
        }
        self.running = true;
        self.woken = false;
        let (tenure, seed, tenancy, trust) =
            (self.tenure.take(), self.seed.clone(), self.tenancy, Arc::clone(&self.trust));
        let step = self.seed.engine.spawn(step(tenure, seed, tenancy, trust));
        self.step = Some(step.abort_handle());
        context.spawn(step.into_actor(self).map(|ended, actor, context| actor.stepped(ended, context)));
    }

    fn stepped(&mut self, ended: Result<Step, tokio::task::JoinError>, context: &mut Context<Self>) {
        self.running = false;
        let wait = match ended {
            Ok(Step::Passed(tenure, wait)) => {
                self.tenure = Some(*tenure);
                self.failures = 0;
                self.said = None;
                wait
            }
            Ok(Step::Failed(tenure, what)) => {
                self.tenure = tenure.map(|tenure| *tenure);
                self.failures = self.failures.saturating_add(1);
                let wait = FAILED.delay(self.failures, rand::random());
                self.say(what);
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
        if self.woken && self.heeds_hints() {
            return self.step(context);
        }
        self.timer = Some(context.run_later(wait, |actor, context| {
            actor.timer = None;
            actor.step(context);
        }));
    }

    /// While something fails, or the broker takes nothing, a hint must not cut the wait short.
    fn heeds_hints(&self) -> bool {
        self.failures == 0 && !self.tenure.as_ref().is_some_and(Tenure::is_barren)
    }

    /// A trouble that lasts is said now and then, not at every try.
    fn say(&mut self, what: String) {
        let now = Instant::now();
        if self.said.as_ref().is_some_and(|(said, at)| *said == what && now - *at < SAY_AGAIN) {
            return;
        }
        let (partition, failures) = (self.tenancy.partition.0, self.failures);
        tracing::warn!(partition, failures, what, "nothing of this partition is published for now");
        self.said = Some((what, now));
    }

    /// Drops the connection of this epoch with all it has not sent.
    fn end(&mut self, context: &mut Context<Self>) {
        self.over = true;
        self.trust.revoke();
        self.tenure = None;
        self.seed.board.clear(self.tenancy.partition);
        for drained in self.drained.drain(..) {
            let _ = drained.send(());
        }
        context.stop();
    }
}

enum Step {
    Passed(Box<Tenure>, Duration),
    Failed(Option<Box<Tenure>>, String),
    Over,
}

/// A plain function of the state: opens the tenure where there is none, and makes one pass.
async fn step(tenure: Option<Tenure>, seed: Seed, tenancy: Tenancy, trust: Arc<Trust>) -> Step {
    let mut tenure = match tenure {
        Some(tenure) => tenure,
        None => match open(seed, tenancy, trust).await {
            Ok(tenure) => tenure,
            Err(error) => return Step::Failed(None, error.to_string()),
        },
    };
    match tenure.pass().await {
        Ok(wait) => Step::Passed(Box::new(tenure), wait),
        Err(Interrupted::LeaseLost(_)) => Step::Over,
        Err(Interrupted::Database(error)) => Step::Failed(Some(Box::new(tenure)), error.to_string()),
        Err(Interrupted::Silent) => Step::Failed(None, Interrupted::Silent.to_string()),
    }
}

async fn open(seed: Seed, tenancy: Tenancy, trust: Arc<Trust>) -> Result<Tenure, crate::broker::Error> {
    let stream =
        StreamSpec { source: seed.source.clone(), partition: tenancy.partition.0, partitions: seed.partitions };
    let publisher = seed.broker.publisher(stream).await?;
    event::Limits::lower_to(publisher.max_message_bytes());
    Ok(Tenure::new(seed.pool, publisher, seed.source, tenancy, trust, seed.limits))
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

/// A hint: somebody in this process has appended. Hints that come while one is unread are one.
struct Wake;

fn stream_of(wakes: watch::Receiver<u64>) -> impl futures_util::Stream<Item = Wake> {
    futures_util::stream::unfold(wakes, |mut wakes| async move { wakes.changed().await.ok().map(|()| (Wake, wakes)) })
}

impl StreamHandler<Wake> for Partition {
    fn handle(&mut self, _: Wake, context: &mut Context<Self>) {
        if self.running || self.heeds_hints() {
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
