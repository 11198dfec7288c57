//! Old and new programs on one database.

use tidings::postgres::{Error, LATEST, migrations, revert};
use tidings::{Database, migrate};

use super::{LIMIT, append_one, empty, start};
use diesel_async::SimpleAsyncConnection;

/// A step of a later release, as this one finds it.
fn future(serves_from: i32) -> String {
    format!(
        "INSERT INTO tidings.migration (version, name, serves_from) VALUES ({}, 'future', {serves_from})",
        LATEST + 7
    )
}

#[tokio::test]
async fn a_program_that_is_too_old_is_refused_with_both_versions() {
    let (database, mut conn) = empty().await;
    migrate(&database.database()).await.unwrap();
    conn.batch_execute(&future(LATEST + 2)).await.unwrap();
    let Err(Error::Schema(migrated)) = migrate(&database.database()).await else { panic!("it is refused") };
    let started = start(database.database(), &database).await.unwrap_err();
    for error in [migrated, started] {
        assert!(error.contains(&format!("knows version {LATEST} ")), "{error}");
        assert!(error.contains(&format!("serves programs from version {} on", LATEST + 2)), "{error}");
        assert!(error.contains("deploy a newer release"), "{error}");
    }
}

#[tokio::test]
async fn a_newer_database_that_still_serves_this_program_is_left_alone() {
    let (database, mut conn) = empty().await;
    migrate(&database.database()).await.unwrap();
    conn.batch_execute(&future(LATEST)).await.unwrap();
    assert!(migrate(&database.database()).await.unwrap().is_empty());
    start(database.database(), &database).await.unwrap();
    append_one(&mut conn).await;
    // What it does not know it cannot undo.
    let Err(Error::Schema(error)) = revert(&database.database(), 0).await else { panic!("it is refused") };
    assert!(error.contains(&format!("at version {}", LATEST + 7)) && error.contains(&LATEST.to_string()), "{error}");
    append_one(&mut conn).await;
}

#[tokio::test]
async fn a_database_without_the_schema_is_refused_with_the_way_out() {
    let (database, mut conn) = empty().await;
    let error = start(database.database(), &database).await.unwrap_err();
    assert!(error.contains("at version 0") && error.contains("tidings migrate"), "{error}");
    migrate(&database.database()).await.unwrap();
    conn.batch_execute(&format!("DELETE FROM tidings.migration WHERE version = {LATEST}")).await.unwrap();
    let error = start(database.database(), &database).await.unwrap_err();
    assert!(error.contains(&format!("needs {LATEST}")), "{error}");
}

/// A step that fails takes back everything before it, and the next start finds the database as it was.
#[tokio::test]
async fn a_step_that_fails_leaves_nothing() {
    let (database, mut conn) = empty().await;
    conn.batch_execute("CREATE SCHEMA tidings; CREATE TABLE tidings.inbox (mine int)").await.unwrap();
    assert!(matches!(migrate(&database.database()).await, Err(Error::Query(_))));
    let tables = "SELECT count(*) AS n FROM pg_class c JOIN pg_namespace s ON s.oid = c.relnamespace WHERE s.nspname = 'tidings'";
    assert_eq!(super::number(&mut conn, tables).await, 1);
    conn.batch_execute("DROP TABLE tidings.inbox").await.unwrap();
    assert_eq!(migrate(&database.database()).await.unwrap().len(), migrations().len());
}

#[tokio::test]
async fn a_database_that_is_not_there_is_an_error_in_time() {
    let (database, _conn) = empty().await;
    let (_, rest) = database.url().split_once("://").unwrap();
    let (_, place) = rest.split_once('@').unwrap();
    for url in [
        format!("postgres://nobody:s3cret@{place}"),
        "postgres://app:s3cret@127.0.0.1:1/shop".to_owned(),
        format!("{}_not", database.url()),
        "not a url, s3cret".to_owned(),
    ] {
        let failed = tokio::time::timeout(LIMIT, migrate(&Database::url(url))).await.expect("in time");
        let error = failed.unwrap_err();
        assert!(matches!(error, Error::Connect(_)), "{error}");
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{error}");
    }
}
