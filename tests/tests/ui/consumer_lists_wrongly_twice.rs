use serde::{Deserialize, Serialize};
use tidings::{Command, Consumer, Event, Handle, HandlerError, Received, Tx};

#[derive(Event, Serialize, Deserialize)]
#[event(type = "exports.completed")]
struct ExportCompleted;

#[derive(Event, Serialize, Deserialize)]
#[event(type = "exports.completed", version = 2)]
struct ExportCompletedV2;

#[derive(Command, Serialize, Deserialize)]
#[command(type = "exports.start", to = "export-worker")]
struct StartExport;

#[derive(Consumer)]
#[consumer(name = "statistics", source = "academy.exports", events(ExportCompleted, StartExport), commands(ExportCompletedV2))]
struct Statistics;

impl<E: Event> Handle<E> for Statistics {
    async fn handle(&self, _: Received<E>, _: &mut Tx<'_>) -> Result<(), HandlerError> {
        Ok(())
    }
}

fn main() {}
