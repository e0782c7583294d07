//! CONSUMER_SEND_MSG_BACK (36): a consumer could not handle a message and wants it later, or never again.
//!
//! ```text
//! offset ─> record ─┬─ tried often enough, or delay level < 0 ─> %DLQ%group, queue 0, at once
//!                   └─ else ─> %RETRY%group behind a delay level (0: 3 + times tried)
//! ```
//! The new message has the body, flags and born data of the old one, `reconsumeTimes` + 1, and knows where it came from
//! (RETRY_TOPIC) and which message it was at first (ORIGIN_MESSAGE_ID). Its limits are the store's, not the clients': a
//! message that was accepted can always be retried and dead-lettered.
//! Source: SendMessageProcessor.asyncConsumerSendMsgBack (4.9.7).

use super::again::Again;
use super::send::push_message_id;
use super::topics::PERM_WRITE;
use super::{Broker, Refusal, dlq_topic, retry_topic};
use ringmq_net::protocol::codes::{response, version};
use ringmq_net::protocol::command::Command;
use ringmq_net::protocol::headers::send::SendBackHeader;
use ringmq_net::reactor::Now;
use ringmq_storage::append::AppendBatch;
use ringmq_storage::record::decode::Record;
use ringmq_storage::record::properties;

/// Of a message that was never tried: the level before the first retry.
const FIRST_LEVEL: i32 = 3;

/// What became of it.
#[derive(Debug, PartialEq, Eq)]
pub enum Back {
    /// In the batch.
    Pushed { unit: usize },
    /// The group keeps no retries: answered 0, as Java does.
    Dropped,
    /// A topic or a group is new and must be durable first: run it again at this version.
    Wait { version: u64 },
}

/// `pick`: any number, for the choice of the queue.
///
/// # Errors
/// The refusal to answer with; the batch is unchanged.
pub fn send_back(
    broker: &Broker,
    command: &Command<'_>,
    now: Now,
    pick: u32,
    append: &mut AppendBatch,
) -> Result<Back, Refusal> {
    let header = SendBackHeader::parse(&command.ext)?;
    let Some((group, group_version)) = broker.groups.get_or_create(header.group, now.wall_ms) else {
        return Err(Refusal::new(
            response::SUBSCRIPTION_GROUP_NOT_EXIST,
            format!("subscription group not exist, {}", super::shown(header.group)),
        ));
    };
    let forbidden = |remark: String| Refusal::new(response::NO_PERMISSION, remark);
    if !broker.is_writable() {
        return Err(forbidden(format!("the broker[{}] sending message is forbidden", broker.config.broker_ip1)));
    }
    if group.retry_queue_nums <= 0 {
        return Ok(Back::Dropped);
    }
    let mut topic = retry_topic(header.group);
    let retries = broker.topics.get_or_create(&topic, group.retry_queue_nums, header.unit_mode, now.wall_ms);
    let (retries, mut topic_version) = retries.ok_or_else(|| no_topic(&topic))?;
    if retries.perm & PERM_WRITE == 0 {
        return Err(forbidden(format!("the topic[{topic}] sending message is forbidden")));
    }
    let bytes = super::again::record_at(broker, header.offset).ok_or_else(|| missing(header.offset))?;
    let record = Record::parse(&bytes).map_err(|_| missing(header.offset))?;
    // These are nobody's to consume.
    if matches!(record.topic, b"SCHEDULE_TOPIC_XXXX" | b"RMQ_SYS_TRANS_HALF_TOPIC" | b"RMQ_SYS_TRANS_OP_HALF_TOPIC") {
        return Err(missing(header.offset));
    }

    let mut times_max = group.retry_max_times;
    if command.version >= version::V3_4_9 {
        times_max = header.max_reconsume_times.unwrap_or(times_max);
    }
    let (queue_id, level);
    if record.reconsume_times >= times_max || header.delay_level < 0 {
        topic = dlq_topic(header.group);
        let letters = broker.topics.get_or_create(&topic, 1, false, now.wall_ms);
        topic_version = topic_version.max(letters.ok_or_else(|| no_topic(&topic))?.1);
        (queue_id, level) = (0, 0);
    } else {
        let queue_count = group.retry_queue_nums.min(retries.write_queue_nums).max(1);
        queue_id = (pick % queue_count as u32) as i32;
        level = match header.delay_level {
            0 => FIRST_LEVEL.saturating_add(record.reconsume_times).max(0),
            level => level,
        };
    }
    if let Some(version) = group_version.max(topic_version) {
        return Ok(Back::Wait { version });
    }

    let [from_topic, origin] =
        properties::get_each(record.properties, [properties::RETRY_TOPIC, properties::ORIGIN_MESSAGE_ID]);
    let from_topic = String::from_utf8_lossy(from_topic.unwrap_or(record.topic));
    let origin = match origin {
        Some(origin) => String::from_utf8_lossy(origin).into_owned(),
        None => {
            let mut id = String::new();
            push_message_id(&mut id, record.store_host, record.log_offset);
            id
        }
    };
    let text = properties::with(
        record.properties,
        &[
            (properties::RETRY_TOPIC, &from_topic),
            (properties::WAIT, "false"),
            (properties::DELAY, &level.to_string()),
            (properties::ORIGIN_MESSAGE_ID, &origin),
        ],
    );
    let mut again = Again::of(&record, &topic, queue_id, &text);
    again.reconsume_times = record.reconsume_times.saturating_add(1);
    again.delay_level = i64::from(level);
    let unit = again.push(broker, append).map_err(|error| Refusal::new(response::SYSTEM_ERROR, error.to_string()))?;
    broker.stats.sent_back(header.group, &from_topic);
    Ok(Back::Pushed { unit })
}

fn missing(offset: i64) -> Refusal {
    Refusal::new(response::SYSTEM_ERROR, format!("look message by offset failed, {offset}"))
}

fn no_topic(topic: &str) -> Refusal {
    Refusal::new(response::SYSTEM_ERROR, format!("topic[{topic}] not exist"))
}
