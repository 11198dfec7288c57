//! The configuration of `tidings relay`: a file, or one database by flags and environment. What is wrong is said with
//! file, line and key, all at once.

mod table;

use std::path::Path;
use std::time::Duration;

use toml::de::DeTable;

use super::migrate::place;
use crate::JetStream;
use crate::broker::Broker;
use crate::host::{Error, Relay, Tidings};
use crate::outbox::alarms::Alarms;
use crate::postgres::Database;
use crate::protocol::token::check_token;
use crate::services::{DATABASE_URL, NATS_URL};
use table::{Mistakes, Table};

/// What `tidings relay` is to do.
pub(super) struct Config {
    pub(super) drain: Duration,
    pub(super) databases: Vec<Served>,
}

/// One database, and how it is relayed.
#[derive(Clone)]
pub(super) struct Served {
    pub(super) source: String,
    pub(super) database: Database,
    pub(super) jetstream: JetStream,
    pub(super) relay: Relay,
    pub(super) alarms: Alarms,
    pub(super) threads: usize,
    /// Where they are, without passwords.
    pub(super) database_place: String,
    pub(super) nats_place: String,
}

/// What was given beside the file.
#[derive(Debug, Default)]
pub(super) struct Given {
    pub(super) database_url: Option<String>,
    pub(super) nats_url: Option<String>,
    pub(super) source: Option<String>,
}

impl Served {
    /// Ready to be started; as often as it takes.
    pub(super) fn tidings(&self) -> Tidings {
        Tidings::new(self.database.clone(), self.jetstream.clone())
            .source(self.source.clone())
            .relay(self.relay.clone())
            .alarms(self.alarms.clone())
            .start_timeout(START)
            .engine_threads(self.threads)
            .handler_threads(1)
    }
}

impl Config {
    /// Reads a file.
    pub(super) fn file(path: &Path, given: &Given) -> Result<Config, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("cannot read the configuration {}: {error}", path.display()))?;
        Config::text(&path.display().to_string(), &text, given)
    }

    /// One database, named by flags and environment; all else is as by default.
    pub(super) fn of_one(given: &Given) -> Result<Config, String> {
        let wanted = |value: &Option<String>, flag: &str, variable: &str, example: &str| {
            value.clone().filter(|value| !value.is_empty()).ok_or_else(|| {
                format!(
                    "{flag} is missing: say it, or set {variable}, for example {example}; or name a file with --config"
                )
            })
        };
        let database =
            wanted(&given.database_url, "--database-url", DATABASE_URL, "postgres://user:password@host:5432/name")?;
        let nats = wanted(&given.nats_url, "--nats-url", NATS_URL, "nats://user:password@host:4222")?;
        let source = wanted(&given.source, "--source", SOURCE, "shop.orders")?;
        database_url(&database).map_err(|wrong| format!("--database-url (or {DATABASE_URL}): {wrong}"))?;
        let jetstream = JetStream::url(nats.clone());
        jetstream.check().map_err(|wrong| format!("--nats-url (or {NATS_URL}): {wrong}"))?;
        let served = Served {
            source,
            database_place: place(&database),
            nats_place: hosts(&nats),
            database: Database::url(database),
            jetstream,
            relay: Relay::default().name(node_name()),
            alarms: Alarms::default().report(REPORT),
            threads: THREADS,
        };
        served.tidings().check().map_err(|error| error.to_string())?;
        Ok(Config { drain: DRAIN, databases: vec![served] })
    }

    fn text(name: &str, text: &str, given: &Given) -> Result<Config, String> {
        let mistakes = Mistakes::of(name, text);
        let parsed = match DeTable::parse(text) {
            Ok(parsed) => parsed,
            Err(error) => {
                mistakes
                    .add(error.span().map_or(0, |span| span.start), format!("this is not TOML: {}", error.message()));
                return Err(mistakes.said().err().unwrap_or_default());
            }
        };
        let config = {
            let root = Table::of(String::new(), 0..0, parsed.get_ref(), &mistakes);
            read(root, given)
        };
        mistakes.said()?;
        Ok(config)
    }
}

fn read(root: Table<'_>, given: &Given) -> Config {
    let drain = root.duration("drain").unwrap_or(DRAIN);
    let tables = root.tables("database");
    if tables.is_empty() && !root.has("database") {
        root.wrong("database", "there is none: begin one by a line `[[database]]`, with `source = \"…\"` below it");
    }
    let mut databases: Vec<Served> = Vec::new();
    for table in tables {
        databases.extend(served(table, given, &databases));
    }
    root.end();
    Config { drain, databases }
}

fn served(table: Table<'_>, given: &Given, others: &[Served]) -> Option<Served> {
    let source = table.text("source").unwrap_or_else(|| {
        if !table.has("source") {
            table.wrong(
                "source",
                "is missing: the CloudEvents source of this database, for ever; for example \"shop.orders\"",
            );
        }
        ""
    });
    if let Err(unfit) = check_token(source)
        && !source.is_empty()
    {
        table.wrong("source", format!("{source:?} {unfit}"));
    }
    if others.iter().any(|other| other.source == source) {
        table.wrong("source", format!("another `[[database]]` has {source:?}: a database is one source"));
    }
    let database_url = url(&table, DATABASE_URL, given.database_url.as_deref(), database_url);
    let database_place = database_url.as_deref().map(place).unwrap_or_default();
    if database_url.is_some() && others.iter().any(|other| other.database_place == database_place) {
        table.wrong("url", "another `[[database]]` is the same database, or takes its URL from the same variable");
    }
    let mut database = Database::url(database_url.clone().unwrap_or_default());
    database = set(database, table.number("partitions", 1..=1024), Database::partitions);
    database = set(database, table.duration("statement_timeout"), Database::statement_timeout);
    database = set(database, table.duration("lock_timeout"), Database::lock_timeout);
    database = set(database, table.duration("connect_timeout"), Database::connect_timeout);
    let threads = table.number("threads", 1..=64).unwrap_or(THREADS);

    let nats = nats(table.table("nats"), given);
    let relay = relay(table.table("relay"));
    let alarms = alarms(table.table("alarms"));
    let right = table.end();
    let (Some((nats_place, jetstream)), Some(relay), Some(alarms), true) = (nats, relay, alarms, right) else {
        return None;
    };
    Some(Served { source: source.to_owned(), database, jetstream, relay, alarms, threads, database_place, nats_place })
}

fn nats(table: Table<'_>, given: &Given) -> Option<(String, JetStream)> {
    let url = url(&table, NATS_URL, given.nats_url.as_deref(), |url| JetStream::url(url).check());
    let mut jetstream = JetStream::url(url.clone().unwrap_or_default());
    jetstream = set(jetstream, table.number("replicas", 1..=5), JetStream::replicas);
    jetstream = set(jetstream, table.duration("max_age"), JetStream::max_age);
    jetstream = set(jetstream, table.duration("duplicate_window"), JetStream::duplicate_window);
    jetstream = set(jetstream, table.duration("ack_timeout"), JetStream::ack_timeout);
    table.end().then(|| (hosts(&url.unwrap_or_default()), jetstream))
}

fn relay(table: Table<'_>) -> Option<Relay> {
    let mut relay = Relay::default().name(node_name());
    relay = set(relay, table.text("name"), Relay::name);
    relay = set(relay, table.duration("lease"), Relay::lease);
    relay = set(relay, table.duration("sync_horizon"), Relay::sync_horizon);
    relay = set(relay, table.number("window", 1..=100_000), Relay::window);
    relay = set(relay, table.number("window_bytes", 1..=1 << 32), Relay::window_bytes);
    relay = set(relay, table.number("in_flight", 1..=100_000), Relay::in_flight);
    relay = set(relay, table.number("connections", 1..=1_000), Relay::connections);
    relay = set(relay, table.durations("backoff"), |relay: Relay, (min, max)| relay.backoff(min, max));
    if let Err(Error::Config(wrong)) = relay.check() {
        wrong_setting(&table, &wrong, "`Relay::");
    }
    table.end().then_some(relay)
}

fn alarms(table: Table<'_>) -> Option<Alarms> {
    let mut alarms = Alarms::default();
    alarms = set(alarms, table.duration("every"), Alarms::every);
    let report = table.duration("report").unwrap_or(REPORT.max(alarms.every));
    alarms = alarms.report(report);
    alarms = set(alarms, table.duration("oldest_pending"), Alarms::oldest_pending);
    alarms = set(alarms, table.number("pending", 1..=i64::MAX), Alarms::pending);
    alarms = set(alarms, table.duration("held"), Alarms::held);
    alarms = set(alarms, table.number("dead", 1..=1_000), Alarms::dead);
    alarms = set(alarms, table.duration("unroutable"), Alarms::unroutable);
    alarms = set(alarms, table.duration("unconfirmed"), Alarms::unconfirmed);
    alarms = set(alarms, table.duration("unowned"), Alarms::unowned);
    alarms = set(alarms, table.duration("no_able_node"), Alarms::no_able_node);
    alarms = set(alarms, table.duration("paused"), Alarms::paused);
    alarms = set(alarms, table.duration("blind"), Alarms::blind);
    if let Err(wrong) = alarms.check() {
        wrong_setting(&table, &wrong, "");
    }
    table.end().then_some(alarms)
}

fn set<S, V>(settings: S, value: Option<V>, with: impl FnOnce(S, V) -> S) -> S {
    match value {
        Some(value) => with(settings, value),
        None => settings,
    }
}

/// A check of the library begins with the name of the setting, which is the key here.
fn wrong_setting(table: &Table<'_>, wrong: &str, prefix: &str) {
    let wrong = wrong.strip_prefix(prefix).unwrap_or(wrong).trim_end_matches('`');
    let (key, what) = wrong.split_once(' ').unwrap_or((wrong, ""));
    table.wrong(key, what);
}

/// A URL holds a password, so it stands in a variable: the one that `url_env` names, else the usual one. `url` is for
/// what needs none.
fn url(
    table: &Table<'_>,
    usual: &str,
    given: Option<&str>,
    check: impl FnOnce(&str) -> Result<(), String>,
) -> Option<String> {
    let (written, variable) = (table.text("url"), table.text("url_env"));
    let (key, url) = match (written, variable) {
        (Some(_), Some(_)) => {
            table.wrong("url_env", "there is `url` too: keep one of them");
            return None;
        }
        (Some(url), None) => ("url", url.to_owned()),
        (None, Some(variable)) => match std::env::var(variable) {
            Ok(url) if !url.is_empty() => ("url_env", url),
            Ok(_) | Err(_) => {
                table.wrong("url_env", format!("the environment variable {variable} is not set: set it to the URL"));
                return None;
            }
        },
        (None, None) if table.has("url") || table.has("url_env") => return None,
        (None, None) => {
            match given {
                Some(url) => ("url", url.to_owned()),
                None => {
                    table.wrong("url", format!("is missing: set the environment variable {usual}, or name another one with `url_env = \"…\"`"));
                    return None;
                }
            }
        }
    };
    match check(&url) {
        Ok(()) => Some(url),
        Err(wrong) => {
            table.wrong(key, wrong);
            None
        }
    }
}

fn database_url(url: &str) -> Result<(), String> {
    let parsed = url.parse::<tokio_postgres::Config>();
    parsed.map(drop).map_err(|_| "the URL is not of the form postgres://user:password@host:port/name".into())
}

/// The servers of a list of URLs, without the credentials.
fn hosts(urls: &str) -> String {
    let host = |url: &str| {
        let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
        rest.rsplit_once('@').map_or(rest, |(_, host)| host).to_owned()
    };
    urls.split(',').map(str::trim).map(host).collect::<Vec<_>>().join(", ")
}

fn node_name() -> String {
    format!("tidings relay, process {}", std::process::id())
}

pub(super) const SOURCE: &str = "TIDINGS_SOURCE";
/// One try of a start; they go on for ever.
const START: Duration = Duration::from_secs(5);
const DRAIN: Duration = Duration::from_secs(20);
const REPORT: Duration = Duration::from_secs(60);
const THREADS: usize = 2;

#[cfg(test)]
mod tests;
