//! `tidings relay`

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::config::{Config, Given, SOURCE, Served};
use crate::host::Error as HostError;
use crate::postgres::Error as DatabaseError;
use crate::services::{DATABASE_URL, NATS_URL};

/// Relay what any program appends, in any language, until SIGTERM or Ctrl-C
///
/// For services that call `tidings.append` in SQL and host no relay of their own. It publishes the events of one database
/// or of several, beside whatever other relays of theirs there are, and watches what waits (docs/operating.md lists the
/// alarms). The schema must be there: see `tidings migrate`.
///
/// One database needs no file:
///
///   TIDINGS_DATABASE_URL=postgres://… TIDINGS_NATS_URL=nats://… tidings relay --source shop.orders
///
/// Several, or other settings than the defaults, stand in a file (docs/operating.md lists all keys):
///
///   [[database]]
///   source = "shop.orders"
///   url_env = "ORDERS_DATABASE_URL"      # the variable that holds the URL, so that no password is in the file
///   nats.url_env = "ORDERS_NATS_URL"
///   relay.lease = "15s"
///   alarms.oldest_pending = "1m"
///
/// A database or a broker that does not answer is waited for. At the first signal it takes no more, finishes what is in
/// hand and gives its leases up; a second signal ends it at once, which loses nothing but time.
///
/// It logs to standard error what RUST_LOG says [default: warn,tidings=info].
///
/// Exit codes: 0 ended by a signal and drained; 1 failed, and the log says why; 2 wrong arguments.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Arguments {
    /// The configuration, a TOML file.
    #[arg(long, value_name = "FILE", env = "TIDINGS_CONFIG")]
    config: Option<PathBuf>,

    /// Say what is wrong with the configuration, or what it amounts to, and do nothing. Nothing is connected to.
    #[arg(long)]
    check: bool,

    /// Without a file: the CloudEvents source of the database, the same for ever, such as shop.orders.
    #[arg(long, value_name = "SOURCE", env = SOURCE)]
    source: Option<String>,

    /// The database, postgres://user:password@host:port/name; with a file, of the entry that names none. The variable keeps
    /// the password out of the process list.
    #[arg(long, value_name = "URL", env = DATABASE_URL, hide_env_values = true)]
    database_url: Option<String>,

    /// The broker, nats://user:password@host:port, several of one cluster separated by commas; with a file, of the entries
    /// that name none.
    #[arg(long, value_name = "URL", env = NATS_URL, hide_env_values = true)]
    nats_url: Option<String>,

    /// How long a drain may take, such as 20s, whatever the file says [default: 20s].
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    drain: Option<Duration>,
}

/// Reads the configuration, relays, and drains.
pub(crate) fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let given = Given { database_url: arguments.database_url, nats_url: arguments.nats_url, source: arguments.source };
    let mut config = match &arguments.config {
        Some(_) if given.source.is_some() => {
            return Err(format!("--source (or {SOURCE}) is for one database without a file: with --config, `source` stands in each `[[database]]`").into());
        }
        Some(path) => Config::file(path, &given)?,
        None => Config::of_one(&given)?,
    };
    config.drain = arguments.drain.unwrap_or(config.drain);
    if arguments.check {
        println!("the configuration is right; drain {}", humantime::format_duration(config.drain));
        for served in &config.databases {
            println!("{}", amounts_to(served));
        }
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // Taken before anything starts, so that a signal meanwhile is not the end of the process.
        let signals = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
        serve_all(config, signals).await.map_err(Into::into)
    })
}

/// What holds for a database, without its secrets.
fn amounts_to(served: &Served) -> String {
    let Served { source, database, jetstream, relay, alarms, threads, database_place, nats_place } = served;
    format!(
        "{source}: {database_place}, NATS at {nats_place}, threads {threads}\n  {database:?}\n  {jetstream:?}\n  {relay:?}\n  {alarms:?}"
    )
}

/// All databases beside each other. One that cannot go on ends the process, after the others have drained: whoever
/// supervises it starts it again.
async fn serve_all(config: Config, mut signals: [Signal; 2]) -> Result<(), String> {
    let (end, ending) = watch::channel(false);
    let mut serving: FuturesUnordered<_> =
        config.databases.iter().map(|served| serve(served, ending.clone(), config.drain)).collect();
    let mut wrong = Vec::new();
    loop {
        let [terminate, interrupt] = &mut signals;
        tokio::select! {
            ended = serving.next() => match ended {
                None => break,
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    // Said at once: the drains of the others may take their time.
                    tracing::error!("{error}");
                    wrong.push(error);
                    end.send_replace(true);
                }
            },
            () = async { tokio::select! { _ = terminate.recv() => {} _ = interrupt.recv() => {} } } => {
                if *end.borrow() {
                    return Err("a second signal: ended at once, before the drain was through; what was in hand is done again by others".into());
                }
                tracing::info!(deadline = %humantime::format_duration(config.drain), "draining");
                end.send_replace(true);
            }
        }
    }
    if wrong.is_empty() {
        tracing::info!("drained");
        return Ok(());
    }
    Err(wrong.join("\n"))
}

async fn serve(served: &Served, mut ending: watch::Receiver<bool>, drain: Duration) -> Result<(), String> {
    let source = served.source.as_str();
    let told = |error: HostError| format!("{source}: {error} ({})", served.database_place);
    tracing::info!(source, "starting: {}", amounts_to(served));
    let mut ended = ending.clone();
    let running = tokio::select! {
        running = start(served) => running.map_err(told)?,
        _ = ended.wait_for(|ended| *ended) => return Ok(()),
    };
    tracing::info!(source, database = served.database_place, nats = served.nats_place, "relaying");
    let signal = async move {
        let _ = ending.wait_for(|ended| *ended).await;
    };
    running.drain_on(signal, drain).await.map_err(told)
}

/// A database that is not there is waited for, whatever the time: the others are served meanwhile.
async fn start(served: &Served) -> Result<crate::host::Running, HostError> {
    loop {
        match served.tidings().start().await {
            Err(HostError::Database(
                error @ (DatabaseError::Connect(_) | DatabaseError::ConnectTimeout | DatabaseError::NoAnswer),
            )) => {
                tracing::error!(source = served.source, %error, place = served.database_place, "the database is not there; still waiting");
            }
            other => return other,
        }
    }
}
