//! A supervisor that survives panics. actix's own restarts an actor that stops, never one that panics: its address is then
//! closed for good and the process stays alive and silent.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::{Duration, Instant};

use actix::dev::ContextFut;
use actix::prelude::*;
use tokio::sync::{oneshot, watch};

use crate::protocol::backoff::Backoff;

/// Where an actor, or a step of one, that cannot go on says so: the host ends with an error instead of staying alive and
/// silent.
#[derive(Clone)]
pub(crate) struct Fatal(Arc<watch::Sender<Option<String>>>);

impl Fatal {
    pub(crate) fn new() -> (Fatal, watch::Receiver<Option<String>>) {
        let (sender, receiver) = watch::channel(None);
        (Fatal(Arc::new(sender)), receiver)
    }

    pub(crate) fn say(&self, what: String) {
        tracing::error!("{what}; the process should end and be started again");
        self.0.send_if_modified(|said| {
            let first = said.is_none();
            said.get_or_insert(what);
            first
        });
    }
}

/// Counts panics in a row of one part, and says when it is enough.
pub(crate) struct Panics {
    what: String,
    fatal: Fatal,
    in_a_row: u32,
    last: Option<Instant>,
}

impl Panics {
    pub(crate) fn new(what: String, fatal: Fatal) -> Panics {
        Panics { what, fatal, in_a_row: 0, last: None }
    }

    /// One more; returns how long to wait before the next start. After a minute of peace the count starts anew.
    pub(crate) fn another(&mut self) -> Duration {
        let now = Instant::now();
        let peace = self.last.is_none_or(|last| now - last > PEACE);
        self.in_a_row = if peace { 1 } else { self.in_a_row + 1 };
        self.last = Some(now);
        tracing::error!(part = self.what, in_a_row = self.in_a_row, "a panic; starting again with rebuilt state");
        if self.in_a_row >= MAX_IN_A_ROW {
            self.fatal.say(format!("{} panicked {MAX_IN_A_ROW} times in a row", self.what));
        }
        RESTART.delay(self.in_a_row, rand::random())
    }
}

/// Starts an actor on an arbiter; its address and its queued mail survive a panic, its state is reset by `restarting`.
pub(crate) async fn supervise<A>(
    arbiter: &ArbiterHandle,
    what: String,
    fatal: Fatal,
    make: impl FnOnce() -> A + Send + 'static,
) -> Option<Addr<A>>
where
    A: Supervised + Actor<Context = Context<A>> + Unpin,
{
    let (started, address) = oneshot::channel();
    // The context is made on the arbiter's own thread, which it never leaves.
    arbiter.spawn_fn(move || {
        let context = Context::<A>::new();
        let _ = started.send(context.address());
        let running = Box::pin(context.into_future(make()));
        actix_rt::spawn(Restarting { running, pause: None, panics: Panics::new(what, fatal) });
    });
    address.await.ok()
}

/// The actor's future, polled inside `catch_unwind`.
struct Restarting<A: Supervised + Actor<Context = Context<A>>> {
    running: Pin<Box<ContextFut<A, Context<A>>>>,
    pause: Option<Pin<Box<tokio::time::Sleep>>>,
    panics: Panics,
}

impl<A: Supervised + Actor<Context = Context<A>> + Unpin> Future for Restarting<A> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, task: &mut TaskContext<'_>) -> Poll<()> {
        let this = &mut *self;
        loop {
            if let Some(pause) = this.pause.as_mut() {
                if pause.as_mut().poll(task).is_pending() {
                    return Poll::Pending;
                }
                this.pause = None;
                if !this.running.restart() {
                    return Poll::Ready(());
                }
            }
            match catch_unwind(AssertUnwindSafe(|| this.running.as_mut().poll(task))) {
                Ok(poll) => return poll,
                Err(_) => this.pause = Some(Box::pin(tokio::time::sleep(this.panics.another()))),
            }
        }
    }
}

const MAX_IN_A_ROW: u32 = 10;
const PEACE: Duration = Duration::from_secs(60);
const RESTART: Backoff = Backoff { min: Duration::from_millis(20), max: Duration::from_secs(10) };

#[cfg(test)]
mod tests {
    use super::*;

    struct Fragile(u32);

    impl Actor for Fragile {
        type Context = Context<Self>;
    }

    impl Supervised for Fragile {
        fn restarting(&mut self, _: &mut Context<Self>) {
            self.0 = 0;
        }
    }

    #[derive(Message)]
    #[rtype(result = "u32")]
    struct Count {
        panics: bool,
    }

    impl Handler<Count> for Fragile {
        type Result = u32;

        fn handle(&mut self, message: Count, _: &mut Context<Self>) -> u32 {
            self.0 += 1;
            assert!(!message.panics, "as asked");
            self.0
        }
    }

    #[test]
    fn address_and_mail_survive_a_panic_and_the_state_is_reset() {
        System::new().block_on(async {
            let (fatal, said) = Fatal::new();
            let arbiter = Arbiter::current();
            let address = supervise(&arbiter, "fragile".into(), fatal, || Fragile(0)).await.expect("the arbiter runs");
            assert_eq!(address.send(Count { panics: false }).await.ok(), Some(1));
            let (panicked, queued) =
                tokio::join!(address.send(Count { panics: true }), address.send(Count { panics: false }));
            assert!(panicked.is_err());
            assert_eq!(queued.ok(), Some(1));
            assert!(said.borrow().is_none());
        });
    }

    #[test]
    fn a_part_that_only_panics_is_reported_instead_of_staying_silent() {
        let (fatal, said) = Fatal::new();
        let mut panics = Panics::new("relay of partition 3".into(), fatal);
        for _ in 1..MAX_IN_A_ROW {
            panics.another();
        }
        assert!(said.borrow().is_none());
        panics.another();
        assert!(said.borrow().as_ref().is_some_and(|what| what.contains("partition 3")));
    }
}
