//! The synchronous twin, on the wrapper of diesel-async, which needs no libpq.

use diesel::connection::SimpleConnection;
use diesel::result::Error as DieselError;
use diesel::{Connection, RunQueryDsl};
use diesel_async::AsyncPgConnection;
use diesel_async::async_connection_wrapper::AsyncConnectionWrapper;
use tidings::append::{Error, Outcome};
use tidings::sync::{self, Tx};
use tidings::{Event, testing};

use super::{Failed, Number, of, told, unordered};

type Sync = AsyncConnectionWrapper<AsyncPgConnection>;

fn connection() -> Sync {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let database = runtime.block_on(testing::database()).unwrap();
    let mut conn = Sync::establish(database.url()).unwrap();
    conn.batch_execute("CREATE TABLE job (id text PRIMARY KEY)").unwrap();
    conn
}

fn number(conn: &mut Sync, query: &str) -> i64 {
    diesel::sql_query(query).get_result::<Number>(conn).unwrap().n
}

/// Changes, events, pending rows, and the head of job-42.
fn state(conn: &mut Sync) -> [i64; 4] {
    ["job", "tidings.event", "tidings.pending"]
        .map(|table| format!("SELECT count(*) AS n FROM {table}"))
        .into_iter()
        .chain(["SELECT coalesce(max(head_version), 0) AS n FROM tidings.aggregate WHERE id = 'job-42'".into()])
        .map(|query| number(conn, &query))
        .collect::<Vec<_>>()
        .try_into()
        .unwrap()
}

#[derive(Event, serde::Serialize, serde::Deserialize)]
#[event(type = "job.ended", aggregate = "job", key = job)]
struct JobEnded {
    job: String,
}

#[test]
fn change_and_event_commit_together_or_not_at_all() {
    let mut conn = connection();
    let rows = sync::transaction(&mut conn, |tx| {
        diesel::sql_query("INSERT INTO job VALUES ('job-42')").execute(tx.conn())?;
        let first = tx.append(of("job-42"))?;
        let ended = tx.append(&JobEnded { job: "job-42".into() })?;
        let batch = tx.append_all([of("job-42").id("a"), of("job-42").id("a"), unordered("n")])?;
        assert_eq!(tx.append_all(Vec::<tidings::NewEvent>::new())?, []);
        Ok::<_, Failed>([vec![first, ended], batch].concat())
    })
    .unwrap();
    let expected = [
        (Outcome::Appended, Some(1), None),
        (Outcome::Appended, Some(2), Some(1)),
        (Outcome::Appended, Some(3), Some(2)),
        (Outcome::AlreadyAppended, Some(3), Some(2)),
        (Outcome::Appended, None, None),
    ];
    assert_eq!(rows.iter().map(told).collect::<Vec<_>>(), expected);
    assert_eq!(state(&mut conn), [1, 4, 4, 3]);
    let neither = sync::transaction(&mut conn, |tx| {
        tx.append(of("job-42"))?;
        Err::<(), _>(Failed::OnPurpose)
    });
    assert!(matches!(neither, Err(Failed::OnPurpose)));
    assert_eq!(state(&mut conn), [1, 4, 4, 3]);
}

#[test]
fn a_database_error_that_is_swallowed_is_an_error_all_the_same() {
    let mut conn = connection();
    let swallowed = sync::transaction(&mut conn, |tx| {
        tx.append(of("job-42"))?;
        assert!(diesel::sql_query("SELECT 1 / 0").execute(tx.conn()).is_err());
        Ok::<_, Failed>(())
    });
    assert!(matches!(swallowed, Err(Failed::Database(_))));
    assert_eq!(state(&mut conn), [0, 0, 0, 0]);
}

#[test]
fn a_savepoint_takes_head_event_and_pending_row_back_together() {
    let mut conn = connection();
    sync::transaction(&mut conn, |tx| {
        tx.append(of("job-42"))?;
        let inner = sync::transaction(tx.conn(), |tx| {
            tx.append_all([of("job-42"), unordered("n")])?;
            Err::<(), _>(Failed::OnPurpose)
        });
        assert!(inner.is_err());
        let after = tx.append(of("job-42"))?;
        assert_eq!(told(&after), (Outcome::Appended, Some(2), Some(1)));
        Ok::<_, Failed>(())
    })
    .unwrap();
    assert_eq!(state(&mut conn), [0, 2, 2, 2]);
}

#[test]
fn a_transaction_can_be_joined_and_nothing_else() {
    let mut conn = connection();
    assert!(matches!(Tx::join(&mut conn), Err(Error::NotInTransaction)));
    conn.transaction(|conn| {
        Tx::join(conn)?.append(of("job-42"))?;
        Ok::<_, Failed>(())
    })
    .unwrap();
    assert!(matches!(Tx::join(&mut conn), Err(Error::NotInTransaction)));
    assert_eq!(state(&mut conn), [0, 1, 1, 1]);
}

#[test]
fn refusals_are_the_same() {
    let mut conn = connection();
    sync::transaction(&mut conn, |tx| Ok::<_, Failed>(tx.append(of("job-42").id("a"))?)).unwrap();
    let invalid = sync::transaction(&mut conn, |tx| Ok::<_, Failed>(tx.append(of("job 42"))?));
    assert!(matches!(invalid, Err(Failed::Append(Error::Invalid(_)))), "{invalid:?}");
    let conflict = sync::transaction(&mut conn, |tx| Ok::<_, Failed>(tx.append(unordered("a"))?));
    assert!(matches!(conflict, Err(Failed::Append(Error::IdConflict(_)))), "{conflict:?}");
    let stale = sync::transaction(&mut conn, |tx| Ok::<_, Failed>(tx.append_all([of("job-42").version(1)])?));
    assert!(matches!(stale, Err(Failed::Append(Error::VersionConflict(_)))), "{stale:?}");
    let late: Result<(), Failed> = sync::transaction(&mut conn, |tx| {
        assert!(matches!(tx.append(unordered("a")), Err(Error::IdConflict(_))));
        assert!(matches!(tx.append(of("job-42")), Err(Error::Query(DieselError::DatabaseError(..)))));
        Ok(())
    });
    assert!(late.is_err());
    assert_eq!(state(&mut conn), [0, 1, 1, 1]);
}
