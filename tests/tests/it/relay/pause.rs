//! `tidings pause relay` and `tidings resume relay`, and the same from code.

use tidings::{Database, operate};

use super::node::{Node, tidings};
use super::place::Place;

const OWNED: &str = "SELECT count(*) AS number FROM tidings.partition WHERE owner IS NOT NULL";
const ABLE: &str = "SELECT count(*) AS number FROM tidings.node WHERE able";

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_relay_gives_everything_up_and_a_resumed_one_goes_on() {
    let place = Place::shared(4).await;
    let first = Node::start(&place, &[]).await;
    let second = Node::start(&place, &[]).await;
    place.append("a", 100, 20).await;
    place.settles().await;
    place.becomes(ABLE, 2).await;
    let said = tidings(&place, &["pause", "relay", "--by", "ada", "--reason", "new disks"], 0).await;
    assert!(said.contains("by ada: new disks"), "{said}");
    place.becomes(OWNED, 0).await;
    place.append("b", 100, 20).await;
    let third = Node::start(&place, &[]).await;
    for node in [&first, &second, &third] {
        node.says("the relay is paused").await;
        assert!(node.log().contains("by=\"ada\" reason=\"new disks\""), "{}", node.log());
    }
    let again = tidings(&place, &["pause", "relay", "--by", "bob", "--reason", "lunch"], 0).await;
    assert!(again.contains("by ada: new disks"), "the first pause stays: {again}");
    place.becomes(ABLE, 3).await;
    assert_eq!(place.number(OWNED).await, 0);
    assert_eq!(place.stored().await.len(), 100);
    let said = tidings(&place, &["resume", "relay"], 0).await;
    assert!(said.contains("resumed") && said.contains("by ada: new disks"), "{said}");
    place.settles().await;
    for node in [&first, &second, &third] {
        node.says("the relay is resumed").await;
        assert_eq!(node.said("the relay is paused"), 1, "it is said once");
    }
    assert!(tidings(&place, &["resume", "relay"], 0).await.contains("not paused"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_from_code() {
    let place = Place::shared(1).await;
    let database = Database::url(&place.database);
    let pause = operate::pause_relay(&database, "ada", "new disks").await.unwrap();
    assert_eq!((pause.by.as_str(), pause.reason.as_str()), ("ada", "new disks"));
    assert_eq!(operate::pause_relay(&database, "bob", "lunch").await.unwrap(), pause);
    assert_eq!(operate::resume_relay(&database).await.unwrap(), Some(pause));
    assert_eq!(operate::resume_relay(&database).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn help_and_wrong_arguments_are_answered() {
    let place =
        Place { database: "postgres://app:s3cret@127.0.0.1:1/shop".into(), nats: String::new(), source: String::new() };
    for (arguments, code, words) in [
        (&["pause", "--help"][..], 0, &["events are still appended", "relay"][..]),
        (&["pause", "relay", "--help"], 0, &["--by", "--reason", "TIDINGS_DATABASE_URL"]),
        (&["resume", "relay", "--help"], 0, &["TIDINGS_DATABASE_URL"]),
        (&["partitions", "set", "--help"], 0, &["--within", "--hold", "30s", "5s"]),
        (&["pause"], 2, &["relay"]),
        (&["pause", "everything"], 2, &["everything"]),
        (&["partitions", "set", "0"], 2, &["1..=1024"]),
        (&["partitions", "set", "8", "--within", "soon"], 2, &["--within"]),
        (&["pause", "relay"], 1, &["\"shop\" at 127.0.0.1:1", "check the URL"]),
        (&["partitions", "list"], 1, &["\"shop\" at 127.0.0.1:1", "check the URL"]),
        (&["partitions", "set", "8"], 1, &["\"shop\" at 127.0.0.1:1", "check the URL"]),
    ] {
        let said = tidings(&place, arguments, code).await;
        for word in words {
            assert!(said.contains(word) && !said.contains("s3cret"), "{arguments:?} says {word:?}: {said}");
        }
    }
}
