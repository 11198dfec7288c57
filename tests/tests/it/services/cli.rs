//! `tidings services`

use std::io::{BufRead, BufReader};

use diesel_async::{AsyncConnection, AsyncPgConnection};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Ended, block_on, connect_nats, role};

#[test]
fn it_prints_urls_that_work_and_ends_well_on_ctrl_c_and_sigterm() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut process = Ended(role(&["cli", "services"]).spawn().expect("it starts"));
        let mut lines = BufReader::new(process.0.stdout.take().expect("its output")).lines();
        let mut url = |variable: &str| {
            let line = lines.next().expect("a line").expect("text");
            line.strip_prefix(variable).and_then(|rest| rest.strip_prefix('=')).expect("a URL").to_owned()
        };
        let (database, nats) = (url("TIDINGS_DATABASE_URL"), url("TIDINGS_NATS_URL"));
        block_on(async {
            AsyncPgConnection::establish(&database).await.expect("PostgreSQL answers");
            connect_nats(&nats).await.expect("NATS answers");
        });
        kill(Pid::from_raw(process.0.id().cast_signed()), signal).expect("it is there");
        assert_eq!(process.0.wait().expect("it ends").code(), Some(0));
        block_on(async {
            assert!(AsyncPgConnection::establish(&database).await.is_err());
            assert!(connect_nats(&nats).await.is_err());
        });
    }
}

#[test]
fn a_port_that_is_taken_ends_it_with_an_error() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let output = role(&["cli", "services", "--nats-port", &port]).output().expect("it runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(error.contains(&format!("nats-server cannot have port {port}")), "{error}");
}

#[test]
fn help_and_wrong_arguments_are_answered() {
    let help = role(&["cli", "services", "--help"]).output().expect("it runs");
    assert_eq!(help.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&help.stdout).contains("--postgres-port"));
    let wrong = role(&["cli", "services", "--postgres-port", "0"]).output().expect("it runs");
    assert_eq!(wrong.status.code(), Some(2));
}
