//! One actor per host that watches: looks at the outbox every now and then, and says what changed. What is an alarm is
//! decided in `protocol/alarm.rs`, from the readings of `outbox/alarms.rs`.

use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::prelude::*;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::supervisor::{Fatal, Panics};
use crate::outbox::alarms::{Alarm, Alarms, Watches};
use crate::outbox::backlog::{self, Backlog, Floors};
use crate::outbox::board::Board;
use crate::postgres::{Error as DatabaseError, Pool};
use crate::protocol::alarm::Change;
use crate::telemetry;

/// What a host does with an alarm.
pub(crate) type Callback = Arc<dyn Fn(&Alarm) + Send + Sync>;

/// What the watch of a host works with.
#[derive(Clone)]
pub(crate) struct Post {
    pub(crate) engine: Handle,
    pub(crate) pool: Pool,
    pub(crate) board: Board,
    pub(crate) source: Option<String>,
    pub(crate) partitions: i32,
    pub(crate) alarms: Alarms,
    pub(crate) tell: Option<mpsc::Sender<Alarm>>,
}

pub(crate) struct Watchman {
    post: Post,
    source: String,
    since: Instant,
    watches: Watches,
    floors: Floors,
    reported: Instant,
    failed: bool,
    panics: Panics,
}

impl Watchman {
    pub(crate) fn new(post: Post, fatal: Fatal) -> Watchman {
        let source = post.source.clone().unwrap_or_default();
        telemetry::alarms_begin(&source, post.partitions);
        let now = Instant::now();
        let panics = Panics::new("the watch of the outbox".into(), fatal);
        Watchman {
            post,
            source,
            since: now,
            watches: Watches::default(),
            floors: Floors::default(),
            reported: now,
            failed: false,
            panics,
        }
    }

    fn look(&mut self, context: &mut Context<Self>) {
        let (pool, floors) = (self.post.pool.clone(), std::mem::take(&mut self.floors));
        let partitions = usize::try_from(self.post.partitions).unwrap_or(1);
        let look = self.post.engine.spawn(look(pool, floors, partitions));
        context.spawn(look.into_actor(self).map(|ended, watchman, context| {
            let wait = match ended {
                Ok(look) => watchman.looked(look),
                Err(error) if error.is_panic() => watchman.panics.another(),
                Err(_) => return,
            };
            context.run_later(wait, Self::look);
        }));
    }

    /// Says what changed; returns when to look again.
    fn looked(&mut self, look: Look) -> Duration {
        self.floors = look.floors;
        let backlog = match look.found {
            Ok(backlog) => {
                self.failed = false;
                Some(backlog)
            }
            Err(error) => {
                if !std::mem::replace(&mut self.failed, true) {
                    tracing::warn!(source = self.source, %error, "cannot look at the outbox; trying again");
                }
                None
            }
        };
        if let Some(backlog) = &backlog {
            self.show(backlog);
        }
        let notices = self.post.board.read();
        let changed =
            self.watches.read(self.since.elapsed(), &self.post.alarms, &self.source, backlog.as_ref(), &notices);
        for alarm in changed {
            self.say(alarm);
        }
        if let Some(backlog) = &backlog {
            self.report(backlog);
        }
        let every = if look.reads_on { self.post.alarms.every.min(SOON) } else { self.post.alarms.every };
        // A look that takes its time, over dead rows that a held snapshot keeps, is made less often.
        every.max(look.took.saturating_mul(20).min(LATEST))
    }

    fn show(&mut self, backlog: &Backlog) {
        let source = backlog.source.as_deref().unwrap_or_default();
        let partitions = i32::try_from(backlog.partitions.len()).unwrap_or(i32::MAX);
        if source != self.source || partitions != self.post.partitions {
            source.clone_into(&mut self.source);
            self.post.partitions = partitions;
            telemetry::alarms_begin(&self.source, partitions);
        }
        telemetry::whole_outbox(&self.source, backlog.dead, backlog.able_nodes);
        let seconds = |age: Option<Duration>| age.unwrap_or_default().as_secs_f64();
        for (partition, waiting) in &backlog.partitions {
            let waiting = telemetry::Waiting {
                events: waiting.events,
                oldest_seconds: seconds(waiting.oldest),
                held_lanes: waiting.held_lanes,
                held_seconds: seconds(waiting.held_for),
                owned: waiting.owned,
            };
            telemetry::waiting(&self.source, *partition, &waiting);
        }
    }

    fn say(&self, alarm: Alarm) {
        let raised = alarm.change == Change::Raised;
        telemetry::alarm(&alarm.source, alarm.kind, alarm.partition, raised);
        let Alarm { source, partition, message, .. } = &alarm;
        let (name, partition) = (alarm.kind.name(), *partition);
        match (raised, alarm.kind.is_grave()) {
            (true, true) => tracing::error!(alarm = name, source, partition, "alarm raised: {message}"),
            (true, false) => tracing::warn!(alarm = name, source, partition, "alarm raised: {message}"),
            (false, _) => tracing::info!(alarm = name, source, partition, "alarm cleared: {message}"),
        }
        if let Some(tell) = &self.post.tell
            && tell.try_send(alarm).is_err()
        {
            tracing::warn!("the callback of `on_alarm` is behind, or has ended: it was not told of an alarm");
        }
    }

    fn report(&mut self, backlog: &Backlog) {
        let Some(every) = self.post.alarms.report else { return };
        if self.reported.elapsed() < every {
            return;
        }
        self.reported = Instant::now();
        let all = backlog.partitions.values();
        let pending: u64 = all.clone().map(|waiting| waiting.events).sum();
        let held_lanes: u64 = all.clone().map(|waiting| waiting.held_lanes).sum();
        let unowned = all.clone().filter(|waiting| !waiting.owned).count();
        let oldest = all.filter_map(|waiting| waiting.oldest).max().unwrap_or_default().as_secs();
        let (dead, able_nodes, alarms) = (backlog.dead, backlog.able_nodes, self.watches.raised());
        let source = &self.source;
        tracing::info!(source, pending, oldest_s = oldest, held_lanes, dead, unowned, able_nodes, alarms, "outbox");
    }
}

struct Look {
    found: Result<Backlog, DatabaseError>,
    floors: Floors,
    reads_on: bool,
    took: Duration,
}

async fn look(pool: Pool, mut floors: Floors, partitions: usize) -> Look {
    let mut took = Duration::ZERO;
    let looking = pool.run(async |connection| {
        let started = Instant::now();
        let found = backlog::look(connection, &mut floors, partitions).await;
        took = started.elapsed();
        found
    });
    match looking.await {
        Ok((backlog, reads_on)) => Look { found: Ok(backlog), floors, reads_on, took },
        Err(error) => Look { found: Err(error), floors, reads_on: false, took: Duration::ZERO },
    }
}

/// Hands alarms to a user's function, one after another, where users' code runs. A panic of it is said and costs nothing
/// else.
pub(crate) fn tell(handlers: &Handle, callback: Callback) -> mpsc::Sender<Alarm> {
    let (tell, mut told) = mpsc::channel::<Alarm>(UNTOLD);
    handlers.spawn(async move {
        while let Some(alarm) = told.recv().await {
            if catch_unwind(AssertUnwindSafe(|| callback(&alarm))).is_err() {
                tracing::error!(alarm = alarm.kind.name(), "the callback of `on_alarm` panicked");
            }
        }
    });
    tell
}

impl Actor for Watchman {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        self.look(context);
    }
}

impl Supervised for Watchman {
    /// What is raised is still raised, so the watches stay.
    fn restarting(&mut self, _: &mut Context<Self>) {
        self.floors = Floors::default();
    }
}

const SOON: Duration = Duration::from_secs(1);
const LATEST: Duration = Duration::from_secs(60);
const UNTOLD: usize = 256;
