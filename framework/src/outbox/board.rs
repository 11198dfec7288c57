//! What only the owner of a partition knows, put up for the alarms of its process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::protocol::lease::Partition;

/// One board for a host; a partition's part of it goes with its tenure.
#[derive(Debug, Clone, Default)]
pub(crate) struct Board(Arc<Mutex<HashMap<Partition, Posted>>>);

#[derive(Debug, Default)]
struct Posted {
    unroutable_until: Option<Instant>,
    notice: Notice,
}

/// What is true of a partition now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Notice {
    /// The broker is there, and has no way for some message.
    pub(crate) unroutable: bool,
    /// Why it is not known what the broker stored.
    pub(crate) unconfirmed: Option<String>,
    /// Why the partition stands still until an operator decides.
    pub(crate) stopped: Option<String>,
}

impl Board {
    /// A message found no way; it is tried again within `ceiling`, and is no news before that is over.
    pub(crate) fn unroutable(&self, partition: Partition, ceiling: Duration) {
        let until = Instant::now() + ceiling * 2;
        self.lock().entry(partition).or_default().unroutable_until = Some(until);
    }

    /// What was sent last is neither known to be stored nor known not to be.
    pub(crate) fn unconfirmed(&self, partition: Partition, why: &str) {
        self.lock().entry(partition).or_default().notice.unconfirmed = Some(why.to_owned());
    }

    /// Nothing is published until an operator has decided.
    pub(crate) fn stopped(&self, partition: Partition, why: &str) {
        self.lock().entry(partition).or_default().notice.stopped = Some(why.to_owned());
    }

    /// Everything that was sent is known to be stored.
    pub(crate) fn goes_on(&self, partition: Partition) {
        if let Some(posted) = self.lock().get_mut(&partition) {
            posted.notice = Notice::default();
        }
    }

    /// The tenure is over: its next owner knows better.
    pub(crate) fn clear(&self, partition: Partition) {
        self.lock().remove(&partition);
    }

    pub(crate) fn read(&self) -> HashMap<Partition, Notice> {
        let now = Instant::now();
        let notice = |posted: &Posted| Notice {
            unroutable: posted.unroutable_until.is_some_and(|until| now < until),
            ..posted.notice.clone()
        };
        self.lock().iter().map(|(partition, posted)| (*partition, notice(posted))).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Partition, Posted>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
