use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use tidings::services::proxy::{Direction, Proxy};

use super::{LIMIT, SILENCE, eventually};

/// A server that says back what it hears and counts it, and a proxy in front of it.
fn echo() -> Proxy {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
        }
    });
    Proxy::start(port).expect("a proxy")
}

fn connect(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", proxy.port())).expect("a connection");
    stream.set_read_timeout(Some(LIMIT)).expect("a limit");
    stream
}

fn say(mut stream: &TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).expect("sent");
}

fn hear(mut stream: &TcpStream, text: &str) {
    let mut heard = vec![0; text.len()];
    stream.read_exact(&mut heard).expect("heard");
    assert_eq!(heard, text.as_bytes());
}

#[track_caller]
fn assert_silent(mut stream: &TcpStream) {
    stream.set_read_timeout(Some(SILENCE)).expect("a limit");
    let error = stream.read(&mut [0; 1]).expect_err("nothing to hear");
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    stream.set_read_timeout(Some(LIMIT)).expect("a limit");
}

#[track_caller]
fn assert_closed(mut stream: &TcpStream) {
    match stream.read(&mut [0; 1]) {
        Ok(count) => assert_eq!(count, 0),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
}

#[test]
fn it_passes_bytes_and_ends_on() {
    let proxy = echo();
    let stream = connect(&proxy);
    say(&stream, "hello");
    hear(&stream, "hello");
    assert_eq!(proxy.connections(), 1);
    stream.shutdown(Shutdown::Write).expect("an end");
    assert_closed(&stream);
    eventually("the connection is no longer counted", || proxy.connections() == 0);
}

#[test]
fn it_passes_more_than_it_can_hold() {
    let proxy = echo();
    let stream = connect(&proxy);
    let much = vec![7_u8; 16 << 20];
    std::thread::scope(|scope| {
        scope.spawn(|| (&stream).write_all(&much).expect("sent"));
        let mut heard = vec![0; much.len()];
        (&stream).read_exact(&mut heard).expect("heard");
        assert_eq!(heard, much);
    });
}

#[test]
fn a_delay_counts_both_ways_and_does_not_add_up() {
    let proxy = echo();
    let stream = connect(&proxy);
    let delay = Duration::from_millis(150);
    proxy.delay(delay);
    let began = Instant::now();
    for word in ["one", "two", "three"] {
        say(&stream, word);
    }
    hear(&stream, "onetwothree");
    let took = began.elapsed();
    assert!(took >= 2 * delay, "{took:?}");
    proxy.delay(Duration::ZERO);
    say(&stream, "fast");
    hear(&stream, "fast");
}

#[test]
fn frozen_it_holds_bytes_and_thawed_it_passes_them_in_order() {
    let proxy = echo();
    let stream = connect(&proxy);
    proxy.freeze();
    say(&stream, "one");
    let late = connect(&proxy);
    say(&late, "late");
    assert_silent(&stream);
    assert_silent(&late);
    say(&stream, "two");
    proxy.thaw();
    hear(&stream, "onetwo");
    hear(&late, "late");
}

#[test]
fn only_the_answers_can_be_held() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let proxy = Proxy::start(listener.local_addr().expect("an address").port()).expect("a proxy");
    let client = connect(&proxy);
    let (server, _) = listener.accept().expect("a connection");
    proxy.freeze_only(Direction::ToClient);
    say(&client, "request");
    hear(&server, "request");
    say(&server, "answer");
    assert_silent(&client);
    proxy.thaw();
    hear(&client, "answer");

    proxy.freeze_only(Direction::ToServer);
    say(&server, "news");
    hear(&client, "news");
    say(&client, "lost");
    server.set_read_timeout(Some(LIMIT)).expect("a limit");
    assert_silent(&server);
}

#[test]
fn a_cut_closes_what_is_open_and_takes_new_ones() {
    let proxy = echo();
    let stream = connect(&proxy);
    say(&stream, "hello");
    hear(&stream, "hello");
    proxy.cut();
    assert_closed(&stream);
    let next = connect(&proxy);
    say(&next, "again");
    hear(&next, "again");
}

#[test]
fn a_frozen_connection_can_be_cut() {
    let proxy = echo();
    let stream = connect(&proxy);
    say(&stream, "hello");
    hear(&stream, "hello");
    proxy.freeze();
    say(&stream, "held");
    proxy.cut();
    assert_closed(&stream);
}

#[test]
fn refusing_closes_new_ones_and_leaves_the_others() {
    let proxy = echo();
    let stream = connect(&proxy);
    say(&stream, "hello");
    hear(&stream, "hello");
    proxy.refuse(true);
    assert_closed(&connect(&proxy));
    say(&stream, "still");
    hear(&stream, "still");
    proxy.refuse(false);
    let next = connect(&proxy);
    say(&next, "again");
    hear(&next, "again");
}

#[test]
fn nobody_behind_it_and_dropping_it_close_connections() {
    let unused = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
    let proxy = Proxy::start(unused).expect("a proxy");
    assert_closed(&connect(&proxy));

    let proxy = echo();
    let stream = connect(&proxy);
    say(&stream, "hello");
    hear(&stream, "hello");
    drop(proxy);
    assert_closed(&stream);
}
