//! What a name server can be told.

use super::keys::{NAMESRV_BLOCKED, NAMESRV_TUNING};
use super::machine::Machine;
use super::setting::{Text, settings};
use super::{
    ConfigError, Entry, Known, Notes, Place, Problem, UpdateError, apply, blocked_names, entries, file_entries, named,
    pairs,
};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

settings! {
    /// The keys of Java's NamesrvConfig and NettyServerConfig that work.
    pub struct NamesrvConfig {
        /// 0 takes any free port.
        listen_port: u16 = "listenPort" important, 0..=65_535, |_| 9876;
        bind_address: IpAddr = "bindAddress" plain, (), |_| IpAddr::from([0, 0, 0, 0]);
        idle_max_s: u32 = "serverChannelMaxIdleTimeSeconds" plain, 1..=86_400, |_| 120;
        kv_config_path: PathBuf = "kvConfigPath" important, (), |machine| machine.home.join("namesrv/kvConfig.json");
        /// Where UPDATE_NAMESRV_CONFIG keeps what it changed. The file of the command line, where there is one.
        config_store_path: PathBuf = "configStorePath" plain, (), |machine| machine.home.join("namesrv/namesrv.properties");
        /// Whether routes carry the ORDER_TOPIC_CONFIG value of their topic.
        order_message_enable: bool = "orderMessageEnable" plain, (), |_| false;
        scan_interval_ms: u32 = "scanNotActiveBrokerInterval" plain, 10..=3_600_000, |_| 5000;
        /// A group without its master shows its smallest id as 0, for reading.
        acting_master_support: bool = "supportActingMaster" plain, (), |_| false;
        order_conf_to_broker: bool = "returnOrderTopicConfigToBroker" plain, (), |_| true;
        all_topic_list_enable: bool = "enableAllTopicList" plain, (), |_| true;
        topic_list_enable: bool = "enableTopicList" plain, (), |_| true;
        /// A registration removes the topics it does not name.
        topic_delete_on_register: bool = "deleteTopicWithBrokerRegistration" plain, (), |_| false;
        /// Routes are refused for the first `service_wait_s` seconds, while brokers register.
        service_wait_needed: bool = "needWaitForService" plain, (), |_| false;
        service_wait_s: u32 = "waitSecondsForService" plain, 0..=86_400, |_| 45;
        /// Keys, separated by `;`, that UPDATE_NAMESRV_CONFIG must not change.
        config_black_list: String = "configBlackList" plain, Text::Line,
            |_| "configBlackList;configStorePath;kvConfigPath".to_string();
    }
}

/// Keys that UPDATE_NAMESRV_CONFIG never changes, whatever `configBlackList` says.
const BLACK_LIST: &[&str] = &["configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"];
/// Keys that are read once, at start.
const START_ONLY: &[&str] = &["listenPort", "bindAddress", "serverChannelMaxIdleTimeSeconds"];

const KNOWN: Known = Known { blocked: NAMESRV_BLOCKED, tuning: NAMESRV_TUNING };

impl NamesrvConfig {
    /// # Errors
    /// Every value that is not allowed or whose feature is missing, all together.
    pub fn load(file: Option<&Path>, overrides: &[(String, String)]) -> Result<NamesrvConfig, ConfigError> {
        NamesrvConfig::load_over(&[], file, overrides)
    }

    /// As [`NamesrvConfig::load`], with `defaults` (of a mode of starting) in place of Java's where the file and the
    /// command line say nothing.
    ///
    /// # Errors
    /// As [`NamesrvConfig::load`].
    pub fn load_over(
        defaults: &[(String, String)],
        file: Option<&Path>,
        overrides: &[(String, String)],
    ) -> Result<NamesrvConfig, ConfigError> {
        let machine = Machine::detect();
        // What UPDATE_NAMESRV_CONFIG changed is there again after a restart.
        let Some(file) = file else {
            let kept = NamesrvConfig::of(&machine, &entries(defaults, None, overrides)?)?.config_store_path;
            let mut entries = entries(defaults, Some(kept.as_path()).filter(|kept| kept.exists()), overrides)?;
            // The file has every key; where the folders and ports are is said by the start.
            let is_changed = |key: &str| !START_ONLY.contains(&key) && !BLACK_LIST.contains(&key);
            entries.retain(|entry| !matches!(entry.place, Place::File { .. }) || is_changed(&entry.key));
            return NamesrvConfig::of(&machine, &entries);
        };
        let mut entries = entries(defaults, Some(file), overrides)?;
        entries.push(Entry {
            place: Place::CommandLine,
            key: "configStorePath".to_string(),
            value: file.display().to_string(),
        });
        NamesrvConfig::of(&machine, &entries)
    }

    /// The defaults, for [`NamesrvConfig::load_over`], of a name server for this machine only, its files in `store`.
    pub fn standalone(store: &Path) -> Vec<(String, String)> {
        [
            ("bindAddress", "127.0.0.1".to_string()),
            ("kvConfigPath", store.join("namesrv/kvConfig.json").display().to_string()),
            ("configStorePath", store.join("namesrv/namesrv.properties").display().to_string()),
        ]
        .map(|(key, value)| (key.to_string(), value))
        .to_vec()
    }

    fn of(machine: &Machine, entries: &[Entry]) -> Result<NamesrvConfig, ConfigError> {
        let mut config = NamesrvConfig::defaults(machine);
        let mut notes = Notes::default();
        let problems = apply(entries, &KNOWN, &mut notes, |key, value| config.set(key, value));
        if !problems.is_empty() {
            return Err(ConfigError::Values(problems));
        }
        config.notes = notes;
        Ok(config)
    }

    /// This configuration with the lines of a `.properties` text put over it: all of them or none.
    ///
    /// # Errors
    /// The first line that may not be, or cannot be, put into force.
    pub fn updated(&self, text: &[u8]) -> Result<NamesrvConfig, UpdateError> {
        let entries = file_entries(Path::new(""), text).map_err(|_| UpdateError::Syntax)?;
        let listed = |key: &str| self.config_black_list.split(';').any(|listed| listed.trim() == key);
        if entries.iter().any(|entry| BLACK_LIST.contains(&entry.key.as_str()) || listed(&entry.key)) {
            return Err(UpdateError::BlackList);
        }
        if let Some(entry) = entries.iter().find(|entry| START_ONLY.contains(&entry.key.as_str())) {
            return Err(UpdateError::NotWhileRunning { key: entry.key.clone() });
        }
        let mut config = self.clone();
        let mut notes = Notes::default();
        let problems = apply(&entries, &KNOWN, &mut notes, |key, value| config.set(key, value));
        match (problems.into_iter().next(), notes.unknown.into_iter().next()) {
            (Some(Problem::Value { key, value, allowed, .. }), _) => Err(UpdateError::Value { key, value, allowed }),
            (Some(Problem::NotBuilt { key, value, instead, .. }), _) => {
                Err(UpdateError::NotBuilt { key, value, instead })
            }
            (None, Some(key)) => Err(UpdateError::Unknown { named: named(&key, &known_keys()) }),
            (None, None) => Ok(config),
        }
    }

    /// One line each, for the start.
    pub fn warnings(&self) -> Vec<String> {
        self.notes.warnings(&known_keys())
    }

    /// Every key that works with its value, and the values in force of features that are not built.
    pub fn effective(&self) -> Vec<(String, String)> {
        pairs(NamesrvConfig::KEYS, self.shown(), NAMESRV_BLOCKED, false)
    }

    /// Those of [`NamesrvConfig::effective`] that matter most.
    pub fn effective_important(&self) -> Vec<(String, String)> {
        pairs(NamesrvConfig::KEYS, self.shown(), NAMESRV_BLOCKED, true)
    }

    /// A name server with nothing set, for tests.
    #[cfg(test)]
    pub fn example() -> NamesrvConfig {
        NamesrvConfig::defaults(&Machine::example())
    }
}

/// What a typing error may have meant.
fn known_keys() -> Vec<&'static str> {
    [&NamesrvConfig::names(), NAMESRV_TUNING, &blocked_names(NAMESRV_BLOCKED)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn load(text: &str) -> Result<NamesrvConfig, ConfigError> {
        NamesrvConfig::of(&Machine::example(), &file_entries(Path::new("n.conf"), text.as_bytes())?)
    }

    #[test]
    fn nothing_set_gives_the_defaults_of_java() {
        let config = load("").unwrap();
        assert_eq!(config.listen_port, 9876);
        assert_eq!(config.kv_config_path, Path::new("/home/x/namesrv/kvConfig.json"));
        assert_eq!(config.config_store_path, Path::new("/home/x/namesrv/namesrv.properties"));
        assert_eq!(config.scan_interval_ms, 5000);
        assert!(config.all_topic_list_enable && config.topic_list_enable && config.order_conf_to_broker);
        assert!(!config.order_message_enable && !config.acting_master_support && !config.topic_delete_on_register);
        assert!(config.warnings().is_empty());
    }

    #[test]
    fn values_are_checked_and_the_rest_is_named() {
        let config = load("orderMessageEnable=true\nserverWorkerThreads=4\nordermessageEnable=1\n").unwrap();
        assert!(config.order_message_enable);
        assert_eq!(
            config.warnings(),
            [
                "keys without effect yet: serverWorkerThreads",
                "unknown keys, ignored: ordermessageEnable (did you mean orderMessageEnable?)"
            ]
        );
        for text in ["listenPort=x", "enableControllerInNamesrv=true", "clusterTest=true", "tls.enable=true"] {
            assert!(load(text).unwrap_err().to_string().starts_with("n.conf:1: "), "{text}");
        }
    }

    #[test]
    fn an_update_takes_all_of_its_keys_or_none() {
        let config = load("configBlackList=enableTopicList").unwrap();
        let updated = config
            .updated(b"orderMessageEnable=true\nscanNotActiveBrokerInterval=100\nserverWorkerThreads=1\n")
            .unwrap();
        assert!(updated.order_message_enable);
        assert_eq!(updated.scan_interval_ms, 100);
        for (text, want) in [
            ("orderMessageEnable=true\nkvConfigPath=/etc/x", "Can not update config in black list."),
            ("configStorePath=/etc/x", "Can not update config in black list."),
            ("rocketmqHome=/etc/x", "Can not update config in black list."),
            ("configBlackList=", "Can not update config in black list."),
            ("enableTopicList=false", "Can not update config in black list."),
            ("listenPort=1", "listenPort is read at start only: change it in the file and start again"),
            ("foo=1", "there is no key foo"),
            ("ordermessageEnable=true", "there is no key ordermessageEnable (did you mean orderMessageEnable?)"),
            ("orderMessageEnable=1", "orderMessageEnable=1: allowed is true or false"),
            ("orderMessageEnable=\\u00", "string2Properties error"),
        ] {
            assert_eq!(config.updated(text.as_bytes()).unwrap_err().to_string(), want, "{text}");
        }
        let refused = config.updated(b"enableControllerInNamesrv=true").unwrap_err();
        assert!(matches!(refused, UpdateError::NotBuilt { .. }), "{refused}");
    }

    #[test]
    fn every_key_of_java_has_exactly_one_class() {
        let works: Vec<&str> = NamesrvConfig::names();
        let all: Vec<&str> =
            works.into_iter().chain(blocked_names(NAMESRV_BLOCKED)).chain(NAMESRV_TUNING.iter().copied()).collect();
        let distinct: BTreeSet<&str> = all.iter().copied().collect();
        assert_eq!(all.len(), distinct.len());
        assert_eq!(all.len(), JAVA_NAMESRV_KEY_COUNT);
    }

    /// Distinct bean properties of the name server's configuration classes in the published jars of 4.9.7 and 5.3.3.
    const JAVA_NAMESRV_KEY_COUNT: usize = 82;

    #[test]
    fn the_file_of_the_command_line_is_where_changes_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("n.conf");
        std::fs::write(&file, "listenPort=1\n").unwrap();
        let config = NamesrvConfig::load(Some(&file), &[]).unwrap();
        assert_eq!(config.config_store_path, file);
        let config = NamesrvConfig::load_over(&NamesrvConfig::standalone(Path::new("/s")), None, &[]).unwrap();
        assert_eq!(config.kv_config_path, Path::new("/s/namesrv/kvConfig.json"));
    }

    #[test]
    fn what_was_changed_without_a_file_is_there_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let defaults = NamesrvConfig::standalone(folder.path());
        let load = || NamesrvConfig::load_over(&defaults, None, &[]).unwrap();
        let before = load();
        assert!(!before.order_message_enable);
        let changed = before.updated(b"orderMessageEnable=true").unwrap();
        std::fs::create_dir_all(folder.path().join("namesrv")).unwrap();
        std::fs::write(&changed.config_store_path, crate::config::properties_text(&changed.effective())).unwrap();
        assert!(load().order_message_enable);
        // The folder may have moved, and the ports are those of the start.
        let text = "listenPort=7\nkvConfigPath=/elsewhere\nconfigStorePath=/elsewhere\nenableTopicList=false\n";
        std::fs::write(&changed.config_store_path, text).unwrap();
        let after = load();
        assert_eq!((after.listen_port, &after.kv_config_path), (before.listen_port, &before.kv_config_path));
        assert_eq!(after.config_store_path, before.config_store_path);
        assert!(!after.topic_list_enable);
    }
}
