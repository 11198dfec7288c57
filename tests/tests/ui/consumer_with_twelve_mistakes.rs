use serde::{Deserialize, Serialize};
use tidings::{Consumer, Event, Handle, HandlerError, Received, Tx};

#[derive(Event, Serialize, Deserialize)]
#[event(type = "exports.completed")]
struct ExportCompleted;

#[derive(Consumer)]
#[consumer(
    nam = "statistics",
    source = "academy exports",
    source = "academy.exports",
    events("ExportCompleted", ExportCompleted, ExportCompleted),
    retry(attempts = 0, delay = "5m..200ms", backoff = 2),
    timeout = "soon",
    concurrency = "16",
    isolation = "chaos",
    ordered,
)]
struct Statistics;

impl Handle<ExportCompleted> for Statistics {
    async fn handle(&self, _: Received<ExportCompleted>, _: &mut Tx<'_>) -> Result<(), HandlerError> {
        Ok(())
    }
}

/// The mistakes above are all there is to say: it is a consumer.
fn is_a_consumer() -> impl Consumer {
    Statistics
}

fn main() {}
