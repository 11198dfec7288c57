//! From readings to alarms: what a host watches, from which limit on it says so, and what it says.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use super::backlog::Backlog;
use super::board::Notice;
use crate::protocol::alarm::{Change, Kind, Level, Watch};
use crate::protocol::lease::Partition;

/// What a host watches, and from which limit on it raises an alarm: a line in the log, the metric `tidings_alarm`, and the
/// callback of [`Tidings::on_alarm`](crate::Tidings::on_alarm), once when it is raised and once when it is over.
///
/// Every process that has a relay watches by itself, with one statement every 10 s, whose cost does not grow with what
/// waits; a process without one watches if it is told to, and then says it, too, when there is no relay anywhere. Each
/// alarm, and what to do about it, is in `docs/operating.md`.
///
/// ```
/// use std::time::Duration;
/// use tidings::Alarms;
///
/// let alarms = Alarms::default().oldest_pending(Duration::from_secs(300)).pending(100_000).dead(10);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alarms {
    pub(crate) every: Duration,
    pub(crate) report: Option<Duration>,
    oldest_pending: Duration,
    pending: u64,
    held: Duration,
    dead: u64,
    unroutable: Duration,
    unconfirmed: Duration,
    unowned: Duration,
    no_able_node: Duration,
    paused: Duration,
    blind: Duration,
}

impl Default for Alarms {
    fn default() -> Self {
        Alarms {
            every: Duration::from_secs(10),
            report: None,
            oldest_pending: Duration::from_secs(60),
            pending: 10_000,
            held: Duration::from_secs(60),
            dead: 1,
            unroutable: Duration::from_secs(30),
            unconfirmed: Duration::from_secs(60),
            unowned: Duration::from_secs(60),
            no_able_node: Duration::from_secs(60),
            paused: Duration::from_secs(15 * 60),
            blind: Duration::from_secs(60),
        }
    }
}

impl Alarms {
    /// How often to look. An alarm takes two looks. Default 10 s.
    pub fn every(mut self, every: Duration) -> Self {
        self.every = every;
        self
    }

    /// How often to say in the log, as information, what waits. Default never.
    pub fn report(mut self, every: Duration) -> Self {
        self.report = Some(every);
        self
    }

    /// The age from which an event that could go is too old. One that is due later has no age yet, and what waits behind a
    /// dead one is [`held`](Self::held). Default 1 min.
    pub fn oldest_pending(mut self, age: Duration) -> Self {
        self.oldest_pending = age;
        self
    }

    /// How many events may wait, in all partitions together. Default 10,000.
    pub fn pending(mut self, events: u64) -> Self {
        self.pending = events;
        self
    }

    /// How long events may wait behind a dead one. Default 1 min.
    pub fn held(mut self, time: Duration) -> Self {
        self.held = time;
        self
    }

    /// How many unresolved dead letters are too many, up to 1,000. Default 1.
    pub fn dead(mut self, letters: u64) -> Self {
        self.dead = letters;
        self
    }

    /// How long the broker may have no way for some messages although it is there. Default 30 s.
    pub fn unroutable(mut self, time: Duration) -> Self {
        self.unroutable = time;
        self
    }

    /// How long it may be unknown whether the broker stored what was sent. Default 1 min.
    pub fn unconfirmed(mut self, time: Duration) -> Self {
        self.unconfirmed = time;
        self
    }

    /// How long a partition may be without an owner; more than a lease, which is what a takeover takes. Default 1 min.
    pub fn unowned(mut self, time: Duration) -> Self {
        self.unowned = time;
        self
    }

    /// How long there may be no relay that reaches the broker. Default 1 min.
    pub fn no_able_node(mut self, time: Duration) -> Self {
        self.no_able_node = time;
        self
    }

    /// How long the relay may be paused. Default 15 min.
    pub fn paused(mut self, time: Duration) -> Self {
        self.paused = time;
        self
    }

    /// How long the database may not answer the watch. Default 1 min.
    pub fn blind(mut self, time: Duration) -> Self {
        self.blind = time;
        self
    }

    /// The first setting that cannot work, by its name.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self {
            _ if self.every < Duration::from_millis(100) => {
                Err("every is under 100 ms: looking would be a load of its own".into())
            }
            _ if self.report.is_some_and(|every| every < self.every) => {
                Err(format!("report is under `every`, which is {}", humantime::format_duration(self.every)))
            }
            _ if self.oldest_pending.is_zero() => Err("oldest_pending is 0: every event would be too old".into()),
            _ if self.pending == 0 => Err("pending is 0: it would be raised by nothing".into()),
            _ if !(1..=1_000).contains(&self.dead) => {
                Err("dead is not from 1 to 1,000, up to which dead letters are counted".into())
            }
            _ => Ok(()),
        }
    }
}

/// An alarm that was raised, or is over.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Alarm {
    /// What is wrong.
    pub kind: Kind,
    /// Whether it begins or ends.
    pub change: Change,
    /// The CloudEvents source of the database; empty if no relay has said it yet.
    pub source: String,
    /// The partition, where there is one alarm for each.
    pub partition: Option<i32>,
    /// What was read, and what to make of it.
    pub message: String,
}

impl fmt::Display for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// One reading of one condition.
struct Reading {
    kind: Kind,
    partition: Option<i32>,
    level: Level,
    patience: Duration,
    message: String,
}

/// All alarms of a host between two looks.
#[derive(Debug, Default)]
pub(crate) struct Watches(BTreeMap<(Kind, Option<i32>), Watch>);

impl Watches {
    /// Takes what a look found, `None` if the database did not answer it. What was not read stays as it is; a partition
    /// that is not there any more has nothing wrong with it.
    pub(crate) fn read(
        &mut self,
        now: Duration,
        alarms: &Alarms,
        source: &str,
        backlog: Option<&Backlog>,
        notices: &HashMap<Partition, Notice>,
    ) -> Vec<Alarm> {
        let mut readings = vec![blind(alarms, backlog.is_none())];
        if let Some(backlog) = backlog {
            readings.extend(of_all(alarms, backlog));
            for id in backlog.partitions.keys() {
                readings.extend(of_one(alarms, backlog, notices, *id));
            }
            let gone = |(_, partition): &(Kind, Option<i32>)| {
                partition.is_some_and(|partition| !backlog.partitions.contains_key(&partition))
            };
            readings.extend(self.0.keys().filter(|key| gone(key)).map(|(kind, partition)| Reading {
                kind: *kind,
                partition: *partition,
                level: Level::Quiet,
                patience: Duration::ZERO,
                message: "the partition is gone".into(),
            }));
        }
        let mut changed = Vec::new();
        for Reading { kind, partition, level, patience, message } in readings {
            let watch = self.0.entry((kind, partition)).or_default();
            if let Some(change) = watch.read(now, level, patience) {
                changed.push(Alarm { kind, change, source: source.to_owned(), partition, message });
            }
        }
        changed
    }

    /// Those that are raised now.
    pub(crate) fn raised(&self) -> usize {
        self.0.values().filter(|watch| watch.is_raised()).count()
    }
}

fn blind(alarms: &Alarms, blind: bool) -> Reading {
    let message = if blind {
        "the database does not answer the watch: what waits in it, and whether anybody works on it, cannot be told"
    } else {
        "the database answers the watch"
    };
    flag(Kind::Blind, None, blind, alarms.blind, message.into())
}

/// What concerns the whole database.
fn of_all(alarms: &Alarms, backlog: &Backlog) -> [Reading; 4] {
    let events: u64 = backlog.partitions.values().map(|waiting| waiting.events).sum();
    let able = backlog.able_nodes;
    [
        Reading {
            kind: Kind::Pending,
            partition: None,
            level: Level::of(events, alarms.pending),
            patience: Duration::ZERO,
            message: format!("{events} events wait (the limit is {})", alarms.pending),
        },
        Reading {
            kind: Kind::Dead,
            partition: None,
            level: Level::of(backlog.dead, alarms.dead),
            patience: Duration::ZERO,
            message: format!("{} dead letters are not resolved (the limit is {})", backlog.dead, alarms.dead),
        },
        // Nobody is meant to be able while the relay is paused.
        flag(
            Kind::NoAbleNode,
            None,
            able == 0 && !backlog.paused,
            alarms.no_able_node,
            match able {
                0 => "no relay reaches the broker: either none runs, or none is connected".into(),
                able => format!("{able} relays reach the broker"),
            },
        ),
        flag(
            Kind::Paused,
            None,
            backlog.paused,
            alarms.paused,
            if backlog.paused { "the relay is paused" } else { "the relay is not paused" }.into(),
        ),
    ]
}

/// What concerns one partition.
fn of_one(
    alarms: &Alarms,
    backlog: &Backlog,
    notices: &HashMap<Partition, Notice>,
    id: i32,
) -> impl Iterator<Item = Reading> {
    let waiting = backlog.partitions.get(&id).copied().unwrap_or_default();
    let partition = Some(id);
    let aged = |kind, age: Option<Duration>, limit: Duration, what: &str, nothing: &str| Reading {
        kind,
        partition,
        level: Level::of(millis(age.unwrap_or_default()), millis(limit)),
        patience: Duration::ZERO,
        message: match age {
            Some(age) => format!("{what} for {} (the limit is {})", rounded(age), humantime::format_duration(limit)),
            None => nothing.to_owned(),
        },
    };
    let lanes = waiting.held_lanes;
    let held = format!("{lanes} lanes are held behind a dead event, the first");
    let oldest = aged(
        Kind::OldestPending,
        waiting.oldest,
        alarms.oldest_pending,
        "the oldest event that could go has waited",
        "nothing that could go waits",
    );
    let Notice { unroutable, unconfirmed, stopped } = notices.get(&Partition(id)).cloned().unwrap_or_default();
    [
        // Until what stands in front has been read through, the age is not known.
        Reading { level: if waiting.reads_on { Level::Between } else { oldest.level }, ..oldest },
        aged(Kind::Held, waiting.held_for, alarms.held, &held, "nothing is held behind a dead event"),
        flag(
            Kind::Unowned,
            partition,
            !waiting.owned && !backlog.paused,
            alarms.unowned,
            if waiting.owned { "a relay owns the partition" } else { "no relay owns the partition" }.into(),
        ),
        flag(
            Kind::Unroutable,
            partition,
            unroutable,
            alarms.unroutable,
            if unroutable {
                "the broker is there, and has no way for some messages: the stream's subjects are not those of their type"
            } else {
                "the broker has a way for every message"
            }
            .into(),
        ),
        told(Kind::Unconfirmed, partition, unconfirmed, alarms.unconfirmed, "what was sent is not known to be stored"),
        told(Kind::Stopped, partition, stopped, Duration::ZERO, "the partition stands still"),
    ]
    .into_iter()
}

fn told(kind: Kind, partition: Option<i32>, why: Option<String>, patience: Duration, what: &str) -> Reading {
    let message = why.as_ref().map_or("the partition goes on".into(), |why| format!("{what}: {why}"));
    flag(kind, partition, why.is_some(), patience, message)
}

fn flag(kind: Kind, partition: Option<i32>, so: bool, patience: Duration, message: String) -> Reading {
    Reading { kind, partition, level: Level::when(so), patience, message }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Whole seconds, of which an age has enough.
fn rounded(age: Duration) -> humantime::FormattedDuration {
    humantime::format_duration(Duration::from_secs(age.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::backlog::Waiting;

    fn watched() -> (Backlog, HashMap<Partition, Notice>) {
        let fine = Waiting { owned: true, ..Waiting::default() };
        let backlog = Backlog { able_nodes: 1, partitions: [(0, fine), (1, fine)].into(), ..Backlog::default() };
        (backlog, HashMap::new())
    }

    /// What two looks a quarter of an hour apart say, of a state that begins with the first.
    fn said(backlog: Option<&Backlog>, notices: &HashMap<Partition, Notice>) -> Vec<(Kind, Option<i32>)> {
        let mut watches = Watches::default();
        let mut said = Vec::new();
        for seconds in [0, 900] {
            let read = watches.read(Duration::from_secs(seconds), &Alarms::default(), "s", backlog, notices);
            assert!(seconds > 0 || read.is_empty(), "one look says nothing");
            said.extend(read.into_iter().map(|alarm| (alarm.kind, alarm.partition)));
        }
        said
    }

    #[test]
    fn nothing_is_said_of_an_outbox_that_is_well() {
        let (backlog, notices) = watched();
        assert_eq!(said(Some(&backlog), &notices), []);
    }

    #[test]
    fn each_condition_is_said_under_its_name_and_place_and_no_other() {
        type Spoil = fn(&mut Backlog, &mut Notice);
        let conditions: [(Kind, Option<i32>, Spoil); 9] = [
            (Kind::Pending, None, |backlog, _| one(backlog).events = 10_000),
            (Kind::Dead, None, |backlog, _| backlog.dead = 1),
            (Kind::NoAbleNode, None, |backlog, _| backlog.able_nodes = 0),
            (Kind::OldestPending, Some(1), |backlog, _| one(backlog).oldest = Some(Duration::from_secs(60))),
            (Kind::Held, Some(1), |backlog, _| one(backlog).held_for = Some(Duration::from_secs(60))),
            (Kind::Unowned, Some(1), |backlog, _| one(backlog).owned = false),
            (Kind::Unroutable, Some(1), |_, notice| notice.unroutable = true),
            (Kind::Unconfirmed, Some(1), |_, notice| notice.unconfirmed = Some("why".into())),
            (Kind::Stopped, Some(1), |_, notice| notice.stopped = Some("why".into())),
        ];
        for (kind, partition, spoil) in conditions {
            let (mut backlog, mut notices) = watched();
            spoil(&mut backlog, notices.entry(Partition(1)).or_default());
            assert_eq!(said(Some(&backlog), &notices), [(kind, partition)]);
        }
        assert_eq!(said(None, &HashMap::new()), [(Kind::Blind, None)]);
    }

    fn one(backlog: &mut Backlog) -> &mut Waiting {
        backlog.partitions.get_mut(&1).expect("it has two")
    }

    #[test]
    fn while_the_relay_is_paused_nobody_is_missed() {
        let (mut backlog, notices) = watched();
        backlog.paused = true;
        backlog.able_nodes = 0;
        backlog.partitions.values_mut().for_each(|waiting| waiting.owned = false);
        assert_eq!(said(Some(&backlog), &notices), [(Kind::Paused, None)]);
    }

    #[test]
    fn what_cannot_be_read_and_what_is_not_found_yet_clears_nothing_and_a_partition_that_is_gone_does() {
        let (mut backlog, notices) = watched();
        one(&mut backlog).oldest = Some(Duration::from_secs(90));
        let mut watches = Watches::default();
        let mut look = |backlog: Option<&Backlog>| -> Vec<(Kind, Change)> {
            let read = watches.read(Duration::ZERO, &Alarms::default(), "s", backlog, &notices);
            read.into_iter().map(|alarm| (alarm.kind, alarm.change)).collect()
        };
        assert_eq!(look(Some(&backlog)), []);
        assert_eq!(look(Some(&backlog)), [(Kind::OldestPending, Change::Raised)]);
        one(&mut backlog).oldest = None;
        one(&mut backlog).reads_on = true;
        for _ in 0..3 {
            assert_eq!(look(Some(&backlog)), []);
            assert_eq!(look(None), []);
        }
        backlog.partitions.remove(&1);
        assert_eq!(look(Some(&backlog)), []);
        assert_eq!(look(Some(&backlog)), [(Kind::OldestPending, Change::Cleared)]);
    }
}
