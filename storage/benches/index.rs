//! What a message costs the index: the walk behind the appends, its filing, a query. Prints ns of processor time a message; no criterion, as
//! an index can be built once only.

use ringmq_storage::append::AppendBatch;
use ringmq_storage::index::{IndexConfig, KeyQuery};
use ringmq_storage::record::{NewRecord, RecordLimits};
use ringmq_storage::store::{Store, StoreConfig};
use std::path::Path;
use std::time::Instant;

const COUNT: u64 = 1_000_000;
const BODY: [u8; 128] = [b'x'; 128];

fn config(root: &Path, is_enabled: bool) -> StoreConfig {
    StoreConfig { index: IndexConfig { is_enabled, ..IndexConfig::default() }, ..StoreConfig::new(root) }
}

fn fill(store: &Store, with_keys: bool) {
    let queue = store.queue_or_create("TopicOfTheBench", 0);
    let mut batch = AppendBatch::default();
    for number in 0..COUNT {
        let keys = if with_keys { format!("KEYS\x01order-{number}\x02") } else { String::new() };
        let text = format!(
            "{keys}UNIQ_KEY\x017F000001295E5FFD2B2795BE{number:08X}\x02TAGS\x01TagA\x02CLUSTER\x01DefaultCluster"
        );
        let record = NewRecord {
            topic: "TopicOfTheBench",
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp: 1,
            born_host: ([127, 0, 0, 1], 1).into(),
            store_host: ([127, 0, 0, 1], 1).into(),
            reconsume_times: 0,
            prepared_offset: 0,
            body: &BODY,
            properties: &[text.as_bytes()],
        };
        batch.push(&record, 1, &queue, RecordLimits::of_body(4 << 20)).expect("a good message");
        if batch.unit_count() == 500 {
            let outcome = store.append(&mut batch, 1_796_000_000_000 + number / 300);
            assert!(outcome.error.is_none(), "{:?}", outcome.error);
            batch.clear();
        }
    }
}

fn anonymous_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Processor time of this thread: what else runs on the machine does not count.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("procfs");
    text.split(' ').next().and_then(|ns| ns.parse().ok()).expect("a number")
}

/// Turns until the agent has caught up, without its tails and rounds: the clock stands.
fn turns(store: &Store) -> f64 {
    let began = cpu_ns();
    while store.files_turn(1) == 0 {}
    (cpu_ns() - began) as f64 / COUNT as f64
}

fn main() {
    for with_keys in [false, true] {
        let mut costs = Vec::new();
        for is_enabled in [false, true] {
            let dir = tempfile::tempdir().expect("a folder");
            let (store, _) = Store::open(config(dir.path(), is_enabled), 1).expect("opened");
            fill(&store, with_keys);
            costs.push(turns(&store));
            if !is_enabled {
                continue;
            }
            let anonymous = anonymous_kib();
            let began = Instant::now();
            store.files_turn(100_000);
            let filing = began.elapsed();
            let began = cpu_ns();
            for number in (0..COUNT).step_by(1000) {
                let key = format!("7F000001295E5FFD2B2795BE{number:08X}");
                let (topic, count_max, begin_ms, end_ms) = ("TopicOfTheBench", 32, 0, i64::MAX);
                let found =
                    store.find_by_key(&KeyQuery { topic, key: &key, is_unique: true, count_max, begin_ms, end_ms });
                assert_eq!(found.records.len(), 1);
            }
            let query = (cpu_ns() - began) as f64 / (COUNT / 1000) as f64;
            println!(
                "{} keys a message: {:.0} ns a message (and {:.0} ns of other turns), RssAnon {anonymous} KiB, a round {} ms, a query {query:.0} ns",
                1 + u64::from(with_keys),
                costs[1] - costs[0],
                costs[0],
                filing.as_millis(),
            );
        }
    }
}
