//! A stream with settings that lose, repeat or reorder is refused with the setting's name; the other partitions go on.

use std::time::Duration;

use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, Source};

use super::SOON;
use super::node::Node;
use super::place::Place;
use nix::sys::signal::Signal;

/// How a good configuration is made bad, and the setting that must be named.
type Drift = (&'static str, fn(&mut Config));

const DRIFTS: &[Drift] = &[
    ("no_ack", |config| config.no_ack = true),
    ("retention", |config| config.retention = RetentionPolicy::Interest),
    ("retention", |config| config.retention = RetentionPolicy::WorkQueue),
    ("mirror", |config| {
        config.subjects.clear();
        config.mirror = Some(Source { name: "relay-drift-origin".into(), ..Source::default() });
    }),
    ("sources", |config| {
        config.sources = Some(vec![Source { name: "relay-drift-origin".into(), ..Source::default() }]);
    }),
    ("allow_rollup_hdrs", |config| config.allow_rollup = true),
    ("max_msgs_per_subject", |config| config.max_messages_per_subject = 10),
    ("discard", |config| (config.discard, config.max_messages) = (DiscardPolicy::Old, 10)),
    ("discard", |config| (config.discard, config.max_bytes) = (DiscardPolicy::Old, 10_000)),
    ("duplicate_window", |config| config.duplicate_window = Duration::from_secs(5)),
    ("max_age", |config| config.max_age = Duration::from_secs(3_600)),
    ("subjects", |config| {
        let foreign = format!("{}.foreign", config.name);
        config.subjects.push(foreign);
    }),
    ("metadata", |config| drop(config.metadata.remove("tidings-source"))),
];

#[tokio::test(flavor = "multi_thread")]
async fn is_refused_by_name_and_the_others_go_on() {
    let partitions = DRIFTS.len() as u16 + 1;
    let place = Place::shared(partitions).await;
    let mut maker = Node::start(&place, &[]).await;
    let jetstream = place.jetstream().await;
    tidings_tests::eventually("it makes the streams", SOON, async || {
        (place.streams(&jetstream).await.len() == usize::from(partitions)).then_some(())
    })
    .await;
    maker.signal(Signal::SIGTERM);
    assert!(maker.ended(SOON).await.success());

    let origin =
        Config { name: "relay-drift-origin".into(), subjects: vec!["relay-drift-origin".into()], ..Config::default() };
    jetstream.get_or_create_stream(origin).await.unwrap();
    let mut streams = place.streams(&jetstream).await;
    streams.sort_by_key(|info| info.config.metadata["tidings-partition"].parse::<usize>().unwrap());
    let mut names = Vec::new();
    for (info, (setting, change)) in streams.into_iter().zip(DRIFTS) {
        let mut config = info.config;
        jetstream.delete_stream(&config.name).await.unwrap();
        change(&mut config);
        names.push((config.name.clone(), setting));
        jetstream.create_stream(config).await.unwrap_or_else(|error| panic!("{setting}: {error}"));
    }

    place.append("e", 400, 100).await;
    let last = partitions - 1;
    let good = place.number(&format!("SELECT count(*) AS number FROM tidings.event WHERE partition = {last}")).await;
    assert!(good > 0);
    let node = Node::start(&place, &[]).await;
    place.becomes("SELECT count(*) AS number FROM tidings.confirmation", good).await;
    for (name, setting) in names {
        node.says(&format!("stream `{name}`: {setting} ")).await;
    }
    let untouched = "SELECT count(*) AS number FROM tidings.pending WHERE state = 'ready' AND attempts = 0";
    assert_eq!(place.number(untouched).await, 400 - good);
}
