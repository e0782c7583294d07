//! What is there after the end of the process: the KV configuration and the properties, nothing else.

use super::*;
use std::fs;

fn reopened(rig: Rig) -> Rig {
    let mut config = NamesrvConfig::example();
    config.kv_config_path = rig.folder.path().join("kvConfig.json");
    config.config_store_path = rig.folder.path().join("namesrv.properties");
    Rig { server: NameServer::open(config).unwrap(), ..rig }
}

const KEY: [(&str, &str); 2] = [("namespace", "N"), ("key", "k")];

fn put(rig: &mut Rig, value: &str) {
    rig.ok(100, &[KEY[0], KEY[1], ("value", value)]);
}

#[test]
fn keys_outlive_a_restart_and_brokers_do_not() {
    let mut rig = Rig::new();
    rig.register(1, &Broker::example());
    put(&mut rig, "v");
    let mut rig = reopened(rig);
    assert_eq!(rig.ok(101, &KEY).ext("value"), Some("v"));
    assert!(rig.topics().is_empty());
}

#[test]
fn a_damaged_table_gives_way_to_the_one_before_it() {
    for damage in ["", "{\"configTable\":{\"N\":{\"k\":", "null", "\0\0\0\0"] {
        let mut rig = Rig::new();
        put(&mut rig, "one");
        put(&mut rig, "two");
        fs::write(rig.folder.path().join("kvConfig.json"), damage).unwrap();
        let mut rig = reopened(rig);
        assert_eq!(rig.ok(101, &KEY).ext("value"), Some("one"), "{damage:?}");
        put(&mut rig, "three");
        let mut rig = reopened(rig);
        assert_eq!(rig.ok(101, &KEY).ext("value"), Some("three"), "{damage:?}");
    }
    // Without a backup the start is refused: an empty table would be written over it.
    let rig = Rig::new();
    let path = rig.folder.path().join("kvConfig.json");
    fs::write(&path, "{\"configTable\":").unwrap();
    let mut config = NamesrvConfig::example();
    config.kv_config_path = path.clone();
    let error = NameServer::open(config).unwrap_err().to_string();
    assert!(error.contains("kvConfig.json is damaged"), "{error}");
    assert_eq!(fs::read_to_string(path).unwrap(), "{\"configTable\":");
}

#[test]
fn a_change_that_cannot_be_kept_is_refused_and_not_in_force() {
    let mut rig = Rig::new();
    put(&mut rig, "v");
    for name in ["kvConfig.json.tmp", "namesrv.properties.tmp"] {
        fs::create_dir(rig.folder.path().join(name)).unwrap();
    }
    let got = rig.ask(&Ask::new(100, &[KEY[0], KEY[1], ("value", "w")]));
    assert_eq!(got.code, 1);
    assert!(got.remark.contains("cannot write"), "{got:?}");
    assert_eq!(rig.ok(101, &KEY).ext("value"), Some("v"));
    let got = rig.ask(&Ask::new(318, &[]).body("enableTopicList=false"));
    assert_eq!(got.code, 1);
    assert!(got.remark.contains("cannot write"), "{got:?}");
    assert!(rig.ok(319, &[]).text().contains("enableTopicList=true\n"));
}

#[test]
fn changed_properties_are_there_again_with_the_file_of_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("namesrv.conf");
    let kv = folder.path().join("with \\ backslash/kvConfig.json");
    let line = [("kvConfigPath".to_string(), kv.display().to_string())];
    fs::write(&file, "listenPort=19876\n").unwrap();
    let server = NameServer::open(NamesrvConfig::load(Some(&file), &line).unwrap()).unwrap();
    let mut rig = Rig { server, folder, mono_ms: 0 };
    assert_eq!(rig.ask(&Ask::new(318, &[]).body("orderMessageEnable=true")).code, 0);
    let config = NamesrvConfig::load(Some(&file), &[]).unwrap();
    assert!(config.order_message_enable);
    assert_eq!((config.listen_port, &config.kv_config_path), (19_876, &kv));
    assert!(config.warnings().is_empty(), "{:?}", config.warnings());
}
