//! The demonstration: forty orders, a relay that is killed, and the account.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use diesel::QueryableByName;
use diesel::sql_types::{BigInt, Text};
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};
use stage::Error;
use stage::account::Account;
use stage::crash::Crash;
use stage::journal::{self, Entry};
use stage::relay::RelayProcess;
use stage::streams::Streams;
use tidings::services::Provided;
use uuid::Uuid;

use crate::messages::SOURCE;
use crate::{consumers, shop};

pub(crate) async fn run(services: &Provided) -> Result<(), Error> {
    let started = Instant::now();
    // Customer and products are this run's own, so that a database that is used again counts anew.
    let run = Uuid::now_v7();
    let customer = format!("customer-{run}");
    let products = [format!("slate-{run}"), format!("chalk-{run}")];
    let journals = tempfile::tempdir()?;
    let mut conn = AsyncPgConnection::establish(&services.database_url()).await?;

    let running = consumers(services).start().await?;
    for product in &products {
        shop::stock_up(&mut conn, product, STOCK).await?;
    }
    println!("{ORDERS} orders for {QUANTITY} each; the stock is enough for {RESERVED} of them");
    let relay = RelayProcess::start(services, &journals.path().join("relay-1"), Some(Crash::Acknowledged(15)))?;
    for n in 0..ORDERS {
        shop::place(&mut conn, &customer, &products[n % products.len()], QUANTITY).await?;
    }
    let mut entries = relay.killed().await?;
    let acknowledged = journal::last_stored(&entries).ok_or("relay 1 died without an acknowledgement")?.to_owned();
    let unrecorded = HashMap::from([(acknowledged.clone(), entries.len())]);
    println!("relay 1 was killed with the acknowledgement of event {acknowledged} in its hands");

    let relay = RelayProcess::start(services, &journals.path().join("relay-2"), None)?;
    let streams = Streams::connect(&services.nats_url(), SOURCE).await?;
    let settled = settle(&mut conn, &streams, &customer).await;
    entries.extend(relay.end().await?);
    running.drain(Duration::from_secs(10)).await?;

    let account = account(&mut conn, &streams, &customer, &unrecorded, &entries).await?;
    println!("\n{account}");
    account.verdict()?;
    settled?;
    println!("it adds up, after {:.1} s", started.elapsed().as_secs_f32());
    Ok(())
}

/// Waits until nothing is left to do. Waiting longer would change nothing in a run that lost something, so there is an
/// end to it; the account then says what is missing.
async fn settle(conn: &mut AsyncPgConnection, streams: &Streams, customer: &str) -> Result<(), Error> {
    let started = Instant::now();
    loop {
        let numbers = numbers(conn, customer).await?;
        let there = numbers.notified >= ORDERS as i64 && numbers.pending == 0;
        if there && streams.all_settled(&["inventory", "notification"]).await? {
            println!("everything has settled");
            return Ok(());
        }
        if started.elapsed() > SETTLES_WITHIN {
            return Err(format!("not settled within {SETTLES_WITHIN:?}: {numbers:?}").into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Each number is counted where the thing itself is, not where it was done.
async fn account(
    conn: &mut AsyncPgConnection,
    streams: &Streams,
    customer: &str,
    unrecorded: &HashMap<String, usize>,
    entries: &[Entry],
) -> Result<Account, Error> {
    let orders = ORDERS as u64;
    let appended = appended(conn, customer).await?;
    let copies = streams.copies(&appended).await?;
    let numbers = numbers(conn, customer).await?;
    let number = |n: i64| u64::try_from(n).unwrap_or(0);
    // Whatever was said and is not in the streams, or is there and had no effect.
    let unheard = appended.iter().filter(|id| !copies.contains_key(*id)).count() as u64;
    let decided = number(numbers.reservations + numbers.rejections);
    let missing = orders.saturating_sub(decided) + orders.saturating_sub(number(numbers.notified_orders));

    let mut account = Account::default();
    account.exactly(orders, "orders", number(numbers.orders), "rows of orders.placed");
    account.exactly(
        2 * orders,
        "events appended",
        appended.len() as u64,
        "rows of tidings.event: created, then reserved or rejected",
    );
    account.road(&appended, unrecorded, entries, &copies);
    account.exactly(
        RESERVED,
        "reservations",
        number(numbers.reservations),
        "effect of inventory: one row for each order it could fill",
    );
    account.exactly(
        orders - RESERVED,
        "rejections",
        number(numbers.rejections),
        "events that inventory appended for the others",
    );
    account.exactly(
        0,
        "stock left",
        number(numbers.left),
        "a second decision about one order would have sold too much or too little",
    );
    account.exactly(
        orders,
        "notifications",
        number(numbers.notified),
        "effect of notification: one row for each order",
    );
    account.exactly(0, "lost", unheard + missing, "appended and not in the streams, or without its effect somewhere");
    Ok(account)
}

#[derive(Debug, QueryableByName)]
struct Numbers {
    #[diesel(sql_type = BigInt)]
    orders: i64,
    #[diesel(sql_type = BigInt)]
    reservations: i64,
    #[diesel(sql_type = BigInt)]
    rejections: i64,
    #[diesel(sql_type = BigInt)]
    left: i64,
    #[diesel(sql_type = BigInt)]
    notified: i64,
    #[diesel(sql_type = BigInt)]
    notified_orders: i64,
    #[diesel(sql_type = BigInt)]
    pending: i64,
}

async fn numbers(conn: &mut AsyncPgConnection, customer: &str) -> Result<Numbers, Error> {
    let statement = format!(
        "WITH ours AS (SELECT id, product FROM orders.placed WHERE customer = $1),
              said AS ({APPENDED})
         SELECT (SELECT count(*) FROM ours) AS orders,
                (SELECT count(*) FROM orders.reservation r WHERE r.product IN (SELECT product FROM ours)) AS reservations,
                (SELECT count(*) FROM said WHERE type = 'orders.rejected') AS rejections,
                (SELECT coalesce(sum(available), 0) FROM orders.stock s WHERE s.product IN (SELECT product FROM ours)) AS left,
                (SELECT count(*) FROM orders.notification WHERE customer = $1) AS notified,
                (SELECT count(DISTINCT order_id) FROM orders.notification WHERE customer = $1) AS notified_orders,
                (SELECT count(*) FROM tidings.pending p JOIN said s ON p.partition = s.partition AND p.seq = s.seq)
                    AS pending"
    );
    Ok(diesel::sql_query(statement).bind::<Text, _>(customer).get_result(conn).await?)
}

/// The ids of this run's events.
async fn appended(conn: &mut AsyncPgConnection, customer: &str) -> Result<HashSet<String>, Error> {
    #[derive(QueryableByName)]
    struct Id {
        #[diesel(sql_type = Text)]
        id: String,
    }
    let ids: Vec<Id> = diesel::sql_query(APPENDED).bind::<Text, _>(customer).load(conn).await?;
    Ok(ids.into_iter().map(|row| row.id).collect())
}

const ORDERS: usize = 40;
const QUANTITY: i32 = 2;
/// Of each of two products: enough for fifteen orders of the twenty for it.
const STOCK: i32 = 30;
const RESERVED: u64 = 30;
const SETTLES_WITHIN: Duration = Duration::from_secs(60);

const APPENDED: &str = "
    SELECT e.id, e.type, e.seq, e.partition FROM orders.placed o
      JOIN tidings.event e ON e.aggregate_type = 'order' AND e.aggregate_id = o.id
     WHERE o.customer = $1";
