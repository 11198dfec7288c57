//! Nodes that share one table, in any order, with clocks that jump.

use proptest::prelude::*;

use super::*;

const TTL: Duration = Duration::from_secs(3);
const STEP: Duration = Duration::from_millis(300);
/// Looks between two renewals.
const RENEW: u64 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mind {
    Well,
    /// Its heart beats, and it takes nothing.
    Hung,
    /// It does nothing, and goes on later as if no time had passed.
    Frozen,
    Dead,
}

struct Sim {
    start: Instant,
    /// What has passed, and what the database's clock says beside that.
    passed: Duration,
    stepped_ms: i64,
    rounds: u64,
    leases: Vec<Lease>,
    nodes: Vec<(Peer, Watch, Mind)>,
    trusted_until: HashMap<(Uuid, Partition), Duration>,
    moves: u64,
    overlaps: u64,
}

impl Sim {
    fn new(partitions: i32, nodes: u128) -> Sim {
        let lease = |n| Lease {
            partition: Partition(n),
            owner: None,
            epoch: Epoch(0),
            until: 0,
            ttl: TTL,
            left_ms: -1,
            served: true,
        };
        let mut sim = Sim {
            start: Instant::now(),
            passed: Duration::ZERO,
            stepped_ms: 0,
            rounds: 0,
            leases: (0..partitions).map(lease).collect(),
            nodes: Vec::new(),
            trusted_until: HashMap::new(),
            moves: 0,
            overlaps: 0,
        };
        (0..nodes).for_each(|_| sim.join());
        sim
    }

    fn join(&mut self) {
        let id = Uuid::from_u128(self.nodes.len() as u128 + 1);
        let peer = Peer { id, able: true, heartbeat: self.clock(), ttl: TTL, age_ms: 0 };
        self.nodes.push((peer, Watch::new(id, TTL), Mind::Well));
    }

    fn clock(&self) -> i64 {
        i64::try_from(self.passed.as_micros()).unwrap() + self.stepped_ms * 1_000
    }

    fn view(&self) -> View {
        let clock = self.clock();
        let leases = self.leases.iter().map(|lease| Lease { left_ms: (lease.until - clock) / 1_000, ..*lease });
        let nodes = self.nodes.iter().map(|(peer, ..)| Peer { age_ms: (clock - peer.heartbeat) / 1_000, ..*peer });
        View { leases: leases.collect(), nodes: nodes.collect(), paused: false }
    }

    /// Each node looks once, beginning with any of them.
    fn round(&mut self) {
        self.rounds += 1;
        self.passed += STEP;
        for offset in 0..self.nodes.len() {
            let node = (offset + usize::try_from(self.rounds).unwrap()) % self.nodes.len();
            if matches!(self.nodes[node].2, Mind::Well | Mind::Hung) {
                self.act(node);
            }
        }
    }

    fn act(&mut self, node: usize) {
        let (clock, id, mind) = (self.clock(), self.nodes[node].0.id, self.nodes[node].2);
        let until = clock + i64::try_from(TTL.as_micros()).unwrap();
        let trusted_until = self.passed + TTL * 4 / 5;
        if (self.rounds + node as u64).is_multiple_of(RENEW) {
            self.nodes[node].0.heartbeat = clock;
            for lease in self.leases.iter_mut().filter(|lease| lease.owner == Some(id)) {
                lease.until = until;
                self.trusted_until.insert((id, lease.partition), trusted_until);
            }
        }
        let view = self.view();
        let now = self.start + self.passed;
        let plan = self.nodes[node].1.look(&view, true, &[], now);
        if mind == Mind::Hung {
            return;
        }
        for taken in plan.take {
            let lease = self.leases.iter_mut().find(|lease| lease.partition == taken.partition).unwrap();
            if let Some(before) = lease.owner.replace(id)
                && self.trusted_until.get(&(before, lease.partition)).is_some_and(|until| self.passed < *until)
            {
                self.overlaps += 1;
            }
            lease.epoch.0 += 1;
            lease.until = until;
            self.trusted_until.insert((id, lease.partition), trusted_until);
            self.moves += 1;
        }
        for given in plan.give_up {
            let lease = self.leases.iter_mut().find(|lease| lease.partition == given).unwrap();
            lease.owner = None;
            lease.until = clock;
            self.trusted_until.remove(&(id, given));
        }
    }

    fn rounds(&mut self, number: u32) {
        (0..number).for_each(|_| self.round());
    }

    /// What each of the nodes that are well owns.
    fn shares(&self) -> Vec<usize> {
        let well = self.nodes.iter().filter(|(.., mind)| *mind == Mind::Well);
        well.map(|(peer, ..)| self.leases.iter().filter(|lease| lease.owner == Some(peer.id)).count()).collect()
    }
}

#[derive(Debug, Clone, Copy)]
enum Change {
    Join,
    Become(usize, Mind),
    Clock(i64),
    Wait(u32),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let mind = prop_oneof![Just(Mind::Hung), Just(Mind::Frozen), Just(Mind::Dead), Just(Mind::Well)];
    let change = prop_oneof![
        1 => Just(Change::Join),
        3 => (0usize..6, mind).prop_map(|(node, mind)| Change::Become(node, mind)),
        3 => (-4_000i64..4_000).prop_map(Change::Clock),
        1 => prop_oneof![Just(-3_600_000i64), Just(3_600_000)].prop_map(Change::Clock),
        3 => (0u32..30).prop_map(Change::Wait),
    ];
    prop::collection::vec(change, 0..12)
}

/// Long enough for leases to end, for what is overdue to be taken one by one, and for shares to be moved.
const LONG: u32 = 200;

fn after(partitions: i32, nodes: u128, changes: &[Change]) -> Sim {
    let mut sim = Sim::new(partitions, nodes);
    sim.rounds(5);
    for change in changes {
        match *change {
            Change::Join if sim.nodes.len() < 6 => sim.join(),
            Change::Join => {}
            Change::Become(node, mind) => {
                let node = node % sim.nodes.len();
                if sim.nodes[node].2 != Mind::Dead {
                    sim.nodes[node].2 = mind;
                }
            }
            Change::Clock(ms) => sim.stepped_ms += ms,
            Change::Wait(rounds) => sim.rounds(rounds),
        }
    }
    sim
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn in_the_end_all_is_owned_in_shares_that_differ_by_one_and_rests(
        partitions in 1i32..12, nodes in 1u128..5, changes in changes()
    ) {
        let mut sim = after(partitions, nodes, &changes);
        for node in &mut sim.nodes {
            if node.2 == Mind::Hung {
                node.2 = Mind::Well;
            }
        }
        prop_assume!(sim.nodes.iter().any(|(.., mind)| *mind == Mind::Well));
        sim.rounds(LONG);
        let shares = sim.shares();
        prop_assert_eq!(shares.iter().sum::<usize>(), usize::try_from(partitions).unwrap());
        prop_assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1, "{:?}", shares);
        let moves = sim.moves;
        sim.rounds(LONG);
        prop_assert_eq!(sim.moves, moves, "nothing changes places at rest");
    }

    #[test]
    fn one_that_lives_and_takes_nothing_leaves_nothing_idle(
        partitions in 1i32..12, nodes in 1u128..5, hung in 1u128..4
    ) {
        let mut sim = Sim::new(partitions, nodes);
        for _ in 0..hung {
            sim.join();
            sim.nodes.last_mut().unwrap().2 = Mind::Hung;
        }
        // Offered to it again and again, ever more rarely.
        sim.rounds(1_500);
        let idle = (0..1_000).filter(|_| {
            sim.round();
            sim.leases.iter().any(|lease| lease.owner.is_none())
        });
        let idle = idle.count();
        prop_assert!(idle < 100, "{idle} of 1000 looks saw one idle");
        prop_assert_eq!(sim.shares().len(), usize::try_from(nodes).unwrap());
    }

    #[test]
    fn no_two_trust_at_once_though_the_clock_jumps(
        partitions in 1i32..12, nodes in 1u128..6, mut changes in changes()
    ) {
        // One that has just come believes what it finds.
        changes.retain(|change| !matches!(change, Change::Join));
        let mut sim = after(partitions, nodes, &changes);
        sim.rounds(LONG);
        prop_assert_eq!(sim.overlaps, 0);
    }
}

/// A single change, seen by hand: which of the rules above each of these is about is in its name.
fn two_of_four() -> Sim {
    let mut sim = Sim::new(4, 2);
    sim.rounds(30);
    assert_eq!(sim.shares(), [2, 2]);
    sim
}

#[test]
fn the_partitions_of_one_that_dies_are_taken_within_its_lease_and_a_look() {
    let mut sim = two_of_four();
    sim.nodes[1].2 = Mind::Dead;
    let (killed, owner) = (sim.passed, sim.nodes[0].0.id);
    while sim.leases.iter().any(|lease| lease.owner != Some(owner)) {
        sim.round();
    }
    assert!(sim.passed - killed <= TTL + STEP * 2, "{:?}", sim.passed - killed);
}

#[test]
fn a_clock_set_forward_takes_nothing_from_those_that_live() {
    for jump in [3_600_000, -3_600_000, 10_000, -10_000, -2_000] {
        let mut sim = two_of_four();
        let moves = sim.moves;
        sim.stepped_ms += jump;
        sim.rounds(LONG);
        assert_eq!((sim.moves, sim.overlaps), (moves, 0), "after a jump of {jump} ms");
    }
}

/// The other, which lives, is about to take it.
#[test]
fn what_is_free_when_the_clock_jumps_is_left_to_whose_share_it_is() {
    let mut sim = two_of_four();
    let id = sim.nodes[1].0.id;
    sim.leases.iter_mut().find(|lease| lease.owner == Some(id)).unwrap().owner = None;
    for jump in [3_600_000, -7_200_000] {
        sim.stepped_ms += jump;
        let (view, now) = (sim.view(), sim.start + sim.passed);
        assert_eq!(sim.nodes[0].1.look(&view, true, &[], now).take, [], "after a jump of {jump} ms");
        assert_eq!(sim.nodes[1].1.look(&view, true, &[], now).take.len(), 1);
    }
}

/// The others are about to give something up for it, and live.
#[test]
fn one_that_waits_for_its_share_takes_no_lease_that_a_jump_of_the_clock_ended() {
    let mut sim = two_of_four();
    let mut third = Watch::new(Uuid::from_u128(3), TTL);
    let look = |sim: &Sim, third: &mut Watch| third.look(&sim.view(), true, &[], sim.start + sim.passed).take;
    assert_eq!(look(&sim, &mut third), []);
    for jump in [3_600_000, -7_200_000] {
        sim.stepped_ms += jump;
        sim.passed += STEP;
        assert_eq!(look(&sim, &mut third), [], "after a jump of {jump} ms");
    }
}

#[test]
fn one_that_died_before_the_clock_was_set_back_is_followed_after_its_lease() {
    let mut sim = two_of_four();
    sim.nodes[1].2 = Mind::Dead;
    sim.stepped_ms -= 3_600_000;
    sim.rounds(u32::try_from(TTL.as_millis() / STEP.as_millis()).unwrap() + 2);
    assert_eq!(sim.shares(), [4]);
}

#[test]
fn what_was_over_when_it_was_first_seen_is_taken_at_once() {
    let mut sim = two_of_four();
    sim.nodes.iter_mut().for_each(|node| node.2 = Mind::Dead);
    sim.passed += TTL * 2;
    sim.join();
    sim.round();
    assert_eq!(sim.shares(), [4]);
}

#[test]
fn a_node_judges_another_by_the_lease_of_that_other() {
    let (quick, slow) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let mut watch = Watch::new(quick, Duration::from_secs(1));
    let lease = |n, owner| Lease {
        partition: Partition(n),
        owner: Some(owner),
        epoch: Epoch(1),
        until: 1,
        ttl: Duration::from_secs(60),
        left_ms: 40_000,
        served: true,
    };
    let peer = |id, ttl| Peer { id, able: true, heartbeat: 1, ttl: Duration::from_secs(ttl), age_ms: 20_000 };
    let view = View {
        leases: vec![lease(0, quick), lease(1, quick), lease(2, slow), Lease { owner: None, ..lease(3, slow) }],
        nodes: vec![peer(quick, 1), peer(slow, 60)],
        paused: false,
    };
    let plan = watch.look(&view, true, &[], Instant::now());
    assert!(plan.take.is_empty() && plan.give_up.is_empty(), "{plan:?}");
}

#[test]
fn one_that_cannot_reach_the_broker_leaves_all_to_those_that_can_and_else_keeps_it() {
    let mut sim = two_of_four();
    let now = sim.start + sim.passed;
    let view = sim.view();
    assert_eq!(sim.nodes[0].1.look(&view, false, &[], now).give_up.len(), 2);
    let mine = sim.leases.iter().find(|lease| lease.owner == Some(sim.nodes[0].0.id)).unwrap().partition;
    assert_eq!(sim.nodes[0].1.look(&view, false, &[mine], now).give_up.len(), 1, "the other is on its way");
    let mut view = view;
    view.nodes.iter_mut().for_each(|peer| peer.able = false);
    assert_eq!(sim.nodes[0].1.look(&view, false, &[], now).give_up, []);
}

#[test]
fn a_pause_and_a_retirement_end_what_is_owned() {
    let mut sim = two_of_four();
    let now = sim.start + sim.passed;
    let mut view = sim.view();
    view.paused = true;
    let plan = sim.nodes[0].1.look(&view, true, &[], now);
    assert_eq!((plan.give_up.len(), plan.take.len()), (2, 0));
    view.paused = false;
    let id = sim.nodes[0].0.id;
    let retired = view.leases.iter_mut().find(|lease| lease.owner == Some(id)).unwrap();
    retired.served = false;
    let retired = retired.partition;
    assert!(sim.nodes[0].1.look(&view, true, &[], now).give_up.contains(&retired));
}
