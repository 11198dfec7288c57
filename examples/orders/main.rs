//! A shop: orders are taken, an inventory decides about them, notifications tell the customers.
//!
//! `cargo run --bin orders` takes forty orders while the relay is killed, and counts. Read `messages.rs`, `shop.rs`,
//! `inventory.rs` and `notification.rs` first: they are the service. This file puts it together; `run.rs` is the
//! demonstration.

mod inventory;
mod messages;
mod notification;
mod run;
mod shop;
mod tables;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use stage::Error;
use tidings::services::{Provided, from_env_or_start};
use tidings::{Database, JetStream, Tidings};

use inventory::Inventory;
use messages::SOURCE;
use notification::Notification;

/// A shop: forty orders, with the relay killed once, and an account at the end.
///
/// PostgreSQL and NATS are those that TIDINGS_DATABASE_URL and TIDINGS_NATS_URL name; where one is not set, a private
/// server is started and ended.
#[derive(Debug, Parser)]
#[command(name = "orders")]
struct Arguments {
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Debug, clap::Subcommand)]
enum Role {
    /// The relay alone, as the demonstration starts it
    #[command(hide = true)]
    Relay(stage::relay::Arguments),
}

#[actix::main]
async fn main() -> ExitCode {
    stage::log_to_stderr();
    let ended = match Arguments::parse().role {
        Some(Role::Relay(relay)) => stage::relay::run(SOURCE, jetstream, relay).await,
        None => with_services().await,
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("orders: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn with_services() -> Result<(), Error> {
    let services = from_env_or_start()?;
    tidings::migrate(&Database::url(services.database_url())).await?;
    stage::tables::make(&services.database_url(), tables::MIGRATION).await?;
    tokio::select! {
        ended = run::run(&services) => ended,
        () = tidings::signal::terminate() => Err("interrupted".into()),
    }
}

/// A broker that remembers the ids of messages for the shortest time a server allows, to show that nothing leans on it. A
/// service leaves the window as it is.
fn jetstream(url: String) -> JetStream {
    JetStream::url(url).duplicate_window(Duration::from_millis(100))
}

/// Everything but the relay. A service that kills nothing has it in the same process:
/// `.source(SOURCE).relay(Relay::default())`.
fn consumers(services: &Provided) -> Tidings {
    Tidings::new(Database::url(services.database_url()), jetstream(services.nats_url()))
        .consumer(Inventory)
        .consumer(Notification)
}
