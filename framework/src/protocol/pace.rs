//! When to look again.

use std::time::Duration;

/// The time between looks that find nothing: from [`Pace::MIN`], doubling to [`Pace::MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    idle: Duration,
}

impl Pace {
    /// The shortest wait.
    pub const MIN: Duration = Duration::from_millis(5);
    /// The longest wait: what losing every wake-up costs.
    pub const MAX: Duration = Duration::from_millis(500);

    /// Starts with the shortest wait.
    pub fn new() -> Pace {
        Pace { idle: Pace::MIN }
    }

    /// How long to wait before the next look.
    pub fn wait(&mut self) -> Duration {
        let wait = self.idle;
        self.idle = (self.idle * 2).min(Pace::MAX);
        wait
    }

    /// There was something.
    pub fn restart(&mut self) {
        self.idle = Pace::MIN;
    }
}

impl Default for Pace {
    fn default() -> Self {
        Pace::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_doubles_to_half_a_second_and_work_resets_it() {
        let mut pace = Pace::new();
        let waits: Vec<u128> = (0..9).map(|_| pace.wait().as_millis()).collect();
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 320, 500, 500]);
        pace.restart();
        assert_eq!(pace.wait(), Pace::MIN);
    }
}
