//! The derives on what they are for: the impls do what the attributes say.

#[path = "../../macros/src/token.rs"]
#[allow(unreachable_pub, dead_code)]
mod token;

use std::fmt::Display;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tidings::consumer::{Accepts, Isolation, Options};
use tidings::{Command, Consumer, Event, Handle, HandlerError, Received, Tx};

#[derive(Event, Serialize, Deserialize)]
#[event(type = "exports.completed", version = 2, aggregate = "job", key = job_id)]
struct ExportCompleted {
    job_id: u64,
    rows: i64,
}

#[derive(Event, Serialize, Deserialize)]
#[event(type = "exports.ended")]
enum ExportEnded {
    Completed,
    Failed { reason: String },
}

#[derive(Event, Serialize, Deserialize)]
#[event(type = "rows.changed")]
#[event(aggregate = "row", key = 1)]
#[serde(bound = "")]
struct RowChanged<K>(i64, K)
where
    K: Display + Serialize + DeserializeOwned + Send + Sync + 'static;

#[derive(Event, Serialize, Deserialize)]
#[event(type = "words.kept", aggregate = "word", key = r#type)]
struct KeywordKept {
    r#type: String,
}

#[derive(Command, Serialize, Deserialize)]
#[command(type = "exports.start", to = "export-worker")]
struct StartExport {
    job_id: u64,
}

#[derive(Consumer)]
#[consumer(name = "statistics", source = "academy.exports", events(ExportCompleted))]
struct Statistics;

#[derive(Consumer)]
#[consumer(name = "export-worker", source = "academy.exports", events(RowChanged<u64>, ExportEnded))]
#[consumer(commands(StartExport), retry(attempts = 3, delay = "250ms..1h 30m"), timeout = "1us", concurrency = 4)]
#[consumer(isolation = "serializable")]
struct ExportWorker {
    _parallel: usize,
}

#[derive(Consumer)]
#[consumer(name = "audit", source = "academy.exports", events(ExportCompleted, ExportEnded))]
struct Audit<S>(S)
where
    S: Send + Sync + 'static;

impl Handle<ExportCompleted> for Statistics {
    async fn handle(&self, _: Received<ExportCompleted>, _: &mut Tx<'_>) -> Result<(), HandlerError> {
        Ok(())
    }
}

impl<E: Event> Handle<E> for ExportWorker {
    async fn handle(&self, _: Received<E>, _: &mut Tx<'_>) -> Result<(), HandlerError> {
        Ok(())
    }
}

impl<E: Event, S: Send + Sync + 'static> Handle<E> for Audit<S> {
    async fn handle(&self, _: Received<E>, _: &mut Tx<'_>) -> Result<(), HandlerError> {
        Ok(())
    }
}

/// Nothing in scope stands in the way of what the derives write, and a macro may write the attribute.
#[no_implicit_prelude]
mod elsewhere {
    #[allow(dead_code)]
    struct Option;
    #[allow(dead_code)]
    const NAMES: () = ();

    macro_rules! consumer {
        ($ident:ident, $name:literal, $event:ty, $attempts:expr) => {
            #[derive(::tidings::Consumer)]
            #[consumer(name = $name, source = "academy.exports", events($event), retry(attempts = $attempts))]
            pub(super) struct $ident;
        };
    }

    consumer!(Elsewhere, "elsewhere", super::ExportCompleted, 2);

    impl ::tidings::Handle<super::ExportCompleted> for Elsewhere {
        async fn handle(
            &self,
            _: ::tidings::Received<super::ExportCompleted>,
            _: &mut ::tidings::Tx<'_>,
        ) -> ::core::result::Result<(), ::tidings::HandlerError> {
            ::core::result::Result::Ok(())
        }
    }
}

#[test]
fn a_consumer_may_be_declared_anywhere_and_by_a_macro() {
    assert_eq!(elsewhere::Elsewhere::NAME, "elsewhere");
    assert_eq!(elsewhere::Elsewhere::ACCEPTS, [Accepts::of::<ExportCompleted>()]);
    assert_eq!(elsewhere::Elsewhere::options().attempts, 2);
}

#[test]
fn an_event_says_what_its_attribute_says() {
    assert_eq!(ExportCompleted::TYPE, "exports.completed");
    assert_eq!(ExportCompleted::SCHEMA_VERSION, 2);
    assert_eq!(ExportCompleted::AGGREGATE, Some("job"));
    assert_eq!(ExportCompleted::RECIPIENT, None);
    assert_eq!(ExportCompleted { job_id: 42, rows: 7 }.key().as_deref(), Some("42"));
}

#[test]
fn an_event_may_be_an_enum_a_tuple_or_generic() {
    assert_eq!(ExportEnded::AGGREGATE, None);
    assert_eq!(ExportEnded::Completed.key(), None);
    assert_eq!(ExportEnded::Failed { reason: "disk full".into() }.key(), None);
    assert_eq!(ExportEnded::SCHEMA_VERSION, 1);
    assert_eq!(RowChanged(7, "row-1".to_owned()).key().as_deref(), Some("row-1"));
    assert_eq!(RowChanged::<u64>::AGGREGATE, Some("row"));
    assert_eq!(KeywordKept { r#type: "fn".into() }.key().as_deref(), Some("fn"));
}

#[test]
fn a_command_has_a_recipient_and_no_order() {
    assert_eq!(StartExport::TO, "export-worker");
    assert_eq!(StartExport::RECIPIENT, Some("export-worker"));
    assert_eq!(StartExport::AGGREGATE, None);
    assert_eq!(StartExport { job_id: 42 }.key(), None);
}

#[test]
fn a_consumer_sets_only_what_its_attribute_sets() {
    assert_eq!((Statistics::NAME, Statistics::SOURCE), ("statistics", "academy.exports"));
    assert_eq!(Statistics::ACCEPTS, [Accepts::of::<ExportCompleted>()]);
    let (set, default) = (Statistics::options(), Options::default());
    assert_eq!((set.attempts, set.delay_min, set.delay_max), (default.attempts, default.delay_min, default.delay_max));
    assert_eq!((set.timeout, set.concurrency), (default.timeout, default.concurrency));

    let set = ExportWorker::options();
    assert_eq!((set.attempts, set.concurrency), (3, 4));
    assert_eq!((set.delay_min, set.delay_max), (Duration::from_millis(250), Duration::from_secs(5_400)));
    assert_eq!(set.timeout, Duration::from_micros(1));
    assert!(matches!(set.isolation, Isolation::Serializable));
}

#[test]
fn a_consumer_accepts_its_types_in_order_events_first() {
    let types = |accepts: &[Accepts]| accepts.iter().map(|accepts| accepts.r#type).collect::<Vec<_>>();
    assert_eq!(types(ExportWorker::ACCEPTS), ["rows.changed", "exports.ended", "exports.start"]);
    assert_eq!(types(Audit::<()>::ACCEPTS), ["exports.completed", "exports.ended"]);
}

#[test]
fn the_derives_and_the_framework_agree_on_names() {
    let long = "x".repeat(160);
    let names = [
        "",
        "a",
        "exports.completed",
        "a b",
        "a\u{a0}b",
        "a\tb",
        "a\r\nPUB evil",
        "a.*",
        ">",
        "a..b",
        ".a",
        "a.",
        ".",
        "a#b",
        "a/b",
        "ü",
        "a\u{200b}b",
        "=41",
        "_",
        "a\u{7f}",
        "a b*",
        "*a b",
        "\u{85}",
        "..*",
    ];
    let long = [
        long.clone(),
        long.clone() + "x",
        "é".repeat(26),
        "é".repeat(27),
        "_".repeat(53),
        "_".repeat(54),
        "x".repeat(256),
        "x".repeat(257),
        " ".repeat(257),
    ];
    for name in names.into_iter().chain(long.iter().map(String::as_str)) {
        let derive = token::check_token(name).map_err(|unfit| format!("{unfit:?}"));
        let framework = tidings::protocol::token::check_token(name).map_err(|unfit| format!("{unfit:?}"));
        assert_eq!(derive, framework, "{name:?}");
    }
}
