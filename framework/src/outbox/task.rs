//! A step that runs by itself, and no longer than whoever waits for it.

use std::future::Future;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// A spawned step. Dropping it ends it; a panic in it is one of whoever waits for it.
pub(super) struct Task<T>(JoinHandle<T>);

impl<T: Send + 'static> Task<T> {
    pub(super) fn spawn(step: impl Future<Output = T> + Send + 'static) -> Task<T> {
        Task(tokio::spawn(step))
    }

    pub(super) fn spawn_on(runtime: &Handle, step: impl Future<Output = T> + Send + 'static) -> Task<T> {
        Task(runtime.spawn(step))
    }

    /// Its value; `None` when the runtime is ending.
    pub(super) async fn join(&mut self) -> Option<T> {
        match (&mut self.0).await {
            Ok(value) => Some(value),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => None,
            },
        }
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
