//! Services that append, in SQL, with everything that business transactions do: several events, roll back, take their
//! time, break off.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_postgres::{Client, Error, NoTls};

use super::dice::Dice;

/// What became of the events of a schedule, as those know it who appended them.
#[derive(Debug, Default)]
pub struct Ledger {
    committed: Mutex<BTreeSet<String>>,
    undone: Mutex<BTreeSet<String>>,
    count: AtomicUsize,
    enough: AtomicBool,
}

impl Ledger {
    /// Events whose commit was answered.
    pub fn committed(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.committed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Events that were surely rolled back. What is in neither set has an unknown commit.
    pub fn undone(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.undone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many were committed.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// The writers may end.
    pub fn enough(&self) {
        self.enough.store(true, Ordering::Relaxed);
    }

    fn commit(&self, ids: Vec<String>) {
        self.count.fetch_add(ids.len(), Ordering::Relaxed);
        self.committed().extend(ids);
    }
}

/// A connection that does nothing but serve one program.
///
/// # Errors
/// Those of the server.
pub async fn connect(url: &str) -> Result<Client, Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// One event about to be appended.
#[derive(Debug, Clone)]
struct Said {
    id: String,
    r#type: &'static str,
    data: Vec<u8>,
    aggregate: Option<(&'static str, String)>,
    recipient: Option<&'static str>,
    tenant: Option<String>,
    /// It is not to be published before so many seconds have passed.
    delay: Option<f64>,
}

/// One who appends.
#[derive(Debug)]
pub struct Writer {
    ledger: Arc<Ledger>,
    dice: Dice,
    name: String,
    said: usize,
    /// Takes its time between append and commit.
    slow: bool,
}

impl Writer {
    /// A writer of this name; names are parts of ids.
    pub fn new(ledger: Arc<Ledger>, dice: Dice, name: String, slow: bool) -> Writer {
        Writer { ledger, dice, name, said: 0, slow }
    }

    /// Appends until it is enough.
    pub async fn run(mut self, url: String) {
        let mut client = None;
        while !self.ledger.enough.load(Ordering::Relaxed) {
            match client.as_mut().filter(|client: &&mut Client| !client.is_closed()) {
                None => client = connect(&url).await.ok(),
                Some(client) => {
                    if self.transaction(client).await.is_err() {
                        // Whatever it was, a transaction that is still open ends.
                        let _ = client.batch_execute("ROLLBACK").await;
                    }
                }
            }
            tokio::time::sleep(self.dice.millis(10..=110)).await;
        }
    }

    /// Appends so many events in transactions of a hundred, over few aggregates.
    pub async fn burst(&mut self, url: &str, events: usize) {
        let Ok(client) = connect(url).await else { return };
        for _ in 0..events.div_ceil(100) {
            let said: Vec<Said> = (0..100).map(|_| self.say()).collect();
            let ids = said.iter().map(|said| said.id.clone()).collect();
            // In one call that commits by itself: an error leaves unknown what became of it.
            if batch(&client, &said).await.is_ok() {
                self.ledger.commit(ids);
            }
        }
    }

    async fn transaction(&mut self, client: &Client) -> Result<(), Error> {
        let mut kept = Vec::new();
        let mut undone = Vec::new();
        let outcome = self.append(client, &mut kept, &mut undone).await;
        let roll_back = self.dice.percent(12);
        if outcome.is_err() || roll_back {
            undone.append(&mut kept);
        }
        self.ledger.undone().extend(undone);
        outcome?;
        if self.slow {
            tokio::time::sleep(self.dice.millis(300..=2_000)).await;
        }
        if roll_back {
            return client.batch_execute("ROLLBACK").await;
        }
        client.batch_execute("COMMIT").await?;
        self.ledger.commit(kept);
        Ok(())
    }

    /// Everything up to the end of a transaction.
    async fn append(&mut self, client: &Client, kept: &mut Vec<String>, undone: &mut Vec<String>) -> Result<(), Error> {
        client.batch_execute("BEGIN").await?;
        let mut all: Vec<Said> = (0..self.dice.of(1..=8)).map(|_| self.say()).collect();
        // In one order everywhere, as careful services do it, so that no two wait for each other.
        all.sort_by(|a, b| a.aggregate.cmp(&b.aggregate));
        kept.extend(all.iter().map(|said| said.id.clone()));
        if self.dice.percent(40) {
            batch(client, &all).await?;
        } else {
            for said in &all {
                one(client, said).await?;
            }
        }
        if self.dice.percent(20) {
            let lost = self.say();
            undone.push(lost.id.clone());
            client.batch_execute("SAVEPOINT s").await?;
            // Behind all others, whatever the order: it is given up before anybody can wait for it long.
            one(client, &Said { aggregate: None, recipient: None, ..lost }).await?;
            client.batch_execute("ROLLBACK TO SAVEPOINT s").await?;
        }
        if self.dice.percent(10) {
            // Said again, with the same id: nothing new.
            one(client, &all[0]).await?;
        }
        Ok(())
    }

    fn say(&mut self) -> Said {
        self.said += 1;
        let (aggregate, recipient) = match self.dice.of(1..=100) {
            1..=6 => (None, None),
            7..=10 => (None, Some("schedule-worker")),
            11..=40 => (Some(("thing", format!("hot-{}", self.dice.of(0..=3)))), None),
            41..=80 => (Some(("thing", format!("thing-{}", self.dice.of(0..=40)))), None),
            _ => (Some(("part.of", format!("part {}", self.dice.of(0..=20)).replace(' ', "-"))), None),
        };
        // Whoever takes its time works on things of its own mostly, as the others would only wait for it.
        let aggregate = match aggregate {
            Some((of, id)) if self.slow && self.dice.percent(96) => Some((of, format!("{id}-slow"))),
            other => other,
        };
        let size = if self.dice.percent(3) { self.dice.of(1_000..=20_000) } else { self.dice.of(0..=400) };
        let mut data = format!("{{\"n\":{},\"x\":\"", self.said).into_bytes();
        data.extend((0..size).map(|_| b'a' + u8::try_from(self.dice.of(0..=25)).unwrap_or(0)));
        data.extend(b"\"}");
        Said {
            id: format!("{}-{}", self.name, self.said),
            r#type: self.dice.one(&["thing.said", "thing.done", "part.moved"]),
            data,
            aggregate,
            recipient,
            tenant: self.dice.percent(20).then(|| "north".to_owned()),
            delay: self.dice.percent(3).then(|| self.dice.millis(50..=1_500).as_secs_f64()),
        }
    }
}

async fn one(client: &Client, said: &Said) -> Result<(), Error> {
    let (of, id) = said.aggregate.clone().unzip();
    let headers = said.tenant.as_ref().map(|tenant| format!("{{\"tenant\":\"{tenant}\"}}"));
    let sql = "SELECT seq FROM tidings.append(type => $1, data => $2, id => $3, aggregate_type => $4, aggregate_id => $5, \
               recipient => $6, headers => $7::text::jsonb, not_before => now() + $8::float8 * interval '1 second')";
    client
        .query_one(sql, &[&said.r#type, &said.data, &said.id, &of, &id, &said.recipient, &headers, &said.delay])
        .await
        .map(drop)
}

async fn batch(client: &Client, all: &[Said]) -> Result<(), Error> {
    let ids: Vec<&str> = all.iter().map(|said| said.id.as_str()).collect();
    let types: Vec<&str> = all.iter().map(|said| said.r#type).collect();
    let datas: Vec<&[u8]> = all.iter().map(|said| said.data.as_slice()).collect();
    let of: Vec<Option<&str>> = all.iter().map(|said| said.aggregate.as_ref().map(|(of, _)| *of)).collect();
    let of_ids: Vec<Option<&str>> = all.iter().map(|said| said.aggregate.as_ref().map(|(_, id)| id.as_str())).collect();
    let recipients: Vec<Option<&str>> = all.iter().map(|said| said.recipient).collect();
    let sql = "WITH n AS (SELECT array_fill(NULL::text, ARRAY[cardinality($1::text[])]) AS nothing) \
        SELECT count(*) FROM n, tidings.append_batch(ids => $1, types => $2, datas => $3, aggregate_types => $4, \
               aggregate_ids => $5, versions => nothing::bigint[], \
               schema_versions => array_fill(1, ARRAY[cardinality($1::text[])]), recipients => $6, \
               content_types => array_fill('application/json'::text, ARRAY[cardinality($1::text[])]), \
               headers => nothing::jsonb[], correlation_ids => nothing, causation_ids => nothing, \
               traceparents => nothing, tracestates => nothing, occurred_ats => nothing::timestamptz[])";
    client.query_one(sql, &[&ids, &types, &datas, &of, &of_ids, &recipients]).await.map(drop)
}

/// A database that answers again after a fault.
pub async fn answers(url: &str, within: Duration) -> Result<Client, Error> {
    let began = std::time::Instant::now();
    loop {
        match connect(url).await {
            Ok(client) => return Ok(client),
            Err(error) if began.elapsed() > within => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}
