//! Step 7: tell the broker, after the commit and never before (invariant 6).

use crate::broker::{Delivery, Settlement};
use crate::failpoint::failpoint;

/// Settles a delivery. A failure is only noted: the broker delivers again, and the inbox decides.
pub(super) async fn settle(delivery: &Delivery, settlement: Settlement) {
    failpoint!("consumer::settling");
    if let Err(error) = delivery.settle.settle(settlement).await {
        tracing::debug!(stream = delivery.stream, sequence = delivery.stream_seq, %error, "not settled; it will be delivered again");
    }
}
