//! What the integration tests share: waiting for something to become true, and dying at a chosen point.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

pub mod consumer;
pub mod schedules;

/// Asks again and again until the answer is `Some`; panics with `what` after `within`.
pub async fn eventually<T>(what: &str, within: Duration, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(started.elapsed() < within, "not within {within:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Names the variable in which a test tells a child process where to die: `relay::sent@3` is the third time that point
/// is reached. `consumer::commit-sent@1+2000ms` waits first, so that what was handed to a socket goes out.
pub const KILL_AT: &str = "TIDINGS_TEST_KILL_AT";

/// In a child process: arranges to be killed, with SIGKILL by itself, at the point that [`KILL_AT`] names.
///
/// # Panics
/// If the variable cannot be read; a test that does not die as it should must not pass.
pub fn die_as_told() {
    let Ok(told) = std::env::var(KILL_AT) else { return };
    let (point, rest) = told.split_once('@').expect("point@count");
    let (count, wait) = rest.split_once('+').map_or((rest, "0ms"), |(count, wait)| (count, wait));
    let count: u64 = count.parse().expect("a count");
    let wait: Duration =
        wait.strip_suffix("ms").and_then(|ms| ms.parse().ok()).map(Duration::from_millis).expect("…ms");
    let seen = AtomicU64::new(0);
    fail::cfg_callback(point, move || {
        if seen.fetch_add(1, Ordering::SeqCst) + 1 == count {
            std::thread::sleep(wait);
            let _ = kill(Pid::this(), Signal::SIGKILL);
            std::thread::sleep(Duration::from_secs(60));
        }
    })
    .expect("the build has failpoints");
}
