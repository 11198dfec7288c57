//! What only the relay itself knows, and what an operator has told it.

use std::time::Duration;

use futures_util::TryStreamExt;
use tidings::protocol::alarm::{Change, Kind};
use tidings::services::proxy::Proxy;
use tidings::{Alarms, JetStream, Relay, Running, Tidings, testing};

use super::{Heard, SOON, execute, gauges, one_partition, patient, watch};

async fn relay(database: &testing::TestDatabase, jetstream: JetStream, alarms: Alarms) -> (Running, Heard) {
    gauges::record();
    let heard = Heard::default();
    let told = heard.clone();
    let running = Tidings::new(database.database(), jetstream)
        .source(database.source())
        .relay(Relay::default())
        .alarms(alarms)
        .on_alarm(move |alarm| told.0.lock().unwrap().push(alarm.clone()))
        .start()
        .await
        .unwrap();
    (running, heard)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_the_database_does_not_know_stops_the_partition_and_is_said() {
    let database = one_partition().await;
    let (running, heard) = relay(&database, testing::jetstream(), patient()).await;
    execute(&database, "SELECT tidings.append('t', '{}'::bytea)").await;
    let confirmed = "SELECT count(*) AS number FROM tidings.confirmation";
    super::becomes(&database, confirmed, 1).await;
    let nats = &testing::servers().nats;
    let client = nats.connect_options().connect(format!("127.0.0.1:{}", nats.port())).await.unwrap();
    let context = async_nats::jetstream::new(client);
    let names: Vec<String> = context.stream_names().try_collect().await.unwrap();
    let own = database.source().rsplit('_').next().unwrap();
    let stream = names.into_iter().find(|name| name.contains(own)).expect("the relay made it");
    let subjects = context.get_stream(&stream).await.unwrap().cached_info().config.subjects.clone();
    let subject = subjects[0].replace('>', "evt.x.y");
    context.publish(subject, "not ours".into()).await.unwrap().await.unwrap();
    execute(&database, "SELECT tidings.append('t', '{}'::bytea)").await;
    let stopped = heard.hears(Kind::Stopped, Some(0), Change::Raised).await;
    assert!(stopped.message.starts_with("the partition stands still: "), "{stopped}");
    running.drain(SOON).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledgements_that_do_not_come_are_said_until_they_do() {
    let database = one_partition().await;
    let proxy = Proxy::start(testing::servers().nats.port()).unwrap();
    let jetstream = JetStream::url(testing::servers().nats.url_through(&proxy)).ack_timeout(Duration::from_secs(1));
    let (running, heard) = relay(&database, jetstream, patient().unconfirmed(Duration::from_millis(300))).await;
    execute(&database, "SELECT tidings.append('t', '{}'::bytea)").await;
    super::becomes(&database, "SELECT count(*) AS number FROM tidings.confirmation", 1).await;
    proxy.freeze_only(tidings::services::proxy::Direction::ToClient);
    execute(&database, "SELECT tidings.append('t', '{}'::bytea)").await;
    heard.hears(Kind::Unconfirmed, Some(0), Change::Raised).await;
    proxy.thaw();
    heard.hears(Kind::Unconfirmed, Some(0), Change::Cleared).await;
    assert_eq!(heard.of(Kind::Unconfirmed).len(), 2);
    running.drain(SOON).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_stays_paused_is_said_and_nobody_is_missed_meanwhile() {
    let database = one_partition().await;
    execute(
        &database,
        "ALTER TABLE tidings.setting ADD COLUMN IF NOT EXISTS paused_at timestamptz;
         UPDATE tidings.setting SET paused_at = now()",
    )
    .await;
    let soon = Duration::from_millis(300);
    let (running, heard) = watch(database.database(), patient().paused(soon).unowned(soon).no_able_node(soon)).await;
    heard.hears(Kind::Paused, None, Change::Raised).await;
    assert_eq!(heard.all(), [(Kind::Paused, None, Change::Raised)]);
    execute(&database, "UPDATE tidings.setting SET paused_at = NULL").await;
    heard.hears(Kind::Paused, None, Change::Cleared).await;
    heard.hears(Kind::Unowned, Some(0), Change::Raised).await;
    running.drain(SOON).await.unwrap();
}
