//! How long a broker lives: silence, a closed connection, a farewell.

use super::*;

#[test]
fn a_broker_that_is_silent_for_120_s_is_gone_and_its_connection_closed() {
    let mut rig = Rig::new();
    assert_eq!(rig.server.deadline_mono_ms(), None);
    rig.register(1, &Broker::example());
    assert_eq!(rig.server.deadline_mono_ms(), Some(6000));
    // Milliseconds of the monotonic clock since the registration at 1000.
    for now_ms in [1000, 6000, 60_000, 120_999, 121_000] {
        assert!(rig.server.tick(now_ms).is_empty(), "{now_ms}");
        assert!(rig.route("T").is_some());
    }
    assert_eq!(rig.server.tick(126_000), [conn(1)]);
    assert!(rig.route("T").is_none());
    assert!(rig.topics().is_empty());
    assert_eq!(rig.server.deadline_mono_ms(), None);
    assert!(rig.server.tick(u64::MAX).is_empty());
    // The close that follows finds nobody.
    rig.server.on_close(conn(1));
    rig.mono_ms = 130_000;
    rig.register(2, &Broker::example());
    assert!(rig.route("T").is_some(), "it may come back");
}

#[test]
fn only_a_sign_of_life_keeps_a_broker() {
    let identity = [("brokerName", "b1"), ("brokerAddr", "10.0.0.1:10911"), ("clusterName", "c"), ("brokerId", "0")];
    let version = |counter: i64| format!(r#"{{"counter":{counter},"timestamp":1}}"#);
    for (what, ask, keeps) in [
        ("registration", Broker::example().ask(), true),
        ("version, the same", Ask::new(322, &identity).body(version(1)), true),
        ("version, another", Ask::new(322, &identity).body(version(2)), true),
        ("heartbeat", Ask::new(904, &identity), true),
        ("heartbeat of another", Ask::new(904, &[("clusterName", "d"), identity[0], identity[1]]), false),
        ("a client", Ask::new(105, &[("topic", "T")]), false),
        ("a registration that fails", Ask::new(103, &identity), false),
    ] {
        let mut rig = Rig::new();
        rig.register(1, &Broker::example());
        rig.mono_ms = 100_000;
        rig.try_ask(conn(1), &ask);
        assert_eq!(rig.server.tick(150_000).is_empty(), keeps, "{what}");
        assert_eq!(rig.route("T").is_some(), keeps, "{what}");
        let after = rig.server.tick(230_000);
        assert_eq!(after.is_empty(), !keeps, "{what}");
    }
}

#[test]
fn a_broker_may_name_a_time_of_its_own() {
    // What it says, milliseconds after which it is gone.
    for (said, gone_ms) in [("10000", 10_000), ("300000", 300_000), ("0", 120_000), ("-1", 120_000)] {
        let mut rig = Rig::new();
        rig.register(1, &Broker { more: vec![("heartbeatTimeoutMillis", said)], ..Broker::example() });
        assert!(rig.server.tick(1000 + gone_ms).is_empty(), "{said}");
        assert_eq!(rig.server.tick(1000 + gone_ms + 5000), [conn(1)], "{said}");
    }
}

#[test]
fn a_closed_connection_ends_the_brokers_that_live_through_it() {
    let mut rig = Rig::new();
    rig.register(1, &Broker::example());
    rig.register(1, &Broker { name: "b2", addr: "10.0.0.3:1", ..Broker::example() });
    rig.register(2, &Broker { name: "b3", addr: "10.0.0.4:1", ..Broker::example() });
    rig.server.on_close(conn(77));
    assert_eq!(rig.queues("T").len(), 3);
    // b1 came back through another connection before the old one was seen to close.
    rig.register(3, &Broker::example());
    rig.server.on_close(conn(1));
    let names: Vec<String> = rig.queues("T").into_iter().map(|(name, ..)| name).collect();
    assert_eq!(names, ["b1", "b3"]);
    // A slot that is used again is another connection.
    rig.server.on_close(ConnId { slot: 3, generation: 2 });
    assert_eq!(rig.queues("T").len(), 2);
    rig.server.on_close(conn(3));
    rig.server.on_close(conn(2));
    assert_eq!(rig.ok(106, &[]).text(), r#"{"brokerAddrTable":{},"clusterAddrTable":{}}"#);
    assert!(rig.topics().is_empty());
}

#[test]
fn a_farewell_takes_one_address_and_with_the_last_one_the_topics() {
    let mut rig = Rig::new();
    rig.register(1, &Broker::example());
    rig.register(2, &Broker::slave());
    let leave = |broker: &Broker| Ask::new(104, &broker.fields());
    assert_eq!(rig.ask(&leave(&Broker { addr: "10.9.9.9:1", ..Broker::example() })).code, 0, "a stranger");
    assert_eq!(rig.addrs("T").len(), 2);
    assert_eq!(rig.ask(&leave(&Broker::example())).code, 0);
    assert_eq!(rig.addrs("T"), [("1".to_string(), "10.0.0.2:10911".to_string())]);
    assert_eq!(rig.ask(&leave(&Broker::slave())).code, 0);
    assert!(rig.route("T").is_none());
    assert!(rig.server.tick(1 << 40).is_empty(), "nobody is left to expire");
}

#[test]
fn routes_are_held_back_at_the_start_where_that_is_wanted() {
    let mut rig = Rig::with(|config| config.service_wait_needed = true);
    let ask = Ask::new(105, &[("topic", "T")]);
    assert_eq!(rig.ask(&ask).remark, "name server not ready");
    rig.register(1, &Broker::example());
    rig.mono_ms += 44_999;
    assert_eq!(rig.ask(&ask).remark, "name server not ready");
    rig.mono_ms += 1;
    assert_eq!(rig.ask(&ask).code, 0);
    assert_eq!(rig.ask(&Ask::new(105, &[("topic", "U")])).code, 17);
}
