//! `tidings dead`

use std::process::{Command, Output, Stdio};

use serde_json::Value;

use super::{database, run, state, with_dead, words};

/// The program with these arguments; the URL stands in the environment, as it should.
fn tidings(url: Option<&str>, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_services_role"));
    command
        .args(["cli", "dead"])
        .args(arguments)
        .stdin(Stdio::null())
        .env_remove("TIDINGS_DATABASE_URL")
        .env("USER", "ana");
    if let Some(url) = url {
        command.env("TIDINGS_DATABASE_URL", url);
    }
    command.output().expect("it runs")
}

fn said(output: Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn complained(output: Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap()
}

#[tokio::test]
async fn it_lists_what_is_dead_and_no_payload() {
    let (database, mut conn) = database().await;
    let url = Some(database.url());
    assert_eq!(said(tidings(url, &["list"])), "nothing is dead\n");
    with_dead(&mut conn).await;
    run(&mut conn, "UPDATE tidings.event SET type = E'bad\\ntype \\x1b[31m' WHERE id = 'b-1'").await;
    let listed = said(tidings(url, &["list"]));
    assert_eq!(listed.lines().count(), 3, "{listed}");
    assert!(listed.contains("order/a v1") && listed.contains("too large") && !listed.contains("s3cret"), "{listed}");
    assert!(listed.contains(r"bad\ntype \u{1b}[31m"), "no control character reaches the terminal: {listed}");
    let json: Vec<Value> =
        said(tidings(url, &["list", "--json"])).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(json.iter().map(|letter| letter["id"].as_str().unwrap()).collect::<Vec<_>>(), ["a-1", "b-1", "c"]);
    assert_eq!(
        (&json[0]["version"], &json[2]["version"], &json[0]["resolution"]),
        (&Value::from(1), &Value::Null, &Value::Null)
    );
    for (filter, expected) in [
        (&["--aggregate", "order/a"][..], 1),
        (&["--aggregate", "order"], 2),
        (&["--type", "orders.ship"], 1),
        (&["--id", "c", "--id", "a-1"], 2),
        (&["--seq", json[0]["seq"].to_string().as_str()], 1),
        (&["--after", json[0]["seq"].to_string().as_str()], 2),
        (&["--partition", "1000", "--json"], 0),
    ] {
        let listed = said(tidings(url, &[&["list"], filter].concat()));
        assert_eq!(listed.lines().count(), expected, "{filter:?}: {listed}");
    }
    let page = tidings(url, &["list", "--limit", "2"]);
    assert!(String::from_utf8_lossy(&page.stderr).contains(&format!("--after {}", json[1]["seq"])));
}

#[tokio::test]
async fn it_shows_the_data_only_when_told() {
    let (database, mut conn) = database().await;
    let url = Some(database.url());
    with_dead(&mut conn).await;
    let shown = said(tidings(url, &["show", "--id", "a-1"]));
    for part in ["tenant (6 bytes)", "6 bytes", "1 behind it", "orders.created", "too large"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains("s3cret"), "{shown}");
    assert!(said(tidings(url, &["show", "--id", "a-1", "--data"])).ends_with("\n\ns3cret"));
    let json: Value = serde_json::from_str(&said(tidings(url, &["show", "--id", "a-1", "--json"]))).unwrap();
    assert_eq!(
        (&json["data_bytes"], &json["data"], &json["header_bytes"]["tenant"]),
        (&6.into(), &Value::Null, &6.into())
    );
    run(&mut conn, r"UPDATE tidings.event SET data = '\x00ff' WHERE id = 'c'").await;
    let json: Value = serde_json::from_str(&said(tidings(url, &["show", "--id", "c", "--json", "--data"]))).unwrap();
    assert_eq!(json["data_hex"], "00ff");
    let error = complained(tidings(url, &["show", "--id", "a-2"]), 1);
    assert!(error.contains("\"a-2\"") && error.contains(database.source()), "{error}");
}

#[tokio::test]
async fn it_redrives_and_discards_what_is_meant_and_records_who() {
    let (database, mut conn) = database().await;
    let url = Some(database.url());
    with_dead(&mut conn).await;
    let asked = complained(tidings(url, &["redrive", "--all"]), 1);
    assert!(asked.contains("3 events") && asked.contains("--yes") && asked.contains("nothing was done"), "{asked}");
    assert_eq!(state(&mut conn, "a-1").await, "dead pending");
    let redriven = said(tidings(url, &["redrive", "--id", "a-1"]));
    assert!(redriven.starts_with("redriven ") && redriven.ends_with(" a-1\n"), "{redriven}");
    assert_eq!(state(&mut conn, "a-1").await, "ready pending");
    let not_dead = complained(tidings(url, &["redrive", "--id", "a-1"]), 1);
    assert!(not_dead.contains("is dead now"), "{not_dead}");
    let discarded = said(tidings(url, &["discard", "--all", "--yes", "--by", "bo", "--reason", "a typing error"]));
    assert_eq!(discarded.lines().count(), 2, "{discarded}");
    assert_eq!(state(&mut conn, "b-1").await, "tombstone pending");
    assert!(said(tidings(url, &["discard", "--all"])).starts_with("nothing to do"));
    let record = words(
        &mut conn,
        "SELECT concat_ws(' ', event_id, resolution, resolved_by, resolved_why) AS words FROM tidings.dead_letter ORDER BY seq",
    );
    assert_eq!(record.await, ["a-1 redriven ana", "b-1 discarded bo a typing error", "c discarded bo a typing error"]);
    assert!(said(tidings(url, &["show", "--id", "b-1"])).contains("discarded by bo: a typing error"));
}

#[tokio::test]
async fn its_errors_say_where_and_what_to_do_and_no_password() {
    let (database, mut conn) = database().await;
    run(&mut conn, "DELETE FROM tidings.migration WHERE version > 1").await;
    let old = complained(tidings(Some(database.url()), &["list"]), 1);
    assert!(old.contains("tidings migrate") && old.contains(database.source()), "{old}");
    let refused = complained(tidings(Some("postgres://app:s3cret@127.0.0.1:1/shop"), &["list"]), 1);
    assert!(
        refused.contains("check the URL") && refused.contains("127.0.0.1:1") && !refused.contains("s3cret"),
        "{refused}"
    );
}

#[test]
fn help_and_wrong_arguments_are_answered() {
    let url = Some("postgres://app:s3cret@127.0.0.1:1/shop");
    let help = said(tidings(url, &["--help"]));
    for word in ["list", "show", "redrive", "discard", "tombstone", "Exit codes"] {
        assert!(help.contains(word), "{word}: {help}");
    }
    let help = said(tidings(url, &["discard", "--help"]));
    for word in [
        "--all",
        "--seq",
        "--id",
        "--type",
        "--aggregate",
        "--partition",
        "--by",
        "--reason",
        "--yes",
        "--database-url",
    ] {
        assert!(help.contains(word), "{word}: {help}");
    }
    assert!(!help.contains("s3cret") && !help.contains("ana"), "{help}");
    for wrong in [
        &["discard"][..],
        &["redrive", "--yes"],
        &["discard", "--all", "--id", "a"],
        &["redrive", "--all", "--limit", "0"],
        &["show"],
        &["show", "--seq", "1", "--id", "a"],
        &["list", "--seq", "one"],
    ] {
        let error = complained(tidings(url, wrong), 2);
        assert!(error.contains("--help") && !error.contains("s3cret"), "{wrong:?}: {error}");
    }
    assert!(complained(tidings(None, &["list"]), 2).contains("--database-url"));
}
