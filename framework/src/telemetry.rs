//! Every metric, by name. Labels are bounded: a partition's number, a consumer's name, a side.

use metrics::{counter, gauge};

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
/// Gauge: 1 while an operator has paused the relays of the database.
pub const RELAY_PAUSED: &str = "tidings_relay_paused";
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

pub(crate) fn paused(paused: bool) {
    gauge!(RELAY_PAUSED).set(if paused { 1.0 } else { 0.0 });
}

pub(crate) fn consumer(metric: &'static str, consumer: &str) {
    counter!(metric, "consumer" => consumer.to_owned()).increment(1);
}
