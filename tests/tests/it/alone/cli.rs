//! What it says without relaying anything.

use std::process::Output;

use super::{databases, file, output};

const NATS: (&str, &str) = ("TIDINGS_NATS_URL", "nats://app:s3cret@nats.example:4222");
const URL: (&str, &str) = ("URL_0", "postgres://app:s3cret@db.example/shop");

fn check(config: &str) -> Output {
    let file = file(config);
    output(&["--check", "--config", &file.path().display().to_string()], &[NATS, URL])
}

#[test]
fn check_says_what_holds_and_connects_to_nothing() {
    let checked = check(&databases(&["shop.orders"]));
    let said = String::from_utf8_lossy(&checked.stdout);
    assert_eq!(checked.status.code(), Some(0), "{}", String::from_utf8_lossy(&checked.stderr));
    for told in [
        "the configuration is right",
        "drain 20s",
        "shop.orders",
        "\"shop\" at db.example:5432, as \"app\"",
        "nats.example:4222",
        "lease: 3s",
        "oldest_pending: 60s",
    ] {
        assert!(said.contains(told), "{told}: {said}");
    }
    assert!(!said.contains("s3cret"), "{said}");
}

#[test]
fn check_says_every_mistake_with_its_line() {
    let checked = check(&format!("{}relay.widow = 5\nalarms.dead = 0\n", databases(&["shop orders"])));
    let said = String::from_utf8_lossy(&checked.stderr);
    assert_eq!(checked.status.code(), Some(1));
    for told in [
        ".toml:2: `database[1].source`",
        ".toml:5: `database[1].relay.widow`: there is no such key, did you mean `window`?",
        ".toml:6: `database[1].alarms.dead`",
    ] {
        assert!(said.contains(told), "{told}: {said}");
    }
    assert!(checked.stdout.is_empty() && !said.contains("s3cret"), "{said}");
}

#[test]
fn the_example_and_the_manual_are_right() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let urls = [
        NATS,
        ("ORDERS_DATABASE_URL", "postgres://app@db/orders"),
        ("PARCELS_DATABASE_URL", "postgres://app@db/parcels"),
    ];
    let example = output(&["--check", "--config", &format!("{folder}/examples/producers/tidings.toml")], &urls);
    assert_eq!(example.status.code(), Some(0), "{}", String::from_utf8_lossy(&example.stderr));
    let manual = std::fs::read_to_string(format!("{folder}/docs/operating.md")).expect("it is there");
    let (_, rest) = manual.split_once("```toml\n").expect("it has the keys");
    let keys = file(rest.split_once("```").expect("it ends").0);
    let checked = output(&["--check", "--config", &keys.path().display().to_string()], &urls);
    assert_eq!(checked.status.code(), Some(0), "{}", String::from_utf8_lossy(&checked.stderr));
    for alarm in tidings::protocol::alarm::Kind::ALL {
        assert!(manual.contains(&format!("\n### `{alarm}`\n")), "the manual says nothing of `{alarm}`");
    }
}

#[test]
fn help_and_wrong_arguments_are_answered() {
    let help = output(&["--help"], &[NATS]);
    let said = String::from_utf8_lossy(&help.stdout);
    assert_eq!(help.status.code(), Some(0));
    for word in [
        "--config",
        "--check",
        "--source",
        "TIDINGS_SOURCE",
        "TIDINGS_DATABASE_URL",
        "url_env",
        "RUST_LOG",
        "Exit codes",
    ] {
        assert!(said.contains(word), "{word}: {said}");
    }
    assert!(!said.contains("s3cret"), "{said}");
    let complained = |arguments: &[&str], code: i32, told: &str| {
        let answer = output(arguments, &[NATS]);
        let said = String::from_utf8_lossy(&answer.stderr);
        assert!(answer.status.code() == Some(code) && said.contains(told) && !said.contains("s3cret"), "{said}");
    };
    complained(&["--drain", "soon"], 2, "--help");
    complained(&["--source", "shop"], 1, "--database-url is missing: say it, or set TIDINGS_DATABASE_URL");
    complained(&["--config", "no-such-file.toml"], 1, "cannot read the configuration no-such-file.toml");
    complained(&["--config", "any.toml", "--source", "shop"], 1, "with --config, `source` stands in each");
}
