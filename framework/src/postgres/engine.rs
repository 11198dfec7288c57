//! The runtime that every connection lives on.

use std::future::Future;
use std::io;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

/// A multi-thread runtime of ours, on which no user code ever runs: a connection lives and dies with the runtime that
/// opened it, and whoever blocks that runtime stops everybody's connections.
#[derive(Debug)]
pub(crate) struct Engine {
    runtime: Option<Runtime>,
}

impl Engine {
    pub(crate) fn new(name: &'static str, threads: usize) -> io::Result<Engine> {
        let runtime = Builder::new_multi_thread().worker_threads(threads).thread_name(name).enable_all().build()?;
        Ok(Engine { runtime: Some(runtime) })
    }

    pub(crate) fn handle(&self) -> Handle {
        self.runtime.as_ref().expect("the runtime is there until the engine is dropped").handle().clone()
    }

    pub(crate) fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.handle().spawn(future)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // A runtime dropped inside another one panics unless it is told not to wait.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
