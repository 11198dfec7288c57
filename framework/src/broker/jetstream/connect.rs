//! Connections to NATS.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::Context;
use async_nats::jetstream::context::ContextBuilder;
use async_nats::{Client, ConnectError, ConnectOptions, Event, ServerAddr};
use percent_encoding::percent_decode_str;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::{Mutex, watch};

use super::JetStream;
use crate::broker::Error;

/// The one connection that consumers, discovery and probes share.
#[derive(Default)]
pub(super) struct Shared(Mutex<Option<Context>>);

impl JetStream {
    /// The shared connection, opened at first use. It reconnects by itself, for ever.
    pub(super) async fn shared_context(&self) -> Result<Context, Error> {
        let mut shared = self.shared.0.lock().await;
        if let Some(context) = &*shared {
            return Ok(context.clone());
        }
        let context = self.own_context().await?;
        *shared = Some(context.clone());
        Ok(context)
    }

    pub(super) async fn shared_if_open(&self) -> Option<Context> {
        self.shared.0.lock().await.clone()
    }

    /// A connection that reconnects by itself, for ever.
    async fn own_context(&self) -> Result<Context, Error> {
        let (servers, options) = self.addressed()?;
        let options = options
            .reconnect_delay_callback(|attempts| {
                let doublings = u32::try_from(attempts.min(6)).unwrap_or(6);
                Duration::from_millis(25 * 2u64.pow(doublings))
            })
            .event_callback(|event| async move { tracing::debug!(target: "tidings::nats", "{event}") });
        self.context(options.connect(servers)).await
    }

    /// A connection that never reconnects, on a runtime of its own.
    pub(super) async fn one_connection(&self) -> Result<Connection, Error> {
        let (servers, options) = self.addressed()?;
        let (established, ended) = (Arc::new(AtomicBool::new(false)), watch::Sender::new(false));
        let (has_been, ending) = (Arc::clone(&established), ended.clone());
        let options = options
            // The client cannot be told to stay down; it is gone long before this is over.
            .reconnect_delay_callback(move |_| if has_been.load(Ordering::Relaxed) { NEVER } else { Duration::ZERO })
            .event_callback(move |event| {
                tracing::debug!(target: "tidings::nats", "{event}");
                if matches!(
                    event,
                    Event::Disconnected
                        | Event::Closed
                        | Event::LameDuckMode
                        | Event::Draining
                        | Event::SlowConsumer(_)
                ) {
                    ending.send_replace(true);
                }
                std::future::ready(())
            });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("tidings-publisher")
            .enable_all()
            .build()
            .map_err(|error| Error::Unreachable(format!("no thread for a connection: {error}")))?;
        let runtime = Ending(Some(runtime));
        let connecting = runtime.handle().spawn(options.connect(servers));
        let context = self
            .context(async {
                // The task ends early only by a panic, which is the client's.
                connecting.await.unwrap_or_else(|ended| std::panic::resume_unwind(ended.into_panic()))
            })
            .await?;
        established.store(true, Ordering::Relaxed);
        Ok(Connection { context, ended, runtime })
    }

    fn addressed(&self) -> Result<(Vec<ServerAddr>, ConnectOptions), Error> {
        let (servers, options) = addresses(&self.url, (self.options)())?;
        let options = options
            .ping_interval(Duration::from_secs(5))
            .connection_timeout(Duration::from_secs(5))
            .request_timeout(Some(self.ack_timeout))
            .max_reconnects(None);
        Ok((servers, options))
    }

    async fn context(&self, connecting: impl Future<Output = Result<Client, ConnectError>>) -> Result<Context, Error> {
        let client = match tokio::time::timeout(Duration::from_secs(10), connecting).await {
            Ok(Ok(client)) => client,
            // The kind only: the source of the error may hold the URL.
            Ok(Err(error)) => return Err(Error::Unreachable(format!("{} ({})", error.kind(), hosts(&self.url)))),
            Err(_) => return Err(Error::Unreachable(format!("no connection within 10 s ({})", hosts(&self.url)))),
        };
        Ok(ContextBuilder::new().timeout(self.ack_timeout).build(client))
    }
}

/// A connection that ends when this is dropped, with all that waits in the client: a connection that the runtime of
/// others drives would first write out its whole queue, whenever the server is back.
pub(super) struct Connection {
    pub(super) context: Context,
    ended: watch::Sender<bool>,
    runtime: Ending,
}

impl Connection {
    /// Runs something that ends with the connection.
    pub(super) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.runtime.handle().spawn(future);
    }

    pub(super) fn runtime(&self) -> Handle {
        self.runtime.handle().clone()
    }

    /// Resolves when the server is lost, says that it leaves, or sent what could not be taken.
    pub(super) fn ended(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut ended = self.ended.subscribe();
        async move {
            let _ = ended.wait_for(|ended| *ended).await;
        }
    }
}

/// Ends a runtime without waiting for it, which is all that is allowed inside another.
struct Ending(Option<Runtime>);

impl Ending {
    fn handle(&self) -> &Handle {
        self.0.as_ref().expect("it is there until it is dropped").handle()
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Whether the URLs are URLs, found before anything is tried.
pub(super) fn check(urls: &str) -> Result<(), String> {
    addresses(urls, ConnectOptions::new()).map(drop).map_err(|_| NOT_A_URL.into())
}

/// Which servers are meant, without the credentials.
pub(super) fn hosts(urls: &str) -> String {
    let addresses = urls.split(',').filter_map(|url| url.trim().parse::<ServerAddr>().ok());
    addresses.map(|address| format!("{}:{}", address.host(), address.port())).collect::<Vec<_>>().join(", ")
}

/// The servers of a URL list. The client does not read credentials out of URLs, so they go into the options.
fn addresses(urls: &str, mut options: ConnectOptions) -> Result<(Vec<ServerAddr>, ConnectOptions), Error> {
    let mut servers = Vec::new();
    for url in urls.split(',').map(str::trim).filter(|url| !url.is_empty()) {
        let address: ServerAddr = url.parse().map_err(|_| Error::Unreachable(NOT_A_URL.into()))?;
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        options = match (address.username(), address.password()) {
            (Some(user), Some(password)) => options.user_and_password(decoded(user), decoded(password)),
            (Some(token), None) => options.token(decoded(token)),
            (None, _) => options,
        };
        servers.push(address);
    }
    if servers.is_empty() {
        return Err(Error::Unreachable(NOT_A_URL.into()));
    }
    Ok((servers, options))
}

/// Whether a publish would go out now; otherwise it would only be queued, and sent whenever the server is back.
pub(super) fn is_connected(context: &Context) -> bool {
    context.client().connection_state() == State::Connected
}

/// Longer than any publisher whose connection is lost is kept.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);
const NOT_A_URL: &str = "the NATS URL is not of the form nats://user:password@host:port, several separated by commas";
