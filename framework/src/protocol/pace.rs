//! When to look again.

use std::time::Duration;

/// What a pass over a partition found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// As much as one pass takes: there is more.
    Full,
    /// Something, but not a full window.
    Some,
    /// Nothing.
    Nothing,
}

/// Adapts the time between looks: at once after a full window, then from [`Pace::MIN`] doubling to [`Pace::MAX`] while
/// there is nothing.
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

    /// How long to wait after a look.
    pub fn after(&mut self, found: Found) -> Duration {
        match found {
            Found::Full => {
                self.idle = Pace::MIN;
                Duration::ZERO
            }
            Found::Some => {
                self.idle = Pace::MIN;
                Pace::MIN
            }
            Found::Nothing => {
                let wait = self.idle;
                self.idle = (self.idle * 2).min(Pace::MAX);
                wait
            }
        }
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
        let waits: Vec<u128> = (0..9).map(|_| pace.after(Found::Nothing).as_millis()).collect();
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 320, 500, 500]);
        assert_eq!(pace.after(Found::Full), Duration::ZERO);
        assert_eq!(pace.after(Found::Nothing), Pace::MIN);
    }
}
