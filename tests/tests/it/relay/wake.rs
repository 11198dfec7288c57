//! A wake saves the wait for the next look, and losing every one of them loses only that.

use std::time::{Duration, Instant};

use diesel_async::{AsyncConnection, AsyncPgConnection};
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use tidings::{Database, Event, JetStream, Relay, Tidings};

use super::place::{Place, append};

#[derive(Event, Serialize, Deserialize)]
#[event(type = "relay.woken", aggregate = "thing", key = thing)]
struct Woken {
    thing: u32,
}

const ROUNDS: u32 = 5;

#[tokio::test(flavor = "multi_thread")]
async fn an_append_in_the_process_is_seen_at_once_and_one_elsewhere_soon() {
    let place = Place::shared(1).await;
    let running = Tidings::new(Database::url(&place.database), JetStream::url(&place.nats))
        .source(&place.source)
        .relay(Relay::default())
        .start()
        .await
        .unwrap();
    place.append("first-", 1, 1).await;
    place.settles().await;
    let jetstream = place.jetstream().await;
    let subjects = place.streams(&jetstream).await[0].config.subjects[0].clone();
    let mut heard = jetstream.client().subscribe(subjects).await.unwrap();
    jetstream.client().flush().await.unwrap();
    let mut conn = AsyncPgConnection::establish(&place.database).await.unwrap();

    let (mut woken, mut unwoken) = (Vec::new(), Vec::new());
    for thing in 0..ROUNDS {
        for wakes in [true, false] {
            // At rest the relay looks twice a second; that is what is measured here.
            tokio::time::sleep(Duration::from_millis(1_200)).await;
            if wakes {
                tidings::transaction(&mut conn, async |tx| tx.append(&Woken { thing }).await.map(drop)).await.unwrap();
            } else {
                append(&mut conn, &format!("r{thing}-"), 1, 1).await;
            }
            let appended = Instant::now();
            heard.next().await.unwrap();
            if wakes { woken.push(appended.elapsed()) } else { unwoken.push(appended.elapsed()) }
        }
    }
    woken.sort();
    assert!(woken[woken.len() / 2] < Duration::from_millis(100), "{woken:?}");
    assert!(unwoken.iter().all(|latency| *latency < Duration::from_millis(1_500)), "{unwoken:?}");
    place.settles().await;
    running.drain(Duration::from_secs(20)).await.unwrap();
}
