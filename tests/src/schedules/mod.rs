//! Random schedules of faults, each followed by a check of everything that was promised.
//!
//! A schedule is a seed: its [`plan`] says how the relays are set and what goes wrong, and when. Writers append meanwhile, as
//! services do, with rollbacks and late commits. In the end everything is healed; then the [`checker`] reads streams and
//! tables, with none of the framework's code, and says what cannot be. Processes and a machine's timing are not repeatable;
//! the same seed strikes the same faults at the same moments.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidings::services::proxy::Proxy;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

pub mod checker;
pub mod dice;
pub mod faults;
pub mod plan;
pub mod relays;
pub mod report;
pub mod world;
pub mod writer;

use checker::Told;
use faults::Target;
use plan::{Plan, Servers};
use relays::{Relay, Relays};
use world::World;
use writer::{Ledger, Writer, answers};

/// What may go wrong beside what is meant to.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// The argument that makes this program a relay.
pub const NODE: &str = "relay-node";

/// A check that the relays leave out, so that the checker must find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// Confirmations do not ask for owner and epoch.
    Epoch,
    /// Messages do not say what must precede them.
    Sequence,
}

impl Broken {
    /// The failpoint that leaves it out.
    pub fn point(self) -> &'static str {
        match self {
            Broken::Epoch => "relay::skip-epoch-check",
            Broken::Sequence => "relay::skip-expected-sequence",
        }
    }
}

/// What came out of a schedule.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// What cannot be; nothing, if all is well.
    pub violations: Vec<String>,
    /// Committed events.
    pub events: usize,
    /// Messages in the streams that repeat one before.
    pub repeats: usize,
    /// Changes of owner.
    pub takeovers: usize,
    /// All in all.
    pub took: Duration,
    /// Until everything was published, once nothing more went wrong.
    pub settled: Duration,
    /// What the relays said; kept where something is wrong.
    pub logs: PathBuf,
}

/// Runs a schedule on servers that are otherwise unused.
///
/// # Errors
/// What has nothing to do with what is checked, such as a server that does not come back.
pub async fn run(world: &World, plan: &Plan, broken: Option<Broken>) -> Result<Outcome, Error> {
    let began = Instant::now();
    let name = format!("schedule_{}_{}", plan.seed, uuid::Uuid::new_v4().simple());
    let folder = std::env::temp_dir().join("tidings-schedules").join(&name);
    std::fs::create_dir_all(&folder)?;

    let (database, relays) = prepare(world, plan, broken, &name, &folder).await?;
    let ledger = Arc::new(Ledger::default());
    let mut dice = plan.writers();
    let mut bursts = Writer::new(Arc::clone(&ledger), dice.apart(), "burst".to_owned(), false);
    bursts.burst(&database, plan.settings.backlog).await;

    for relay in relays.iter() {
        relay.lock().await.start()?;
    }
    let mut keeping = JoinSet::new();
    keeping.spawn(relays::keep(Arc::clone(&relays)));
    let mut writing = JoinSet::new();
    for number in 0..WRITERS {
        let slow = number + SLOW_WRITERS >= WRITERS;
        let writer = Writer::new(Arc::clone(&ledger), dice.apart(), format!("writer{number}"), slow);
        writing.spawn(writer.run(database.clone()));
    }

    let target = Target {
        world: world.clone(),
        relays: Arc::clone(&relays),
        database: database.clone(),
        stream: name.replace('_', "=5F"),
    };
    let mut striking = JoinSet::new();
    for step in &plan.steps {
        tokio::time::sleep(step.wait).await;
        bursts.burst(&database, step.burst).await;
        tokio::time::sleep(step.then).await;
        striking.spawn(target.clone().strike(step.fault));
        // More comes while it strikes, so that what is behind a hole is there to be published.
        bursts.burst(&database, step.burst / 2).await;
    }
    while let Some(struck) = striking.join_next().await {
        struck??;
    }
    while ledger.count() < EVENTS {
        bursts.burst(&database, 200).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    ledger.enough();
    while let Some(written) = writing.join_next().await {
        written?;
    }
    for relay in relays.iter() {
        relay.lock().await.heal();
    }

    let healed = Instant::now();
    settle(&database, if broken.is_some() { SETTLES_BROKEN } else { SETTLES }).await?;
    let settled = healed.elapsed();
    keeping.shutdown().await;
    let mut violations = Vec::new();
    for relay in relays.iter() {
        let mut relay = relay.lock().await;
        relay.kill().await;
        violations.extend(relay.complaints());
    }
    let mut outcome = check(world, &name, &database, &ledger).await?;
    outcome.violations.extend(violations);
    clear(world, &name, &folder, outcome.violations.is_empty()).await?;
    Ok(Outcome { took: began.elapsed(), settled, logs: folder, ..outcome })
}

/// A database of its own, the witness in it, and the relays, not yet started.
async fn prepare(
    world: &World,
    plan: &Plan,
    broken: Option<Broken>,
    name: &str,
    folder: &std::path::Path,
) -> Result<(String, Relays), Error> {
    let partitions = plan.settings.partitions;
    let (world, plan, name, folder) = (world.clone(), plan.clone(), name.to_owned(), folder.to_owned());
    let preparing = tokio::task::spawn_blocking(move || -> Result<(String, Vec<Mutex<Relay>>), Error> {
        let (postgres, broker) = (world.postgres(), world.broker());
        postgres.create_database(&name)?;
        let replicas = broker.nodes().len();
        let mut relays = Vec::new();
        for number in 0..plan.settings.relays {
            let proxy = Proxy::start(postgres.port())?;
            let url = postgres.url_through(&proxy, &name);
            let settings = (&plan.settings, replicas);
            let mut relay = Relay::new(number, broker.proxies()?, (proxy, url), &name, settings, &folder);
            if let Some(broken) = broken {
                relay.tell("BREAK", broken.point());
            }
            relays.push(Mutex::new(relay));
        }
        Ok((postgres.url_of(&name), relays))
    });
    let (database, relays) = preparing.await??;
    tidings::migrate(&tidings::Database::url(&database).partitions(partitions)).await?;
    answers(&database, ANSWERS).await?.batch_execute(checker::WITNESS).await?;
    Ok((database, Arc::new(relays)))
}

/// Waits until nothing is pending; what is after this time is for the checker to say.
async fn settle(database: &str, within: Duration) -> Result<(), Error> {
    let began = Instant::now();
    let mut client = answers(database, ANSWERS).await?;
    while began.elapsed() < within {
        match client.query_one("SELECT count(*) FROM tidings.pending", &[]).await {
            Ok(row) if row.get::<_, i64>(0) == 0 => break,
            Ok(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            Err(_) => client = answers(database, ANSWERS).await?,
        }
    }
    Ok(())
}

async fn check(world: &World, source: &str, database: &str, ledger: &Ledger) -> Result<Outcome, Error> {
    let (options, servers) = broker(world).await?;
    let tables = checker::read_tables(&answers(database, ANSWERS).await?).await?;
    let streams = checker::read_streams(options, &servers, source).await?;
    let told = Told { committed: &ledger.committed(), undone: &ledger.undone() };
    let messages: usize = streams.iter().map(|stream| stream.messages.len()).sum();
    let ids = streams.iter().flat_map(|stream| &stream.messages).filter_map(|message| message.header("ce-id"));
    Ok(Outcome {
        violations: checker::judge(source, &tables, &streams, told),
        events: tables.events.len(),
        repeats: messages - ids.collect::<std::collections::HashSet<_>>().len(),
        takeovers: tables.owners.iter().filter(|change| change.owner.is_some()).count(),
        ..Outcome::default()
    })
}

/// Removes what a schedule leaves, so that the next one finds quiet servers; the logs only where nothing is wrong.
async fn clear(world: &World, name: &str, folder: &std::path::Path, well: bool) -> Result<(), Error> {
    let (options, servers) = broker(world).await?;
    // A cluster that has just lost a server may refuse; what stays is in nobody's way.
    let _ = checker::remove_streams(options, &servers, name).await;
    let (world, name) = (world.clone(), name.to_owned());
    tokio::task::spawn_blocking(move || world.postgres().drop_database(&name)).await??;
    if well {
        std::fs::remove_dir_all(folder)?;
    }
    Ok(())
}

/// How the broker is reached past all proxies.
async fn broker(world: &World) -> Result<(async_nats::ConnectOptions, String), Error> {
    let world = world.clone();
    let asked = tokio::task::spawn_blocking(move || {
        let broker = world.broker();
        let urls: Vec<String> = broker.nodes().iter().map(tidings::services::Nats::url).collect();
        (broker.nodes()[0].connect_options(), urls.join(","))
    });
    Ok(asked.await?)
}

/// The servers of a plan: with mixed ones every fourth seed gets three.
pub fn servers_of(seed: u64, chosen: Option<Servers>) -> Servers {
    chosen.unwrap_or(if seed.is_multiple_of(4) { Servers::Three } else { Servers::One })
}

/// At least so many events has a schedule.
pub const EVENTS: usize = 2_000;
const WRITERS: usize = 5;
const SLOW_WRITERS: usize = 2;
const ANSWERS: Duration = Duration::from_secs(60);
/// Long enough for the slowest machine; a lane that is stuck is stuck for ever.
const SETTLES: Duration = Duration::from_secs(90);
const SETTLES_BROKEN: Duration = Duration::from_secs(15);
