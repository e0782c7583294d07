//! What a broker does with a request: one file for each capability.
//!
//! ```text
//! shard ─ frame ─┬─ send retry transaction ──> the turn's batch ── answered after the append
//!                ├─ pull ──> slices of the log, or a place in hold
//!                └─ Broker::handle: one match ──> offsets clients topics groups admin ──> Answer
//!
//! tables      topics groups          topics.json subscriptionGroup.json: durable before the change is answered
//!             offsets                consumerOffset.json: every 5 s and at stop
//!             filters                consumerFilter.json: every 10 s and at stop
//!             schedule               delayOffset.json: every 10 s and at stop
//!             clients orders stats   lost at the end of the process
//!             transactions           read from the half and op queues at start
//! ```
//! Everything here is called from shards and from agents; nothing here waits for the disk or the network.
//! Source: BrokerController.java and the processors of org.apache.rocketmq.broker (4.9.7, 5.3.3).

pub mod admin;
pub mod again;
pub mod clients;
pub mod consumer_status;
pub mod filter;
pub mod groups;
pub mod hold;
pub mod live;
pub mod offsets;
pub mod orders;
pub mod persist;
pub mod pull;
pub mod query;
pub mod registration;
pub mod reply;
pub mod reset;
pub mod retry;
pub mod schedule;
pub mod send;
pub mod stats;
pub mod topic_deletion;
pub mod topics;
pub mod transaction;
pub mod unconsumed;

use crate::config::BrokerConfig;
use clients::Clients;
use consumer_status::StatusGather;
use filter::Filters;
use groups::Groups;
use live::Live;
use offsets::Offsets;
use orders::Orders;
use persist::{MetaDirty, PersistError};
use registration::Registrations;
use reset::Reset;
use ringmq_net::protocol::codes::{request, response};
use ringmq_net::protocol::command::Command;
use ringmq_net::protocol::headers::HeaderError;
use ringmq_net::protocol::writer::{FrameWriter, Reply};
use ringmq_net::reactor::{ConnId, Now};
use ringmq_storage::record::RecordLimits;
use ringmq_storage::store::Store;
use schedule::Schedule;
use stats::Stats;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use topic_deletion::Deletions;
use topics::Topics;
use transaction::{Question, Transactions};

/// Of this version is what the broker answers with (`V4_9_7`).
pub const OWN_VERSION: i32 = ringmq_net::protocol::codes::version::CURRENT;

/// A v1 record has one signed byte for the topic's length, and retry and dead letter topics are topics.
pub const TOPIC_BYTES_MAX: usize = 127;
/// `%RETRY%` before it must still be a topic.
pub const GROUP_BYTES_MAX: usize = TOPIC_BYTES_MAX - RETRY_PREFIX.len();
/// How much longer a record becomes on its way through retries and delays: topic and properties.
const GROWTH_BYTES_MAX: usize = 1024 + TOPIC_BYTES_MAX;
const SMALL_FILE_BYTES: usize = 16 << 10;
pub const RETRY_PREFIX: &str = "%RETRY%";
pub const DLQ_PREFIX: &str = "%DLQ%";

pub const OFFSET_MOVED_EVENT: &str = "OFFSET_MOVED_EVENT";

/// Topics no client may send to. Source: TopicValidator.NOT_ALLOWED_SEND_TOPIC_SET.
pub const SEND_FORBIDDEN: [&str; 6] = [
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    OFFSET_MOVED_EVENT,
];

/// A connection of one of the shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Channel {
    pub shard: u8,
    pub conn: ConnId,
}

/// A request as the capabilities see it.
pub struct Request<'a, 'f> {
    pub channel: Channel,
    pub peer: SocketAddr,
    pub command: &'a Command<'f>,
    pub now: Now,
}

/// An answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub code: i32,
    pub remark: String,
}

impl Refusal {
    pub fn new(code: i32, remark: impl Into<String>) -> Refusal {
        Refusal { code, remark: remark.into() }
    }

    pub fn invalid(remark: impl Into<String>) -> Refusal {
        Refusal::new(response::INVALID_PARAMETER, remark)
    }

    /// The answer's frame.
    pub fn write(&self, out: &mut Vec<u8>, reply: Reply) {
        FrameWriter::response(out, reply, self.code).remark(&self.remark).finish();
    }
}

/// The frame of an answer that says no more than that it is done, or why not.
pub fn outcome_frame(result: Result<(), Refusal>, reply: Reply) -> Vec<u8> {
    let mut bytes = Vec::new();
    match result {
        Ok(()) => FrameWriter::response(&mut bytes, reply, response::SUCCESS).finish(),
        Err(refusal) => refusal.write(&mut bytes, reply),
    }
    bytes
}

/// A field that is missing or no number: the remark names it.
impl From<HeaderError> for Refusal {
    fn from(error: HeaderError) -> Refusal {
        Refusal::invalid(error.to_string())
    }
}

/// When a success may leave.
#[derive(Clone, Debug, Default)]
pub enum After {
    #[default]
    Now,
    /// This version of the metadata is on disk.
    Durable(u64),
    /// It is on disk, and every name server that can be reached knows it.
    Registered(u64),
    /// An agent does it and answers itself.
    Agent,
    /// The client on this channel has been asked and its answer is the answer.
    Forwarded(Channel),
    /// These clients are asked how far they are; what they say together is the answer.
    Gathered(Arc<StatusGather>, Vec<(Channel, Arc<str>)>),
}

/// A success.
#[derive(Debug, Default)]
pub struct Answer {
    pub remark: Option<String>,
    pub ext: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    pub after: After,
}

impl Answer {
    pub fn empty() -> Answer {
        Answer::default()
    }

    pub fn body(body: Vec<u8>) -> Answer {
        Answer { body, ..Answer::default() }
    }

    pub fn field(name: &'static str, value: impl ToString) -> Answer {
        Answer { ext: vec![(name, value.to_string())], ..Answer::default() }
    }

    pub fn after(after: After) -> Answer {
        Answer { after, ..Answer::default() }
    }
}

/// A request of ours to a client, one-way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Push {
    pub to: Channel,
    pub what: PushWhat,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PushWhat {
    /// NOTIFY_CONSUMER_IDS_CHANGED (40): members of this group came or went.
    ConsumerIdsChanged { group: Arc<str> },
    /// CHECK_TRANSACTION_STATE (39): what became of the transaction of this half message?
    CheckTransaction(Box<Question>),
    /// RESET_CONSUMER_CLIENT_OFFSET (220): go on from these offsets.
    ResetOffset(Arc<Reset>),
}

pub struct Broker {
    /// As it was at the start; what changes while the broker runs is in `live`.
    pub config: BrokerConfig,
    pub store: Arc<Store>,
    pub topics: Topics,
    pub groups: Groups,
    pub offsets: Offsets,
    pub clients: Clients,
    pub filters: Arc<Filters>,
    pub orders: Orders,
    pub schedule: Schedule,
    pub transactions: Transactions,
    pub stats: Stats,
    pub dirty: Arc<MetaDirty>,
    pub registrations: Registrations,
    /// Stored in every record and in every message id: brokerIP1 and listenPort.
    pub store_host: SocketAddr,
    /// Of what clients send.
    pub record_limits: RecordLimits,
    /// Of what the broker stores anew: wider, so that whatever was accepted can be retried.
    pub own_limits: RecordLimits,
    pub boot_ms: u64,
    pub live: Live,
    pub deletions: Deletions,
    /// Of our own requests to clients.
    opaque: AtomicI32,
}

impl Broker {
    /// Reads the metadata of the store.
    ///
    /// # Errors
    /// A metadata file and its backup that cannot be used.
    pub fn open(
        config: BrokerConfig,
        store: Arc<Store>,
        store_host: SocketAddr,
        memory_bytes: u64,
        now_ms: u64,
    ) -> Result<Broker, PersistError> {
        let config_dir = config.store_path_root.join("config");
        let dirty = Arc::new(MetaDirty::default());
        let topics = Topics::open(&config_dir, &config, Arc::clone(&dirty), now_ms)?;
        let groups = Groups::open(&config_dir, &config, Arc::clone(&dirty), now_ms)?;
        let offsets = Offsets::open(&config_dir)?;
        let filters = Filters::open(&config_dir, config.filter_clean_ms, now_ms)?;
        let registrations = Registrations::new(&config.namesrv_addrs);
        let schedule =
            Schedule::open(&config_dir, &store, config.delay_levels.ms.clone(), config.delay_offset_flush_interval_ms)?;
        let transactions = Transactions::open(&store, &offsets);
        let queues = topics.wrapper().topic_config_table.into_values().flat_map(|topic| {
            let (store, count) = (&store, topic.read_queue_nums.max(topic.write_queue_nums));
            (0..count).filter_map(move |queue_id| store.queue(&topic.topic_name, queue_id))
        });
        transactions.mend(&store, queues);
        let unit_bytes_max = config.commit_log_file_bytes as usize - ringmq_storage::record::layout::BLANK_BYTES;
        let own_limits = RecordLimits { body_bytes_min: 0, body_bytes_max: i32::MAX as usize, unit_bytes_max };
        // In a file this small a message of a few bytes is more welcome than room for its retry.
        let kept_bytes = if unit_bytes_max < SMALL_FILE_BYTES { 0 } else { GROWTH_BYTES_MAX };
        let record_limits = RecordLimits {
            body_bytes_min: 1,
            body_bytes_max: config.message_bytes_max as usize,
            unit_bytes_max: unit_bytes_max - kept_bytes,
        };
        let live = Live::new(&config, memory_bytes);
        let deletions = Deletions::default();
        Ok(Broker {
            config,
            store,
            topics,
            groups,
            offsets,
            clients: Clients::default(),
            filters: Arc::new(filters),
            orders: Orders::default(),
            schedule,
            transactions,
            stats: Stats::new(now_ms),
            dirty,
            registrations,
            store_host,
            record_limits,
            own_limits,
            boot_ms: now_ms,
            live,
            deletions,
            opaque: AtomicI32::new(0),
        })
    }

    /// At stop, when the log is on disk: how far delays and transactions have come.
    ///
    /// # Errors
    /// What the disk answers; the next start does some of it twice then.
    pub fn keep_progress(&self) -> Result<(), PersistError> {
        self.transactions.keep_progress(&self.store, &self.offsets, true);
        self.schedule.flush().and(self.offsets.flush())
    }

    pub fn next_opaque(&self) -> i32 {
        self.opaque.fetch_add(1, Ordering::Relaxed)
    }

    pub fn is_readable(&self) -> bool {
        self.live.permission() & 4 != 0
    }

    pub fn is_writable(&self) -> bool {
        self.live.permission() & 2 != 0
    }

    /// Everything but sends and pulls. What clients are to be told goes to `pushes`.
    ///
    /// # Errors
    /// The refusal to answer with; nothing has changed then.
    pub fn handle(&self, request: &Request<'_, '_>, pushes: &mut Vec<Push>) -> Result<Answer, Refusal> {
        match request.command.code {
            request::QUERY_CONSUMER_OFFSET => offsets::query(self, request),
            request::UPDATE_CONSUMER_OFFSET => offsets::update(self, request),
            request::SEARCH_OFFSET_BY_TIMESTAMP => offsets::search(self, request),
            request::GET_MAX_OFFSET => offsets::max(self, request),
            request::GET_MIN_OFFSET => offsets::min(self, request),
            request::GET_EARLIEST_MSG_STORETIME => offsets::earliest_store_time(self, request),
            request::INVOKE_BROKER_TO_RESET_OFFSET => reset::reset(self, request, pushes),
            request::INVOKE_BROKER_TO_GET_CONSUMER_STATUS => consumer_status::ask(self, request),
            request::RESUME_CHECK_HALF_MESSAGE => transaction::resume(self, request),
            request::CLONE_GROUP_OFFSET => reset::clone(self, request),
            request::CONSUME_MESSAGE_DIRECTLY => clients::consume_directly(self, request),
            request::LOCK_BATCH_MQ => orders::lock(self, request),
            request::UNLOCK_BATCH_MQ => orders::unlock(self, request),
            request::GET_ALL_DELAY_OFFSET => Ok(Answer::body(self.schedule.to_json())),
            request::GET_ALL_CONSUMER_OFFSET => Ok(Answer::body(self.offsets.to_json())),
            request::QUERY_MESSAGE => query::by_key(self, request),
            request::VIEW_MESSAGE_BY_ID => query::view(self, request),
            request::QUERY_CONSUME_QUEUE => query::queue_entries(self, request),
            request::HEART_BEAT => clients::heartbeat(self, request, pushes),
            request::UNREGISTER_CLIENT => clients::unregister(self, request, pushes),
            request::GET_CONSUMER_LIST_BY_GROUP => clients::consumer_list(self, request),
            request::CHECK_CLIENT_CONFIG => clients::check_config(self, request),
            request::GET_CONSUMER_CONNECTION_LIST => clients::consumer_connections(self, request),
            request::GET_PRODUCER_CONNECTION_LIST => clients::producer_connections(self, request),
            request::GET_CONSUMER_RUNNING_INFO => clients::running_info(self, request),
            request::UPDATE_AND_CREATE_TOPIC => topics::create(self, request),
            request::UPDATE_AND_CREATE_TOPIC_LIST => topics::create_all(self, request),
            request::DELETE_TOPIC_IN_BROKER => topic_deletion::delete(self, request),
            request::GET_ALL_TOPIC_CONFIG => Ok(Answer::body(self.topics.to_json())),
            request::GET_TOPIC_CONFIG => topics::config(self, request),
            request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP => groups::update(self, request),
            request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST => groups::update_all(self, request),
            request::GET_ALL_SUBSCRIPTIONGROUP_CONFIG => Ok(Answer::body(self.groups.to_json())),
            request::GET_SUBSCRIPTIONGROUP_CONFIG => groups::config(self, request),
            request::DELETE_SUBSCRIPTIONGROUP => groups::delete(self, request),
            request::UPDATE_BROKER_CONFIG => live::update(self, request),
            request::GET_BROKER_CONFIG => live::show(self),
            request::DELETE_EXPIRED_COMMITLOG => {
                self.store.clean_log();
                Ok(Answer::empty())
            }
            request::CLEAN_EXPIRED_CONSUMEQUEUE => {
                self.store.clean_queues();
                Ok(Answer::empty())
            }
            request::GET_BROKER_RUNTIME_INFO => admin::runtime::info(self, request),
            request::GET_TOPIC_STATS_INFO => admin::tables::topic_stats(self, request),
            request::GET_CONSUME_STATS => admin::tables::consume_stats(self, request),
            request::QUERY_TOPIC_CONSUME_BY_WHO => admin::tables::topic_consumed_by(self, request),
            request::QUERY_CONSUME_TIME_SPAN => admin::tables::consume_time_span(self, request),
            request::GET_BROKER_CONSUME_STATS => admin::tables::broker_consume_stats(self, request),
            request::GET_ALL_PRODUCER_INFO => admin::tables::producers(self, request),
            request::QUERY_CORRECTION_OFFSET => admin::tables::correction_offsets(self, request),
            request::VIEW_BROKER_STATS_DATA => admin::tables::broker_stats(self, request),
            request::QUERY_TOPICS_BY_CONSUMER => admin::tables::topics_consumed(self, request),
            request::QUERY_SUBSCRIPTION_BY_CONSUMER => admin::tables::subscription(self, request),
            request::CLEAN_UNUSED_TOPIC => topic_deletion::clean_unused(self, request),
            request::GET_SYSTEM_TOPIC_LIST_FROM_BROKER => admin::tables::system_topics(self),
            code => Err(unsupported(code)),
        }
    }
}

/// The remark is Java's, leading blank included.
pub fn unsupported(code: i32) -> Refusal {
    Refusal::new(response::REQUEST_CODE_NOT_SUPPORTED, format!(" request type {code} not supported"))
}

/// Whether every byte is one that topics and groups may have. Source: TopicValidator (`^[%|a-zA-Z0-9_-]+$`).
fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"%|_-".contains(&byte))
}

/// A name becomes a folder, so this is also what keeps a request inside the store.
pub fn check_topic_name(topic: &str) -> Result<(), Refusal> {
    if topic.trim().is_empty() {
        return Err(Refusal::invalid("The specified topic is blank."));
    }
    if !is_plain_name(topic) {
        return Err(Refusal::invalid(format!(
            "The specified topic[{}] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
            shown(topic)
        )));
    }
    if topic.len() > TOPIC_BYTES_MAX {
        return Err(Refusal::invalid(format!(
            "The specified topic of {} bytes is longer than topic max length {TOPIC_BYTES_MAX}.",
            topic.len()
        )));
    }
    Ok(())
}

pub fn check_group_name(group: &str) -> Result<(), Refusal> {
    if group.trim().is_empty() {
        return Err(Refusal::invalid("The specified group is blank."));
    }
    if !is_plain_name(group) {
        return Err(Refusal::invalid(format!(
            "The specified group[{}] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
            shown(group)
        )));
    }
    if group.len() > GROUP_BYTES_MAX {
        return Err(Refusal::invalid(format!(
            "The specified group of {} bytes is longer than group max length {GROUP_BYTES_MAX}.",
            group.len()
        )));
    }
    Ok(())
}

/// A text of a stranger, short enough for a remark.
fn shown(text: &str) -> String {
    text.chars().take(128).flat_map(char::escape_debug).collect()
}

pub fn retry_topic(group: &str) -> String {
    format!("{RETRY_PREFIX}{group}")
}

pub fn dlq_topic(group: &str) -> String {
    format!("{DLQ_PREFIX}{group}")
}

/// Text after the remark of an answer that a client shows to its user. Java appends a help link here.
pub fn topic_missing(topic: &str) -> Refusal {
    Refusal::new(response::TOPIC_NOT_EXIST, format!("topic[{}] not exist, apply first please!", shown(topic)))
}

#[cfg(test)]
pub mod testing {
    //! A broker over a small store in a folder of its own.

    use super::*;
    use std::path::Path;

    pub fn config(dir: &Path, pairs: &[(&str, &str)]) -> BrokerConfig {
        let mut entries = BrokerConfig::standalone(&dir.join("store"));
        entries.push(("namesrvAddr".into(), String::new()));
        entries.push(("mappedFileSizeCommitLog".into(), (8 << 20).to_string()));
        entries.extend(pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())));
        BrokerConfig::load(None, &entries).unwrap()
    }

    pub fn broker(dir: &Path, pairs: &[(&str, &str)]) -> Broker {
        let config = config(dir, pairs);
        let (store, _) = Store::open(crate::node::store_config(&config), 1_000).unwrap();
        Broker::open(config, store, "127.0.0.1:10911".parse().unwrap(), 1 << 30, 1_000).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_leave_the_store_are_refused() {
        let (t127, t128) = ("t".repeat(127), "t".repeat(128));
        let (g120, g121) = ("g".repeat(120), "g".repeat(121));
        for topic in ["T", "CON", "%RETRY%g", "a|b-c_d%", &t127] {
            assert_eq!(check_topic_name(topic), Ok(()), "{topic}");
        }
        for topic in [
            "",
            " ",
            "\t",
            "../../../tmp/x",
            "a/b",
            ".",
            "..",
            "t\0",
            "主题",
            "topic\n",
            "a b",
            "%RETRY%../../x",
            &t128,
        ] {
            assert_eq!(check_topic_name(topic).unwrap_err().code, response::INVALID_PARAMETER, "{topic:?}");
            assert!(check_topic_name(topic).unwrap_err().remark.len() < 400);
        }
        assert_eq!(check_group_name(&g120), Ok(()));
        for group in ["", "a/b", "..", &g121] {
            assert_eq!(check_group_name(group).unwrap_err().code, response::INVALID_PARAMETER, "{group:?}");
        }
        assert_eq!(check_topic_name(&retry_topic(&g120)), Ok(()));
        assert_eq!(check_topic_name(&dlq_topic(&g120)), Ok(()));
    }
}
