//! Counters: what brokerStatus, clusterList, consumerProgress and statsAll print.
//!
//! ```text
//! shards add to atomics ─┬─ of all, each second a sample ─> rates over 10, 60 and 600 s
//!                        └─ of a topic, of a group in a topic: samples of the minute, the hour and the day
//! ```
//! All counts begin at 0 with the process, as in Java. What a topic got counts where it was stored: a delayed message at
//! the schedule topic and, when it is due, at its own; a half message at the half topic and, committed, at its own.
//! Source: StoreStatsService.java, BrokerStats.java, BrokerStatsManager.java, StatsItem.java.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

const SAMPLE_COUNT_MAX: usize = 601;
const WINDOWS_S: [u64; 3] = [10, 60, 600];

/// What an item is asked over: samples, and the time from the oldest of them to the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    Minute,
    Hour,
    Day,
}

const SPANS: [Span; 3] = [Span::Minute, Span::Hour, Span::Day];

impl Span {
    const fn interval_ms(self) -> u64 {
        match self {
            Span::Minute => 10_000,
            Span::Hour => 600_000,
            Span::Day => 3_600_000,
        }
    }

    const fn sample_count_max(self) -> usize {
        match self {
            Span::Minute | Span::Hour => 7,
            Span::Day => 25,
        }
    }
}

const _: () = assert!(Span::Minute.interval_ms() * (Span::Minute.sample_count_max() as u64 - 1) == 60_000);
const _: () = assert!(Span::Hour.interval_ms() * (Span::Hour.sample_count_max() as u64 - 1) == 3_600_000);
const _: () = assert!(Span::Day.interval_ms() * (Span::Day.sample_count_max() as u64 - 1) == 86_400_000);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sample {
    at_ms: u64,
    put: u64,
    found: u64,
    missed: u64,
    transferred: u64,
}

/// Messages, their bytes, and the requests that brought or took them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub count: u64,
    pub bytes: u64,
    pub times: u64,
}

impl AddAssign for Totals {
    fn add_assign(&mut self, more: Totals) {
        self.count += more.count;
        self.bytes += more.bytes;
        self.times += more.times;
    }
}

/// What a topic got, what a group took from a topic, what it sent back.
#[derive(Debug, Default)]
struct Item {
    count: AtomicU64,
    bytes: AtomicU64,
    times: AtomicU64,
    /// Of each of [`SPANS`], with the time in ms.
    samples: Mutex<[VecDeque<(u64, Totals)>; SPANS.len()]>,
}

impl Item {
    fn add(&self, more: Totals) {
        self.count.fetch_add(more.count, Ordering::Relaxed);
        self.bytes.fetch_add(more.bytes, Ordering::Relaxed);
        self.times.fetch_add(more.times, Ordering::Relaxed);
    }

    fn totals(&self) -> Totals {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Totals { count: load(&self.count), bytes: load(&self.bytes), times: load(&self.times) }
    }

    fn sample(&self, spans: &[Span], now_ms: u64) {
        let totals = self.totals();
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        for span in spans {
            let samples = &mut samples[*span as usize];
            if samples.is_empty() {
                // It was not there before: all that it has came since the last look at the others.
                samples.push_back((now_ms.saturating_sub(span.interval_ms()), Totals::default()));
            }
            samples.push_back((now_ms, totals));
            while samples.len() > span.sample_count_max() {
                samples.pop_front();
            }
        }
    }

    fn counted(&self, span: Span, value: impl Fn(&Totals) -> u64) -> Counted {
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let samples = &samples[span as usize];
        let (Some((from_ms, from)), Some((to_ms, to))) = (samples.front(), samples.back()) else {
            return Counted::default();
        };
        let (sum, times) = (value(to).saturating_sub(value(from)), to.times.saturating_sub(from.times));
        let per = |divisor: u64, factor: f64| if divisor > 0 { sum as f64 * factor / divisor as f64 } else { 0.0 };
        Counted { sum, tps: per(to_ms.saturating_sub(*from_ms), 1000.0), avgpt: per(times, 1.0) }
    }

    /// Nothing has happened for a day.
    fn is_idle(&self) -> bool {
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let day = &samples[Span::Day as usize];
        day.len() == Span::Day.sample_count_max() && day.front().is_some_and(|(_, totals)| *totals == self.totals())
    }
}

/// An item over a span, by Java's names: the sum, the sum of a second, the sum of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Counted {
    pub avgpt: f64,
    pub sum: u64,
    pub tps: f64,
}

/// By topic, then by group; what has no group has an empty one. Adding to an item that is there takes no exclusive lock,
/// nor does sampling.
#[derive(Debug, Default)]
struct Items(RwLock<HashMap<String, HashMap<String, Item>>>);

impl Items {
    fn read(&self) -> RwLockReadGuard<'_, HashMap<String, HashMap<String, Item>>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<String, HashMap<String, Item>>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, topic: &str, group: &str, more: Totals) {
        if let Some(item) = self.read().get(topic).and_then(|groups| groups.get(group)) {
            return item.add(more);
        }
        self.write().entry(topic.to_string()).or_default().entry(group.to_string()).or_default().add(more);
    }

    fn with<T>(&self, topic: &str, group: &str, look: impl FnOnce(&Item) -> T) -> Option<T> {
        self.read().get(topic).and_then(|groups| groups.get(group)).map(look)
    }

    fn sample(&self, spans: &[Span], now_ms: u64) {
        for item in self.read().values().flat_map(HashMap::values) {
            item.sample(spans, now_ms);
        }
        if spans.contains(&Span::Day) {
            self.write().retain(|_, groups| {
                groups.retain(|_, item| !item.is_idle());
                !groups.is_empty()
            });
        }
    }

    fn remove_group(&self, group: &str) {
        self.write().retain(|_, groups| {
            groups.remove(group);
            !groups.is_empty()
        });
    }
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
    puts: Items,
    gets: Items,
    backs: Items,
    /// Of the whole broker: puts, gets.
    both: [Item; 2],
    /// When items were sampled last, for each of [`SPANS`].
    sampled_ms: Mutex<[Option<u64>; SPANS.len()]>,
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
            puts: Items::default(),
            gets: Items::default(),
            backs: Items::default(),
            both: Default::default(),
            sampled_ms: Mutex::default(),
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

    /// What was put into topics: once for each batch, a part for each of its queues. `all` is what of it is new to the
    /// broker.
    pub fn put_into<'a>(&self, puts: impl Iterator<Item = (&'a str, Totals)>, all: Totals) {
        let mut new = Vec::new();
        let items = self.puts.read();
        for (topic, put) in puts.filter(|(_, put)| put.count > 0) {
            match items.get(topic).and_then(|groups| groups.get("")) {
                Some(item) => item.add(put),
                None => new.push((topic, put)),
            }
        }
        drop(items);
        new.into_iter().for_each(|(topic, put)| self.puts.add(topic, "", put));
        self.both[0].add(all);
    }

    /// Once for each pull that found something.
    pub fn got(&self, group: &str, topic: &str, count: u64, bytes: u64) {
        self.found_times.fetch_add(1, Ordering::Relaxed);
        self.get_count.fetch_add(count, Ordering::Relaxed);
        let got = Totals { count, bytes, times: 1 };
        self.gets.add(topic, group, got);
        self.both[1].add(got);
    }

    /// A message of the topic that a member of the group wants again.
    pub fn sent_back(&self, group: &str, topic: &str) {
        self.backs.add(topic, group, Totals { count: 1, bytes: 0, times: 1 });
    }

    /// A topic that was deleted takes its items with it.
    pub fn remove_topic(&self, topic: &str) {
        for items in [&self.puts, &self.gets, &self.backs] {
            items.write().remove(topic);
        }
    }

    /// And a group.
    pub fn remove_group(&self, group: &str) {
        self.gets.remove_group(group);
        self.backs.remove_group(group);
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

        let mut sampled_ms = self.sampled_ms.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = |span: &Span| {
            sampled_ms[*span as usize].is_none_or(|at_ms| now_ms.saturating_sub(at_ms) >= span.interval_ms())
        };
        let due: Vec<Span> = SPANS.into_iter().filter(is_due).collect();
        due.iter().for_each(|span| sampled_ms[*span as usize] = Some(now_ms));
        drop(sampled_ms);
        if !due.is_empty() {
            [&self.puts, &self.gets, &self.backs].into_iter().for_each(|items| items.sample(&due, now_ms));
            self.both.iter().for_each(|item| item.sample(&due, now_ms));
        }

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
        self.gets.with(topic, group, |item| item.counted(Span::Minute, |totals| totals.count).tps).unwrap_or(0.0)
    }

    /// Messages a second that were put into the topic, over the last minute.
    pub fn put_tps(&self, topic: &str) -> f64 {
        self.puts.with(topic, "", |item| item.counted(Span::Minute, |totals| totals.count).tps).unwrap_or(0.0)
    }

    /// Minute, hour and day of an item by Java's name and key. `None` for a name that is not counted, and where nothing
    /// was counted.
    pub fn item(&self, name: &str, key: &str, cluster: &str) -> Option<[Counted; SPANS.len()]> {
        let count = |totals: &Totals| totals.count;
        let bytes = |totals: &Totals| totals.bytes;
        let counted = |value: fn(&Totals) -> u64| move |item: &Item| SPANS.map(|span| item.counted(span, value));
        // Neither has an `@` in it.
        let in_topic = key.split_once('@');
        match name {
            "TOPIC_PUT_NUMS" => self.puts.with(key, "", counted(count)),
            "TOPIC_PUT_SIZE" => self.puts.with(key, "", counted(bytes)),
            "GROUP_GET_NUMS" => in_topic.and_then(|(topic, group)| self.gets.with(topic, group, counted(count))),
            "GROUP_GET_SIZE" => in_topic.and_then(|(topic, group)| self.gets.with(topic, group, counted(bytes))),
            "SNDBCK_PUT_NUMS" => in_topic.and_then(|(topic, group)| self.backs.with(topic, group, counted(count))),
            "BROKER_PUT_NUMS" if key == cluster => Some(counted(count)(&self.both[0])),
            "BROKER_GET_NUMS" if key == cluster => Some(counted(count)(&self.both[1])),
            _ => None,
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
        assert_eq!(stats.consume_tps("g", "T"), 0.0);
        // What came before the first sample came within one interval.
        stats.sample(100_000);
        assert_eq!(stats.consume_tps("g", "T"), 1.0);
        stats.got("g", "T", 100, 0);
        stats.sample(109_999);
        assert_eq!(stats.consume_tps("g", "T"), 1.0);
        stats.sample(110_000);
        assert_eq!(stats.consume_tps("g", "T"), 5.5);
        assert_eq!(stats.consume_tps("g", "U"), 0.0);
    }

    #[test]
    fn minute_hour_and_day_have_their_samples() {
        let stats = Stats::new(0);
        let start_ms = 86_400_000 * 100;
        for second in 0..7200 {
            let put = Totals { count: 2, bytes: 300, times: 1 };
            stats.put_into([("T", put)].into_iter(), put);
            stats.got("g", "T", 1, 150);
            stats.sample(start_ms + second * 1000);
        }
        stats.sent_back("g", "T");
        let [minute, hour, day] = stats.item("TOPIC_PUT_NUMS", "T", "C").unwrap();
        assert_eq!((minute.sum, minute.tps, minute.avgpt), (120, 2.0, 2.0));
        assert_eq!((hour.sum, hour.tps), (7200, 2.0));
        // The last sample of the day was the one after an hour.
        assert_eq!(day.sum, 7202);
        let [minute, ..] = stats.item("GROUP_GET_SIZE", "T@g", "C").unwrap();
        assert_eq!((minute.sum, minute.avgpt), (9000, 150.0));
        assert_eq!(stats.item("BROKER_PUT_NUMS", "C", "C").unwrap()[0].sum, 120);
        assert_eq!(stats.item("SNDBCK_PUT_NUMS", "T@g", "C").unwrap(), [Counted::default(); 3]);
        for (name, key) in [
            ("TOPIC_PUT_NUMS", "U"),
            ("TOPIC_PUT_NUMS", ""),
            ("GROUP_GET_NUMS", "T"),
            ("GROUP_GET_NUMS", "T@h"),
            ("BROKER_PUT_NUMS", "D"),
            ("NO_SUCH_NUMS", "T"),
        ] {
            assert_eq!(stats.item(name, key, "C"), None, "{name} {key}");
        }
        stats.remove_group("g");
        assert_eq!(stats.item("GROUP_GET_NUMS", "T@g", "C"), None);
        stats.remove_topic("T");
        assert_eq!(stats.item("TOPIC_PUT_NUMS", "T", "C"), None);
    }

    #[test]
    fn what_is_idle_for_a_day_is_forgotten() {
        let stats = Stats::new(0);
        stats.put_into([("T", Totals { count: 1, bytes: 1, times: 1 })].into_iter(), Totals::default());
        for hour in 0..25 {
            assert!(stats.item("TOPIC_PUT_NUMS", "T", "C").is_some(), "{hour}");
            stats.sample(86_400_000 + hour * 3_600_000);
        }
        assert_eq!(stats.item("TOPIC_PUT_NUMS", "T", "C"), None);
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
