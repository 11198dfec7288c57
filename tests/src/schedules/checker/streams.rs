//! The streams, as they stand.

use std::collections::HashMap;
use std::time::Duration;

use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::pull::OrderedConfig;
use async_nats::jetstream::{self, Context};
use futures_util::{StreamExt, TryStreamExt};

use crate::schedules::Error;

/// A message of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// Its sequence.
    pub seq: u64,
    /// Where it was published.
    pub subject: String,
    /// Names in lower case.
    pub headers: HashMap<String, String>,
    /// Byte for byte.
    pub data: Vec<u8>,
}

impl Message {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// It stands for a version that was given up.
    pub fn is_tombstone(&self) -> bool {
        self.subject.ends_with("._tombstone")
    }
}

/// The stream of a partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stream {
    /// Its name.
    pub name: String,
    /// Of which partition.
    pub partition: i32,
    /// When it was made, in nanoseconds.
    pub incarnation: i64,
    /// In their order.
    pub messages: Vec<Message>,
}

/// Reads all streams of a source.
///
/// # Errors
/// When they cannot be read to their ends within a minute.
pub async fn read(options: async_nats::ConnectOptions, servers: &str, source: &str) -> Result<Vec<Stream>, Error> {
    let servers: Vec<async_nats::ServerAddr> = servers.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let client = options.retry_on_initial_connect().connect(servers).await?;
    let context = jetstream::new(client);
    let began = std::time::Instant::now();
    loop {
        // A cluster that has just lost a server may not answer at once.
        match tokio::time::timeout(Duration::from_secs(20), all(&context, source)).await {
            Ok(Ok(streams)) => return Ok(streams),
            Ok(Err(error)) if began.elapsed() > LIMIT => return Err(error),
            Err(_) if began.elapsed() > LIMIT => return Err("the streams cannot be read to their ends".into()),
            Ok(Err(_)) | Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}

/// Removes all streams of a source.
///
/// # Errors
/// Those of the broker.
pub async fn remove(options: async_nats::ConnectOptions, servers: &str, source: &str) -> Result<(), Error> {
    let servers: Vec<async_nats::ServerAddr> = servers.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let context = jetstream::new(options.connect(servers).await?);
    for stream in infos(&context, source).await? {
        context.delete_stream(&stream.config.name).await?;
    }
    Ok(())
}

async fn all(context: &Context, source: &str) -> Result<Vec<Stream>, Error> {
    let mut streams = Vec::new();
    for info in infos(context, source).await? {
        let partition = info.config.metadata.get("tidings-partition").ok_or("a stream without a partition")?.parse()?;
        let name = info.config.name.clone();
        let messages = messages(context, &name, info.state.last_sequence).await?;
        let incarnation = i64::try_from(info.created.unix_timestamp_nanos())?;
        streams.push(Stream { name, partition, incarnation, messages });
    }
    streams.sort_by_key(|stream| stream.partition);
    Ok(streams)
}

async fn infos(context: &Context, source: &str) -> Result<Vec<jetstream::stream::Info>, Error> {
    let all: Vec<jetstream::stream::Info> = context.streams().try_collect().await?;
    Ok(all.into_iter().filter(|info| info.config.metadata.get("tidings-source").is_some_and(|s| s == source)).collect())
}

async fn messages(context: &Context, stream: &str, last: u64) -> Result<Vec<Message>, Error> {
    let mut messages: Vec<Message> = Vec::new();
    if last == 0 {
        return Ok(messages);
    }
    let config = OrderedConfig { deliver_policy: DeliverPolicy::All, ..OrderedConfig::default() };
    let mut delivered = context.create_consumer_on_stream(config, stream).await?.messages().await?;
    while messages.last().is_none_or(|message| message.seq < last) {
        let message = delivered.next().await.ok_or("the consumer ended")??;
        let info = message.info().map_err(|error| error.to_string())?;
        let headers = message.headers.iter().flat_map(|headers| headers.iter());
        let first = |(name, values): (&async_nats::HeaderName, &Vec<async_nats::HeaderValue>)| {
            let value = values.first().map(|value| value.as_str().to_owned()).unwrap_or_default();
            (name.to_string().to_ascii_lowercase(), value)
        };
        messages.push(Message {
            seq: info.stream_sequence,
            subject: message.subject.to_string(),
            headers: headers.map(first).collect(),
            data: message.payload.to_vec(),
        });
    }
    Ok(messages)
}

const LIMIT: Duration = Duration::from_secs(60);
