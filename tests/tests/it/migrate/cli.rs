//! `tidings migrate`

use std::process::{Command, Output, Stdio};

use diesel_async::{AsyncConnection, AsyncPgConnection, SimpleAsyncConnection};
use tidings::postgres::{LATEST, migrations, script};

use super::{SCHEMAS, append_one, catalogue, empty, layout, number};

/// The program with these arguments; the URL stands in the environment, as it should.
fn tidings(url: Option<&str>, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_services_role"));
    command.args(["cli", "migrate"]).args(arguments).stdin(Stdio::null()).env_remove("TIDINGS_DATABASE_URL");
    if let Some(url) = url {
        command.env("TIDINGS_DATABASE_URL", url);
    }
    command.output().expect("it runs")
}

/// What it said on standard output, after it went well.
fn said(output: Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// What it complained of.
fn complained(output: Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap()
}

#[tokio::test]
async fn it_applies_says_what_and_has_nothing_to_do_then() {
    let (database, mut conn) = empty().await;
    let applied = said(tidings(Some(database.url()), &["--partitions", "8"]));
    let expected: String =
        migrations().iter().map(|step| format!("applied {:04} {}\n", step.version, step.name)).collect();
    assert_eq!(applied, expected);
    assert_eq!(layout(&mut conn).await, (8, 8));
    append_one(&mut conn).await;
    let nothing = said(tidings(None, &["--database-url", database.url()]));
    assert!(nothing.starts_with("nothing to do") && nothing.contains(&format!("version {LATEST}")), "{nothing}");
    let other = complained(tidings(Some(database.url()), &["--partitions", "4"]), 1);
    assert!(other.contains("has 8 partitions") && other.contains(database.source()), "{other}");
}

#[tokio::test]
async fn it_reverts_only_when_it_is_told_twice() {
    let (database, mut conn) = empty().await;
    said(tidings(Some(database.url()), &[]));
    append_one(&mut conn).await;
    let asked = complained(tidings(Some(database.url()), &["--revert-to", "0"]), 1);
    assert!(asked.contains("--yes") && asked.contains("Nothing was done"), "{asked}");
    assert!(asked.contains(database.source()) && !asked.contains("postgres://"), "it says where: {asked}");
    append_one(&mut conn).await;
    let done = said(tidings(Some(database.url()), &["--revert-to", "0", "--yes"]));
    assert!(done.contains("reverted 0001 road"), "{done}");
    assert_eq!(number(&mut conn, SCHEMAS).await, 0);
    assert!(said(tidings(Some(database.url()), &["--revert-to", "0", "--yes"])).starts_with("nothing to do"));
}

#[tokio::test]
async fn it_prints_the_sql_and_does_nothing() {
    let (database, mut conn) = empty().await;
    let printed = said(tidings(Some(database.url()), &["--print", "--partitions", "16"]));
    assert_eq!(number(&mut conn, SCHEMAS).await, 0);
    assert_eq!(printed, script(Some(16)).unwrap());
    assert_eq!(said(tidings(None, &["--print"])), script(None).unwrap(), "no database is needed");
    conn.batch_execute(&printed).await.unwrap();
    assert_eq!(layout(&mut conn).await, (16, 16));
    assert!(!catalogue(&mut conn).await.is_empty());
}

#[tokio::test]
async fn its_errors_say_where_and_what_to_do_and_no_password() {
    let (database, _conn) = empty().await;
    let (_, place) = database.url().split_once('@').unwrap();
    for (url, told) in [
        (format!("postgres://nobody:s3cret@{place}"), "password authentication failed for user \"nobody\""),
        ("postgres://app:s3cret@127.0.0.1:1/shop".to_owned(), "refused"),
        (format!("{}_not", database.url()), "does not exist"),
        ("mysql://app:s3cret@127.0.0.1/shop".to_owned(), "postgres://user:password@host:port/name"),
    ] {
        let error = complained(tidings(Some(&url), &[]), 1);
        assert!(error.starts_with("tidings: ") && error.contains(told), "{url}: {error}");
        assert!(error.contains("check the URL") && !error.contains("s3cret"), "{error}");
    }
    assert!(
        complained(tidings(Some("postgres://app:s3cret@127.0.0.1:1/shop"), &[]), 1)
            .contains("\"shop\" at 127.0.0.1:1, as \"app\"")
    );
    let mut conn = AsyncPgConnection::establish(database.url()).await.unwrap();
    conn.batch_execute("CREATE SCHEMA tidings; CREATE TABLE tidings.inbox (mine int)").await.unwrap();
    let error = complained(tidings(Some(database.url()), &[]), 1);
    assert!(error.contains("already exists") && error.contains("nothing was changed"), "{error}");
}

#[test]
fn help_and_wrong_arguments_are_answered() {
    let help = said(tidings(Some("postgres://app:s3cret@127.0.0.1/shop"), &["--help"]));
    for word in
        ["--database-url", "TIDINGS_DATABASE_URL", "--partitions", "--revert-to", "--yes", "--print", "Exit codes"]
    {
        assert!(help.contains(word), "{word}: {help}");
    }
    assert!(!help.contains("s3cret"), "{help}");
    for wrong in [
        &[][..],
        &["--partitions", "0"],
        &["--partitions", "1025"],
        &["--revert-to", "-1"],
        &["--yes"],
        &["--revert-to", "0", "--partitions", "4"],
    ] {
        let url = (!wrong.is_empty()).then_some("postgres://app:s3cret@127.0.0.1:1/shop");
        let error = complained(tidings(url, wrong), 2);
        assert!(error.contains("--help") && !error.contains("s3cret"), "{error}");
    }
    assert!(complained(tidings(None, &[]), 2).contains("--database-url"));
}
