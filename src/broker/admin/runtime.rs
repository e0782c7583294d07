//! GET_BROKER_RUNTIME_INFO (28): texts by name, as clusterList and brokerStatus print them. Queues and thread pools that
//! this broker does not have are shown as empty, since tools read their sizes.
//! Source: AdminBrokerProcessor.prepareRuntimeInfo, DefaultMessageStore.getRuntimeInfo.

use crate::broker::{Answer, Broker, Refusal, Request};
use ringmq_net::protocol::body::stats::KVTable;
use ringmq_net::protocol::codes::version;
use ringmq_storage::store::Store;

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
    let (log_ratio, queue_ratio, capacity) = disk(store);
    put("commitLogDiskRatio", log_ratio.clone());
    put(&format!("commitLogDiskRatio_{}", log_dir.display()), log_ratio);
    put("consumeQueueDiskRatio", queue_ratio);
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

/// The ratios that retention goes by, of the log and of the queues, and the size of the log's file system in words.
fn disk(store: &Store) -> (String, String, String) {
    let Ok(disk_use) = store.disk_use() else {
        return ("-1".to_string(), "-1".to_string(), "Total : unknown, Free : unknown.".to_string());
    };
    let ratio = |percent: u8| format!("{:.2}", f64::from(percent) / 100.0);
    let free = disk_use.log_free_bytes;
    let words = format!("Total : {}, Free : {}.", binary(disk_use.log_used_bytes + free), binary(free));
    (ratio(disk_use.log_percent), ratio(disk_use.queue_percent), words)
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
    }
}
