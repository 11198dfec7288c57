//! Events that wait for their time, and those that are taken back before it.

use chrono::{Duration, Utc};
use tidings::{NewEvent, cancel};

use super::node::Node;
use super::place::Place;

const PENDING: &str = "SELECT count(*) AS number FROM tidings.pending";
const CONFIRMED: &str = "SELECT count(*) AS number FROM tidings.confirmation";

fn of(thing: &str, id: &str) -> NewEvent {
    NewEvent::raw("relay.tested", "{}").aggregate("thing", thing).id(id)
}

async fn say(place: &Place, events: Vec<NewEvent>) {
    tidings::transaction(&mut place.connection().await, async |tx| {
        tx.append_all(events).await?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    })
    .await
    .unwrap();
}

async fn take_back(place: &Place, id: &str) -> Result<tidings::Cancelled, cancel::Error> {
    tidings::transaction(&mut place.connection().await, async |tx| tx.cancel(id).await).await
}

async fn ids(place: &Place) -> Vec<String> {
    place.stored().await.iter().map(|message| message.header("ce-id").to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_waits_for_its_time_and_its_aggregate_with_it() {
    let place = Place::shared(1).await;
    let _node = Node::start(&place, &[]).await;
    let tomorrow = Utc::now() + Duration::days(1);
    say(
        &place,
        vec![
            of("thing-1", "first"),
            of("thing-1", "waits").not_before(tomorrow),
            of("thing-1", "behind"),
            of("thing-2", "other").not_before(Utc::now() - Duration::days(1)),
            NewEvent::raw("relay.tested", "{}").id("alone").not_before(chrono::DateTime::<Utc>::MAX_UTC),
        ],
    )
    .await;
    place.becomes(CONFIRMED, 2).await;
    assert_eq!(place.number(PENDING).await, 3);
    // A second is as good as a day.
    place
        .execute("UPDATE tidings.pending SET next_attempt_at = now() + interval '1 second' WHERE state = 'delayed'")
        .await;
    place.becomes(PENDING, 0).await;
    let ids = ids(&place).await;
    let at = |id: &str| ids.iter().position(|there| there == id).unwrap();
    assert_eq!(ids.len(), 5);
    assert!(at("first") < at("waits") && at("waits") < at("behind"), "{ids:?}");
    let early = "SELECT count(*) AS number FROM tidings.confirmation c JOIN tidings.event e USING (seq)
                  WHERE e.id = 'waits' AND c.confirmed_at < e.created_at + interval '1 second'";
    assert_eq!(place.number(early).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_taken_back_is_never_published_and_its_aggregate_goes_on() {
    let place = Place::shared(1).await;
    let _node = Node::start(&place, &[]).await;
    let tomorrow = Utc::now() + Duration::days(1);
    say(
        &place,
        vec![
            of("thing-1", "first"),
            of("thing-1", "waits").not_before(tomorrow),
            of("thing-1", "behind"),
            NewEvent::raw("relay.tested", "{}").id("alone").not_before(tomorrow),
        ],
    )
    .await;
    place.becomes(CONFIRMED, 1).await;
    for id in ["waits", "alone"] {
        assert_eq!(take_back(&place, id).await.unwrap(), tidings::Cancelled::Cancelled);
    }
    place.becomes(PENDING, 0).await;
    let stored = place.stored().await;
    let told: Vec<(&str, &str)> =
        stored.iter().map(|message| (message.header("ce-id"), message.header("ce-type"))).collect();
    assert_eq!(told, [("first", "relay.tested"), ("waits", "_tombstone"), ("behind", "relay.tested")]);
    let too_late = take_back(&place, "behind").await.unwrap_err();
    assert!(matches!(&too_late, cancel::Error::TooLate { state, .. } if state == "confirmed"), "{too_late}");
}

/// Whoever is first has it: an event is published or cancelled, never both, never neither.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_at_the_very_time_is_in_time_or_too_late() {
    let place = Place::shared(1).await;
    let _node = Node::start(&place, &[]).await;
    let start = Utc::now() + Duration::milliseconds(500);
    let events = (0..300)
        .map(|n| of(&format!("thing-{n}"), &format!("e-{n}")).not_before(start + Duration::milliseconds(n * 2)));
    say(&place, events.collect()).await;
    let mut connection = place.connection().await;
    let (mut cancelled, mut late) = (Vec::new(), 0);
    // From the last to the first, so that the two meet.
    for n in (0..300).rev() {
        let id = format!("e-{n}");
        match tidings::transaction(&mut connection, async |tx| tx.cancel(&id).await).await {
            Ok(tidings::Cancelled::Cancelled) => cancelled.push(id),
            Err(cancel::Error::TooLate { .. }) => late += 1,
            other => panic!("{id}: {other:?}"),
        }
    }
    assert_eq!(cancelled.len() + late, 300);
    place.becomes(PENDING, 0).await;
    let stored = place.stored().await;
    assert_eq!(stored.len(), 300);
    for message in stored {
        let id = message.header("ce-id").to_owned();
        assert_eq!(message.header("ce-type") == "_tombstone", cancelled.contains(&id), "{id}");
    }
}
