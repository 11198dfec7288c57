//! The actix system that the actors live in: one of ours, on a thread of its own.
//!
//! The host's own would do, were it not stopped by others: a web server that handles the signal by itself stops the whole
//! system, and with it the actors in the middle of their drain, which would leave leases behind.

use std::io;
use std::thread;

use actix::{Arbiter, ArbiterHandle, System};
use tokio::sync::oneshot;

/// The arbiters of the actors. The control arbiter runs the node's actor and nothing else.
pub(super) struct Arbiters {
    control: Arbiter,
    work: Arbiter,
    system: System,
}

impl Arbiters {
    pub(super) async fn start() -> io::Result<Arbiters> {
        let (started, arbiters) = oneshot::channel();
        let run = move || {
            let system = System::new();
            system.block_on(async {
                let (control, work) = (Arbiter::new(), Arbiter::new());
                let _ = started.send(Arbiters { control, work, system: System::current() });
            });
            let _ = system.run();
        };
        thread::Builder::new().name("tidings-system".into()).spawn(run)?;
        arbiters.await.map_err(|_| io::Error::other("the actix system did not start"))
    }

    pub(super) fn control(&self) -> ArbiterHandle {
        self.control.handle()
    }

    pub(super) fn work(&self) -> ArbiterHandle {
        self.work.handle()
    }

    pub(super) fn stop(&self) {
        self.control.stop();
        self.work.stop();
        self.system.stop();
    }
}

impl Drop for Arbiters {
    fn drop(&mut self) {
        self.stop();
    }
}
