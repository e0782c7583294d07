//! Every promise after every crash: a script of sends, turns, deletions and stops, stopped at calls to the disk and at
//! stores into a mapping.
//!
//! ```text
//! life 1   script of the seed, dies at call n      → kill, or power loss with some of what was not synced
//! start    recovery; it may die at its call m, too → another crash → recovery
//! check    the log is a prefix of what was sent, with all that the mode promises; entry and record agree; no gap;
//!          the index finds what the log holds; a second recovery changes nothing; a power loss right after neither
//! life 2   goes on, crashes again                  → the same checks: nothing that was cut comes back
//! ```
//! Beside death: a full disk or a failed sync in the middle of life 1, and a bit that has turned before a start.
//! What goes wrong says its mode, seed and call; `ringmq-tools simulate --mode M --seed S --at N` runs that again.

use super::Rng;
use super::sim_disk::{SimDisk, Tear, Trouble};
use crate::append::{AppendBatch, Marked};
use crate::consume_queue::Entry;
use crate::flush::{FlushKeys, Medium, PoolSize, Promise};
use crate::index::{IndexConfig, KeyQuery};
use crate::record::decode::{Checked, check};
use crate::record::layout::sys_flag;
use crate::record::properties::{self, DELAYS_MS};
use crate::record::{NewRecord, RecordLimits};
use crate::retention::RetentionKeys;
use crate::store::{Store, StoreConfig};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

const FILE_BYTES: u64 = 16 << 10;
const BODY_BYTES_MAX: usize = 4096;
const TOPICS: [&str; 3] = ["A", "B", "%RETRY%group"];
const QUEUE_COUNT: u64 = 2;
const STEP_COUNT: u64 = 60;
const STEP_COUNT_OF_LIFE_2: u64 = 8;
const BEGUN_MS: u64 = 1_700_000_000_000;
const HOUR_MS: u64 = 3_600_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Async,
    Pool,
    Sync,
    /// The two with the mapped medium.
    AsyncMapped,
    SyncMapped,
}

impl Mode {
    pub const ALL: [Mode; 5] = [Mode::Async, Mode::Pool, Mode::Sync, Mode::AsyncMapped, Mode::SyncMapped];

    pub fn name(self) -> &'static str {
        match self {
            Mode::Async => "async",
            Mode::Pool => "pool",
            Mode::Sync => "sync",
            Mode::AsyncMapped => "async-mapped",
            Mode::SyncMapped => "sync-mapped",
        }
    }

    fn medium(self) -> Medium {
        match self {
            Mode::AsyncMapped | Mode::SyncMapped => Medium::Mapped,
            Mode::Async | Mode::Pool | Mode::Sync => Medium::Write,
        }
    }

    fn promise(self, seed: u64) -> Promise {
        match self {
            Mode::Async | Mode::AsyncMapped => Promise::Async,
            Mode::Pool => Promise::Pool(PoolSize { buffer_count: 2, fast_fail: seed.is_multiple_of(2) }),
            Mode::Sync | Mode::SyncMapped => Promise::Sync,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crash {
    Kill,
    PowerLoss(Tear),
}

impl Crash {
    fn of(self, disk: &SimDisk, seed: u64) -> SimDisk {
        match self {
            Crash::Kill => disk.after_kill(seed),
            Crash::PowerLoss(tear) => disk.after_power_loss(tear),
        }
    }
}

/// How much is looked at, at each point where the first life ends.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Every so many calls of the first life.
    pub stride: u64,
    /// Every so many of those points recovery dies, too, at every so many of its calls.
    pub recovery_points: u64,
    pub recovery_stride: u64,
}

/// What has been looked at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Calls to the disk at which a life was ended or troubled.
    pub points: u64,
    /// Stores opened after a crash and checked.
    pub starts: u64,
    /// Starts that died, too.
    pub starts_ended: u64,
    pub records: u64,
}

/// Says how to run a failure again.
struct Told {
    mode: Mode,
    seed: u64,
    at: u64,
    what: String,
}

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Told { mode, seed, at, what } = self;
            eprintln!("{what}: ringmq-tools simulate --mode {} --seed {seed} --at {at}", mode.name());
        }
    }
}

/// What a recovery said, if what it left is wrong.
struct Said<'a>(&'a str);

impl Drop for Said<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the recovery said\n{}", self.0);
        }
    }
}

/// A message as it was given to the store.
#[derive(Clone, Debug)]
struct Sent {
    topic: &'static str,
    queue_id: i32,
    flags: i32,
    body: Vec<u8>,
    properties: Vec<u8>,
    keys: Vec<String>,
    queue_offset: u64,
    log_offset: u64,
    log_end: u64,
}

impl Sent {
    fn is_queued(&self) -> bool {
        sys_flag::is_queued(self.flags)
    }
}

/// What there should be.
#[derive(Clone, Default)]
struct Model {
    /// In log order, from the store's first on.
    sent: Vec<Sent>,
    /// Not answered when the process died: any first part of it may be there.
    in_flight: Vec<Sent>,
    number: u64,
    deleted: BTreeMap<&'static str, u64>,
    /// It died while it deleted this topic, with the log's end there.
    deleting: Option<(&'static str, u64)>,
    /// What the store said of itself.
    committed: u64,
    flushed: u64,
    /// The most that consumers have seen of each queue.
    seen: BTreeMap<(&'static str, i32), u64>,
    /// Retention may have taken records below.
    log_min: u64,
    is_power_lost: bool,
    /// A sync failed. Retention goes on without the queues then: one whose records have all gone may lose its place.
    is_sync_failed: bool,
    /// More than one call in a row finds the disk full: what a failed write has left can not be taken back at once.
    is_full_twice: bool,
}

impl Model {
    /// The records of a queue, expired ones included.
    fn of_queue(&self, topic: &str, queue_id: i32) -> impl DoubleEndedIterator<Item = &Sent> {
        let from = self.deleted.get(topic).copied().unwrap_or(0);
        let is_of = move |sent: &&Sent| {
            sent.topic == topic && sent.queue_id == queue_id && sent.is_queued() && sent.log_offset >= from
        };
        self.sent.iter().filter(is_of)
    }

    fn next(&self, topic: &str, queue_id: i32) -> u64 {
        self.of_queue(topic, queue_id).next_back().map_or(0, |sent| sent.queue_offset + 1)
    }

    fn delete(&mut self, topic: &'static str, log_end: u64) {
        self.deleted.insert(topic, log_end);
        self.seen.retain(|(seen, _), _| *seen != topic);
    }
}

fn queues() -> impl Iterator<Item = (&'static str, i32)> {
    TOPICS.into_iter().flat_map(|topic| (0..QUEUE_COUNT as i32).map(move |queue_id| (topic, queue_id)))
}

/// A message of the script.
fn message(number: u64, rng: &mut Rng) -> Sent {
    let bytes = match rng.below(10) {
        0 => 1 + rng.below(3000),
        1 => 1 + rng.below(20),
        _ => 20 + rng.below(500),
    };
    let mut body = format!("{number}:").into_bytes();
    while body.len() < bytes as usize {
        body.push(rng.next() as u8);
    }
    let (uniq_key, key) = (format!("U{number}"), format!("K{}", number % 5));
    let (pairs, keys): (Vec<(&str, &str)>, Vec<String>) = match rng.below(4) {
        0 => (vec![], vec![]),
        1 => (vec![("TAGS", "tag")], vec![]),
        2 => (vec![("UNIQ_KEY", &*uniq_key)], vec![uniq_key.clone()]),
        _ => (vec![("KEYS", &*key), ("UNIQ_KEY", &*uniq_key), ("TAGS", "t2")], vec![uniq_key.clone(), key.clone()]),
    };
    let properties = properties::with(b"", &pairs);
    let flags = if rng.one_in(12) { sys_flag::PREPARED } else { 0 };
    Sent {
        topic: TOPICS[rng.below(TOPICS.len() as u64) as usize],
        queue_id: rng.below(QUEUE_COUNT) as i32,
        flags,
        body,
        properties,
        keys,
        queue_offset: 0,
        log_offset: 0,
        log_end: 0,
    }
}

fn record<'a>(sent: &Sent, body: &'a [u8], properties: &'a [&'a [u8]]) -> NewRecord<'a> {
    NewRecord {
        topic: sent.topic,
        queue_id: sent.queue_id,
        flag: 7,
        sys_flag: sent.flags,
        born_timestamp: 5,
        born_host: ([127, 0, 0, 1], 1).into(),
        store_host: ([127, 0, 0, 1], 2).into(),
        reconsume_times: 0,
        prepared_offset: 0,
        body,
        properties,
    }
}

/// The body of a client batch.
fn client_batch(messages: &[Sent]) -> Vec<u8> {
    let mut out = Vec::new();
    for message in messages {
        let bytes = 22 + message.body.len() + message.properties.len();
        for word in [bytes as u32, 0, 0, 7, message.body.len() as u32] {
            out.extend_from_slice(&word.to_be_bytes());
        }
        out.extend_from_slice(&message.body);
        out.extend_from_slice(&(message.properties.len() as u16).to_be_bytes());
        out.extend_from_slice(&message.properties);
    }
    out
}

fn limits() -> RecordLimits {
    RecordLimits::of_body(BODY_BYTES_MAX)
}

/// Sends a few messages by one batch and notes what became of them.
fn append(store: &Store, disk: &SimDisk, model: &mut Model, rng: &mut Rng, now_ms: u64) {
    let mut batch = AppendBatch::default();
    let mut units: Vec<Vec<Sent>> = Vec::new();
    for _ in 0..1 + rng.below(4) {
        let count = if rng.one_in(4) { 2 + rng.below(2) } else { 1 };
        let mut unit: Vec<Sent> = Vec::new();
        for _ in 0..count {
            let mut sent = message(model.number, rng);
            model.number += 1;
            if let Some(first) = unit.first() {
                (sent.topic, sent.queue_id, sent.flags) = (first.topic, first.queue_id, first.flags);
                sent.body.truncate(600);
            } else if count > 1 {
                (sent.flags, _) = (0, sent.body.truncate(600));
            }
            unit.push(sent);
        }
        let first = &unit[0];
        let queue = store.queue_or_create(first.topic, first.queue_id);
        if count == 1 {
            let pieces: &[&[u8]] = &[&first.properties];
            let tags_code = properties::tags_code(first.topic, &first.properties, now_ms as i64, &DELAYS_MS);
            batch.push(&record(first, &first.body, pieces), tags_code, &queue, limits()).expect("within the limits");
        } else {
            let body = client_batch(&unit);
            let code = |sent: &Sent| properties::tags_code(sent.topic, &sent.properties, now_ms as i64, &DELAYS_MS);
            let marked: Vec<Marked<'_>> = unit.iter().map(|sent| code(sent).into()).collect();
            batch.push_client_batch(&record(first, &body, &[]), &marked, &queue, limits()).expect("within the limits");
        }
        units.push(unit);
    }
    model.in_flight.clear();
    let before = disk.is_dead();
    let outcome = store.append(&mut batch, now_ms);
    // A store into a mapping can not fail: what it stopped in the middle of was not answered.
    let is_unsure = disk.is_dead() && !before;
    for (index, unit) in units.into_iter().enumerate() {
        if is_unsure || index >= outcome.units_placed {
            if is_unsure || model.is_full_twice {
                model.in_flight.extend(unit);
            }
            continue;
        }
        for (mut sent, placed) in unit.into_iter().zip(batch.placed(index)) {
            sent.queue_offset = placed.queue_offset;
            sent.log_offset = placed.log_offset;
            sent.log_end = placed.log_offset + u64::from(placed.record_bytes);
            if sent.is_queued() {
                assert_eq!(sent.queue_offset, model.next(sent.topic, sent.queue_id), "queue offset given");
            }
            model.sent.push(sent);
        }
    }
}

/// A process and its machine.
struct World {
    mode: Mode,
    seed: u64,
    disk: SimDisk,
    store: Option<Arc<Store>>,
    model: Model,
    rng: Rng,
    now_ms: u64,
}

impl World {
    fn new(mode: Mode, seed: u64) -> World {
        World {
            mode,
            seed,
            disk: SimDisk::new(seed),
            store: None,
            model: Model::default(),
            rng: Rng::new(seed ^ 0x5EED),
            now_ms: BEGUN_MS,
        }
    }

    fn config(&self) -> StoreConfig {
        StoreConfig {
            commit_log_file_bytes: FILE_BYTES,
            consume_queue_file_bytes: 200,
            body_bytes_max: BODY_BYTES_MAX,
            promise: self.mode.promise(self.seed),
            medium: self.mode.medium(),
            keys: FlushKeys { least_pages: 0, commit_least_pages: 0, queue_least_pages: 1, ..FlushKeys::default() },
            index: IndexConfig { is_enabled: true, slot_count: 16, item_count: 40 },
            ..StoreConfig::new(Path::new("/data/store"))
        }
    }

    /// Opens the store; what the error says, else the report.
    fn open(&mut self) -> Result<String, String> {
        self.disk.set_now(self.now_ms);
        let (store, report) =
            Store::open_on(Arc::new(self.disk.clone()), self.config(), self.now_ms).map_err(|e| e.to_string())?;
        store.set_retention(RetentionKeys {
            hours: u32::MAX >> 8,
            reserved_ms: HOUR_MS,
            batch_max: 2,
            log_file_interval_ms: 1,
            queue_file_interval_ms: 1,
            ..RetentionKeys::default()
        });
        self.store = Some(store);
        Ok(report.lines.join("\n"))
    }

    fn store(&self) -> Arc<Store> {
        Arc::clone(self.store.as_ref().expect("open"))
    }

    fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        self.disk.set_now(self.now_ms);
    }

    /// What the store has shown to others so far.
    fn observe(&mut self) {
        let Some(store) = &self.store else { return };
        self.model.committed = self.model.committed.max(store.log_committed());
        self.model.flushed = self.model.flushed.max(store.log_flushed());
        self.model.log_min = self.model.log_min.max(store.log_min());
        for (topic, queue_id) in queues() {
            if let Some(queue) = store.queue(topic, queue_id) {
                let seen = self.model.seen.entry((topic, queue_id)).or_default();
                assert!(queue.max() >= *seen, "{topic} {queue_id} has become shorter");
                *seen = queue.max();
            }
        }
    }

    fn is_dead(&self) -> bool {
        self.disk.is_dead()
    }

    /// The script, up to its end or the death.
    fn live(&mut self, step_count: u64) {
        if self.store.is_none() && self.open().is_err() {
            return;
        }
        for _ in 0..step_count {
            self.step();
            let is_append_unsure = self.is_dead() && !self.model.in_flight.is_empty();
            if !is_append_unsure {
                self.observe();
            }
            if self.is_dead() || self.store.is_none() {
                return;
            }
        }
    }

    fn step(&mut self) {
        let store = self.store();
        let kind = self.rng.below(100);
        let ms = [0, 1, 300, 1100][self.rng.below(4) as usize];
        self.pass(ms);
        match kind {
            0..52 => {
                append(&store, &self.disk, &mut self.model, &mut self.rng, self.now_ms);
                if store.is_sync() && !self.rng.one_in(3) {
                    store.flush_turn(self.now_ms);
                }
            }
            52..60 => {
                self.pass(500);
                store.flush_turn(self.now_ms);
            }
            60..68 => {
                self.pass(200);
                store.commit_turn(self.now_ms);
            }
            68..83 => {
                store.files_turn(self.now_ms);
                self.pass(1000);
                store.files_turn(self.now_ms);
            }
            83..88 => {
                self.pass(61_000);
                for _ in 0..3 {
                    store.files_turn(self.now_ms);
                    self.pass(1);
                }
            }
            88..92 => self.expire(&store),
            92..94 => self.delete_topic(&store),
            94..96 => {
                drop(store);
                self.stop_and_start();
            }
            _ => self.flush_beside_appends(&store),
        }
    }

    /// A flush while others append.
    fn flush_beside_appends(&mut self, store: &Arc<Store>) {
        self.pass(500);
        let shared = Arc::new(Mutex::new((std::mem::take(&mut self.model), self.rng.clone())));
        let act = {
            let (shared, store, now_ms, disk) =
                (Arc::clone(&shared), Arc::clone(store), self.now_ms, self.disk.clone());
            move || {
                let (model, rng) = &mut *shared.lock().unwrap_or_else(PoisonError::into_inner);
                append(&store, &disk, model, rng, now_ms);
            }
        };
        self.disk.set_during_sync(Some(Box::new(act)));
        store.flush_turn(self.now_ms);
        self.disk.set_during_sync(None);
        let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
        self.model = std::mem::take(&mut shared.0);
        self.rng = shared.1.clone();
    }

    /// Old log files go, if there are some.
    fn expire(&mut self, store: &Store) {
        self.pass(2 * HOUR_MS);
        for _ in 0..12 {
            if self.is_dead() {
                return;
            }
            store.flush_turn(self.now_ms);
            store.files_turn(self.now_ms);
            let ms = if self.rng.one_in(3) { 11_000 } else { 5 };
            self.pass(ms);
        }
    }

    fn delete_topic(&mut self, store: &Store) {
        let topic = TOPICS[self.rng.below(TOPICS.len() as u64) as usize];
        let log_end = store.log_max();
        let has_queues = queues().any(|(of, queue_id)| of == topic && store.queue(topic, queue_id).is_some());
        let result = store.delete_topic(topic);
        match result {
            Ok(()) if has_queues => self.model.delete(topic, log_end),
            Ok(()) => {}
            Err(_) => {
                // It may be gone from memory and still be on the disk: nothing goes on from there but a start.
                self.model.deleting = Some((topic, log_end));
                self.store = None;
            }
        }
        // What may be gone is gone from memory.
        self.model.seen.retain(|(seen, _), _| *seen != topic);
    }

    fn stop_and_start(&mut self) {
        let store = self.store.take().expect("open");
        let is_closed = store.close(self.now_ms).is_ok();
        self.model.committed = self.model.committed.max(store.log_committed());
        self.model.flushed = self.model.flushed.max(store.log_flushed());
        drop(store);
        if is_closed && let Ok(told) = self.open() {
            assert!(told.contains("after a clean stop") || self.is_dead(), "{told}");
            // The blank at the end of a file counted, until the next start took its place again for records.
            let end = self.store().log_max();
            assert!(self.model.sent.last().is_none_or(|last| last.log_end <= end), "{told}");
            (self.model.committed, self.model.flushed) = (end, end);
        }
    }
}

/// Runs `World`s of one mode and seed to their crashes and checks what is left.
pub struct Sweep {
    mode: Mode,
    seed: u64,
    pub counts: Counts,
}

impl Sweep {
    pub fn new(mode: Mode, seed: u64) -> Sweep {
        Sweep { mode, seed, counts: Counts::default() }
    }

    /// How many calls to the disk the script makes.
    pub fn call_count(&self) -> u64 {
        let mut world = World::new(self.mode, self.seed);
        let _told = self.told(0, "no trouble");
        world.live(STEP_COUNT);
        assert!(world.store.is_some(), "the script ends with an open store");
        world.disk.call_count()
    }

    /// The script stopped and troubled at every `stride`th call.
    pub fn run(&mut self, depth: Depth) {
        let end = self.call_count();
        let mut at = 1 + self.seed % depth.stride;
        while at <= end {
            let is_deep = (at / depth.stride).is_multiple_of(depth.recovery_points);
            self.point(at, is_deep.then_some(depth.recovery_stride));
            at += depth.stride;
        }
    }

    /// Everything at one call. With `recovery_stride` starts die, too.
    pub fn point(&mut self, at: u64, recovery_stride: Option<u64>) {
        self.counts.points += 1;
        self.death(at, recovery_stride);
        // Longer, and a crash before it ends may bring back records whose senders were refused. The blocks of a log file are
        // taken ahead, so a write to it meets a full disk only where blocks are not written in place.
        self.trouble(Trouble::FullDisk { at, count: 1 + at % 2 }, at);
        self.trouble(Trouble::FailedSync { at }, at);
    }

    fn told(&self, at: u64, what: impl Into<String>) -> Told {
        Told { mode: self.mode, seed: self.seed, at, what: what.into() }
    }

    fn death(&mut self, at: u64, recovery_stride: Option<u64>) {
        let mut world = World::new(self.mode, self.seed);
        world.disk.set_trouble(Trouble::Death { at });
        {
            let _told = self.told(at, "in the first life");
            world.live(STEP_COUNT);
        }
        world.store = None;
        self.rot(&world, at);
        for crash in self.crashes(at) {
            let _told = self.told(at, format!("{crash:?} at call {at}"));
            self.start(&world, crash, at);
            if let Some(stride) = recovery_stride {
                self.dying_starts(&world, crash, at, stride);
            }
        }
    }

    fn crashes(&self, at: u64) -> [Crash; 4] {
        let seed = self.seed.wrapping_mul(1_000_003).wrapping_add(at);
        let tear = if at.is_multiple_of(2) { Tear::Nothing } else { Tear::All };
        [
            Crash::Kill,
            Crash::PowerLoss(tear),
            Crash::PowerLoss(Tear::Some(seed)),
            Crash::PowerLoss(Tear::Some(seed ^ 0xFFFF)),
        ]
    }

    /// A life that goes on after some of its calls failed.
    fn trouble(&mut self, trouble: Trouble, at: u64) {
        let mut world = World::new(self.mode, self.seed);
        world.disk.set_trouble(trouble);
        world.model.is_full_twice = matches!(trouble, Trouble::FullDisk { count: 2.., .. });
        let _told = self.told(at, format!("{trouble:?}"));
        world.live(STEP_COUNT);
        world.store = None;
        world.model.is_sync_failed = world.disk.has_failed_sync();
        let crash = if at.is_multiple_of(2) { Crash::Kill } else { Crash::PowerLoss(Tear::Some(at)) };
        self.start(&world, crash, at);
    }

    /// A bit of some file has turned before a start: it opens or says why not, and opens again with the same outcome. Not
    /// after a clean stop, when less of the log is read than after the crash that follows.
    fn rot(&mut self, before: &World, at: u64) {
        let mut world = self.crashed(before, Crash::Kill, at);
        let turned = world.disk.rot(&mut Rng::new(at ^ self.seed));
        let _told = self.told(at, format!("a bit turned at {turned:?}"));
        self.counts.starts += 1;
        let Ok(told) = world.open() else { return };
        let store = world.store();
        for (topic, queue_id) in queues() {
            let Some(queue) = store.queue(topic, queue_id) else { continue };
            let mut entries = Vec::new();
            let _ = queue.read(queue.min(), (queue.max() - queue.min()) as usize, &mut entries);
            for entry in entries {
                store.record_at(entry.log_offset);
            }
        }
        let before = ends(&store);
        let mut again = self.crashed(&world, Crash::Kill, at);
        again.open().unwrap_or_else(|e| panic!("it opened once, now: {e}"));
        // A queue that has lost all its entries may lose its place, too.
        let held = |(log_end, queues): (u64, Vec<Option<(u64, u64)>>)| {
            (log_end, queues.into_iter().map(|ends| ends.filter(|(min, max)| min < max)).collect::<Vec<_>>())
        };
        let is_same = held(ends(&again.store())) == held(before);
        assert!(told.contains("a clean stop") || is_same, "a second recovery differs\n{told}");
    }

    /// The machine comes back, the store is opened, looked at, used and crashed again.
    fn start(&mut self, before: &World, crash: Crash, at: u64) {
        let mut world = self.crashed(before, crash, at);
        let told = self.opened(&mut world);
        let opened = world.disk.after_kill(at);
        let mut rng = Rng::new(at ^ self.seed);
        // What a failed sync covered is on the device, too, when the store is open again.
        match if world.model.is_sync_failed { 1 } else { rng.below(3) } {
            0 => self.second_start(&world, opened, &told),
            1 => {
                let tear = Tear::Some(rng.next());
                let _told = self.told(at, format!("right after the recovery {tear:?}"));
                let mut after = self.crashed(&world, Crash::PowerLoss(tear), at);
                after.model.flushed = world.store().log_max();
                let told_again = self.opened(&mut after);
                assert_eq!(
                    ends(&after.store()),
                    ends(&world.store()),
                    "a power loss after the recovery\nfirst {told}\nthen {told_again}"
                );
            }
            _ => {}
        }
        if world.model.is_sync_failed {
            return;
        }
        self.index(&mut world);
        world.rng = rng;
        world.live(STEP_COUNT_OF_LIFE_2);
        world.store = None;
        let crash = if world.rng.one_in(2) { Crash::Kill } else { Crash::PowerLoss(Tear::Some(world.rng.next())) };
        let _told = self.told(at, format!("then, after the second life, {crash:?}"));
        let mut world = self.crashed(&world, crash, at);
        self.opened(&mut world);
    }

    /// What is opened again at once has nothing left to do.
    fn second_start(&mut self, first: &World, opened: SimDisk, told: &str) {
        let _told = self.told(0, "opened at once again");
        let before = opened.contents();
        let mut second =
            World { disk: opened, store: None, model: first.model.clone(), rng: first.rng.clone(), ..*first };
        let told_again = self.opened(&mut second);
        assert_eq!(ends(&second.store()), ends(&first.store()), "second recovery\nfirst {told}\nthen {told_again}");
        let after = second.disk.contents();
        for (path, bytes) in &before {
            let text = path.display().to_string();
            let is_kept = ["/commitlog/", "/consumequeue/", "/index/"].iter().any(|dir| text.contains(dir));
            assert!(
                !is_kept || after.get(path) == Some(bytes),
                "a second recovery changes {text}\nfirst {told}\nthen {told_again}"
            );
        }
    }

    /// Starts that die at their calls, and the starts after those.
    fn dying_starts(&mut self, before: &World, crash: Crash, at: u64, stride: u64) {
        let mut call = 1 + at % stride;
        loop {
            let mut world = self.crashed(before, crash, at);
            world.disk.set_trouble(Trouble::Death { at: call });
            let _told = self.told(at, format!("and in the recovery after it at call {call}"));
            let _ = world.open();
            if !world.is_dead() {
                return;
            }
            world.store = None;
            self.counts.starts_ended += 1;
            for crash in [Crash::Kill, Crash::PowerLoss(Tear::Some(at ^ (call << 20)))] {
                let _told = self.told(at, format!("then {crash:?}"));
                let mut world = self.crashed(&world, crash, call);
                self.opened(&mut world);
            }
            call += stride;
        }
    }

    fn crashed(&self, before: &World, crash: Crash, seed: u64) -> World {
        let mut model = before.model.clone();
        model.is_power_lost |= crash != Crash::Kill;
        World { disk: crash.of(&before.disk, seed), store: None, model, rng: before.rng.clone(), ..*before }
    }

    /// Opens and checks everything that opening alone must have brought.
    fn opened(&mut self, world: &mut World) -> String {
        self.counts.starts += 1;
        let told = world.open().unwrap_or_else(|e| panic!("the store does not open: {e}"));
        let store = world.store();
        let _said = Said(&told);
        self.log(&store, &mut world.model);
        settle_deletion(&store, &mut world.model);
        check_queues(&store, &world.model);
        // What was found counts as durable and is visible.
        let model = &mut world.model;
        assert_eq!(store.log_flushed(), store.log_max());
        (model.committed, model.flushed) = (store.log_max(), store.log_max());
        model.is_power_lost = false;
        model.log_min = model.log_min.max(store.log_min());
        model.seen = queues().map(|(topic, queue_id)| ((topic, queue_id), model.next(topic, queue_id))).collect();
        drop(_said);
        told
    }

    /// The log is what was sent, up to some point that the promise allows.
    fn log(&mut self, store: &Store, model: &mut Model) {
        let (min, max) = (store.log_min(), store.log_max());
        let floor = match (model.is_power_lost, self.mode) {
            (true, _) => model.flushed,
            (false, Mode::Pool) => model.committed,
            (false, _) => model.sent.last().map_or(0, |sent| sent.log_end),
        };
        let kept = model.sent.iter().take_while(|sent| sent.log_end <= max).count();
        if let Some(lost) = model.sent.get(kept).filter(|sent| sent.log_end <= floor) {
            panic!("the log ends at {max}, the record at {} was promised up to {floor}", lost.log_offset);
        }
        let mut end = model.sent[..kept].last().map_or(0, |sent| sent.log_end);
        for sent in model.sent[..kept].iter().filter(|sent| sent.log_offset >= min) {
            assert_record(store, sent, sent.log_offset);
            self.counts.records += 1;
        }
        let is_all = kept == model.sent.len();
        model.sent.truncate(kept);
        let mut in_flight = std::mem::take(&mut model.in_flight).into_iter().filter(|_| is_all);
        while end < max {
            let at = if store.record_at(end).is_some() { end } else { end.next_multiple_of(FILE_BYTES) };
            if at >= max {
                break;
            }
            let Some(mut sent) = in_flight.next() else {
                panic!("a record at {at} that was never sent; the log ends at {max}, of what was sent {end} is there");
            };
            sent.queue_offset = if sent.is_queued() { model.next(sent.topic, sent.queue_id) } else { 0 };
            sent.log_offset = at;
            sent.log_end = at + assert_record(store, &sent, at);
            end = sent.log_end;
            model.sent.push(sent);
        }
        // What was deleted behind the end of the log is new again.
        model.deleted.values_mut().for_each(|log_end| *log_end = max.min(*log_end));
        if let Some((_, log_end)) = &mut model.deleting {
            *log_end = max.min(*log_end);
        }
    }

    /// After a turn or two every key finds its records and nothing else.
    fn index(&mut self, world: &mut World) {
        let store = world.store();
        for _ in 0..4 {
            store.files_turn(world.now_ms);
            world.pass(200);
        }
        let model = &world.model;
        let min = store.log_min();
        let mut by_key: BTreeMap<(&str, &str), Vec<u64>> = BTreeMap::new();
        for sent in model.sent.iter().filter(|sent| sent.log_offset >= min) {
            for key in &sent.keys {
                by_key.entry((sent.topic, key)).or_default().push(sent.log_offset);
            }
        }
        for ((topic, key), want) in by_key {
            let query = KeyQuery { topic, key, is_unique: false, count_max: 10_000, begin_ms: 0, end_ms: i64::MAX };
            let found = store.find_by_key(&query);
            let offset = |bytes: &bytes::Bytes| match check(bytes, None, true) {
                Ok(Checked::Record(record)) => record.log_offset,
                other => panic!("the index gives no record: {other:?}"),
            };
            let got: Vec<u64> = found.records.iter().map(offset).collect();
            assert_eq!(got, want, "records of key {key} in {topic}, log from {min}");
        }
    }
}

/// Log end, and where each queue begins and ends.
fn ends(store: &Store) -> (u64, Vec<Option<(u64, u64)>>) {
    let of = |(topic, queue_id)| store.queue(topic, queue_id).map(|queue| (queue.min(), queue.max()));
    (store.log_max(), queues().map(of).map(|ends| ends.filter(|(_, max)| *max > 0)).collect())
}

/// The record at `log_offset` is this message. Returns how many bytes it has.
fn assert_record(store: &Store, sent: &Sent, log_offset: u64) -> u64 {
    let bytes = store.record_at(log_offset).unwrap_or_else(|| {
        panic!("no record at {log_offset} in a log from {} to {}", store.log_min(), store.log_max())
    });
    let Ok(Checked::Record(record)) = check(&bytes, Some(log_offset), true) else {
        panic!("no sound record at {log_offset}");
    };
    assert_eq!(
        (record.topic, record.queue_id, record.queue_offset),
        (sent.topic.as_bytes(), sent.queue_id, sent.queue_offset),
        "record at {log_offset}"
    );
    assert!(record.body == sent.body, "another body at {log_offset}");
    assert_eq!(record.properties, sent.properties, "properties at {log_offset}");
    bytes.len() as u64
}

/// A deletion under way when the process died has happened or not.
fn settle_deletion(store: &Store, model: &mut Model) {
    let Some((topic, log_end)) = model.deleting.take() else { return };
    let is_there = |queue_id| store.queue(topic, queue_id).is_some_and(|queue| queue.max() > 0);
    let had = |queue_id| model.of_queue(topic, queue_id).any(|sent| sent.log_offset < log_end);
    if !(0..QUEUE_COUNT as i32).any(|queue_id| had(queue_id) && is_there(queue_id)) {
        model.delete(topic, log_end);
    }
}

/// Each queue holds its records from the log's first to its last, each entry that of its record.
fn check_queues(store: &Store, model: &Model) {
    let log_min = store.log_min();
    for (topic, queue_id) in queues() {
        let mut want: Vec<&Sent> = model.of_queue(topic, queue_id).collect();
        if model.is_sync_failed {
            want.retain(|sent| sent.log_offset >= log_min);
            if want.is_empty() {
                continue;
            }
        }
        let max = want.last().map_or(0, |sent| sent.queue_offset + 1);
        let min = want.iter().find(|sent| sent.log_offset >= log_min).map_or(max, |sent| sent.queue_offset);
        let Some(queue) = store.queue(topic, queue_id) else {
            assert!(max == 0 || min == max, "{topic} {queue_id} is gone, it had {min} to {max}");
            continue;
        };
        assert_eq!((queue.min(), queue.max()), (min, max), "{topic} {queue_id}, log from {log_min}");
        let is_covered = !model.is_power_lost || store.is_sync();
        let seen = model.seen.get(&(topic, queue_id)).copied().unwrap_or(0);
        assert!(!is_covered || max >= seen, "{topic} {queue_id} ends at {max}, consumers have seen {seen}");
        let mut entries: Vec<Entry> = Vec::new();
        queue.read(min, (max - min) as usize, &mut entries).unwrap_or_else(|e| panic!("{topic} {queue_id}: {e}"));
        assert_eq!(entries.len() as u64, max - min, "{topic} {queue_id}");
        for (entry, sent) in entries.iter().zip(want.iter().filter(|sent| sent.queue_offset >= min)) {
            let bytes = store.record_at(entry.log_offset).expect("an entry points to a record");
            let Ok(Checked::Record(record)) = check(&bytes, Some(entry.log_offset), true) else {
                panic!("{topic} {queue_id} {}: an entry points to no sound record", sent.queue_offset);
            };
            let info = record.dispatch_info(&DELAYS_MS);
            assert_eq!(
                (entry.log_offset, entry.record_bytes, entry.tags_code),
                (sent.log_offset, info.record_bytes, info.tags_code),
                "{topic} {queue_id} {}",
                sent.queue_offset
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEPTH: Depth = Depth { stride: 12, recovery_points: 5, recovery_stride: 4 };

    fn sweep(mode: Mode, seeds: std::ops::Range<u64>) {
        for seed in seeds {
            let mut sweep = Sweep::new(mode, seed);
            sweep.run(DEPTH);
            println!("{} seed {seed}: {:?}", mode.name(), sweep.counts);
        }
    }

    #[test]
    fn a_seed_gives_the_same_run_twice() {
        for mode in Mode::ALL {
            let run = || {
                let mut world = World::new(mode, 7);
                world.disk.set_trouble(Trouble::Death { at: 200 });
                world.live(STEP_COUNT);
                world.store = None;
                let mut sweep = Sweep::new(mode, 7);
                let mut world = sweep.crashed(&world, Crash::PowerLoss(Tear::Some(1)), 1);
                sweep.opened(&mut world);
                world.live(STEP_COUNT);
                (world.disk.call_count(), world.disk.contents())
            };
            assert!(run() == run(), "{}", mode.name());
        }
    }

    /// A store with queues and no log is refused: it could be one whose log is not mounted.
    #[test]
    fn no_power_loss_leaves_queues_without_their_log() {
        let open = |disk: &SimDisk| {
            let config =
                StoreConfig { commit_log_file_bytes: FILE_BYTES, ..StoreConfig::new(Path::new("/data/store")) };
            Store::open_on(Arc::new(disk.clone()), config, BEGUN_MS).map(|(store, _)| store)
        };
        let survives = |disk: &SimDisk, what: &str| {
            for tear in [Tear::Nothing, Tear::All, Tear::Some(1), Tear::Some(2), Tear::Some(3), Tear::Some(4)] {
                open(&disk.after_power_loss(tear)).unwrap_or_else(|e| panic!("{what}, {tear:?}: {e}"));
            }
        };
        let disk = SimDisk::new(1);
        let store = open(&disk).unwrap();
        let mut batch = AppendBatch::default();
        let queue = store.queue_or_create("T", 0);
        for _ in 0..3 {
            let body = crate::fault_tests::message("T", b"body", &[]);
            batch.push(&body, 0, &queue, RecordLimits::of_body(BODY_BYTES_MAX)).unwrap();
        }
        assert!(store.append(&mut batch, BEGUN_MS).error.is_none());
        let killed = disk.after_kill(1);
        for turn in 1..4 {
            store.files_turn(BEGUN_MS + 2000 * turn);
            survives(&disk, "the queues' files are made");
        }
        drop(store);
        for at in 1.. {
            let start = killed.after_kill(at);
            start.set_trouble(Trouble::Death { at });
            let is_whole = open(&start).is_ok();
            survives(&start, &format!("a start that died at call {at}"));
            if is_whole {
                break;
            }
        }
    }

    /// Else a power loss takes every queue, also those whose place only their entries tell.
    #[test]
    fn after_a_round_the_names_of_the_queues_are_durable_up_to_the_root() {
        // Some of it may reach the device by itself.
        for seed in 0..30 {
            let disk = SimDisk::new(seed);
            let config =
                StoreConfig { commit_log_file_bytes: FILE_BYTES, ..StoreConfig::new(Path::new("/data/store")) };
            let store = Store::open_on(Arc::new(disk.clone()), config, BEGUN_MS).unwrap().0;
            let mut batch = AppendBatch::default();
            let queue = store.queue_or_create("T", 0);
            let body = crate::fault_tests::message("T", b"body", &[]);
            batch.push(&body, 0, &queue, RecordLimits::of_body(BODY_BYTES_MAX)).unwrap();
            assert!(store.append(&mut batch, BEGUN_MS).error.is_none());
            for turn in 1..100 {
                store.files_turn(BEGUN_MS + 2000 * turn);
            }
            let names: Vec<_> = disk.after_power_loss(Tear::Nothing).contents().into_keys().collect();
            assert!(names.iter().any(|name| name.starts_with("/data/store/consumequeue/T/0")), "{seed}: {names:?}");
        }
    }

    /// Nobody wakes an agent that works, so it has to look once more before it sleeps.
    #[test]
    fn what_comes_during_an_untimed_flush_is_flushed_at_once() {
        for least_pages in [0, 1] {
            let disk = SimDisk::new(1);
            let config = StoreConfig {
                commit_log_file_bytes: FILE_BYTES,
                keys: FlushKeys { timed: false, least_pages, interval_ms: 50_000, ..FlushKeys::default() },
                ..StoreConfig::new(Path::new("/data/store"))
            };
            let store = Store::open_on(Arc::new(disk.clone()), config, BEGUN_MS).unwrap().0;
            let append = {
                let store = Arc::clone(&store);
                move || {
                    let mut batch = AppendBatch::default();
                    let queue = store.queue_or_create("T", 0);
                    let body = crate::fault_tests::message("T", &[b'x'; 4000], &[]);
                    for _ in 0..2 {
                        batch.push(&body, 0, &queue, RecordLimits::of_body(BODY_BYTES_MAX)).unwrap();
                    }
                    assert!(store.append(&mut batch, BEGUN_MS).error.is_none());
                }
            };
            append();
            disk.set_during_sync(Some(Box::new(append)));
            assert_eq!(store.flush_turn(BEGUN_MS + 1), 0, "{least_pages} pages");
            disk.set_during_sync(None);
            assert!(store.flush_turn(BEGUN_MS + 1) > 0);
            assert_eq!(store.log_flushed(), store.log_max());
        }
    }

    #[test]
    fn asynchronous_keeps_its_promise_through_every_crash() {
        sweep(Mode::Async, 1..3);
    }

    #[test]
    fn the_pool_keeps_its_promise_through_every_crash() {
        sweep(Mode::Pool, 1..3);
    }

    #[test]
    fn synchronous_keeps_its_promise_through_every_crash() {
        sweep(Mode::Sync, 1..3);
    }

    #[test]
    fn the_mapped_medium_keeps_both_promises_through_every_crash() {
        sweep(Mode::AsyncMapped, 3..4);
        sweep(Mode::SyncMapped, 4..5);
    }
}
