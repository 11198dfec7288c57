//! The account: what the tables, the streams and the files say of a run.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use diesel::QueryableByName;
use diesel::sql_types::{BigInt, Integer, Nullable, Text};
use diesel_async::{AsyncPgConnection, RunQueryDsl};
use stage::Error;
use stage::account::Account;
use stage::journal::Entry;
use stage::streams::Streams;

use crate::run::EXPORTS;

/// What was seen from outside during the run.
pub(crate) struct Witnessed {
    /// Answers `201 Created`.
    pub(crate) created: u64,
    /// Whole files.
    pub(crate) files: u64,
    /// Events that the broker had stored when a relay died that did not know it, and how long the journals were then.
    pub(crate) unrecorded: HashMap<String, usize>,
    /// The journals of all relays.
    pub(crate) entries: Vec<Entry>,
}

/// Each number is counted where the thing itself is, not where it was done.
pub(crate) async fn account(
    conn: &mut AsyncPgConnection,
    streams: &Streams,
    tenant: &str,
    witnessed: Witnessed,
) -> Result<Account, Error> {
    let exports = EXPORTS as u64;
    let appended = appended(conn, tenant).await?;
    let copies = streams.copies(&appended).await?;
    let numbers = numbers(conn, tenant).await?;
    let rows = i64::from(EXPORTS * (EXPORTS + 1) / 2);
    let number = |n: i64| u64::try_from(n).unwrap_or(0);
    // Whatever was said and is not in the streams, or is there and had no effect.
    let unheard = appended.iter().filter(|id| !copies.contains_key(*id)).count() as u64;
    let missing = [numbers.succeeded, numbers.counted, numbers.found_jobs]
        .iter()
        .map(|there| exports.saturating_sub(number(*there)))
        .sum::<u64>();

    let mut account = Account::default();
    account.exactly(exports, "exports", number(numbers.jobs), "rows of export.job; each was asked for twice");
    account.exactly(exports, "answered 201", witnessed.created, "of 100 POSTs; the others got the same job and 200");
    account.exactly(
        2 * exports,
        "events appended",
        appended.len() as u64,
        "rows of tidings.event: a command and an event each",
    );
    account.road(&appended, &witnessed.unrecorded, &witnessed.entries, &copies);
    account.exactly(exports, "jobs succeeded", number(numbers.succeeded), "effect of export-worker");
    account.exactly(exports, "files", witnessed.files, "whole ones, read back from the folder");
    account.exactly(
        exports,
        "statistics total",
        number(numbers.counted),
        "effect of statistics: `exports + 1` for each event",
    );
    account.exactly(number(rows), "rows counted", number(numbers.rows), "the same, `rows + rows of the event`");
    account.exactly(exports, "search entries", number(numbers.found), "effect of search: one row for each event");
    account.exactly(0, "lost", unheard + missing, "appended and not in the streams, or without its effect somewhere");
    Ok(account)
}

/// How far this run is, by what the tables say.
#[derive(Debug, QueryableByName)]
pub(crate) struct Numbers {
    #[diesel(sql_type = BigInt)]
    jobs: i64,
    #[diesel(sql_type = BigInt)]
    pub(crate) succeeded: i64,
    #[diesel(sql_type = BigInt)]
    pub(crate) counted: i64,
    #[diesel(sql_type = BigInt)]
    rows: i64,
    #[diesel(sql_type = BigInt)]
    pub(crate) found: i64,
    #[diesel(sql_type = BigInt)]
    found_jobs: i64,
    #[diesel(sql_type = BigInt)]
    pub(crate) pending: i64,
}

/// Counts.
pub(crate) async fn numbers(conn: &mut AsyncPgConnection, tenant: &str) -> Result<Numbers, Error> {
    let statement = format!(
        "SELECT (SELECT count(*) FROM export.job WHERE tenant = $1) AS jobs,
                (SELECT count(*) FROM export.job WHERE tenant = $1 AND state = 'succeeded') AS succeeded,
                coalesce((SELECT exports FROM export.statistics WHERE tenant = $1), 0) AS counted,
                coalesce((SELECT rows FROM export.statistics WHERE tenant = $1), 0) AS rows,
                (SELECT count(*) FROM export.search_entry WHERE tenant = $1) AS found,
                (SELECT count(DISTINCT job_id) FROM export.search_entry WHERE tenant = $1) AS found_jobs,
                (SELECT count(*) FROM tidings.pending p JOIN ({APPENDED}) e ON p.partition = e.partition AND p.seq = e.seq)
                    AS pending"
    );
    Ok(diesel::sql_query(statement).bind::<Text, _>(tenant).get_result(conn).await?)
}

/// The ids of this run's events.
async fn appended(conn: &mut AsyncPgConnection, tenant: &str) -> Result<HashSet<String>, Error> {
    #[derive(QueryableByName)]
    struct Id {
        #[diesel(sql_type = Text)]
        id: String,
    }
    let ids: Vec<Id> = diesel::sql_query(APPENDED).bind::<Text, _>(tenant).load(conn).await?;
    Ok(ids.into_iter().map(|row| row.id).collect())
}

/// How many jobs have a file with as many lines as were asked for.
pub(crate) async fn whole_files(conn: &mut AsyncPgConnection, tenant: &str, folder: &Path) -> Result<u64, Error> {
    #[derive(QueryableByName)]
    struct Promised {
        #[diesel(sql_type = Nullable<Text>)]
        file: Option<String>,
        #[diesel(sql_type = Integer)]
        rows: i32,
    }
    let all: Vec<Promised> = diesel::sql_query("SELECT file, rows FROM export.job WHERE tenant = $1")
        .bind::<Text, _>(tenant)
        .load(conn)
        .await?;
    let whole = |promised: &Promised| {
        let text = promised.file.as_ref().and_then(|file| std::fs::read_to_string(folder.join(file)).ok());
        text.is_some_and(|text| text.ends_with('\n') && text.lines().count() as i64 == i64::from(promised.rows) + 1)
    };
    Ok(all.iter().filter(|promised| whole(promised)).count() as u64)
}

/// The commands by their ids, which are made of the job's, and the events by their aggregate.
const APPENDED: &str = "
    SELECT e.id, e.seq, e.partition FROM export.job j JOIN tidings.event e ON e.id = 'cmd-' || substr(j.id, 5)
     WHERE j.tenant = $1
     UNION ALL
    SELECT e.id, e.seq, e.partition FROM export.job j
      JOIN tidings.event e ON e.aggregate_type = 'job' AND e.aggregate_id = j.id
     WHERE j.tenant = $1";
