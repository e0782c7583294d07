//! GET_BROKER_RUNTIME_INFO (28): texts by name, as clusterList and brokerStatus print them. Queues and thread pools that
//! this broker does not have are shown as empty, since tools read their sizes.
//! Source: AdminBrokerProcessor.prepareRuntimeInfo, DefaultMessageStore.getRuntimeInfo.

use crate::broker::{Answer, Broker, Refusal, Request};
use ringmq_net::protocol::body::stats::KVTable;
use ringmq_net::protocol::codes::version;
use std::path::Path;

pub fn info(broker: &Broker, request: &Request<'_, '_>) -> Result<Answer, Refusal> {
    let now_ms = request.now.wall_ms;
    let store = &broker.store;
    let mut table = KVTable::default();
    let mut put = |name: &str, value: String| table.table.insert(name.to_string(), value);
    put("brokerVersionDesc", version::CURRENT_NAME.to_string());
    put("brokerVersion", version::CURRENT.to_string());
    put("brokerActive", "true".to_string());
    put("ringmqVersion", env!("CARGO_PKG_VERSION").to_string());
    put("bootTimestamp", broker.boot_ms.to_string());
    put("runtime", runtime(now_ms.saturating_sub(broker.boot_ms)));
    for (name, value) in broker.stats.table() {
        put(name, value);
    }
    put("putMessageDistributeTime", distribution());
    for (name, value) in [
        ("putMessageEntireTimeMax", "0"),
        ("getMessageEntireTimeMax", "0"),
        ("putLatency99", "0.00"),
        ("putLatency999", "0.00"),
        ("dispatchMaxBuffer", "0"),
        ("dispatchBehindBytes", "0"),
        ("pageCacheLockTimeMills", "0"),
        ("startAcceptSendRequestTimeStamp", "0"),
        ("EndTransactionQueueSize", "0"),
        ("EndTransactionThreadPoolQueueCapacity", "100000"),
        ("timerReadBehind", "0"),
        ("timerOffsetBehind", "0"),
        ("timerCongestNum", "0"),
        ("timerEnqueueTps", "0.0"),
        ("timerDequeueTps", "0.0"),
    ] {
        put(name, value.to_string());
    }
    for (pool, capacity) in
        [("send", "10000"), ("pull", "100000"), ("query", "20000"), ("litePull", "100000"), ("ack", "100000")]
    {
        put(&format!("{pool}ThreadPoolQueueSize"), "0".to_string());
        put(&format!("{pool}ThreadPoolQueueCapacity"), capacity.to_string());
        put(&format!("{pool}ThreadPoolQueueHeadWaitTimeMills"), "0".to_string());
    }
    for (level, cursor, max) in broker.schedule.progress(store) {
        put(&format!("scheduleMessageOffset_{level}"), format!("{cursor},{max}"));
    }
    let buffers = store.pool_free_count().unwrap_or(i32::MAX as usize);
    put("remainTransientStoreBufferNumbs", buffers.to_string());
    let uncommitted = store.log_max().saturating_sub(store.log_committed());
    put("remainHowManyDataToCommit", format!("{uncommitted} B"));
    let unflushed = store.log_max().saturating_sub(store.log_flushed());
    put("remainHowManyDataToFlush", format!("{unflushed} B"));
    put("commitLogMinOffset", store.log_min().to_string());
    put("commitLogMaxOffset", store.log_max().to_string());
    put("earliestMessageTimeStamp", store.earliest_store_time().to_string());
    let log_dir = &broker.config.store_path_commit_log;
    let (log_ratio, capacity) = disk(log_dir);
    put("commitLogDiskRatio", log_ratio.clone());
    put(&format!("commitLogDiskRatio_{}", log_dir.display()), log_ratio);
    put("consumeQueueDiskRatio", disk(&broker.config.store_path_root).0);
    put("commitLogDirCapacity", capacity);
    Ok(Answer::body(table.to_json()))
}

fn runtime(ms: u64) -> String {
    let s = ms / 1000;
    format!("[ {} days, {} hours, {} minutes, {} seconds ]", s / 86_400, s / 3600 % 24, s / 60 % 60, s % 60)
}

/// Sends are not timed one by one; the ranges are those of Java's text.
fn distribution() -> String {
    [
        "<=0ms",
        "0~10ms",
        "10~50ms",
        "50~100ms",
        "100~200ms",
        "200~500ms",
        "500ms~1s",
        "1~2s",
        "2~3s",
        "3~4s",
        "4~5s",
        "5~10s",
        "10s~",
    ]
    .map(|range| format!("[{range}]:0"))
    .join(" ")
}

/// The used share of the file system, and its size in words.
fn disk(path: &Path) -> (String, String) {
    let Ok(stat) = nix::sys::statvfs::statvfs(path) else {
        return ("-1".to_string(), "Total : unknown, Free : unknown.".to_string());
    };
    let (total, free) = (stat.blocks() * stat.fragment_size(), stat.blocks_available() * stat.fragment_size());
    let used = total.saturating_sub(free) as f64 / total.max(1) as f64;
    (format!("{used:.4}"), format!("Total : {}, Free : {}.", binary(total), binary(free)))
}

/// `12.3 GiB`.
fn binary(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let power = (bytes.max(1).ilog2() / 10).min(5);
    format!("{:.1} {}", bytes as f64 / 1024f64.powi(power as i32), UNITS[power as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_in_words() {
        assert_eq!(binary(0), "0.0 B");
        assert_eq!(binary(1536), "1.5 KiB");
        assert_eq!(binary(5 << 40), "5.0 TiB");
        assert_eq!(runtime(90_061_000), "[ 1 days, 1 hours, 1 minutes, 1 seconds ]");
        let (ratio, words) = disk(Path::new("/"));
        assert!((0.0..=1.0).contains(&ratio.parse::<f64>().unwrap()));
        assert!(words.starts_with("Total : "));
    }
}
