//! PULL_MESSAGE (11), LITE_PULL_MESSAGE (361).
//!
//! ```text
//! frame ─ checks ─ filter (heartbeat or request) ─ Store::read ─┬─ records: sent from the mapped pages, uncopied
//!                                                               ├─ nothing new, may wait: hold
//!                                                               └─ status and the four offsets
//! ```
//! Run once when it comes and once more when it is woken or due; only the first run commits and may be held.
//! Source: PullMessageProcessor.java, DefaultPullMessageResultHandler.java.

use super::again::Again;
use super::clients::{NoSubscription, Subscription, no_filter};
use super::filter::{Filter, TagFilter};
use super::{Broker, OFFSET_MOVED_EVENT, RETRY_PREFIX, Refusal, topic_missing};
use ringmq_net::protocol::body::heartbeat::{EXPRESSION_SQL92, MessageModel, SubscriptionData};
use ringmq_net::protocol::body::queue::{MessageQueue, OffsetMovedEvent};
use ringmq_net::protocol::codes::response;
use ringmq_net::protocol::command::Command;
use ringmq_net::protocol::headers::pull::{PullHeader, sys_flag};
use ringmq_net::reactor::Now;
use ringmq_storage::append::AppendBatch;
use ringmq_storage::consume_queue::ConsumeQueue;
use ringmq_storage::read::{Read, ReadStatus};
use ringmq_storage::record::properties;
use std::net::SocketAddr;
use std::sync::Arc;

/// The four numbers that every answer has, refusals included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    pub next: i64,
    pub min: i64,
    pub max: i64,
}

pub struct Pulled {
    pub code: i32,
    pub bounds: Bounds,
    pub suggested_broker: i64,
    pub read: Read,
}

/// What became of a pull.
pub enum PullOutcome {
    Answer(Pulled),
    /// Nothing there yet and the client waits.
    Hold {
        queue: Arc<ConsumeQueue>,
        filter: Filter,
        from: u64,
        wait_ms: u64,
    },
}

/// A refusal with the bounds of the queue, as far as there is one.
pub struct PullRefusal {
    pub refusal: Refusal,
    pub bounds: Bounds,
}

impl From<Refusal> for PullRefusal {
    fn from(refusal: Refusal) -> PullRefusal {
        PullRefusal { refusal, bounds: Bounds::default() }
    }
}

/// `is_first`: as the client sent it; a woken or due pull is run with `false`.
pub fn pull(
    broker: &Broker,
    command: &Command<'_>,
    peer: SocketAddr,
    is_first: bool,
    now: Now,
) -> Result<PullOutcome, PullRefusal> {
    let header = PullHeader::parse(&command.ext).map_err(Refusal::from)?;
    let refuse = |refusal: Refusal| {
        let queue = broker.store.queue(header.topic, header.queue_id);
        let (min, max) = queue.map_or((0, 0), |queue| (queue.min() as i64, queue.max() as i64));
        PullRefusal { refusal, bounds: Bounds { next: header.queue_offset, min, max } }
    };
    let filter = check(broker, &header, peer, now).map_err(refuse)?;
    let queue = broker.store.queue_or_create(header.topic, header.queue_id);
    let count_max = header.max_msg_nums.max(1) as usize;
    let (from, limits) = (header.queue_offset, &broker.live.read_limits());
    let mut accept = |tags_code| filter.accepts_entry(tags_code);
    let read = if filter.asks_records() {
        let mut accept_record = |record: &[u8]| filter.accepts_record(record);
        broker.store.read_records(&queue, from, count_max, limits, &mut accept, &mut accept_record)
    } else {
        broker.store.read(&queue, from, count_max, limits, &mut accept)
    };
    if is_first && header.has(sys_flag::COMMIT_OFFSET) {
        broker.offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset);
    }
    let code = code(read.status, header.queue_offset);
    if code == response::PULL_NOT_FOUND && is_first && header.has(sys_flag::SUSPEND) {
        let config = broker.live.config();
        let wait_ms = if config.long_polling_enable {
            header.suspend_timeout_ms.clamp(0, WAIT_MS_MAX) as u64
        } else {
            u64::from(config.short_polling_ms)
        };
        return Ok(PullOutcome::Hold { queue, filter, from: header.queue_offset.max(0) as u64, wait_ms });
    }
    if read.status == ReadStatus::Found {
        broker.stats.got(header.consumer_group, header.topic, read.count as u64, read.bytes as u64);
    } else {
        broker.stats.missed();
    }
    let bounds = Bounds { next: read.next_offset, min: read.min_offset, max: read.max_offset };
    let suggested_broker = suggested_broker(broker, &header, &read);
    Ok(PullOutcome::Answer(Pulled { code, bounds, suggested_broker, read }))
}

/// What Java's broker notes of a pull from where the queue is not, for whoever subscribes to that topic (`mqadmin
/// startMonitoring`). Returns the unit in the batch.
/// Source: PullMessageProcessor.generateOffsetMovedEvent.
pub fn offset_moved(
    broker: &Broker,
    command: &Command<'_>,
    pulled: &Pulled,
    now: Now,
    append: &mut AppendBatch,
) -> Option<usize> {
    let header = PullHeader::parse(&command.ext).ok()?;
    let event = OffsetMovedEvent {
        consumer_group: header.consumer_group.to_owned(),
        message_queue: MessageQueue {
            topic: header.topic.to_owned(),
            broker_name: broker.config.broker_name.clone(),
            queue_id: header.queue_id,
        },
        offset_request: header.queue_offset,
        offset_new: pulled.bounds.next,
    };
    let group = header.consumer_group;
    let text = properties::with(&[], &[(properties::KEYS, group), (properties::DELAY, "0"), (properties::TAGS, group)]);
    let moved = Again {
        topic: OFFSET_MOVED_EVENT,
        queue_id: 0,
        flag: 0,
        sys_flag: 0,
        born_timestamp: now.wall_ms as i64,
        born_host: broker.store_host,
        store_host: broker.store_host,
        reconsume_times: 0,
        prepared_offset: 0,
        body: &event.to_json(),
        text: &text,
        delay_level: 0,
    };
    moved.push(broker, append).ok()
}

/// The client gives up after 30 s; a later answer would meet nobody.
const WAIT_MS_MAX: i64 = 60_000;

fn suggested_broker(broker: &Broker, header: &PullHeader<'_>, read: &Read) -> i64 {
    if !broker.live.slave_read_enable() {
        return 0;
    }
    let Some(group) = broker.groups.get(header.consumer_group) else { return 0 };
    if read.suggest_slave { group.which_broker_when_consume_slowly } else { group.broker_id }
}

fn code(status: ReadStatus, from: i64) -> i32 {
    match status {
        ReadStatus::Found => response::SUCCESS,
        ReadStatus::MessageWasRemoving | ReadStatus::NoMatchedMessage => response::PULL_RETRY_IMMEDIATELY,
        ReadStatus::NoMatchedLogicQueue | ReadStatus::NoMessageInQueue if from != 0 => response::PULL_OFFSET_MOVED,
        ReadStatus::NoMatchedLogicQueue | ReadStatus::NoMessageInQueue => response::PULL_NOT_FOUND,
        ReadStatus::OffsetFoundNull | ReadStatus::OffsetOverflowOne => response::PULL_NOT_FOUND,
        ReadStatus::OffsetOverflowBadly | ReadStatus::OffsetTooSmall => response::PULL_OFFSET_MOVED,
    }
}

/// Java's checks, in its order.
fn check(broker: &Broker, header: &PullHeader<'_>, peer: SocketAddr, now: Now) -> Result<Filter, Refusal> {
    let (group, topic) = (header.consumer_group, header.topic);
    let forbidden = |remark: String| Refusal::new(response::NO_PERMISSION, remark);
    if !broker.is_readable() {
        return Err(forbidden(format!("the broker[{}] pulling message is forbidden", broker.config.broker_ip1)));
    }
    super::check_group_name(group)?;
    let (group_config, _) = broker.groups.get_or_create(group, now.wall_ms).ok_or_else(|| {
        Refusal::new(
            response::SUBSCRIPTION_GROUP_NOT_EXIST,
            format!("subscription group [{group}] does not exist, autoCreateSubscriptionGroup is off"),
        )
    })?;
    if !group_config.consume_enable {
        return Err(forbidden(format!("subscription group no permission, {group}")));
    }
    let topic_config = broker.topics.get(topic).ok_or_else(|| topic_missing(topic))?;
    if topic_config.perm & super::topics::PERM_READ == 0 {
        return Err(forbidden(format!("the topic[{topic}] pulling message is forbidden")));
    }
    if !(0..topic_config.read_queue_nums).contains(&header.queue_id) {
        return Err(Refusal::invalid(format!(
            "queueId[{}] is illegal, topic:[{topic}] topicConfig.readQueueNums:[{}] consumer:[{peer}]",
            header.queue_id, topic_config.read_queue_nums
        )));
    }
    if header.has(sys_flag::SUBSCRIPTION) {
        let text = header.subscription.unwrap_or("");
        if !header.is_tag_expression() {
            return by_expression(broker, header.expression_type.unwrap_or(""), text, topic);
        }
        let data = SubscriptionData::build_tag(topic, text).map_err(|_| parse_failed(""))?;
        return Ok(or_retried(broker, topic, Filter::Tags(Subscription::new(data).tags)));
    }
    let no_broadcast = |model: MessageModel| {
        (model == MessageModel::Broadcasting && !group_config.consume_broadcast_enable)
            .then(|| forbidden(format!("the consumer group[{group}] can not consume by broadcast way")))
    };
    let (subscription, model) = broker.clients.subscription(group, topic).map_err(|missing| match missing {
        NoSubscription::Group => Refusal::new(response::SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist"),
        NoSubscription::Topic { model } => no_broadcast(model)
            .unwrap_or_else(|| Refusal::new(response::SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist")),
    })?;
    if let Some(refusal) = no_broadcast(model) {
        return Err(refusal);
    }
    if subscription.data.sub_version < header.sub_version {
        return Err(Refusal::new(response::SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"));
    }
    if subscription.data.is_tag() {
        return Ok(or_retried(broker, topic, Filter::Tags(subscription.tags.clone())));
    }
    let Some(registered) = broker.filters.get(topic, group) else {
        let why = broker.filters.compile(&subscription.data.sub_string).err();
        let why = why.map(|fault| format!(" ({fault})")).unwrap_or_default();
        return Err(Refusal::new(
            response::FILTER_DATA_NOT_EXIST,
            format!("The broker's consumer filter data is not exist!Your expression may be wrong!{why}"),
        ));
    };
    if registered.version < header.sub_version {
        return Err(Refusal::new(response::FILTER_DATA_NOT_LATEST, "the consumer's consumer filter data not latest"));
    }
    if !broker.live.property_filter_enable() {
        return Err(no_filter(&subscription.data.expression_type));
    }
    if subscription.data.class_filter_mode {
        return Ok(Filter::Tags(TagFilter::All));
    }
    Ok(or_retried(broker, topic, Filter::Sql(registered.expression)))
}

fn parse_failed(why: &str) -> Refusal {
    let remark = format!("parse the consumer's subscription failed{why}");
    Refusal::new(response::SUBSCRIPTION_PARSE_FAILED, remark)
}

/// An expression in the request. Java takes one that it cannot parse for none and sends every message.
fn by_expression(broker: &Broker, kind: &str, text: &str, topic: &str) -> Result<Filter, Refusal> {
    if text.is_empty() {
        return Err(parse_failed(""));
    }
    if !broker.live.property_filter_enable() || kind != EXPRESSION_SQL92 {
        return Err(no_filter(kind));
    }
    let expression = broker.filters.compile(text).map_err(|fault| parse_failed(&format!(": {fault}")))?;
    Ok(or_retried(broker, topic, Filter::Sql(expression)))
}

/// With `filterSupportRetry`: what was sent back is held against the filter of its first topic.
fn or_retried(broker: &Broker, topic: &str, filter: Filter) -> Filter {
    let Some(group) = topic.strip_prefix(RETRY_PREFIX).filter(|_| broker.live.filter_retry_enable()) else {
        return filter;
    };
    let tags = match filter {
        Filter::Tags(tags) => tags,
        Filter::Sql(_) | Filter::Retried { .. } => TagFilter::All,
    };
    Filter::Retried { tags, group: group.into(), filters: Arc::clone(&broker.filters) }
}
