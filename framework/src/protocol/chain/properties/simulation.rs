//! A stream that checks expected sequences and remembers ids, connections that lose, double and delay, owners that come
//! and go, and the rows they publish.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::*;

/// The stream.
#[derive(Debug, Clone)]
pub(super) struct Server {
    /// Id and writer of each message.
    pub(super) log: Vec<(u64, usize)>,
    /// Replicated streams look for duplicates before the expected sequence, others after it.
    replicated: bool,
    pub(super) checks: bool,
    too_large: HashSet<u64>,
}

#[derive(Debug, Clone)]
pub(super) struct Message {
    ids: Vec<u64>,
    expected: u64,
    writer: usize,
}

impl Message {
    pub(super) fn single(id: u64, expected: u64, writer: usize) -> Message {
        Message { ids: vec![id], expected, writer }
    }
}

impl Server {
    pub(super) fn new(replicated: bool) -> Server {
        Server { log: Vec::new(), replicated, checks: true, too_large: HashSet::new() }
    }

    fn last(&self) -> u64 {
        self.log.len() as u64
    }

    fn place_of(&self, id: u64) -> Option<u64> {
        self.log.iter().rposition(|(there, _)| *there == id).map(|at| at as u64 + 1)
    }

    pub(super) fn take(&mut self, message: &Message) -> Outcome {
        let batch = message.ids.len() > 1;
        if message.ids.iter().any(|id| self.too_large.contains(id)) {
            return if batch { Outcome::Abandoned } else { Outcome::Refused(Refusal::TooLarge) };
        }
        let out_of_step = self.checks && message.expected != self.last();
        let known = message.ids.iter().find_map(|id| self.place_of(*id));
        match known {
            _ if out_of_step && !(self.replicated && known.is_some()) => Outcome::OutOfStep,
            Some(_) if batch => Outcome::Abandoned,
            Some(stream_seq) => Outcome::Stored(Stored { stream_seq, duplicate: true }),
            None => {
                self.log.extend(message.ids.iter().map(|id| (*id, message.writer)));
                Outcome::Stored(Stored { stream_seq: self.last(), duplicate: false })
            }
        }
    }
}

/// When messages of an earlier owner's connection still arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Late {
    /// Before the next owner's first message is stored, or when that is longer ago than they can name.
    BeforeTheNextOwner,
    /// In between, too.
    AtAnyTime,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Op {
    Send(u8),
    Batch(u8),
    Serve(u8),
    Lose(u8),
    Double(u8),
    Answer(u8),
    LoseAnswer(u8),
    DoubleAnswer(u8),
    NameAnotherPlace(u8),
    GiveUp,
    Reconnect,
    Steal,
    StaleSend(u8),
    Late(u8),
}

impl Arbitrary for Op {
    type Parameters = ();
    type Strategy = BoxedStrategy<Op>;

    fn arbitrary_with((): ()) -> BoxedStrategy<Op> {
        prop_oneof![
            8 => any::<u8>().prop_map(Op::Send),
            2 => any::<u8>().prop_map(Op::Batch),
            10 => any::<u8>().prop_map(Op::Serve),
            1 => any::<u8>().prop_map(Op::Lose),
            1 => any::<u8>().prop_map(Op::Double),
            10 => any::<u8>().prop_map(Op::Answer),
            1 => any::<u8>().prop_map(Op::LoseAnswer),
            1 => any::<u8>().prop_map(Op::DoubleAnswer),
            1 => any::<u8>().prop_map(Op::NameAnotherPlace),
            1 => Just(Op::GiveUp),
            1 => Just(Op::Reconnect),
            1 => Just(Op::Steal),
            2 => any::<u8>().prop_map(Op::StaleSend),
            4 => any::<u8>().prop_map(Op::Late),
        ]
        .boxed()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Row {
    Pending,
    Stored,
    Dead,
}

/// One owner's time over one connection, with the rows as it knows them.
#[derive(Debug, Clone)]
struct Owner {
    writer: usize,
    chain: Chain,
    rows: BTreeMap<u64, Row>,
    in_flight: HashMap<Ticket, Vec<u64>>,
    singly: HashSet<u64>,
    wire: VecDeque<(Ticket, Message)>,
    answers: Vec<(Ticket, Outcome)>,
}

/// Everything at once.
#[derive(Debug, Clone)]
pub(super) struct World {
    pub(super) server: Server,
    /// Taken out: an answer that names another place is believed.
    pub(super) believes_anything: bool,
    /// Taken out: where the stream should be read, the machine predicts on.
    pub(super) never_reads: bool,
    late: Late,
    republished: u64,
    owner: Owner,
    stale: Option<Owner>,
    /// What is left on the connections of earlier owners, and the last of the stream when the next one read it.
    old: Vec<(VecDeque<Message>, usize)>,
    opened_at: Vec<u64>,
}

pub(super) fn world(late: Late) -> impl Strategy<Value = World> {
    (any::<bool>(), 0u64..5, 1u64..60, prop::collection::hash_set(6u64..60, 0..3)).prop_map(
        move |(replicated, republished, rows, too_large)| {
            let mut server = Server::new(replicated);
            server.too_large = too_large;
            server.log.extend((1..=republished).map(|id| (id, 0)));
            let rows = (1..=rows.max(republished)).map(|id| (id, Row::Pending)).collect();
            let owner = Owner::open(1, rows, server.last());
            let opened_at = vec![0, server.last()];
            let (believes_anything, never_reads) = (false, false);
            let old = Vec::new();
            World { server, believes_anything, never_reads, late, republished, owner, stale: None, old, opened_at }
        },
    )
}

impl Owner {
    fn open(writer: usize, rows: BTreeMap<u64, Row>, last: u64) -> Owner {
        Owner {
            writer,
            chain: Chain::at(last),
            rows,
            in_flight: HashMap::new(),
            singly: HashSet::new(),
            wire: VecDeque::new(),
            answers: Vec::new(),
        }
    }

    /// What may go: in the order of the rows, past whatever stands behind a dead one.
    fn sendable(&self) -> Vec<u64> {
        let busy: HashSet<u64> = self.in_flight.values().flatten().copied().collect();
        let mut held = BTreeSet::new();
        let mut sendable = Vec::new();
        for (id, row) in &self.rows {
            match row {
                Row::Dead => drop(held.insert(lane(*id))),
                Row::Pending if !busy.contains(id) && !held.contains(&lane(*id)) => sendable.push(*id),
                Row::Pending | Row::Stored => {}
            }
        }
        sendable
    }

    fn send(&mut self, most: usize, batch: usize) {
        let room = WINDOW.saturating_sub(self.in_flight.values().map(Vec::len).sum());
        let ids: Vec<u64> = self.sendable().into_iter().take(most.min(room)).collect();
        let mut ids = ids.as_slice();
        while !ids.is_empty() && !self.chain.is_broken() {
            let together = ids.iter().take(batch.max(1)).take_while(|id| !self.singly.contains(id)).count().max(1);
            let (now, later) = ids.split_at(together);
            let message = Message { ids: now.to_vec(), expected: self.chain.expected(), writer: self.writer };
            let ticket = self.chain.sent(together as u64);
            self.in_flight.insert(ticket, now.to_vec());
            self.wire.push_back((ticket, message));
            ids = later;
        }
    }

    fn serve(&mut self, server: &mut Server) {
        if let Some((ticket, message)) = self.wire.pop_front() {
            let outcome = server.take(&message);
            self.answers.push((ticket, outcome));
        }
    }
}

impl World {
    pub(super) fn play(&mut self, op: Op) -> TestCaseResult {
        let at = |n: u8, len: usize| if len == 0 { None } else { Some(usize::from(n) % len) };
        let owner = &mut self.owner;
        match op {
            Op::Send(n) => owner.send(usize::from(n % 8) + 1, 1),
            Op::Batch(n) => owner.send(usize::from(n % 8) + 1, usize::from(n % 4) + 2),
            Op::Serve(n) => (0..=n % 8).for_each(|_| owner.serve(&mut self.server)),
            Op::Lose(n) => drop(at(n, owner.wire.len()).map(|at| owner.wire.remove(at))),
            Op::Double(n) => {
                if let Some(at) = at(n, owner.wire.len()) {
                    let copy = owner.wire[at].clone();
                    owner.wire.insert(at, copy);
                }
            }
            Op::Answer(n) => {
                if let Some(at) = at(n, owner.answers.len()) {
                    let (ticket, outcome) = owner.answers.remove(at);
                    self.answer(ticket, &outcome)?;
                }
            }
            Op::LoseAnswer(n) => drop(at(n, owner.answers.len()).map(|at| owner.answers.remove(at))),
            Op::DoubleAnswer(n) => {
                if let Some(at) = at(n, owner.answers.len()) {
                    let copy = owner.answers[at].clone();
                    owner.answers.push(copy);
                }
            }
            Op::NameAnotherPlace(n) => {
                if let Some(at) = at(n, owner.answers.len())
                    && let Outcome::Stored(stored) = &mut owner.answers[at].1
                    && !stored.duplicate
                {
                    stored.stream_seq += 1 + u64::from(n % 3);
                }
            }
            Op::GiveUp => drop(owner.chain.gave_up()),
            Op::Reconnect => self.reopen(),
            Op::Steal => {
                let before = self.reopened();
                self.stale = Some(before);
            }
            Op::StaleSend(n) => {
                if let Some(stale) = &mut self.stale {
                    stale.send(usize::from(n % 8) + 1, 1);
                    let wire = stale.wire.drain(..).map(|(_, message)| message).collect();
                    self.old.push((wire, stale.writer));
                }
            }
            Op::Late(n) => {
                if let Some(at) = at(n, self.old.len()) {
                    self.deliver(at);
                }
            }
        }
        self.follow();
        Ok(())
    }

    /// Lets everything that is under way arrive, until nothing is left to send.
    pub(super) fn settle(&mut self) -> TestCaseResult {
        for _ in 0..1_000 {
            self.owner.send(usize::MAX, 1);
            while !self.owner.wire.is_empty() {
                self.owner.serve(&mut self.server);
            }
            for (ticket, outcome) in std::mem::take(&mut self.owner.answers) {
                self.answer(ticket, &outcome)?;
            }
            self.owner.chain.gave_up();
            self.follow();
            (0..self.old.len()).for_each(|at| self.deliver(at));
            if self.owner.sendable().is_empty() && self.owner.in_flight.is_empty() {
                return Ok(());
            }
        }
        Err(TestCaseError::fail("it does not come to an end"))
    }

    fn answer(&mut self, ticket: Ticket, outcome: &Outcome) -> TestCaseResult {
        let owner = &mut self.owner;
        let Some(step) = owner.chain.answered(ticket, outcome) else { return Ok(()) };
        let ids = owner.in_flight.remove(&ticket).expect("it was sent");
        let step = match (step, outcome) {
            (Step::Unclear(Unclear::Elsewhere), Outcome::Stored(stored)) if self.believes_anything => {
                Step::Stored { first: stored.stream_seq + 1 - ids.len() as u64, last: stored.stream_seq }
            }
            (step, _) => step,
        };
        match step {
            Step::Stored { first, last } => {
                let there = self.server.log.get(usize::try_from(first - 1).unwrap()..usize::try_from(last).unwrap());
                let there: Option<Vec<u64>> = there.map(|there| there.iter().map(|(id, _)| *id).collect());
                prop_assert_eq!(there.as_ref(), Some(&ids), "believed at {}", first);
                owner.rows.extend(ids.into_iter().map(|id| (id, Row::Stored)));
            }
            Step::Refused(_) => owner.rows.extend(ids.into_iter().map(|id| (id, Row::Dead))),
            Step::Singly => owner.singly.extend(ids),
            Step::Echo | Step::Unavailable(_) | Step::Unclear(_) => {}
        }
        Ok(())
    }

    fn follow(&mut self) {
        match self.owner.chain.end() {
            None | Some(End::GoOn) => {}
            Some(End::Predict) => self.owner.in_flight.clear(),
            Some(End::Reconcile) if self.never_reads => {
                self.owner.in_flight.clear();
                self.owner.chain = Chain::at(self.owner.chain.last);
            }
            Some(End::Reconcile) => self.reopen(),
        }
    }

    /// The owner begins again over a new connection.
    fn reopen(&mut self) {
        let before = self.reopened();
        self.old.push((before.wire.into_iter().map(|(_, message)| message).collect(), before.writer));
    }

    /// The next owner reads the stream and knows what is in it; returns the one before.
    fn reopened(&mut self) -> Owner {
        let mut rows = self.owner.rows.clone();
        for (id, _) in &self.server.log[usize::try_from(self.opened_at[1]).unwrap()..] {
            rows.insert(*id, Row::Stored);
        }
        let next = Owner::open(self.owner.writer + 1, rows, self.server.last());
        self.opened_at.push(self.server.last());
        std::mem::replace(&mut self.owner, next)
    }

    /// The next message of an earlier owner arrives.
    fn deliver(&mut self, at: usize) {
        let (wire, writer) = &mut self.old[at];
        let Some(message) = wire.front() else { return };
        let followed = self.server.log.iter().any(|(_, other)| other > writer);
        let passed = message.expected < self.server.last();
        if self.late == Late::AtAnyTime || !followed || passed {
            self.server.take(message);
            wire.pop_front();
        }
    }

    pub(super) fn everything_is_there(&self) -> TestCaseResult {
        let there: HashSet<u64> = self.server.log.iter().map(|(id, _)| *id).collect();
        for (id, row) in &self.owner.rows {
            let held = self.owner.rows.iter().any(|(r, s)| r < id && lane(*r) == lane(*id) && *s == Row::Dead);
            match row {
                Row::Stored => prop_assert!(there.contains(id), "{} is recorded and not there", id),
                Row::Pending => prop_assert!(held, "{} is forgotten", id),
                Row::Dead => prop_assert!(self.server.too_large.contains(id), "{} is dead", id),
            }
        }
        Ok(())
    }

    /// What is there of a lane is its beginning, in order.
    pub(super) fn lanes_are_in_order(&self) -> TestCaseResult {
        for lane_number in 0..LANES {
            let mut seen = HashSet::new();
            let first = self.server.log.iter().map(|(id, _)| *id);
            let first: Vec<u64> = first.filter(|id| lane(*id) == lane_number && seen.insert(*id)).collect();
            let rows = self.owner.rows.keys().copied().filter(|id| lane(*id) == lane_number);
            prop_assert_eq!(&rows.take(first.len()).collect::<Vec<_>>(), &first, "lane {}", lane_number);
        }
        Ok(())
    }

    pub(super) fn nothing_stands_twice(&self) -> TestCaseResult {
        let mut seen = HashSet::new();
        for (id, _) in &self.server.log {
            prop_assert!(seen.insert(*id) || *id <= self.republished, "{} stands twice", id);
        }
        Ok(())
    }

    /// The expected sequence bounds how late a message of an earlier owner may land: by what it had in flight.
    pub(super) fn an_old_owner_lands_only_within_its_window(&self) -> TestCaseResult {
        for (at, (_, writer)) in self.server.log.iter().enumerate() {
            if let Some(opened_at) = self.opened_at.get(writer + 1) {
                prop_assert!((at as u64) < opened_at + WINDOW as u64, "an old owner's message landed at {}", at + 1);
            }
        }
        Ok(())
    }
}

fn lane(id: u64) -> u64 {
    id % LANES
}

const LANES: u64 = 4;
const WINDOW: usize = 16;
