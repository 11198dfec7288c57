//! Exports of an academy: an HTTP API takes requests, a worker writes files, two listeners hear of it.
//!
//! `cargo run --bin export` runs fifty exports while the relay is killed twice, and counts; `-- --serve` keeps the API
//! up. Read `messages.rs`, `api.rs`, `worker.rs` and `listeners.rs` first: they are the service. This file puts it
//! together; `run.rs` is the demonstration, `account.rs` its end.

mod account;
mod api;
mod listeners;
mod messages;
mod run;
mod tables;
mod worker;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use stage::Error;
use tempfile::TempDir;
use tidings::services::{Provided, from_env_or_start};
use tidings::{Database, JetStream, Relay, Tidings};

use listeners::{Search, Statistics};
use messages::SOURCE;
use worker::ExportWorker;

/// Exports of an academy: fifty of them through the HTTP API, with the relay killed twice, and an account at the end.
///
/// PostgreSQL and NATS are those that TIDINGS_DATABASE_URL and TIDINGS_NATS_URL name; where one is not set, a private
/// server is started and ended.
#[derive(Debug, Parser)]
#[command(name = "export", args_conflicts_with_subcommands = true)]
struct Arguments {
    /// Keep the API up until Ctrl-C instead
    #[arg(long)]
    serve: bool,
    /// Where the exported files go [default: a temporary folder, removed at the end]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Debug, clap::Subcommand)]
enum Role {
    /// The relay alone, as the demonstration starts it
    #[command(hide = true)]
    Relay(stage::relay::Arguments),
}

#[actix_web::main]
async fn main() -> ExitCode {
    stage::log_to_stderr();
    let arguments = Arguments::parse();
    let ended = match arguments.role {
        Some(Role::Relay(relay)) => stage::relay::run(SOURCE, JetStream::url, relay).await,
        None => with_services(arguments.serve, arguments.out).await,
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("export: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn with_services(serving: bool, out: Option<PathBuf>) -> Result<(), Error> {
    let services = from_env_or_start()?;
    let folder = Folder::of(out)?;
    tidings::migrate(&Database::url(services.database_url())).await?;
    stage::tables::make(&services.database_url(), tables::MIGRATION).await?;
    if serving {
        return serve(&services, folder.path()).await;
    }
    tokio::select! {
        ended = run::run(&services, folder.path()) => ended,
        () = tidings::signal::terminate() => Err("interrupted".into()),
    }
}

/// The whole service in one process: API, relay and consumers.
async fn serve(services: &Provided, folder: &Path) -> Result<(), Error> {
    let running = consumers(services, folder).source(SOURCE).relay(Relay::default()).start().await?;
    let (server, address) = api::listen(&services.database_url())?;
    let api = server.handle();
    let serving = actix_web::rt::spawn(server);
    println!("the API listens on http://{address} until Ctrl-C; files go to {}", folder.display());
    println!("try:");
    println!("  curl -i http://{address}/exports -H 'Idempotency-Key: export-intent-7' \\");
    println!("       -H 'Content-Type: application/json' -d '{BODY}'");
    println!("  curl -i http://{address}/exports/<the id in the answer>");

    let asked = async {
        tidings::signal::terminate().await;
        // First nobody asks for anything more, then what is in hand is finished.
        api.stop(true).await;
    };
    running.drain_on(asked, Duration::from_secs(20)).await?;
    serving.await??;
    Ok(())
}

/// Everything but the relay.
fn consumers(services: &Provided, folder: &Path) -> Tidings {
    Tidings::new(Database::url(services.database_url()), JetStream::url(services.nats_url()))
        .consumer(ExportWorker { folder: folder.to_owned() })
        .consumer(Statistics)
        .consumer(Search)
}

/// Where the files go.
enum Folder {
    Named(PathBuf),
    Temporary(TempDir),
}

impl Folder {
    fn of(out: Option<PathBuf>) -> std::io::Result<Folder> {
        match out {
            Some(path) => std::fs::create_dir_all(&path).map(|()| Folder::Named(path)),
            None => tempfile::tempdir().map(Folder::Temporary),
        }
    }

    fn path(&self) -> &Path {
        match self {
            Folder::Named(path) => path,
            Folder::Temporary(folder) => folder.path(),
        }
    }
}

const BODY: &str = r#"{"tenant": "academy", "dataset": "courses", "rows": 7}"#;
