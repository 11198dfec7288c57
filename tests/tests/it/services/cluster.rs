use async_nats::jetstream;
use tidings::services::NatsCluster;

use super::{block_on, eventually};

async fn store(cluster: &NatsCluster, text: &'static str) -> Option<u64> {
    let servers: Vec<async_nats::ServerAddr> =
        cluster.url().split(',').map(|url| url.parse().expect("a URL")).collect();
    let client = cluster.connect_options().connect(servers).await.ok()?;
    let context = jetstream::new(client);
    let config = jetstream::stream::Config {
        name: "KEPT".to_owned(),
        subjects: vec!["kept".to_owned()],
        num_replicas: NatsCluster::SIZE,
        ..Default::default()
    };
    context.get_or_create_stream(config).await.ok()?;
    Some(context.publish("kept", text.into()).await.ok()?.await.ok()?.sequence)
}

#[test]
fn three_keep_a_stream_through_the_loss_and_the_step_down_of_its_leader() {
    let mut cluster = NatsCluster::start().expect("a cluster starts");
    assert_eq!(cluster.nodes().len(), NatsCluster::SIZE);
    assert_eq!(cluster.url().split(',').count(), NatsCluster::SIZE);
    let mut stored = 0;
    eventually("a message is stored", || block_on(store(&cluster, "one")).inspect(|seq| stored = *seq).is_some());

    let leader = cluster.leader("KEPT").expect("an answer").expect("a stream that stores has a leader");
    cluster.node_mut(leader).kill();
    eventually("another leads", || cluster.leader("KEPT").is_ok_and(|now| now.is_some_and(|now| now != leader)));
    let before = stored;
    eventually("the others store", || block_on(store(&cluster, "two")).inspect(|seq| stored = *seq).is_some());
    assert!(stored > before, "{stored} follows {before}: nothing that was stored is lost");
    cluster.node_mut(leader).start_again().expect("it comes back");

    let leads = |cluster: &NatsCluster| cluster.leader("KEPT").ok().flatten();
    let leader = leads(&cluster).expect("a leader");
    cluster.step_down("KEPT").expect("it steps down");
    eventually("another leads after it stepped down", || leads(&cluster).is_some_and(|now| now != leader));
    assert!(cluster.step_down("NO_SUCH_STREAM").is_err());
    assert!(cluster.leader("NO_SUCH_STREAM").expect_err("there is none").to_string().contains("stream not found"));
}

#[test]
fn its_password_is_not_shown() {
    let cluster = NatsCluster::start().expect("a cluster starts");
    let url = cluster.url();
    let secret = url.split_once('@').and_then(|(before, _)| before.rsplit_once(':')).expect("a password").1;
    assert!(!format!("{cluster:?}").contains(secret));
    for node in cluster.nodes() {
        let log = std::fs::read_to_string(node.folder().join("log")).expect("a log");
        assert!(!log.contains(secret));
    }
}
