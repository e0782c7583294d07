//! SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320).
//!
//! ```text
//! frame ─ typed header ─ checks in Java's order ─ queue ─ record encoded into the turn's batch
//!                                                         └─ placed by one append at the turn's end ─> answer
//! ```
//! Nothing here waits: a topic that is made by a send answers once topics.json has it, so the shard parks that request.
//! A delay level leads into the schedule topic, TRAN_MSG into the half topic. Timers are refused.
//! Source: SendMessageProcessor.java, AbstractSendMessageProcessor.msgCheck.

use super::schedule;
use super::transaction::{HALF_TOPIC, OP_TOPIC};
use super::{Broker, RETRY_PREFIX, Refusal, SEND_FORBIDDEN, check_topic_name, dlq_topic, topic_missing};
use ringmq_net::protocol::body::topic::{TopicConfig, TopicFilterType};
use ringmq_net::protocol::codes::{language, request, response, version};
use ringmq_net::protocol::command::Command;
use ringmq_net::protocol::headers::send::SendHeader;
use ringmq_net::reactor::Now;
use ringmq_storage::append::{AppendBatch, Marked};
use ringmq_storage::consume_queue::ConsumeQueue;
use ringmq_storage::index::Keys;
use ringmq_storage::record::layout::sys_flag;
use ringmq_storage::record::{NewRecord, batch, check, properties};
use std::borrow::Cow;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;

/// Left in a record for what retries add (RETRY_TOPIC, ORIGIN_MESSAGE_ID, REAL_TOPIC, …): a message that was accepted
/// can always be sent back.
const PROPERTIES_KEPT_BYTES: usize = 1024;
const PROPERTIES_BYTES_MAX: usize = ringmq_storage::record::layout::PROPERTIES_BYTES_MAX - PROPERTIES_KEPT_BYTES;

/// Topics of a shard with their queues, as of one generation of the table.
#[derive(Default)]
pub struct TopicCache {
    generation: u64,
    topics: Vec<CachedTopic>,
    indexes: HashMap<String, usize>,
    /// The one asked for last, which is nearly always the next one too.
    last: usize,
}

struct CachedTopic {
    config: Arc<TopicConfig>,
    /// What makes it durable, until it is.
    version: Option<u64>,
    queues: Vec<Option<Arc<ConsumeQueue>>>,
}

impl TopicCache {
    fn get(&mut self, broker: &Broker, topic: &str) -> Option<&mut CachedTopic> {
        let generation = broker.topics.generation();
        if generation != self.generation {
            self.generation = generation;
            self.topics.clear();
            self.indexes.clear();
        }
        if self.topics.get(self.last).is_none_or(|entry| entry.config.topic_name != topic) {
            self.last = match self.indexes.get(topic) {
                Some(index) => *index,
                None => {
                    let (config, version) = broker.topics.get_with_version(topic)?;
                    self.topics.push(CachedTopic { config, version, queues: Vec::new() });
                    self.indexes.insert(topic.to_string(), self.topics.len() - 1);
                    self.topics.len() - 1
                }
            };
        }
        self.topics.get_mut(self.last)
    }
}

impl CachedTopic {
    /// What a send has to wait for.
    fn awaited(&mut self, broker: &Broker) -> Option<u64> {
        self.version = self.version.filter(|version| *version > broker.dirty.durable());
        self.version
    }

    fn queue(&mut self, broker: &Broker, queue_id: i32) -> Arc<ConsumeQueue> {
        let index = queue_id as usize;
        if self.queues.len() <= index {
            self.queues.resize(index + 1, None);
        }
        let queue =
            self.queues[index].get_or_insert_with(|| broker.store.queue_or_create(&self.config.topic_name, queue_id));
        Arc::clone(queue)
    }
}

/// What a shard keeps from send to send.
#[derive(Default)]
pub struct SendScratch {
    topics: TopicCache,
    /// `CLUSTER 0x01 name`, made once.
    cluster: Vec<u8>,
    /// For sends that leave the choice of the queue to the broker.
    next_queue: u32,
}

impl SendScratch {
    /// Another number each time.
    pub fn pick(&mut self) -> u32 {
        self.next_queue = self.next_queue.wrapping_add(1);
        self.next_queue
    }

    pub fn new(broker: &Broker) -> SendScratch {
        let cluster = properties::pair(properties::CLUSTER, &broker.config.cluster_name);
        SendScratch { cluster, ..SendScratch::default() }
    }
}

/// What became of a send.
#[derive(Debug, PartialEq, Eq)]
pub enum Sent {
    /// In the batch.
    Pushed {
        unit: usize,
        /// As told to the client: the one of the topic it named.
        queue_id: i32,
        /// Under SYNC_FLUSH, unless its property WAIT says no.
        is_flush_awaited: bool,
    },
    /// Its topic is new and must be durable first: run it again at this version.
    Wait { version: u64 },
}

/// Checks a send and pushes it into the turn's batch.
///
/// # Errors
/// The refusal to answer with; the batch is unchanged.
pub fn send(
    broker: &Broker,
    scratch: &mut SendScratch,
    command: &Command<'_>,
    peer: SocketAddr,
    now: Now,
    append: &mut AppendBatch,
) -> Result<Sent, Refusal> {
    let header = if matches!(command.code, request::SEND_MESSAGE | request::SEND_REPLY_MESSAGE) {
        SendHeader::v1(&command.ext)?
    } else {
        SendHeader::v2(&command.ext)?
    };
    let is_batch = header.batch || command.code == request::SEND_BATCH_MESSAGE;
    let mut created = None;
    if scratch.topics.get(broker, header.topic).is_none() {
        created = make_topic(broker, &header, now)?;
    }
    let Some(topic) = scratch.topics.get(broker, header.topic) else {
        // Another shard may have taken it away this moment.
        let version = created.or_else(|| broker.topics.going(header.topic));
        return version.map(|version| Sent::Wait { version }).ok_or_else(|| topic_missing(header.topic));
    };
    let config = Arc::clone(&topic.config);
    if !broker.is_writable() && config.order {
        return Err(Refusal::new(
            response::NO_PERMISSION,
            format!("the broker[{}] sending message is forbidden", broker.config.broker_ip1),
        ));
    }
    if SEND_FORBIDDEN.contains(&header.topic) {
        return Err(Refusal::new(
            response::NO_PERMISSION,
            format!("Sending message to topic[{}] is forbidden.", header.topic),
        ));
    }
    let queue_count = config.write_queue_nums.max(config.read_queue_nums);
    if header.queue_id >= queue_count {
        return Err(Refusal::invalid(format!(
            "request queueId[{}] is illegal, topic {} has {} write and {} read queues. Producer: {peer}",
            header.queue_id, config.topic_name, config.write_queue_nums, config.read_queue_nums
        )));
    }
    let mut queue_id = header.queue_id;
    if queue_id < 0 {
        if config.write_queue_nums <= 0 {
            return Err(Refusal::invalid(format!("topic {} has no queue to write to", config.topic_name)));
        }
        queue_id = (scratch.pick() % config.write_queue_nums as u32) as i32;
    }
    let asked_queue_id = queue_id;

    let text = header.properties.as_bytes();
    if text.len() > PROPERTIES_BYTES_MAX {
        return Err(Refusal::new(
            response::MESSAGE_ILLEGAL,
            format!(
                "the message properties of {} bytes are over the limit of {PROPERTIES_BYTES_MAX} bytes",
                text.len()
            ),
        ));
    }
    let mut topic_name = Cow::Borrowed(header.topic);
    if let Some(group) = header.topic.strip_prefix(RETRY_PREFIX) {
        if is_batch {
            return Err(Refusal::new(response::MESSAGE_ILLEGAL, "batch request does not support retry group"));
        }
        let (target, version) = retry_target(broker, &header, group, command, now)?;
        created = created.max(version);
        if let Some(target) = target {
            topic_name = Cow::Owned(target);
            queue_id = 0;
        }
    }
    let features = features(text);
    let marks = marks(broker, &features, &header, is_batch)?;
    // A dead letter is not delayed any more, whatever its consumer wrote.
    let delay_level = if topic_name != header.topic { 0 } else { marks.delay_level };
    if marks.is_half {
        for topic in [HALF_TOPIC, OP_TOPIC] {
            let made = broker.topics.get_or_create(topic, 1, false, now.wall_ms);
            created = created.max(made.ok_or_else(|| topic_missing(topic))?.1);
        }
    }
    let mut marked = Vec::new();
    if is_batch {
        for message in batch::messages(command.body) {
            let message = message.map_err(|error| Refusal::new(response::MESSAGE_ILLEGAL, error.to_string()))?;
            let own = self::features(message.properties);
            self::marks(broker, &own, &header, true)?;
            // What is said for all of them is stored behind, and the later counts.
            marked.push(features.or(&own).marked());
            let bytes = message.properties.len() + 1 + text.len();
            if bytes > PROPERTIES_BYTES_MAX {
                return Err(Refusal::new(
                    response::MESSAGE_ILLEGAL,
                    format!(
                        "the properties of one message and of its batch, {bytes} bytes, are over the limit of \
                         {PROPERTIES_BYTES_MAX} bytes"
                    ),
                ));
            }
        }
    }
    if let Some(version) = created {
        return Ok(Sent::Wait { version });
    }

    let place = if marks.is_half { (HALF_TOPIC, 0) } else { (&*topic_name, queue_id) };
    let queue = match scratch.topics.get(broker, place.0) {
        Some(topic) => match topic.awaited(broker) {
            Some(version) => return Ok(Sent::Wait { version }),
            None => topic.queue(broker, place.1),
        },
        None => return Err(topic_missing(place.0)),
    };
    let mut flags = header.sys_flag & !(sys_flag::BORN_HOST_V6 | sys_flag::STORE_HOST_V6 | sys_flag::INNER_BATCH);
    let is_multi_tag = config.topic_filter_type == TopicFilterType::MultiTag;
    if is_multi_tag {
        flags |= sys_flag::MULTI_TAGS;
    }
    let mut record = NewRecord {
        topic: &topic_name,
        queue_id,
        flag: header.flag,
        sys_flag: flags,
        born_timestamp: header.born_timestamp,
        born_host: peer,
        store_host: broker.store_host,
        reconsume_times: header.reconsume_times,
        prepared_offset: 0,
        body: command.body,
        properties: &[],
    };
    let illegal =
        |error: ringmq_storage::error::RecordError| Refusal::new(response::MESSAGE_ILLEGAL, error.to_string());
    let unit = if is_batch {
        let shared: [&[u8]; 3] =
            [text, if properties::needs_separator(text) { &[properties::PAIR_END] } else { &[] }, &scratch.cluster];
        record.properties = &shared;
        append.push_client_batch(&record, &marked, &queue, broker.record_limits).map_err(illegal)?
    } else if marks.is_half || delay_level > 0 {
        let plain: [&[u8]; 2] = [text, &scratch.cluster];
        check(&NewRecord { properties: &plain, ..record }, broker.record_limits).map_err(illegal)?;
        let text = properties::with(text, &[(properties::CLUSTER, &broker.config.cluster_name)]);
        if marks.is_half {
            let text = properties::with(
                &text,
                &[(properties::REAL_TOPIC, &topic_name), (properties::REAL_QID, &queue_id.to_string())],
            );
            let properties = [&text[..]];
            let (topic, queue_id) = place;
            let sys_flag = flags & !sys_flag::TRANSACTION_MASK;
            let half = NewRecord { topic, queue_id, sys_flag, properties: &properties, ..record };
            append.push(&half, features.marked(), &queue, broker.own_limits).map_err(illegal)?
        } else {
            schedule::push(broker, &record, &text, delay_level, append).map_err(illegal)?
        }
    } else {
        let stored = if features.has_more_waits {
            properties::stored(text, &scratch.cluster)
        } else {
            properties::stored_but(text, features.wait.clone(), &scratch.cluster)
        };
        record.properties = &stored;
        append.push(&record, features.marked(), &queue, broker.record_limits).map_err(illegal)?
    };
    let is_flush_awaited = broker.store.is_sync() && properties::wants_wait(text);
    Ok(Sent::Pushed { unit, queue_id: asked_queue_id, is_flush_awaited })
}

/// Makes the topic of a send, if that may be. Returns the version that makes it durable.
fn make_topic(broker: &Broker, header: &SendHeader<'_>, now: Now) -> Result<Option<u64>, Refusal> {
    check_topic_name(header.topic)?;
    // One of that name is being deleted.
    if let Some(version) = broker.topics.going(header.topic) {
        return Ok(Some(version));
    }
    if SEND_FORBIDDEN.contains(&header.topic) {
        return Err(Refusal::new(
            response::NO_PERMISSION,
            format!("Sending message to topic[{}] is forbidden.", header.topic),
        ));
    }
    // A group that may not exist makes no retry topic.
    if let Some(group) = header.topic.strip_prefix(RETRY_PREFIX) {
        group_config(broker, group, now)?;
    }
    let (template, queue_count) = (header.default_topic, header.default_topic_queue_nums);
    let made = broker.topics.get_or_inherit(header.topic, template, queue_count, header.unit_mode, now.wall_ms);
    let made = match made {
        None if header.topic.starts_with(RETRY_PREFIX) => {
            broker.topics.get_or_create(header.topic, 1, header.unit_mode, now.wall_ms)
        }
        made => made,
    };
    match made {
        Some((_, version)) => Ok(version),
        // Its deletion may have begun since it was asked about above.
        None => broker.topics.going(header.topic).map(Some).ok_or_else(|| topic_missing(header.topic)),
    }
}

fn group_config(
    broker: &Broker,
    group: &str,
    now: Now,
) -> Result<Arc<ringmq_net::protocol::body::group::SubscriptionGroupConfig>, Refusal> {
    broker.groups.get_or_create(group, now.wall_ms).map(|(config, _)| config).ok_or_else(|| {
        Refusal::new(response::SUBSCRIPTION_GROUP_NOT_EXIST, format!("subscription group not exist, {group}"))
    })
}

/// Where a message that a consumer sends into `%RETRY%group` goes: to the dead letters when it was tried often enough.
fn retry_target(
    broker: &Broker,
    header: &SendHeader<'_>,
    group: &str,
    command: &Command<'_>,
    now: Now,
) -> Result<(Option<String>, Option<u64>), Refusal> {
    let config = group_config(broker, group, now)?;
    let mut times_max = config.retry_max_times;
    if command.version >= version::V3_4_9 {
        // Go writes 0 into every send, whatever its consumer was told.
        let is_unset = |max: &i32| *max == 0 && command.language == Some(language::GO);
        times_max = header.max_reconsume_times.filter(|max| !is_unset(max)).unwrap_or(times_max);
    }
    if header.reconsume_times < times_max {
        return Ok((None, None));
    }
    let target = dlq_topic(group);
    let Some((_, version)) = broker.topics.get_or_create(&target, 1, false, now.wall_ms) else {
        return Err(Refusal::new(response::SYSTEM_ERROR, format!("topic[{target}] not exist")));
    };
    Ok((Some(target), version))
}

/// Properties that decide what becomes of a message.
#[derive(Default)]
struct Features<'a> {
    tran_msg: Option<&'a [u8]>,
    delay: Option<&'a [u8]>,
    tags: Option<&'a [u8]>,
    keys: Keys<'a>,
    /// Where pairs called WAIT stand: the first, and whether it is the only one.
    wait: Option<Range<usize>>,
    has_more_waits: bool,
    is_timer: bool,
    /// Marks by which brokers tell themselves how to read a record: 5.x does not open a log in which a client's stand,
    /// and a queue's offset would be the client's to choose.
    is_internal: bool,
}

/// By one pass; of two equal names the later counts.
fn features(text: &[u8]) -> Features<'_> {
    let mut features = Features::default();
    for (place, name, value) in properties::placed_pairs(text) {
        match name {
            b"WAIT" => {
                features.has_more_waits = features.wait.is_some();
                features.wait.get_or_insert(place);
            }
            b"TRAN_MSG" => features.tran_msg = Some(value),
            b"DELAY" => features.delay = Some(value),
            b"TAGS" => features.tags = Some(value),
            b"UNIQ_KEY" => features.keys.uniq_key = Some(value),
            b"KEYS" => features.keys.keys = Some(value),
            b"TIMER_DELIVER_MS" | b"TIMER_DELAY_SEC" | b"TIMER_DELAY_MS" => features.is_timer = true,
            b"INNER_NUM" | b"INNER_BASE" | b"INNER_MULTI_DISPATCH" | b"INNER_MULTI_QUEUE_OFFSET" => {
                features.is_internal = true;
            }
            _ => {}
        }
    }
    features
}

impl<'a> Features<'a> {
    /// For the queue and the index: where both have one, these count.
    fn or(&self, own: &Features<'a>) -> Features<'a> {
        let Keys { uniq_key, keys } = own.keys;
        Features {
            tags: self.tags.or(own.tags),
            keys: Keys { uniq_key: self.keys.uniq_key.or(uniq_key), keys: self.keys.keys.or(keys) },
            ..Features::default()
        }
    }

    fn marked(&self) -> Marked<'a> {
        Marked { tags_code: self.tags.map_or(0, properties::tag_code), keys: Some(self.keys) }
    }
}

struct Marks {
    delay_level: i64,
    is_half: bool,
}

/// What a message wants beyond being stored, and whether it may.
fn marks(broker: &Broker, features: &Features<'_>, header: &SendHeader<'_>, is_batch: bool) -> Result<Marks, Refusal> {
    let illegal = |remark: String| Refusal::new(response::MESSAGE_ILLEGAL, remark);
    let Some(delay_level) = schedule::level(features.delay) else {
        let text = String::from_utf8_lossy(features.delay.unwrap_or_default());
        return Err(illegal(format!("the message property DELAY is no number: '{}'", super::shown(&text))));
    };
    // A consumer that sends a committed message back by itself sends its marks with it.
    let is_retry = header.reconsume_times > 0 && delay_level > 0;
    let is_half = features.tran_msg.is_some_and(|value| value.eq_ignore_ascii_case(b"true")) && !is_retry;
    if is_half && broker.live.transaction_reject() {
        return Err(Refusal::new(
            response::NO_PERMISSION,
            format!("the broker[{}] sending transaction message is forbidden", broker.config.broker_ip1),
        ));
    }
    match header.sys_flag & sys_flag::TRANSACTION_MASK {
        sys_flag::PREPARED if !is_half => {
            return Err(illegal(
                "sysFlag marks a half message, but its property TRAN_MSG is not true: nobody would ever receive it"
                    .to_string(),
            ));
        }
        sys_flag::ROLLBACK if !is_half => {
            return Err(illegal(
                "sysFlag marks a message that was rolled back: nobody would ever receive it".to_string(),
            ));
        }
        _ => {}
    }
    if features.is_timer {
        return Err(illegal(
            "timer messages (properties TIMER_*) are not supported by this version of ringmq".to_string(),
        ));
    }
    if features.is_internal {
        return Err(illegal(
            "the properties INNER_* are the broker's own: inner batches and light queues are not supported by this \
             version of ringmq"
                .to_string(),
        ));
    }
    if is_batch && is_half {
        return Err(illegal("a batch holds no half messages (property TRAN_MSG)".to_string()));
    }
    if is_batch && delay_level > 0 {
        return Err(illegal("the messages of a batch are not delayed (property DELAY)".to_string()));
    }
    Ok(Marks { delay_level, is_half })
}

/// The id of a stored message: store host and log offset in hex. Source: MessageDecoder.createMessageId.
pub fn push_message_id(out: &mut String, store_host: SocketAddr, log_offset: u64) {
    match store_host.ip() {
        IpAddr::V4(ip) => push_hex(out, &ip.octets()),
        IpAddr::V6(ip) => push_hex(out, &ip.octets()),
    }
    push_hex(out, &u32::from(store_host.port()).to_be_bytes());
    push_hex(out, &log_offset.to_be_bytes());
}

/// Two digits a byte, upper case. Once for each message, so not by `format!`, nor digit by digit.
fn push_hex<const N: usize>(out: &mut String, bytes: &[u8; N]) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut digits = [[0; 2]; N];
    for (pair, byte) in digits.iter_mut().zip(bytes) {
        *pair = [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]];
    }
    out.push_str(std::str::from_utf8(digits.as_flattened()).expect("digits"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_ids_are_javas() {
        // host, offset, id
        for (host, offset, want) in [
            ("10.1.2.3:10911", 0x1234, "0A01020300002A9F0000000000001234"),
            ("[::1]:10911", 1, "0000000000000000000000000000000100002A9F0000000000000001"),
        ] {
            let mut id = String::new();
            push_message_id(&mut id, host.parse().unwrap(), offset);
            assert_eq!(id, want);
        }
    }
}
