//! Streams: made with safe settings, read back, and refused where they would lose, repeat or reorder.

use std::collections::HashMap;
use std::time::Duration;

use async_nats::jetstream::context::GetStreamErrorKind;
use async_nats::jetstream::stream::{Config, DiscardPolicy, Info, PersistenceMode, RetentionPolicy, StorageType};
use async_nats::jetstream::{Context, ErrorCode};
use futures_util::TryStreamExt;

use super::JetStream;
use super::subject::{stream_name, subjects_of};
use crate::broker::{Error, StreamInfo, StreamSpec};

/// What the relay needs to know about a stream.
pub(super) struct Provisioned {
    pub(super) name: String,
    pub(super) incarnation: i64,
    pub(super) max_message_bytes: usize,
    /// The stream takes batches that are stored whole or not at all.
    pub(super) atomic_batches: bool,
}

/// Makes the stream of a partition if it is missing; checks it, as the server reports it, in any case: a server
/// ignores settings that it does not know.
pub(super) async fn provision(
    jetstream: &JetStream,
    context: &Context,
    spec: &StreamSpec,
) -> Result<Provisioned, Error> {
    let name = stream_name(&spec.source, spec.partition);
    let info = match context.get_stream(&name).await {
        Ok(stream) => stream.cached_info().clone(),
        Err(error) => match error.kind() {
            GetStreamErrorKind::JetStream(answer) if answer.error_code() == ErrorCode::STREAM_NOT_FOUND => {
                create(jetstream, context, spec, &name).await?
            }
            GetStreamErrorKind::JetStream(answer) => return Err(Error::NoJetStream(answer.to_string())),
            _ => return Err(Error::Unreachable(format!("no answer about stream `{name}`"))),
        },
    };
    let info = relabel(context, spec, info).await?;
    check(jetstream, spec, &info)?;
    let info = if jetstream.atomic_batches { allow_batches(context, info).await? } else { info };
    let max_payload = context.client().max_payload();
    let stream_limit = usize::try_from(info.config.max_message_size).ok().filter(|limit| *limit > 0);
    Ok(Provisioned {
        name,
        incarnation: incarnation(&info),
        atomic_batches: jetstream.atomic_batches && info.config.allow_atomic_publish,
        max_message_bytes: stream_limit.map_or(max_payload, |limit| limit.min(max_payload)),
    })
}

async fn create(jetstream: &JetStream, context: &Context, spec: &StreamSpec, name: &str) -> Result<Info, Error> {
    let config = Config {
        name: name.to_owned(),
        description: Some(format!("events of {}, partition {}", spec.source, spec.partition)),
        subjects: vec![subjects_of(&spec.source, spec.partition)],
        retention: RetentionPolicy::Limits,
        storage: StorageType::File,
        discard: DiscardPolicy::New,
        num_replicas: jetstream.replicas,
        max_age: jetstream.max_age,
        duplicate_window: jetstream.duplicate_window.min(jetstream.max_age),
        allow_direct: true,
        allow_atomic_publish: jetstream.atomic_batches,
        metadata: HashMap::from([
            (SOURCE.to_owned(), spec.source.clone()),
            (PARTITION.to_owned(), spec.partition.to_string()),
            (PARTITIONS.to_owned(), spec.partitions.to_string()),
        ]),
        ..Config::default()
    };
    let refused = |problem: String| Error::Refused { what: format!("to make stream `{name}`"), problem };
    context.create_stream(config).await.map_err(|error| refused(error.to_string()))?;
    let mut stream = context.get_stream(name).await.map_err(|error| refused(error.to_string()))?;
    let info = stream.info().await.map_err(|error| refused(error.to_string()))?;
    tracing::info!(stream = name, source = spec.source, "made a stream");
    Ok(info.clone())
}

/// The number of partitions is the database's, and may change there; the stream only says it to whoever looks.
async fn relabel(context: &Context, spec: &StreamSpec, info: Info) -> Result<Info, Error> {
    let ours = info.config.metadata.get(SOURCE) == Some(&spec.source);
    let partitions = spec.partitions.to_string();
    if !ours || info.config.metadata.get(PARTITIONS) == Some(&partitions) {
        return Ok(info);
    }
    let mut config = info.config;
    config.metadata.insert(PARTITIONS.to_owned(), partitions);
    let refused = |problem: String| Error::Refused { what: format!("to update stream `{}`", config.name), problem };
    context.update_stream(&config).await.map_err(|error| refused(error.to_string()))
}

/// Switches batches on for a stream of ours that was made without them, and reads back whether the server knows them.
async fn allow_batches(context: &Context, info: Info) -> Result<Info, Error> {
    let name = info.config.name.clone();
    let refused = |problem: String| Error::Refused { what: format!("to allow batches on stream `{name}`"), problem };
    let info = if info.config.allow_atomic_publish {
        info
    } else {
        let config = Config { allow_atomic_publish: true, ..info.config };
        context.update_stream(config).await.map_err(|error| refused(error.to_string()))?;
        let stream = context.get_stream(&name).await.map_err(|error| refused(error.to_string()))?;
        stream.cached_info().clone()
    };
    if info.config.allow_atomic_publish {
        return Ok(info);
    }
    let version = context.client().server_info().version;
    let problem = format!(
        "was ignored by nats-server {version}: atomic batches need 2.12.1; update the server, or leave \
         `JetStream::atomic_batches` off"
    );
    Err(Error::Drift { stream: name, setting: "allow_atomic", problem })
}

/// Refuses, with the setting's name, what would break a promise.
fn check(jetstream: &JetStream, spec: &StreamSpec, info: &Info) -> Result<(), Error> {
    let config = &info.config;
    let is = |wrong: bool, setting: &'static str, problem: &str| {
        if !wrong {
            return Ok(());
        }
        Err(Error::Drift { stream: config.name.clone(), setting, problem: problem.to_owned() })
    };
    // Before the subjects, which a mirror has none of.
    is(config.mirror.is_some(), "mirror", "is set: a mirror takes no messages of ours")?;
    let limits = config.max_messages > 0 || config.max_bytes > 0;
    is(
        config.subjects != [subjects_of(&spec.source, spec.partition)],
        "subjects",
        "are not those of this partition: another program uses the name, or someone changed it",
    )?;
    is(
        config.retention != RetentionPolicy::Limits,
        "retention",
        "is not `limits`: messages would go when others are done with them; make it `limits`",
    )?;
    is(
        config.sources.as_ref().is_some_and(|sources| !sources.is_empty()),
        "sources",
        "are set: messages of others would stand between ours",
    )?;
    is(config.subject_transform.is_some(), "subject_transform", "is set: consumers would not find their subjects")?;
    is(config.no_ack, "no_ack", "is set: nothing would ever be confirmed")?;
    is(config.sealed, "sealed", "is set: nothing can be stored")?;
    is(config.allow_rollup, "allow_rollup_hdrs", "is set: one header could purge the stream")?;
    is(config.allow_message_ttl, "allow_msg_ttl", "is set: messages could expire before they are read")?;
    is(
        config.subject_delete_marker_ttl.is_some(),
        "subject_delete_marker_ttl",
        "is set: markers would stand between events",
    )?;
    is(
        config.max_messages_per_subject > 0,
        "max_msgs_per_subject",
        "is set: older events of a type would be dropped unread",
    )?;
    is(
        limits && config.discard == DiscardPolicy::Old,
        "discard",
        "is `old` with a limit on messages or bytes: the oldest would be dropped unread; make it `new`",
    )?;
    is(config.storage != StorageType::File, "storage", "is not `file`: a restart would lose what was confirmed")?;
    is(
        config.persist_mode == Some(PersistenceMode::Async),
        "persist_mode",
        "is `async`: what was confirmed could be lost",
    )?;
    let ages = !config.max_age.is_zero() && config.max_age < jetstream.max_age;
    is(ages, "max_age", &shorter("max_age", config.max_age, jetstream.max_age))?;
    let wanted = jetstream.duplicate_window.min(jetstream.max_age);
    is(
        config.duplicate_window < wanted,
        "duplicate_window",
        &shorter("duplicate_window", config.duplicate_window, wanted),
    )?;
    is(
        config.num_replicas < jetstream.replicas,
        "num_replicas",
        "is less than `JetStream::replicas`: raise it on the stream, or lower the setting",
    )?;
    is(
        config.metadata.get(SOURCE) != Some(&spec.source),
        "metadata",
        "does not name this source under `tidings-source`: consumers find streams by it",
    )?;
    is(
        config.metadata.get(PARTITIONS) != Some(&spec.partitions.to_string()),
        "metadata",
        "names another number of partitions under `tidings-partitions`",
    )
}

fn shorter(setting: &str, has: Duration, wanted: Duration) -> String {
    let (has, wanted) = (humantime::format_duration(has), humantime::format_duration(wanted));
    format!("is {has}, less than the configured {wanted}: raise it on the stream, or lower `JetStream::{setting}`")
}

/// The streams of a source, found by their metadata.
pub(super) async fn streams(context: &Context, source: &str) -> Result<Vec<StreamInfo>, Error> {
    let infos: Vec<Info> =
        context.streams().try_collect().await.map_err(|error| Error::Unreachable(error.to_string()))?;
    let ours = infos.into_iter().filter(|info| info.config.metadata.get(SOURCE).is_some_and(|s| s == source));
    Ok(ours
        .filter_map(|info| {
            let partition = info.config.metadata.get(PARTITION)?.parse().ok()?;
            Some(StreamInfo { name: info.config.name, partition })
        })
        .collect())
}

pub(super) fn incarnation(info: &Info) -> i64 {
    i64::try_from(info.created.unix_timestamp_nanos()).unwrap_or(i64::MAX)
}

const SOURCE: &str = "tidings-source";
const PARTITION: &str = "tidings-partition";
const PARTITIONS: &str = "tidings-partitions";
