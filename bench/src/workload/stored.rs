//! What the broker says it stored: the ends of all queues before and after a run. It sees what answers cannot show,
//! a message acknowledged and not stored, or stored twice.

use super::{DRAIN, Target};
use crate::client::Client;
use serde::Serialize;
use std::fmt;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(20);
/// Queues that grow no more for so long are complete.
const SETTLED: Duration = Duration::from_secs(2);

/// The sum of the ends of all queues when the run began.
pub struct Start {
    offsets: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Stored {
    pub sent: u64,
    pub acknowledged: u64,
    /// By the ends of the queues.
    pub stored: u64,
    /// Acknowledged (one-way: sent) and not stored.
    pub lost: u64,
    /// More than was sent: stored twice, or written by somebody else.
    pub surplus: u64,
}

impl Start {
    /// `None` of a server that does not know queues, as the echo server.
    pub fn read(client: &mut Client, target: &Target) -> io::Result<Option<Self>> {
        Ok(offsets(client, target)?.map(|offsets| Self { offsets }))
    }

    /// Waits, up to a limit, until the ends of the queues have reached `due` messages: a broker may build its queues
    /// a little after its answers.
    pub fn compare(&self, target: &Target, sent: u64, acknowledged: u64, due: u64) -> io::Result<Stored> {
        let mut client = Client::connect(target.broker)?;
        let started = Instant::now();
        let mut grown = (self.offsets, started);
        loop {
            let end = offsets(&mut client, target)?
                .ok_or_else(|| io::Error::other("the broker gives the ends of its queues no longer"))?;
            let stored = end.saturating_sub(self.offsets);
            if end > grown.0 {
                grown = (end, Instant::now());
            }
            if stored >= due || grown.1.elapsed() > SETTLED || started.elapsed() > DRAIN {
                let lost = due.saturating_sub(stored);
                return Ok(Stored { sent, acknowledged, stored, lost, surplus: stored.saturating_sub(sent) });
            }
            thread::sleep(POLL);
        }
    }
}

fn offsets(client: &mut Client, target: &Target) -> io::Result<Option<u64>> {
    let mut sum = 0;
    for topic in target.topics() {
        for queue in 0..target.queues {
            match client.max_offset(&topic, queue)? {
                Some(offset) => sum += offset,
                None => return Ok(None),
            }
        }
    }
    Ok(Some(sum))
}

impl Stored {
    pub fn is_good(&self) -> bool {
        self.lost == 0 && self.surplus == 0
    }
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, acknowledged, stored, lost, surplus } = self;
        write!(f, "{sent} sent, {acknowledged} acknowledged, {stored} stored: {lost} lost, {surplus} too many")
    }
}
