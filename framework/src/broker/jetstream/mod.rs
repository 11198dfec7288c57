//! NATS JetStream, through async-nats.

mod ack;
mod connect;
mod headers;
mod provision;
mod publisher;
mod subject;
mod subscribe;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_nats::ConnectOptions;
use async_nats::jetstream::context::AccountErrorKind;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use connect::is_connected;

use super::{Broker, Error, Publisher, StreamInfo, StreamSpec, Subscription, SubscriptionSpec};

/// A NATS server or cluster with JetStream, and the settings of the streams that are made on it.
///
/// The URL is a secret: it appears in no log and no error.
///
/// ```
/// use std::time::Duration;
/// use tidings::JetStream;
///
/// let jetstream = JetStream::url("nats://app:secret@127.0.0.1:4222")
///     .replicas(3)
///     .max_age(Duration::from_secs(7 * 24 * 3600));
/// assert!(!format!("{jetstream:?}").contains("secret"));
/// ```
#[derive(Clone)]
pub struct JetStream {
    pub(super) url: String,
    pub(super) options: Arc<dyn Fn() -> ConnectOptions + Send + Sync>,
    pub(super) replicas: usize,
    pub(super) max_age: Duration,
    pub(super) duplicate_window: Duration,
    pub(super) ack_timeout: Duration,
    pub(super) atomic_batches: bool,
    shared: Arc<connect::Shared>,
}

impl JetStream {
    /// A server by its URL, `nats://user:password@host:port`; several of one cluster separated by commas.
    pub fn url(url: impl Into<String>) -> JetStream {
        JetStream {
            url: url.into(),
            options: Arc::new(ConnectOptions::new),
            replicas: 1,
            max_age: Duration::from_secs(7 * 24 * 3600),
            duplicate_window: Duration::from_secs(120),
            ack_timeout: Duration::from_secs(5),
            atomic_batches: false,
            shared: Arc::default(),
        }
    }

    /// Connects with options of your own: TLS, credentials, a name. Ping interval, reconnects and time-outs are set
    /// afterwards.
    pub fn options(mut self, options: impl Fn() -> ConnectOptions + Send + Sync + 'static) -> Self {
        self.options = Arc::new(options);
        self
    }

    /// Copies of each stream that is made. Default 1.
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas.max(1);
        self
    }

    /// How long streams that are made keep a message. Default 7 days. A stream that keeps them for less is refused.
    pub fn max_age(mut self, max_age: Duration) -> Self {
        self.max_age = max_age;
        self
    }

    /// How long streams that are made remember the ids of messages. Default 2 minutes. A stream that remembers them for
    /// less is refused.
    pub fn duplicate_window(mut self, window: Duration) -> Self {
        self.duplicate_window = window;
        self
    }

    /// How long a publish waits for its acknowledgement, counted from the send. Default 5 s.
    pub fn ack_timeout(mut self, timeout: Duration) -> Self {
        self.ack_timeout = timeout;
        self
    }

    /// Sends what is pending in atomic batches: one sync to disk, or one round among the replicas, for a batch instead of
    /// one for each message. It pays where the server syncs always (`sync_interval: always`) or the streams have
    /// replicas; on a single server that syncs now and then, messages sent one by one are faster. Default: off.
    ///
    /// Needs nats-server 2.12.1: the streams of this source get `allow_atomic`, those that exist too, and a server that
    /// does not know it is refused.
    pub fn atomic_batches(mut self, on: bool) -> Self {
        self.atomic_batches = on;
        self
    }
}

impl fmt::Debug for JetStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JetStream")
            .field("replicas", &self.replicas)
            .field("max_age", &self.max_age)
            .field("duplicate_window", &self.duplicate_window)
            .field("ack_timeout", &self.ack_timeout)
            .field("atomic_batches", &self.atomic_batches)
            .finish_non_exhaustive()
    }
}

impl Broker for JetStream {
    fn check(&self) -> Result<(), String> {
        connect::check(&self.url)
    }

    fn reachable(&self) -> BoxFuture<'_, Result<(), Error>> {
        async {
            let context = self.shared_context().await?;
            // A disconnected client would queue the question and answer it long after.
            if !is_connected(&context) {
                return Err(Error::Unreachable(format!("no connection to {}", connect::hosts(&self.url))));
            }
            let asking = tokio::time::timeout(self.ack_timeout, context.query_account());
            match asking.await.map_err(|_| Error::Unreachable("no answer in time".into()))? {
                Ok(_) => Ok(()),
                Err(error) => match error.kind() {
                    AccountErrorKind::TimedOut | AccountErrorKind::Other => Err(Error::Unreachable(error.to_string())),
                    AccountErrorKind::JetStream(_) | AccountErrorKind::JetStreamUnavailable => {
                        Err(Error::NoJetStream(error.to_string()))
                    }
                },
            }
        }
        .boxed()
    }

    fn publisher(&self, stream: StreamSpec) -> BoxFuture<'_, Result<Box<dyn Publisher>, Error>> {
        async move {
            let connection = self.one_connection().await?;
            let stream = provision::provision(self, &connection.context, &stream).await?;
            let publishing = publisher::Publishing::open(connection, stream, self.ack_timeout).await?;
            Ok(Box::new(publishing) as Box<dyn Publisher>)
        }
        .boxed()
    }

    fn streams<'a>(&'a self, source: &'a str) -> BoxFuture<'a, Result<Vec<StreamInfo>, Error>> {
        async move { provision::streams(&self.shared_context().await?, source).await }.boxed()
    }

    fn subscribe(&self, subscription: SubscriptionSpec) -> BoxFuture<'_, Result<Box<dyn Subscription>, Error>> {
        async move { subscribe::subscribe(self.shared_context().await?, subscription).await }.boxed()
    }

    fn flush(&self) -> BoxFuture<'_, ()> {
        async {
            if let Some(context) = self.shared_if_open().await {
                let _ = tokio::time::timeout(self.ack_timeout, context.client().flush()).await;
            }
        }
        .boxed()
    }
}

pub(crate) use subject::subject_of;
