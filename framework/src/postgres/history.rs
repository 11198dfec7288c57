//! Whether the database is still the one it was.

use std::sync::{Mutex, MutexGuard};

use diesel::sql_types::Text;
use diesel_async::{AsyncPgConnection, RunQueryDsl};

use super::statement::statement;

/// Which life of which database the connections are to. A failover, a restored backup, a restart: each may have lost what
/// was committed last, so whoever remembers something of the database starts anew.
#[derive(Default)]
pub(super) struct History(Mutex<Life>);

#[derive(Default)]
struct Life {
    identity: Option<String>,
    changes: u64,
}

impl History {
    /// A connection was opened: compares what it leads to.
    pub(super) async fn opened(&self, connection: &mut AsyncPgConnection) -> diesel::QueryResult<()> {
        let identity: String = RunQueryDsl::get_result(Identity {}, connection).await?;
        let mut life = self.lock();
        if life.identity.as_ref().is_some_and(|before| *before != identity) {
            tracing::warn!("PostgreSQL was started anew, or is another server now");
            life.changes += 1;
        }
        life.identity = Some(identity);
        Ok(())
    }

    /// How often it was another one.
    pub(super) fn changes(&self) -> u64 {
        self.lock().changes
    }

    fn lock(&self) -> MutexGuard<'_, Life> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

statement! {
    /// The cluster, its timeline (which changes at each promotion), and when its server was started. A standby has no such
    /// place in its log, and nothing can be done on it.
    struct Identity {} -> Text;
    "SELECT concat_ws(' ', (SELECT system_identifier FROM pg_control_system()),
                      substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8), pg_postmaster_start_time())"
}
