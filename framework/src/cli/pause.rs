//! `tidings pause` and `tidings resume`

use std::error::Error;
use std::io::Write;

use super::migrate::explain;
use crate::operate;
use crate::postgres::Database;
use crate::services::DATABASE_URL;

/// Pause the relays of a database: events are still appended, and none is published
///
/// Within a heartbeat every relay of the database, in whatever process, finishes what it has in hand and gives its
/// partitions up. The pause outlives all processes: it ends by `tidings resume relay`.
#[derive(Debug, clap::Args)]
pub(super) struct Pause {
    #[command(subcommand)]
    what: WhatToPause,
}

#[derive(Debug, clap::Subcommand)]
enum WhatToPause {
    /// All relays of the database
    Relay(PauseRelay),
}

#[derive(Debug, clap::Args)]
struct PauseRelay {
    /// The database, postgres://user:password@host:port/name. The variable keeps the password out of the process list.
    #[arg(long, value_name = "URL", env = DATABASE_URL, hide_env_values = true)]
    database_url: String,

    /// Who pauses; it is shown wherever the pause is.
    #[arg(long, value_name = "NAME", env = "USER", default_value = "unknown")]
    by: String,

    /// Why; it is shown wherever the pause is.
    #[arg(long, value_name = "TEXT", default_value = "no reason given")]
    reason: String,
}

/// Resume the relays of a database after `tidings pause relay`
#[derive(Debug, clap::Args)]
pub(super) struct Resume {
    #[command(subcommand)]
    what: WhatToResume,
}

#[derive(Debug, clap::Subcommand)]
enum WhatToResume {
    /// All relays of the database
    Relay(ResumeRelay),
}

#[derive(Debug, clap::Args)]
struct ResumeRelay {
    /// The database, postgres://user:password@host:port/name. The variable keeps the password out of the process list.
    #[arg(long, value_name = "URL", env = DATABASE_URL, hide_env_values = true)]
    database_url: String,
}

pub(super) fn pause(arguments: Pause) -> Result<(), Box<dyn Error>> {
    let WhatToPause::Relay(PauseRelay { database_url, by, reason }) = arguments.what;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let database = Database::url(&database_url);
    let pausing = operate::pause_relay(&database, &by, &reason);
    let pause = runtime.block_on(pausing).map_err(|error| explain(error, &database_url))?;
    let out = &mut std::io::stdout();
    Ok(writeln!(out, "the relay is paused since {} by {}: {}", pause.at, pause.by, pause.reason)?)
}

pub(super) fn resume(arguments: Resume) -> Result<(), Box<dyn Error>> {
    let WhatToResume::Relay(ResumeRelay { database_url }) = arguments.what;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let database = Database::url(&database_url);
    let ended = runtime.block_on(operate::resume_relay(&database)).map_err(|error| explain(error, &database_url))?;
    let out = &mut std::io::stdout();
    match ended {
        Some(pause) => writeln!(out, "resumed; it was paused since {} by {}: {}", pause.at, pause.by, pause.reason)?,
        None => writeln!(out, "nothing to do: the relay is not paused")?,
    }
    Ok(())
}
