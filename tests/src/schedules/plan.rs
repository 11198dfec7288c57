//! What a seed stands for: the settings of the relays, and the faults in their order.

use std::fmt;
use std::time::Duration;

use super::dice::Dice;

/// The broker of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Servers {
    /// One nats-server.
    One,
    /// A cluster of three, streams with three replicas.
    Three,
}

/// A schedule: everything in it follows from the seed and the number of servers.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// The broker.
    pub servers: Servers,
    /// The relays.
    pub settings: Settings,
    /// In their order.
    pub steps: Vec<Step>,
}

/// The settings of a schedule's relays and writers.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How many processes.
    pub relays: usize,
    /// How many partitions.
    pub partitions: u16,
    /// `Relay::lease`.
    pub lease: Duration,
    /// `JetStream::ack_timeout`.
    pub ack: Duration,
    /// `JetStream::duplicate_window`: a short one hides no repeat.
    pub duplicate_window: Duration,
    /// `Relay::window`.
    pub window: usize,
    /// `Relay::in_flight`.
    pub in_flight: usize,
    /// `JetStream::atomic_batches`.
    pub batches: bool,
    /// `Relay::connections`.
    pub connections: usize,
    /// Events appended before a relay starts.
    pub backlog: usize,
}

/// One fault, and when.
#[derive(Debug, Clone)]
pub struct Step {
    /// After the step before.
    pub wait: Duration,
    /// So many events are appended at once then,
    pub burst: usize,
    /// and so long afterwards the fault strikes, in the middle of a run.
    pub then: Duration,
    /// What happens.
    pub fault: Fault,
}

/// What a process is told to do at a named point of the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// Kill itself.
    Kill,
    /// Stand still until its lease is over.
    Stand,
}

/// What is held in a connection before it is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// Nothing: what is under way at that moment is lost.
    Nothing,
    /// What the relay sends is lost.
    Sent,
    /// What the relay sends arrives, and no answer comes back.
    Answers,
    /// Both ways.
    All,
}

/// How a server goes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Away {
    /// Stopped in good order and started again.
    Stopped,
    /// `kill -9` and started again.
    Killed,
    /// SIGSTOP and SIGCONT.
    Frozen,
}

/// Who gets a stolen lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thief {
    /// A node that does not exist, for a while.
    Ghost,
    /// Another relay of the schedule.
    Other,
    /// Nobody.
    Nobody,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the text of each, below, says what it is")]
pub enum Fault {
    KillRelay { relay: usize, away: Duration },
    FreezeRelay { relay: usize, time: Duration },
    DrainRelay { relay: usize, away: Duration },
    AtPoint { relay: usize, at: At, point: &'static str, count: usize },
    Steal { partition: i32, thief: Thief },
    Clock { ahead: bool },
    SetAside { rows: usize, time: Duration },
    CutBroker { relay: usize, held: Held, time: Duration },
    LateBroker { relay: usize, time: Duration },
    CutDatabase { relay: usize, held: Held, time: Duration },
    Broker { node: usize, how: Away, time: Duration },
    Database { how: Away, time: Duration },
    Full { partition: i32, times: usize },
    StepDown { partition: i32 },
    KillLeader { partition: i32, time: Duration },
}

impl Plan {
    /// The plan of a seed.
    pub fn of(seed: u64, servers: Servers) -> Plan {
        let mut dice = Dice::new(seed);
        let settings = settings(&mut dice, servers);
        let mut steps = Vec::new();
        for number in 0..dice.of(4..=6) {
            steps.push(Step {
                wait: dice.millis(100..=1_000),
                burst: dice.of(120..=400),
                then: dice.millis(0..=60),
                fault: fault(&mut dice, servers, &settings, number),
            });
        }
        Plan { seed, servers, settings, steps }
    }

    /// Dice for those who write, apart from those that made the plan.
    pub fn writers(&self) -> Dice {
        Dice::new(!self.seed)
    }
}

fn settings(dice: &mut Dice, servers: Servers) -> Settings {
    Settings {
        relays: dice.of(2..=3),
        partitions: dice.one(&[1, 2, 2, 4]),
        lease: dice.millis(1_200..=2_500),
        ack: match servers {
            Servers::One => dice.millis(500..=1_500),
            Servers::Three => dice.millis(1_500..=3_000),
        },
        duplicate_window: dice.one(&[Duration::from_millis(150), Duration::from_millis(150), Duration::from_secs(120)]),
        window: dice.one(&[50, 200, 1_000]),
        in_flight: dice.one(&[16, 64, 256, 1_000]),
        batches: dice.percent(25),
        connections: dice.one(&[1, 2, 4]),
        backlog: dice.of(400..=1_000),
    }
}

fn fault(dice: &mut Dice, servers: Servers, settings: &Settings, number: usize) -> Fault {
    let relay = dice.of(0..=settings.relays - 1);
    let partition = i32::try_from(dice.of(0..=usize::from(settings.partitions) - 1)).unwrap_or(0);
    let past_the_lease = settings.lease + settings.lease / 3 + dice.millis(0..=700);
    let held = dice.one(&[Held::Nothing, Held::Sent, Held::Answers, Held::All]);
    let how = dice.one(&[Away::Stopped, Away::Killed, Away::Frozen]);
    let away = dice.millis(50..=1_200);
    let cut_after = dice.millis(0..=400);
    let kind = match servers {
        // The first of them is what only a cluster has.
        Servers::Three if number == 0 => dice.of(30..=33),
        Servers::Three => dice.of(0..=33),
        Servers::One => dice.of(0..=29),
    };
    match kind {
        0..=2 => Fault::KillRelay { relay, away },
        3..=5 => Fault::FreezeRelay { relay, time: past_the_lease },
        6 => Fault::DrainRelay { relay, away },
        7..=9 => {
            let (point, most) = dice.one(&POINTS);
            let at = dice.one(&[At::Kill, At::Kill, At::Stand]);
            Fault::AtPoint { relay, at, point, count: dice.of(1..=most) }
        }
        10..=12 => {
            Fault::Steal { partition, thief: dice.one(&[Thief::Ghost, Thief::Other, Thief::Other, Thief::Nobody]) }
        }
        13 => Fault::Clock { ahead: dice.percent(50) },
        14..=17 => Fault::CutBroker { relay, held, time: cut_after },
        18 => Fault::CutDatabase { relay, held, time: cut_after },
        // Cut off from the database until another relay has its partitions.
        19 => Fault::CutDatabase { relay, held: Held::All, time: past_the_lease },
        20..=21 => Fault::Broker { node: dice.of(0..=2), how, time: away },
        22..=23 => Fault::Database { how, time: away },
        24 => Fault::SetAside { rows: dice.of(3..=30), time: dice.millis(100..=1_500) },
        // Before and after the relay gives up on the answers, and after another one has its partitions.
        25 => Fault::LateBroker { relay, time: settings.ack.mul_f64(0.5) + dice.millis(0..=1_500) },
        26 => Fault::LateBroker { relay, time: past_the_lease },
        27..=29 => Fault::Full { partition, times: dice.of(3..=30) },
        30..=32 => Fault::StepDown { partition },
        _ => Fault::KillLeader { partition, time: away },
    }
}

/// Points of the relay, and at which of their visits something may happen.
const POINTS: [(&str, usize); 5] = [
    ("relay::beat", 6),
    ("relay::claimed", 20),
    ("relay::sent", 150),
    ("relay::acknowledged", 150),
    ("relay::confirmed", 10),
];

impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Servers::One => "one",
            Servers::Three => "three",
        })
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, nodes {}, {:?}", self.seed, self.servers, self.settings)?;
        for (number, step) in self.steps.iter().enumerate() {
            writeln!(
                f,
                "  {}. after {:?} {} events at once, {:?} later: {}",
                number + 1,
                step.wait,
                step.burst,
                step.then,
                step.fault
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::KillRelay { relay, away } => write!(f, "kill -9 of relay {relay}, started again after {away:?}"),
            Fault::FreezeRelay { relay, time } => write!(f, "SIGSTOP of relay {relay}, SIGCONT after {time:?}"),
            Fault::DrainRelay { relay, away } => write!(f, "SIGTERM to relay {relay}, started again after {away:?}"),
            Fault::AtPoint { relay, at, point, count } => {
                let what = match at {
                    At::Kill => "kills itself",
                    At::Stand => "stands still past its lease",
                };
                write!(f, "relay {relay} is killed, and the next one {what} at {point}, visit {count}")
            }
            Fault::Steal { partition, thief } => match thief {
                Thief::Ghost => write!(f, "the lease of partition {partition} goes to a node that does not exist"),
                Thief::Other => write!(f, "the lease of partition {partition} goes to another relay"),
                Thief::Nobody => write!(f, "the lease of partition {partition} is taken away"),
            },
            Fault::Clock { ahead } => {
                let way = if *ahead { "back" } else { "ahead" };
                write!(
                    f,
                    "the database's clock is set {way} by an hour: leases, heartbeats and retries are that far off"
                )
            }
            Fault::SetAside { rows, time } => {
                write!(
                    f,
                    "{rows} pending rows are set aside as dead; after {time:?} some go on, the others as tombstones"
                )
            }
            Fault::CutBroker { relay, held, time } => {
                write!(f, "relay {relay} and the broker: {held} for {time:?}, then the connections are cut")
            }
            Fault::LateBroker { relay, time } => {
                write!(f, "what relay {relay} sends to the broker comes in {time:?} late, whoever has given up on it")
            }
            Fault::CutDatabase { relay, held, time } => {
                write!(f, "relay {relay} and the database: {held} for {time:?}, then the connections are cut")
            }
            Fault::Broker { node, how, time } => {
                write!(f, "nats-server {node} (of those there are): {how} for {time:?}")
            }
            Fault::Database { how, time } => write!(f, "PostgreSQL: {how} for {time:?}"),
            Fault::Full { partition, times } => {
                write!(f, "the stream of partition {partition} is full for some milliseconds, {times} times")
            }
            Fault::StepDown { partition } => write!(f, "the leader of the stream of partition {partition} steps down"),
            Fault::KillLeader { partition, time } => {
                write!(f, "kill -9 of the leader of the stream of partition {partition}, started again after {time:?}")
            }
        }
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Held::Nothing => "nothing is held",
            Held::Sent => "what it sends is held",
            Held::Answers => "what it is answered is held",
            Held::All => "everything is held",
        })
    }
}

impl fmt::Display for Away {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Away::Stopped => "stopped",
            Away::Killed => "killed",
            Away::Frozen => "frozen",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_one_plan_for_ever() {
        let text = |seed, servers| Plan::of(seed, servers).to_string();
        for seed in 0..200 {
            assert_eq!(text(seed, Servers::Three), text(seed, Servers::Three));
            let plan = Plan::of(seed, Servers::Three);
            assert!(plan.steps.len() >= 3);
            assert!(matches!(plan.steps[0].fault, Fault::StepDown { .. } | Fault::KillLeader { .. }));
        }
        assert_ne!(text(1, Servers::One), text(2, Servers::One));
    }
}
