//! kill -9 at any moment: what was acknowledged is there again, queues have no gap, deleted topics stay deleted.
//!
//! The parent starts this test binary again as a child that appends from two threads with both agents running, tells each
//! acknowledgement through a pipe, and dies by SIGKILL. The parent opens the store, compares, stops or dies in its
//! turn, and goes on with the same store.

mod common;

use common::{LIMITS, config, entries, message, queues, with_record};
use ringmq_storage::append::AppendBatch;
use ringmq_storage::error::AppendError;
use ringmq_storage::flush::FlushKeys;
use ringmq_storage::store::{Store, StoreConfig};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

const ROOT: &str = "RINGMQ_KILL_ROOT";
const ROUND: &str = "RINGMQ_KILL_ROUND";

fn quick(root: &Path) -> StoreConfig {
    StoreConfig {
        keys: FlushKeys {
            interval_ms: 3,
            least_pages: 1,
            thorough_interval_ms: 10,
            queue_interval_ms: 3,
            queue_thorough_interval_ms: 10,
            ..FlushKeys::default()
        },
        ..config(root)
    }
}

/// xorshift64*: a seed brings a run back.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % end
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as u64
}

/// Does nothing when it is not started by `acknowledged_messages_survive_kill_9`.
#[test]
fn child() {
    let Ok(root) = std::env::var(ROOT) else { return };
    let round: u64 = std::env::var(ROUND).unwrap().parse().unwrap();
    let (store, _) = Store::open(quick(root.as_ref()), now_ms()).unwrap_or_else(|e| panic!("{e}"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                store.wait_flush(store.flush_turn(now_ms()));
            }
        });
        scope.spawn(|| {
            loop {
                store.wait_files(store.files_turn(now_ms()));
            }
        });
        for sender in 0..2 {
            let store = &store;
            scope.spawn(move || send_for_ever(store, sender, round));
        }
    });
}

/// One writes whole lines by one call, so that a kill leaves no half of one.
fn tell(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).expect("the parent listens");
}

fn send_for_ever(store: &Store, sender: u64, round: u64) {
    let mut random = Random(round * 2 + sender + 1);
    let mut batch = AppendBatch::default();
    for turn in 0u64.. {
        let topic = format!("T{sender}-{}", random.below(3));
        if random.below(200) == 0 {
            tell(&format!("\ndeleting {topic}\n"));
            store.delete_topic(&topic).expect("deleted");
            tell(&format!("\ndeleted {topic}\n"));
            continue;
        }
        batch.clear();
        let mut bodies = Vec::new();
        for _ in 0..=random.below(5) {
            let queue_id = random.below(2) as i32;
            let queue = store.queue_or_create(&topic, queue_id);
            let body = format!("{round}.{turn}.{} {}", bodies.len(), "x".repeat(random.below(800) as usize));
            batch.push(&message(&topic, queue_id, body.as_bytes(), &[]), 0, &queue, LIMITS).unwrap();
            bodies.push((queue_id, body));
        }
        loop {
            match store.append(&mut batch, now_ms()).error {
                None => break,
                Some(AppendError::NoFileYet { .. }) => std::thread::sleep(Duration::from_millis(1)),
                Some(error) => panic!("{error}"),
            }
        }
        let mut lines = String::from("\n");
        for (unit, (queue_id, body)) in bodies.iter().enumerate() {
            lines += &format!("sent {topic} {queue_id} {} {body}\n", batch.placed(unit)[0].queue_offset);
        }
        tell(&lines);
    }
}

type Model = BTreeMap<(String, i32), BTreeMap<u64, String>>;

/// What the child told until it died.
fn run_child(root: &Path, round: u64, lives: Duration, model: &mut Model) -> Option<String> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["child", "--exact", "--nocapture"])
        .env(ROOT, root)
        .env(ROUND, round.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let killer = std::thread::spawn(move || {
        std::thread::sleep(lives);
        child.kill().unwrap();
        child.wait().unwrap()
    });
    let mut deleting = BTreeMap::new();
    for line in out.split(b'\n') {
        let line = String::from_utf8(line.unwrap()).unwrap();
        let mut words = line.splitn(5, ' ');
        match words.next() {
            Some("sent") => {
                let topic = words.next().unwrap().to_owned();
                let queue_id = words.next().unwrap().parse().unwrap();
                let offset = words.next().unwrap().parse().unwrap();
                let body = words.next().unwrap().to_owned();
                let old = model.entry((topic, queue_id)).or_default().insert(offset, body);
                assert!(old.is_none(), "offset {offset} was given twice: {line}");
            }
            Some("deleting") => {
                deleting.insert(words.next().unwrap().chars().nth(1), words.next().unwrap_or(&line[9..]).to_owned());
            }
            Some("deleted") => {
                let topic = words.next().unwrap();
                deleting.remove(&topic.chars().nth(1));
                model.retain(|(name, _), _| name != topic);
            }
            _ => {}
        }
    }
    let status = killer.join().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "the child died of something else");
    assert!(deleting.len() <= 2);
    Some(deleting.into_values().collect::<Vec<_>>().join(" "))
}

/// Compares, and takes what is there beyond the acknowledged into the model.
fn check(store: &Store, model: &mut Model, deleting: &str) {
    let mut found = Model::new();
    for queue in queues(store) {
        assert_eq!(queue.min(), 0, "{}", queue.topic);
        let all = found.entry((queue.topic.to_string(), queue.queue_id)).or_default();
        for (offset, entry) in (0..).zip(entries(&queue)) {
            with_record(store, &entry, |record| {
                assert_eq!((record.topic, record.queue_id), (queue.topic.as_bytes(), queue.queue_id));
                assert_eq!(record.queue_offset, offset, "{} {}", queue.topic, queue.queue_id);
                all.insert(offset, String::from_utf8(record.body.to_vec()).unwrap());
            });
        }
    }
    for ((topic, queue_id), sent) in model.iter() {
        if deleting.split(' ').any(|name| name == topic) {
            continue;
        }
        let found = found.get(&(topic.clone(), *queue_id)).unwrap_or_else(|| panic!("{topic} {queue_id} is gone"));
        for (offset, body) in sent {
            assert_eq!(found.get(offset), Some(body), "{topic} {queue_id} {offset}");
        }
    }
    // Of a deleted topic nothing may be there but what was on its way when the child died: one batch.
    for (key, all) in &found {
        let sent = model.get(key).map_or(0, BTreeMap::len);
        if !deleting.split(' ').any(|name| name == key.0) {
            assert!(all.len() <= sent + 5, "{key:?}: {} found, {sent} sent", all.len());
        }
    }
    found.retain(|_, all| !all.is_empty());
    *model = found;
}

#[test]
fn acknowledged_messages_survive_kill_9() {
    let seed = std::env::var("RINGMQ_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(now_ms);
    let rounds = std::env::var("RINGMQ_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(24);
    println!("RINGMQ_SEED={seed}");
    let mut random = Random(seed | 1);
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    let mut model = Model::new();
    let began = Instant::now();
    for round in 1..=rounds {
        if began.elapsed() > Duration::from_secs(90) {
            println!("{round} rounds in 90 s");
            break;
        }
        let lives = Duration::from_millis(1 + random.below(400));
        let deleting = run_child(&root, round, lives, &mut model).unwrap();
        let (store, report): (Arc<Store>, _) = Store::open(quick(&root), now_ms()).unwrap_or_else(|e| panic!("{e}"));
        println!("round {round}, {lives:?}, deleting [{deleting}]: {}", report.lines.join("; "));
        let rebuilt = report.lines.iter().any(|line| line.contains("rebuilt"));
        assert!(!rebuilt, "a kill alone loses nothing that only a rebuild brings back");
        check(&store, &mut model, &deleting);
        match random.below(4) {
            // The next child dies while it makes all queues from the log, perhaps.
            3 => {
                drop(store);
                std::fs::remove_dir_all(root.join("consumequeue")).unwrap();
            }
            0 => store.close(now_ms()).unwrap(),
            1 => drop(store),
            _ => {
                store.files_turn(now_ms() + 100_000);
                store.flush_turn(now_ms() + 100_000);
            }
        }
    }
    let count: usize = model.values().map(BTreeMap::len).sum();
    println!("{count} messages in the end");
}
