use serde::{Deserialize, Serialize};
use tidings::{Consumer, Event, Handle, HandlerError, Received, Tx};

#[derive(Event, Serialize, Deserialize)]
#[event(type = "exports.completed")]
struct ExportCompleted;

#[derive(Consumer)]
#[consumer(name = "statistics", source = "academy.exports", events(ExportCompleted), retry(delay = "0s..5m"))]
struct Statistics;

impl Handle<ExportCompleted> for Statistics {
    async fn handle(&self, _: Received<ExportCompleted>, _: &mut Tx<'_>) -> Result<(), HandlerError> {
        Ok(())
    }
}

fn main() {}
