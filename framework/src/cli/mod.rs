//! The `tidings` program.

mod adopt;
mod config;
mod dead;
mod migrate;
mod partitions;
mod pause;
mod relay;
mod republish;
mod services;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// The transactional outbox and the idempotent inbox on PostgreSQL and NATS JetStream.
#[derive(Debug, Parser)]
#[command(name = "tidings", version, arg_required_else_help = true)]
struct Program {
    #[command(subcommand)]
    command: Command,
}

// Each subcommand is a file of its own beside this one, with an `Arguments` and a `run`.
#[derive(Debug, Subcommand)]
enum Command {
    // The help of each is that of its arguments, which a comment here would replace.
    Adopt(adopt::Arguments),
    Dead(dead::Arguments),
    Migrate(migrate::Arguments),
    Partitions(partitions::Arguments),
    Pause(pause::Pause),
    Resume(pause::Resume),
    Relay(relay::Arguments),
    Republish(republish::Arguments),
    Services(services::Arguments),
}

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
    main_with(std::env::args_os())
}

/// Runs the program with these arguments, the first of which is its own name.
///
/// Answers with 0 when all went well, 1 after an error, which is printed to standard error, 2 when the arguments are
/// wrong.
pub fn main_with(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let program = match Program::try_parse_from(arguments) {
        Ok(program) => program,
        Err(error) => {
            // Nothing can be done about a closed standard error.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
        }
    };
    let shown = if matches!(program.command, Command::Relay(_)) { "warn,tidings=info" } else { "warn" };
    log_to_stderr(shown);
    let result = match program.command {
        Command::Adopt(arguments) => adopt::run(arguments),
        Command::Dead(arguments) => dead::run(arguments),
        Command::Migrate(arguments) => migrate::run(arguments),
        Command::Partitions(arguments) => partitions::run(arguments),
        Command::Pause(arguments) => pause::pause(arguments),
        Command::Resume(arguments) => pause::resume(arguments),
        Command::Relay(arguments) => relay::run(arguments),
        Command::Republish(arguments) => republish::run(arguments),
        Command::Services(arguments) => services::run(arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidings: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What `RUST_LOG` says, else this. A subscriber that is there already stays.
fn log_to_stderr(otherwise: &str) {
    let filter = match std::env::var(EnvFilter::DEFAULT_ENV) {
        Ok(said) if !said.is_empty() => EnvFilter::new(said),
        Ok(_) | Err(_) => EnvFilter::new(otherwise),
    };
    let colours = std::io::stderr().is_terminal();
    let _ =
        tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr).try_init();
}
