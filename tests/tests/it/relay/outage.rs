//! A store that is gone, stands still, or is cut off: nothing is lost, nothing is counted, nothing is dead.

use diesel_async::SimpleAsyncConnection;
use tidings::services::proxy::{Direction, Proxy};
use tidings_tests::eventually;

use super::SOON;
use super::node::Node;
use super::place::{Place, append};

/// Attempts would be used up many times over in each of these outages.
const SHORT: &[(&str, &str)] =
    &[("ACK", "500"), ("BACKOFF_MIN", "10"), ("BACKOFF_MAX", "50"), ("STATEMENT", "500"), ("LEASE", "2000")];
const UNTOUCHED: &str = "SELECT count(*) AS number FROM tidings.pending WHERE state = 'ready' AND attempts = 0";

#[tokio::test(flavor = "multi_thread")]
async fn nats_is_stopped() {
    let (mut services, place) = Place::private(2).await;
    let node = Node::start(&place, SHORT).await;
    place.append("a", 100, 9).await;
    place.settles().await;
    services.nats.stop().unwrap();
    place.append("b", 200, 9).await;
    // The streams are probed, then connections opened anew, again and again.
    eventually("it tries many times", SOON, async || (node.said("NATS is not reachable") > 0).then_some(())).await;
    place.append("c", 200, 9).await;
    assert_eq!(place.number(UNTOUCHED).await, 400);
    assert!(node.log().lines().count() < 100, "it says so now and then, not at every try");
    services.nats.start_again().unwrap();
    place.settles().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_stands_still() {
    let (services, place) = Place::private(2).await;
    let node = Node::start(&place, SHORT).await;
    place.append("a", 100, 9).await;
    place.settles().await;
    services.nats.freeze();
    place.append("b", 200, 9).await;
    node.says("NATS is not reachable").await;
    node.says("nothing of this partition is published for now").await;
    assert_eq!(place.number(UNTOUCHED).await, 200);
    services.nats.thaw();
    place.settles().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_comes_back_without_its_data() {
    let (mut services, place) = Place::private(2).await;
    let node = Node::start(&place, SHORT).await;
    place.append("a", 20, 9).await;
    place.settles().await;
    services.nats.stop().unwrap();
    std::fs::remove_dir_all(services.nats.folder().join("jetstream/jetstream")).unwrap();
    services.nats.start_again().unwrap();
    place.append("b", 20, 9).await;
    // What it had confirmed is there again, before what follows it.
    place.settles().await;
    assert_eq!(place.stored().await.len(), 40);
    assert!(node.said("made a stream") >= 4);
    assert_eq!(node.said("the broker lost what it had confirmed"), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_is_stopped() {
    let (mut services, place) = Place::private(2).await;
    let node = Node::start(&place, SHORT).await;
    place.append("a", 100, 9).await;
    place.settles().await;
    place.append("b", 2_000, 9).await;
    services.postgres.stop().unwrap();
    eventually("it tries many times", SOON, async || (node.said("could not be renewed") > 4).then_some(())).await;
    assert!(node.log().lines().count() < 150, "it says so now and then, not at every try");
    services.postgres.start_again().unwrap();
    place.append("c", 100, 9).await;
    place.settles().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_is_killed_in_the_middle() {
    let (mut services, place) = Place::private(2).await;
    let _node = Node::start(&place, SHORT).await;
    for round in 0..3 {
        place.append(&format!("r{round}-"), 1_000, 9).await;
        services.postgres.kill();
        services.postgres.start_again().unwrap();
    }
    place.settles().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_stands_still() {
    let (services, place) = Place::private(2).await;
    let node = Node::start(&place, SHORT).await;
    place.append("a", 100, 9).await;
    place.settles().await;
    place.append("b", 2_000, 9).await;
    services.postgres.freeze();
    // Its own time-outs stand still with it; ours do not.
    node.says("PostgreSQL did not answer a statement").await;
    node.says("could not be renewed").await;
    services.postgres.thaw();
    place.append("c", 100, 9).await;
    place.settles().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_cut_again_and_again() {
    let (services, place) = Place::private(2).await;
    let to_postgres = Proxy::start(services.postgres.port()).unwrap();
    let to_nats = Proxy::start(services.nats.port()).unwrap();
    let through = Place {
        database: services.postgres.url_through(&to_postgres, "postgres"),
        nats: services.nats.url_through(&to_nats),
        source: place.source.clone(),
    };
    let _node = Node::start(&through, SHORT).await;
    for round in 0..10 {
        place.append(&format!("r{round}-"), 200, 9).await;
        let stored = place.number("SELECT count(*) AS number FROM tidings.confirmation").await;
        eventually("something goes through", SOON, async || {
            let now = place.number("SELECT count(*) AS number FROM tidings.confirmation").await;
            (now > stored).then_some(())
        })
        .await;
        if round % 2 == 0 { to_nats.cut() } else { to_postgres.cut() }
    }
    to_nats.cut();
    to_postgres.cut();
    place.settles().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_acknowledgements_are_lost() {
    let (services, place) = Place::private(1).await;
    let proxy = Proxy::start(services.nats.port()).unwrap();
    let through = Place { nats: services.nats.url_through(&proxy), ..place.clone() };
    let node = Node::start(&through, SHORT).await;
    place.append("a", 1, 1).await;
    place.settles().await;
    proxy.freeze_only(Direction::ToClient);
    place.append("b", 20, 20).await;
    eventually("all are stored", SOON, async || (place.stored().await.len() == 21).then_some(())).await;
    node.says("nothing of this partition is published for now").await;
    assert_eq!(place.number(UNTOUCHED).await, 20);
    proxy.cut();
    proxy.thaw();
    place.settles().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_connection_is_enough() {
    let place = Place::shared(1).await;
    // A confirmation takes a while, and poison events are to be set aside meanwhile.
    place
        .execute(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS \
                 $$ BEGIN PERFORM pg_sleep(0.05); RETURN NULL; END $$; \
             CREATE TRIGGER slow AFTER INSERT ON tidings.confirmation EXECUTE FUNCTION slow()",
        )
        .await;
    place
        .execute(
            "SELECT tidings.append(CASE WHEN g % 40 = 0 THEN 'bad type' ELSE 'relay.tested' END, 'x') \
               FROM generate_series(1, 400) g",
        )
        .await;
    let node = Node::start(&place, &[("CONNECTIONS", "1"), ("IN_FLIGHT", "8")]).await;
    place.becomes("SELECT count(*) AS number FROM tidings.confirmation", 390).await;
    place.becomes("SELECT count(*) AS number FROM tidings.dead_letter", 10).await;
    assert_eq!(node.said("no connection of the pool became free"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_confirmation_that_fails_is_tried_again_and_the_message_is_not() {
    let place = Place::shared(1).await;
    // Tries are counted by a sequence, which no rollback takes back.
    place
        .execute(
            "CREATE SEQUENCE tries; \
             CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
                 $$ BEGIN PERFORM nextval('tries'); RAISE EXCEPTION 'not now'; END $$; \
             CREATE TRIGGER refuse BEFORE INSERT ON tidings.confirmation EXECUTE FUNCTION refuse()",
        )
        .await;
    place.append("e", 50, 50).await;
    // The broker forgets the ids before the last of the tries: what is sent again then stands there twice.
    let _node = Node::start(&place, &[("DUPLICATE_WINDOW", "500")]).await;
    place.becomes("SELECT count(*) AS number FROM tries WHERE last_value >= 7", 1).await;
    place.execute("DROP TRIGGER refuse ON tidings.confirmation").await;
    place.settles().await;
}

/// As after a failover that the old primary survives: it answers everything, and refuses to write. Connections that were
/// opened meanwhile stay read-only for as long as they live.
#[tokio::test(flavor = "multi_thread")]
async fn new_sessions_are_read_only_for_a_while() {
    let place = Place::shared(1).await;
    // The lease outlives it all, and there is one connection: the one that is refused is the next to be used.
    let node = Node::start(&place, &[("LEASE", "60000"), ("CONNECTIONS", "1")]).await;
    place.append("a", 10, 3).await;
    place.settles().await;
    let mut writable = place.connection().await;
    let name = place.source.clone();
    writable.batch_execute(&format!("ALTER DATABASE {name} SET default_transaction_read_only = on")).await.unwrap();
    let others = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}' AND pid <> pg_backend_pid()"
    );
    writable.batch_execute(&others).await.unwrap();
    append(&mut writable, "b", 50, 10).await;
    eventually("a confirmation is refused", SOON, async || {
        let refused = |line: &str| line.contains("nothing of this partition") && line.contains("read-only transaction");
        node.log().lines().any(refused).then_some(())
    })
    .await;
    assert_eq!(place.number(UNTOUCHED).await, 50);
    writable.batch_execute(&format!("ALTER DATABASE {name} RESET default_transaction_read_only")).await.unwrap();
    place.settles().await;
}
