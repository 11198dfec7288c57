//! What the attributes mean, before it is known whether it is right.
//!
//! A required option that is missing is `None` here; it has been reported, so that only a fallback sees it.

use std::time::Duration;

use quote::ToTokens;
use syn::{Data, DeriveInput, Generics, Ident, LitStr, Member, TypePath};

use crate::attr::{Given, Known, Options, Part, Vocabulary};
use crate::diagnostics::{Diagnostics, spelled};

/// `#[derive(Event)]`.
pub(crate) struct Event {
    pub(crate) ident: Ident,
    pub(crate) generics: Generics,
    pub(crate) data: Data,
    pub(crate) r#type: Option<LitStr>,
    pub(crate) version: u32,
    pub(crate) aggregate: Part<LitStr>,
    pub(crate) key: Part<Member>,
}

/// `#[derive(Command)]`.
pub(crate) struct Command {
    pub(crate) ident: Ident,
    pub(crate) generics: Generics,
    pub(crate) data: Data,
    pub(crate) r#type: Option<LitStr>,
    pub(crate) version: u32,
    pub(crate) to: Option<LitStr>,
    /// It bears `#[event(…)]` too, so that another derive says what it is as an event.
    pub(crate) also_event: bool,
}

/// `#[derive(Consumer)]`.
pub(crate) struct Consumer {
    pub(crate) ident: Ident,
    pub(crate) generics: Generics,
    pub(crate) name: Option<LitStr>,
    pub(crate) source: Option<LitStr>,
    pub(crate) events: Vec<Listed>,
    pub(crate) commands: Vec<Listed>,
    pub(crate) attempts: Option<u32>,
    pub(crate) delay: Option<Backoff>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) concurrency: Option<u32>,
    pub(crate) isolation: Option<Isolation>,
}

/// A type in `events(…)` or `commands(…)`.
pub(crate) struct Listed {
    pub(crate) path: TypePath,
}

/// The shortest and the longest delay before another attempt.
#[derive(Clone, Copy)]
pub(crate) struct Backoff {
    pub(crate) min: Duration,
    pub(crate) max: Duration,
}

/// An isolation level.
#[derive(Clone, Copy)]
pub(crate) enum Isolation {
    ReadCommitted,
    RepeatableRead,
    Serializable,
}

impl Event {
    pub(crate) fn read(input: DeriveInput, diagnostics: &mut Diagnostics) -> Event {
        let mut options = Options::of_attributes(&input.attrs, &EVENT, diagnostics);
        let r#type = format!("type = \"{}\"", spelled(&input.ident.to_string(), '.'));
        if !options.present() {
            let ident = &input.ident;
            diagnostics.report(ident, format!("`{ident}` needs a type: add, for example, `#[event({type})]`"));
        }
        Event {
            r#type: options.require("type", &r#type, diagnostics).and_then(|given| given.string(diagnostics)),
            version: version(&mut options, diagnostics),
            aggregate: options.part("aggregate", |given| given.string(diagnostics)),
            key: options.part("key", |given| given.member(diagnostics)),
            ident: input.ident,
            generics: input.generics,
            data: input.data,
        }
    }
}

impl Command {
    pub(crate) fn read(input: DeriveInput, diagnostics: &mut Diagnostics) -> Command {
        let mut options = Options::of_attributes(&input.attrs, &COMMAND, diagnostics);
        let r#type = format!("type = \"{}\"", spelled(&input.ident.to_string(), '.'));
        let to = "to = \"export-worker\"";
        if !options.present() {
            let ident = &input.ident;
            diagnostics.report(
                ident,
                format!("`{ident}` needs a type and a consumer: add, for example, `#[command({type}, {to})]`"),
            );
        }
        Command {
            r#type: options.require("type", &r#type, diagnostics).and_then(|given| given.string(diagnostics)),
            version: version(&mut options, diagnostics),
            to: options.require("to", to, diagnostics).and_then(|given| given.string(diagnostics)),
            also_event: input.attrs.iter().any(|attribute| attribute.path().is_ident(EVENT.name)),
            ident: input.ident,
            generics: input.generics,
            data: input.data,
        }
    }
}

impl Consumer {
    pub(crate) fn read(input: DeriveInput, diagnostics: &mut Diagnostics) -> Consumer {
        let mut options = Options::of_attributes(&input.attrs, &CONSUMER, diagnostics);
        let name = format!("name = \"{}\"", spelled(&input.ident.to_string(), '-'));
        let (source, events) = ("source = \"academy.exports\"", "events(ExportCompleted)");
        if !options.present() {
            let ident = &input.ident;
            diagnostics.report(
                ident,
                format!("`{ident}` needs a name, a source and what it handles: add, for example, `#[consumer({name}, {source}, {events})]`"),
            );
        }
        let name = options.require("name", &name, diagnostics).and_then(|given| given.string(diagnostics));
        let source = options.require("source", source, diagnostics).and_then(|given| given.string(diagnostics));
        let (listed_events, listed_commands) = (options.take("events"), options.take("commands"));
        if listed_events.is_none() && listed_commands.is_none() {
            options.missing(&["events", "commands"], events, diagnostics);
        }
        let mut types = |given: Option<Given>| given.map_or_else(Vec::new, |g| g.types(diagnostics));
        let (events, commands) = (types(listed_events), types(listed_commands));
        let (attempts, delay) = retry(&mut options, diagnostics);
        Consumer {
            name,
            source,
            events,
            commands,
            attempts,
            delay,
            timeout: options.take("timeout").and_then(|given| given.duration(diagnostics)),
            concurrency: options.take("concurrency").and_then(|given| given.number(MAX_NUMBER, diagnostics)),
            isolation: options.take("isolation").and_then(|given| given.isolation(diagnostics)),
            ident: input.ident,
            generics: input.generics,
        }
    }

    /// All listed types: the events, then the commands.
    pub(crate) fn listed(&self) -> impl Iterator<Item = &Listed> {
        self.events.iter().chain(&self.commands)
    }
}

impl Listed {
    /// The type as one would write it.
    pub(crate) fn name(&self) -> String {
        let tokens = self.path.to_token_stream().to_string();
        tokens.replace(' ', "").replace(',', ", ")
    }
}

impl Isolation {
    pub(crate) const ALL: [Isolation; 3] =
        [Isolation::ReadCommitted, Isolation::RepeatableRead, Isolation::Serializable];

    /// Its name in SQL, in lower case.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Isolation::ReadCommitted => "read committed",
            Isolation::RepeatableRead => "repeatable read",
            Isolation::Serializable => "serializable",
        }
    }
}

/// The version of the shape of the data. Default 1.
fn version(options: &mut Options, diagnostics: &mut Diagnostics) -> u32 {
    options.take("version").and_then(|given| given.number(MAX_NUMBER, diagnostics)).unwrap_or(1)
}

fn retry(options: &mut Options, diagnostics: &mut Diagnostics) -> (Option<u32>, Option<Backoff>) {
    let Some(given) = options.take("retry") else { return (None, None) };
    let Some(list) = given.list(diagnostics) else { return (None, None) };
    let mut options = Options::of_list(&given.name, &list, &RETRY, diagnostics);
    let attempts = options.take("attempts").and_then(|given| given.number(MAX_NUMBER, diagnostics));
    let delay = options.take("delay").and_then(|given| given.backoff(diagnostics));
    (attempts, delay)
}

/// The tables keep these numbers in an `integer`.
const MAX_NUMBER: u32 = i32::MAX as u32;

const TYPE: Known = Known { name: "type", write: "type = \"exports.completed\"" };
const VERSION: Known = Known { name: "version", write: "version = 2" };

const EVENT: Vocabulary = Vocabulary {
    of: "#[event(…)]",
    name: "event",
    options: &[
        TYPE,
        VERSION,
        Known { name: "aggregate", write: "aggregate = \"job\"" },
        Known { name: "key", write: "key = job_id" },
    ],
    elsewhere: &[("to", "an event is for any consumer: remove `to`, or derive `Command` to send it to exactly one")],
};

const COMMAND: Vocabulary = Vocabulary {
    of: "#[command(…)]",
    name: "command",
    options: &[
        Known { name: "type", write: "type = \"exports.start\"" },
        VERSION,
        Known { name: "to", write: "to = \"export-worker\"" },
    ],
    elsewhere: &[
        ("aggregate", "commands are unordered; only events keep an aggregate's order: remove `aggregate`"),
        ("key", "commands are unordered; only events keep an aggregate's order: remove `key`"),
    ],
};

const CONSUMER: Vocabulary = Vocabulary {
    of: "#[consumer(…)]",
    name: "consumer",
    options: &[
        Known { name: "name", write: "name = \"statistics\"" },
        Known { name: "source", write: "source = \"academy.exports\"" },
        Known { name: "events", write: "events(ExportCompleted)" },
        Known { name: "commands", write: "commands(StartExport)" },
        Known { name: "retry", write: "retry(attempts = 8, delay = \"200ms..5m\")" },
        Known { name: "timeout", write: "timeout = \"30s\"" },
        Known { name: "concurrency", write: "concurrency = 16" },
        Known { name: "isolation", write: "isolation = \"repeatable read\"" },
    ],
    elsewhere: &[
        ("attempts", "`attempts` belongs to `retry`: write `retry(attempts = 8)`"),
        ("delay", "`delay` belongs to `retry`: write `retry(delay = \"200ms..5m\")`"),
    ],
};

const RETRY: Vocabulary = Vocabulary {
    of: "retry(…)",
    name: "retry",
    options: &[
        Known { name: "attempts", write: "attempts = 8" },
        Known { name: "delay", write: "delay = \"200ms..5m\"" },
    ],
    elsewhere: &[],
};
