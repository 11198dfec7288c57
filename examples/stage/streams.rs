//! What the broker says, asked directly and not through the framework.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::stream::RawMessageErrorKind;
use async_nats::jetstream::{self, Context};
use async_nats::{ConnectOptions, ServerAddr};
use futures_util::TryStreamExt;
use percent_encoding::percent_decode_str;

use crate::Error;

/// The streams of one source.
#[derive(Debug)]
pub struct Streams {
    context: Context,
    source: String,
}

impl Streams {
    /// Connects.
    ///
    /// # Errors
    /// If the URL is none, or the server is not reached.
    pub async fn connect(url: &str, source: &str) -> Result<Streams, Error> {
        let not_a_url = "TIDINGS_NATS_URL is not of the form nats://user:password@host:port";
        // Several servers of one cluster may stand there; any of them answers.
        let first = url.split(',').next().unwrap_or(url).trim();
        let address: ServerAddr = first.parse().map_err(|_| not_a_url)?;
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        // The client does not read credentials out of URLs.
        let options = match (address.username(), address.password()) {
            (Some(user), Some(password)) => ConnectOptions::with_user_and_password(decoded(user), decoded(password)),
            (Some(token), None) => ConnectOptions::with_token(decoded(token)),
            (None, _) => ConnectOptions::new(),
        };
        let client = options.connection_timeout(Duration::from_secs(10)).connect(address).await?;
        Ok(Streams { context: jetstream::new(client), source: source.to_owned() })
    }

    /// How many messages bear each of these event ids, in all streams of the source.
    ///
    /// # Errors
    /// If the broker does not answer.
    pub async fn copies(&self, ids: &HashSet<String>) -> Result<HashMap<String, u64>, Error> {
        let mut copies = HashMap::new();
        for name in self.names().await? {
            let mut stream = self.context.get_stream(&name).await?;
            let state = stream.info().await?.state.clone();
            for sequence in state.first_sequence.max(1)..=state.last_sequence {
                let message = match stream.get_raw_message(sequence).await {
                    Ok(message) => message,
                    Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => continue,
                    Err(error) => return Err(error.into()),
                };
                if let Some(id) = message.headers.get("ce-id").map(|id| id.as_str())
                    && ids.contains(id)
                {
                    *copies.entry(id.to_owned()).or_insert(0) += 1;
                }
            }
        }
        Ok(copies)
    }

    /// Whether these consumers have settled everything there is for them.
    ///
    /// # Errors
    /// If the broker does not answer.
    pub async fn all_settled(&self, consumers: &[&str]) -> Result<bool, Error> {
        for name in self.names().await? {
            let stream = self.context.get_stream(&name).await?;
            for consumer in consumers {
                let Ok(mut consumer): Result<PullConsumer, _> = stream.get_consumer(consumer).await else {
                    return Ok(false);
                };
                let info = consumer.info().await?;
                if info.num_pending > 0 || info.num_ack_pending > 0 {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// The framework marks each stream with its source.
    async fn names(&self) -> Result<Vec<String>, Error> {
        let infos: Vec<jetstream::stream::Info> = self.context.streams().try_collect().await?;
        let ours = infos.into_iter().filter(|info| info.config.metadata.get("tidings-source") == Some(&self.source));
        Ok(ours.map(|info| info.config.name).collect())
    }
}
