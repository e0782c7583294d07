//! What of the configuration changes while the broker runs: UPDATE_BROKER_CONFIG (25), GET_BROKER_CONFIG (26).
//!
//! ```text
//! request ─ every line checked, else nothing happens ─> asked ─ meta agent: file replaced, durable ─> in force ─> answer
//!                                                               `brokerPermission`: registered before the answer ┘
//! ```
//! What is set is written below a mark at the end of the file that the broker was started with, or into a file of ours in
//! the store's `config` folder: it holds after a restart. A file that can not be written leaves everything as it was.
//! Source: AdminBrokerProcessor.updateBrokerConfig, getBrokerConfig; black list as in 5.3.3.

use super::{After, Answer, Broker, Channel, Refusal, Request, outcome_frame};
use crate::config::{BrokerConfig, UpdateError, properties_text, with_updates};
use crate::text_file;
use ringmq_net::protocol::codes::response;
use ringmq_net::protocol::writer::Reply;
use ringmq_storage::read::ReadLimits;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Requests that wait for the agent.
const ASKED_COUNT_MAX: usize = 64;
/// An answer waits no longer for name servers.
const REGISTERED_MS_MAX: u64 = 1500;

pub struct Live {
    config: RwLock<Arc<BrokerConfig>>,
    copies: Copies,
    memory_bytes: u64,
    asked: Mutex<VecDeque<Asked>>,
    /// In force, but name servers do not know yet.
    changed: Mutex<Vec<Changed>>,
}

/// The answer to a change that name servers tell clients.
struct Changed {
    channel: Channel,
    answer: Vec<u8>,
    version: u64,
    since_ms: u64,
}

/// Of what shards look at for each send and pull.
#[derive(Default)]
struct Copies {
    permission: AtomicU8,
    sync_flush_timeout_ms: AtomicU32,
    trace_on: AtomicBool,
    transaction_reject: AtomicBool,
    property_filter_enable: AtomicBool,
    filter_retry_enable: AtomicBool,
    slave_read_enable: AtomicBool,
    pull_bytes_in_memory_max: AtomicU32,
    pull_count_in_memory_max: AtomicU32,
    pull_bytes_on_disk_max: AtomicU32,
    pull_count_on_disk_max: AtomicU32,
    in_memory_bytes: AtomicU64,
}

impl Copies {
    fn set(&self, config: &BrokerConfig, memory_bytes: u64) {
        self.permission.store(config.broker_permission, Ordering::Relaxed);
        self.sync_flush_timeout_ms.store(config.sync_flush_timeout_ms, Ordering::Relaxed);
        self.trace_on.store(config.trace_on, Ordering::Relaxed);
        self.transaction_reject.store(config.transaction_reject, Ordering::Relaxed);
        self.property_filter_enable.store(config.property_filter_enable, Ordering::Relaxed);
        self.filter_retry_enable.store(config.filter_retry_enable, Ordering::Relaxed);
        self.slave_read_enable.store(config.slave_read_enable, Ordering::Relaxed);
        self.pull_bytes_in_memory_max.store(config.pull_bytes_in_memory_max, Ordering::Relaxed);
        self.pull_count_in_memory_max.store(config.pull_count_in_memory_max, Ordering::Relaxed);
        self.pull_bytes_on_disk_max.store(config.pull_bytes_on_disk_max, Ordering::Relaxed);
        self.pull_count_on_disk_max.store(config.pull_count_on_disk_max, Ordering::Relaxed);
        let in_memory_bytes = memory_bytes / 100 * u64::from(config.in_memory_ratio_max_percent);
        self.in_memory_bytes.store(in_memory_bytes, Ordering::Relaxed);
    }
}

struct Asked {
    channel: Channel,
    reply: Reply,
    is_oneway: bool,
    text: Box<[u8]>,
}

impl Live {
    pub fn new(config: &BrokerConfig, memory_bytes: u64) -> Live {
        let copies = Copies::default();
        copies.set(config, memory_bytes);
        Live {
            config: RwLock::new(Arc::new(config.clone())),
            copies,
            memory_bytes,
            asked: Mutex::default(),
            changed: Mutex::default(),
        }
    }

    /// As it is in force now.
    pub fn config(&self) -> Arc<BrokerConfig> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// `brokerPermission`: bit 4 read, bit 2 write.
    pub fn permission(&self) -> u8 {
        self.copies.permission.load(Ordering::Relaxed)
    }

    /// `syncFlushTimeout`
    pub fn sync_flush_timeout_ns(&self) -> u64 {
        u64::from(self.copies.sync_flush_timeout_ms.load(Ordering::Relaxed)) * 1_000_000
    }

    /// `traceOn`
    pub fn trace_on(&self) -> bool {
        self.copies.trace_on.load(Ordering::Relaxed)
    }

    /// `rejectTransactionMessage`
    pub fn transaction_reject(&self) -> bool {
        self.copies.transaction_reject.load(Ordering::Relaxed)
    }

    /// `enablePropertyFilter`
    pub fn property_filter_enable(&self) -> bool {
        self.copies.property_filter_enable.load(Ordering::Relaxed)
    }

    /// `filterSupportRetry`
    pub fn filter_retry_enable(&self) -> bool {
        self.copies.filter_retry_enable.load(Ordering::Relaxed)
    }

    /// `slaveReadEnable`
    pub fn slave_read_enable(&self) -> bool {
        self.copies.slave_read_enable.load(Ordering::Relaxed)
    }

    /// `maxTransfer…OnMessageIn…`, `accessMessageInMemoryMaxRatio`
    pub fn read_limits(&self) -> ReadLimits {
        let load = |copy: &AtomicU32| copy.load(Ordering::Relaxed) as usize;
        ReadLimits {
            memory_bytes_max: load(&self.copies.pull_bytes_in_memory_max),
            memory_count_max: load(&self.copies.pull_count_in_memory_max),
            disk_bytes_max: load(&self.copies.pull_bytes_on_disk_max),
            disk_count_max: load(&self.copies.pull_count_on_disk_max),
            in_memory_bytes: self.copies.in_memory_bytes.load(Ordering::Relaxed),
        }
    }

    /// The meta agent's part. `answer` sends a frame to a connection.
    pub fn turn(&self, broker: &Broker, now_ms: u64, answer: &mut dyn FnMut(Channel, Vec<u8>)) {
        let next = || self.asked.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        while let Some(asked) = next() {
            let result = self.change(broker, &asked.text, now_ms);
            if asked.is_oneway {
                continue;
            }
            let version = *result.as_ref().unwrap_or(&None);
            let frame = outcome_frame(result.map(|_| ()), asked.reply);
            match version {
                None => answer(asked.channel, frame),
                Some(version) => self.changed.lock().unwrap_or_else(PoisonError::into_inner).push(Changed {
                    channel: asked.channel,
                    answer: frame,
                    version,
                    since_ms: now_ms,
                }),
            }
        }
        let is_told = |changed: &Changed| {
            broker.dirty.durable() >= changed.version && broker.registrations.knows(changed.version)
                || now_ms.saturating_sub(changed.since_ms) >= REGISTERED_MS_MAX
        };
        let mut changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        for told in changed.extract_if(.., |changed| is_told(changed)) {
            answer(told.channel, told.answer);
        }
    }

    /// Whether an answer waits for name servers: the meta agent is to be woken when one knows more.
    pub fn is_registration_awaited(&self) -> bool {
        !self.changed.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Returns the version of the topics that name servers are to know, if there is one.
    fn change(&self, broker: &Broker, text: &[u8], now_ms: u64) -> Result<Option<u64>, Refusal> {
        let before = self.config();
        // Once more: another change may have come first.
        let (config, set) = before.updated(text).map_err(refusal)?;
        let path = config.update_path();
        keep(&path, &set).map_err(|error| {
            let remark = format!("cannot write {}: {error}; nothing was changed", path.display());
            Refusal::new(response::SYSTEM_ERROR, remark)
        })?;
        for (key, value) in &set {
            tracing::info!(key, value, "configuration changed");
        }
        let contradiction =
            config.ratio_contradiction().filter(|line| before.ratio_contradiction().as_ref() != Some(line));
        if let Some(line) = contradiction {
            tracing::warn!("{line}");
        }
        broker.store.set_keys(config.flush_keys());
        broker.store.set_retention(config.retention_keys());
        broker.topics.set_auto_create(&config, now_ms);
        broker.groups.set_auto_create(&config);
        broker.filters.set_clean_ms(config.filter_clean_ms);
        let is_moved = self.permission() != config.broker_permission;
        self.copies.set(&config, self.memory_bytes);
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
        // Name servers tell clients.
        Ok(is_moved.then(|| broker.topics.move_version(now_ms)))
    }
}

fn keep(path: &Path, set: &[(String, String)]) -> std::io::Result<()> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    text_file::replace(path, &with_updates(&text, set))
}

fn refusal(error: UpdateError) -> Refusal {
    let code = if error == UpdateError::BlackList { response::NO_PERMISSION } else { response::SYSTEM_ERROR };
    Refusal::new(code, error.to_string())
}

/// UPDATE_BROKER_CONFIG.
pub fn update(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let command = request.command;
    if command.body.trim_ascii().is_empty() {
        return Err(Refusal::new(response::SYSTEM_ERROR, "the body is empty, lines of key=value are needed"));
    }
    let live = &broker.live;
    live.config().updated(command.body).map_err(refusal)?;
    let mut asked = live.asked.lock().unwrap_or_else(PoisonError::into_inner);
    if asked.len() >= ASKED_COUNT_MAX {
        let remark = format!("{ASKED_COUNT_MAX} changes of the configuration wait for the disk, the limit");
        return Err(Refusal::new(response::SYSTEM_BUSY, remark));
    }
    asked.push_back(Asked {
        channel: request.channel,
        reply: command.reply(),
        is_oneway: command.is_oneway(),
        text: command.body.into(),
    });
    drop(asked);
    broker.dirty.wake();
    Ok(Answer::after(After::Agent))
}

/// GET_BROKER_CONFIG.
pub fn show(broker: &Broker) -> Result<Answer, Refusal> {
    let version = String::from_utf8_lossy(&broker.topics.data_version().to_json()).into_owned();
    let body = properties_text(&broker.live.config().effective());
    Ok(Answer { ext: vec![("version", version)], body, ..Answer::default() })
}
