//! One actor per consumer: which streams it works on. The work itself is `inbox::deliver`.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::prelude::*;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use super::Drain;
use super::supervisor::{Fatal, Panics};
use crate::broker::{Broker, Error, StreamInfo};
use crate::inbox::deliver::Work;

pub(crate) struct Consumer {
    engine: Handle,
    broker: Arc<dyn Broker>,
    work: Arc<dyn Work>,
    streams: HashSet<String>,
    drain: watch::Sender<bool>,
    drained: Vec<oneshot::Sender<()>>,
    looks: u32,
    said: Option<Instant>,
    panics: Panics,
}

impl Consumer {
    pub(crate) fn new(engine: Handle, broker: Arc<dyn Broker>, work: Arc<dyn Work>, fatal: Fatal) -> Consumer {
        let panics = Panics::new(format!("consumer {}", work.name()), fatal);
        Consumer {
            engine,
            broker,
            work,
            streams: HashSet::new(),
            drain: watch::Sender::new(false),
            drained: Vec::new(),
            looks: 0,
            said: None,
            panics,
        }
    }

    /// Looks for streams of the source: they appear when its relay first runs, in this process or another.
    fn look(&mut self, context: &mut Context<Self>) {
        if *self.drain.borrow() {
            return;
        }
        let (broker, source) = (Arc::clone(&self.broker), self.work.source());
        let looking = self.engine.spawn(async move { broker.streams(source).await });
        context.spawn(looking.into_actor(self).map(|found, consumer, context| consumer.found(found, context)));
    }

    fn found(
        &mut self,
        found: Result<Result<Vec<StreamInfo>, Error>, tokio::task::JoinError>,
        context: &mut Context<Self>,
    ) {
        match found {
            Ok(Ok(streams)) => {
                self.looks = self.looks.saturating_add(1);
                for stream in streams {
                    self.begin(stream, context);
                }
                if !self.streams.is_empty() {
                    self.said = None;
                } else if self.looks.is_multiple_of(50) {
                    tracing::warn!(
                        consumer = self.work.name(),
                        source = self.work.source(),
                        "there is no stream of this source yet: has its relay run, on this broker and account?"
                    );
                }
            }
            // A trouble that lasts is said now and then, not at every look.
            Ok(Err(error)) if self.said.is_none_or(|said| said.elapsed() > SAY_AGAIN) => {
                self.said = Some(Instant::now());
                tracing::warn!(consumer = self.work.name(), %error, "cannot look for streams; trying again");
            }
            Ok(Err(_)) | Err(_) => {}
        }
        let wait = if self.streams.is_empty() { LOOK_FIRST } else { LOOK };
        context.run_later(wait, Self::look);
    }

    fn begin(&mut self, stream: StreamInfo, context: &mut Context<Self>) {
        if *self.drain.borrow() || !self.streams.insert(stream.name.clone()) {
            return;
        }
        let name = stream.name.clone();
        let running = self.engine.spawn(Arc::clone(&self.work).run(stream, self.drain.subscribe()));
        context.spawn(running.into_actor(self).map(move |ended, consumer, _| {
            consumer.streams.remove(&name);
            if ended.is_err_and(|error| error.is_panic()) {
                consumer.panics.another();
            }
            consumer.answer_if_drained();
        }));
    }

    fn answer_if_drained(&mut self) {
        if *self.drain.borrow() && self.streams.is_empty() {
            for drained in self.drained.drain(..) {
                let _ = drained.send(());
            }
        }
    }
}

impl Actor for Consumer {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        self.look(context);
    }
}

impl Supervised for Consumer {
    /// The work on streams runs on the engine and is told to end; what it has in hand is finished there.
    fn restarting(&mut self, _: &mut Context<Self>) {
        self.drain.send_replace(true);
        self.drain = watch::Sender::new(false);
        self.streams.clear();
    }
}

impl Handler<Drain> for Consumer {
    type Result = ResponseFuture<bool>;

    fn handle(&mut self, _: Drain, _: &mut Context<Self>) -> Self::Result {
        let (done, drained) = oneshot::channel();
        self.drained.push(done);
        self.drain.send_replace(true);
        self.answer_if_drained();
        Box::pin(async { drained.await.is_ok() })
    }
}

const LOOK_FIRST: Duration = Duration::from_millis(200);
const SAY_AGAIN: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_secs(3);
