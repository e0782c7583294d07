//! The background loops, each on a thread of its own.
//!
//! ```text
//! flush    the log to the disk                   files    next log file, queue files, checkpoint,
//! commit   buffers of the pool to the log                 deletion of old files
//! meta     topics.json, subscriptionGroup.json,  register one for each name server
//!          changes of the configuration,
//!          consumerOffset.json, counters,
//!          consumerFilter.json
//! delay    messages that are due, delayOffset.json
//! transactions   half messages that nobody ended
//! ```
//! None of them is woken for a message, but flush with SYNC_FLUSH. They end at `stop`, after their last work.

use crate::broker::Broker;
use crate::broker::registration;
use crate::broker::schedule::Deliverer;
use crate::broker::transaction::Checker;
use crate::broker::unconsumed;
use crate::shard::Peers;
use crate::{mono_ns, wall_ms};
use ringmq_net::reactor::Now;
use ringmq_storage::retention::Kept;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

const SAMPLE_NS: u64 = 1_000_000_000;
const FILTERS_NS: u64 = 10_000_000_000;
/// Between two attempts to write metadata that the disk refused.
const RETRY_NS: u64 = 1_000_000_000;

pub struct Agents {
    broker: Arc<Broker>,
    stopping: Arc<AtomicBool>,
    pause: Arc<Pause>,
    registrations: Vec<JoinHandle<()>>,
    others: Vec<JoinHandle<()>>,
}

/// The sleep of an agent that nobody wakes but the end.
#[derive(Default)]
struct Pause {
    is_ended: Mutex<bool>,
    condvar: Condvar,
}

impl Pause {
    /// Whether the end has come.
    fn wait(&self, ms: u64) -> bool {
        let ended = self.is_ended.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.condvar.wait_timeout_while(ended, Duration::from_millis(ms), |ended| !*ended);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn end(&self) {
        *self.is_ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.condvar.notify_all();
    }
}

/// Between a flush and the next append. To sleep and be woken takes as long as a third of a flush: where the last lull
/// was short, as with one sender that waits for each answer, this one is waited for awake.
#[derive(Default)]
struct Lull {
    began_ns: u64,
    was_short: bool,
}

/// Longer than a client on this machine or in this rack takes from an answer to its next send.
const LULL_SHORT_NS: u64 = 150_000;

impl Lull {
    /// Begins one, and says whether it has ended already.
    fn is_over_soon(&mut self, is_over: &dyn Fn() -> bool) -> bool {
        self.began_ns = mono_ns();
        while self.was_short {
            if is_over() {
                return true;
            }
            // Who sends may need this core.
            thread::yield_now();
            self.was_short = mono_ns() - self.began_ns < LULL_SHORT_NS;
        }
        false
    }

    /// Woken from a sleep.
    fn end(&mut self) {
        self.was_short = mono_ns() - self.began_ns < LULL_SHORT_NS;
    }
}

fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    // 256 KiB would do; the default 8 MiB is only address space.
    thread::Builder::new().name(name).spawn(body)
}

impl Agents {
    pub fn start(broker: &Arc<Broker>, peers: &Arc<Peers>) -> io::Result<Agents> {
        if broker.config.keep_unconsumed {
            let weak = Arc::downgrade(broker);
            broker.store.set_keeper(Box::new(move |_| match weak.upgrade() {
                Some(broker) => unconsumed::kept(&broker),
                None => Some(Kept { from: 0, who: "the broker is going".to_string() }),
            }));
        }
        let stopping = Arc::new(AtomicBool::new(false));
        let pause = Arc::new(Pause::default());
        let mut others = Vec::new();
        {
            let (broker, stopping, peers) = (Arc::clone(broker), Arc::clone(&stopping), Arc::clone(peers));
            others.push(spawn("flush".to_string(), move || {
                let store = &broker.store;
                let mut lull = Lull::default();
                while !stopping.load(Ordering::Acquire) {
                    let wait_ms = store.flush_turn(wall_ms());
                    if store.is_sync() {
                        peers.visible_moved(&store.take_arrived());
                    }
                    if wait_ms > 0 && !(store.is_sync() && lull.is_over_soon(&|| store.has_unflushed())) {
                        store.wait_flush(wait_ms);
                        lull.end();
                    }
                }
            })?);
        }
        if broker.store.uses_pool() {
            let (broker, stopping, peers) = (Arc::clone(broker), Arc::clone(&stopping), Arc::clone(peers));
            others.push(spawn("commit".to_string(), move || {
                let store = &broker.store;
                while !stopping.load(Ordering::Acquire) {
                    let wait_ms = store.commit_turn(wall_ms());
                    peers.visible_moved(&store.take_arrived());
                    store.wait_commit(wait_ms);
                }
            })?);
        }
        {
            let (broker, stopping) = (Arc::clone(broker), Arc::clone(&stopping));
            others.push(spawn("files".to_string(), move || {
                while !stopping.load(Ordering::Acquire) {
                    let wait_ms = broker.store.files_turn(wall_ms());
                    broker.store.wait_files(wait_ms);
                }
            })?);
        }
        {
            let (broker, stopping, peers) = (Arc::clone(broker), Arc::clone(&stopping), Arc::clone(peers));
            others.push(spawn("meta".to_string(), move || meta(&broker, &peers, &stopping))?);
        }
        {
            let (broker, pause, peers) = (Arc::clone(broker), Arc::clone(&pause), Arc::clone(peers));
            others.push(spawn("delay".to_string(), move || {
                let mut deliverer = Deliverer::default();
                let is_visible = broker.store.is_visible_at_once();
                loop {
                    let wait_ms = deliverer.turn(&broker, Now::read(), &mut |queue| {
                        // Elsewhere the agent that makes entries visible wakes the pulls.
                        if is_visible {
                            peers.arrived(queue);
                        }
                    });
                    if pause.wait(wait_ms) {
                        return;
                    }
                }
            })?);
        }
        {
            let (broker, pause, peers) = (Arc::clone(broker), Arc::clone(&pause), Arc::clone(peers));
            others.push(spawn("transactions".to_string(), move || {
                let mut checker = Checker::default();
                loop {
                    let wait_ms = checker.turn(&broker, Now::read(), &mut |push| peers.push(push));
                    if pause.wait(wait_ms) {
                        return;
                    }
                }
            })?);
        }
        let mut registrations = Vec::new();
        for index in 0..broker.registrations.count() {
            let (broker, peers) = (Arc::clone(broker), Arc::clone(peers));
            registrations.push(spawn(format!("register-{index}"), move || {
                registration::run(&broker, index, &|| peers.meta_moved());
            })?);
        }
        Ok(Agents { broker: Arc::clone(broker), stopping, pause, registrations, others })
    }

    /// The name servers stop sending clients here.
    pub fn unregister(&mut self) {
        self.broker.registrations.stop();
        for thread in self.registrations.drain(..) {
            let _ = thread.join();
        }
    }

    /// After the shards have ended. Metadata is written once more; the store is closed by its owner.
    pub fn stop(mut self) {
        self.unregister();
        self.stopping.store(true, Ordering::Release);
        self.pause.end();
        self.broker.store.wake_agents();
        self.broker.dirty.wake();
        for thread in self.others {
            let _ = thread.join();
        }
    }
}

fn meta(broker: &Broker, peers: &Peers, stopping: &AtomicBool) {
    let offsets_interval_ns = u64::from(broker.config.consumer_offset_flush_interval_ms) * 1_000_000;
    let mut sample_ns = mono_ns();
    let mut offsets_ns = mono_ns() + offsets_interval_ns;
    let mut filters_ns = mono_ns() + FILTERS_NS;
    let mut retry_ns = 0;
    loop {
        let is_last = stopping.load(Ordering::Acquire);
        let now_ns = mono_ns();
        broker.live.turn(broker, wall_ms(), &mut |channel, bytes| peers.answer(channel, bytes));
        let changed = broker.dirty.changed();
        if changed > broker.dirty.durable() && (now_ns >= retry_ns || is_last) {
            broker.deletions.turn(broker);
            let offsets = if broker.offsets.is_urgent() { broker.offsets.flush() } else { Ok(()) };
            match broker.topics.flush().and_then(|()| broker.groups.flush()).and(offsets) {
                Ok(()) => {
                    broker.dirty.set_durable(changed);
                    broker.registrations.wake();
                    peers.meta_moved();
                    for (channel, bytes) in broker.deletions.take_answers() {
                        peers.answer(channel, bytes);
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "metadata not written, trying again");
                    broker.dirty.set_failure(error.to_string());
                    retry_ns = now_ns + RETRY_NS;
                }
            }
        }
        if now_ns >= offsets_ns || is_last {
            offsets_ns = now_ns + offsets_interval_ns;
            if let Err(error) = broker.offsets.flush() {
                tracing::error!(%error, "offsets not written, trying again");
            }
        }
        if now_ns >= filters_ns || is_last {
            filters_ns = now_ns + FILTERS_NS;
            if let Err(error) = broker.filters.flush(wall_ms()) {
                tracing::error!(%error, "filters not written, trying again");
            }
        }
        if now_ns >= sample_ns {
            sample_ns = now_ns + SAMPLE_NS;
            broker.stats.sample(wall_ms());
        }
        if is_last {
            return;
        }
        let mut until_ns = sample_ns.min(offsets_ns).min(filters_ns);
        if changed > broker.dirty.durable() {
            until_ns = until_ns.min(retry_ns);
        }
        broker.dirty.wait(Duration::from_nanos(until_ns.saturating_sub(mono_ns())));
    }
}
