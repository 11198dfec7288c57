//! `tidings dead`

use std::error::Error;
use std::io::Write;

use chrono::SecondsFormat;
use diesel_async::AsyncPgConnection;

use super::migrate::place;
use crate::dead::{self, By, Content, Done, Letter, Named, Which};
use crate::postgres::{self, Database, check_schema};
use crate::services::DATABASE_URL;

/// Look at events that the broker will never take as they are, and decide about them.
///
/// A dead event holds its aggregate: nothing behind it is published. `redrive` tries it again, with the same id and version;
/// `discard` gives it up, and a tombstone stands for its version. Both are recorded with who did it and why.
///
/// Exit codes: 0 done, or nothing to do; 1 failed, or an event that was named is not dead; 2 wrong arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// List the dead events that nobody has resolved, in the order of the outbox. The data is not shown
    List(List),
    /// Show one dead letter in full, resolved or not. The data is shown only with --data
    Show(Show),
    /// Try dead events again, with the same id and version: for what was put right, such as a limit of the broker
    Redrive(Resolve),
    /// Give dead events up: they are never published, and a tombstone stands for each that has a version
    Discard(Resolve),
}

#[derive(Debug, clap::Args)]
struct Place {
    /// The database, postgres://user:password@host:port/name. The variable keeps the password out of the process list.
    #[arg(long, value_name = "URL", env = DATABASE_URL, hide_env_values = true)]
    database_url: String,
}

#[derive(Debug, clap::Args)]
struct Filter {
    /// Only this place in the outbox; may be said several times
    #[arg(long, value_name = "N")]
    seq: Vec<i64>,

    /// Only this event; may be said several times
    #[arg(long, value_name = "EVENT-ID")]
    id: Vec<String>,

    /// Only events of this type
    #[arg(long = "type", value_name = "TYPE")]
    event_type: Option<String>,

    /// Only events of this aggregate, or of all aggregates of a type
    #[arg(long, value_name = "TYPE/ID|TYPE")]
    aggregate: Option<String>,

    /// Only events of this partition
    #[arg(long, value_name = "N")]
    partition: Option<u16>,

    /// Only behind this place in the outbox: for the next page
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    after: i64,

    /// How many at once
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    limit: u16,
}

#[derive(Debug, clap::Args)]
struct List {
    #[command(flatten)]
    place: Place,

    #[command(flatten)]
    filter: Filter,

    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct Show {
    #[command(flatten)]
    place: Place,

    /// The event's place in the outbox
    #[arg(long, value_name = "N", required_unless_present = "id", conflicts_with = "id")]
    seq: Option<i64>,

    /// The event's id
    #[arg(long, value_name = "EVENT-ID")]
    id: Option<String>,

    /// Show the data too, byte for byte behind an empty line; in JSON as `data`, or as `data_hex` where it is no text
    #[arg(long)]
    data: bool,

    /// One JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("which").required(true).multiple(true)
    .args(["all", "seq", "id", "event_type", "aggregate", "partition"]))]
struct Resolve {
    #[command(flatten)]
    place: Place,

    #[command(flatten)]
    filter: Filter,

    /// All of them
    #[arg(long, conflicts_with_all = ["seq", "id", "event_type", "aggregate", "partition"])]
    all: bool,

    /// Who decides this; recorded
    #[arg(long, value_name = "NAME", env = "USER", hide_env_values = true)]
    by: String,

    /// Why; recorded
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    /// Yes, also if it is more than one event
    #[arg(long)]
    yes: bool,
}

/// Lists, shows, redrives or discards.
pub(crate) fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    match arguments.verb {
        Verb::List(List { place, filter, json }) => {
            let letters = at(&place.database_url, async |connection| dead::list(connection, &which(&filter)).await)?;
            list(&letters, json, filter.limit.into())
        }
        Verb::Show(arguments) => show(&arguments),
        Verb::Redrive(arguments) => {
            resolve(&arguments, "redriven", async |connection, which, by| dead::redrive(connection, which, by).await)
        }
        Verb::Discard(arguments) => {
            resolve(&arguments, "discarded", async |connection, which, by| dead::discard(connection, which, by).await)
        }
    }
}

fn list(letters: &[Letter], json: bool, limit: usize) -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout().lock();
    for letter in letters {
        if json {
            writeln!(out, "{}", letter_json(letter))?;
        } else {
            writeln!(out, "{}", line(letter))?;
        }
    }
    match letters.last() {
        None if !json => writeln!(out, "nothing is dead")?,
        Some(last) if letters.len() == limit => eprintln!("there may be more: add --after {}", last.seq),
        Some(_) | None => {}
    }
    Ok(())
}

fn show(arguments: &Show) -> Result<(), Box<dyn Error>> {
    let named = match (&arguments.seq, &arguments.id) {
        (Some(seq), _) => Named::Seq(*seq),
        (None, id) => Named::Id(id.clone().unwrap_or_default()),
    };
    let found = at(&arguments.place.database_url, async |connection| {
        let Some(content) = dead::show(connection, &named).await? else { return Ok(None) };
        let data = if arguments.data { dead::data(connection, &named).await? } else { None };
        Ok(Some((content, data)))
    })?;
    let Some((content, data)) = found else {
        return Err(format!("no event {} has died here ({})", of(&named), place(&arguments.place.database_url)).into());
    };
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(out, "{}", content_json(&content, data))?;
        return Ok(());
    }
    for (name, value) in fields(&content) {
        writeln!(out, "{name:<14}{value}")?;
    }
    if let Some(data) = data {
        writeln!(out)?;
        out.write_all(&data)?;
    }
    Ok(())
}

fn resolve(
    arguments: &Resolve,
    verb: &str,
    work: impl AsyncFnOnce(&mut AsyncPgConnection, &Which, &By) -> diesel::QueryResult<Done>,
) -> Result<(), Box<dyn Error>> {
    let (which, filter) = (which(&arguments.filter), &arguments.filter);
    let by = By::name(arguments.by.clone());
    let by = arguments.reason.iter().fold(by, |by, reason| by.why(reason.clone()));
    let done = at(&arguments.place.database_url, async |connection| {
        if !arguments.yes {
            let meant = dead::list(connection, &which).await?.len();
            if meant > 1 {
                return Ok(Err(meant));
            }
        }
        work(connection, &which, &by).await.map(Ok)
    })?;
    let done = done.map_err(|meant| {
        format!("{meant} events are meant; nothing was done. Look at them with `tidings dead list`, and say --yes")
    })?;
    let mut out = std::io::stdout().lock();
    for event in &done.events {
        writeln!(out, "{verb} {} {}", event.seq, event.event_id.escape_debug())?;
    }
    for event in &done.stored_after_all {
        writeln!(out, "stored after all {} {}", event.seq, event.event_id.escape_debug())?;
    }
    if done.events.len() == usize::from(filter.limit) {
        eprintln!("there may be more: run it again");
    }
    if done == Done::default() {
        if !filter.seq.is_empty() || !filter.id.is_empty() {
            return Err(format!(
                "none of the events that were named is dead now ({})",
                place(&arguments.place.database_url)
            )
            .into());
        }
        writeln!(out, "nothing to do: no dead event is meant")?;
    }
    Ok(())
}

/// Works on a connection; an error says where.
pub(super) fn at<T>(
    url: &str,
    work: impl AsyncFnOnce(&mut AsyncPgConnection) -> diesel::QueryResult<T>,
) -> Result<T, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let database = Database::url(url);
    let working = async {
        let mut connection = database.open().await?;
        check_schema(&mut connection, &database).await?;
        Ok(work(&mut connection).await?)
    };
    runtime.block_on(working).map_err(|error: postgres::Error| {
        let remedy = match &error {
            postgres::Error::Connect(_) | postgres::Error::ConnectTimeout | postgres::Error::NoAnswer => {
                "; check the URL, that the server runs, and that it is reachable from here"
            }
            postgres::Error::Query(_)
            | postgres::Error::Schema(_)
            | postgres::Error::PoolExhausted
            | postgres::Error::Restarted
            | postgres::Error::Stopping => "",
        };
        format!("{error} ({}){remedy}", place(url)).into()
    })
}

fn which(filter: &Filter) -> Which {
    let mut which = Which::all().after(filter.after).limit(filter.limit.into());
    which = filter.seq.iter().fold(which, |which, seq| which.seq(*seq));
    which = filter.id.iter().fold(which, |which, id| which.event_id(id.clone()));
    which = filter.event_type.iter().fold(which, |which, r#type| which.event_type(r#type.clone()));
    which = filter.partition.iter().fold(which, |which, partition| which.partition(*partition));
    match filter.aggregate.as_deref().map(|aggregate| aggregate.split_once('/').ok_or(aggregate)) {
        Some(Ok((r#type, id))) => which.aggregate(r#type, id),
        Some(Err(r#type)) => which.aggregate_type(r#type),
        None => which,
    }
}

fn of(named: &Named) -> String {
    match named {
        Named::Seq(seq) => seq.to_string(),
        Named::Id(id) => format!("{id:?}"),
    }
}

/// Names may come from a producer that checks nothing: no control character reaches the terminal.
fn line(letter: &Letter) -> String {
    let Letter { seq, event_id, event_type, died_at, state, reason, .. } = letter;
    let (died_at, plain) =
        (died_at.to_rfc3339_opts(SecondsFormat::Secs, true), |text: &str| text.escape_debug().to_string());
    let (id, event_type, aggregate, reason) =
        (plain(event_id), plain(event_type), plain(&aggregate(letter)), plain(reason));
    format!("{seq}  {died_at}  {state}  {event_type}  {aggregate}  {id}  {reason}")
}

fn aggregate(letter: &Letter) -> String {
    match (&letter.aggregate, letter.version) {
        (Some(aggregate), Some(version)) => format!("{}/{} v{version}", aggregate.r#type, aggregate.id),
        (Some(_) | None, _) => "-".into(),
    }
}

fn fields(content: &Content) -> Vec<(&'static str, String)> {
    let letter = &content.letter;
    let plain = |text: &str| text.escape_debug().to_string();
    let headers = content.headers.iter().map(|(name, length)| format!("{} ({length} bytes)", plain(name)));
    let mut fields = vec![
        ("seq", letter.seq.to_string()),
        ("id", plain(&letter.event_id)),
        ("type", plain(&letter.event_type)),
        ("kind", content.kind.clone()),
        ("recipient", content.recipient.as_deref().map_or("-".into(), plain)),
        ("aggregate", plain(&aggregate(letter))),
        ("partition", letter.partition.to_string()),
        ("state", letter.state.clone()),
        ("reason", plain(&letter.reason)),
        ("attempts", letter.attempts.to_string()),
        ("died", letter.died_at.to_rfc3339_opts(SecondsFormat::Millis, true)),
        ("redriven", format!("{} times", letter.redriven)),
        ("waiting", format!("{}{} behind it", content.waiting, if content.waiting == 1_000 { " or more" } else { "" })),
        ("schema", content.schema_version.to_string()),
        ("content type", plain(&content.content_type)),
        ("data", format!("{} bytes", content.data_bytes)),
        ("headers", headers.collect::<Vec<_>>().join(", ")),
    ];
    if let Some(resolution) = &letter.resolution {
        let by = resolution.by.as_deref().map_or(String::new(), |by| format!(" by {}", plain(by)));
        let why = resolution.why.as_deref().map_or(String::new(), |why| format!(": {}", plain(why)));
        let at = resolution.at.to_rfc3339_opts(SecondsFormat::Millis, true);
        fields.push(("resolved", format!("{at} {}{by}{why}", resolution.how)));
    }
    fields
}

fn letter_json(letter: &Letter) -> serde_json::Value {
    let resolution = letter.resolution.as_ref().map(|resolution| {
        serde_json::json!({
            "how": resolution.how,
            "by": resolution.by,
            "why": resolution.why,
            "at": resolution.at.to_rfc3339_opts(SecondsFormat::Micros, true),
        })
    });
    serde_json::json!({
        "seq": letter.seq,
        "id": letter.event_id,
        "type": letter.event_type,
        "aggregate_type": letter.aggregate.as_ref().map(|aggregate| &aggregate.r#type),
        "aggregate_id": letter.aggregate.as_ref().map(|aggregate| &aggregate.id),
        "version": letter.version,
        "partition": letter.partition,
        "state": letter.state,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "redriven": letter.redriven,
        "died_at": letter.died_at.to_rfc3339_opts(SecondsFormat::Micros, true),
        "resolution": resolution,
    })
}

fn content_json(content: &Content, data: Option<Vec<u8>>) -> serde_json::Value {
    let mut json = letter_json(&content.letter);
    json["kind"] = content.kind.clone().into();
    json["recipient"] = content.recipient.clone().into();
    json["schema_version"] = content.schema_version.into();
    json["content_type"] = content.content_type.clone().into();
    json["data_bytes"] = content.data_bytes.into();
    json["header_bytes"] = serde_json::json!(content.headers);
    json["waiting"] = content.waiting.into();
    match data.map(String::from_utf8) {
        Some(Ok(text)) => json["data"] = text.into(),
        Some(Err(bytes)) => {
            let hex: String = bytes.into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
            json["data_hex"] = hex.into();
        }
        None => {}
    }
    json
}
