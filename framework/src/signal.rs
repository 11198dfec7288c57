//! The signals that ask a process to end.

/// Resolves at SIGTERM or SIGINT (Ctrl-C); call it on a tokio runtime, which actix systems are too.
///
/// ```no_run
/// # async fn example(running: tidings::Running) -> Result<(), tidings::host::Error> {
/// use std::time::Duration;
///
/// running.drain_on(tidings::signal::terminate(), Duration::from_secs(20)).await
/// # }
/// ```
pub async fn terminate() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = terminate.recv() => return,
                _ = tokio::signal::ctrl_c() => return,
            }
        }
    }
    let _ = tokio::signal::ctrl_c().await;
}
