//! How it ends when not all is well.

use nix::sys::signal::Signal;
use tidings::services::proxy::Proxy;
use tidings::testing;

use super::{Alone, CONFIRMED, OWNED, becomes, databases, execute, psql_appends};

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_it_while_it_waits_for_a_database() {
    let nats = testing::servers().nats.url();
    let mut alone = Alone::with(
        &databases(&["test.nobody"]),
        &[("URL_0", "postgres://app@127.0.0.1:1/none"), ("TIDINGS_NATS_URL", &nats)],
    );
    alone.says("waiting for the database").await;
    alone.signal(Signal::SIGTERM);
    assert_eq!(alone.ended().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_cannot_be_served_ends_it_after_the_others_have_drained() {
    let (wrong, right) = (testing::database().await.unwrap(), testing::database().await.unwrap());
    execute(&wrong, "UPDATE tidings.setting SET source = 'what.it.was'").await;
    let proxy = Proxy::start(testing::servers().postgres.port()).unwrap();
    proxy.refuse(true);
    let behind = testing::servers().postgres.url_through(&proxy, wrong.source());
    let nats = testing::servers().nats.url();
    let config = databases(&["what.it.is", right.source()]);
    let mut alone = Alone::with(&config, &[("URL_0", &behind), ("URL_1", right.url()), ("TIDINGS_NATS_URL", &nats)]);
    psql_appends(&right, "order-1").await;
    becomes(&right, CONFIRMED, 1).await;
    proxy.refuse(false);
    assert_eq!(alone.ended().await, Some(1));
    let log = alone.log();
    assert!(log.contains("what.it.is: the database is the source \"what.it.was\""), "{log}");
    assert!(log.contains(wrong.source()), "it says which database: {log}");
    becomes(&right, OWNED, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_a_drain_that_hangs() {
    let database = testing::database().await.unwrap();
    let proxy = Proxy::start(testing::servers().postgres.port()).unwrap();
    let behind = testing::servers().postgres.url_through(&proxy, database.source());
    let nats = testing::servers().nats.url();
    let variables = [("TIDINGS_DATABASE_URL", behind.as_str()), ("TIDINGS_NATS_URL", nats.as_str())];
    let mut alone = Alone::plain(&["--source", database.source(), "--drain", "10m"], &variables);
    becomes(&database, OWNED, 4).await;
    proxy.freeze();
    alone.signal(Signal::SIGTERM);
    alone.says("draining").await;
    alone.signal(Signal::SIGTERM);
    assert_eq!(alone.ended().await, Some(1));
    assert!(alone.log().contains("a second signal: ended at once"), "{}", alone.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_that_hangs_ends_at_its_deadline() {
    let database = testing::database().await.unwrap();
    let proxy = Proxy::start(testing::servers().postgres.port()).unwrap();
    let behind = testing::servers().postgres.url_through(&proxy, database.source());
    let nats = testing::servers().nats.url();
    let variables = [("TIDINGS_DATABASE_URL", behind.as_str()), ("TIDINGS_NATS_URL", nats.as_str())];
    let mut alone = Alone::plain(&["--source", database.source(), "--drain", "500ms"], &variables);
    becomes(&database, OWNED, 4).await;
    proxy.freeze();
    alone.signal(Signal::SIGTERM);
    assert_eq!(alone.ended().await, Some(1));
    assert!(alone.log().contains("the drain did not end within 500ms"), "{}", alone.log());
}
