//! Two consumers of the same event. Neither knows of the other; each applies it once.

use diesel::prelude::*;
use diesel_async::RunQueryDsl;
use tidings::{Consumer, Handle, HandlerError, Received, Tx};

use crate::messages::ExportCompleted;
use crate::tables::{search_entry, statistics};

/// Counts. Plain `+ 1`: that it happens once is the inbox's business.
#[derive(Consumer)]
#[consumer(name = "statistics", source = "academy.exports", events(ExportCompleted))]
pub(crate) struct Statistics;

impl Handle<ExportCompleted> for Statistics {
    async fn handle(&self, event: Received<ExportCompleted>, tx: &mut Tx<'_>) -> Result<(), HandlerError> {
        let rows = i64::from(event.rows);
        diesel::insert_into(statistics::table)
            .values((statistics::tenant.eq(&event.tenant), statistics::exports.eq(1), statistics::rows.eq(rows)))
            .on_conflict(statistics::tenant)
            .do_update()
            .set((statistics::exports.eq(statistics::exports + 1), statistics::rows.eq(statistics::rows + rows)))
            .execute(tx.conn())
            .await?;
        Ok(())
    }
}

/// Makes the file findable.
#[derive(Consumer)]
#[consumer(name = "search", source = "academy.exports", events(ExportCompleted))]
pub(crate) struct Search;

impl Handle<ExportCompleted> for Search {
    async fn handle(&self, event: Received<ExportCompleted>, tx: &mut Tx<'_>) -> Result<(), HandlerError> {
        diesel::insert_into(search_entry::table)
            .values((
                search_entry::tenant.eq(&event.tenant),
                search_entry::job_id.eq(&event.job_id),
                search_entry::title.eq(format!("{}, {} rows", event.dataset, event.rows)),
                search_entry::file.eq(&event.file),
            ))
            .execute(tx.conn())
            .await?;
        Ok(())
    }
}
