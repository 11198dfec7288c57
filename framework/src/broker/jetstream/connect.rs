//! Connections to NATS.

use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::Context;
use async_nats::jetstream::context::ContextBuilder;
use async_nats::{ConnectOptions, ServerAddr};
use percent_encoding::percent_decode_str;
use tokio::sync::Mutex;

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

    /// A connection of its own, so that what it has not sent dies with it.
    pub(super) async fn own_context(&self) -> Result<Context, Error> {
        let (servers, options) = addresses(&self.url, (self.options)())?;
        let options = options
            .ping_interval(Duration::from_secs(5))
            .connection_timeout(Duration::from_secs(5))
            .request_timeout(Some(self.ack_timeout))
            .max_reconnects(None)
            .reconnect_delay_callback(|attempts| {
                let doublings = u32::try_from(attempts.min(6)).unwrap_or(6);
                Duration::from_millis(25 * 2u64.pow(doublings))
            })
            .event_callback(|event| async move { tracing::debug!(target: "tidings::nats", "{event}") });
        let connecting = options.connect(servers);
        let client = match tokio::time::timeout(Duration::from_secs(10), connecting).await {
            Ok(Ok(client)) => client,
            // The kind only: the source of the error may hold the URL.
            Ok(Err(error)) => return Err(Error::Unreachable(format!("{} ({})", error.kind(), hosts(&self.url)))),
            Err(_) => return Err(Error::Unreachable(format!("no connection within 10 s ({})", hosts(&self.url)))),
        };
        Ok(ContextBuilder::new()
            .timeout(self.ack_timeout)
            .ack_timeout(self.ack_timeout)
            .max_ack_inflight(MAX_ACK_INFLIGHT)
            .build(client))
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

const MAX_ACK_INFLIGHT: usize = 5_000;
const NOT_A_URL: &str = "the NATS URL is not of the form nats://user:password@host:port, several separated by commas";
