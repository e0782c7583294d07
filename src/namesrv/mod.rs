//! The name server: who asks for a topic is told where it lives.
//!
//! ```text
//! frame → handle → one match on the code → tables → one answer at the end of the connection's outbox
//!
//! route_table   topics, queues, broker names, addresses, clusters     lost at the end of the process
//! liveness      last sign and connection of each broker               lost at the end of the process
//! kv_config     namespaces of key and value                           kvConfig.json, on disk before the answer
//! ```
//!
//! One owner, one thread: it lives on a shard and is handed connection, command, clocks and outbox. It opens no socket,
//! starts no thread and reads no clock. A registration is as old as its connection: who registers must keep it open.
//! Where 4.9.7 and 5.3.3 differ: unknown codes are answered (3), any DataVersion query is a sign of life, topics that
//! the name server lost come back with the next registration, the black list of keys (all 5.3.3); a first registration
//! with exactly one topic is accepted (4.9.7).
//! Source: DefaultRequestProcessor.java, ClientRequestProcessor.java, RouteInfoManager.java.

mod kv_config;
mod liveness;
mod route_table;

#[cfg(test)]
mod tests;

pub use kv_config::KvOpenError;

use crate::config::{NamesrvConfig, UpdateError, properties_text};
use kv_config::{KvConfig, KvError, ORDER_TOPIC_CONFIG};
use liveness::{BrokerKey, Live, Liveness, TIMEOUT_MS};
use ringmq_net::protocol::body::register::{RegisterBrokerBody, body_crc32};
use ringmq_net::protocol::body::route::TopicRouteData;
use ringmq_net::protocol::body::topic::DataVersion;
use ringmq_net::protocol::codes::{request, response};
use ringmq_net::protocol::command::Command;
use ringmq_net::protocol::headers::HeaderError;
use ringmq_net::protocol::headers::namesrv::{
    BrokerHeartbeatHeader, BrokerMemberGroupHeader, DeleteKvHeader, DeleteTopicInNamesrvHeader, GetKvHeader,
    KvListHeader, PutKvHeader, QueryDataVersionHeader, RegisterBrokerHeader, RegisterTopicHeader, RouteInfoHeader,
    TopicsByClusterHeader, UnregisterBrokerHeader, WritePermHeader,
};
use ringmq_net::protocol::writer::FrameWriter;
use ringmq_net::reactor::ConnId;
use route_table::{MASTER_ID, Member, RouteError, RouteTable, UnitList, WritePerm};
use std::borrow::Cow;
use std::hash::{DefaultHasher, Hasher};
use std::net::SocketAddr;

/// Names and addresses of brokers and clusters.
const NAME_BYTES_MAX: usize = 255;
const BROKER_COUNT_MAX: usize = 10_000;

/// Whether an answer was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    Answered,
    /// A one-way request, or no request at all.
    Silent,
}

#[derive(Debug)]
pub struct NameServer {
    config: NamesrvConfig,
    routes: RouteTable,
    liveness: Liveness,
    kv: KvConfig,
    /// When it was first told the time; routes may be held back for a while from then on.
    started_ms: Option<u64>,
    /// A route was found: brokers are back, nothing is held back any more.
    is_ready: bool,
}

/// An answer that is not a success.
struct Refusal {
    code: i32,
    remark: String,
}

impl Refusal {
    fn new(code: i32, remark: impl Into<String>) -> Refusal {
        Refusal { code, remark: remark.into() }
    }

    fn error(remark: impl ToString) -> Refusal {
        Refusal::new(response::SYSTEM_ERROR, remark.to_string())
    }
}

impl From<HeaderError> for Refusal {
    fn from(error: HeaderError) -> Refusal {
        Refusal::error(error)
    }
}

impl From<KvError> for Refusal {
    fn from(error: KvError) -> Refusal {
        Refusal::error(error)
    }
}

impl From<RouteError> for Refusal {
    fn from(error: RouteError) -> Refusal {
        Refusal::error(error)
    }
}

/// What a success carries.
#[derive(Default)]
struct Answer<'a> {
    ext: Vec<(&'static str, String)>,
    body: Option<Cow<'a, [u8]>>,
}

impl<'a> Answer<'a> {
    fn empty() -> Result<Answer<'a>, Refusal> {
        Ok(Answer::default())
    }

    fn body(body: impl Into<Cow<'a, [u8]>>) -> Result<Answer<'a>, Refusal> {
        Ok(Answer { ext: Vec::new(), body: Some(body.into()) })
    }
}

impl NameServer {
    /// # Errors
    /// The KV configuration cannot be read.
    pub fn open(config: NamesrvConfig) -> Result<NameServer, KvOpenError> {
        let kv = KvConfig::open(&config.kv_config_path)?;
        let liveness = Liveness::new(u64::from(config.scan_interval_ms));
        Ok(NameServer { config, routes: RouteTable::default(), liveness, kv, started_ms: None, is_ready: false })
    }

    /// Answers one request at the end of `out`, the connection's outbox; a one-way request gets nothing.
    pub fn handle(
        &mut self,
        conn: ConnId,
        peer: SocketAddr,
        command: &Command<'_>,
        _now_wall_ms: u64,
        now_mono_ms: u64,
        out: &mut Vec<u8>,
    ) -> Handled {
        self.started_ms.get_or_insert(now_mono_ms);
        if command.is_response() {
            // The name server asks nobody anything.
            return Handled::Silent;
        }
        let answer = self.answer(conn, peer, command, now_mono_ms);
        if let Err(refusal) = &answer
            && refusal.code == response::SYSTEM_ERROR
        {
            tracing::warn!("name server: request {} from {peer} refused: {}", command.code, refusal.remark);
        }
        if command.is_oneway() {
            return Handled::Silent;
        }
        match answer {
            Ok(answer) => {
                let mut writer = FrameWriter::response(out, command.reply(), response::SUCCESS);
                for (key, value) in &answer.ext {
                    writer = writer.ext(key, value);
                }
                match answer.body {
                    Some(body) => writer.finish_body(&body),
                    None => writer.finish(),
                }
            }
            Err(Refusal { code, remark }) => {
                FrameWriter::response(out, command.reply(), code).remark(&remark).finish();
            }
        }
        Handled::Answered
    }

    fn answer(
        &mut self,
        conn: ConnId,
        peer: SocketAddr,
        command: &Command<'_>,
        now_ms: u64,
    ) -> Result<Answer<'_>, Refusal> {
        match command.code {
            request::GET_ROUTEINFO_BY_TOPIC => self.route(command, now_ms),
            request::REGISTER_BROKER => self.register_broker(conn, peer, command, now_ms),
            request::UNREGISTER_BROKER => self.unregister_broker(command),
            request::BROKER_HEARTBEAT => self.heartbeat(command, now_ms),
            request::QUERY_DATA_VERSION => self.data_version(command, now_ms),
            request::REGISTER_TOPIC_IN_NAMESRV => self.register_topic(command),
            request::DELETE_TOPIC_IN_NAMESRV => self.delete_topic(command),
            request::WIPE_WRITE_PERM_OF_BROKER => self.write_perm(command, WritePerm::Wipe, "wipeTopicCount"),
            request::ADD_WRITE_PERM_OF_BROKER => self.write_perm(command, WritePerm::Add, "addTopicCount"),
            request::GET_BROKER_CLUSTER_INFO => Answer::body(self.routes.encoded_cluster_info()),
            request::GET_BROKER_MEMBER_GROUP => {
                let header = BrokerMemberGroupHeader::parse(&command.ext)?;
                Answer::body(self.routes.encoded_member_group(header.cluster_name, header.broker_name))
            }
            request::GET_ALL_TOPIC_LIST_FROM_NAMESERVER => {
                enabled(self.config.all_topic_list_enable)?;
                Answer::body(self.routes.all_topics().to_json())
            }
            request::GET_TOPICS_BY_CLUSTER => {
                let header = TopicsByClusterHeader::parse(&command.ext)?;
                enabled(self.config.topic_list_enable)?;
                Answer::body(self.routes.topics_of_cluster(header.cluster).to_json())
            }
            request::GET_SYSTEM_TOPIC_LIST_FROM_NS => Answer::body(self.routes.system_topics().to_json()),
            request::GET_UNIT_TOPIC_LIST => self.unit_topics(UnitList::Unit),
            request::GET_HAS_UNIT_SUB_TOPIC_LIST => self.unit_topics(UnitList::HasUnitSub),
            request::GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST => self.unit_topics(UnitList::HasUnitSubUnUnit),
            request::PUT_KV_CONFIG => {
                let header = PutKvHeader::parse(&command.ext)?;
                self.kv.put(header.namespace, header.key, header.value)?;
                self.routes.invalidate();
                Answer::empty()
            }
            request::GET_KV_CONFIG => self.kv_value(command),
            request::DELETE_KV_CONFIG => {
                let header = DeleteKvHeader::parse(&command.ext)?;
                self.kv.delete(header.namespace, header.key)?;
                self.routes.invalidate();
                Answer::empty()
            }
            request::GET_KVLIST_BY_NAMESPACE => {
                let KvListHeader { namespace } = KvListHeader::parse(&command.ext)?;
                let absent =
                    || Refusal::new(response::QUERY_NOT_FOUND, format!("No config item, Namespace: {namespace}"));
                Answer::body(self.kv.namespace(namespace).ok_or_else(absent)?.to_json())
            }
            request::UPDATE_NAMESRV_CONFIG => self.update_config(command),
            request::GET_NAMESRV_CONFIG => Answer::body(properties_text(&self.config.effective())),
            code => {
                Err(Refusal::new(response::REQUEST_CODE_NOT_SUPPORTED, format!(" request type {code} not supported")))
            }
        }
    }

    fn route(&mut self, command: &Command<'_>, now_ms: u64) -> Result<Answer<'_>, Refusal> {
        let header = RouteInfoHeader::parse(&command.ext)?;
        let topic = header.topic;
        let config = &self.config;
        let waited_ms = now_ms.saturating_sub(self.started_ms.unwrap_or(now_ms));
        if config.service_wait_needed && !self.is_ready && waited_ms < u64::from(config.service_wait_s) * 1000 {
            return Err(Refusal::error("name server not ready"));
        }
        let order_conf = || {
            let value = config.order_message_enable.then(|| self.kv.get(ORDER_TOPIC_CONFIG, topic));
            value.flatten().map(str::to_owned)
        };
        let support = config.acting_master_support;
        let zone = header.zone_name.map(str::trim).filter(|zone| header.zone_mode && !zone.is_empty());
        let body = match zone {
            Some(zone) => self.routes.encoded_route_of_zone(topic, support, order_conf(), zone).map(Cow::Owned),
            None => self.routes.encoded_route(topic, support, order_conf).map(Cow::Borrowed),
        };
        let absent = || {
            let remark = format!("No topic route info in name server for the topic: {topic}");
            Refusal::new(response::TOPIC_NOT_EXIST, remark)
        };
        let body = body.ok_or_else(absent)?;
        self.is_ready = true;
        Answer::body(body)
    }

    fn register_broker(
        &mut self,
        conn: ConnId,
        peer: SocketAddr,
        command: &Command<'_>,
        now_ms: u64,
    ) -> Result<Answer<'_>, Refusal> {
        let header = RegisterBrokerHeader::parse(&command.ext)?;
        named("brokerName", header.broker_name)?;
        named("clusterName", header.cluster_name)?;
        named("brokerAddr", header.broker_addr)?;
        if header.body_crc32 != 0 && header.body_crc32 != body_crc32(command.body) {
            return Err(Refusal::error("crc32 not match"));
        }
        let key = BrokerKey::new(header.cluster_name, header.broker_addr);
        let before = self.liveness.get(&key).cloned();
        if before.is_none() && self.liveness.count() >= BROKER_COUNT_MAX {
            return Err(Refusal::error(format!("{BROKER_COUNT_MAX} brokers are registered, the limit")));
        }
        let (before, renamed) = match before {
            Some(before) if *before.broker_name != *header.broker_name => (None, Some(before.broker_name)),
            before => (before, None),
        };

        // The registration that comes every 30 s and says what the last one said is not decoded again.
        let digest = digest(command.body);
        let repeated =
            before.as_ref().filter(|live| live.body_digest == Some(digest) && live.broker_id == header.broker_id);
        let mut body = None;
        let version = match repeated {
            Some(live) => live.version,
            None => {
                let decoded = register_body(&header, command)?;
                self.routes.room_for(&decoded.topic_config_serialize_wrapper)?;
                body.insert(decoded).topic_config_serialize_wrapper.data_version
            }
        };

        // From here on the registration counts.
        if let Some(old_name) = renamed {
            self.routes.leave(&old_name, header.broker_addr);
        }
        self.routes.drop_other_ids(header.broker_name, header.broker_addr, header.broker_id);
        if self.is_held_by_a_newer(&header, &version) {
            tracing::warn!("broker {} at {} is older than the one registered", header.broker_name, header.broker_addr);
            self.liveness.remove(&key);
            return Ok(Answer { ext: Vec::new(), body: self.order_conf_body() });
        }
        let joined = self.routes.join(&Member {
            cluster: header.cluster_name,
            broker_name: header.broker_name,
            broker_addr: header.broker_addr,
            broker_id: header.broker_id,
            acting_master_enable: header.enable_acting_master,
            zone: header.zone_name,
        });
        if joined.first {
            let RegisterBrokerHeader { broker_name, broker_id, broker_addr, cluster_name, .. } = &header;
            tracing::info!("broker {broker_name} {broker_id} of {cluster_name} at {broker_addr} registered by {peer}");
        }
        let gave_topics = repeated.is_some_and(|live| live.gives_topics);
        if joined.gives_topics && (joined.first || !gave_topics) {
            let body = match body {
                Some(body) => body,
                None => register_body(&header, command)?,
            };
            let changed = before.as_ref().is_none_or(|before| !same_version(&before.version, &version));
            self.routes.take_topics(
                header.broker_name,
                &body.topic_config_serialize_wrapper,
                joined.first || changed,
                joined.read_only,
                self.config.topic_delete_on_register,
            );
        }
        let timeout_ms = header.heartbeat_timeout_ms.and_then(|ms| u64::try_from(ms).ok()).filter(|ms| *ms > 0);
        let live = Live {
            broker_name: header.broker_name.into(),
            broker_id: header.broker_id,
            version,
            ha_server_addr: header.ha_server_addr.to_owned(),
            conn,
            timeout_ms: timeout_ms.unwrap_or(TIMEOUT_MS),
            seen_ms: now_ms,
            body_digest: Some(digest),
            gives_topics: joined.gives_topics,
        };
        self.liveness.put(key, live);
        Ok(Answer { ext: self.master_of(&header), body: self.order_conf_body() })
    }

    /// Two processes claim one id of one broker name: the one whose state is newer keeps it.
    fn is_held_by_a_newer(&self, header: &RegisterBrokerHeader<'_>, version: &DataVersion) -> bool {
        let holder = self.routes.addr(header.broker_name, header.broker_id);
        let Some(holder) = holder.filter(|addr| *addr != header.broker_addr) else { return false };
        let holder = self.liveness.get(&BrokerKey::new(header.cluster_name, holder));
        holder.is_some_and(|live| live.version.state_version.unwrap_or(0) > version.state_version.unwrap_or(0))
    }

    /// Where a slave finds its master: for its HA connection and for the tables it copies. Both or none.
    fn master_of(&self, header: &RegisterBrokerHeader<'_>) -> Vec<(&'static str, String)> {
        if header.broker_id == MASTER_ID {
            return Vec::new();
        }
        let Some(master) = self.routes.addr(header.broker_name, MASTER_ID) else { return Vec::new() };
        match self.liveness.get(&BrokerKey::new(header.cluster_name, master)) {
            Some(live) => vec![("haServerAddr", live.ha_server_addr.clone()), ("masterAddr", master.to_owned())],
            None => Vec::new(),
        }
    }

    fn order_conf_body(&self) -> Option<Cow<'static, [u8]>> {
        let table = self.kv.namespace(ORDER_TOPIC_CONFIG).filter(|_| self.config.order_conf_to_broker)?;
        Some(table.to_json().into())
    }

    fn unregister_broker(&mut self, command: &Command<'_>) -> Result<Answer<'_>, Refusal> {
        let header = UnregisterBrokerHeader::parse(&command.ext)?;
        self.liveness.remove(&BrokerKey::new(header.cluster_name, header.broker_addr));
        self.routes.leave(header.broker_name, header.broker_addr);
        tracing::info!("broker {} at {} unregistered", header.broker_name, header.broker_addr);
        Answer::empty()
    }

    fn heartbeat(&mut self, command: &Command<'_>, now_ms: u64) -> Result<Answer<'_>, Refusal> {
        let header = BrokerHeartbeatHeader::parse(&command.ext)?;
        self.liveness.touch(&BrokerKey::new(header.cluster_name, header.broker_addr), now_ms);
        Answer::empty()
    }

    fn data_version(&mut self, command: &Command<'_>, now_ms: u64) -> Result<Answer<'_>, Refusal> {
        let header = QueryDataVersionHeader::parse(&command.ext)?;
        let asked = DataVersion::from_json(command.body)
            .map_err(|error| Refusal::error(format!("DataVersion is missing or wrong: {error}")))?;
        let key = BrokerKey::new(header.cluster_name, header.broker_addr);
        self.liveness.touch(&key, now_ms);
        let known = self.liveness.get(&key).map(|live| live.version);
        let changed = known.is_none_or(|known| !same_version(&known, &asked));
        let body = known.map(|known| known.to_json().into());
        Ok(Answer { ext: vec![("changed", changed.to_string())], body })
    }

    fn register_topic(&mut self, command: &Command<'_>) -> Result<Answer<'_>, Refusal> {
        let header = RegisterTopicHeader::parse(&command.ext)?;
        let route = TopicRouteData::from_json(command.body)
            .map_err(|error| Refusal::error(format!("the route data is missing or wrong: {error}")))?;
        if route.queue_datas.is_empty() {
            return Err(Refusal::error("queueDatas is missing or empty"));
        }
        self.routes.add_topic(header.topic, &route.queue_datas)?;
        Answer::empty()
    }

    fn delete_topic(&mut self, command: &Command<'_>) -> Result<Answer<'_>, Refusal> {
        let header = DeleteTopicInNamesrvHeader::parse(&command.ext)?;
        let cluster = header.cluster_name.filter(|cluster| !cluster.is_empty());
        let broker_names = self.routes.delete_topic(header.topic, cluster);
        // A broker that still has the topic brings it back with its next registration.
        self.liveness.forget_digests(|live| broker_names.contains(&live.broker_name));
        Answer::empty()
    }

    fn write_perm(
        &mut self,
        command: &Command<'_>,
        what: WritePerm,
        count_key: &'static str,
    ) -> Result<Answer<'_>, Refusal> {
        let header = WritePermHeader::parse(&command.ext)?;
        let count = self.routes.set_write_perm(header.broker_name, what);
        Ok(Answer { ext: vec![(count_key, count.to_string())], body: None })
    }

    fn unit_topics(&self, which: UnitList) -> Result<Answer<'_>, Refusal> {
        Answer::body(self.routes.unit_topics(which).to_json())
    }

    fn kv_value(&self, command: &Command<'_>) -> Result<Answer<'_>, Refusal> {
        let GetKvHeader { namespace, key } = GetKvHeader::parse(&command.ext)?;
        match self.kv.get(namespace, key) {
            Some(value) => Ok(Answer { ext: vec![("value", value.to_owned())], body: None }),
            None => {
                let remark = format!("No config item, Namespace: {namespace} Key: {key}");
                Err(Refusal::new(response::QUERY_NOT_FOUND, remark))
            }
        }
    }

    /// All of the keys or none: they are checked, kept in `configStorePath`, then in force.
    fn update_config(&mut self, command: &Command<'_>) -> Result<Answer<'_>, Refusal> {
        if command.body.trim_ascii().is_empty() {
            return Err(Refusal::error("the body is empty, lines of key=value are needed"));
        }
        let config = self.config.updated(command.body).map_err(|error| {
            let code = match error {
                UpdateError::BlackList | UpdateError::NotWhileRunning { .. } => response::NO_PERMISSION,
                _ => response::SYSTEM_ERROR,
            };
            Refusal::new(code, error.to_string())
        })?;
        let path = config.config_store_path.clone();
        crate::text_file::replace(&path, &properties_text(&config.effective()))
            .map_err(|error| Refusal::error(format!("cannot write {}: {error}", path.display())))?;
        self.config = config;
        self.liveness.set_scan_interval(u64::from(self.config.scan_interval_ms));
        self.routes.invalidate();
        // With `deleteTopicWithBrokerRegistration` the next registration may mean more than the same one before.
        self.liveness.forget_digests(|_| true);
        Answer::empty()
    }

    /// The registration connection of a broker is its life line.
    pub fn on_close(&mut self, conn: ConnId) {
        for (key, live) in self.liveness.remove_conn(conn) {
            tracing::info!("broker {} at {} is gone: its connection closed", live.broker_name, key.addr);
            self.routes.leave(&live.broker_name, &key.addr);
        }
    }

    /// Removes brokers that were silent for too long. Their connections are to be closed.
    pub fn tick(&mut self, now_mono_ms: u64) -> Vec<ConnId> {
        let mut conns = Vec::new();
        for (key, live) in self.liveness.expire(now_mono_ms) {
            tracing::warn!("broker {} at {} is gone: silent for {} ms", live.broker_name, key.addr, live.timeout_ms);
            self.routes.leave(&live.broker_name, &key.addr);
            if !conns.contains(&live.conn) {
                conns.push(live.conn);
            }
        }
        conns
    }

    /// When [`NameServer::tick`] next has something to look at; `None` while there is no broker.
    pub fn deadline_mono_ms(&self) -> Option<u64> {
        self.liveness.scan_at_ms()
    }
}

/// A registration without a table is a probe or a fault, never an empty broker: those send an empty table.
fn register_body(header: &RegisterBrokerHeader<'_>, command: &Command<'_>) -> Result<RegisterBrokerBody, Refusal> {
    const TABLE: &str = "topicConfigSerializeWrapper";
    /// First byte of every zlib stream with a window of 32 KiB.
    const ZLIB: u8 = 0x78;
    let wrong = |what: &str| Refusal::error(format!("the register body is wrong: {what}"));
    if command.body.is_empty() {
        return Err(wrong(&format!("it is empty, {TABLE} is missing")));
    }
    let body = RegisterBrokerBody::decode(command.body, header.compressed, command.version)
        .map_err(|error| wrong(&error.to_string()))?;
    let is_json = !header.compressed && command.body[0] != ZLIB;
    let names_table = || command.body.windows(TABLE.len()).any(|window| window == TABLE.as_bytes());
    if is_json && body == RegisterBrokerBody::default() && !names_table() {
        return Err(wrong(&format!("{TABLE} is missing")));
    }
    Ok(body)
}

fn named(field: &'static str, name: &str) -> Result<(), Refusal> {
    if name.trim().is_empty() {
        return Err(Refusal::error(format!("request header field {field} is empty")));
    }
    if name.len() > NAME_BYTES_MAX {
        let bytes = name.len();
        return Err(Refusal::error(format!(
            "request header field {field} has {bytes} bytes, the limit is {NAME_BYTES_MAX}"
        )));
    }
    Ok(())
}

fn enabled(is_enabled: bool) -> Result<(), Refusal> {
    if is_enabled { Ok(()) } else { Err(Refusal::error("disable")) }
}

/// 4.9 knows no state version; there it is 0.
fn same_version(one: &DataVersion, other: &DataVersion) -> bool {
    let parts = |version: &DataVersion| (version.timestamp, version.counter, version.state_version.unwrap_or(0));
    parts(one) == parts(other)
}

fn digest(body: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(body);
    hasher.finish()
}
