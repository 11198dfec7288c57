//! Who takes a partition, and who gives one up: each node decides for itself, from what the tables show all of them.
//!
//! *Shares.* The able nodes are ranked by what they own, most first; the first of them have one partition more where the
//! division leaves a rest. So shares differ by one at most, they sum up to all partitions, and who has what it should
//! have moves nothing.
//!
//! *Clocks.* A lease is over when the database's clock says so. A clock that is set forward ends all leases at once, and
//! one that is set back makes leases last too long, or heartbeats come from the future. So a node believes the clock
//! about another only when it has itself seen nothing new of that other for as long as its lease was to last. Only what
//! was over when it was first seen is over without more ado: its owner may have died long ago. (So a node that starts
//! just after a clock was set forward may take what is another's. That costs the other its tenure, and nothing else.)

use std::collections::HashMap;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::lease::{Epoch, Partition};

/// What one look at the tables showed.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// Every partition that is served, or owned.
    pub leases: Vec<Lease>,
    /// Every node, the one that looks among them.
    pub nodes: Vec<Peer>,
    /// An operator has told all relays to rest.
    pub paused: bool,
}

/// A partition as the table has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Which.
    pub partition: Partition,
    /// Whose, if anybody's.
    pub owner: Option<Uuid>,
    /// The latest.
    pub epoch: Epoch,
    /// Its end, in microseconds by the database's clock. Here only another value than before means anything.
    pub until: i64,
    /// How long it was granted for.
    pub ttl: Duration,
    /// How many milliseconds it lasts yet by the database's clock; negative once it is over.
    pub left_ms: i64,
    /// It has to be served. Of the partitions that are retired only those in which something is pending still are.
    pub served: bool,
}

/// A node as the table has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Which.
    pub id: Uuid,
    /// Its relay is on and reaches the broker.
    pub able: bool,
    /// When it said so, in microseconds by the database's clock. Here only another value than before means anything.
    pub heartbeat: i64,
    /// How long its leases last: it is not gone before that.
    pub ttl: Duration,
    /// How many milliseconds ago that was by the database's clock.
    pub age_ms: i64,
}

impl Lease {
    /// By the database's clock. One that lasts longer than it was granted for is over too: the clock was set back.
    fn is_over(&self) -> bool {
        self.left_ms < 0 || self.left_ms > millis(self.ttl)
    }
}

impl Peer {
    /// By the database's clock. A heartbeat of a later time than any that there can be is none.
    fn is_fresh(&self) -> bool {
        self.age_ms.abs() <= millis(self.ttl)
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// What a node should do now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// What it owns.
    pub owned: Vec<(Partition, Epoch)>,
    /// What to take, as it was seen: if it is not so any more, another was faster.
    pub take: Vec<Lease>,
    /// What to give up, after it was drained.
    pub give_up: Vec<Partition>,
    /// Something is about to change: look again soon.
    pub alert: bool,
}

/// What a node has seen of the others so far.
#[derive(Debug)]
pub struct Watch {
    id: Uuid,
    ttl: Duration,
    leases: HashMap<Partition, SeenLease>,
    peers: HashMap<Uuid, SeenPeer>,
    /// The able nodes at the last look, in order.
    able: Vec<Uuid>,
    patience: Duration,
    keep_surplus_until: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct SeenLease {
    lease: Lease,
    /// When we saw it change, or saw it first.
    since: Instant,
    /// So long it may be trusted by its owner from then on, whatever the clocks do.
    trusted: Duration,
    free_since: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct SeenPeer {
    heartbeat: i64,
    since: Instant,
    /// It was gone when we saw it first.
    gone: bool,
}

impl SeenLease {
    fn again(before: Option<&SeenLease>, lease: Lease, now: Instant) -> SeenLease {
        let same = |seen: &Lease| (seen.owner, seen.epoch, seen.until) == (lease.owner, lease.epoch, lease.until);
        match before {
            Some(seen) if same(&seen.lease) => SeenLease { lease, ..*seen },
            // Somebody has just written it, whatever the clock says.
            Some(seen) if lease.is_over() => {
                SeenLease { lease, since: now, trusted: lease.ttl, free_since: seen.free_since }
            }
            Some(_) | None => {
                let left = Duration::from_millis(u64::try_from(lease.left_ms).unwrap_or(0)).min(lease.ttl);
                let free_since = before.and_then(|seen| seen.free_since);
                SeenLease { lease, since: now, trusted: left, free_since }
            }
        }
    }
}

impl SeenPeer {
    fn again(before: Option<&SeenPeer>, peer: &Peer, now: Instant) -> SeenPeer {
        match before {
            Some(seen) if seen.heartbeat == peer.heartbeat => *seen,
            Some(_) => SeenPeer { heartbeat: peer.heartbeat, since: now, gone: false },
            None => SeenPeer { heartbeat: peer.heartbeat, since: now, gone: !peer.is_fresh() },
        }
    }
}

impl Watch {
    /// Of the node `id`, whose leases last `ttl`.
    pub fn new(id: Uuid, ttl: Duration) -> Watch {
        Watch {
            id,
            ttl,
            leases: HashMap::new(),
            peers: HashMap::new(),
            able: Vec::new(),
            patience: ttl * FIRST_PATIENCE,
            keep_surplus_until: None,
        }
    }

    /// Decides. `leaving` are those of ours that are being drained already.
    pub fn look(&mut self, view: &View, able: bool, leaving: &[Partition], now: Instant) -> Plan {
        self.remember(view, now);
        let mine: Vec<&Lease> = view.leases.iter().filter(|lease| lease.owner == Some(self.id)).collect();
        let owned = mine.iter().map(|lease| (lease.partition, lease.epoch)).collect();
        let staying: Vec<&Lease> = mine.iter().copied().filter(|l| !leaving.contains(&l.partition)).collect();
        if view.paused {
            let give_up = staying.iter().map(|lease| lease.partition).collect();
            return Plan { owned, take: Vec::new(), give_up, alert: !mine.is_empty() };
        }
        let nodes = self.able_nodes(view, able, now);
        let others = nodes.iter().any(|id| *id != self.id);
        if !able {
            // One that cannot reach the broker leaves the partitions to those that can.
            let give_up = if others { staying.iter().map(|lease| lease.partition).collect() } else { Vec::new() };
            return Plan { owned, take: Vec::new(), give_up, alert: true };
        }
        let share = share_of(self.id, &nodes, &view.leases);
        let free = self.free(view);
        let serving = mine.iter().filter(|lease| lease.served).count();
        let take = self.take(&free, share.saturating_sub(serving), now);
        let give_up = self.give_up(&staying, share, now);
        if free.is_empty() && is_balanced(&nodes, &view.leases) {
            self.patience = self.ttl * FIRST_PATIENCE;
        }
        Plan { owned, alert: others || !free.is_empty() || serving != share, take, give_up }
    }

    fn remember(&mut self, view: &View, now: Instant) {
        let peers = view.nodes.iter().map(|peer| (peer.id, SeenPeer::again(self.peers.get(&peer.id), peer, now)));
        self.peers = peers.collect();
        let leases = view.leases.iter().map(|lease| {
            let mut seen = SeenLease::again(self.leases.get(&lease.partition), *lease, now);
            let free = lease.served && self.is_free(&seen, now);
            seen.free_since = free.then(|| seen.free_since.unwrap_or(now));
            (lease.partition, seen)
        });
        self.leases = leases.collect();
    }

    fn is_free(&self, seen: &SeenLease, now: Instant) -> bool {
        match seen.lease.owner {
            None => true,
            Some(owner) if owner == self.id => false,
            Some(_) => seen.lease.is_over() && now.saturating_duration_since(seen.since) >= seen.trusted,
        }
    }

    /// In order; this node among them if it is one.
    fn able_nodes(&mut self, view: &View, able: bool, now: Instant) -> Vec<Uuid> {
        let lives = |peer: &Peer| {
            let quiet = |seen: &SeenPeer| now.saturating_duration_since(seen.since);
            peer.is_fresh() || self.peers.get(&peer.id).is_some_and(|seen| !seen.gone && quiet(seen) < peer.ttl)
        };
        let others = view.nodes.iter().filter(|peer| peer.id != self.id && peer.able && lives(peer));
        let mut nodes: Vec<Uuid> = others.map(|peer| peer.id).chain(able.then_some(self.id)).collect();
        nodes.sort_unstable();
        if nodes != self.able {
            // Whoever came may want what was left before.
            self.able.clone_from(&nodes);
            self.keep_surplus_until = None;
            self.patience = self.ttl * FIRST_PATIENCE;
        }
        nodes
    }

    /// Those that were free longest first.
    fn free<'a>(&self, view: &'a View) -> Vec<(Instant, &'a Lease)> {
        let since = |lease: &Lease| self.leases.get(&lease.partition).and_then(|seen| seen.free_since);
        let mut free: Vec<_> = view.leases.iter().filter_map(|lease| Some((since(lease)?, lease))).collect();
        free.sort_by_key(|(since, lease)| (*since, lease.partition));
        free
    }

    /// Our share; or one above it that nobody took for as long as a lease: whoever should take it is there, and does
    /// not. What was taken so is kept for a while, longer each time, or it would lie idle again and again.
    fn take(&mut self, free: &[(Instant, &Lease)], missing: usize, now: Instant) -> Vec<Lease> {
        if missing > 0 {
            return free.iter().take(missing).map(|(_, lease)| **lease).collect();
        }
        let overdue = free.iter().find(|(since, _)| now.saturating_duration_since(*since) > self.ttl);
        if overdue.is_some() {
            self.keep_surplus_until = Some(now + self.patience);
            self.patience = (self.patience * 2).min(self.ttl * LAST_PATIENCE);
        }
        overdue.map(|(_, lease)| **lease).into_iter().collect()
    }

    /// What need not be served any more; and what is above our share, the highest first.
    fn give_up(&self, staying: &[&Lease], share: usize, now: Instant) -> Vec<Partition> {
        let keeps_surplus = self.keep_surplus_until.is_some_and(|until| now < until);
        let mut served: Vec<Partition> = staying.iter().filter(|l| l.served).map(|l| l.partition).collect();
        served.sort_unstable();
        let surplus = if keeps_surplus { &[] } else { &served[share.min(served.len())..] };
        let retired = staying.iter().filter(|lease| !lease.served).map(|lease| lease.partition);
        retired.chain(surplus.iter().copied()).collect()
    }
}

/// How many partitions one of the able nodes should have.
fn share_of(id: Uuid, able: &[Uuid], leases: &[Lease]) -> usize {
    let served = || leases.iter().filter(|lease| lease.served);
    let owned = |id: Uuid| served().filter(|lease| lease.owner == Some(id)).count();
    let mut ranked: Vec<_> = able.iter().map(|id| (std::cmp::Reverse(owned(*id)), *id)).collect();
    ranked.sort_unstable();
    let (all, nodes) = (served().count(), able.len().max(1));
    let rank = ranked.iter().position(|(_, ranked)| *ranked == id).unwrap_or(nodes);
    all / nodes + usize::from(rank < all % nodes)
}

/// Each of the able nodes has its share, and so the patience with those that take nothing may begin anew.
fn is_balanced(able: &[Uuid], leases: &[Lease]) -> bool {
    let owned = |id: &Uuid| leases.iter().filter(|lease| lease.served && lease.owner == Some(*id)).count();
    able.iter().all(|id| owned(id) == share_of(*id, able, leases))
}

/// In leases.
const FIRST_PATIENCE: u32 = 4;
const LAST_PATIENCE: u32 = 256;

#[cfg(test)]
mod tests;
