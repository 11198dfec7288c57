//! Every metric, by name. Labels are bounded: a partition's number, a consumer's name, a side.

use metrics::{counter, gauge};

use crate::protocol::alarm::Kind;
use crate::protocol::lease::Partition;

/// Counter, by `partition`: publishes handed to the broker, repeats included.
pub const PUBLISHES: &str = "tidings_publishes_total";
/// Counter, by `partition`: publishes that the broker had already, from an earlier try.
pub const PUBLISH_DUPLICATES: &str = "tidings_publish_duplicates_total";
/// Counter, by `partition`: events that the broker had confirmed and lost, and that are published again.
pub const OPENED_AGAIN: &str = "tidings_opened_again_total";
/// Counter, by `partition`: publishes for which the stream had no subject; the event's aggregate waits.
pub const UNROUTABLE: &str = "tidings_unroutable_total";
/// Gauge, by `partition`: 1 while a message that the database does not know stops the partition.
pub const STOPPED: &str = "tidings_partition_stopped";
/// Counter, by `partition`: events confirmed.
pub const CONFIRMED: &str = "tidings_confirmed_total";
/// Counter, by `side` (`relay` or a consumer's name): events set aside.
pub const DEAD: &str = "tidings_dead_total";
/// Gauge, by `partition`: 1 while the broker does not answer and nothing is published.
pub const BREAKER_OPEN: &str = "tidings_breaker_open";
/// Gauge: partitions this process owns.
pub const PARTITIONS_OWNED: &str = "tidings_partitions_owned";
/// Counter, by `consumer`: events applied.
pub const APPLIED: &str = "tidings_applied_total";
/// Counter, by `consumer`: deliveries of events that were applied before.
pub const DUPLICATES: &str = "tidings_duplicates_total";
/// Counter, by `consumer`: attempts that failed and counted.
pub const FAILED_ATTEMPTS: &str = "tidings_failed_attempts_total";
/// Counter, by `consumer`: transactions run again without counting an attempt.
pub const RESTARTS: &str = "tidings_restarts_total";
/// Counter, by `consumer`: deliveries given back because this release cannot read them yet.
pub const DEFERRED: &str = "tidings_deferred_total";
/// Gauge, by `source`, `alarm` and, where there is one for each, `partition`: 1 while the alarm is raised.
pub const ALARM: &str = "tidings_alarm";
/// Gauge, by `source` and `partition`: events that wait and are neither dead nor due later; reckoned above some thousands.
pub const PENDING: &str = "tidings_pending";
/// Gauge, by `source` and `partition`: the age of the oldest event that could go, in seconds.
pub const OLDEST_PENDING: &str = "tidings_oldest_pending_seconds";
/// Gauge, by `source` and `partition`: lanes held behind a dead event, of the oldest 200 dead events.
pub const HELD_LANES: &str = "tidings_held_lanes";
/// Gauge, by `source` and `partition`: how long the first of them has been held, in seconds.
pub const HELD: &str = "tidings_held_seconds";
/// Gauge, by `source` and `partition`: 1 while a relay owns the partition, this one or another.
pub const OWNED: &str = "tidings_partition_owned";
/// Gauge, by `source`: dead letters that nobody has resolved, counted up to 1,000.
pub const DEAD_LETTERS: &str = "tidings_dead_letters";
/// Gauge, by `source`: relays that reach the broker.
pub const ABLE_NODES: &str = "tidings_able_nodes";

pub(crate) fn publishes(partition: Partition, publishes: usize) {
    if publishes > 0 {
        counter!(PUBLISHES, "partition" => partition.to_string()).increment(publishes as u64);
    }
}

pub(crate) fn publish_duplicates(partition: Partition, duplicates: u64) {
    counter!(PUBLISH_DUPLICATES, "partition" => partition.to_string()).increment(duplicates);
}

pub(crate) fn opened_again(partition: Partition, events: u64) {
    counter!(OPENED_AGAIN, "partition" => partition.to_string()).increment(events);
}

pub(crate) fn unroutable(partition: Partition) {
    counter!(UNROUTABLE, "partition" => partition.to_string()).increment(1);
}

pub(crate) fn stopped(partition: Partition, stopped: bool) {
    gauge!(STOPPED, "partition" => partition.to_string()).set(if stopped { 1.0 } else { 0.0 });
}

pub(crate) fn confirmed(partition: Partition, events: u64) {
    counter!(CONFIRMED, "partition" => partition.to_string()).increment(events);
}

pub(crate) fn dead(side: &str) {
    counter!(DEAD, "side" => side.to_owned()).increment(1);
}

pub(crate) fn breaker(partition: Partition, open: bool) {
    gauge!(BREAKER_OPEN, "partition" => partition.to_string()).set(if open { 1.0 } else { 0.0 });
}

pub(crate) fn owned(partitions: usize) {
    gauge!(PARTITIONS_OWNED).set(partitions as f64);
}

pub(crate) fn consumer(metric: &'static str, consumer: &str) {
    counter!(metric, "consumer" => consumer.to_owned()).increment(1);
}

/// Makes the counters of a relay exist before anything has happened: a rule on a series that is not there never fires.
pub(crate) fn relay_begins(partitions: i32) {
    dead_letters_so_far(RELAY);
    owned(0);
    for partition in (0..partitions).map(Partition) {
        for metric in [PUBLISHES, PUBLISH_DUPLICATES, OPENED_AGAIN, UNROUTABLE, CONFIRMED] {
            counter!(metric, "partition" => partition.to_string()).increment(0);
        }
        stopped(partition, false);
        breaker(partition, false);
    }
}

/// The same for a consumer.
pub(crate) fn consumer_begins(consumer: &str) {
    dead_letters_so_far(consumer);
    for metric in [APPLIED, DUPLICATES, FAILED_ATTEMPTS, RESTARTS, DEFERRED] {
        counter!(metric, "consumer" => consumer.to_owned()).increment(0);
    }
}

fn dead_letters_so_far(side: &str) {
    counter!(DEAD, "side" => side.to_owned()).increment(0);
}

pub(crate) fn alarm(source: &str, kind: Kind, partition: Option<i32>, raised: bool) {
    let raised = if raised { 1.0 } else { 0.0 };
    match partition {
        Some(partition) => {
            gauge!(ALARM, "source" => source.to_owned(), "alarm" => kind.name(), "partition" => partition.to_string())
                .set(raised);
        }
        None => gauge!(ALARM, "source" => source.to_owned(), "alarm" => kind.name()).set(raised),
    }
}

/// Makes the gauge of every alarm exist, at 0.
pub(crate) fn alarms_begin(source: &str, partitions: i32) {
    for kind in Kind::ALL {
        if kind.is_per_partition() {
            (0..partitions).for_each(|partition| alarm(source, kind, Some(partition), false));
        } else {
            alarm(source, kind, None, false);
        }
    }
}

/// What one look found in a partition.
pub(crate) struct Waiting {
    pub(crate) events: u64,
    pub(crate) oldest_seconds: f64,
    pub(crate) held_lanes: u64,
    pub(crate) held_seconds: f64,
    pub(crate) owned: bool,
}

pub(crate) fn waiting(source: &str, partition: i32, waiting: &Waiting) {
    let set = |metric: &'static str, value: f64| {
        gauge!(metric, "source" => source.to_owned(), "partition" => partition.to_string()).set(value);
    };
    set(PENDING, waiting.events as f64);
    set(OLDEST_PENDING, waiting.oldest_seconds);
    set(HELD_LANES, waiting.held_lanes as f64);
    set(HELD, waiting.held_seconds);
    set(OWNED, if waiting.owned { 1.0 } else { 0.0 });
}

pub(crate) fn whole_outbox(source: &str, dead_letters: u64, able_nodes: u64) {
    gauge!(DEAD_LETTERS, "source" => source.to_owned()).set(dead_letters as f64);
    gauge!(ABLE_NODES, "source" => source.to_owned()).set(able_nodes as f64);
}

/// The side of the relay in [`DEAD`].
pub(crate) const RELAY: &str = "relay";
