//! A process that consumes, for the tests of the consumer's side to kill, to end and to run under each host.
//!
//! `DATABASE_URL`, `NATS_URL`; `BY` is written beside each effect; `HOST` is the runtime; `RELAY` runs one too;
//! `CONCURRENCY`, `ACK_WAIT_MS` and `SLEEP_MS` (in the handler, after the effect) are numbers. It says `started`, and
//! drains at SIGTERM.

use std::process::ExitCode;
use std::time::Duration;

use futures_util::FutureExt;
use tidings::consumer::Options;
use tidings::{Database, JetStream, Received, Relay, Tidings};
use tidings_tests::consumer::{SOURCE, Said, alpha, hear, options};

fn main() -> ExitCode {
    tidings_tests::die_as_told();
    let filter = tracing_subscriber::EnvFilter::new("tidings=info");
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    match text("HOST").as_deref() {
        Some("actix") => under_actix(),
        Some("actix-web") => under_actix_web(),
        Some("tokio current") => under_tokio_current(),
        _ => under_tokio(),
    }
}

#[actix::main]
async fn under_actix() -> ExitCode {
    run().await
}

#[actix_web::main]
async fn under_actix_web() -> ExitCode {
    run().await
}

#[tokio::main]
async fn under_tokio() -> ExitCode {
    run().await
}

#[tokio::main(flavor = "current_thread")]
async fn under_tokio_current() -> ExitCode {
    run().await
}

async fn run() -> ExitCode {
    let by = text("BY").unwrap_or_else(|| "node".into());
    let sleep = Duration::from_millis(number("SLEEP_MS").unwrap_or(0));
    let consumer = alpha(move |event: Received<Said>, tx| {
        let by = by.clone();
        async move {
            hear(tx, event.n, &by).await?;
            tokio::time::sleep(sleep).await;
            Ok(())
        }
        .boxed()
    });
    let defaults = options();
    let options = Options {
        concurrency: number("CONCURRENCY").map_or(defaults.concurrency, |n| n as usize),
        ack_wait: number("ACK_WAIT_MS").map_or(defaults.ack_wait, Duration::from_millis),
        ..defaults
    };
    let database = Database::url(text("DATABASE_URL").expect("DATABASE_URL"));
    let mut tidings = Tidings::new(database, JetStream::url(text("NATS_URL").expect("NATS_URL")))
        .source(SOURCE)
        .consumer_with(consumer, options);
    if text("RELAY").is_some() {
        tidings = tidings.relay(Relay::default());
    }
    let running = match tidings.start().await {
        Ok(running) => running,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    println!("started");
    match running.drain_on(tidings::signal::terminate(), Duration::from_secs(30)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn text(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn number(name: &str) -> Option<u64> {
    text(name).map(|text| text.parse().expect("a number"))
}
