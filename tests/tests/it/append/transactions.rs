//! `tidings::transaction`, `Tx::join` and savepoints: event, pending row and change exist together or not at all.

use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use diesel_async::pooled_connection::deadpool::Pool;
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};
use tidings::append::{Error, Outcome};
use tidings::{Tx, testing};

use super::{Failed, database, events, head, number, of, run, say, told, unordered};

async fn with_business_table() -> (testing::TestDatabase, AsyncPgConnection) {
    let (database, mut conn) = database().await;
    run(&mut conn, "CREATE TABLE job (id text PRIMARY KEY)").await;
    (database, conn)
}

async fn do_business(tx: &mut Tx<'_>, id: &str) -> Result<(), Failed> {
    diesel::sql_query("INSERT INTO job VALUES ($1)").bind::<diesel::sql_types::Text, _>(id).execute(tx.conn()).await?;
    Ok(())
}

async fn jobs(conn: &mut AsyncPgConnection) -> i64 {
    number(conn, "SELECT count(*) AS n FROM job").await
}

#[tokio::test]
async fn change_and_event_commit_together_or_not_at_all() {
    let (_database, mut conn) = with_business_table().await;
    let both = tidings::transaction(&mut conn, async |tx| {
        do_business(tx, "job-42").await?;
        Ok::<_, Failed>(tx.append(of("job-42")).await?)
    });
    assert_eq!(told(&both.await.unwrap()), (Outcome::Appended, Some(1), None));
    let neither = tidings::transaction(&mut conn, async |tx| {
        do_business(tx, "job-43").await?;
        tx.append(of("job-42")).await?;
        tx.append_all([of("job-43"), unordered("n")]).await?;
        Err::<(), _>(Failed::OnPurpose)
    });
    assert!(matches!(neither.await, Err(Failed::OnPurpose)));
    assert_eq!((jobs(&mut conn).await, events(&mut conn).await), (1, 1));
    assert_eq!((head(&mut conn, "job-42").await, head(&mut conn, "job-43").await), (1, 0));
    assert_eq!(told(&say(&mut conn, of("job-42")).await.unwrap()), (Outcome::Appended, Some(2), Some(1)));
}

/// PostgreSQL answers the COMMIT of an aborted transaction with a rollback, and the driver calls that a success.
#[tokio::test]
async fn a_database_error_that_is_swallowed_is_an_error_all_the_same() {
    let (_database, mut conn) = with_business_table().await;
    say(&mut conn, unordered("taken")).await.unwrap();
    for n in 0..3 {
        let swallowed = tidings::transaction(&mut conn, async |tx| {
            do_business(tx, "job-42").await?;
            tx.append(of("job-42")).await?;
            match n {
                0 => assert!(diesel::sql_query("SELECT 1 / 0").execute(tx.conn()).await.is_err()),
                1 => assert!(do_business(tx, "job-42").await.is_err()),
                _ => assert!(tx.append(unordered("taken").to("worker")).await.is_err()),
            }
            Ok::<_, Failed>(())
        });
        assert!(matches!(swallowed.await, Err(Failed::Database(_))));
        assert_eq!((jobs(&mut conn).await, events(&mut conn).await, head(&mut conn, "job-42").await), (0, 1, 0));
    }
    // Under a savepoint the rest of the transaction is as good as before.
    tidings::transaction(&mut conn, async |tx| {
        do_business(tx, "job-42").await?;
        let inner = tidings::transaction(tx.conn(), async |tx| {
            tx.append(of("job-42")).await?;
            assert!(do_business(tx, "job-42").await.is_err());
            Ok::<_, Failed>(())
        });
        assert!(matches!(inner.await, Err(Failed::Database(_))));
        tx.append(of("job-42")).await?;
        Ok::<_, Failed>(())
    })
    .await
    .unwrap();
    assert_eq!((jobs(&mut conn).await, events(&mut conn).await, head(&mut conn, "job-42").await), (1, 2, 1));
}

#[tokio::test]
async fn what_fails_only_at_the_commit_leaves_nothing() {
    let (_database, mut conn) = with_business_table().await;
    run(&mut conn, "CREATE TABLE part (job text REFERENCES job DEFERRABLE INITIALLY DEFERRED)").await;
    let failed = tidings::transaction(&mut conn, async |tx| {
        diesel::sql_query("INSERT INTO part VALUES ('job-42')").execute(tx.conn()).await?;
        tx.append(of("job-42")).await?;
        Ok::<_, Failed>(())
    });
    assert!(matches!(failed.await, Err(Failed::Database(_))));
    assert_eq!((events(&mut conn).await, head(&mut conn, "job-42").await), (0, 0));
    say(&mut conn, of("job-42")).await.unwrap();
}

#[tokio::test]
async fn a_savepoint_takes_head_event_and_pending_row_back_together() {
    let (_database, mut conn) = with_business_table().await;
    let rows = tidings::transaction(&mut conn, async |tx| {
        let first = tx.append(of("job-42")).await?;
        let inner = tidings::transaction(tx.conn(), async |tx| {
            assert_eq!(told(&tx.append(of("job-42")).await?), (Outcome::Appended, Some(2), Some(1)));
            tx.append_all([of("job-42").version(9), of("job-new"), unordered("n")]).await?;
            do_business(tx, "job-42").await?;
            Err::<(), _>(Failed::OnPurpose)
        });
        assert!(matches!(inner.await, Err(Failed::OnPurpose)));
        let kept = tidings::transaction(tx.conn(), async |tx| Ok::<_, Failed>(tx.append(of("job-42")).await?)).await?;
        Ok::<_, Failed>([first, kept, tx.append(of("job-new")).await?, tx.append(unordered("n")).await?])
    });
    let rows = rows.await.unwrap();
    let expected = [(Some(1), None), (Some(2), Some(1)), (Some(1), None), (None, None)];
    assert_eq!(rows.map(|row| (row.version.map(|v| v.0), row.previous.map(|v| v.0))), expected);
    assert!(rows.iter().all(|row| row.outcome == Outcome::Appended));
    assert_eq!((jobs(&mut conn).await, events(&mut conn).await), (0, 4));
    assert_eq!((head(&mut conn, "job-42").await, head(&mut conn, "job-new").await), (2, 1));
}

#[tokio::test]
async fn a_transaction_can_be_joined_and_nothing_else() {
    let (_database, mut conn) = with_business_table().await;
    assert!(matches!(Tx::join(&mut conn), Err(Error::NotInTransaction)));
    conn.transaction(async |conn| {
        let mut tx = Tx::join(conn)?;
        do_business(&mut tx, "job-42").await?;
        tx.append(of("job-42")).await?;
        tx.append_all([of("job-42"), unordered("n")]).await?;
        Ok::<_, Failed>(())
    })
    .await
    .unwrap();
    assert!(matches!(Tx::join(&mut conn), Err(Error::NotInTransaction)));
    let rolled_back = conn.transaction(async |conn| {
        Tx::join(conn)?.append(of("job-42")).await?;
        Err::<(), _>(Failed::OnPurpose)
    });
    assert!(rolled_back.await.is_err());
    conn.build_transaction()
        .serializable()
        .run(async |conn| {
            Tx::join(conn)?.append(of("job-42")).await?;
            Ok::<_, Failed>(())
        })
        .await
        .unwrap();
    assert_eq!((jobs(&mut conn).await, events(&mut conn).await, head(&mut conn, "job-42").await), (1, 4, 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_runs_inside_a_spawned_task_and_on_a_pooled_connection() {
    let (database, mut conn) = with_business_table().await;
    let manager = AsyncDieselConnectionManager::<AsyncPgConnection>::new(database.url());
    let pool = Pool::builder(manager).max_size(3).build().unwrap();
    let tasks = (0..10).map(|n| {
        let pool = pool.clone();
        tokio::spawn(async move {
            let mut conn = pool.get().await.unwrap();
            let (id, count) = (format!("job-{n}"), n % 2);
            tidings::transaction(&mut conn, async |tx| {
                do_business(tx, &id).await?;
                tx.append(of(&id)).await?;
                if count == 0 { Ok(()) } else { Err(Failed::OnPurpose) }
            })
            .await
            .is_ok()
        })
    });
    let committed = futures_util::future::join_all(tasks).await.into_iter().filter(|ok| *ok.as_ref().unwrap()).count();
    assert_eq!((committed, jobs(&mut conn).await, events(&mut conn).await), (5, 5, 5));
}

#[tokio::test]
async fn the_cause_is_what_the_event_says() {
    let (_database, mut conn) = database().await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let event = of("job-42").correlation_id("order-7").causation_id("cmd-42").trace(trace, Some("a=1".into()));
    say(&mut conn, event.header("Tenant", "académie").schema_version(3)).await.unwrap();
    let same = format!(
        "SELECT count(*) AS n FROM tidings.event WHERE correlation_id = 'order-7' AND causation_id = 'cmd-42'
            AND traceparent = '{trace}' AND tracestate = 'a=1' AND headers = '{{\"tenant\": \"académie\"}}'
            AND schema_version = 3 AND kind = 'event' AND occurred_at = created_at"
    );
    assert_eq!(number(&mut conn, &same).await, 1);
}
