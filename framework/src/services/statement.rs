//! One SQL statement, from anywhere: inside a runtime, outside, on a thread of its own.

use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};

/// Executes a statement on a connection of its own.
pub(super) fn execute(url: String, sql: String) -> Result<(), String> {
    // A thread of its own, because a runtime must not be blocked on inside another.
    let worker = std::thread::Builder::new().name("tidings-services-sql".to_owned()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
        runtime.block_on(async {
            let mut connection = AsyncPgConnection::establish(&url).await.map_err(|e| e.to_string())?;
            diesel::sql_query(sql).execute(&mut connection).await.map_err(|e| e.to_string())?;
            Ok(())
        })
    });
    worker.map_err(|e| e.to_string())?.join().unwrap_or_else(|_| Err("the thread that asked it panicked".to_owned()))
}
