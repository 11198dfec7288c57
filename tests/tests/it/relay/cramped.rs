//! A database that is serializable by default, and a relay with one connection: everything works, more slowly.

use nix::sys::signal::Signal;
use tidings::dead::{self, By, Which};

use super::SOON;
use super::node::Node;
use super::place::Place;

const SERIALIZABLE: &str = "DO $$ BEGIN
    EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable', current_database()); END $$";
const ONE: &[(&str, &str)] = &[("CONNECTIONS", "1"), ("LEASE", "1000")];

#[tokio::test(flavor = "multi_thread")]
async fn one_connection_and_a_serializable_default_are_enough() {
    let place = Place::shared(4).await;
    place.execute(SERIALIZABLE).await;
    assert_eq!(place.words("SELECT current_setting('transaction_isolation') AS words").await, ["serializable"]);
    place.append("before-", 500, 17).await;
    let mut first = Node::start(&place, ONE).await;
    place.settles().await;

    // Two of them share, with appends beside, a dead head, one that waits for its time, and one that is killed.
    let _second = Node::start(&place, ONE).await;
    place
        .execute(
            "SELECT tidings.append('a..b', 'x', id => 'dead', aggregate_type => 'thing', aggregate_id => 'held');
             SELECT tidings.append('relay.tested', 'x', id => 'behind', aggregate_type => 'thing', aggregate_id => 'held');
             SELECT tidings.append('relay.tested', 'x', id => 'later', not_before => now() + interval '2 seconds')",
        )
        .await;
    let writing = place.clone();
    let writer = tokio::spawn(async move {
        for part in 0..20 {
            writing.append(&format!("beside-{part}-"), 50, 17).await;
        }
    });
    place.becomes("SELECT count(*) AS number FROM tidings.pending WHERE state = 'dead'", 1).await;
    first.signal(Signal::SIGKILL);
    first.ended(SOON).await;
    writer.await.unwrap();
    place.becomes("SELECT count(*) AS number FROM tidings.pending", 2).await;
    let mut connection = place.connection().await;
    assert_eq!(dead::list(&mut connection, &Which::all()).await.unwrap().len(), 1);
    dead::discard(&mut connection, &Which::all(), &By::name("ana")).await.unwrap();
    place.becomes("SELECT count(*) AS number FROM tidings.pending", 0).await;
    // The tombstone, and what waited.
    assert_eq!(place.stored().await.len(), 500 + 1_000 + 3);
}
