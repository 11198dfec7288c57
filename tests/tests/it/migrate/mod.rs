//! The schema and its ledger: applied once, by whoever comes first, from wherever; undone and made again.

mod cli;
mod runtimes;
mod versions;

use std::time::Duration;

use diesel::sql_types::{BigInt, Text};
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use tidings::postgres::{Error, LATEST, migrations, revert, script};
use tidings::testing::{self, TestDatabase};
use tidings::{Database, NewEvent, Relay, Tidings, migrate};

/// How long ending a relay may take.
const LIMIT: Duration = Duration::from_secs(60);

/// An empty database, and a connection to it.
async fn empty() -> (TestDatabase, AsyncPgConnection) {
    let database = testing::empty_database().await.unwrap();
    let conn = AsyncPgConnection::establish(database.url()).await.unwrap();
    (database, conn)
}

#[derive(diesel::QueryableByName)]
struct Number {
    #[diesel(sql_type = BigInt)]
    n: i64,
}

async fn number(conn: &mut AsyncPgConnection, query: &str) -> i64 {
    diesel::sql_query(query).get_result::<Number>(conn).await.unwrap().n
}

#[derive(diesel::QueryableByName)]
struct Line {
    #[diesel(sql_type = Text)]
    line: String,
}

/// Everything that is in the schema `tidings`: tables with their columns, indexes, constraints, types and functions, and
/// the rows of the tables that are laid out beforehand.
async fn catalogue(conn: &mut AsyncPgConnection) -> Vec<String> {
    let query = "
        WITH s AS (SELECT oid FROM pg_namespace WHERE nspname = 'tidings')
        SELECT format('column %s.%s %s %s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), pg_get_expr(d.adbin, d.adrelid)) AS line
          FROM pg_class c JOIN s ON c.relnamespace = s.oid JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
          LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
        UNION ALL SELECT format('relation %s %s %s', c.relname, c.relkind, c.reloptions) FROM pg_class c JOIN s ON c.relnamespace = s.oid
        UNION ALL SELECT format('constraint %s', pg_get_constraintdef(k.oid)) FROM pg_constraint k JOIN s ON k.connamespace = s.oid
        UNION ALL SELECT format('type %s', t.typname) FROM pg_type t JOIN s ON t.typnamespace = s.oid
        UNION ALL SELECT format('function %s', pg_get_functiondef(p.oid)) FROM pg_proc p JOIN s ON p.pronamespace = s.oid
        ORDER BY 1";
    diesel::sql_query(query).load::<Line>(conn).await.unwrap().into_iter().map(|row| row.line).collect()
}

/// The rows that are there from the beginning.
async fn layout(conn: &mut AsyncPgConnection) -> (i64, i64) {
    (
        number(conn, "SELECT partitions::bigint AS n FROM tidings.setting").await,
        number(conn, "SELECT count(*) AS n FROM tidings.partition WHERE id BETWEEN 0 AND (SELECT partitions - 1 FROM tidings.setting)").await,
    )
}

async fn append_one(conn: &mut AsyncPgConnection) {
    tidings::transaction(conn, async |tx| {
        tx.append(NewEvent::raw("job.progressed", "{}").aggregate("job", "job-42")).await?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_starts_at_once_make_one_schema() {
    let (database, mut conn) = empty().await;
    let starts = (0..8).map(|_| {
        let database = database.database();
        tokio::spawn(async move { migrate(&database).await.map(|steps| steps.len()) })
    });
    let mut applied: Vec<usize> =
        futures_util::future::join_all(starts).await.into_iter().map(|start| start.unwrap().unwrap()).collect();
    applied.sort_unstable();
    assert_eq!(applied, [0, 0, 0, 0, 0, 0, 0, migrations().len()], "one did it all, the others found it done");
    assert_eq!(number(&mut conn, "SELECT count(*) AS n FROM tidings.migration").await, migrations().len() as i64);
    assert_eq!(layout(&mut conn).await, (4, 4));
    append_one(&mut conn).await;
}

#[tokio::test]
async fn what_is_reverted_is_gone_and_can_be_made_again() {
    let (database, mut conn) = empty().await;
    assert!(revert(&database.database(), 0).await.unwrap().is_empty(), "nothing is there to revert");
    assert_eq!(number(&mut conn, SCHEMAS).await, 0, "and nothing was made to find that out");
    let applied = migrate(&database.database()).await.unwrap();
    assert_eq!(applied.iter().map(|step| step.version).collect::<Vec<_>>(), (1..=LATEST).collect::<Vec<_>>());
    let before = catalogue(&mut conn).await;
    append_one(&mut conn).await;
    assert!(revert(&database.database(), LATEST).await.unwrap().is_empty());
    assert_eq!(revert(&database.database(), 0).await.unwrap().len(), migrations().len());
    assert_eq!(number(&mut conn, SCHEMAS).await, 0);
    assert_eq!(migrate(&database.database()).await.unwrap().len(), migrations().len());
    assert_eq!(catalogue(&mut conn).await, before);
    let mut conn = AsyncPgConnection::establish(database.url()).await.unwrap();
    append_one(&mut conn).await;
}

/// Each `down.sql` leaves exactly what the steps before it make.
#[tokio::test]
async fn each_step_can_be_undone_by_itself() {
    let (database, mut conn) = empty().await;
    migrate(&database.database()).await.unwrap();
    append_one(&mut conn).await;
    for step in migrations().iter().skip(1).rev() {
        revert(&database.database(), step.version - 1).await.unwrap();
        let undone = catalogue(&mut conn).await;
        let (_other, mut other) = empty().await;
        let script = script(None).unwrap();
        let (before, _) = script.split_once(step.up.trim_end()).unwrap();
        other.batch_execute(&format!("{before}\nCOMMIT;")).await.unwrap();
        assert_eq!(undone, catalogue(&mut other).await, "after the revert of {}", step.name);
    }
    migrate(&database.database()).await.unwrap();
    // A connection that appended before has the old functions in its plans.
    let mut conn = AsyncPgConnection::establish(database.url()).await.unwrap();
    append_one(&mut conn).await;
}

const SCHEMAS: &str = "SELECT count(*) AS n FROM pg_namespace WHERE nspname = 'tidings'";

#[tokio::test]
async fn each_step_goes_down_and_up_by_hand() {
    let (database, mut conn) = empty().await;
    migrate(&database.database()).await.unwrap();
    let before = catalogue(&mut conn).await;
    for step in migrations().iter().rev() {
        conn.batch_execute(step.down).await.unwrap();
    }
    let left: Vec<String> = catalogue(&mut conn).await;
    assert!(
        left.iter().all(|line| line.contains("migration") || line.starts_with("constraint PRIMARY KEY (version)")),
        "{left:?}"
    );
    for step in migrations() {
        conn.batch_execute(step.up).await.unwrap();
    }
    assert_eq!(catalogue(&mut conn).await, before);
}

#[tokio::test]
async fn the_printed_script_makes_the_same_as_the_program() {
    let (by_program, mut one) = empty().await;
    migrate(&by_program.database().partitions(8)).await.unwrap();
    let (by_hand, mut other) = empty().await;
    other.batch_execute(&script(Some(8)).unwrap()).await.unwrap();
    assert_eq!(catalogue(&mut other).await, catalogue(&mut one).await);
    assert_eq!((layout(&mut one).await, layout(&mut other).await), ((8, 8), (8, 8)));
    let ledger = "SELECT string_agg(format('%s %s %s', version, name, serves_from), ',' ORDER BY version) AS line FROM tidings.migration";
    let [one, by_hand_ledger] = [&mut one, &mut other].map(|conn| diesel::sql_query(ledger).get_result::<Line>(conn));
    assert_eq!(one.await.unwrap().line, by_hand_ledger.await.unwrap().line);
    assert!(migrate(&by_hand.database()).await.unwrap().is_empty(), "the program finds it done");
    assert!(other.batch_execute(&script(None).unwrap()).await.is_err(), "a second time it fails");
    other.batch_execute("ROLLBACK").await.unwrap();
    append_one(&mut other).await;
    assert!(matches!(script(Some(0)), Err(Error::Schema(_))));
}

#[tokio::test]
async fn the_ledger_is_apart_from_the_users() {
    let (database, mut conn) = empty().await;
    conn.batch_execute(
        "CREATE TABLE __diesel_schema_migrations (version varchar(50) PRIMARY KEY, run_on timestamp NOT NULL DEFAULT now());
         INSERT INTO __diesel_schema_migrations (version) VALUES ('1'), ('0001'), ('20260101000000');
         CREATE TABLE event (id int); CREATE TABLE partition (id int); CREATE TABLE migration (version int)",
    )
    .await
    .unwrap();
    let users = "SELECT string_agg(version, ',' ORDER BY version) AS line FROM __diesel_schema_migrations";
    for _ in 0..2 {
        migrate(&database.database()).await.unwrap();
        assert_eq!(diesel::sql_query(users).get_result::<Line>(&mut conn).await.unwrap().line, "0001,1,20260101000000");
        revert(&database.database(), 0).await.unwrap();
        assert_eq!(diesel::sql_query(users).get_result::<Line>(&mut conn).await.unwrap().line, "0001,1,20260101000000");
    }
    let outside = "SELECT count(*) AS n FROM pg_class c JOIN pg_namespace s ON s.oid = c.relnamespace WHERE s.nspname = 'public' AND c.relkind = 'r'";
    assert_eq!(number(&mut conn, outside).await, 4);
}

#[tokio::test]
async fn the_number_of_partitions_is_the_databases() {
    let (database, mut conn) = empty().await;
    for wrong in [0, 1025] {
        let error = migrate(&database.database().partitions(wrong)).await.unwrap_err();
        assert!(matches!(&error, Error::Schema(message) if message.contains(&wrong.to_string())), "{error}");
        assert_eq!(number(&mut conn, SCHEMAS).await, 0, "all or nothing");
    }
    assert_eq!(migrate(&database.database().partitions(8)).await.unwrap().len(), migrations().len());
    assert_eq!(layout(&mut conn).await, (8, 8));
    assert!(migrate(&database.database()).await.unwrap().is_empty());
    assert!(migrate(&database.database().partitions(8)).await.unwrap().is_empty());
    let refused = migrate(&database.database().partitions(4)).await.unwrap_err().to_string();
    let start = start(database.database().partitions(4), &database).await.unwrap_err();
    for error in [refused, start] {
        assert!(error.contains("has 8 partitions") && error.contains("says 4"), "{error}");
    }
    assert_eq!(layout(&mut conn).await, (8, 8));
}

/// Starts and drains a relay.
async fn start(how: Database, database: &TestDatabase) -> Result<(), String> {
    let tidings = Tidings::new(how, testing::jetstream()).source(database.source()).relay(Relay::default());
    let running = tidings.start().await.map_err(|error| error.to_string())?;
    running.drain(LIMIT).await.map_err(|error| error.to_string())
}

#[tokio::test]
async fn the_grants_in_the_readme_are_enough_for_a_service() {
    let (database, mut conn) = empty().await;
    migrate(&database.database()).await.unwrap();
    let url = crate::append::role(&database, &mut conn, "service").await;
    let name = database.source();
    conn.batch_execute(&format!("REVOKE ALL ON DATABASE {name} FROM PUBLIC; REVOKE ALL ON SCHEMA public FROM PUBLIC; GRANT CONNECT ON DATABASE {name} TO service_{name}"))
        .await
        .unwrap();
    assert!(migrate(&Database::url(&url)).await.unwrap().is_empty(), "nothing to do needs no right to create");
    append_one(&mut AsyncPgConnection::establish(&url).await.unwrap()).await;
    let running =
        Tidings::new(Database::url(&url), testing::jetstream()).source(name).relay(Relay::default()).start().await;
    let running = running.unwrap();
    tidings_tests::eventually("the event is confirmed", LIMIT, async || {
        (number(&mut conn, "SELECT count(*) AS n FROM tidings.confirmation").await == 1).then_some(())
    })
    .await;
    running.drain(LIMIT).await.unwrap();
    // Where there is something to do it says what is missing, and leaves nothing.
    let (other, mut other_conn) = empty().await;
    let name = other.source();
    let url =
        format!("postgres://{}@{}", url.split(['/', '@']).nth(2).unwrap(), other.url().split_once('@').unwrap().1);
    let error = migrate(&Database::url(url)).await.unwrap_err().to_string();
    assert!(error.contains(&format!("permission denied for database {name}")), "{error}");
    assert_eq!(number(&mut other_conn, SCHEMAS).await, 0);
}

#[tokio::test]
async fn a_schema_made_beforehand_needs_no_right_on_the_database() {
    let (database, mut conn) = empty().await;
    let (name, role) = (database.source(), format!("owner_{}", database.source()));
    conn.batch_execute(&format!(
        "REVOKE ALL ON DATABASE {name} FROM PUBLIC; CREATE ROLE {role} LOGIN PASSWORD 'plain';
         GRANT CONNECT ON DATABASE {name} TO {role}; CREATE SCHEMA tidings AUTHORIZATION {role}"
    ))
    .await
    .unwrap();
    let (_, place) = database.url().split_once('@').unwrap();
    let url = format!("postgres://{role}:plain@{place}");
    assert_eq!(migrate(&Database::url(&url)).await.unwrap().len(), migrations().len());
    append_one(&mut AsyncPgConnection::establish(&url).await.unwrap()).await;
}
