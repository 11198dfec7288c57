//! A transaction that is cut short, at any moment, leaves all of it or nothing.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use diesel_async::pooled_connection::deadpool::Pool;
use diesel_async::pooled_connection::{AsyncDieselConnectionManager, RecyclingMethod};
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};
use tidings_tests::eventually;

use super::{Failed, LIMIT, connect, database, events, head, number, of, run};

/// A change and its event.
async fn business(conn: &mut AsyncPgConnection, id: &str) -> Result<(), Failed> {
    tidings::transaction(conn, async |tx| {
        diesel::sql_query("INSERT INTO job VALUES ($1)")
            .bind::<diesel::sql_types::Text, _>(id)
            .execute(tx.conn())
            .await?;
        tx.append(of("job-42").id(id)).await?;
        tx.append_all([of("job-7").id(format!("{id}-a")), of("job-42").id(format!("{id}-b"))]).await?;
        Ok(())
    })
    .await
}

/// Three events for each change, whichever it is, and no version without its event.
async fn holds(conn: &mut AsyncPgConnection) -> i64 {
    let jobs = number(conn, "SELECT count(*) AS n FROM job").await;
    assert_eq!(events(conn).await, jobs * 3);
    let with_all = "SELECT count(*) AS n FROM job j WHERE (SELECT count(*) FROM tidings.event e WHERE e.id IN (j.id, j.id || '-a', j.id || '-b')) = 3";
    assert_eq!(number(conn, with_all).await, jobs);
    assert_eq!((head(conn, "job-42").await, head(conn, "job-7").await), (jobs * 2, jobs));
    jobs
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_terminated_before_the_commit_leaves_nothing() {
    let (database, mut other) = database().await;
    run(&mut other, "CREATE TABLE job (id text PRIMARY KEY)").await;
    let mut conn = connect(&database).await;
    let ended = tidings::transaction(&mut conn, async |tx| {
        diesel::sql_query("INSERT INTO job VALUES ('job-42')").execute(tx.conn()).await?;
        tx.append(of("job-42")).await?;
        let pid = number(tx.conn(), "SELECT pg_backend_pid()::bigint AS n").await;
        run(&mut other, &format!("SELECT pg_terminate_backend({pid})")).await;
        // Swallowed, or not noticed at all.
        Ok::<_, Failed>(())
    });
    assert!(matches!(ended.await, Err(Failed::Database(_))));
    // The client may know of it before the server has let go of everything.
    assert_eq!(holds(&mut other).await, 0);
    assert!(business(&mut conn, "a").await.is_err(), "the connection is no good any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminated_at_any_moment_it_is_all_or_nothing() {
    let (database, mut killer) = database().await;
    run(&mut killer, "CREATE TABLE job (id text PRIMARY KEY)").await;
    let database = Arc::new(database);
    let enough = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let (database, enough) = (Arc::clone(&database), Arc::clone(&enough));
            tokio::spawn(async move {
                let (mut committed, mut unknown) = (Vec::new(), 0);
                let mut n = 0;
                while !AtomicBool::load(&enough, Ordering::Relaxed) {
                    let Ok(mut conn) = AsyncPgConnection::establish(database.url()).await else { continue };
                    loop {
                        n += 1;
                        let id = format!("{writer}-{n}");
                        match business(&mut conn, &id).await {
                            Ok(()) => committed.push(id),
                            Err(_) => {
                                unknown += 1;
                                break;
                            }
                        }
                        if AtomicBool::load(&enough, Ordering::Relaxed) {
                            break;
                        }
                    }
                }
                (committed, unknown)
            })
        })
        .collect();
    // Whoever is in a transaction at the moment, wherever in it; forty times.
    let mut killed = 0;
    eventually("forty sessions were terminated in a transaction", LIMIT, async || {
        killed += number(
            &mut killer,
            "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) AS n FROM pg_stat_activity
              WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL",
        )
        .await;
        (killed >= 40).then_some(())
    })
    .await;
    enough.store(true, Ordering::Relaxed);
    let (mut committed, mut unknown) = (Vec::new(), 0);
    for writer in writers {
        let (ids, errors) = writer.await.unwrap();
        committed.extend(ids);
        unknown += errors;
    }
    let gone = "SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()";
    eventually("the sessions are gone", LIMIT, async || (number(&mut killer, gone).await == 0).then_some(())).await;
    let jobs = holds(&mut killer).await;
    let list = committed.iter().map(|id| format!("'{id}'")).collect::<Vec<_>>().join(",");
    let known =
        number(&mut killer, &format!("SELECT count(*) AS n FROM job WHERE id = ANY (ARRAY[{list}]::text[])")).await;
    assert_eq!(known, committed.len() as i64, "what was called committed is there");
    assert!(jobs - known <= unknown, "{jobs} there, {known} known, {unknown} unknown");
}

/// A future that is dropped in the middle must not lend its half-done transaction to the next user of the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_is_dropped_at_any_point_leaves_nothing_to_the_next_user() {
    let (database, mut other) = database().await;
    run(&mut other, "CREATE TABLE job (id text PRIMARY KEY)").await;
    let mut config = diesel_async::pooled_connection::ManagerConfig::default();
    config.recycling_method = RecyclingMethod::Fast;
    let manager = AsyncDieselConnectionManager::<AsyncPgConnection>::new_with_config(database.url(), config);
    let pool = Pool::builder(manager).max_size(1).build().unwrap();
    let mut dropped = 0;
    for polls in 1..200 {
        let mut conn = pool.get().await.unwrap();
        let cut = format!("cut-{polls}");
        let done = {
            let mut work = pin!(business(&mut conn, &cut));
            let mut left = polls;
            std::future::poll_fn(|context: &mut Context<'_>| {
                left -= 1;
                match work.as_mut().poll(context) {
                    Poll::Ready(result) => Poll::Ready(Some(result)),
                    Poll::Pending if left == 0 => Poll::Ready(None),
                    Poll::Pending => Poll::Pending,
                }
            })
            .await
        };
        drop(conn);
        let mut conn = pool.get().await.unwrap();
        business(&mut conn, &format!("whole-{polls}")).await.unwrap();
        let whole = format!("SELECT count(*) AS n FROM job WHERE id = 'whole-{polls}'");
        assert_eq!(number(&mut other, &whole).await, 1, "dropped at poll {polls}");
        match done {
            Some(result) => {
                result.unwrap();
                break;
            }
            None => dropped += 1,
        }
    }
    assert!(dropped >= 5, "it was dropped at {dropped} points");
    // The server may still be ending what was dropped.
    eventually("what was dropped has ended", LIMIT, async || {
        let open = "SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()";
        (number(&mut other, open).await == 0).then_some(())
    })
    .await;
    holds(&mut other).await;
}

#[tokio::test]
async fn after_a_time_out_a_connection_refuses_instead_of_losing_what_follows() {
    let (database, mut watcher) = database().await;
    let mut conn = connect(&database).await;
    let slow = tidings::transaction(&mut conn, async |tx| {
        tx.append(of("job-42").id("evt-1")).await?;
        std::future::pending::<()>().await;
        Ok::<_, Failed>(())
    });
    assert!(tokio::time::timeout(std::time::Duration::from_millis(300), slow).await.is_err());
    let next = tidings::transaction(&mut conn, async |tx| {
        tx.append(of("job-42").id("evt-2")).await?;
        Ok::<_, Failed>(())
    });
    let error = next.await.expect_err("nothing would be committed by it");
    assert!(error.to_string().to_lowercase().contains("transaction manager"), "{error}");
    drop(conn);
    assert_eq!(events(&mut watcher).await, 0);
}
