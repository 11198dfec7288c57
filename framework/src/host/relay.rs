//! The settings of a relay.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::Error;
use crate::outbox::publish::Limits;
use crate::protocol::backoff::Backoff;

/// The relay's settings.
///
/// ```
/// use std::time::Duration;
/// use tidings::Relay;
///
/// let relay = Relay::default().lease(Duration::from_secs(15)).name("exports-1");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relay {
    pub(super) lease: Duration,
    window: usize,
    window_bytes: usize,
    in_flight: usize,
    backoff: Backoff,
    sync_horizon: Duration,
    skip: BTreeSet<String>,
    pub(super) connections: usize,
    pub(super) name: String,
}

impl Default for Relay {
    fn default() -> Self {
        Relay {
            lease: Duration::from_secs(15),
            window: 1_000,
            window_bytes: 8 * 1024 * 1024,
            in_flight: 1_024,
            backoff: Backoff { min: Duration::from_millis(200), max: Duration::from_secs(60) },
            sync_horizon: Duration::from_secs(600),
            skip: BTreeSet::new(),
            connections: 4,
            name: format!("process {}", std::process::id()),
        }
    }
}

impl Relay {
    /// How long a partition stays with a process that does not renew it: the time a takeover takes. Default 15 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Events claimed at once, per partition. Default 1,000.
    pub fn window(mut self, events: usize) -> Self {
        self.window = events;
        self
    }

    /// Bytes of data claimed at once, per partition; one event is always taken. Default 8 MiB.
    pub fn window_bytes(mut self, bytes: usize) -> Self {
        self.window_bytes = bytes;
        self
    }

    /// Messages without an acknowledgement at once, per partition. Default 1,024.
    pub fn in_flight(mut self, messages: usize) -> Self {
        self.in_flight = messages;
        self
    }

    /// The wait after a failed attempt of an event, and its ceiling. Default 200 ms and 1 min.
    pub fn backoff(mut self, min: Duration, max: Duration) -> Self {
        self.backoff = Backoff { min, max };
        self
    }

    /// How far back a broker that lost its stream may have lost what it confirmed: after a loss, events that were confirmed
    /// within this time are published again where the stream does not show them. At least the `sync_interval` of the
    /// server, 2 min unless it is configured. Default 10 min.
    pub fn sync_horizon(mut self, horizon: Duration) -> Self {
        self.sync_horizon = horizon;
        self
    }

    /// Discards events of this aggregate type that can never be published, instead of holding the aggregate until somebody
    /// does: a tombstone stands in the place of the event, and those behind it go on. It is recorded in
    /// `tidings.dead_letter` and `tidings.discarded`. Say it once for each type. Default none: a dead event holds its
    /// aggregate until it is redriven or discarded, see [`dead`](crate::dead).
    pub fn skip_dead(mut self, aggregate_type: impl Into<String>) -> Self {
        self.skip.insert(aggregate_type.into());
        self
    }

    /// PostgreSQL connections for claiming and confirming, shared by the partitions of the process; one is enough, and a
    /// further one is for leases. Default 4.
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// What operators see in `tidings.node`. Default `process` and its number.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    pub(super) fn limits(&self) -> Limits {
        Limits {
            window: self.window,
            window_bytes: self.window_bytes,
            in_flight: self.in_flight,
            backoff: self.backoff,
            sync_horizon: self.sync_horizon,
            skip: Arc::new(self.skip.clone()),
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let wrong = |what: &str| Err(Error::Config(format!("`Relay::{what}`")));
        match self {
            _ if self.lease < Duration::from_millis(500) => {
                wrong("lease is under 500 ms: renewals would come too late under load")
            }
            _ if self.window == 0 => wrong("window is 0: nothing would be published"),
            _ if self.window_bytes == 0 => wrong("window_bytes is 0: nothing would be published"),
            _ if self.connections == 0 => wrong("connections is 0: nothing could be claimed"),
            _ if self.in_flight == 0 => wrong("in_flight is 0: nothing would be published"),
            _ if self.backoff.min.is_zero() || self.backoff.max < self.backoff.min => {
                wrong("backoff has a first wait of 0 or above its ceiling")
            }
            _ => Ok(()),
        }
    }
}
