//! Every code: its answer, what it needs, what it does to the tables.

use super::*;

/// A valid request of each code, as it is asked after [`Broker::example`] registered.
fn valid() -> Vec<(Ask, &'static [&'static str])> {
    let broker = ("brokerName", "b1");
    let (cluster, addr, id) = (("clusterName", "c"), ("brokerAddr", "10.0.0.1:10911"), ("brokerId", "0"));
    let kv = [("namespace", "N"), ("key", "k"), ("value", "v")];
    const IDENTITY: &[&str] = &["brokerName", "brokerAddr", "clusterName", "brokerId"];
    vec![
        (Ask::new(100, &kv), &["namespace", "key", "value"]),
        (Ask::new(101, &kv), &["namespace", "key"]),
        (Ask::new(219, &kv[..1]), &["namespace"]),
        (Ask::new(102, &kv), &["namespace", "key"]),
        (Broker::example().ask(), &["brokerName", "brokerAddr", "clusterName", "brokerId", "haServerAddr"]),
        (Ask::new(105, &[("topic", "T")]), &["topic"]),
        (Ask::new(106, &[]), &[]),
        (Ask::new(205, &[broker]), &["brokerName"]),
        (Ask::new(206, &[]), &[]),
        (
            Ask::new(217, &[("topic", "U")])
                .body(r#"{"queueDatas":[{"brokerName":"b1","perm":6,"readQueueNums":1,"writeQueueNums":1}]}"#),
            &["topic"],
        ),
        (Ask::new(216, &[("topic", "U")]), &["topic"]),
        (Ask::new(224, &[("cluster", "c")]), &["cluster"]),
        (Ask::new(304, &[]), &[]),
        (Ask::new(311, &[]), &[]),
        (Ask::new(312, &[]), &[]),
        (Ask::new(313, &[]), &[]),
        (Ask::new(318, &[]).body("orderMessageEnable=false\n"), &[]),
        (Ask::new(319, &[]), &[]),
        (Ask::new(322, &[broker, addr, cluster, id]).body(r#"{"counter":1,"timestamp":1}"#), IDENTITY),
        (Ask::new(327, &[broker]), &["brokerName"]),
        (Ask::new(901, &[broker, cluster]), &["brokerName", "clusterName"]),
        (Ask::new(904, &[broker, addr, cluster]), &["brokerName", "brokerAddr", "clusterName"]),
        (Ask::new(104, &[broker, addr, cluster, id]), IDENTITY),
    ]
}

#[test]
fn every_code_answers_in_both_encodings_and_at_every_opaque() {
    for is_binary in [false, true] {
        let mut rig = Rig::new();
        rig.register(1, &Broker::example());
        for (opaque, (ask, _)) in [0, i32::MIN, i32::MAX, 1].into_iter().cycle().zip(valid()) {
            let got = rig.ask(&Ask { opaque, is_binary, ..ask.clone() });
            assert_eq!((got.code, got.remark.as_str()), (0, ""), "{ask:?}");
        }
        assert!(rig.topics().is_empty(), "the broker went with the last request");
    }
}

#[test]
fn a_missing_field_is_named_and_nothing_changes() {
    let mut rig = Rig::new();
    rig.register(1, &Broker::example());
    rig.ok(100, &[("namespace", "N"), ("key", "k"), ("value", "v")]);
    let state = |rig: &mut Rig| {
        [rig.ok(106, &[]), rig.ok(206, &[]), rig.ok(105, &[("topic", "T")]), rig.ok(219, &[("namespace", "N")])]
            .map(|got| got.body)
    };
    let before = state(&mut rig);
    for (ask, needed) in valid() {
        for field in needed {
            let mut less = ask.clone();
            less.ext.retain(|(key, _)| key != field);
            let got = rig.ask(&less);
            assert_eq!(got.code, 1, "{} without {field}: {got:?}", ask.code);
            assert!(got.remark.contains(field), "{} without {field}: {got:?}", ask.code);
            assert_eq!(state(&mut rig), before, "{} without {field}", ask.code);
        }
        // Nothing at all, as a probe sends it.
        let got = rig.ask(&Ask { ext: Vec::new(), body: Vec::new(), ..ask.clone() });
        let answers_bare = matches!(ask.code, 106 | 206 | 304 | 311 | 312 | 313 | 319);
        assert_eq!(got.code, i32::from(!answers_bare), "bare {}: {got:?}", ask.code);
        assert_eq!(state(&mut rig), before, "bare {}", ask.code);
    }
}

#[test]
fn a_oneway_request_is_obeyed_in_silence_and_an_answer_is_ignored() {
    for (ask, _) in valid() {
        let mut rig = Rig::new();
        assert!(rig.try_ask(conn(1), &Ask { flag: 2, ..ask.clone() }).is_none(), "{ask:?}");
        assert!(rig.try_ask(conn(1), &Ask { flag: 2, ext: Vec::new(), ..ask }).is_none());
    }
    let mut rig = Rig::new();
    assert!(rig.try_ask(conn(1), &Ask { flag: 1, ..Broker::example().ask() }).is_none());
    assert!(rig.topics().is_empty(), "an answer registers nobody");
    assert!(rig.try_ask(conn(1), &Ask { flag: 2, ..Broker::example().ask() }).is_none());
    assert_eq!(rig.topics(), ["T"]);
}

#[test]
fn other_codes_are_not_supported() {
    let mut rig = Rig::new();
    for code in [0, -1, 10, 34, 107, 218, 902, 905, 1001, 32_767, 200_050, i32::MAX, i32::MIN] {
        let got = rig.ask(&Ask::new(code, &[("topic", "T")]).body("x"));
        assert_eq!((got.code, got.remark), (3, format!(" request type {code} not supported")));
    }
}

#[test]
fn of_two_equal_fields_the_later_counts_and_strange_ones_are_ignored() {
    let mut rig = Rig::new();
    rig.register(1, &Broker::example());
    assert_eq!(rig.ask(&Ask::new(105, &[("topic", "none"), ("topic", "T"), ("", ""), ("zzz", "ä")])).code, 0);
    assert_eq!(rig.ask(&Ask::new(105, &[("topic", "T"), ("topic", "none")])).code, 17);
    assert_eq!(rig.ask(&Ask::new(105, &[("Topic", "T")])).code, 1, "the other letter case is another field");
}

#[test]
fn a_route_is_standard_json_whoever_asks() {
    let mut rig = Rig::new();
    rig.register(1, &Broker::example());
    rig.register(2, &Broker::slave());
    let want = concat!(
        r#"{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"},"brokerName":"b1","#,
        r#""cluster":"c"}],"filterServerTable":{},"queueDatas":[{"brokerName":"b1","perm":6,"#,
        r#""readQueueNums":8,"topicSysFlag":0,"writeQueueNums":8}]}"#
    );
    // What Java sends quoted to versions from 401 on and to those who ask for it reads everywhere.
    for version in [37, 317, 399, 401, 407, 479, 612] {
        for standard in ["false", "true"] {
            let ask = Ask::new(105, &[("topic", "T"), ("acceptStandardJsonOnly", standard)]).version(version);
            assert_eq!(rig.ask(&ask).text(), want, "version {version}");
        }
    }
    let got = rig.ask(&Ask::new(105, &[("topic", "U")]));
    assert_eq!((got.code, got.remark.as_str()), (17, "No topic route info in name server for the topic: U"));
    assert!(got.body.is_empty());
}

#[test]
fn cluster_and_member_answers_keep_javas_bare_keys() {
    let mut rig = Rig::new();
    rig.register(1, &Broker::example());
    rig.register(2, &Broker { name: "b2", cluster: "d", addr: "10.0.0.3:1", ..Broker::example() });
    assert_eq!(
        rig.ok(106, &[]).text(),
        concat!(
            r#"{"brokerAddrTable":{"b1":{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"b1","cluster":"c"},"#,
            r#""b2":{"brokerAddrs":{0:"10.0.0.3:1"},"brokerName":"b2","cluster":"d"}},"#,
            r#""clusterAddrTable":{"c":["b1"],"d":["b2"]}}"#
        )
    );
    assert_eq!(
        rig.ok(901, &[("clusterName", "c"), ("brokerName", "b1")]).text(),
        r#"{"brokerMemberGroup":{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"b1","cluster":"c"}}"#
    );
    assert_eq!(
        rig.ok(901, &[("clusterName", "c"), ("brokerName", "none")]).text(),
        r#"{"brokerMemberGroup":{"brokerAddrs":{},"brokerName":"none","cluster":"c"}}"#
    );
}

#[test]
fn topic_lists_hold_what_their_names_say() {
    let mut rig = Rig::new();
    let topics = vec![("A", 1, 6, 0), ("U", 1, 6, 1), ("S", 1, 6, 2), ("US", 1, 6, 3)];
    rig.register(1, &Broker { topics, ..Broker::example() });
    rig.register(2, &Broker { name: "b2", cluster: "d", addr: "10.0.0.3:1", ..Broker::example() });
    for (ask, want) in [
        (Ask::new(206, &[]), vec!["A", "S", "T", "U", "US"]),
        (Ask::new(224, &[("cluster", "c")]), vec!["A", "S", "U", "US"]),
        (Ask::new(224, &[("cluster", "d")]), vec!["T"]),
        (Ask::new(224, &[("cluster", "none")]), vec![]),
        (Ask::new(304, &[]), vec!["b1", "b2", "c", "d"]),
        (Ask::new(311, &[]), vec!["U", "US"]),
        (Ask::new(312, &[]), vec!["S", "US"]),
        (Ask::new(313, &[]), vec!["S"]),
    ] {
        let got = rig.ask(&ask);
        assert_eq!(got.code, 0);
        assert_eq!(topic_list(&got), want, "{}", ask.code);
        let addr = (ask.code == 304).then_some("10.0.0.1:10911");
        assert_eq!(got.json()["brokerAddr"].as_str(), addr, "{}", ask.code);
    }
    let mut rig = Rig::with(|config| (config.all_topic_list_enable, config.topic_list_enable) = (false, false));
    for ask in [Ask::new(206, &[]), Ask::new(224, &[("cluster", "c")])] {
        let got = rig.ask(&ask);
        assert_eq!((got.code, got.remark.as_str()), (1, "disable"));
    }
}

#[test]
fn write_permission_is_wiped_and_added_for_all_topics_of_a_broker() {
    let mut rig = Rig::new();
    let broker = Broker { topics: vec![("T", 8, 7, 0), ("R", 1, 4, 0)], ..Broker::example() };
    rig.register(1, &broker);
    rig.register(2, &Broker { name: "b2", addr: "10.0.0.3:1", ..Broker::example() });
    let perms = |rig: &mut Rig| {
        let perm = |(name, perm, _)| (name, perm);
        ["T", "R"].map(|topic| rig.queues(topic).into_iter().map(perm).collect::<Vec<_>>())
    };
    let on = |name: &str, perm: i64| (name.to_string(), perm);
    assert_eq!(perms(&mut rig), [vec![on("b1", 7), on("b2", 6)], vec![on("b1", 4)]]);
    assert_eq!(rig.ok(205, &[("brokerName", "b1")]).ext("wipeTopicCount"), Some("2"));
    assert_eq!(perms(&mut rig), [vec![on("b1", 5), on("b2", 6)], vec![on("b1", 4)]]);
    // The same registration again changes nothing: only a new DataVersion does.
    rig.register(1, &broker);
    assert_eq!(perms(&mut rig), [vec![on("b1", 5), on("b2", 6)], vec![on("b1", 4)]]);
    // Adding sets 6: the inherit bit is lost and a topic that was read only is not any more, as in Java.
    assert_eq!(rig.ok(327, &[("brokerName", "b1")]).ext("addTopicCount"), Some("2"));
    assert_eq!(perms(&mut rig), [vec![on("b1", 6), on("b2", 6)], vec![on("b1", 6)]]);
    rig.register(1, &Broker { version: (2, 1, None), ..broker });
    assert_eq!(perms(&mut rig), [vec![on("b1", 7), on("b2", 6)], vec![on("b1", 4)]]);
    for (code, key) in [(205, "wipeTopicCount"), (327, "addTopicCount")] {
        assert_eq!(rig.ok(code, &[("brokerName", "none")]).ext(key), Some("0"));
    }
}

#[test]
fn a_topic_is_deleted_everywhere_or_in_one_cluster() {
    let mut rig = Rig::new();
    rig.register(1, &Broker::example());
    rig.register(2, &Broker { name: "b2", cluster: "d", addr: "10.0.0.3:1", ..Broker::example() });
    // Fields after the topic, broker names that still have it.
    for (cluster, want) in [("none", vec!["b1", "b2"]), ("c", vec!["b2"]), ("c", vec!["b2"]), ("", vec![])] {
        rig.ok(216, &[("topic", "T"), ("clusterName", cluster)]);
        let names: Vec<String> = rig.queues("T").into_iter().map(|(name, ..)| name).collect();
        assert_eq!(names, want, "in cluster {cluster:?}");
    }
    assert!(rig.topics().is_empty());
    rig.ok(216, &[("topic", "T")]);
    // A broker that still has it brings it back, though it says what it said before.
    rig.register(1, &Broker::example());
    assert_eq!(rig.queues("T"), [("b1".to_string(), 6, 8)]);
}

#[test]
fn a_topic_is_registered_alone_on_brokers_that_are_known() {
    let mut rig = Rig::new();
    rig.register(1, &Broker::example());
    let queues = |name: &str, perm: i32| {
        format!(r#"{{"queueDatas":[{{"brokerName":"{name}","perm":{perm},"readQueueNums":3,"writeQueueNums":3}}]}}"#)
    };
    let ask = |body: &str| Ask::new(217, &[("topic", "U")]).body(body);
    for body in ["", "null", "{}", "[", r#"{"queueDatas":[]}"#, &queues("stranger", 6)] {
        let got = rig.ask(&ask(body));
        assert_eq!(got.code, 1, "{body}");
        assert!(!got.remark.is_empty());
        assert!(rig.route("U").is_none(), "{body}");
    }
    assert_eq!(rig.ask(&ask(&queues("b1", 6))).code, 0);
    assert_eq!(rig.queues("U"), [("b1".to_string(), 6, 3)]);
    assert_eq!(rig.ask(&ask(&queues("b1", 4))).code, 0);
    assert_eq!(rig.queues("U"), [("b1".to_string(), 4, 3)]);
}

#[test]
fn key_and_value_are_put_read_listed_and_deleted() {
    let mut rig = Rig::new();
    let (namespace, key) = (("namespace", "N"), ("key", "k"));
    let absent = rig.ask(&Ask::new(101, &[namespace, key]));
    assert_eq!((absent.code, absent.remark.as_str()), (22, "No config item, Namespace: N Key: k"));
    let absent = rig.ask(&Ask::new(219, &[namespace]));
    assert_eq!((absent.code, absent.remark.as_str()), (22, "No config item, Namespace: N"));
    for value in ["v", "ä \"quoted\" ; \\ \n"] {
        rig.ok(100, &[namespace, key, ("value", value)]);
        assert_eq!(rig.ok(101, &[namespace, key]).ext("value"), Some(value));
    }
    rig.ok(100, &[namespace, key, ("value", "w")]);
    assert_eq!(rig.ok(219, &[namespace]).text(), r#"{"table":{"k":"w"}}"#);
    rig.ok(102, &[namespace, key]);
    rig.ok(102, &[namespace, key]);
    assert_eq!(rig.ask(&Ask::new(101, &[namespace, key])).code, 22);
    assert_eq!(rig.ok(219, &[namespace]).text(), r#"{"table":{}}"#);
    // An empty text is a missing one.
    for empty in ["namespace", "key", "value"] {
        let mut ask = Ask::new(100, &[namespace, key, ("value", "v")]);
        ask.ext.iter_mut().filter(|(name, _)| name == empty).for_each(|(_, value)| value.clear());
        let got = rig.ask(&ask);
        assert_eq!(got.code, 1);
        assert!(got.remark.contains(empty), "{got:?}");
    }
}

#[test]
fn an_order_configuration_reaches_brokers_and_where_enabled_routes() {
    let put = |rig: &mut Rig, value: &str| {
        rig.ok(100, &[("namespace", "ORDER_TOPIC_CONFIG"), ("key", "T"), ("value", value)]);
    };
    let mut rig = Rig::new();
    assert!(rig.register(1, &Broker::example()).body.is_empty(), "no such namespace, no body");
    put(&mut rig, "b1:8");
    assert_eq!(rig.register(1, &Broker::example()).text(), r#"{"table":{"T":"b1:8"}}"#);
    assert!(rig.route("T").unwrap().get("orderTopicConf").is_none());

    let mut rig = Rig::with(|config| config.order_message_enable = true);
    rig.register(1, &Broker::example());
    assert!(rig.route("T").unwrap().get("orderTopicConf").is_none());
    // Encoded routes follow the table at once.
    for value in ["b1:8", "b1:4"] {
        put(&mut rig, value);
        assert_eq!(rig.route("T").unwrap()["orderTopicConf"], value);
    }
    rig.ok(102, &[("namespace", "ORDER_TOPIC_CONFIG"), ("key", "T")]);
    assert!(rig.route("T").unwrap().get("orderTopicConf").is_none());

    let mut rig = Rig::with(|config| config.order_conf_to_broker = false);
    put(&mut rig, "b1:8");
    assert!(rig.register(1, &Broker::example()).body.is_empty());
}

#[test]
fn the_configuration_is_shown_changed_and_guarded() {
    let mut rig = Rig::new();
    let shown = |rig: &mut Rig| rig.ok(319, &[]).text().to_string();
    let before = shown(&mut rig);
    assert!(before.contains("listenPort=9876\n") && before.contains("orderMessageEnable=false\n"), "{before}");
    for (body, code, want) in [
        ("kvConfigPath=/etc/x\n", 16, "Can not update config in black list."),
        ("orderMessageEnable=true\nconfigStorePath=/etc/x", 16, "Can not update config in black list."),
        ("rocketmqHome=/etc/x", 16, "Can not update config in black list."),
        ("configBlackList=x", 16, "Can not update config in black list."),
        ("listenPort=1", 16, "listenPort is read at start only"),
        ("orderMessageEnable=\\u00", 1, "string2Properties error"),
        ("orderMessageEnable=perhaps", 1, "allowed is true or false"),
        ("no such key=1", 1, "there is no key"),
        ("", 1, "the body is empty"),
        ("\n \n", 1, "the body is empty"),
    ] {
        let got = rig.ask(&Ask::new(318, &[]).body(body));
        assert_eq!(got.code, code, "{body:?}: {got:?}");
        assert!(got.remark.contains(want), "{body:?}: {got:?}");
        assert_eq!(shown(&mut rig), before, "{body:?}");
    }
    assert!(!rig.folder.path().join("namesrv.properties").exists());
    rig.ask(&Ask::new(318, &[]).body(vec![0xff, b'\\', b'u', 0, 0xfe]));

    assert_eq!(rig.ask(&Ask::new(318, &[]).body("orderMessageEnable=true\nenableTopicList=false\n")).code, 0);
    let after = shown(&mut rig);
    assert!(after.contains("orderMessageEnable=true\n") && after.contains("enableTopicList=false\n"), "{after}");
    assert_eq!(rig.ask(&Ask::new(224, &[("cluster", "c")])).remark, "disable", "in force at once");
    let kept = std::fs::read_to_string(rig.folder.path().join("namesrv.properties")).unwrap();
    assert_eq!(kept, after);
}
