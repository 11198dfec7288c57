//! A panic inside a step of the relay is not the end of what it was about.

use super::node::Node;
use super::place::Place;

#[tokio::test(flavor = "multi_thread")]
async fn in_a_pass() {
    for point in ["relay::claimed", "relay::sent", "relay::acknowledged", "relay::confirmed"] {
        let place = Place::shared(1).await;
        place.append("e", 50, 5).await;
        let node = Node::start(&place, &[("PANIC_AT", point)]).await;
        place.settles().await;
        node.says("a panic; starting again").await;
        assert_eq!(node.said("a panic; starting again"), 1, "at {point}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_heartbeat() {
    let place = Place::shared(2).await;
    place.append("e", 50, 5).await;
    let node = Node::start(&place, &[("PANIC_AT", "relay::beat")]).await;
    place.settles().await;
    node.says("a panic; starting again").await;
    assert_eq!(node.said("a panic; starting again"), 1);
}
