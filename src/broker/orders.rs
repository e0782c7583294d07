//! Queue locks of orderly consumers: LOCK_BATCH_MQ (41), UNLOCK_BATCH_MQ (42).
//!
//! ```text
//! group → queue → holder, last renewed        held for 60 s after the last renewal, by the monotonic clock
//! ```
//! A client renews every 20 s and stops consuming 30 s after its last renewal, so a queue whose holder died goes to
//! the next one without two consuming at once. Lost at the end of the process: the first to ask then gets the lock.
//! Source: RebalanceLockManager.java, AdminBrokerProcessor.java (41, 42).

use super::{Answer, Broker, Refusal, Request, check_group_name};
use ringmq_net::protocol::body::lock::{LockBatchRequestBody, LockBatchResponseBody};
use ringmq_net::protocol::body::queue::MessageQueue;
use ringmq_net::protocol::codes::response;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `rocketmq.broker.rebalance.lockMaxLiveTime`.
const EXPIRY_NS: u64 = 60_000_000_000;
/// Of one request: a consumer locks the queues of one broker.
const QUEUES_MAX: usize = 65_536;
/// Of all groups. Who is at the limit gets no further lock, after what has expired is gone.
const LOCKS_MAX: usize = 1_000_000;

struct Lock {
    client: Box<str>,
    renewed_ns: u64,
}

impl Lock {
    fn is_expired(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.renewed_ns) > EXPIRY_NS
    }
}

#[derive(Default)]
struct State {
    groups: HashMap<String, HashMap<MessageQueue, Lock>>,
    count: usize,
}

impl State {
    fn purge(&mut self, now_ns: u64) {
        self.groups.retain(|_, queues| {
            queues.retain(|_, lock| !lock.is_expired(now_ns));
            !queues.is_empty()
        });
        self.count = self.groups.values().map(HashMap::len).sum();
    }
}

#[derive(Default)]
pub struct Orders {
    state: Mutex<State>,
}

impl Orders {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those of `queues` that `client` holds now.
    fn lock(&self, group: &str, client: &str, queues: Vec<MessageQueue>, now_ns: u64) -> Vec<MessageQueue> {
        let mut state = self.state();
        if state.count + queues.len() > LOCKS_MAX {
            state.purge(now_ns);
        }
        let room = LOCKS_MAX.saturating_sub(state.count);
        let state = &mut *state;
        let held = state.groups.entry(group.to_string()).or_default();
        let mut added = 0;
        let mut locked = Vec::with_capacity(queues.len());
        for queue in queues {
            match held.get_mut(&queue) {
                Some(lock) if *lock.client == *client => lock.renewed_ns = now_ns,
                Some(lock) if lock.is_expired(now_ns) => {
                    tracing::info!(group, from = %lock.client, to = client, ?queue, "an expired queue lock changes hands");
                    *lock = Lock { client: client.into(), renewed_ns: now_ns };
                }
                Some(_) => continue,
                None if added < room => {
                    held.insert(queue.clone(), Lock { client: client.into(), renewed_ns: now_ns });
                    added += 1;
                }
                None => continue,
            }
            locked.push(queue);
        }
        state.count += added;
        locked
    }

    /// Gives back what `client` holds; the locks of others stay.
    fn unlock(&self, group: &str, client: &str, queues: &[MessageQueue]) {
        let mut state = self.state();
        let state = &mut *state;
        let Some(held) = state.groups.get_mut(group) else { return };
        for queue in queues {
            if held.get(queue).is_some_and(|lock| *lock.client == *client) {
                held.remove(queue);
                state.count -= 1;
            }
        }
        if held.is_empty() {
            state.groups.remove(group);
        }
    }
}

fn parse(request: &Request<'_, '_>) -> Result<LockBatchRequestBody, Refusal> {
    let body = LockBatchRequestBody::from_json(request.command.body)
        .map_err(|error| Refusal::invalid(format!("the body is no set of queues to lock: {error}")))?;
    for (name, value) in [("consumerGroup", &body.consumer_group), ("clientId", &body.client_id)] {
        if value.is_empty() {
            return Err(Refusal::invalid(format!("{name} is missing in the body")));
        }
    }
    check_group_name(&body.consumer_group)?;
    if body.mq_set.len() > QUEUES_MAX {
        return Err(Refusal::new(
            response::INVALID_PARAMETER,
            format!("{} queues in one request, limit {QUEUES_MAX}", body.mq_set.len()),
        ));
    }
    if let Some(queue) = body.mq_set.iter().find(|queue| queue.topic.is_empty() || queue.queue_id < 0) {
        return Err(Refusal::invalid(format!(
            "mqSet has a queue without a topic or with a negative id: queueId {}",
            queue.queue_id
        )));
    }
    Ok(body)
}

pub fn lock(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let LockBatchRequestBody { client_id, consumer_group, mq_set, .. } = parse(request)?;
    let lock_ok_mq_set = broker.orders.lock(&consumer_group, &client_id, mq_set, request.now.mono_ns);
    Ok(Answer::body(LockBatchResponseBody { lock_ok_mq_set }.to_json()))
}

pub fn unlock(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let body = parse(request)?;
    broker.orders.unlock(&body.consumer_group, &body.client_id, &body.mq_set);
    Ok(Answer::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queues(ids: &[i32]) -> Vec<MessageQueue> {
        let queue = |id: &i32| MessageQueue { broker_name: "b".into(), queue_id: *id, topic: "T".into() };
        ids.iter().map(queue).collect()
    }

    #[test]
    fn a_lock_is_one_clients_until_it_gives_it_back_or_falls_silent() {
        let orders = Orders::default();
        const S: u64 = 1_000_000_000;
        // group, client, asked, at, got
        for (group, client, asked, at_s, got) in [
            ("g", "a", &[0, 1][..], 0, &[0, 1][..]),
            ("g", "b", &[0, 1, 2], 1, &[2]),
            ("h", "b", &[0], 1, &[0]),
            ("g", "a", &[1], 20, &[1]),
            ("g", "b", &[0, 1], 60, &[]),
            // Renewed at 0 and at 20.
            ("g", "b", &[0, 1], 61, &[0]),
            ("g", "a", &[0], 62, &[]),
            ("g", "a", &[1], 200, &[1]),
        ] {
            assert_eq!(orders.lock(group, client, queues(asked), at_s * S), queues(got), "{client} {asked:?} {at_s}");
        }
        orders.unlock("g", "b", &queues(&[0, 1, 2, 7]));
        assert_eq!(orders.lock("g", "a", queues(&[0, 1, 2]), 201 * S), queues(&[0, 1, 2]));
        orders.unlock("nobody", "a", &queues(&[0]));
        orders.unlock("g", "a", &queues(&[0, 1, 2]));
        orders.unlock("h", "b", &queues(&[0]));
        let state = orders.state();
        assert_eq!((state.count, state.groups.len()), (0, 0));
    }
}
