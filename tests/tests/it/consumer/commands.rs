//! Commands go to one consumer; what a handler appends is part of its transaction and says what caused it.

use diesel_async::{AsyncConnection, AsyncPgConnection};
use serde::{Deserialize, Serialize};
use tidings::{Command, Consumer, Event, Handle, HandlerError, NewEvent, Received, Relay, Tx};
use tidings_tests::consumer::hear;
use tidings_tests::eventually;

use super::{Bench, LIMIT};

#[derive(Command, Serialize, Deserialize)]
#[command(type = "work.start", to = "worker")]
struct Start {
    n: i64,
}

/// Of the same type, for another consumer.
#[derive(Command, Serialize, Deserialize)]
#[command(type = "work.start", to = "other")]
struct StartOther {
    n: i64,
}

#[derive(Event, Serialize, Deserialize)]
#[event(type = "work.done", aggregate = "work", key = n)]
struct Done {
    n: i64,
}

#[derive(Consumer)]
#[consumer(name = "worker", source = "test.consumer", commands(Start), retry(attempts = 1))]
struct Worker;

#[derive(Consumer)]
#[consumer(name = "other", source = "test.consumer", commands(StartOther), events(Done))]
struct Other;

impl Handle<Start> for Worker {
    async fn handle(&self, command: Received<Start>, tx: &mut Tx<'_>) -> Result<(), HandlerError> {
        hear(tx, command.n, "worker").await?;
        tx.append(&Done { n: command.n }).await?;
        if command.n < 0 { Err(HandlerError::transient("as the test wants it")) } else { Ok(()) }
    }
}

impl Handle<StartOther> for Other {
    async fn handle(&self, command: Received<StartOther>, tx: &mut Tx<'_>) -> Result<(), HandlerError> {
        hear(tx, command.n, "other").await
    }
}

impl Handle<Done> for Other {
    async fn handle(&self, event: Received<Done>, tx: &mut Tx<'_>) -> Result<(), HandlerError> {
        hear(tx, event.n + 1_000, "other").await
    }
}

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

async fn command(conn: &mut AsyncPgConnection, event: NewEvent) {
    let appending = tidings::transaction(conn, async |tx| {
        tx.append(event).await?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    });
    appending.await.unwrap();
}

#[tokio::test]
async fn a_command_goes_to_its_recipient_and_causes_what_its_handler_appends() {
    let mut bench = Bench::without_stream().await;
    let tidings = bench.tidings().relay(Relay::default()).consumer(Worker).consumer(Other);
    let running = tidings.start().await.unwrap();
    let mut conn = AsyncPgConnection::establish(&bench.url).await.unwrap();
    let first = NewEvent::of(&Start { n: 1 }).unwrap().id("first").trace(TRACE, Some("vendor=1".into()));
    command(&mut conn, first).await;
    let second = NewEvent::of(&Start { n: 2 }).unwrap().id("second").correlation_id("conversation");
    command(&mut conn, second).await;
    command(&mut conn, NewEvent::of(&StartOther { n: 3 }).unwrap()).await;
    command(&mut conn, NewEvent::of(&Start { n: -4 }).unwrap().id("failing")).await;
    eventually("all is done", LIMIT, async || (bench.heard().await == [1, 2, 3, 1_001, 1_002]).then_some(())).await;
    assert_eq!(bench.column("SELECT n FROM heard WHERE by = 'worker' ORDER BY n").await, [1, 2]);

    let dead = "SELECT count(*) FROM tidings.consumer_dead_letter WHERE event_id = 'failing'";
    eventually("the fourth is dead", LIMIT, async || (bench.number(dead).await == 1).then_some(())).await;
    assert_eq!(bench.number("SELECT count(*) FROM tidings.event WHERE type = 'work.done'").await, 2);
    assert_eq!(bench.number("SELECT count(*) FROM tidings.event WHERE causation_id = 'failing'").await, 0);
    let of = |n: i64| {
        format!(
            "SELECT concat_ws(' ', causation_id, correlation_id, traceparent, tracestate) FROM tidings.event
              WHERE aggregate_type = 'work' AND aggregate_id = '{n}'"
        )
    };
    assert_eq!(bench.text(&of(1)).await, Some(format!("first first {TRACE} vendor=1")));
    assert_eq!(bench.text(&of(2)).await.as_deref(), Some("second conversation"));
    running.drain(LIMIT).await.unwrap();
}

/// A producer that checks nothing: what could not be appended again does not travel on.
#[tokio::test]
async fn a_context_that_no_event_could_carry_is_not_handed_on() {
    let mut bench = Bench::without_stream().await;
    let running = bench.tidings().relay(Relay::default()).consumer(Worker).start().await.unwrap();
    let by_hand = format!(
        r#"SELECT tidings.append('work.start', '{{"n": 5}}', id => 'by-hand', recipient => 'worker', correlation_id => '',
                                 traceparent => '{TRACE}', tracestate => E'a\tb')"#
    );
    bench.run(&by_hand).await;
    eventually("it is applied", LIMIT, async || (bench.heard().await == [5]).then_some(())).await;
    let context = "SELECT concat_ws('|', causation_id, correlation_id, traceparent, coalesce(tracestate, 'none'))
                     FROM tidings.event WHERE type = 'work.done'";
    assert_eq!(bench.text(context).await, Some(format!("by-hand|by-hand|{TRACE}|none")));
    bench.assert_nothing_counted().await;
    running.drain(LIMIT).await.unwrap();
}
