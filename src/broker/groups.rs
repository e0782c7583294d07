//! Subscription groups.
//!
//! A copy of the table is never edited in place: readers hold an `Arc` of one group's configuration. A change is durable
//! (subscriptionGroup.json) before it is answered.
//! Source: SubscriptionGroupManager.java.

use super::persist::{JsonFile, MetaDirty, PersistError};
use super::{After, Answer, Broker, Refusal, Request, check_group_name};
use crate::config::BrokerConfig;
use ringmq_net::protocol::body::group::{SubscriptionGroupConfig, SubscriptionGroupList, SubscriptionGroupWrapper};
use ringmq_net::protocol::body::topic::DataVersion;
use ringmq_net::protocol::codes::response;
use ringmq_net::protocol::headers::admin::{DeleteGroupHeader, GetGroupConfigHeader};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Exist from the start.
const BUILT_IN: [&str; 7] = [
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
];
const SYSTEM_PREFIX: &str = "CID_RMQ_SYS_";
const GROUP_COUNT_MAX: usize = 100_000;

struct State {
    table: BTreeMap<String, Arc<SubscriptionGroupConfig>>,
    version: DataVersion,
    forbidden: BTreeMap<String, BTreeMap<String, i32>>,
}

pub struct Groups {
    state: RwLock<State>,
    auto_create: AtomicBool,
    changes: AtomicU64,
    written: AtomicU64,
    dirty: Arc<MetaDirty>,
    file: JsonFile,
}

/// The table in a file. An entry that does not stand under its own name is damage, as in topics.json.
fn wrapper_of(bytes: &[u8]) -> Result<SubscriptionGroupWrapper, String> {
    let wrapper = SubscriptionGroupWrapper::from_json(bytes).map_err(|error| error.to_string())?;
    match wrapper.subscription_group_table.iter().find(|(key, group)| **key != group.group_name) {
        Some((key, group)) => Err(format!("under {key:?} is the groupName {:?}", group.group_name)),
        None => Ok(wrapper),
    }
}

impl Groups {
    pub fn open(
        config_dir: &Path,
        config: &BrokerConfig,
        dirty: Arc<MetaDirty>,
        now_ms: u64,
    ) -> Result<Groups, PersistError> {
        let file = JsonFile::new(config_dir, "subscriptionGroup.json");
        let loaded = file.load_table("subscriptionGroupTable", wrapper_of)?;
        let mut version = DataVersion { timestamp: now_ms as i64, ..DataVersion::default() };
        let mut table: BTreeMap<_, _> = BUILT_IN
            .iter()
            .map(|name| {
                let config = SubscriptionGroupConfig { group_name: name.to_string(), ..Default::default() };
                (name.to_string(), Arc::new(config))
            })
            .collect();
        let mut forbidden = BTreeMap::new();
        if let Some(loaded) = loaded {
            version = loaded.data_version;
            forbidden = loaded.forbidden_table;
            for (name, config) in loaded.subscription_group_table {
                table.insert(name, Arc::new(config));
            }
        }
        Ok(Groups {
            state: RwLock::new(State { table, version, forbidden }),
            auto_create: AtomicBool::new(config.group_auto_create),
            changes: AtomicU64::new(0),
            written: AtomicU64::new(0),
            dirty,
            file,
        })
    }

    /// `autoCreateSubscriptionGroup` as it is now.
    pub(super) fn set_auto_create(&self, config: &BrokerConfig) {
        self.auto_create.store(config.group_auto_create, Ordering::Relaxed);
    }

    pub fn get(&self, group: &str) -> Option<Arc<SubscriptionGroupConfig>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner).table.get(group).cloned()
    }

    /// The group, made with the defaults where that is allowed; the version that makes it durable if it is new.
    pub fn get_or_create(&self, group: &str, now_ms: u64) -> Option<(Arc<SubscriptionGroupConfig>, Option<u64>)> {
        if let Some(config) = self.get(group) {
            return Some((config, None));
        }
        let allowed = self.auto_create.load(Ordering::Relaxed) || group.starts_with(SYSTEM_PREFIX);
        if !allowed || check_group_name(group).is_err() {
            return None;
        }
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(config) = state.table.get(group) {
            return Some((Arc::clone(config), None));
        }
        if state.table.len() >= GROUP_COUNT_MAX {
            tracing::warn!(group, GROUP_COUNT_MAX, "group not created: the table is full");
            return None;
        }
        let config = Arc::new(SubscriptionGroupConfig { group_name: group.to_string(), ..Default::default() });
        state.table.insert(group.to_string(), Arc::clone(&config));
        self.changed(&mut state, now_ms);
        drop(state);
        Some((config, Some(self.dirty.touch())))
    }

    /// Returns the version that makes it durable.
    fn put(&self, config: SubscriptionGroupConfig, now_ms: u64) -> u64 {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        state.table.insert(config.group_name.clone(), Arc::new(config));
        self.changed(&mut state, now_ms);
        drop(state);
        self.dirty.touch()
    }

    fn remove(&self, group: &str, now_ms: u64) -> u64 {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if state.table.remove(group).is_some() {
            self.changed(&mut state, now_ms);
        }
        drop(state);
        self.dirty.touch()
    }

    fn changed(&self, state: &mut State, now_ms: u64) {
        state.version.counter += 1;
        state.version.timestamp = now_ms as i64;
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    pub fn names(&self) -> Vec<String> {
        self.state.read().unwrap_or_else(PoisonError::into_inner).table.keys().cloned().collect()
    }

    pub fn to_json(&self) -> Vec<u8> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        SubscriptionGroupWrapper {
            data_version: state.version,
            forbidden_table: state.forbidden.clone(),
            subscription_group_table: state
                .table
                .iter()
                .map(|(name, config)| (name.clone(), SubscriptionGroupConfig::clone(config)))
                .collect(),
        }
        .to_json()
    }

    /// Writes the file if anything changed since the last time.
    pub fn flush(&self) -> Result<(), PersistError> {
        let changes = self.changes.load(Ordering::SeqCst);
        if changes == self.written.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.file.store(&self.to_json())?;
        self.written.store(changes, Ordering::SeqCst);
        Ok(())
    }
}

/// The group's configuration, made where that is allowed; else code 26.
pub fn require(
    broker: &Broker,
    group: &str,
    request: &Request<'_, '_>,
) -> Result<Arc<SubscriptionGroupConfig>, Refusal> {
    check_group_name(group)?;
    broker.groups.get_or_create(group, request.now.wall_ms).map(|(config, _)| config).ok_or_else(|| {
        Refusal::new(
            response::SUBSCRIPTION_GROUP_NOT_EXIST,
            format!("subscription group [{group}] does not exist, autoCreateSubscriptionGroup is off"),
        )
    })
}

pub fn update(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let config = SubscriptionGroupConfig::from_json(request.command.body)
        .map_err(|error| Refusal::invalid(format!("the body is no subscription group configuration: {error}")))?;
    check(&config)?;
    let version = broker.groups.put(config, request.now.wall_ms);
    Ok(Answer::after(After::Durable(version)))
}

fn check(config: &SubscriptionGroupConfig) -> Result<(), Refusal> {
    if config.group_name.is_empty() {
        return Err(Refusal::invalid("groupName is missing in the body"));
    }
    check_group_name(&config.group_name)
}

/// UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225): all of them or none.
pub fn update_all(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let list = SubscriptionGroupList::from_json(request.command.body)
        .map_err(|error| Refusal::invalid(format!("the body is no list of subscription groups: {error}")))?;
    if list.group_config_list.is_empty() {
        return Err(Refusal::invalid("groupConfigList is missing or empty"));
    }
    list.group_config_list.iter().try_for_each(check)?;
    let mut version = broker.dirty.changed();
    for config in list.group_config_list {
        version = version.max(broker.groups.put(config, request.now.wall_ms));
    }
    Ok(Answer::after(After::Durable(version)))
}

pub fn config(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let header = GetGroupConfigHeader::parse(&request.command.ext)?;
    let config = broker.groups.get(header.group).ok_or_else(|| {
        Refusal::new(
            response::SUBSCRIPTION_GROUP_NOT_EXIST,
            format!("No group in this broker. group: {}", header.group),
        )
    })?;
    Ok(Answer::body(config.to_json()))
}

pub fn delete(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let header = DeleteGroupHeader::parse(&request.command.ext)?;
    check_group_name(header.group_name)?;
    if header.with_offsets() {
        broker.offsets.remove_group(header.group_name);
    }
    broker.stats.remove_group(header.group_name);
    let version = broker.groups.remove(header.group_name, request.now.wall_ms);
    Ok(Answer::after(After::Durable(version)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_stands_under_its_own_name() {
        // key, groupName, whether it is one
        for (key, name, want) in [("g", "g", true), ("f", "g", false), ("g", "", false)] {
            let text = format!("{{\"subscriptionGroupTable\":{{\"{key}\":{{\"groupName\":\"{name}\"}}}}}}");
            assert_eq!(wrapper_of(text.as_bytes()).is_ok(), want, "{text}");
        }
        assert!(wrapper_of(b"{\"dataVersion\":{\"counter\":1},\"subscriptionGroupTable\":{}}").is_ok());
    }
}
