//! The measurements: every figure of the documentation is printed by this program.
//!
//! `cargo run --release -p tidings-benches -- relay` starts its own PostgreSQL and nats-server, and measures the relay
//! beside the bare loop (`bare.rs`) on the same servers, with the same messages.

mod bare;
mod ground;
mod relay;
mod report;
mod usage;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(about = "Measures Tidings beside a bare loop, on servers of its own")]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// The producer's side: append, and the relay.
    Relay(relay::Options),
    /// A relay in a process of its own, for what is measured of its memory.
    #[command(hide = true)]
    RelayProcess,
}

#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let ended = match Arguments::parse().what {
        What::Relay(options) => relay::run(options).await,
        What::RelayProcess => relay::memory::process().await,
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the measurement failed: {error}");
            ExitCode::FAILURE
        }
    }
}
