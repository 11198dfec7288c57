//! The servers of a run: private ones, shared by its schedules one after the other.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidings::services::proxy::Proxy;
use tidings::services::{Nats, NatsCluster, Postgres};

use super::Error;
use super::plan::Servers;

/// A PostgreSQL and a broker. A fault that takes one of them away keeps it locked until it is back.
#[derive(Debug, Clone)]
pub struct World {
    postgres: Arc<Mutex<Postgres>>,
    broker: Arc<Mutex<Broker>>,
}

/// The broker of a world.
#[derive(Debug)]
pub enum Broker {
    /// One server.
    One(Nats),
    /// Three of them.
    Three(NatsCluster),
}

impl World {
    /// Starts the servers. Blocks.
    ///
    /// # Errors
    /// Those of the servers.
    pub fn start(servers: Servers) -> Result<World, Error> {
        let broker = match servers {
            Servers::One => Broker::One(Nats::start()?),
            Servers::Three => Broker::Three(NatsCluster::start()?),
        };
        let postgres = Postgres::start()?;
        Ok(World { postgres: Arc::new(Mutex::new(postgres)), broker: Arc::new(Mutex::new(broker)) })
    }

    /// The database server. Waits for a fault under way to end, so it is not for a runtime's threads.
    pub fn postgres(&self) -> MutexGuard<'_, Postgres> {
        self.postgres.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The broker. As [`postgres`](World::postgres).
    pub fn broker(&self) -> MutexGuard<'_, Broker> {
        self.broker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Broker {
    /// All servers.
    pub fn nodes(&self) -> &[Nats] {
        match self {
            Broker::One(nats) => std::slice::from_ref(nats),
            Broker::Three(cluster) => cluster.nodes(),
        }
    }

    /// One of them; numbers beyond the last begin from 0 again.
    pub fn node_mut(&mut self, number: usize) -> &mut Nats {
        match self {
            Broker::One(nats) => nats,
            Broker::Three(cluster) => cluster.node_mut(number % NatsCluster::SIZE),
        }
    }

    /// A proxy for each server, and the URLs through them.
    ///
    /// # Errors
    /// When no port can be bound.
    pub fn proxies(&self) -> std::io::Result<(Vec<Proxy>, String)> {
        let proxies = self.nodes().iter().map(|nats| Proxy::start(nats.port())).collect::<Result<Vec<_>, _>>()?;
        let urls: Vec<String> =
            self.nodes().iter().zip(&proxies).map(|(nats, proxy)| nats.url_through(proxy)).collect();
        Ok((proxies, urls.join(",")))
    }
}
