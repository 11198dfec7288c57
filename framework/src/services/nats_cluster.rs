//! Three private nats-servers that form one JetStream cluster.

use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use serde_json::Value;
use uuid::Uuid;

use super::nats::{USER, text};
use super::{Error, Nats, NatsOptions};

/// Three nats-servers with routes between them: streams may have three replicas, leaders change, and one server may be
/// away.
///
/// Clients know only the servers they are told of ([`url`](NatsCluster::url)); the servers advertise no others, so that
/// a client that is given proxies stays behind them. Dropping it ends the servers and removes their data.
///
/// ```no_run
/// use tidings::services::NatsCluster;
///
/// let mut cluster = NatsCluster::start()?;
/// let leader = cluster.leader("EVENTS_0")?.expect("a stream has a leader most of the time");
/// cluster.node_mut(leader).kill();
/// cluster.node_mut(leader).start_again()?;
/// cluster.step_down("EVENTS_0")?;
/// # Ok::<(), tidings::services::Error>(())
/// ```
#[derive(Debug)]
pub struct NatsCluster {
    nodes: Vec<Nats>,
}

impl NatsCluster {
    /// How many servers there are.
    pub const SIZE: usize = 3;

    /// Starts three servers with the default options, and waits until JetStream has a leader. Blocks for some seconds.
    ///
    /// # Errors
    /// Those of [`Nats::start`], and when no leader is elected within a minute.
    pub fn start() -> Result<NatsCluster, Error> {
        NatsCluster::start_with(&NatsOptions::new())
    }

    /// Starts three servers with these options; a port that they name is not used.
    ///
    /// # Errors
    /// As [`start`](NatsCluster::start).
    pub fn start_with(options: &NatsOptions) -> Result<NatsCluster, Error> {
        let options = options.clone().any_port();
        let password = Uuid::new_v4().simple().to_string();
        let mut nodes = Vec::new();
        let mut unfit = Vec::new();
        while nodes.len() < NatsCluster::SIZE {
            let node = Nats::prepare(&options, password.clone())?;
            if TcpListener::bind((Ipv4Addr::LOCALHOST, route_port(&node))).is_ok() {
                nodes.push(node);
            } else if unfit.len() < TRIES {
                // Kept until the end, so that its port is not given out again.
                unfit.push(node);
            } else {
                let port = route_port(&node);
                return Err(Error::PortTaken { program: "nats-server", port });
            }
        }
        let routes: Vec<String> = nodes.iter().map(|node| text(&route(&password, route_port(node)))).collect();
        for node in &nodes {
            let cluster = format!(
                "cluster {{\n  name: tidings\n  host: 127.0.0.1\n  port: {}\n  no_advertise: true\n  \
                 authorization {{ user: {USER}, password: {} }}\n  routes: [{}]\n}}\n",
                route_port(node),
                text(&password),
                routes.join(", "),
            );
            node.configure(&options, &cluster)?;
        }
        for node in &mut nodes {
            node.start_again()?;
        }
        let cluster = NatsCluster { nodes };
        cluster.has_a_leader()?;
        Ok(cluster)
    }

    /// The URLs of all servers, with user and password, separated by commas.
    pub fn url(&self) -> String {
        self.nodes.iter().map(Nats::url).collect::<Vec<_>>().join(",")
    }

    /// Options of async-nats that hold the user and password.
    pub fn connect_options(&self) -> async_nats::ConnectOptions {
        self.nodes[0].connect_options()
    }

    /// All servers.
    pub fn nodes(&self) -> &[Nats] {
        &self.nodes
    }

    /// One of them, to be stopped, killed, frozen and started again.
    ///
    /// # Panics
    /// If there is none of this number; they count from 0.
    pub fn node_mut(&mut self, number: usize) -> &mut Nats {
        &mut self.nodes[number]
    }

    /// Which server leads a stream; `None` while it has no leader.
    ///
    /// # Errors
    /// When nobody answers, or there is no such stream.
    pub fn leader(&self, stream: &str) -> Result<Option<usize>, Error> {
        let answer = self.ask("say who leads a stream", &format!("$JS.API.STREAM.INFO.{stream}"))?;
        let leader = answer["cluster"]["leader"].as_str();
        Ok(self.nodes.iter().position(|node| Some(node.name()) == leader))
    }

    /// Lets the leader of a stream step down; another one is elected.
    ///
    /// # Errors
    /// When nobody answers, or there is no such stream.
    pub fn step_down(&self, stream: &str) -> Result<(), Error> {
        self.ask("let a leader step down", &format!("$JS.API.STREAM.LEADER.STEPDOWN.{stream}")).map(drop)
    }

    fn has_a_leader(&self) -> Result<(), Error> {
        let began = Instant::now();
        loop {
            match self.ask("elect a leader", "$JS.API.INFO") {
                Ok(_) => return Ok(()),
                Err(error) if began.elapsed() > LEADER_LIMIT => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// One request to whichever server can be reached, from anywhere: inside a runtime, outside, on a thread of its own.
    fn ask(&self, doing: &str, subject: &str) -> Result<Value, Error> {
        let failed = |why: String| Error::Broker { doing: doing.to_owned(), why };
        let (servers, options, subject) = (self.url(), self.connect_options(), subject.to_owned());
        let worker = std::thread::Builder::new().name("tidings-services-nats".to_owned()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.map_err(|error| error.to_string())?.block_on(request(servers, options, subject))
        });
        let asked = worker.map_err(|error| failed(error.to_string()))?.join();
        asked.unwrap_or_else(|_| Err("the thread that asked it panicked".to_owned())).map_err(failed)
    }
}

async fn request(servers: String, options: async_nats::ConnectOptions, subject: String) -> Result<Value, String> {
    let servers: Vec<&str> = servers.split(',').collect();
    let options = options.connection_timeout(ANSWER_LIMIT).request_timeout(Some(ANSWER_LIMIT));
    // The kind only: the source of the error may hold the URL.
    let client = options.connect(servers).await.map_err(|error| error.kind().to_string())?;
    let answer = client.request(subject, Vec::new().into()).await.map_err(|error| error.to_string())?;
    let answer: Value = serde_json::from_slice(&answer.payload).map_err(|error| error.to_string())?;
    match &answer["error"] {
        Value::Null => Ok(answer),
        error => Err(error["description"].as_str().unwrap_or("an error without a description").to_owned()),
    }
}

/// Where a server listens for the others: below the ports that servers are given, at a distance that no two share.
fn route_port(node: &Nats) -> u16 {
    node.port() - ROUTES_BELOW
}

fn route(password: &str, port: u16) -> String {
    format!("nats://{USER}:{password}@127.0.0.1:{port}")
}

const ROUTES_BELOW: u16 = 12_000;
const TRIES: usize = 20;
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
const LEADER_LIMIT: Duration = Duration::from_secs(60);
