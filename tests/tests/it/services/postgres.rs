use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use tidings::services::proxy::Proxy;
use tidings::services::{Error, Postgres, PostgresOptions};

use super::{SILENCE, block_on, name_of, processes_with, state, user_of};

#[derive(diesel::QueryableByName)]
struct Text {
    #[diesel(sql_type = diesel::sql_types::Text)]
    value: String,
}

async fn value(connection: &mut AsyncPgConnection, expression: &str) -> String {
    let query = diesel::sql_query(format!("SELECT ({expression})::text AS value"));
    query.get_result::<Text>(connection).await.expect("a row").value
}

async fn connect(url: &str) -> AsyncPgConnection {
    AsyncPgConnection::establish(url).await.expect("a connection")
}

fn started() -> Postgres {
    Postgres::start().expect("PostgreSQL starts")
}

fn password(url: &str) -> &str {
    url.split_once('@').and_then(|(before, _)| before.rsplit_once(':')).expect("a password").1
}

fn processes(postgres: &Postgres) -> Vec<u32> {
    let found = processes_with(name_of(postgres.folder()));
    assert!(found.len() > 3, "the postmaster and its children, not {found:?}");
    found
}

#[tokio::test]
async fn it_serves_inside_a_runtime_and_any_database_name_will_do() {
    let postgres = Postgres::start_with(PostgresOptions::new().setting("wal_level", "logical")).expect("it starts");
    let odd = "it's \"odd\"/1";
    postgres.create_database(odd).expect("a database");
    let mut connection = connect(&postgres.url_of(odd)).await;
    assert_eq!(value(&mut connection, "current_database()").await, odd);
    assert_eq!(value(&mut connection, "current_setting('listen_addresses')").await, "127.0.0.1");
    assert_eq!(value(&mut connection, "current_setting('wal_level')").await, "logical");
    assert_eq!(value(&mut connection, "current_setting('server_encoding')").await, "UTF8");

    let again = postgres.create_database(odd).expect_err("there is one");
    assert!(matches!(again, Error::Database { .. }), "{again}");
    postgres.drop_database(odd).expect("it is dropped, connections and all");
    postgres.create_database(odd).expect("the name is free again");
}

#[test]
fn it_refuses_who_does_not_know_the_password_and_does_not_show_it() {
    let postgres = started();
    let url = postgres.url();
    let secret = password(&url);
    for wrong in [url.replace(secret, "wrong"), url.replace(&format!(":{secret}"), "")] {
        assert!(block_on(AsyncPgConnection::establish(&wrong)).is_err());
    }
    block_on(connect(&url));
    assert!(!format!("{postgres:?}").contains(secret));
    let log = std::fs::read_to_string(postgres.folder().join("log")).expect("a log");
    assert!(!log.contains(secret));
    assert!(processes_with(secret).is_empty(), "no command line has it");
}

#[test]
fn none_of_its_processes_is_roots() {
    let postgres = started();
    for pid in processes(&postgres) {
        assert_ne!(user_of(pid), 0);
    }
}

#[test]
fn port_and_data_survive_a_stop_and_a_kill() {
    let mut postgres = started();
    let (url, port) = (postgres.url(), postgres.port());
    block_on(async {
        let mut connection = connect(&url).await;
        connection.batch_execute("CREATE TABLE kept (n int); INSERT INTO kept VALUES (1)").await.expect("a table");
    });

    postgres.stop().expect("it stops");
    assert!(!postgres.is_running());
    assert!(block_on(AsyncPgConnection::establish(&url)).is_err());
    postgres.stop().expect("stopping twice is no error");
    postgres.start_again().expect("it starts again");
    postgres.start_again().expect("starting twice is no error");
    block_on(async {
        connect(&url).await.batch_execute("INSERT INTO kept VALUES (2)").await.expect("a row");
    });

    let before = processes(&postgres);
    postgres.kill();
    let left: Vec<_> = before.iter().filter_map(|&pid| Some((pid, state(pid)?))).collect();
    assert!(left.is_empty(), "children too are gone when kill returns, not {left:?}");
    postgres.start_again().expect("it recovers");
    assert_eq!(postgres.port(), port);
    assert_eq!(block_on(async { value(&mut connect(&url).await, "SELECT sum(n) FROM kept").await }), "3");
}

#[tokio::test]
async fn frozen_it_is_silent_and_thawed_it_answers_what_it_was_asked() {
    let postgres = started();
    let mut connection = connect(&postgres.url()).await;
    postgres.freeze();
    for pid in processes(&postgres) {
        assert_eq!(state(pid), Some('T'));
    }
    let mut answer = std::pin::pin!(value(&mut connection, "1 + 1"));
    assert!(tokio::time::timeout(SILENCE, &mut answer).await.is_err(), "a frozen server answers nothing");
    postgres.thaw();
    assert_eq!(answer.await, "2");
}

#[test]
fn a_frozen_one_can_be_stopped_killed_and_dropped() {
    let mut postgres = started();
    postgres.freeze();
    postgres.stop().expect("it stops");
    postgres.start_again().expect("it starts again");
    postgres.freeze();
    postgres.kill();
    postgres.start_again().expect("it recovers");
    postgres.freeze();
    let (folder, all) = (postgres.folder().to_owned(), processes(&postgres));
    drop(postgres);
    assert!(!folder.exists());
    assert!(all.iter().all(|&pid| state(pid).is_none()));
}

#[test]
fn it_is_reached_through_a_proxy() {
    let postgres = started();
    let proxy = Proxy::start(postgres.port()).expect("a proxy");
    let url = postgres.url_through(&proxy, "postgres");
    let lost = block_on(async {
        let mut connection = connect(&url).await;
        assert_eq!(value(&mut connection, "1").await, "1");
        proxy.cut();
        diesel::sql_query("SELECT 1").execute(&mut connection).await
    });
    assert!(lost.is_err(), "the connection was cut");
    block_on(connect(&url));
}

#[test]
fn a_setting_that_is_refused_is_told_with_the_log() {
    let refused = PostgresOptions::new().setting("wal_level", "nonsense");
    let error = Postgres::start_with(refused).expect_err("PostgreSQL refuses it").to_string();
    assert!(error.contains("wal_level") && error.contains("did not start"), "{error}");
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port();
    let error = Postgres::start_with(PostgresOptions::new().port(port)).expect_err("it is taken");
    assert!(matches!(error, Error::PortTaken { port: named, .. } if named == port), "{error}");
}
