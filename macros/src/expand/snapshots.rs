//! The expansions, to be read: `snapshots/` is the documentation of what the derives write.

use proc_macro2::TokenStream;
use syn::{DeriveInput, parse_quote};

use crate::diagnostics::Diagnostics;
use crate::{check, expand, fallback, model};

/// Beside the expansion stands what it was made of.
macro_rules! snapshot {
    ($derive:ident, {$($item:tt)*}) => {
        let item: DeriveInput = parse_quote!($($item)*);
        let written = prettyplease::unparse(&parse_quote!($($item)*));
        insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true, description => written }, {
            insta::assert_snapshot!($derive(item));
        });
    };
}

#[test]
fn an_event_of_an_aggregate() {
    snapshot!(event, {
        #[event(type = "exports.completed", version = 2, aggregate = "job", key = job_id)]
        struct ExportCompleted {
            job_id: Uuid,
            rows: i64,
        }
    });
}

#[test]
fn an_unordered_enum() {
    snapshot!(event, {
        #[event(type = "exports.ended")]
        enum ExportEnded {
            Completed,
            Failed,
        }
    });
}

#[test]
fn a_generic_tuple_event() {
    snapshot!(event, {
        #[event(type = "rows.changed", aggregate = "row", key = 0)]
        struct RowChanged<K: Display, const N: usize>(K, [i64; N])
        where
            K: Serialize + DeserializeOwned;
    });
}

#[test]
fn an_event_with_a_mistake() {
    snapshot!(event, {
        #[event(type = "exports.completed", version = 2, aggregate = "job")]
        struct ExportCompleted {
            job_id: Uuid,
        }
    });
}

#[test]
fn a_command() {
    snapshot!(command, {
        #[command(type = "exports.start", to = "export-worker")]
        struct StartExport {
            job_id: Uuid,
        }
    });
}

#[test]
fn a_command_that_is_an_event_too() {
    snapshot!(command, {
        #[command(type = "exports.start", to = "export-worker")]
        #[event(type = "exports.start")]
        struct StartExport {
            job_id: Uuid,
        }
    });
}

#[test]
fn a_consumer() {
    snapshot!(consumer, {
        #[consumer(name = "statistics", source = "academy.exports", events(ExportCompleted))]
        struct Statistics;
    });
}

#[test]
fn a_consumer_with_every_option() {
    snapshot!(consumer, {
        #[consumer(name = "export-worker", source = "academy.exports")]
        #[consumer(events(ExportCompleted, jobs::Cancelled<Export>), commands(StartExport))]
        #[consumer(retry(attempts = 3, delay = "250ms..1h 30m"), timeout = "1us", concurrency = 4)]
        #[consumer(isolation = "repeatable read")]
        struct ExportWorker {
            pool: Pool,
        }
    });
}

#[test]
fn a_generic_consumer() {
    snapshot!(consumer, {
        #[consumer(name = "audit", source = "academy.exports", events(ExportCompleted))]
        struct Audit<S: Sink>(S)
        where
            S: Clone;
    });
}

#[test]
fn a_consumer_with_a_mistake() {
    snapshot!(consumer, {
        #[consumer(name = "statistics", source = "academy.exports")]
        struct Statistics;
    });
}

fn event(input: DeriveInput) -> String {
    let mut diagnostics = Diagnostics::default();
    let event = model::Event::read(input, &mut diagnostics);
    check::event(&event, &mut diagnostics);
    pretty(diagnostics.finish(|| expand::event(&event), || fallback::event(&event)))
}

fn command(input: DeriveInput) -> String {
    let mut diagnostics = Diagnostics::default();
    let command = model::Command::read(input, &mut diagnostics);
    check::command(&command, &mut diagnostics);
    pretty(diagnostics.finish(|| expand::command(&command), || fallback::command(&command)))
}

fn consumer(input: DeriveInput) -> String {
    let mut diagnostics = Diagnostics::default();
    let consumer = model::Consumer::read(input, &mut diagnostics);
    check::consumer(&consumer, &mut diagnostics);
    pretty(diagnostics.finish(|| expand::consumer(&consumer), || fallback::consumer(&consumer)))
}

fn pretty(expansion: TokenStream) -> String {
    prettyplease::unparse(&syn::parse2(expansion).expect("the expansion is a file of items"))
}
