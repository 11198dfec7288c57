//! One look for all partitions at rest: which of them has something new.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use diesel::sql_types::{Array, BigInt, Integer};
use diesel_async::RunQueryDsl;
use tokio::sync::Notify;

use crate::postgres::{Pool, statement};
use crate::protocol::lease::Partition;
use crate::protocol::pace::Pace;

/// The partitions of this process that have nothing in hand, and above which place something new would stand.
#[derive(Default)]
pub(crate) struct Resting {
    partitions: Mutex<HashMap<Partition, Rests>>,
    /// One of them had something.
    worked: Notify,
}

struct Rests {
    floor: i64,
    /// `None` while it looks for itself.
    wake: Option<Wake>,
}

/// Tells a partition that there is something.
pub(crate) type Wake = Box<dyn FnOnce() + Send>;

impl Resting {
    /// It has nothing in hand: look for it.
    pub(crate) fn rests(&self, partition: Partition, floor: i64, wake: Wake) {
        let before = self.lock().insert(partition, Rests { floor, wake: Some(wake) });
        if before.is_none_or(|before| before.floor != floor) {
            self.worked.notify_one();
        }
    }

    /// It looks for itself.
    pub(crate) fn works(&self, partition: Partition) {
        if let Some(rests) = self.lock().get_mut(&partition) {
            rests.wake = None;
        }
    }

    fn at_rest(&self) -> (Vec<i32>, Vec<i64>) {
        let partitions = self.lock();
        let at_rest = partitions.iter().filter(|(_, rests)| rests.wake.is_some());
        at_rest.map(|(partition, rests)| (partition.0, rests.floor)).unzip()
    }

    fn wake(&self, partitions: &[i32]) {
        let mut resting = self.lock();
        for partition in partitions {
            if let Some(wake) = resting.get_mut(&Partition(*partition)).and_then(|rests| rests.wake.take()) {
                wake();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Partition, Rests>> {
        self.partitions.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Looks, ever more slowly while nothing is there, and wakes the partitions that have something.
pub(crate) async fn look_for_all(pool: Pool, resting: Arc<Resting>) {
    let mut pace = Pace::new();
    loop {
        tokio::select! {
            () = tokio::time::sleep(pace.wait()) => {}
            () = resting.worked.notified() => {
                pace.restart();
                continue;
            }
        }
        let (partitions, floors) = resting.at_rest();
        if partitions.is_empty() {
            resting.worked.notified().await;
            pace.restart();
            continue;
        }
        let asked = partitions.clone();
        let looking = pool.run(async |connection| {
            let found: Vec<i32> = RunQueryDsl::load(Look { partitions, floors }, connection).await?;
            Ok(found)
        });
        match looking.await {
            Ok(found) => resting.wake(&found),
            // Each of them asks for itself, and says what is wrong with the database.
            Err(_) => resting.wake(&asked),
        }
    }
}

statement! {
    struct Look { partitions: Array<Integer> = Vec<i32>, floors: Array<BigInt> = Vec<i64> } -> Integer;
    "SELECT u.partition FROM unnest({partitions}, {floors}) AS u(partition, floor)
      WHERE EXISTS (SELECT 1 FROM tidings.pending r
                     WHERE r.partition = u.partition AND r.seq > u.floor AND r.state IN ('ready', 'tombstone'))
         OR EXISTS (SELECT 1 FROM tidings.pending r
                     WHERE r.partition = u.partition AND r.next_attempt_at <= now() AND r.state <> 'delayed')
         OR EXISTS (SELECT 1 FROM tidings.pending r
                     WHERE r.partition = u.partition AND r.next_attempt_at <= now() AND r.state = 'delayed')"
}
