//! When to look again over what was passed by.

use std::time::{Duration, Instant};

/// Adapts its interval to what a sweep costs, so that sweeping takes a few per cent of the time at most.
#[derive(Debug, Clone, Copy)]
pub struct Sweep {
    at: Instant,
    /// The last sweep was over, or the first one was waited for from here.
    over: Instant,
}

impl Sweep {
    /// The first sweep is due after [`Sweep::MIN`].
    pub fn new(now: Instant) -> Sweep {
        Sweep { at: now + Sweep::MIN, over: now }
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
        if all {
            self.over = now;
        }
        self.at = now + if all { pause.clamp(Sweep::MIN, Sweep::MAX) } else { pause.min(Sweep::MAX) };
    }

    /// At rest little passes by unseen: a sweep may wait, counted from the last one, since a partition that is at rest now
    /// and then would never be swept otherwise.
    pub fn rest(&mut self) {
        self.at = self.at.max(self.over + Sweep::AT_REST);
    }

    /// The longest pause.
    pub const MAX: Duration = Duration::from_secs(30);
    /// The pause at rest.
    pub const AT_REST: Duration = Duration::from_secs(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_that_is_at_rest_again_and_again_is_swept() {
        let began = Instant::now();
        let mut sweep = Sweep::new(began);
        for _ in 0..100 {
            sweep.rest();
        }
        assert!(sweep.is_due(began + Sweep::AT_REST));
        sweep.done(began + Sweep::AT_REST, Duration::ZERO, true);
        sweep.rest();
        assert!(!sweep.is_due(began + Sweep::AT_REST + Sweep::MIN));
        assert!(sweep.is_due(began + 2 * Sweep::AT_REST));
    }
}
