//! REGISTER_BROKER: its body in both forms, and whose word counts.

use super::*;

#[test]
fn the_body_comes_in_two_forms_and_with_two_claims() {
    let broker = Broker { topics: vec![("T", 8, 6, 0), ("U", 4, 4, 0)], ..Broker::example() };
    let json = broker.body();
    let (old, new) = (deflated(&broker.plain_body(false)), deflated(&broker.plain_body(true)));
    // Body, what the header claims (None: no word of it), version of the frame.
    for (body, claim, version) in [
        (&json, None, 407),
        (&json, Some("false"), 479),
        (&old, Some("true"), 407),
        (&new, Some("true"), 413),
        (&new, Some("TRUE"), 479),
        // 5.3.3 compresses and says that it does not.
        (&new, Some("false"), 479),
        (&old, None, 407),
    ] {
        // 0 and none: not checked.
        for crc in [None, Some(0), Some(crc32(body))] {
            let mut rig = Rig::new();
            let mut ask = Ask::new(103, &broker.fields()).body(body.clone()).version(version);
            ask.ext.extend(claim.map(|claim| ("compressed".to_string(), claim.to_string())));
            ask.ext.extend(crc.map(|crc| ("bodyCrc32".to_string(), crc.to_string())));
            let got = rig.ask(&ask);
            assert_eq!(got.code, 0, "{claim:?} {version} {crc:?}: {got:?}");
            assert!(got.ext.is_empty() && got.body.is_empty(), "{got:?}");
            assert_eq!(rig.queues("T"), [("b1".to_string(), 6, 8)]);
            assert_eq!(rig.queues("U"), [("b1".to_string(), 4, 4)]);
        }
    }
}

#[test]
fn a_wrong_checksum_registers_nothing() {
    let mut rig = Rig::new();
    for crc in ["1", "-1", "2147483647"] {
        let mut ask = Broker::example().ask();
        ask.ext.push(("bodyCrc32".to_string(), crc.to_string()));
        let got = rig.ask(&ask);
        assert_eq!((got.code, got.remark.as_str()), (1, "crc32 not match"));
    }
    for crc in ["x", "", "99999999999"] {
        let mut ask = Broker::example().ask();
        ask.ext.push(("bodyCrc32".to_string(), crc.to_string()));
        let got = rig.ask(&ask);
        assert_eq!(got.code, 1);
        assert!(got.remark.contains("bodyCrc32"), "{got:?}");
    }
    assert!(rig.topics().is_empty());
    assert_eq!(rig.ok(106, &[]).text(), r#"{"brokerAddrTable":{},"clusterAddrTable":{}}"#);
}

#[test]
fn a_body_that_is_none_says_what_is_wrong_and_registers_nothing() {
    let broker = Broker::example();
    let json = broker.body();
    let plain = broker.plain_body(false);
    let packed = deflated(&plain);
    let mut flipped = packed.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let counted = |count: u32| {
        let mut plain = plain.clone();
        let at = 4 + broker.version_json().len();
        plain[at..at + 4].copy_from_slice(&count.to_be_bytes());
        deflated(&plain)
    };
    let topic = |line: &str| {
        let mut plain = Vec::new();
        for text in ["{\"counter\":1,\"timestamp\":1}", line, "[]"] {
            plain.extend_from_slice(&(text.len() as u32).to_be_bytes());
            plain.extend_from_slice(text.as_bytes());
            if plain.len() < 40 {
                plain.extend_from_slice(&1u32.to_be_bytes());
            }
        }
        deflated(&plain)
    };
    let bodies: Vec<(&str, Vec<u8>)> = vec![
        ("empty", vec![]),
        ("blank", b"  ".to_vec()),
        ("null", b"null".to_vec()),
        ("no table", b"{}".to_vec()),
        ("no table, blank before", b" {}".to_vec()),
        ("a list", b"[]".to_vec()),
        ("other members only", b"{\"filterServerList\":[]}".to_vec()),
        ("torn JSON", json[..json.len() / 2].to_vec()),
        ("bytes", vec![0xff; 100]),
        ("zeros", vec![0; 100]),
        ("zlib, torn", packed[..packed.len() / 2].to_vec()),
        ("zlib, bad checksum", flipped),
        ("zlib head and noise", [&[0x78, 0x9c][..], &[0xaa; 50]].concat()),
        ("zlib of nothing", deflated(b"")),
        ("zlib of noise", deflated(&[0xaa; 50])),
        ("zlib of JSON", deflated(&json)),
        ("zlib, a huge count", counted(u32::MAX)),
        ("zlib, a count too many", counted(2)),
        ("zlib, half its fields", deflated(&plain[..plain.len() - 3])),
        ("zlib, a short topic", topic("T 8 8")),
        ("zlib, no numbers", topic("T x y z SINGLE_TAG")),
        ("zlib, no filter", topic("T 8 8 6 NONE")),
        ("zlib, much from little", deflated(&vec![0; 65 << 20])),
    ];
    for (what, body) in bodies {
        for claim in ["true", "false"] {
            let mut rig = Rig::new();
            let mut ask = Ask::new(103, &broker.fields()).body(body.clone());
            ask.ext.push(("compressed".to_string(), claim.to_string()));
            let got = rig.ask(&ask);
            assert_eq!(got.code, 1, "{what}, compressed={claim}: {got:?}");
            assert!(got.remark.starts_with("the register body is wrong: "), "{what}: {got:?}");
            assert!(got.remark.len() < 600, "{what}: {} bytes of remark", got.remark.len());
            assert_eq!(rig.ok(106, &[]).text(), r#"{"brokerAddrTable":{},"clusterAddrTable":{}}"#, "{what}");
        }
    }
    // A 5.x frame must hold the queue mappings too.
    let mut ask = Ask::new(103, &broker.fields()).body(packed).version(479);
    ask.ext.push(("compressed".to_string(), "true".to_string()));
    assert_eq!(Rig::new().ask(&ask).code, 1);
}

#[test]
fn an_empty_table_is_a_broker_without_topics() {
    let mut rig = Rig::new();
    let broker = Broker { topics: Vec::new(), ..Broker::example() };
    rig.register(1, &broker);
    assert!(rig.ok(106, &[]).text().contains("10.0.0.1:10911"));
    assert!(rig.topics().is_empty());
    let packed = Ask::new(103, &broker.fields()).body(deflated(&broker.plain_body(false)));
    assert_eq!(rig.ask(&packed).code, 0);
}

#[test]
fn names_that_cannot_be_names_are_refused() {
    const LONG: &str = match std::str::from_utf8(&[b'x'; 256]) {
        Ok(text) => text,
        Err(_) => unreachable!(),
    };
    for (field, value) in [
        ("brokerName", ""),
        ("clusterName", "  "),
        ("brokerAddr", ""),
        ("brokerName", LONG),
        ("brokerId", "x"),
        ("brokerId", ""),
        ("brokerId", "9223372036854775808"),
        ("heartbeatTimeoutMillis", "soon"),
    ] {
        let mut rig = Rig::new();
        let mut ask = Broker::example().ask();
        ask.ext.push((field.to_string(), value.to_string()));
        let got = rig.ask(&ask);
        assert_eq!(got.code, 1, "{field}={value:?}");
        assert!(got.remark.contains(field) && got.remark.len() < 300, "{got:?}");
        assert!(rig.topics().is_empty());
    }
}

#[test]
fn a_slave_learns_its_master_while_that_lives() {
    let mut rig = Rig::new();
    let master = ["haServerAddr", "masterAddr"];
    let got = rig.register(2, &Broker::slave());
    assert!(master.iter().all(|key| got.ext(key).is_none()), "{got:?}");
    assert!(rig.route("T").is_none(), "a 4.9 slave's topics do not count");
    let got = rig.register(1, &Broker::example());
    assert!(got.ext.is_empty(), "a master is told nothing: {got:?}");
    let got = rig.register(2, &Broker::slave());
    assert_eq!(master.map(|key| got.ext(key)), [Some("10.0.0.1:10912"), Some("10.0.0.1:10911")]);
    // One of another cluster is not its master, one whose connection closed is none any more.
    rig.server.on_close(conn(1));
    assert!(rig.register(2, &Broker::slave()).ext.is_empty());
}

#[test]
fn a_slave_that_becomes_the_master_keeps_no_other_id() {
    let mut rig = Rig::new();
    rig.register(1, &Broker::example());
    rig.register(2, &Broker::slave());
    let of = |id: &str, addr: &str| (id.to_string(), addr.to_string());
    assert_eq!(rig.addrs("T"), [of("0", "10.0.0.1:10911"), of("1", "10.0.0.2:10911")]);
    // The old master goes, the slave registers as id 0.
    rig.server.on_close(conn(1));
    assert_eq!(rig.addrs("T"), [of("1", "10.0.0.2:10911")], "the topic stays readable");
    rig.register(2, &Broker { id: "0", version: (5, 1, None), topics: vec![("T", 4, 6, 0)], ..Broker::slave() });
    assert_eq!(rig.addrs("T"), [of("0", "10.0.0.2:10911")]);
    assert_eq!(rig.queues("T"), [("b1".to_string(), 6, 4)], "and its topics count now");
    // The old one comes back as the slave.
    let got = rig.register(3, &Broker { id: "1", ..Broker::example() });
    assert_eq!(got.ext("masterAddr"), Some("10.0.0.2:10911"));
    assert_eq!(rig.addrs("T"), [of("0", "10.0.0.2:10911"), of("1", "10.0.0.1:10911")]);
}

#[test]
fn of_two_that_claim_one_id_the_newer_state_stays() {
    let second = Broker { addr: "10.0.0.7:10911", topics: vec![("U", 1, 6, 0)], ..Broker::example() };
    // State version of the holder, of the second; who has the id afterwards.
    for (holder, other, want) in [
        (None, None, "10.0.0.7:10911"),
        (Some(1), Some(1), "10.0.0.7:10911"),
        (Some(1), Some(2), "10.0.0.7:10911"),
        (Some(2), Some(1), "10.0.0.1:10911"),
        (Some(1), None, "10.0.0.1:10911"),
    ] {
        let mut rig = Rig::new();
        rig.register(1, &Broker { version: (9, 9, holder), ..Broker::example() });
        let got = rig.register(2, &Broker { version: (9, 9, other), ..second.clone() });
        assert!(got.ext.is_empty());
        assert_eq!(rig.addrs("T"), [("0".to_string(), want.to_string())], "{holder:?} {other:?}");
        // Who lost takes nothing along when its connection closes.
        let (loser, winner) = if want == second.addr { (1, 2) } else { (2, 1) };
        rig.server.on_close(conn(loser));
        assert_eq!(rig.addrs("T"), [("0".to_string(), want.to_string())], "{holder:?} {other:?}");
        rig.server.on_close(conn(winner));
        assert!(rig.topics().is_empty());
    }
}

#[test]
fn an_address_has_one_broker_name() {
    let mut rig = Rig::new();
    rig.register(1, &Broker::example());
    rig.register(1, &Broker { name: "renamed", ..Broker::example() });
    assert_eq!(rig.queues("T"), [("renamed".to_string(), 6, 8)]);
    assert_eq!(rig.ok(106, &[]).text().matches("10.0.0.1:10911").count(), 1);
}

#[test]
fn a_version_that_did_not_move_changes_no_topic_that_is_known() {
    let with = |version, topics| Broker { version, topics, ..Broker::example() };
    let mut rig = Rig::new();
    rig.register(1, &with((10, 5, None), vec![("T", 8, 6, 0)]));
    // Version, topics; queues of T and of U afterwards.
    for (version, topics, want_t, want_u) in [
        // The same version with another table: what is known stays, what is not is taken (5.3.3).
        ((10, 5, None), vec![("T", 1, 4, 0), ("U", 2, 6, 0)], (6, 8), Some((6, 2))),
        // Without stateVersion is stateVersion 0.
        ((10, 5, Some(0)), vec![("T", 1, 4, 0)], (6, 8), Some((6, 2))),
        // Any difference counts, to an older one too; what is not named stays.
        ((10, 6, None), vec![("T", 1, 4, 0)], (4, 1), Some((6, 2))),
        ((3, 1, None), vec![("T", 5, 6, 0)], (6, 5), Some((6, 2))),
        ((3, 1, Some(4)), vec![("T", 7, 6, 0)], (6, 7), Some((6, 2))),
    ] {
        rig.register(1, &with(version, topics.clone()));
        assert_eq!(rig.queues("T"), [("b1".to_string(), want_t.0, want_t.1)], "{version:?} {topics:?}");
        let want_u: Vec<_> = want_u.into_iter().map(|(perm, queues)| ("b1".to_string(), perm, queues)).collect();
        assert_eq!(rig.queues("U"), want_u, "{version:?}");
    }
}

#[test]
fn topics_that_a_registration_does_not_name_go_only_where_told() {
    let mut rig = Rig::with(|config| config.topic_delete_on_register = true);
    rig.register(1, &Broker { topics: vec![("T", 8, 6, 0), ("U", 1, 6, 0)], ..Broker::example() });
    rig.register(1, &Broker { version: (2, 1, None), ..Broker::example() });
    assert_eq!(rig.topics(), ["T"]);

    // Switched on while running, it holds for the next registration, though that says nothing new.
    let mut rig = Rig::new();
    rig.register(1, &Broker { topics: vec![("T", 8, 6, 0), ("U", 1, 6, 0)], ..Broker::example() });
    rig.register(1, &Broker { version: (2, 1, None), ..Broker::example() });
    assert_eq!(rig.topics(), ["T", "U"]);
    assert_eq!(rig.ask(&Ask::new(318, &[]).body("deleteTopicWithBrokerRegistration=true")).code, 0);
    rig.register(1, &Broker { version: (2, 1, None), ..Broker::example() });
    assert_eq!(rig.topics(), ["T"]);
}

#[test]
fn a_data_version_is_compared_with_the_one_held() {
    let mut rig = Rig::new();
    let identity = [("brokerName", "b1"), ("brokerAddr", "10.0.0.1:10911"), ("clusterName", "c"), ("brokerId", "0")];
    let ask = |body: &str| Ask::new(322, &identity).body(body);
    let got = rig.ask(&ask(r#"{"counter":1,"timestamp":1}"#));
    assert_eq!((got.code, got.ext("changed")), (0, Some("true")), "nobody is known");
    assert!(got.body.is_empty());
    rig.register(1, &Broker { version: (7, 3, Some(2)), ..Broker::example() });
    for (body, changed) in [
        (r#"{"counter":3,"stateVersion":2,"timestamp":7}"#, "false"),
        (r#"{"counter":3,"timestamp":7}"#, "true"),
        (r#"{"counter":4,"stateVersion":2,"timestamp":7}"#, "true"),
        (r#"{"counter":3,"stateVersion":2,"timestamp":8}"#, "true"),
    ] {
        let got = rig.ask(&ask(body));
        assert_eq!((got.code, got.ext("changed")), (0, Some(changed)), "{body}");
        assert_eq!(got.text(), r#"{"counter":3,"stateVersion":2,"timestamp":7}"#);
    }
    for body in ["", "null", "x", "[[["] {
        let got = rig.ask(&ask(body));
        assert_eq!(got.code, 1, "{body:?}");
        assert!(got.remark.contains("DataVersion"), "{got:?}");
    }
}

#[test]
fn a_slave_stands_in_for_reading_where_its_group_allows_it() {
    let mut rig = Rig::with(|config| config.acting_master_support = true);
    let acting = vec![("enableActingMaster", "true")];
    let master = Broker { more: acting.clone(), ..Broker::example() };
    let slave = Broker { more: acting, ..Broker::slave() };
    rig.register(1, &master);
    rig.register(2, &slave);
    assert_eq!(rig.queues("T"), [("b1".to_string(), 6, 8)]);
    rig.server.on_close(conn(1));
    assert_eq!(rig.queues("T"), [("b1".to_string(), 4, 8)], "nobody writes without a master");
    assert_eq!(rig.addrs("T"), [("0".to_string(), "10.0.0.2:10911".to_string())], "the slave shows as id 0");
    // Its own registration gives topics, for reading.
    rig.register(2, &Broker { topics: vec![("T", 8, 6, 0), ("N", 1, 6, 0)], version: (2, 2, None), ..slave });
    assert_eq!(rig.queues("N"), [("b1".to_string(), 4, 1)]);
    rig.register(3, &master);
    assert_eq!(rig.addrs("T").len(), 2);
    assert_eq!(rig.queues("T"), [("b1".to_string(), 6, 8)], "the master is back");
}

#[test]
fn a_client_that_keeps_to_its_zone_sees_the_brokers_there() {
    let mut rig = Rig::new();
    rig.register(1, &Broker { more: vec![("__ZONE_NAME", "east")], ..Broker::example() });
    let west = Broker { name: "b2", addr: "10.0.0.3:1", more: vec![("__ZONE_NAME", "west")], ..Broker::example() };
    rig.register(2, &west);
    let names = |rig: &mut Rig, mode: &str, zone: &str| {
        let ask = Ask::new(105, &[("topic", "T"), ("__ZONE_MODE", mode), ("__ZONE_NAME", zone)]);
        let route = rig.ask(&ask).json();
        let names = |list: &str| -> Vec<String> {
            let list = route[list].as_array().unwrap().iter();
            list.map(|data| data["brokerName"].as_str().unwrap().to_string()).collect()
        };
        assert_eq!(names("brokerDatas"), names("queueDatas"));
        names("queueDatas")
    };
    for (mode, zone, want) in [
        ("true", "EAST", vec!["b1"]),
        ("true", "west", vec!["b2"]),
        ("true", " ", vec!["b1", "b2"]),
        ("false", "east", vec!["b1", "b2"]),
        ("true", "north", vec![]),
    ] {
        assert_eq!(names(&mut rig, mode, zone), want, "{mode} {zone:?}");
    }
}
