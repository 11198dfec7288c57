//! What the two examples have in common, and a service has not: relay processes that die on cue, a journal that
//! survives them, and the account at the end. To learn how a service is written, read `export/` and `orders/` first.

pub mod account;
pub mod crash;
pub mod journal;
pub mod relay;
pub mod streams;
pub mod tables;

/// Anything that ends an example early.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Warnings and errors go to stderr, nothing else unless `RUST_LOG` says so; stdout is for the story.
pub fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}
