//! A database that goes back in time under a relay that runs.

use tidings::services::Services;

use super::{copy, is_whole, said, tidings};
use crate::relay::node::Node;
use crate::relay::place::Place;

/// As a failover to a standby without the last commits: the owner, its epoch and its lease are in the copy, and its process
/// lives on.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_published_on_top_of_what_the_database_lost() {
    let (mut services, place): (Services, Place) = Place::private(1).await;
    let node = Node::start(&place, &[("BACKOFF_MAX", "500")]).await;
    place.append("a", 30, 3).await;
    place.settles().await;
    services.postgres.stop().unwrap();
    let data = services.postgres.folder().join("data");
    let aside = data.with_extension("aside");
    copy(&data, &aside);
    services.postgres.start_again().unwrap();
    place.append("b", 30, 3).await;
    place.settles().await;
    services.postgres.stop().unwrap();
    std::fs::remove_dir_all(&data).unwrap();
    std::fs::rename(&aside, &data).unwrap();
    services.postgres.start_again().unwrap();
    place.append("c", 30, 3).await;

    node.says("a message that this database does not know").await;
    assert_eq!(place.number("SELECT count(*) AS number FROM tidings.confirmation").await, 30);
    assert_eq!(place.stored().await.len(), 60, "nothing was published on top of it");
    assert!(said(tidings(&place, &["adopt", "--yes"])).contains("30 that are not, 0 that are in the way"));
    place.becomes("SELECT count(*) AS number FROM tidings.pending", 0).await;
    assert_eq!(place.stored().await.len(), 90);
    is_whole(&place).await;
}
