//! The actix system that the actors live in: the host's own if there is one, else one on a thread of ours.

use std::io;
use std::thread;

use actix::{Arbiter, ArbiterHandle, System};
use tokio::sync::oneshot;

/// The arbiters of the actors. The control arbiter runs the node's actor and nothing else.
pub(super) struct Arbiters {
    control: Arbiter,
    work: Arbiter,
    own_system: Option<System>,
}

impl Arbiters {
    pub(super) async fn start() -> io::Result<Arbiters> {
        if System::try_current().is_some() {
            return Ok(Arbiters { control: Arbiter::new(), work: Arbiter::new(), own_system: None });
        }
        let (started, arbiters) = oneshot::channel();
        let run = move || {
            let system = System::new();
            system.block_on(async {
                let current = System::current();
                let _ =
                    started.send(Arbiters { control: Arbiter::new(), work: Arbiter::new(), own_system: Some(current) });
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
        if let Some(system) = &self.own_system {
            system.stop();
        }
    }
}

impl Drop for Arbiters {
    fn drop(&mut self) {
        self.stop();
    }
}
