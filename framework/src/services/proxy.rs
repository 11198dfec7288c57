//! A TCP proxy in front of a server that makes the network bad: slow, silent, cut.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// Which of the two streams of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// What the client sends: the server hears nothing, and the client still hears the server.
    ToServer,
    /// What the server sends: requests arrive and are done, and their answers do not come back.
    ToClient,
    /// Both.
    Both,
}

/// A TCP proxy from a free port on 127.0.0.1 to a server's port there.
///
/// It works on a thread of its own, so it can be used inside any runtime and outside of one. Changes hold at once, for
/// the connections there are and for new ones. Dropping it closes all connections.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    state: watch::Sender<State>,
    connections: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy to a port on 127.0.0.1. Nothing need listen there yet; a connection that cannot be made to it is
    /// closed.
    ///
    /// # Errors
    /// When no port can be bound or no thread started.
    pub fn start(target_port: u16) -> io::Result<Proxy> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let (state, seen) = watch::channel(State::default());
        let connections = Arc::new(AtomicUsize::new(0));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let open = Arc::clone(&connections);
        let thread = std::thread::Builder::new()
            .name(format!("tidings-proxy-{port}"))
            .spawn(move || runtime.block_on(accept(listener, target_port, seen, open)))?;
        Ok(Proxy { port, state, connections, thread: Some(thread) })
    }

    /// The port on 127.0.0.1 to connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How many connections are open through it.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Acquire)
    }

    /// What arrives from now on is passed on only after this time, in both directions. Order and throughput stay. Zero
    /// ends it.
    pub fn delay(&self, delay: Duration) {
        self.state.send_modify(|state| state.delay = delay);
    }

    /// Holds everything in both directions. Connections stay open, new ones are accepted and hear nothing.
    pub fn freeze(&self) {
        self.freeze_only(Direction::Both);
    }

    /// Holds everything in one direction; what is held in the other one stays held.
    pub fn freeze_only(&self, direction: Direction) {
        self.state.send_modify(|state| {
            state.to_server_frozen |= direction != Direction::ToClient;
            state.to_client_frozen |= direction != Direction::ToServer;
        });
    }

    /// Passes on what was held, in order, and everything after it.
    pub fn thaw(&self) {
        self.state.send_modify(|state| {
            state.to_server_frozen = false;
            state.to_client_frozen = false;
        });
    }

    /// Closes the connections that are open now, on both sides; what is under way in them is lost. New ones are accepted.
    pub fn cut(&self) {
        self.state.send_modify(|state| state.cuts += 1);
    }

    /// `true`: new connections are closed as soon as they are made, those that are open stay. `false`: they are taken
    /// again.
    pub fn refuse(&self, refuse: bool) {
        self.state.send_modify(|state| state.refuse = refuse);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.send_modify(|state| state.closed = true);
        if let Some(thread) = self.thread.take() {
            // It panics only by a defect, which has been printed then.
            let _ = thread.join();
        }
    }
}

#[derive(Debug, Clone, Default)]
struct State {
    delay: Duration,
    to_server_frozen: bool,
    to_client_frozen: bool,
    cuts: u64,
    refuse: bool,
    closed: bool,
}

impl State {
    fn is_frozen(&self, direction: Direction) -> bool {
        match direction {
            Direction::ToServer => self.to_server_frozen,
            Direction::ToClient => self.to_client_frozen,
            Direction::Both => self.to_server_frozen && self.to_client_frozen,
        }
    }
}

async fn accept(listener: std::net::TcpListener, target: u16, state: watch::Receiver<State>, open: Arc<AtomicUsize>) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "the proxy cannot listen");
            return;
        }
    };
    let mut connections = JoinSet::new();
    let mut watched = state.clone();
    loop {
        tokio::select! {
            _ = watched.wait_for(|state| state.closed) => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else {
                    // Out of file handles, most likely; asking again at once would only burn time.
                    tokio::time::sleep(AFTER_REFUSAL).await;
                    continue;
                };
                let current = state.borrow().clone();
                if !current.refuse {
                    connections.spawn(connect(client, target, current.cuts, state.clone(), Counted::new(&open)));
                }
            }
        }
    }
    connections.shutdown().await;
}

/// Serves one connection until both sides have ended it or it is cut.
async fn connect(client: TcpStream, target: u16, cuts: u64, state: watch::Receiver<State>, _counted: Counted) {
    let mut watched = state.clone();
    tokio::select! {
        _ = watched.wait_for(|state| state.cuts != cuts || state.closed) => {}
        () = join(client, target, state) => {}
    }
}

async fn join(client: TcpStream, target: u16, state: watch::Receiver<State>) {
    let Ok(server) = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, target))).await else { return };
    // It must not add waiting of its own.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // An end of one stream is passed on as such; an error in one ends the connection.
    let _ = tokio::try_join!(
        carry(from_client, to_server, Direction::ToServer, state.clone()),
        carry(from_server, to_client, Direction::ToClient, state),
    );
}

async fn carry(
    from: OwnedReadHalf,
    to: OwnedWriteHalf,
    direction: Direction,
    state: watch::Receiver<State>,
) -> io::Result<()> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let delays = state.clone();
    tokio::try_join!(read(from, sender, delays), write(to, receiver, direction, state)).map(|_| ())
}

async fn read(
    mut from: OwnedReadHalf,
    queue: mpsc::Sender<(Instant, Vec<u8>)>,
    state: watch::Receiver<State>,
) -> io::Result<()> {
    loop {
        let mut bytes = Vec::with_capacity(CHUNK);
        if from.read_buf(&mut bytes).await? == 0 {
            return Ok(());
        }
        let due = Instant::now() + state.borrow().delay;
        if queue.send((due, bytes)).await.is_err() {
            return Ok(());
        }
    }
}

async fn write(
    mut to: OwnedWriteHalf,
    mut queue: mpsc::Receiver<(Instant, Vec<u8>)>,
    direction: Direction,
    mut state: watch::Receiver<State>,
) -> io::Result<()> {
    while let Some((due, bytes)) = queue.recv().await {
        sleep_until(due).await;
        if state.wait_for(|state| !state.is_frozen(direction)).await.is_err() {
            return Ok(());
        }
        to.write_all(&bytes).await?;
    }
    if state.wait_for(|state| !state.is_frozen(direction)).await.is_err() {
        return Ok(());
    }
    to.shutdown().await
}

/// Counts a connection for as long as it is served.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(open: &Arc<AtomicUsize>) -> Counted {
        open.fetch_add(1, Ordering::AcqRel);
        Counted(Arc::clone(open))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

const CHUNK: usize = 16 * 1024;
/// How many chunks a direction holds before the sender is no longer read from.
const QUEUE: usize = 256;
const AFTER_REFUSAL: Duration = Duration::from_millis(20);
