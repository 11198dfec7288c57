//! Tidings at work, and how it ends.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use futures_util::future::BoxFuture;
use tokio::sync::watch;

use super::Error;
use super::system::Arbiters;
use crate::actors::Drain;
use crate::actors::alarm::Watchman;
use crate::actors::consumer::Consumer as ConsumerActor;
use crate::actors::node::Node;
use crate::broker::Broker;
use crate::postgres::{Engine, Pool};

/// Tidings at work in this process.
///
/// Dropped without a drain it stops at once, as if the process had died: leases end by themselves, messages in hand are
/// delivered again, and nothing is lost.
#[must_use = "dropping it stops everything"]
pub struct Running {
    pub(super) engine: Engine,
    #[expect(dead_code, reason = "kept so that the handlers run until the end")]
    pub(super) handlers: Engine,
    pub(super) pools: [Pool; 2],
    pub(super) broker: Arc<dyn Broker>,
    pub(super) arbiters: Arbiters,
    pub(super) node: Option<Addr<Node>>,
    pub(super) consumers: Vec<Addr<ConsumerActor>>,
    #[expect(dead_code, reason = "an actor that nobody can reach ends")]
    pub(super) watchman: Option<Addr<Watchman>>,
    pub(super) failed: watch::Receiver<Option<String>>,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running")
            .field("relay", &self.node.is_some())
            .field("consumers", &self.consumers.len())
            .finish_non_exhaustive()
    }
}

impl Running {
    /// Waits for the signal, then drains. If a part of it cannot go on before that, drains at once and says so.
    ///
    /// # Errors
    /// [`Error::Failed`] if a part could not go on: the process should end and be started again.
    /// [`Error::DrainTimeout`] and [`Error::LeasesKept`] as for [`drain`](Self::drain); nothing is lost by either.
    pub async fn drain_on(self, signal: impl Future<Output = ()>, deadline: Duration) -> Result<(), Error> {
        let mut failed = self.failed.clone();
        tokio::select! {
            () = signal => self.drain(deadline).await,
            what = async { failed.wait_for(Option::is_some).await.ok().and_then(|what| what.clone()) } => {
                let drained = self.drain(deadline).await;
                match what {
                    Some(what) => Err(Error::Failed(what)),
                    None => drained,
                }
            }
        }
    }

    /// Takes no more, finishes what is in hand, records it, gives up the leases, and closes. Ends at the deadline, whatever
    /// PostgreSQL or NATS do.
    ///
    /// # Errors
    /// [`Error::DrainTimeout`] if it did not end in time, [`Error::LeasesKept`] if PostgreSQL did not take it that the
    /// leases are given up; nothing is lost by either.
    pub async fn drain(self, deadline: Duration) -> Result<(), Error> {
        let node = self.node.clone();
        let consumers = self.consumers.clone();
        let draining: BoxFuture<'static, bool> = Box::pin(async move {
            let consumers = futures_util::future::join_all(consumers.into_iter().map(|consumer| consumer.send(Drain)));
            let relay = async {
                match node {
                    Some(node) => node.send(Drain).await.unwrap_or(false),
                    None => true,
                }
            };
            tokio::join!(relay, consumers).0
        });
        let broker = Arc::clone(&self.broker);
        let all = self.engine.spawn(async move {
            tokio::time::timeout(deadline, async {
                let signed_off = draining.await;
                broker.flush().await;
                signed_off
            })
            .await
        });
        let ended = all.await;
        self.pools.iter().for_each(Pool::close);
        self.arbiters.stop();
        match ended {
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false)) => Err(Error::LeasesKept),
            Ok(Err(_)) | Err(_) => Err(Error::DrainTimeout(deadline)),
        }
    }
}
