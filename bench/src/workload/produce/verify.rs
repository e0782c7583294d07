//! The full check of each answer of a closed or open loop, and of the queue offsets they give.

use crate::client::Client;
use crate::frame;
use crate::workload::Target;
use serde::Serialize;
use std::io;
use std::mem;

/// The full check of each answer.
pub struct Check {
    /// One for each template.
    queues: Vec<QueueOffsets>,
    /// Of a topic.
    queue_count: u32,
    /// Of a request.
    messages: u32,
    answers: u64,
    bad_answers: u64,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Verified {
    pub answers: u64,
    /// Answers without a well-formed message id, or of another queue than asked for.
    pub bad_answers: u64,
    pub repeated: u64,
    /// Offsets between the queue's end at the start and the highest answer that no answer named.
    pub missing: u64,
}

impl Verified {
    pub fn faults(&self) -> u64 {
        self.bad_answers + self.repeated + self.missing
    }
}

impl Check {
    /// Needs a topic nobody else writes to, and requests of `messages` messages.
    pub fn new(client: &mut Client, target: &Target, messages: u32) -> io::Result<Self> {
        let mut queues = Vec::new();
        // In the order of the templates.
        for queue in 0..target.queues {
            for topic in target.topics() {
                let first = client.max_offset(&topic, queue)?.ok_or_else(|| {
                    io::Error::other("the server gives no ends of queues, so nothing can be verified")
                })?;
                queues.push(QueueOffsets { first, ..Default::default() });
            }
        }
        Ok(Self { queues, queue_count: target.queues, messages, answers: 0, bad_answers: 0 })
    }

    /// `index` is that of the template the request was made of.
    pub fn answer(&mut self, frame: &[u8], index: usize) {
        self.answers += 1;
        let topic_count = self.queues.len() / self.queue_count as usize;
        match checked_offset(frame, index / topic_count, self.messages) {
            Some(first) => (first..).take(self.messages as usize).for_each(|offset| self.queues[index].add(offset)),
            None => self.bad_answers += 1,
        }
    }

    pub fn verified(&self) -> Verified {
        Verified {
            answers: self.answers,
            bad_answers: self.bad_answers,
            repeated: self.queues.iter().map(|queue| queue.repeated).sum(),
            missing: self.queues.iter().map(QueueOffsets::missing).sum(),
        }
    }
}

/// The (first) queue offset of an answer in which everything an official client reads is as it should be.
fn checked_offset(frame: &[u8], queue: usize, messages: u32) -> Option<u64> {
    let answer = frame::decode(frame).ok()?;
    let id = answer.ext.get("msgId")?;
    let is_id =
        |id: &str| matches!(id.len(), 32 | 56) && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'A'..=b'F'));
    // A batch gets the ids of its messages with commas between them.
    let is_good = id.split(',').count() == messages as usize && id.split(',').all(is_id);
    if !is_good || !answer.is_response || answer.ext_number("queueId").ok()? != queue as i64 {
        return None;
    }
    u64::try_from(answer.ext_number("queueOffset").ok()?).ok()
}

/// Which offsets of a queue were given to us, from the first free one on.
#[derive(Default)]
struct QueueOffsets {
    first: u64,
    seen: Vec<bool>,
    /// Given twice, or below `first` and so given to somebody before.
    repeated: u64,
}

impl QueueOffsets {
    fn add(&mut self, offset: u64) {
        let Some(index) = offset.checked_sub(self.first) else {
            self.repeated += 1;
            return;
        };
        let index = index as usize;
        if index >= self.seen.len() {
            self.seen.resize(index + 1, false);
        }
        self.repeated += u64::from(mem::replace(&mut self.seen[index], true));
    }

    fn missing(&self) -> u64 {
        self.seen.iter().filter(|seen| !**seen).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_and_repetitions_of_queue_offsets_are_counted() {
        // first, offsets, repeated, missing
        for (first, offsets, repeated, missing) in [
            (0, &[0, 1, 2][..], 0, 0),
            (5, &[7, 5, 6][..], 0, 0),
            (5, &[5, 5, 7][..], 1, 1),
            (5, &[4, 5][..], 1, 0),
            (9, &[][..], 0, 0),
        ] {
            let mut queue = QueueOffsets { first, ..Default::default() };
            offsets.iter().for_each(|offset| queue.add(*offset));
            assert_eq!((queue.repeated, queue.missing()), (repeated, missing), "{first} {offsets:?}");
        }
    }
}
