//! Any sequence of commands, closes and ticks: no panic, one right answer each, tables that agree.

use super::*;
use proptest::prelude::*;

const CODES: &[i32] = &[
    100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 217, 219, 224, 304, 311, 312, 313, 318, 319, 322, 327, 901, 904,
    -1, 10,
];

#[derive(Clone, Debug)]
enum Step {
    Ask { slot: u32, ask: Ask },
    Register { slot: u32, broker: Broker, is_packed: bool },
    Close { slot: u32 },
    Later { ms: u64 },
}

/// Names that meet each other often, and some that are none.
fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => prop::sample::select(vec!["b1", "b2", "c", "d", "T", "U", "10.0.0.1:1", "10.0.0.2:1", "0", "1", "true"])
            .prop_map(str::to_string),
        1 => prop::sample::select(vec!["", " ", "-1", "9223372036854775807", "ORDER_TOPIC_CONFIG"])
            .prop_map(str::to_string),
        1 => ".{0,8}",
    ]
}

fn field() -> impl Strategy<Value = (String, String)> {
    let key = prop::sample::select(vec![
        "topic",
        "cluster",
        "clusterName",
        "brokerName",
        "brokerAddr",
        "brokerId",
        "haServerAddr",
        "namespace",
        "key",
        "value",
        "compressed",
        "bodyCrc32",
        "enableActingMaster",
        "heartbeatTimeoutMillis",
        "__ZONE_NAME",
        "__ZONE_MODE",
        "acceptStandardJsonOnly",
    ]);
    (key, word()).prop_map(|(key, value)| (key.to_string(), value))
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(Vec::new()),
        prop::collection::vec(any::<u8>(), 0..64),
        prop::collection::vec(any::<u8>(), 0..64).prop_map(|bytes| [&[0x78, 0x9c][..], &bytes].concat()),
        prop::collection::vec(any::<u8>(), 0..64).prop_map(|bytes| deflated(&bytes)),
        prop::sample::select(vec![
            "{}",
            "null",
            r#"{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"topicName":"T"}}}}"#,
            r#"{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{},"U":{"perm":"x"}}}}"#,
            r#"{"topicConfigSerializeWrapper":{"dataVersion":null,"topicConfigTable":null}}"#,
            r#"{"queueDatas":[{"brokerName":"b1","perm":6,"readQueueNums":-1,"writeQueueNums":2147483647}]}"#,
            r#"{"counter":1,"timestamp":-1}"#,
            "orderMessageEnable=true\n",
            "supportActingMaster=true\nscanNotActiveBrokerInterval=10\n",
            "deleteTopicWithBrokerRegistration=true\n",
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
    ]
}

fn ask() -> impl Strategy<Value = Ask> {
    let code = prop_oneof![9 => prop::sample::select(CODES), 1 => any::<i32>()];
    let ext = prop::collection::vec(field(), 0..12);
    let version = prop::sample::select(vec![0, 317, 407, 413, 479, -1]);
    (code, version, any::<i32>(), prop::sample::select(vec![0, 0, 0, 1, 2, 3, -1]), any::<bool>(), ext, body())
        .prop_map(|(code, version, opaque, flag, is_binary, ext, body)| {
            let is_binary = is_binary && i16::try_from(code).is_ok();
            Ask { code, version, opaque, flag, is_binary, ext, body }
        })
}

fn broker() -> impl Strategy<Value = Broker> {
    let topics = prop::sample::subsequence(vec![("T", 1, 6, 0), ("T", 2, 4, 3), ("U", 1, 7, 1), ("V", 9, 6, 2)], 0..=4);
    let more = prop::sample::subsequence(
        vec![
            ("enableActingMaster", "true"),
            ("enableActingMaster", "false"),
            ("__ZONE_NAME", "z"),
            ("heartbeatTimeoutMillis", "1000"),
        ],
        0..=2,
    );
    (
        prop::sample::select(vec!["c", "d"]),
        prop::sample::select(vec!["b1", "b2"]),
        prop::sample::select(vec!["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"]),
        prop::sample::select(vec!["0", "1", "2", "-1"]),
        topics,
        (0..2i64, 0..2i64, prop::option::of(0..2i64)),
        more,
    )
        .prop_map(|(cluster, name, addr, id, topics, version, more)| Broker {
            cluster,
            name,
            addr,
            id,
            topics,
            version,
            more,
        })
}

fn step() -> impl Strategy<Value = Step> {
    let slot = 0..4u32;
    prop_oneof![
        4 => (slot.clone(), ask()).prop_map(|(slot, ask)| Step::Ask { slot, ask }),
        4 => (slot.clone(), broker(), any::<bool>())
            .prop_map(|(slot, broker, is_packed)| Step::Register { slot, broker, is_packed }),
        1 => slot.prop_map(|slot| Step::Close { slot }),
        1 => (0..200_000u64).prop_map(|ms| Step::Later { ms }),
    ]
}

/// Every topic that is listed has a route, and a route has queues exactly on the brokers it names.
fn tables_agree(rig: &mut Rig) {
    let names = |list: &serde_json::Value| -> Vec<String> {
        list.as_array().unwrap().iter().map(|data| data["brokerName"].as_str().unwrap().to_string()).collect()
    };
    let NamesrvConfig { all_topic_list_enable, service_wait_needed, .. } = rig.server.config;
    assert!(all_topic_list_enable && !service_wait_needed);
    for topic in rig.topics() {
        let route = rig.route(&topic).unwrap_or_else(|| panic!("{topic} is listed and has no route"));
        let brokers = &route["brokerDatas"];
        assert!(!names(brokers).is_empty());
        assert_eq!(names(brokers), names(&route["queueDatas"]), "{route}");
        for data in brokers.as_array().unwrap() {
            assert!(!data["brokerAddrs"].as_object().unwrap().is_empty(), "{route}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_of_commands_breaks_the_tables(steps in prop::collection::vec(step(), 1..40)) {
        let mut rig = Rig::new();
        for step in steps {
            match step {
                Step::Ask { slot, ask } => {
                    let answered = rig.try_ask(conn(slot), &ask).is_some();
                    prop_assert_eq!(answered, ask.flag & 3 == 0);
                }
                Step::Register { slot, broker, is_packed } => {
                    let mut ask = broker.ask();
                    if is_packed {
                        ask.body = deflated(&broker.plain_body(false));
                    }
                    prop_assert!(rig.try_ask(conn(slot), &ask).is_some_and(|got| got.code == 0));
                }
                Step::Close { slot } => rig.server.on_close(conn(slot)),
                Step::Later { ms } => {
                    rig.mono_ms += ms;
                    for closed in rig.server.tick(rig.mono_ms) {
                        rig.server.on_close(closed);
                    }
                }
            }
            tables_agree(&mut rig);
        }
        for slot in 0..4 {
            rig.server.on_close(conn(slot));
        }
        prop_assert!(rig.topics().is_empty());
        let cluster_info = rig.ok(106, &[]);
        prop_assert_eq!(cluster_info.text(), r#"{"brokerAddrTable":{},"clusterAddrTable":{}}"#);
        prop_assert_eq!(rig.server.deadline_mono_ms(), None);
    }
}
