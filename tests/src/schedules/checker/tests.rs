//! A small world in which all is well, and one change to it for each rule that the judge must see broken.

use std::collections::BTreeSet;

use super::*;

const SOURCE: &str = "shop";

/// Three versions of one aggregate and an event without one, published, confirmed, owned by `a` and then by `b`.
struct Case {
    tables: Tables,
    streams: Vec<Stream>,
    committed: BTreeSet<String>,
    undone: BTreeSet<String>,
}

fn well() -> Case {
    let aggregate = |seq: i64| (seq < 4).then(|| ("thing".to_owned(), "t".to_owned()));
    let event = |seq: i64| Event {
        seq,
        id: format!("e{seq}"),
        r#type: "said".into(),
        aggregate: aggregate(seq),
        version: (seq < 4).then_some(seq),
        previous: (2..4).contains(&seq).then_some(seq - 1),
        partition: 0,
        data: vec![u8::try_from(seq).unwrap()],
        recipient: None,
    };
    let events: Vec<Event> = (1..=4).map(event).collect();
    let confirmation = |seq: i64| Confirmation {
        seq,
        partition: 0,
        incarnation: 7,
        stream_seq: seq,
        epoch: if seq < 3 { 1 } else { 2 },
        at: seq * 10,
    };
    let owner = |owner: &str, epoch: i64, at: i64| Owner { partition: 0, owner: Some(owner.into()), epoch, at };
    let tables = Tables {
        pending: vec![],
        confirmations: (1..=4).map(confirmation).collect(),
        owners: vec![owner("a", 1, 0), owner("b", 2, 25)],
        anchors: vec![Anchor { partition: 0, incarnation: Some(7), stream_seq: Some(4), ids: vec!["e4".into()] }],
        heads: vec![(("thing".into(), "t".into()), 3)],
        events: events.clone(),
    };
    let messages = events.iter().map(message).collect();
    let streams = vec![Stream { name: "shop_0".into(), partition: 0, incarnation: 7, messages }];
    let committed = events.iter().map(|event| event.id.clone()).collect();
    Case { tables, streams, committed, undone: BTreeSet::from(["gone".to_owned()]) }
}

fn message(event: &Event) -> Message {
    let mut headers = vec![
        ("nats-msg-id", format!("{SOURCE}#{}", event.id)),
        ("ce-id", event.id.clone()),
        ("ce-source", SOURCE.into()),
        ("ce-type", event.r#type.clone()),
    ];
    if let Some((of, id)) = &event.aggregate {
        headers.extend([("ce-aggregatetype", of.clone()), ("ce-aggregateid", id.clone())]);
    }
    headers.extend(event.version.map(|version| ("ce-aggregateversion", version.to_string())));
    headers.extend(event.previous.map(|previous| ("ce-previousversion", previous.to_string())));
    Message {
        seq: u64::try_from(event.seq).unwrap(),
        subject: "shop.0.evt.thing.said".into(),
        headers: headers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        data: event.data.clone(),
    }
}

fn judged(case: &Case) -> String {
    judge(SOURCE, &case.tables, &case.streams, Told { committed: &case.committed, undone: &case.undone }).join("\n")
}

#[track_caller]
fn is_found<T>(what: &str, change: impl FnOnce(&mut Case) -> T) {
    let mut case = well();
    change(&mut case);
    let judged = judged(&case);
    assert!(judged.contains(what), "{what:?} is not among the violations: {judged}");
}

/// Moves a message to another place of the stream, with its evidence.
fn swap(case: &mut Case, a: usize, b: usize) {
    let messages = &mut case.streams[0].messages;
    messages.swap(a, b);
    (messages[a].seq, messages[b].seq) = (messages[b].seq, messages[a].seq);
    let confirmations = &mut case.tables.confirmations;
    (confirmations[a].stream_seq, confirmations[b].stream_seq) =
        (confirmations[b].stream_seq, confirmations[a].stream_seq);
}

#[test]
fn where_all_is_well_nothing_is_found() {
    assert_eq!(judged(&well()), "");
}

#[test]
fn a_repeat_of_the_same_message_is_none_of_its_business() {
    let mut case = well();
    let mut again = case.streams[0].messages[0].clone();
    again.seq = 5;
    case.streams[0].messages.push(again);
    assert_eq!(judged(&case), "");
}

#[test]
fn a_tombstone_stands_for_its_version() {
    let mut case = well();
    let tombstone = &mut case.streams[0].messages[1];
    tombstone.subject = "shop.0.evt.thing._tombstone".into();
    tombstone.data.clear();
    tombstone.headers.insert("nats-msg-id".into(), format!("{SOURCE}#e2#tombstone"));
    assert_eq!(judged(&case), "");
    swap(&mut case, 1, 2);
    assert!(judged(&case).contains("precedes an earlier one"));
}

#[test]
fn loss_is_found() {
    is_found("lost: committed and in no stream", |case| case.streams[0].messages.pop());
    is_found("still pending", |case| {
        case.tables.pending.push(Pending { seq: 1, state: "ready".into(), last_error: None });
    });
    is_found("committed and not in the table", |case| case.committed.insert("e9".into()));
}

#[test]
fn what_was_never_said_is_found() {
    is_found("rolled back and in the table", |case| case.undone.insert("e1".into()));
    is_found("published, though rolled back", |case| {
        case.streams[0].messages[3].headers.insert("ce-id".into(), "gone".into());
    });
    is_found("published, and not in the table", |case| {
        case.streams[0].messages[3].headers.insert("ce-id".into(), "foreign".into());
    });
    is_found("a message without an id", |case| case.streams[0].messages[3].headers.remove("ce-id"));
}

#[test]
fn another_order_is_found() {
    is_found("a later version precedes an earlier one", |case| swap(case, 1, 2));
    is_found("a version is passed over", |case| swap(case, 0, 1));
    is_found("the stream was not read in order", |case| case.streams[0].messages.swap(0, 1));
    is_found("versions in the table do not count on", |case| case.tables.events[1].version = Some(3));
    is_found("a head is not the last version", |case| case.tables.heads[0].1 = 4);
}

#[test]
fn other_content_is_found() {
    is_found("one id with two contents", |case| {
        let mut again = case.streams[0].messages[0].clone();
        (again.seq, again.data) = (5, vec![]);
        case.streams[0].messages.push(again);
    });
    is_found("e1 at shop_0 1: data", |case| case.streams[0].messages[0].data.clear());
    let headers = [
        ("ce-source", "source"),
        ("ce-aggregateid", "aggregate"),
        ("ce-aggregateversion", "version"),
        ("ce-type", "type"),
    ];
    for (name, what) in headers {
        is_found(&format!("e3 at shop_0 3: {what}"), |case| {
            case.streams[0].messages[2].headers.insert(name.into(), "9".into());
        });
    }
    is_found("e3 at shop_0 3: message id", |case| {
        case.streams[0].messages[2].headers.insert("nats-msg-id".into(), "9".into());
    });
    is_found("e4 at shop_0 4: partition", |case| case.tables.events[3].partition = 1);
    is_found("tombstone without a version", |case| {
        case.streams[0].messages[3].subject = "shop.0.evt._._tombstone".into()
    });
}

#[test]
fn untrue_evidence_is_found() {
    is_found("evidence is not true", |case| case.tables.confirmations[0].stream_seq = 2);
    is_found("evidence is not true", |case| case.tables.confirmations[0].incarnation = 8);
    is_found("evidence of no event", |case| case.tables.confirmations[0].seq = 9);
    is_found("never confirmed", |case| case.tables.confirmations.pop());
    is_found("confirmed more than once", |case| {
        let again = case.tables.confirmations[0];
        case.tables.confirmations.push(again);
    });
    is_found("an anchor is not the last confirmation", |case| case.tables.anchors[0].stream_seq = Some(3));
    is_found("an anchor is not the last confirmation", |case| case.tables.anchors[0].ids = vec!["e3".into()]);
}

#[test]
fn an_owner_of_the_past_is_found() {
    is_found("confirmed under an epoch that was over", |case| case.tables.confirmations[1].at = 26);
    is_found("an epoch has two owners", |case| case.tables.owners[1].epoch = 1);
    is_found("an epoch goes back", |case| case.tables.owners.swap(0, 1));
}
