//! Who hears of whom, and when, by raw frames.

mod support;

use std::time::Duration;
use support::Cluster;
use support::wire::{Ask, Wire};

const NOTIFY_CONSUMER_IDS_CHANGED: i32 = 40;

fn heartbeat(client: &str, group: &str) -> Ask {
    Ask::new(34).body(format!(
        r#"{{"clientID":"{client}","consumerDataSet":[{{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"{group}","messageModel":"CLUSTERING","subscriptionDataSet":[{{"classFilterMode":false,"codeSet":[],"expressionType":"TAG","subString":"*","subVersion":1,"tagsSet":[],"topic":"T"}}],"unitMode":false}}],"producerDataSet":[]}}"#
    ))
}

/// A Java client that hears of its own arrival while its heartbeat is still out skips the next one, and its pulls are
/// refused with 25 for half a minute. A group that is new takes the longest to answer, so many new ones are tried.
#[test]
fn nobody_hears_of_an_arrival_before_its_heartbeat_is_answered() {
    let Some(cluster) = Cluster::start("groups-notice") else { return };
    for round in 0..40 {
        let group = format!("g{round}");
        let mut first = Wire::to(cluster.broker_address());
        let opaque = first.send(&heartbeat("first", &group));
        let told = first.next(Duration::from_secs(10)).expect("an answer");
        assert_eq!((told.code, told.opaque), (0, opaque), "round {round}: {told:?}");
        let notice = first.next(Duration::from_secs(10)).expect("the notice");
        assert_eq!(notice.code, NOTIFY_CONSUMER_IDS_CHANGED, "{notice:?}");

        let mut second = Wire::to(cluster.broker_address());
        let opaque = second.send(&heartbeat("second", &group));
        let told = second.next(Duration::from_secs(10)).expect("an answer");
        assert_eq!((told.code, told.opaque), (0, opaque), "round {round}: {told:?}");
        assert_eq!(first.next(Duration::from_secs(10)).expect("the notice").code, NOTIFY_CONSUMER_IDS_CHANGED);
        assert_eq!(second.next(Duration::from_secs(10)).expect("the notice").code, NOTIFY_CONSUMER_IDS_CHANGED);
        drop(second);
        assert_eq!(first.next(Duration::from_secs(10)).expect("the notice").code, NOTIFY_CONSUMER_IDS_CHANGED);
    }
}
