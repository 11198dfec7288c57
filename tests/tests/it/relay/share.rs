//! Several relays on one database.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tidings_tests::eventually;

use super::SOON;
use super::node::Node;
use super::place::{Place, append};

const OWNERS: &str = "SELECT count(DISTINCT owner) AS number FROM tidings.partition";
/// Partitions of the owner that has fewest, and of the one that has most.
const LEAST_MOST: &str = "SELECT 100 * min(n) + max(n) AS number
     FROM (SELECT count(*) AS n FROM tidings.partition WHERE owner IS NOT NULL GROUP BY owner) shares";
/// Confirmations that came under an epoch after one under a later epoch: there is never one.
const OUT_OF_DATE: &str = "SELECT count(*) AS number FROM tidings.confirmation a JOIN tidings.confirmation b
       ON a.partition = b.partition AND a.epoch < b.epoch AND a.confirmed_at > b.confirmed_at";

/// Messages that a relay of these tests has under way at once, at most.
const WINDOW: usize = 256;

/// Looks at the partitions until told to stop. Each epoch has one owner, and a change of owner is a new epoch.
async fn watch(place: Place, mut stop: tokio::sync::oneshot::Receiver<()>) {
    let mut owners: HashMap<(String, i64), String> = HashMap::new();
    let mut last: HashMap<String, i64> = HashMap::new();
    let mut connection = place.connection().await;
    while stop.try_recv().is_err() {
        let rows = words(
            &mut connection,
            "SELECT id || ' ' || epoch || ' ' || owner AS words FROM tidings.partition WHERE owner IS NOT NULL",
        )
        .await;
        for row in rows {
            let [id, epoch, owner] = row.split(' ').collect::<Vec<_>>()[..] else { panic!("{row}") };
            let epoch: i64 = epoch.parse().unwrap();
            let before = owners.entry((id.to_owned(), epoch)).or_insert_with(|| owner.to_owned());
            assert_eq!(before, owner, "partition {id} has two owners under epoch {epoch}");
            let newest = last.entry(id.to_owned()).or_insert(epoch);
            assert!(epoch >= *newest, "partition {id} went back to epoch {epoch}");
            *newest = epoch;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn words(connection: &mut diesel_async::AsyncPgConnection, sql: &str) -> Vec<String> {
    #[derive(diesel::QueryableByName)]
    struct Words {
        #[diesel(sql_type = diesel::sql_types::Text)]
        words: String,
    }
    let rows: Vec<Words> = diesel_async::RunQueryDsl::get_results(diesel::sql_query(sql), connection).await.unwrap();
    rows.into_iter().map(|row| row.words).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_share_and_the_one_that_is_left_takes_all_within_the_lease() {
    let place = Place::shared(4).await;
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let watching = tokio::spawn(watch(place.clone(), stopped));
    let settings = [("LEASE", "4000")];
    let mut first = Node::start(&place, &settings).await;
    place.becomes(LEAST_MOST, 404).await;
    let _second = Node::start(&place, &settings).await;
    place.append("e", 400, 20).await;
    place.becomes(OWNERS, 2).await;
    place.becomes(LEAST_MOST, 202).await;
    place.append("f", 400, 20).await;
    first.signal(Signal::SIGKILL);
    first.ended(SOON).await;
    let killed = Instant::now();
    place.becomes(LEAST_MOST, 404).await;
    let taken = killed.elapsed();
    // The lease, the next heartbeat after its end, and what a busy machine adds.
    assert!(taken < Duration::from_millis(4_000 + 1_334 + 3_000), "taken after {taken:?}");
    place.append("g", 400, 20).await;
    place.settles().await;
    assert_eq!(place.number(OUT_OF_DATE).await, 0);
    let _ = stop.send(());
    watching.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_third_gets_its_share_and_nothing_changes_places() {
    let place = Place::shared(6).await;
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let watching = tokio::spawn(watch(place.clone(), stopped));
    let (enough, mut is_enough) = tokio::sync::oneshot::channel::<()>();
    let busy = place.clone();
    let appending = tokio::spawn(async move {
        let mut connection = busy.connection().await;
        let mut round = 0;
        while is_enough.try_recv().is_err() {
            append(&mut connection, &format!("r{round}-"), 40, 13).await;
            round += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let _first = Node::start(&place, &[]).await;
    let _second = Node::start(&place, &[]).await;
    place.becomes(LEAST_MOST, 303).await;
    let mut third = Node::start(&place, &[]).await;
    place.becomes(LEAST_MOST, 202).await;
    place.becomes(OWNERS, 3).await;
    third.signal(Signal::SIGTERM);
    assert!(third.ended(SOON).await.success());
    place.becomes(LEAST_MOST, 303).await;
    let _ = enough.send(());
    appending.await.unwrap();
    place.settles().await;
    assert_eq!(place.number(OUT_OF_DATE).await, 0);
    let _ = stop.send(());
    watching.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_stood_still_past_its_lease_changes_no_claimed_row() {
    let place = Place::shared(1).await;
    place.append("e", 600, 30).await;
    // It stands still with an acknowledgement in hand that it has not recorded.
    let node = Node::spawn(&place, &[("STOP_AT", "relay::acknowledged")]);
    eventually("it stands still", SOON, async || node.is_stopped().then_some(())).await;
    eventually("its lease is over", SOON, async || {
        let over = "SELECT count(*) AS number FROM tidings.partition WHERE lease_until < now()";
        (place.number(over).await == 1).then_some(())
    })
    .await;
    assert!(!place.stored().await.is_empty());
    // Another owner, which is slow to do anything.
    place
        .execute(
            "UPDATE tidings.partition SET owner = gen_random_uuid(), epoch = epoch + 1, \
             lease_until = now() + interval '1 hour', lease_ttl = interval '1 hour'",
        )
        .await;
    node.signal(Signal::SIGCONT);
    node.says("another node owns the partition now").await;
    assert_eq!(place.number("SELECT count(*) AS number FROM tidings.pending WHERE attempts = 0").await, 600);
    assert_eq!(place.number("SELECT count(*) AS number FROM tidings.confirmation").await, 0);
    // The first window, of which the last messages may go out only now: the broker refuses them as soon as the other owner
    // has stored one of its own.
    assert!(place.stored().await.len() <= WINDOW, "nothing followed what was under way");
    // The other owner gives up; the one that was still is fit to go on.
    place.execute("UPDATE tidings.partition SET owner = NULL, lease_until = now(), lease_ttl = NULL").await;
    place.settles().await;
}
