//! Counters: what brokerStatus, clusterList and consumerProgress print.
//!
//! ```text
//! shards add to atomics ─ each second a sample ─> rates over 10, 60 and 600 s
//! ```
//! All counts begin at 0 with the process, as in Java. Source: StoreStatsService.java, BrokerStats.java,
//! BrokerStatsManager.java.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

const SAMPLE_COUNT_MAX: usize = 601;
/// Of a group's consumption: a sample every 10 s, a minute of them.
const GROUP_SAMPLE_MS: u64 = 10_000;
const GROUP_SAMPLE_COUNT_MAX: usize = 7;
const WINDOWS_S: [u64; 3] = [10, 60, 600];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sample {
    at_ms: u64,
    put: u64,
    found: u64,
    missed: u64,
    transferred: u64,
}

/// What a group took from a topic.
#[derive(Debug, Default)]
struct GroupGets {
    count: u64,
    samples: VecDeque<(u64, u64)>,
}

/// Counts at the last two midnights.
#[derive(Clone, Copy, Debug, Default)]
struct Mornings {
    day: i64,
    put_yesterday: u64,
    put_today: u64,
    get_yesterday: u64,
    get_today: u64,
}

#[derive(Debug)]
pub struct Stats {
    put_count: AtomicU64,
    put_bytes: AtomicU64,
    put_failed: AtomicU64,
    found_times: AtomicU64,
    missed_times: AtomicU64,
    get_count: AtomicU64,
    samples: Mutex<VecDeque<Sample>>,
    groups: Mutex<HashMap<String, HashMap<String, GroupGets>>>,
    mornings: Mutex<Mornings>,
}

impl Stats {
    pub fn new(now_ms: u64) -> Stats {
        Stats {
            put_count: AtomicU64::new(0),
            put_bytes: AtomicU64::new(0),
            put_failed: AtomicU64::new(0),
            found_times: AtomicU64::new(0),
            missed_times: AtomicU64::new(0),
            get_count: AtomicU64::new(0),
            samples: Mutex::default(),
            groups: Mutex::default(),
            mornings: Mutex::new(Mornings { day: local_day(now_ms), ..Mornings::default() }),
        }
    }

    /// Once for each turn's batch.
    pub fn put(&self, count: u64, bytes: u64) {
        self.put_count.fetch_add(count, Ordering::Relaxed);
        self.put_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn put_failed(&self, count: u64) {
        self.put_failed.fetch_add(count, Ordering::Relaxed);
    }

    /// Once for each pull that found something.
    pub fn got(&self, group: &str, topic: &str, count: u64, _bytes: u64) {
        self.found_times.fetch_add(1, Ordering::Relaxed);
        self.get_count.fetch_add(count, Ordering::Relaxed);
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let of_topic = match groups.get_mut(topic) {
            Some(of_topic) => of_topic,
            None => groups.entry(topic.to_string()).or_default(),
        };
        match of_topic.get_mut(group) {
            Some(gets) => gets.count += count,
            None => of_topic.entry(group.to_string()).or_default().count += count,
        }
    }

    pub fn missed(&self) {
        self.missed_times.fetch_add(1, Ordering::Relaxed);
    }

    /// Each second, by an agent.
    pub fn sample(&self, now_ms: u64) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let sample = Sample {
            at_ms: now_ms,
            put: load(&self.put_count),
            found: load(&self.found_times),
            missed: load(&self.missed_times),
            transferred: load(&self.get_count),
        };
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        samples.push_back(sample);
        if samples.len() > SAMPLE_COUNT_MAX {
            samples.pop_front();
        }
        drop(samples);

        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        for gets in groups.values_mut().flat_map(HashMap::values_mut) {
            if gets.samples.back().is_none_or(|(at_ms, _)| now_ms.saturating_sub(*at_ms) >= GROUP_SAMPLE_MS) {
                gets.samples.push_back((now_ms, gets.count));
                if gets.samples.len() > GROUP_SAMPLE_COUNT_MAX {
                    gets.samples.pop_front();
                }
            }
        }
        drop(groups);

        let mut mornings = self.mornings.lock().unwrap_or_else(PoisonError::into_inner);
        let day = local_day(now_ms);
        if day != mornings.day {
            *mornings = Mornings {
                day,
                put_yesterday: mornings.put_today,
                put_today: sample.put,
                get_yesterday: mornings.get_today,
                get_today: sample.transferred,
            };
        }
    }

    /// Messages a second that the group took from the topic, over the last minute.
    pub fn consume_tps(&self, group: &str, topic: &str) -> f64 {
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(gets) = groups.get(topic).and_then(|groups| groups.get(group)) else { return 0.0 };
        match (gets.samples.front(), gets.samples.back()) {
            (Some((from_ms, from)), Some((to_ms, to))) if to_ms > from_ms => {
                (to - from) as f64 * 1000.0 / (to_ms - from_ms) as f64
            }
            _ => 0.0,
        }
    }

    /// Names and texts of the counters, as GET_BROKER_RUNTIME_INFO gives them.
    pub fn table(&self) -> Vec<(&'static str, String)> {
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let mornings = *self.mornings.lock().unwrap_or_else(PoisonError::into_inner);
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (put, got) = (load(&self.put_count), load(&self.get_count));
        let put_bytes = load(&self.put_bytes);
        let transferred = rates(&samples, |sample| sample.transferred);
        vec![
            ("putTps", rates(&samples, |sample| sample.put)),
            ("getFoundTps", rates(&samples, |sample| sample.found)),
            ("getMissTps", rates(&samples, |sample| sample.missed)),
            ("getTotalTps", rates(&samples, |sample| sample.found + sample.missed)),
            // 4.9 tools read the first spelling, 5.x the second.
            ("getTransferedTps", transferred.clone()),
            ("getTransferredTps", transferred),
            ("msgPutTotalYesterdayMorning", mornings.put_yesterday.to_string()),
            ("msgPutTotalTodayMorning", mornings.put_today.to_string()),
            ("msgPutTotalTodayNow", put.to_string()),
            ("msgGetTotalYesterdayMorning", mornings.get_yesterday.to_string()),
            ("msgGetTotalTodayMorning", mornings.get_today.to_string()),
            ("msgGetTotalTodayNow", got.to_string()),
            ("putMessageTimesTotal", put.max(1).to_string()),
            ("putMessageFailedTimes", load(&self.put_failed).to_string()),
            ("putMessageSizeTotal", put_bytes.to_string()),
            ("putMessageAverageSize", format!("{}", put_bytes as f64 / put.max(1) as f64)),
        ]
    }
}

/// Three numbers joined by blanks, for 10, 60 and 600 s; a window that is longer than the process lives counts what
/// there is. There is always a number: tools read the first word.
fn rates(samples: &VecDeque<Sample>, value: impl Fn(&Sample) -> u64) -> String {
    let mut text = String::new();
    for window_s in WINDOWS_S {
        let back = (window_s as usize).min(samples.len().saturating_sub(1));
        let rate = match (samples.len().checked_sub(back + 1).and_then(|index| samples.get(index)), samples.back()) {
            (Some(from), Some(to)) if to.at_ms > from.at_ms => {
                value(to).saturating_sub(value(from)) as f64 * 1000.0 / (to.at_ms - from.at_ms) as f64
            }
            _ => 0.0,
        };
        if !text.is_empty() {
            text.push(' ');
        }
        write!(text, "{rate}").expect("writing to a String");
    }
    text
}

/// Days since 1970 by this machine's calendar.
fn local_day(now_ms: u64) -> i64 {
    let seconds = (now_ms / 1000) as libc::time_t;
    // SAFETY: all zeros is a valid `tm`, and `localtime_r` writes only to the one given.
    let offset_s = unsafe {
        let mut local: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&seconds, &mut local).is_null() { 0 } else { local.tm_gmtoff }
    };
    (seconds + offset_s).div_euclid(86_400)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_begin_with_a_number() {
        let stats = Stats::new(0);
        let put_tps = |stats: &Stats| stats.table()[0].1.clone();
        assert_eq!(put_tps(&stats), "0 0 0");
        for second in 0..=20 {
            stats.sample(second * 1000);
            stats.put(50, 5000);
        }
        assert_eq!(put_tps(&stats), "50 50 50");
    }

    #[test]
    fn a_group_has_its_own_rate() {
        let stats = Stats::new(0);
        stats.got("g", "T", 10, 0);
        stats.sample(0);
        stats.got("g", "T", 100, 0);
        stats.sample(9_999);
        assert_eq!(stats.consume_tps("g", "T"), 0.0);
        stats.sample(10_000);
        assert_eq!(stats.consume_tps("g", "T"), 10.0);
        assert_eq!(stats.consume_tps("g", "U"), 0.0);
    }

    #[test]
    fn midnight_moves_the_totals() {
        let stats = Stats::new(86_400_000 * 10);
        stats.put(7, 7);
        stats.sample(86_400_000 * 11 + 1);
        let table: HashMap<_, _> = stats.table().into_iter().collect();
        assert_eq!(table["msgPutTotalTodayMorning"], "7");
        assert_eq!(table["msgPutTotalYesterdayMorning"], "0");
    }
}
