//! What only the owner of a partition knows, put up for the alarms of its process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::protocol::lease::Partition;

/// One board for a host; a partition's part of it goes with its tenure.
#[derive(Debug, Clone, Default)]
pub(crate) struct Board(Arc<Mutex<HashMap<Partition, Notice>>>);

/// What is true of a partition now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Notice {
    /// Lanes of which the broker takes nothing although it is there.
    pub(crate) unroutable: usize,
    /// Messages that were sent and have no answer that can be believed.
    pub(crate) unconfirmed: usize,
    /// Why the partition stands still until an operator decides.
    pub(crate) stopped: Option<String>,
}

impl Board {
    /// Puts up what changed.
    #[allow(dead_code, reason = "for the owner of a partition")]
    pub(crate) fn put(&self, partition: Partition, change: impl FnOnce(&mut Notice)) {
        change(self.lock().entry(partition).or_default());
    }

    /// The tenure is over: its next owner knows better.
    pub(crate) fn clear(&self, partition: Partition) {
        self.lock().remove(&partition);
    }

    pub(crate) fn read(&self) -> HashMap<Partition, Notice> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Partition, Notice>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
