//! Producers in plain SQL, from a client that has no Tidings code in it.

use tidings::append::Outcome;
use tidings::testing::TestDatabase;
use tokio_postgres::{Client, NoTls};

use super::{database, events, number, of, run, say, say_all, told, unordered};

/// A client that knows SQL and nothing else.
async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// (version, previous, outcome) of one append.
type Answer = (Option<i64>, Option<i64>, String);

async fn append(client: &Client, arguments: &str) -> Result<Answer, tokio_postgres::Error> {
    let row = client.query_one(&format!("SELECT * FROM tidings.append({arguments})"), &[]).await?;
    assert!(row.get::<_, i64>("seq") > 0);
    Ok((row.get("version"), row.get("previous"), row.get("outcome")))
}

fn new(version: Option<i64>, previous: Option<i64>) -> Answer {
    (version, previous, "appended".into())
}

#[tokio::test]
async fn only_type_and_data_are_required() {
    let (database, mut conn) = database().await;
    let client = client(database.url()).await;
    assert_eq!(append(&client, r"type => 'orders.created', data => '\x00ff'").await.unwrap(), new(None, None));
    let named = "type => 'orders.created', data => '{}', aggregate_type => 'job', aggregate_id => 'job-42'";
    assert_eq!(append(&client, named).await.unwrap(), new(Some(1), None));
    assert_eq!(append(&client, &format!("{named}, version => 5")).await.unwrap(), new(Some(5), Some(1)));
    let again =
        "id => 'evt-90', type => 'job.progressed', data => '{}', aggregate_type => 'job', aggregate_id => 'job-42'";
    assert_eq!(append(&client, again).await.unwrap(), new(Some(6), Some(5)));
    let already = (Some(6), Some(5), "already appended".to_owned());
    assert_eq!(append(&client, again).await.unwrap(), already);
    // The same road, whoever says it.
    let from_rust = say(&mut conn, of("job-42").id("evt-90")).await.unwrap();
    assert_eq!(told(&from_rust), (Outcome::AlreadyAppended, Some(6), Some(5)));
    assert_eq!(append(&client, "type => 'orders.start', data => '{}', recipient => 'worker'").await.unwrap().0, None);
    assert_eq!(events(&mut conn).await, 5);
    let defaults = "SELECT count(*) AS n FROM tidings.event WHERE content_type = 'application/json' AND schema_version = 1
                       AND id ~ '^[0-9a-f-]{36}$' AND occurred_at = created_at AND kind = CASE WHEN recipient IS NULL THEN 'event' ELSE 'command' END";
    assert_eq!(number(&mut conn, defaults).await, 4);
}

#[tokio::test]
async fn a_refusal_is_told_by_the_name_of_a_constraint() {
    let (database, mut conn) = database().await;
    let client = client(database.url()).await;
    say(&mut conn, of("job-42").id("evt-90")).await.unwrap();
    let of_job = "type => 't', data => '{}', aggregate_type => 'job', aggregate_id => 'job-42'";
    for (arguments, constraint) in [
        ("id => 'evt-90', type => 't', data => 's3cret'".to_owned(), "tidings_id_conflict"),
        (format!("{of_job}, version => 1"), "tidings_version_conflict"),
        (format!("{of_job}, version => 0"), "tidings_version_conflict"),
        ("type => 't', data => 's3cret', version => 3".to_owned(), "tidings_version_without_aggregate"),
    ] {
        let error = append(&client, &arguments).await.unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(error.constraint(), Some(constraint), "{error:?}");
        assert_eq!((error.schema(), error.table()), (Some("tidings"), Some("event")));
        assert!(error.hint().is_some() && !format!("{error:?}").contains("s3cret"), "{error:?}");
    }
    for arguments in ["type => 't', data => NULL", "type => 't', data => '{}', id => NULL"] {
        assert!(append(&client, arguments).await.is_err(), "{arguments}");
    }
    assert_eq!(events(&mut conn).await, 1);
}

#[tokio::test]
async fn what_could_never_be_published_is_refused_by_the_name_of_its_field_in_both_ways() {
    let (database, mut conn) = database().await;
    let client = client(database.url()).await;
    let long = "x".repeat(257);
    for (arguments, field) in [
        ("type => 't', id => ''".to_owned(), "id"),
        (format!("type => 't', id => '{long}'"), "id"),
        ("type => ''".to_owned(), "type"),
        (format!("type => '{long}'"), "type"),
        ("type => 't', schema_version => 0".to_owned(), "schema_version"),
        ("type => 't', recipient => ''".to_owned(), "recipient"),
        (format!("type => 't', recipient => '{long}'"), "recipient"),
        ("type => 't', aggregate_type => '', aggregate_id => 'job-42'".to_owned(), "aggregate_type"),
        (format!("type => 't', aggregate_type => 'job', aggregate_id => '{long}'"), "aggregate_id"),
        ("type => 't', aggregate_type => 'job'".to_owned(), "aggregate"),
        ("type => 't', aggregate_id => 'job-42'".to_owned(), "aggregate"),
        (
            "type => 't', recipient => 'w', aggregate_type => 'job', aggregate_id => 'job-42'".to_owned(),
            "recipient_of_an_aggregate",
        ),
        ("type => 't', not_before => 'infinity'".to_owned(), "not_before"),
    ] {
        // A version given takes the way of many in one call.
        for arguments in
            [format!("{arguments}, data => 's3cret'"), format!("{arguments}, data => 's3cret', version => 1")]
        {
            let error = append(&client, &arguments).await.unwrap_err();
            let error = error.as_db_error().unwrap();
            assert_eq!(error.constraint(), Some(format!("tidings_{field}").as_str()), "{arguments}: {error:?}");
            assert!(error.hint().is_some() && !format!("{error:?}").contains("s3cret"), "{error:?}");
        }
    }
    assert_eq!(events(&mut conn).await, 0);
    let most = "x".repeat(256);
    let at_most =
        format!("type => '{most}', id => '{most}', aggregate_type => '{most}', aggregate_id => '{most}', data => ''");
    assert_eq!(append(&client, &at_most).await.unwrap(), new(Some(1), None));
}

#[tokio::test]
async fn the_session_may_be_set_as_it_likes() {
    let (database, mut conn) = database().await;
    run(
        &mut conn,
        "CREATE TABLE public.event (LIKE tidings.event); CREATE TABLE public.pending (LIKE tidings.pending);
         CREATE TABLE public.aggregate (LIKE tidings.aggregate); CREATE TABLE public.setting (partitions integer);
         CREATE FUNCTION public.lane(text, text, text) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint';
         CREATE FUNCTION public.append(text, bytea) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'",
    )
    .await;
    for (n, settings) in [
        "SET search_path = ''",
        "SET search_path = public",
        "SET timezone = 'Asia/Kathmandu'; SET datestyle = 'German'; SET intervalstyle = 'sql_standard'",
        "SET bytea_output = 'escape'; SET extra_float_digits = 0; SET lc_messages = 'C'; SET lc_numeric = 'C'",
        "SET default_transaction_isolation = 'serializable'; SET enable_seqscan = off; SET jit = on",
        "SET plan_cache_mode = 'force_generic_plan'; SET check_function_bodies = off; SET role = pg_database_owner; RESET role",
    ]
    .into_iter()
    .enumerate()
    {
        let client = client(database.url()).await;
        client.batch_execute(settings).await.unwrap();
        let of_job = format!(
            "id => 'evt-{n}', type => 't', data => '{{}}', aggregate_type => 'job', aggregate_id => 'job-42', occurred_at => '2026-02-03T04:05:06+02:00'"
        );
        let version = (n > 0).then_some(n as i64);
        assert_eq!(append(&client, &of_job).await.unwrap(), new(Some(n as i64 + 1), version), "{settings}");
        assert_eq!(append(&client, &of_job).await.unwrap().2, "already appended", "{settings}");
        let batch = format!("{of_job}, version => 1");
        assert_eq!(append(&client, &batch).await.unwrap().2, "already appended", "{settings}");
        let unordered = format!("id => 'n-{n}', type => 't', data => '{{}}'");
        assert_eq!(append(&client, &unordered).await.unwrap(), new(None, None), "{settings}");
    }
    assert_eq!(events(&mut conn).await, 12);
    let instants = "SELECT count(*) AS n FROM tidings.event WHERE occurred_at = '2026-02-03T02:05:06Z' AND created_at > now() - interval '5 min' AND created_at <= now()";
    assert_eq!(number(&mut conn, instants).await, 6);
    let decoys = "SELECT (SELECT count(*) FROM public.event) + (SELECT count(*) FROM public.pending) + (SELECT count(*) FROM public.aggregate) AS n";
    assert_eq!(number(&mut conn, decoys).await, 0);
}

/// A role with what a block of the migrations' README grants, and nothing else; its URL.
pub(crate) async fn role(database: &TestDatabase, conn: &mut diesel_async::AsyncPgConnection, name: &str) -> String {
    let readme = include_str!("../../../../migrations/README.md");
    let block = readme
        .split("```sql\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .find(|block| block.contains(&format!("TO {name};")))
        .expect("the README has a block for it");
    let role = format!("{name}_{}", database.source());
    run(conn, &format!("CREATE ROLE {role} LOGIN PASSWORD 'plain'")).await;
    run(conn, &block.replace(&format!(" {name};"), &format!(" {role};"))).await;
    let (_, rest) = database.url().split_once('@').unwrap();
    format!("postgres://{role}:plain@{rest}")
}

#[tokio::test]
async fn the_grants_in_the_readme_are_enough_for_a_producer() {
    let (database, mut conn) = database().await;
    let url = role(&database, &mut conn, "producer").await;
    let client = client(&url).await;
    assert_eq!(append(&client, "type => 't', data => '{}'").await.unwrap(), new(None, None));
    let mut producer =
        <diesel_async::AsyncPgConnection as diesel_async::AsyncConnection>::establish(&url).await.unwrap();
    for _ in 0..2 {
        say(&mut producer, of("job-42").id("a")).await.unwrap();
        say_all(&mut producer, vec![of("job-42").id("b"), of("job-7").id("c"), unordered("n")]).await.unwrap();
        say(&mut producer, of("job-42").id("d").version(9)).await.unwrap();
    }
    assert_eq!(events(&mut conn).await, 6);
    for statement in ["DELETE FROM tidings.event", "UPDATE tidings.event SET type = 'x'", "DELETE FROM tidings.pending"]
    {
        let error = client.batch_execute(statement).await.unwrap_err();
        assert!(error.as_db_error().unwrap().message().contains("permission denied"), "{statement}");
    }
}
