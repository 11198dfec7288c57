//! When to look again over what was passed by.

use std::time::{Duration, Instant};

/// Adapts its interval to what a sweep costs, so that sweeping takes a few per cent of the time at most.
#[derive(Debug, Clone, Copy)]
pub struct Sweep {
    at: Instant,
}

impl Sweep {
    /// The first sweep is due after [`Sweep::MIN`].
    pub fn new(now: Instant) -> Sweep {
        Sweep { at: now + Sweep::MIN }
    }

    /// The shortest time between two sweeps.
    pub const MIN: Duration = Duration::from_millis(500);
    /// A step that took this long is followed by a pause of so many times that.
    pub const PAUSE: u32 = 30;

    /// Whether the next step is due.
    pub fn is_due(&self, now: Instant) -> bool {
        self.at <= now
    }

    /// When it is.
    pub fn at(&self) -> Instant {
        self.at
    }

    /// A step was made; `all` if it was the last of its sweep.
    pub fn done(&mut self, now: Instant, took: Duration, all: bool) {
        let pause = took * Sweep::PAUSE;
        self.at = now + if all { pause.clamp(Sweep::MIN, Sweep::MAX) } else { pause.min(Sweep::MAX) };
    }

    /// At rest nothing passes by unseen for long: a sweep may wait.
    pub fn rest(&mut self, now: Instant) {
        self.at = self.at.max(now + Sweep::AT_REST);
    }

    /// The longest pause.
    pub const MAX: Duration = Duration::from_secs(30);
    /// The pause at rest.
    pub const AT_REST: Duration = Duration::from_secs(5);
}
