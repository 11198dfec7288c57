//! Random numbers that are the same for a seed for ever, whatever becomes of any crate.

use std::ops::RangeInclusive;
use std::time::Duration;

/// SplitMix64.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// The dice of a seed.
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// Dice of their own, so that what one part of a schedule throws changes nothing for the others.
    pub fn apart(&mut self) -> Dice {
        Dice(self.throw())
    }

    /// Any number.
    pub fn throw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number of a range.
    pub fn of(&mut self, range: RangeInclusive<usize>) -> usize {
        let (from, to) = (*range.start(), *range.end());
        from + usize::try_from(self.throw() % (to - from + 1) as u64).unwrap_or(0)
    }

    /// A time, of a range of milliseconds.
    pub fn millis(&mut self, range: RangeInclusive<usize>) -> Duration {
        Duration::from_millis(self.of(range) as u64)
    }

    /// True so many times of a hundred.
    pub fn percent(&mut self, times: usize) -> bool {
        self.of(1..=100) <= times
    }

    /// One of them.
    ///
    /// # Panics
    /// If there is none.
    pub fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.of(0..=of.len() - 1)]
    }
}
