//! The relay as real processes on real servers: killed, frozen, starved, in company, and fed with what it must refuse.

mod clock;
mod content;
mod cramped;
mod dead;
mod delayed;
mod drain;
mod drift;
mod duplicate;
mod full;
mod kill;
mod lanes;
mod membership;
pub(crate) mod node;
mod outage;
mod panic;
mod partitions;
mod pause;
pub(crate) mod place;
mod share;
mod start;
mod unroutable;
mod wake;
mod wire;

use std::time::Duration;

/// For what needs a moment on a slow machine; nothing here takes so long when it works.
pub(crate) const SOON: Duration = Duration::from_secs(60);
