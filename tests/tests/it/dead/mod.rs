//! Dead letters and delayed events in the tables; what the relay makes of them is in `relay`.

mod cli;
mod delayed;
mod resolve;

use diesel::sql_types::{BigInt, Text};
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use tidings::testing::{self, TestDatabase};

async fn database() -> (TestDatabase, AsyncPgConnection) {
    let database = testing::database().await.unwrap();
    let connection = connect(&database).await;
    (database, connection)
}

async fn connect(database: &TestDatabase) -> AsyncPgConnection {
    AsyncPgConnection::establish(database.url()).await.unwrap()
}

#[derive(diesel::QueryableByName)]
struct Number {
    #[diesel(sql_type = BigInt)]
    n: i64,
}

#[derive(diesel::QueryableByName)]
struct Words {
    #[diesel(sql_type = Text)]
    words: String,
}

async fn number(connection: &mut AsyncPgConnection, query: &str) -> i64 {
    diesel::sql_query(query).get_result::<Number>(connection).await.unwrap().n
}

async fn words(connection: &mut AsyncPgConnection, query: &str) -> Vec<String> {
    let rows: Vec<Words> = diesel::sql_query(query).load(connection).await.unwrap();
    rows.into_iter().map(|row| row.words).collect()
}

async fn run(connection: &mut AsyncPgConnection, statements: &str) {
    connection.batch_execute(statements).await.unwrap();
}

/// The state of an event, and how many pending rows it has.
async fn state(connection: &mut AsyncPgConnection, id: &str) -> String {
    let query = format!(
        "SELECT s.state || CASE WHEN p.seq IS NULL THEN '' ELSE ' pending' END AS words FROM tidings.event_state s
           LEFT JOIN tidings.pending p ON p.seq = s.seq WHERE s.id = '{id}'"
    );
    words(connection, &query).await.remove(0)
}

/// Orders of two aggregates with two versions each, and a command; the first version of each and the command are dead.
async fn with_dead(connection: &mut AsyncPgConnection) {
    run(
        connection,
        "SELECT tidings.append('orders.created', 's3cret', id => 'a-1', aggregate_type => 'order', aggregate_id => 'a',
                               headers => '{\"tenant\": \"s3cret\"}');
         SELECT tidings.append('orders.paid', 's3cret', id => 'a-2', aggregate_type => 'order', aggregate_id => 'a');
         SELECT tidings.append('orders.created', 's3cret', id => 'b-1', aggregate_type => 'order', aggregate_id => 'b');
         SELECT tidings.append('orders.paid', 's3cret', id => 'b-2', aggregate_type => 'order', aggregate_id => 'b');
         SELECT tidings.append('orders.ship', 's3cret', id => 'c', recipient => 'worker')",
    )
    .await;
    for id in ["a-1", "b-1", "c"] {
        dies(connection, id).await;
    }
}

/// What the relay does when the broker will never take an event.
async fn dies(connection: &mut AsyncPgConnection, id: &str) {
    run(
        connection,
        &format!(
            "UPDATE tidings.pending p SET state = 'dead', attempts = 3, last_error = 'too large', next_attempt_at = NULL
               FROM tidings.event e WHERE e.id = '{id}' AND p.seq = e.seq;
             INSERT INTO tidings.dead_letter (seq, partition, event_id, reason, attempts, epoch)
             SELECT seq, partition, id, 'too large', 3, 1 FROM tidings.event WHERE id = '{id}'
             ON CONFLICT (seq) DO UPDATE SET died_at = now(), resolved_at = NULL, resolution = NULL, resolved_by = NULL, resolved_why = NULL"
        ),
    )
    .await;
}
