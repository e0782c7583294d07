//! Which brokers live: their last sign, the connection they registered through, and when their time is up.
//!
//! ```text
//! absent ──103──> live ──103, 322, 904──> live, its time starts again
//!                  │ 104 · its connection closes · silent for its time-out · its address is taken over
//!                  └──> absent
//! ```
//!
//! Time is the monotonic clock, handed in. The key is cluster and address, as in 5.3.3.
//! Source: RouteInfoManager.BrokerLiveInfo, BrokerHousekeepingService.java.

use ringmq_net::protocol::body::topic::DataVersion;
use ringmq_net::reactor::ConnId;
use std::collections::HashMap;
use std::sync::Arc;

/// For a broker that names no time-out of its own.
pub const TIMEOUT_MS: u64 = 120_000;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BrokerKey {
    pub cluster: Arc<str>,
    pub addr: Arc<str>,
}

impl BrokerKey {
    pub fn new(cluster: &str, addr: &str) -> BrokerKey {
        BrokerKey { cluster: cluster.into(), addr: addr.into() }
    }
}

#[derive(Clone, Debug)]
pub struct Live {
    pub broker_name: Arc<str>,
    pub broker_id: i64,
    pub version: DataVersion,
    pub ha_server_addr: String,
    pub conn: ConnId,
    pub timeout_ms: u64,
    pub seen_ms: u64,
    /// Of the last registration's body, so that the same one again costs nothing.
    pub body_digest: Option<u64>,
    /// Whether its topics were taken into the route table then.
    pub gives_topics: bool,
}

#[derive(Debug)]
pub struct Liveness {
    lives: HashMap<BrokerKey, Live>,
    by_conn: HashMap<ConnId, Vec<BrokerKey>>,
    scan_interval_ms: u64,
    scan_at_ms: u64,
}

impl Liveness {
    pub fn new(scan_interval_ms: u64) -> Liveness {
        Liveness { lives: HashMap::new(), by_conn: HashMap::new(), scan_interval_ms, scan_at_ms: 0 }
    }

    pub fn set_scan_interval(&mut self, scan_interval_ms: u64) {
        self.scan_interval_ms = scan_interval_ms;
    }

    pub fn count(&self) -> usize {
        self.lives.len()
    }

    pub fn get(&self, key: &BrokerKey) -> Option<&Live> {
        self.lives.get(key)
    }

    /// A broker lives from now on through `live.conn`, whatever connection it had before.
    pub fn put(&mut self, key: BrokerKey, live: Live) {
        if self.lives.is_empty() {
            self.scan_at_ms = live.seen_ms + self.scan_interval_ms;
        }
        let conn = live.conn;
        let before = self.lives.insert(key.clone(), live);
        if let Some(before) = before.filter(|before| before.conn != conn) {
            self.unlink(before.conn, &key);
        }
        let keys = self.by_conn.entry(conn).or_default();
        if !keys.contains(&key) {
            keys.push(key);
        }
    }

    pub fn touch(&mut self, key: &BrokerKey, now_ms: u64) {
        if let Some(live) = self.lives.get_mut(key) {
            live.seen_ms = now_ms;
        }
    }

    /// The next registration of these brokers is taken over in full, even if it is the same again.
    pub fn forget_digests(&mut self, which: impl Fn(&Live) -> bool) {
        for live in self.lives.values_mut().filter(|live| which(live)) {
            live.body_digest = None;
        }
    }

    pub fn remove(&mut self, key: &BrokerKey) -> Option<Live> {
        let live = self.lives.remove(key)?;
        self.unlink(live.conn, key);
        Some(live)
    }

    /// Every broker that registered through this connection and through no other since.
    pub fn remove_conn(&mut self, conn: ConnId) -> Vec<(BrokerKey, Live)> {
        let keys = self.by_conn.remove(&conn).unwrap_or_default();
        keys.into_iter().filter_map(|key| self.lives.remove(&key).map(|live| (key, live))).collect()
    }

    /// Brokers whose time is up; empty between two scans.
    pub fn expire(&mut self, now_ms: u64) -> Vec<(BrokerKey, Live)> {
        if now_ms < self.scan_at_ms || self.lives.is_empty() {
            return Vec::new();
        }
        self.scan_at_ms = now_ms + self.scan_interval_ms;
        let up = |live: &Live| now_ms.saturating_sub(live.seen_ms) > live.timeout_ms;
        let keys: Vec<BrokerKey> = self.lives.iter().filter(|(_, live)| up(live)).map(|(key, _)| key.clone()).collect();
        keys.into_iter().filter_map(|key| self.remove(&key).map(|live| (key, live))).collect()
    }

    /// When [`Liveness::expire`] next has something to look at.
    pub fn scan_at_ms(&self) -> Option<u64> {
        (!self.lives.is_empty()).then_some(self.scan_at_ms)
    }

    fn unlink(&mut self, conn: ConnId, key: &BrokerKey) {
        if let Some(keys) = self.by_conn.get_mut(&conn) {
            keys.retain(|other| other != key);
            if keys.is_empty() {
                self.by_conn.remove(&conn);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conn(slot: u32) -> ConnId {
        ConnId { slot, generation: 1 }
    }

    fn live(conn: ConnId, seen_ms: u64) -> Live {
        Live {
            broker_name: "b".into(),
            broker_id: 0,
            version: DataVersion::default(),
            ha_server_addr: String::new(),
            conn,
            timeout_ms: TIMEOUT_MS,
            seen_ms,
            body_digest: None,
            gives_topics: true,
        }
    }

    fn key(addr: &str) -> BrokerKey {
        BrokerKey::new("c", addr)
    }

    #[test]
    fn silence_ends_a_broker_after_its_own_time() {
        let mut liveness = Liveness::new(5000);
        assert_eq!(liveness.scan_at_ms(), None);
        liveness.put(key("slow"), live(conn(1), 1000));
        liveness.put(key("fast"), Live { timeout_ms: 10_000, ..live(conn(2), 1000) });
        assert_eq!(liveness.scan_at_ms(), Some(6000));
        // now, brokers that end
        for (now_ms, want) in [
            (5999, vec![]),
            (6000, vec![]),
            (11_000, vec![]),
            (15_999, vec![]),
            (16_000, vec!["fast"]),
            (120_000, vec![]),
            (121_001, vec![]),
            (125_000, vec!["slow"]),
        ] {
            let mut ended: Vec<String> = liveness.expire(now_ms).iter().map(|(key, _)| key.addr.to_string()).collect();
            ended.sort();
            assert_eq!(ended, want, "now={now_ms}");
        }
        assert_eq!(liveness.count(), 0);
        assert!(liveness.by_conn.is_empty());
    }

    #[test]
    fn a_sign_of_life_starts_the_time_again() {
        let mut liveness = Liveness::new(5000);
        liveness.put(key("a"), live(conn(1), 0));
        liveness.touch(&key("a"), 100_000);
        liveness.touch(&key("nobody"), 100_000);
        assert!(liveness.expire(200_000).is_empty());
        assert_eq!(liveness.expire(220_001).len(), 1);
    }

    #[test]
    fn only_the_last_connection_of_a_broker_ends_it() {
        let mut liveness = Liveness::new(5000);
        liveness.put(key("a"), live(conn(1), 0));
        liveness.put(key("b"), live(conn(1), 0));
        liveness.put(key("a"), live(conn(2), 1));
        let ended = liveness.remove_conn(conn(1));
        assert_eq!(ended.len(), 1);
        assert_eq!(&*ended[0].0.addr, "b");
        assert!(liveness.remove_conn(conn(1)).is_empty());
        assert_eq!(liveness.remove_conn(conn(2)).len(), 1);
        liveness.put(key("a"), live(conn(3), 2));
        assert!(liveness.remove(&key("a")).is_some());
        assert!(liveness.remove_conn(conn(3)).is_empty());
        assert!(liveness.by_conn.is_empty());
    }
}
