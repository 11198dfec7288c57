//! Handlers that break or end the transaction they were lent: nothing is lost, and nothing half applied in silence.

use std::time::Duration;

use diesel_async::{
    AnsiTransactionManager, AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection, TransactionManager,
};
use futures_util::FutureExt;
use tidings::consumer::{HandlerError, Options};
use tidings_tests::consumer::{alpha, hear, options};
use tidings_tests::eventually;

use super::{Bench, Count, LIMIT, patient, said};

/// Ends its transaction with these statements before it returns Ok; returns the dead letter's class.
async fn ended_by(statements: &'static str) -> (Bench, String) {
    let mut bench = Bench::new().await;
    let runs = Count::default();
    let counted = runs.clone();
    let consumer = alpha(move |event, tx| {
        counted.another();
        async move {
            hear(tx, event.n, "before").await?;
            tx.conn().batch_execute(statements).await?;
            hear(tx, event.n, "after").await
        }
        .boxed()
    });
    let running = bench.tidings().consumer_with(consumer, patient()).start().await.unwrap();
    bench.say(1).await;
    let (class, reason, _) = bench.eventually_dead().await;
    assert!(reason.contains("must neither commit nor roll back"), "{reason}");
    assert_eq!(runs.get(), 1);
    // The whole envelope: headers and bytes, as they came.
    let headers = bench.text("SELECT headers::text FROM tidings.consumer_dead_letter").await.unwrap();
    for (name, value) in said(1, "lane-1") {
        assert!(headers.contains(&format!(r#"["{name}","{value}"]"#)), "{headers}");
    }
    let kept = bench.text("SELECT convert_from(data, 'UTF8') FROM tidings.consumer_dead_letter").await;
    assert_eq!(kept, Some(super::data(1)));
    running.drain(LIMIT).await.unwrap();
    (bench, class)
}

#[tokio::test]
async fn a_commit_of_its_own_is_a_dead_letter() {
    let (mut bench, class) = ended_by("COMMIT").await;
    assert_eq!(class, "handler ended the transaction");
    // What it committed cannot be taken back; the letter says so.
    assert_eq!(bench.heard().await, [1, 1]);
}

#[tokio::test]
async fn a_rollback_of_its_own_is_a_dead_letter() {
    let (mut bench, class) = ended_by("ROLLBACK").await;
    assert_eq!(class, "handler ended the transaction");
    assert_eq!(bench.text("SELECT string_agg(by, ' ') FROM heard").await.as_deref(), Some("after"));
}

#[tokio::test]
async fn a_commit_and_a_new_transaction_are_a_dead_letter() {
    let (mut bench, class) = ended_by("COMMIT; BEGIN").await;
    assert_eq!(class, "handler ended the transaction");
    assert_eq!(bench.text("SELECT string_agg(by, ' ') FROM heard").await.as_deref(), Some("before"));
}

#[tokio::test]
async fn a_rollback_and_a_new_transaction_are_a_dead_letter() {
    let (mut bench, class) = ended_by("ROLLBACK; BEGIN").await;
    assert_eq!(class, "handler ended the transaction");
    assert!(bench.heard().await.is_empty());
}

#[tokio::test]
async fn a_commit_before_it_fails_is_found_at_the_next_attempt() {
    let mut bench = Bench::new().await;
    let runs = Count::default();
    let counted = runs.clone();
    let consumer = alpha(move |event, tx| {
        counted.another();
        async move {
            hear(tx, event.n, "before").await?;
            tx.conn().batch_execute("COMMIT").await?;
            Err(HandlerError::transient("as the test wants it"))
        }
        .boxed()
    });
    let running = bench.tidings().consumer_with(consumer, patient()).start().await.unwrap();
    bench.say(1).await;
    let (class, _, attempts) = bench.eventually_dead().await;
    assert_eq!((class.as_str(), attempts, runs.get()), ("handler ended the transaction", 1, 1));
    running.drain(LIMIT).await.unwrap();
}

#[tokio::test]
async fn a_swallowed_database_error_is_a_failed_attempt() {
    let mut bench = Bench::new().await;
    let runs = Count::default();
    let counted = runs.clone();
    let consumer = alpha(move |event, tx| {
        let run = counted.another();
        async move {
            hear(tx, event.n, "alpha").await?;
            if run < 3 {
                let _ = tx.conn().batch_execute("SELECT 1 / 0").await;
            }
            Ok(())
        }
        .boxed()
    });
    let running = bench.tidings().consumer_with(consumer, patient()).start().await.unwrap();
    bench.say(1).await;
    bench.eventually_heard(&[1]).await;
    assert_eq!(runs.get(), 3);
    bench.assert_nothing_counted().await;
    running.drain(LIMIT).await.unwrap();
}

/// A nested transaction that is given up in the middle leaves its savepoint open: a commit would only release that.
#[tokio::test]
async fn a_savepoint_left_open_is_a_failed_attempt() {
    let mut bench = Bench::new().await;
    let runs = Count::default();
    let counted = runs.clone();
    let consumer = alpha(move |event, tx| {
        let run = counted.another();
        async move {
            hear(tx, event.n, "alpha").await?;
            if run == 1 {
                let nested = tx.conn().transaction(async |_: &mut AsyncPgConnection| {
                    std::future::pending::<()>().await;
                    Ok::<_, diesel::result::Error>(())
                });
                let _ = tokio::time::timeout(Duration::from_millis(50), nested).await;
            }
            Ok(())
        }
        .boxed()
    });
    let running = bench.tidings().consumer_with(consumer, patient()).start().await.unwrap();
    bench.say(1).await;
    bench.eventually_heard(&[1]).await;
    assert_eq!(runs.get(), 2);
    running.drain(LIMIT).await.unwrap();
}

/// The driver then knows of no transaction to roll back; that is no outage, which would never be counted.
#[tokio::test]
async fn a_rollback_through_the_driver_before_it_fails_is_counted() {
    let mut bench = Bench::new().await;
    let consumer = alpha(move |event, tx| {
        async move {
            hear(tx, event.n, "alpha").await?;
            let error = diesel::sql_query("SELECT 1 / 0").execute(tx.conn()).await.unwrap_err();
            let _ = AnsiTransactionManager::rollback_transaction(tx.conn()).await;
            Err(error.into())
        }
        .boxed()
    });
    let options = Options { attempts: 2, ..options() };
    let running = bench.tidings().consumer_with(consumer, options).start().await.unwrap();
    bench.say(1).await;
    let (class, _, attempts) = bench.eventually_dead().await;
    assert_eq!((class.as_str(), attempts), ("attempts exhausted", 2));
    assert!(bench.heard().await.is_empty());
    running.drain(LIMIT).await.unwrap();
}

/// What a handler leaves begun on its connection, no other event is applied in.
#[tokio::test]
async fn a_transaction_left_begun_dies_with_its_connection() {
    let mut bench = Bench::new().await;
    let consumer = alpha(move |event, tx| {
        async move {
            if event.n == 1 {
                AnsiTransactionManager::commit_transaction(tx.conn()).await?;
                tx.conn().batch_execute("BEGIN").await?;
                hear(tx, event.n, "alpha").await?;
                return Err(HandlerError::permanent("as the test wants it"));
            }
            hear(tx, event.n, "alpha").await
        }
        .boxed()
    });
    let one = Options { concurrency: 1, ..options() };
    let running = bench.tidings().consumer_with(consumer, one).start().await.unwrap();
    bench.say(1).await;
    eventually("the first is dead", LIMIT, async || {
        (bench.number("SELECT count(*) FROM tidings.consumer_dead_letter").await == 1).then_some(())
    })
    .await;
    for n in 2..10 {
        bench.say(n).await;
    }
    bench.eventually_heard(&(2..10).collect::<Vec<_>>()).await;
    let idle = "SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND state LIKE 'idle in transaction%' AND query LIKE '%heard%'";
    eventually("nothing is left begun", LIMIT, async || (bench.number(idle).await == 0).then_some(())).await;
    running.drain(LIMIT).await.unwrap();
}
