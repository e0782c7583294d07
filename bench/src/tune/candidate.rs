//! Configurations worth a measurement, and what each may lose.
//!
//! ```text
//! first     promises      SYNC_FLUSH; ASYNC_FLUSH by interval and pages; the pool by commit interval
//! then      on the best   warm-up, medium, shards, busy polling: what the broker has keys for
//! ```
//! What a configuration may lose follows from its keys: an interval, and one flush that runs when a message comes. With
//! `…LeastPages` above 0 a trickle of fewer pages waits for the thorough interval, so that counts.

use crate::goal::Goal;
use serde::Serialize;
use std::collections::BTreeMap;

/// A flush that is under way when a message comes, and the one that takes it.
pub const FLUSH_MS: f64 = 50.0;

/// Milliseconds of acknowledged messages, at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Loss {
    pub power_ms: f64,
    pub kill_ms: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    pub name: String,
    /// Lines of broker.conf.
    pub properties: Vec<(String, String)>,
}

impl Candidate {
    fn new(name: &str, lines: &[&str]) -> Self {
        let properties = lines.iter().filter_map(|line| line.split_once('='));
        let properties = properties.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        Self { name: name.to_owned(), properties }
    }

    /// The same with more lines.
    pub fn with(&self, more: &Self) -> Self {
        let mut properties = self.properties.clone();
        for (key, value) in &more.properties {
            properties.retain(|(known, _)| known != key);
            properties.push((key.clone(), value.clone()));
        }
        Self { name: format!("{} {}", self.name, more.name), properties }
    }

    pub fn lines(&self) -> Vec<String> {
        self.properties.iter().map(|(key, value)| format!("{key}={value}")).collect()
    }

    /// Keys that a broker does not know.
    pub fn unknown_keys(&self, known: &BTreeMap<String, String>) -> Vec<&str> {
        self.properties.iter().map(|(key, _)| key.as_str()).filter(|key| !known.contains_key(*key)).collect()
    }

    /// By its own lines, or what the broker has without them.
    pub fn loss(&self, known: &BTreeMap<String, String>) -> Loss {
        let value = |key: &str| {
            let own = self.properties.iter().find(|(of, _)| of == key).map(|(_, value)| value);
            own.or_else(|| known.get(key)).map_or("", String::as_str)
        };
        let number = |key: &str, default: f64| value(key).parse().unwrap_or(default);
        if value("flushDiskType") == "SYNC_FLUSH" {
            return Loss::default();
        }
        let waits = |pages: &str, interval: (&str, f64), thorough: (&str, f64)| {
            let interval_ms = number(interval.0, interval.1);
            // The thorough one is looked at in the turns of the other.
            if number(pages, 4.0) > 0.0 { number(thorough.0, thorough.1).max(interval_ms) } else { interval_ms }
        };
        let flush_ms = FLUSH_MS
            + waits(
                "flushCommitLogLeastPages",
                ("flushIntervalCommitLog", 500.0),
                ("flushCommitLogThoroughInterval", 10_000.0),
            );
        let kill_ms = match value("transientStorePoolEnable") {
            "true" => waits(
                "commitCommitLogLeastPages",
                ("commitIntervalCommitLog", 200.0),
                ("commitCommitLogThoroughInterval", 200.0),
            ),
            _ => 0.0,
        };
        Loss { power_ms: flush_ms + kill_ms, kill_ms }
    }
}

impl Loss {
    pub fn is_within(self, goal: &Goal) -> bool {
        let is_below = |ms: f64, limit: Option<f64>| limit.is_none_or(|limit| ms <= limit);
        is_below(self.power_ms, goal.power_loss_ms) && is_below(self.kill_ms, goal.kill_loss_ms)
    }
}

pub fn promises() -> Vec<Candidate> {
    let async_flush = |name: &str, interval: &str| {
        Candidate::new(name, &["flushDiskType=ASYNC_FLUSH", interval, "flushCommitLogLeastPages=0"])
    };
    let pool = |name: &str, commit: &str, flush: &str| {
        let lines = [
            "flushDiskType=ASYNC_FLUSH",
            "transientStorePoolEnable=true",
            "transientStorePoolSize=3",
            commit,
            "commitCommitLogLeastPages=0",
            flush,
            "flushCommitLogLeastPages=0",
        ];
        Candidate::new(name, &lines)
    };
    vec![
        Candidate::new("sync", &["flushDiskType=SYNC_FLUSH"]),
        async_flush("async-20ms", "flushIntervalCommitLog=20"),
        async_flush("async-100ms", "flushIntervalCommitLog=100"),
        async_flush("async-500ms", "flushIntervalCommitLog=500"),
        Candidate::new("async-default", &["flushDiskType=ASYNC_FLUSH"]),
        pool("pool-10ms", "commitIntervalCommitLog=10", "flushIntervalCommitLog=100"),
        pool("pool-50ms", "commitIntervalCommitLog=50", "flushIntervalCommitLog=100"),
        pool("pool-200ms", "commitIntervalCommitLog=200", "flushIntervalCommitLog=500"),
    ]
}

/// What may be added to any of them.
pub fn settings(cores: usize) -> Vec<Candidate> {
    let shards = |count: usize| Candidate::new(&format!("shards-{count}"), &[&format!("ringmq.shards={count}")]);
    let mut settings = vec![
        Candidate::new("warm", &["warmMapedFileEnable=true"]),
        Candidate::new("mapped", &["ringmq.commitLogMedium=mapped"]),
        shards(cores.max(2)),
    ];
    // Busy polling takes a core of its own.
    if cores > 2 {
        settings.push(Candidate::new("spin-20us", &["ringmq.spinMicros=20"]));
    }
    settings
}

/// `name: key=value, key=value`
pub fn named(text: &str) -> Result<Candidate, String> {
    let form = || format!("{text:?} is not of the form \"name: key=value, key=value\"");
    let (name, lines) = text.split_once(':').ok_or_else(form)?;
    let lines: Vec<&str> = lines.split(',').map(str::trim).collect();
    if name.trim().is_empty() || lines.iter().any(|line| !line.contains('=')) {
        return Err(form());
    }
    Ok(Candidate::new(name.trim(), &lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_lost_follows_from_the_keys() {
        let promises = promises();
        // power, kill
        for (name, power_ms, kill_ms) in [
            ("sync", 0.0, 0.0),
            ("async-20ms", 70.0, 0.0),
            ("async-500ms", 550.0, 0.0),
            // Its least pages are 4, so a trickle waits for ten seconds.
            ("async-default", 10_050.0, 0.0),
            ("pool-50ms", 200.0, 50.0),
        ] {
            let candidate = promises.iter().find(|candidate| candidate.name == name).unwrap();
            assert_eq!(candidate.loss(&BTreeMap::new()), Loss { power_ms, kill_ms }, "{name}");
        }
        let known = [("flushCommitLogThoroughInterval".to_owned(), "1000".to_owned())].into();
        assert_eq!(promises[4].loss(&known).power_ms, 1_050.0);
        let slow = named("slow: flushIntervalCommitLog=20000").unwrap();
        assert_eq!(slow.loss(&known).power_ms, 20_050.0);
    }

    #[test]
    fn a_loss_is_within_what_was_said_only() {
        for (goal, power_ms, kill_ms, want) in [
            ("may lose 200ms on power loss", 200.0, 999.0, true),
            ("may lose 200ms on power loss", 201.0, 0.0, false),
            ("may lose nothing on kill", 9_999.0, 0.0, true),
            ("may lose nothing", 0.0, 1.0, false),
            ("at 5 msg/s", 9e9, 9e9, true),
        ] {
            assert_eq!(Loss { power_ms, kill_ms }.is_within(&goal.parse().unwrap()), want, "{goal}");
        }
    }

    #[test]
    fn candidates_are_read_and_laid_over_each_other() {
        let own = named("mine: flushDiskType=SYNC_FLUSH, a=1").unwrap();
        assert_eq!((own.name.as_str(), own.lines()), ("mine", vec!["flushDiskType=SYNC_FLUSH".into(), "a=1".into()]));
        let both = own.with(&named("more: a=2").unwrap());
        assert_eq!(
            (both.name.as_str(), both.lines()),
            ("mine more", vec!["flushDiskType=SYNC_FLUSH".into(), "a=2".into()])
        );
        let known = [("a".to_owned(), String::new())].into();
        assert_eq!(both.unknown_keys(&known), ["flushDiskType"]);
        for bad in ["", "x", "x: y", ": a=1"] {
            assert!(named(bad).is_err(), "{bad}");
        }
    }
}
