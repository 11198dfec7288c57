//! The metrics of this process, for the tests that read them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use tidings::protocol::alarm::{Change, Kind};
use tidings::{Alarms, telemetry, testing};
use tidings_tests::eventually;

use super::{SOON, execute, one_partition, patient, relay, rows, watch};

static ALL: LazyLock<All> = LazyLock::new(|| {
    let all = All::default();
    // The process has one recorder; nothing else of the tests sets it.
    metrics::set_global_recorder(all.clone()).expect("there is none yet");
    all
});

/// Every series: its name, with its labels behind it, as `name{label=value,…}` in the order of the labels' names.
#[derive(Clone, Default)]
struct All(Arc<Mutex<HashMap<String, Arc<AtomicU64>>>>);

impl All {
    fn series(&self, key: &Key) -> Arc<AtomicU64> {
        let mut labels: Vec<String> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        labels.sort();
        let name = format!("{}{{{}}}", key.name(), labels.join(","));
        Arc::clone(self.0.lock().unwrap().entry(name).or_default())
    }
}

impl Recorder for All {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.series(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.series(key))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// Before anything is started whose metrics a test reads.
pub(super) fn record() {
    LazyLock::force(&ALL);
}

/// A series by its full name, once it exists.
fn series(name: &str) -> Option<u64> {
    ALL.0.lock().unwrap().get(name).map(|value| value.load(Ordering::Acquire))
}

/// A gauge of a source: of partition 0, if it is one of partitions.
pub(super) fn of(source: &str, gauge: &str) -> Option<f64> {
    let of_partition = series(&format!("{gauge}{{partition=0,source={source}}}"));
    of_partition.or_else(|| series(&format!("{gauge}{{source={source}}}"))).map(f64::from_bits)
}

/// Waits until a gauge is as wanted, give or take.
pub(super) async fn near(source: &str, gauge: &str, wanted: f64, give_or_take: f64) {
    eventually(&format!("{wanted} for {gauge}"), SOON, async || {
        of(source, gauge).filter(|value| (value - wanted).abs() <= give_or_take).map(drop)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_series_exists_before_anything_has_happened() {
    record();
    let database = testing::database().await.unwrap();
    let relaying = relay(&database).await;
    let source = database.source();
    for kind in Kind::ALL {
        let alarm = kind.name();
        let labels = if kind.is_per_partition() { ",partition=3" } else { "" };
        let name = format!("{}{{alarm={alarm}{labels},source={source}}}", telemetry::ALARM);
        eventually(&name, SOON, async || (series(&name).map(f64::from_bits) == Some(0.0)).then_some(())).await;
    }
    // Counters of all sources together.
    for name in [telemetry::PUBLISHES, telemetry::PUBLISH_DUPLICATES, telemetry::CONFIRMED, telemetry::BREAKER_OPEN] {
        assert!(series(&format!("{name}{{partition=3}}")).is_some(), "{name}");
    }
    assert!(series(&format!("{}{{side=relay}}", telemetry::DEAD)).is_some());
    near(source, telemetry::PENDING, 0.0, 0.0).await;
    near(source, telemetry::OLDEST_PENDING, 0.0, 0.0).await;
    near(source, telemetry::DEAD_LETTERS, 0.0, 0.0).await;
    relaying.drain(SOON).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alarm_is_a_gauge_of_one_while_it_is_raised() {
    record();
    let database = one_partition().await;
    let source = database.source();
    let alarms: Alarms = patient().pending(3);
    execute(&database, &format!("UPDATE tidings.setting SET source = '{source}'; {}", rows(1, 3, "g", "ready"))).await;
    let (_watching, heard) = watch(database.database(), alarms).await;
    heard.hears(Kind::Pending, None, Change::Raised).await;
    let name = format!("{}{{alarm=pending,source={source}}}", telemetry::ALARM);
    assert_eq!(series(&name).map(f64::from_bits), Some(1.0));
    execute(&database, "DELETE FROM tidings.pending").await;
    heard.hears(Kind::Pending, None, Change::Cleared).await;
    assert_eq!(series(&name).map(f64::from_bits), Some(0.0));
}
