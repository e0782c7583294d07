//! DELETE_TOPIC_IN_BROKER (215), CLEAN_UNUSED_TOPIC (316): configuration, queues and every group's offsets go.
//!
//! ```text
//! shard   off the table, no new topic of that name ─> asked        sends to it wait, as for a topic that is made
//! meta    queues out of the store ─> topics.json ─> the answer     they make it anew now, where they may
//! ```
//! The store waits for the turn of its file agent, which may take as long as a sync of the disk: not on a shard.

use super::topics::check_not_system;
use super::{After, Answer, Broker, Channel, Refusal, Request, check_topic_name, outcome_frame};
use ringmq_net::protocol::codes::response;
use ringmq_net::protocol::headers::admin::DeleteTopicHeader;
use ringmq_net::protocol::writer::Reply;
use ringmq_storage::consume_queue::LMQ_PREFIX;
use std::sync::{Mutex, PoisonError};

struct Asked {
    topic: String,
    channel: Channel,
    reply: Reply,
    is_oneway: bool,
}

#[derive(Default)]
pub struct Deletions {
    asked: Mutex<Vec<Asked>>,
    /// Done, and told when topics.json says so, too.
    done: Mutex<Vec<(Channel, Vec<u8>)>>,
}

pub fn delete(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let command = request.command;
    let header = DeleteTopicHeader::parse(&command.ext)?;
    let topic = header.topic;
    check_topic_name(topic)?;
    check_not_system(broker, topic)?;
    let asked = Asked {
        topic: topic.to_string(),
        channel: request.channel,
        reply: command.reply(),
        is_oneway: command.is_oneway(),
    };
    broker.topics.remove(topic, request.now.wall_ms, || {
        broker.deletions.asked.lock().unwrap_or_else(PoisonError::into_inner).push(asked);
    });
    broker.offsets.remove_topic(topic);
    Ok(Answer::after(After::Agent))
}

/// CLEAN_UNUSED_TOPIC (316): queues of topics that topics.json does not know go, as those of a deleted topic. Answered at
/// once.
pub fn clean_unused(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let known = broker.topics.names();
    let is_unused =
        |topic: &String| !known.contains(topic) && !broker.topics.is_system(topic) && !topic.starts_with(LMQ_PREFIX);
    for topic in broker.store.topics().into_iter().filter(is_unused) {
        let asked =
            Asked { topic: topic.clone(), channel: request.channel, reply: request.command.reply(), is_oneway: true };
        broker.topics.remove_unknown(&topic, request.now.wall_ms, || {
            broker.deletions.asked.lock().unwrap_or_else(PoisonError::into_inner).push(asked);
        });
    }
    Ok(Answer::empty())
}

impl Deletions {
    /// The meta agent's part, before it writes what has changed.
    pub fn turn(&self, broker: &Broker) {
        let asked = std::mem::take(&mut *self.asked.lock().unwrap_or_else(PoisonError::into_inner));
        for Asked { topic, channel, reply, is_oneway } in asked {
            let deleted = broker.store.delete_topic(&topic);
            // A group may have committed meanwhile.
            broker.offsets.remove_topic(&topic);
            broker.stats.remove_topic(&topic);
            // For shards that took a queue in between. All of them turn when this is durable, and find held pulls of
            // queues that are no more.
            broker.topics.queues_moved();
            match &deleted {
                Ok(()) => tracing::info!(topic, "topic deleted"),
                Err(error) => tracing::error!(topic, %error, "the queues of a deleted topic can not be removed"),
            }
            if !is_oneway {
                let result = deleted.map_err(|error| {
                    let remark = format!("the queues of {topic} cannot be removed: {error}");
                    Refusal::new(response::SYSTEM_ERROR, remark)
                });
                let bytes = outcome_frame(result, reply);
                self.done.lock().unwrap_or_else(PoisonError::into_inner).push((channel, bytes));
            }
        }
    }

    /// Everything that was done is durable.
    pub fn take_answers(&self) -> Vec<(Channel, Vec<u8>)> {
        std::mem::take(&mut *self.done.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
