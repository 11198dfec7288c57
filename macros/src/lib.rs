//! The derive macros of Tidings. Use them through `tidings`, which exports them beside the traits of the same names.
//!
//! What happens to an item, in order: `attr` tells its options apart, `model` understands them (each kind of value in
//! `value`), `check` finds out whether they are right, `expand` writes the impl. All mistakes of an item are shown at
//! once; `fallback` then stands in for the impl, so that nothing but the mistakes is shown.

mod attr;
mod check;
mod diagnostics;
mod expand;
mod fallback;
mod model;
mod token;
mod value;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

use crate::diagnostics::Diagnostics;

/// Implements `tidings::Event`: a fact that any consumer may hear.
///
/// ```text
/// #[derive(Event, Serialize, Deserialize)]
/// #[event(type = "exports.completed", version = 2, aggregate = "job", key = job_id)]
/// struct ExportCompleted { job_id: Uuid, file: String, rows: i64 }
/// ```
///
/// | option | meaning | default |
/// |---|---|---|
/// | `type = "…"` | the CloudEvents `type` | required |
/// | `version = n` | the version of the shape of the data, from 1 upwards | 1 |
/// | `aggregate = "…"` | the type of the aggregate whose events keep their order; together with `key` | unordered |
/// | `key = field` | the field that is the aggregate's id, by name or, in a tuple struct, by number; its type is `Display` | unordered |
///
/// Names (`type`, `aggregate`) are not empty, have no white space, control characters or wildcards (`*`, `>`) in them,
/// no dot at an end and no two in a row, and take at most 160 bytes, of which characters other than letters, digits,
/// `-` and `.` take three for each of theirs.
///
/// An enum can be an event, too, but has no `key`. Generic types keep their parameters and `where` clauses. Several
/// `#[event(…)]` attributes are read as one; an option may be given once.
#[proc_macro_derive(Event, attributes(event))]
pub fn derive_event(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    let mut diagnostics = Diagnostics::default();
    let event = model::Event::read(input, &mut diagnostics);
    check::event(&event, &mut diagnostics);
    diagnostics.finish(|| expand::event(&event), || fallback::event(&event)).into()
}

/// Implements `tidings::Command` and with it `tidings::Event`: a request to exactly one consumer.
///
/// ```text
/// #[derive(Command, Serialize, Deserialize)]
/// #[command(type = "exports.start", to = "export-worker")]
/// struct StartExport { job_id: Uuid }
/// ```
///
/// | option | meaning | default |
/// |---|---|---|
/// | `type = "…"` | the CloudEvents `type` | required |
/// | `version = n` | the version of the shape of the data, from 1 upwards | 1 |
/// | `to = "…"` | the name of the consumer that handles it | required |
///
/// Commands are unordered: there is no `aggregate` and no `key`. A type is an event or a command, not both. For names,
/// enums, generic types and several attributes the same holds as for [`Event`](derive@Event).
#[proc_macro_derive(Command, attributes(command))]
pub fn derive_command(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    let mut diagnostics = Diagnostics::default();
    let command = model::Command::read(input, &mut diagnostics);
    check::command(&command, &mut diagnostics);
    diagnostics.finish(|| expand::command(&command), || fallback::command(&command)).into()
}

/// Implements `tidings::Consumer`: a name, and the types it handles, each with an `impl Handle<E>` of yours.
///
/// ```text
/// #[derive(Consumer)]
/// #[consumer(name = "statistics", source = "academy.exports", events(ExportCompleted),
///            retry(attempts = 8, delay = "200ms..5m"), timeout = "30s")]
/// struct Statistics;
///
/// impl Handle<ExportCompleted> for Statistics {
///     async fn handle(&self, event: Received<ExportCompleted>, tx: &mut Tx<'_>) -> Result<(), HandlerError> {
///         …
///     }
/// }
/// ```
///
/// | option | meaning | default |
/// |---|---|---|
/// | `name = "…"` | its name, for ever: the inbox remembers by it | required |
/// | `source = "…"` | the service whose events it hears | required |
/// | `events(A, B)` | the events it handles | this or `commands` is required |
/// | `commands(C)` | the commands it handles; each is `to` its name | this or `events` is required |
/// | `retry(attempts = n)` | how often an event is tried before it is a dead letter, from 1 upwards | 8 |
/// | `retry(delay = "a..b")` | the delay before the second attempt, and the longest one | `"200ms..5m"` |
/// | `timeout = "…"` | how long one attempt may take | `"30s"` |
/// | `concurrency = n` | how many events are handled at a time, from 1 upwards | 16 |
/// | `isolation = "…"` | `"read committed"`, `"repeatable read"` or `"serializable"` | `"read committed"` |
///
/// Durations are written as in `"500ms"`, `"30s"`, `"1h 30m"`; none is zero. Names follow the rules of
/// [`Event`](derive@Event); `source` has no `#` in it.
///
/// The compiler checks that each listed type is handled, that it stands in the right list, that a command is to this
/// consumer, and that no two have the same type. Where the consumer has parameters, all but the first are checked when
/// it is used. Several `#[consumer(…)]` attributes are read as one; an option may be given once.
#[proc_macro_derive(Consumer, attributes(consumer))]
pub fn derive_consumer(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    let mut diagnostics = Diagnostics::default();
    let consumer = model::Consumer::read(input, &mut diagnostics);
    check::consumer(&consumer, &mut diagnostics);
    diagnostics.finish(|| expand::consumer(&consumer), || fallback::consumer(&consumer)).into()
}
