//! A hint to look, inside one process. Losing one loses only time (invariant 13).

use std::sync::LazyLock;

use tokio::sync::watch;

static WAKE: LazyLock<watch::Sender<u64>> = LazyLock::new(|| watch::Sender::new(0));

/// Tells every relay in this process to look now. [`transaction`](crate::transaction()) does it after each commit that
/// appended; call it yourself after a commit that was joined.
pub fn all() {
    WAKE.send_modify(|count| *count = count.wrapping_add(1));
}

pub(crate) fn subscribe() -> watch::Receiver<u64> {
    WAKE.subscribe()
}
