//! The worker: handles the command, and says that it is done.

use std::io::Write;
use std::path::{Path, PathBuf};

use diesel::prelude::*;
use diesel_async::RunQueryDsl;
use tidings::{Consumer, Handle, HandlerError, Received, Tx};

use crate::messages::{ExportCompleted, StartExport};
use crate::tables::job;

/// Writes the files. It is the one consumer that `StartExport` goes to.
#[derive(Consumer)]
#[consumer(name = "export-worker", source = "academy.exports", commands(StartExport), timeout = "10s")]
pub(crate) struct ExportWorker {
    /// Where to.
    pub(crate) folder: PathBuf,
}

impl Handle<StartExport> for ExportWorker {
    async fn handle(&self, command: Received<StartExport>, tx: &mut Tx<'_>) -> Result<(), HandlerError> {
        let StartExport { job_id, tenant, dataset, rows } = command.event;

        // The file is outside the transaction: after a crash before the commit it is written once more, with the same
        // name and the same content, and nobody was told of the first one. That is enough here, where all depends on the
        // command alone. It is not where attempts differ, or where a file nobody knows of costs something.
        let (folder, file, title) = (self.folder.clone(), format!("{job_id}.csv"), dataset.clone());
        let name = file.clone();
        tokio::task::spawn_blocking(move || write(&folder, &name, &title, rows)).await??;

        // State and event are inside: both commit with the inbox row of this command, or none does.
        let succeeded = diesel::update(job::table.find(&job_id))
            .set((job::state.eq("succeeded"), job::file.eq(&file), job::completed_at.eq(diesel::dsl::now)))
            .execute(tx.conn())
            .await?;
        if succeeded == 0 {
            return Err(HandlerError::permanent(format!("there is no job {job_id}")));
        }
        tx.append(&ExportCompleted { job_id, tenant, dataset, file, rows }).await?;
        Ok(())
    }
}

/// Writes under a new name and renames: under the final name there is never half a file.
fn write(folder: &Path, name: &str, dataset: &str, rows: i32) -> std::io::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    let lines = (1..=rows).map(|row| format!("{row},{dataset} {row}\n"));
    file.write_all(std::iter::once("number,title\n".to_owned()).chain(lines).collect::<String>().as_bytes())?;
    file.persist(folder.join(name))?;
    Ok(())
}
