//! A process that only relays, for the tests that kill, freeze and starve one.
//!
//! It is told by its environment what to do; `tests/it/relay/node.rs` sets it.

use std::process::ExitCode;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tidings::{Database, JetStream, Relay, Tidings};
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
pub(crate) async fn main() -> ExitCode {
    tidings_tests::die_as_told();
    stop_as_told();
    panic_as_told();
    break_as_told();
    let filter = std::env::var("TIDINGS_TEST_LOG").unwrap_or_else(|_| "tidings=info".to_owned());
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(std::io::stderr).init();
    match run().await {
        Ok(()) => {
            println!("drained");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("failed: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), tidings::host::Error> {
    // Taken before anything is said, so that a signal that follows it is not the end of the process.
    let mut terminate = signal(SignalKind::terminate()).expect("a signal can be taken");
    let database = Database::url(text("DATABASE"))
        .statement_timeout(millis("STATEMENT", 5_000))
        .connect_timeout(Duration::from_secs(2));
    let jetstream = JetStream::url(text("NATS"))
        .ack_timeout(millis("ACK", 2_000))
        .replicas(number("REPLICAS", 1))
        .atomic_batches(number("BATCHES", 0) == 1)
        .duplicate_window(millis("DUPLICATE_WINDOW", 120_000));
    let relay = Relay::default()
        .lease(millis("LEASE", 3_000))
        .window(number("WINDOW", 1_000))
        .in_flight(number("IN_FLIGHT", 256))
        .connections(number("CONNECTIONS", 4))
        .backoff(millis("BACKOFF_MIN", 50), millis("BACKOFF_MAX", 60_000));
    let skip = std::env::var("TIDINGS_TEST_SKIP").ok();
    let relay = skip.into_iter().fold(relay, Relay::skip_dead);
    let running = Tidings::new(database, jetstream).source(text("SOURCE")).relay(relay).start().await?;
    println!("started");
    running.drain_on(async move { terminate.recv().await.unwrap_or_default() }, millis("DEADLINE", 20_000)).await
}

/// Stands still, as by SIGSTOP from outside, the first time a point is reached.
fn stop_as_told() {
    let Ok(point) = std::env::var("TIDINGS_TEST_STOP_AT") else { return };
    let stopped = std::sync::Once::new();
    let stop = move || {
        stopped.call_once(|| {
            kill(Pid::this(), Signal::SIGSTOP).expect("a process may stop itself");
            // The signal goes to the process: this thread runs on until another one has taken it.
            std::thread::sleep(Duration::from_millis(300));
        });
    };
    fail::cfg_callback(point, stop).expect("the build has failpoints");
}

/// Panics the first time a point is reached.
fn panic_as_told() {
    let Ok(point) = std::env::var("TIDINGS_TEST_PANIC_AT") else { return };
    fail::cfg(point, "1*panic").expect("the build has failpoints");
}

/// Leaves out the check that is named so.
fn break_as_told() {
    let Ok(point) = std::env::var("TIDINGS_TEST_BREAK") else { return };
    fail::cfg(point, "return").expect("the build has failpoints");
}

fn text(name: &str) -> String {
    std::env::var(format!("TIDINGS_TEST_{name}")).unwrap_or_else(|_| panic!("TIDINGS_TEST_{name} is set"))
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(format!("TIDINGS_TEST_{name}")).map_or(default, |number| number.parse().expect("a number"))
}

fn millis(name: &str, default: u64) -> Duration {
    let millis = std::env::var(format!("TIDINGS_TEST_{name}")).map_or(default, |ms| ms.parse().expect("milliseconds"));
    Duration::from_millis(millis)
}
