//! What goes wrong, done.

use std::time::Duration;

use async_nats::jetstream::stream::Config;
use nix::sys::signal::Signal;
use tidings::services::proxy::{Direction, Proxy};

use super::Error;
use super::plan::{Away, Fault, Held, Thief};
use super::relays::{Relay, Relays};
use super::world::{Broker, World};
use super::writer::connect;

/// Where a schedule's faults strike.
#[derive(Debug, Clone)]
pub struct Target {
    /// The servers.
    pub world: World,
    /// The relays.
    pub relays: Relays,
    /// The database, past all proxies.
    pub database: String,
    /// The streams of the partitions begin with this.
    pub stream: String,
}

impl Target {
    /// Strikes; returns when the fault is over.
    ///
    /// # Errors
    /// When a server does not come back, or a process cannot be started.
    pub async fn strike(self, fault: Fault) -> Result<(), Error> {
        match fault {
            Fault::KillRelay { relay, away } => {
                let mut relay = self.relays[relay].lock().await;
                relay.kill().await;
                tokio::time::sleep(away).await;
                Ok(relay.start()?)
            }
            Fault::FreezeRelay { relay, time } => {
                let relay = self.relays[relay].lock().await;
                relay.signal(Signal::SIGSTOP);
                tokio::time::sleep(time).await;
                relay.signal(Signal::SIGCONT);
                Ok(())
            }
            Fault::DrainRelay { relay, away } => {
                let mut relay = self.relays[relay].lock().await;
                relay.signal(Signal::SIGTERM);
                relay.gone(Duration::from_secs(30)).await;
                tokio::time::sleep(away).await;
                Ok(relay.start()?)
            }
            Fault::AtPoint { relay, at, point, count } => {
                let mut relay = self.relays[relay].lock().await;
                relay.kill().await;
                Ok(relay.start_told(Some((at, point, count)))?)
            }
            Fault::Steal { partition, thief } => self.steal(partition, thief).await,
            Fault::Clock { ahead } => self.execute(&clock(ahead)).await,
            Fault::SetAside { rows, time } => {
                self.execute(&set_aside(rows)).await?;
                tokio::time::sleep(time).await;
                self.execute(RESOLVE).await
            }
            Fault::CutBroker { relay, held, time } => {
                let relay = self.relays[relay].lock().await;
                cut(&relay, &relay.nats, held, time).await;
                Ok(())
            }
            Fault::LateBroker { relay, time } => {
                let relay = self.relays[relay].lock().await;
                relay.nats.iter().for_each(|proxy| proxy.freeze_only(Direction::ToServer));
                tokio::time::sleep(time).await;
                relay.nats.iter().for_each(Proxy::thaw);
                Ok(())
            }
            Fault::CutDatabase { relay, held, time } => {
                let relay = self.relays[relay].lock().await;
                cut(&relay, std::slice::from_ref(&relay.postgres), held, time).await;
                Ok(())
            }
            Fault::Broker { node, how, time } => {
                self.blocking(move |target| {
                    let mut broker = target.world.broker();
                    let nats = broker.node_mut(node);
                    match how {
                        Away::Stopped => nats.stop()?,
                        Away::Killed => nats.kill(),
                        Away::Frozen => nats.freeze(),
                    }
                    std::thread::sleep(time);
                    nats.thaw();
                    nats.start_again()
                })
                .await
            }
            Fault::Database { how, time } => {
                self.blocking(move |target| {
                    let mut postgres = target.world.postgres();
                    match how {
                        Away::Stopped => postgres.stop()?,
                        Away::Killed => postgres.kill(),
                        Away::Frozen => postgres.freeze(),
                    }
                    std::thread::sleep(time);
                    postgres.thaw();
                    postgres.start_again()
                })
                .await
            }
            Fault::Full { partition, times } => {
                let (options, servers) = super::broker(&self.world).await?;
                let stream = format!("{}_{partition}", self.stream);
                fill(options, &servers, &stream, times).await
            }
            Fault::StepDown { partition } => {
                self.blocking(move |target| {
                    let Broker::Three(cluster) = &*target.world.broker() else { return Ok(()) };
                    // One that has no leader just now has had its change of leader.
                    let _ = cluster.step_down(&format!("{}_{partition}", target.stream));
                    Ok(())
                })
                .await
            }
            Fault::KillLeader { partition, time } => {
                self.blocking(move |target| {
                    let Broker::Three(cluster) = &mut *target.world.broker() else { return Ok(()) };
                    let stream = format!("{}_{partition}", target.stream);
                    let leader = cluster.leader(&stream).ok().flatten().unwrap_or(0);
                    cluster.node_mut(leader).kill();
                    std::thread::sleep(time);
                    cluster.node_mut(leader).start_again()
                })
                .await
            }
        }
    }

    async fn steal(&self, partition: i32, thief: Thief) -> Result<(), Error> {
        let lease = "lease_until = now() + interval '1 second', lease_ttl = interval '1 second'";
        let set = match thief {
            Thief::Ghost => format!("owner = gen_random_uuid(), {lease}"),
            Thief::Other => format!(
                "owner = coalesce((SELECT n.id FROM tidings.node n WHERE n.id IS DISTINCT FROM p.owner \
                 ORDER BY n.heartbeat_at DESC LIMIT 1), gen_random_uuid()), {lease}"
            ),
            Thief::Nobody => "owner = NULL, lease_until = now(), lease_ttl = NULL".to_owned(),
        };
        self.execute(&format!("UPDATE tidings.partition p SET epoch = epoch + 1, {set} WHERE id = {partition}")).await
    }

    /// A statement at the database; one that is away just now is another fault's doing, and comes back.
    async fn execute(&self, sql: &str) -> Result<(), Error> {
        for _ in 0..300 {
            if let Ok(client) = connect(&self.database).await
                && client.batch_execute(sql).await.is_ok()
            {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Err(format!("the database did not take: {sql}").into())
    }

    async fn blocking(
        self,
        what: impl FnOnce(&Target) -> Result<(), tidings::services::Error> + Send + 'static,
    ) -> Result<(), Error> {
        Ok(tokio::task::spawn_blocking(move || what(&self)).await??)
    }
}

/// As the database's times stand after its clock was set by an hour; the clock itself belongs to the machine.
fn clock(ahead: bool) -> String {
    let by = if ahead { "+ interval '1 hour'" } else { "- interval '1 hour'" };
    format!(
        "UPDATE tidings.partition SET lease_until = lease_until {by}; \
         UPDATE tidings.node SET heartbeat_at = heartbeat_at {by}; \
         UPDATE tidings.pending SET next_attempt_at = next_attempt_at {by} WHERE state = 'retrying'"
    )
}

/// What an operator, or the relay itself, does with events that cannot go on.
fn set_aside(rows: usize) -> String {
    format!(
        "UPDATE tidings.pending p SET state = 'dead', last_error = 'set aside by a schedule' FROM (
            SELECT partition, seq FROM tidings.pending WHERE state = 'ready' ORDER BY seq DESC LIMIT {rows} FOR UPDATE SKIP LOCKED
         ) chosen WHERE p.partition = chosen.partition AND p.seq = chosen.seq"
    )
}

/// Redrive of some, discard of the others; what has no version leaves no tombstone. The time is the hint by which a relay that
/// holds the lane finds it.
const RESOLVE: &str = "
    UPDATE tidings.pending p SET last_error = NULL, next_attempt_at = now(),
           state = CASE WHEN e.version IS NULL OR e.seq % 2 = 0 THEN 'ready'::tidings.pending_state ELSE 'tombstone' END
      FROM tidings.event e WHERE e.seq = p.seq AND p.state = 'dead'";

async fn cut(relay: &Relay, proxies: &[Proxy], held: Held, time: Duration) {
    let direction = match held {
        Held::Nothing => None,
        Held::Sent => Some(Direction::ToServer),
        Held::Answers => Some(Direction::ToClient),
        Held::All => Some(Direction::Both),
    };
    if let Some(direction) = direction {
        proxies.iter().for_each(|proxy| proxy.freeze_only(direction));
        tokio::time::sleep(time).await;
    }
    proxies.iter().for_each(Proxy::cut);
    relay.heal();
}

/// Lets a stream be full for a moment, again and again, so that it refuses a message and takes the next one. One that does not
/// answer is another fault's doing, but in the end there is room.
async fn fill(options: async_nats::ConnectOptions, servers: &str, stream: &str, times: usize) -> Result<(), Error> {
    let servers: Vec<async_nats::ServerAddr> = servers.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let context = async_nats::jetstream::new(options.retry_on_initial_connect().connect(servers).await?);
    for _ in 0..times {
        let Ok(there) = context.get_stream(stream).await else { continue };
        let info = there.cached_info();
        let full = i64::try_from(info.state.messages.max(1))?;
        let _ = context.update_stream(Config { max_messages: full, ..info.config.clone() }).await;
        tokio::time::sleep(Duration::from_millis(2)).await;
        let _ = context.update_stream(Config { max_messages: -1, ..info.config.clone() }).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for _ in 0..100 {
        if let Ok(there) = context.get_stream(stream).await
            && context.update_stream(Config { max_messages: -1, ..there.cached_info().config.clone() }).await.is_ok()
        {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Err(format!("the stream {stream} cannot be given room again").into())
}
