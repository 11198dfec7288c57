//! What it relays, and for whom.

use nix::sys::signal::Signal;
use tidings::testing;
use tidings::{Consumer, Event, Handle, HandlerError, Received, Tidings, Tx};
use tidings_tests::eventually;
use tokio::sync::mpsc;

use super::{Alone, CONFIRMED, OWNED, SOON, becomes, databases, execute, psql_appends};

#[tokio::test(flavor = "multi_thread")]
async fn what_psql_appends_is_relayed_from_several_databases_by_one_process() {
    let (one, other) = (testing::database().await.unwrap(), testing::database().await.unwrap());
    let nats = testing::servers().nats.url();
    psql_appends(&one, "order-1").await;
    let config = format!("drain = \"19s\"\n{}", databases(&[one.source(), other.source()]));
    let variables = [("URL_0", one.url()), ("URL_1", other.url()), ("TIDINGS_NATS_URL", nats.as_str())];
    let mut alone = Alone::with(&config, &variables);
    becomes(&one, CONFIRMED, 1).await;
    psql_appends(&other, "order-1").await;
    psql_appends(&one, "order-2").await;
    becomes(&one, CONFIRMED, 2).await;
    becomes(&other, CONFIRMED, 1).await;
    let log = alone.log();
    for told in [one.source(), other.source(), "lease: 3s", "127.0.0.1", "oldest_pending: 60s", "relaying"] {
        assert!(log.contains(told), "{told}: {log}");
    }
    for secret in [one.url(), other.url(), nats.as_str(), password(one.url()), password(&nats)] {
        assert!(!log.contains(secret), "a secret is in the log");
    }
    alone.signal(Signal::SIGTERM);
    assert_eq!(alone.ended().await, Some(0));
    let log = alone.log();
    assert!(log.contains("draining deadline=19s") && log.contains("drained"), "{log}");
    for database in [&one, &other] {
        becomes(database, OWNED, 0).await;
        becomes(database, "SELECT count(*) FROM tidings.node", 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_database_needs_no_file_and_ctrl_c_drains() {
    let database = testing::database().await.unwrap();
    let nats = testing::servers().nats.url();
    let variables = [
        ("TIDINGS_DATABASE_URL", database.url()),
        ("TIDINGS_NATS_URL", nats.as_str()),
        ("TIDINGS_SOURCE", database.source()),
    ];
    let mut alone = Alone::plain(&["--drain", "15s"], &variables);
    psql_appends(&database, "order-1").await;
    becomes(&database, CONFIRMED, 1).await;
    alone.signal(Signal::SIGINT);
    assert_eq!(alone.ended().await, Some(0));
    assert!(alone.log().contains("draining deadline=15s"));
    becomes(&database, OWNED, 0).await;
}

#[derive(Event, serde::Serialize, serde::Deserialize)]
#[event(type = "orders.placed", aggregate = "order", key = order)]
struct OrderPlaced {
    order: String,
    total: i64,
}

#[derive(Consumer)]
#[consumer(name = "bookkeeping", source = "test.alone.consumed", events(OrderPlaced))]
struct Bookkeeping(mpsc::UnboundedSender<(String, i64)>);

impl Handle<OrderPlaced> for Bookkeeping {
    async fn handle(&self, placed: Received<OrderPlaced>, _: &mut Tx<'_>) -> Result<(), HandlerError> {
        self.0.send((placed.order.clone(), placed.total))?;
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_in_rust_hears_what_was_said_in_sql() {
    let (shop, books) = (testing::database().await.unwrap(), testing::database().await.unwrap());
    let nats = testing::servers().nats.url();
    let variables = [("TIDINGS_DATABASE_URL", shop.url()), ("TIDINGS_NATS_URL", nats.as_str())];
    let _alone = Alone::plain(&["--source", "test.alone.consumed"], &variables);
    let (said, mut heard) = mpsc::unbounded_channel();
    let running =
        Tidings::new(books.database(), testing::jetstream()).consumer(Bookkeeping(said)).start().await.unwrap();
    psql_appends(&shop, "order-9").await;
    let placed = tokio::time::timeout(SOON, heard.recv()).await.expect("it is heard").unwrap();
    assert_eq!(placed, ("order-9".to_owned(), 1200));
    running.drain(SOON).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_not_there_holds_no_other_up_and_is_served_when_it_is_there() {
    let (one, late) = (testing::database().await.unwrap(), testing::database().await.unwrap());
    let proxy = tidings::services::proxy::Proxy::start(testing::servers().postgres.port()).unwrap();
    proxy.refuse(true);
    let nats = testing::servers().nats.url();
    let behind = testing::servers().postgres.url_through(&proxy, late.source());
    let config = databases(&[late.source(), one.source()]);
    let mut alone = Alone::with(&config, &[("URL_0", &behind), ("URL_1", one.url()), ("TIDINGS_NATS_URL", &nats)]);
    psql_appends(&late, "order-1").await;
    psql_appends(&one, "order-1").await;
    becomes(&one, CONFIRMED, 1).await;
    alone.says("the database is not there; still waiting").await;
    becomes(&late, CONFIRMED, 0).await;
    proxy.refuse(false);
    becomes(&late, CONFIRMED, 1).await;
    alone.signal(Signal::SIGTERM);
    assert_eq!(alone.ended().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_is_said_now_and_then() {
    let database = testing::database().await.unwrap();
    let nats = testing::servers().nats.url();
    execute(&database, "SELECT tidings.append('a name that fits no subject', '{}'::bytea)").await;
    let config = format!("{}alarms = {{ every = \"100ms\", report = \"100ms\" }}\n", databases(&[database.source()]));
    let alone = Alone::with(&config, &[("URL_0", database.url()), ("TIDINGS_NATS_URL", &nats)]);
    eventually("the dead letter is counted", SOON, async || {
        alone.log().lines().any(|line| line.contains(" outbox ") && line.contains("dead=1")).then_some(())
    })
    .await;
    alone.says("alarm raised: 1 dead letters are not resolved").await;
}

fn password(url: &str) -> &str {
    url.split_once('@')
        .and_then(|(before, _)| before.rsplit_once(':'))
        .map(|(_, password)| password)
        .expect("it has one")
}
