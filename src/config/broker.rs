//! What a broker can be told.

use super::keys::{BROKER_BLOCKED, BROKER_TUNING};
use super::limits::{Limits, SHARD_COUNT_MAX, default_shard_count};
use super::machine::Machine;
use super::setting::{DelayLevels, FlushDiskType, Hours, Text, settings};
use super::{
    ConfigError, Entry, Known, Notes, Place, Problem, UpdateError, apply, blocked_names, entries, file_entries, named,
    pairs,
};
use ringmq_storage::flush::{FlushKeys, Medium, PoolSize, Promise};
use ringmq_storage::index::IndexConfig;
use ringmq_storage::retention::RetentionKeys;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

const INT_MAX: u32 = i32::MAX as u32;
const QUEUE_ENTRY_BYTES: u32 = 20;
/// The most whole entries with which the place behind the last one still is a Java int.
const QUEUE_FILE_BYTES_MAX: u32 = INT_MAX / QUEUE_ENTRY_BYTES * QUEUE_ENTRY_BYTES - QUEUE_ENTRY_BYTES;

settings! {
    /// The keys of Java's BrokerConfig, MessageStoreConfig and NettyServerConfig that work, and ringmq's own.
    pub struct BrokerConfig {
        cluster_name: String = "brokerClusterName" important, Text::Name, |_| "DefaultCluster".to_string();
        broker_name: String = "brokerName" important, Text::Name, |machine| machine.host_name.clone();
        /// The address that clients are told.
        broker_ip1: String = "brokerIP1" important, Text::Host, |machine| machine.local_address.to_string();
        /// The address that slaves are told.
        broker_ip2: String = "brokerIP2" plain, Text::Host, |machine| machine.local_address.to_string();
        /// `listen_port - 2` serves too, all codes but pull.
        listen_port: u16 = "listenPort" important, 3..=65534, |_| 10911;
        /// Told to slaves with `broker_ip2`; 0 in a file means `listen_port + 1`.
        ha_listen_port: u16 = "haListenPort" plain, 0..=65535, |_| 0;
        bind_address: IpAddr = "bindAddress" plain, (), |_| IpAddr::from([0, 0, 0, 0]);
        /// `host:port` of every name server; empty when there is none.
        namesrv_addrs: Vec<String> = "namesrvAddr" important, (), |_| Vec::new();
        region_id: String = "regionId" plain, Text::Name, |_| "DefaultRegion".to_string();

        store_path_root: PathBuf = "storePathRootDir" important, (), |machine| machine.home.join("store");
        store_path_commit_log: PathBuf = "storePathCommitLog" important, (), |_| PathBuf::new();
        commit_log_file_bytes: u32 = "mappedFileSizeCommitLog" plain, 1024..=INT_MAX, |_| 1 << 30;
        /// A multiple of 20, rounded up as Java does.
        consume_queue_file_bytes: u32 = "mappedFileSizeConsumeQueue" plain, 20..=INT_MAX, |_| 6_000_000;
        /// Whether a send is answered before or after the flush that makes it durable.
        flush_disk_type: FlushDiskType = "flushDiskType" important, (), |_| FlushDiskType::Async;
        /// A send waits no longer for its flush; 0 does not wait at all.
        sync_flush_timeout_ms: u32 = "syncFlushTimeout" plain, 0..=INT_MAX, |_| 5000;
        commit_log_flush_interval_ms: u32 = "flushIntervalCommitLog" important, 1..=INT_MAX, |_| 500;
        commit_log_flush_timed: bool = "flushCommitLogTimed" plain, (), |_| true;
        commit_log_flush_pages_min: u32 = "flushCommitLogLeastPages" plain, 0..=INT_MAX, |_| 4;
        commit_log_flush_thorough_interval_ms: u32 = "flushCommitLogThoroughInterval" plain, 1..=INT_MAX, |_| 10_000;
        /// Zeros are written over the next log file, so that flushes find written blocks.
        warm_enable: bool = "warmMapedFileEnable" plain, (), |_| false;
        warm_pages: u32 = "flushLeastPagesWhenWarmMapedFile" plain, 1..=INT_MAX, |_| 4096;
        /// How records reach log files that have no buffer of the pool.
        commit_log_medium: Medium = "ringmq.commitLogMedium" plain, (), |_| Medium::Write;
        /// Sends are answered when they are in a buffer; with `SYNC_FLUSH` there is none.
        pool_enable: bool = "transientStorePoolEnable" important, (), |_| false;
        /// Buffers, each of a log file's size.
        pool_size: u32 = "transientStorePoolSize" plain, 1..=1024, |_| 5;
        pool_fast_fail: bool = "fastFailIfNoBufferInStorePool" plain, (), |_| false;
        commit_interval_ms: u32 = "commitIntervalCommitLog" important, 1..=INT_MAX, |_| 200;
        commit_pages_min: u32 = "commitCommitLogLeastPages" plain, 0..=INT_MAX, |_| 4;
        commit_thorough_interval_ms: u32 = "commitCommitLogThoroughInterval" plain, 1..=INT_MAX, |_| 200;
        consume_queue_flush_pages_min: u32 = "flushConsumeQueueLeastPages" plain, 0..=INT_MAX, |_| 2;
        consume_queue_flush_interval_ms: u32 = "flushIntervalConsumeQueue" plain, 1..=INT_MAX, |_| 1000;
        consume_queue_flush_thorough_interval_ms: u32 =
            "flushConsumeQueueThoroughInterval" plain, 1..=INT_MAX, |_| 60_000;
        /// Local hours in which expired files are deleted.
        delete_hours: Hours = "deleteWhen" important, (), |_| Hours(1 << 4);
        /// From this age on, by its last write, a log file is expired.
        reserved_hours: u32 = "fileReservedTime" important, 0..=1_000_000, |_| 72;
        /// Percent of the disk: above it, expired files are deleted at any hour.
        disk_ratio_max_percent: u8 = "diskMaxUsedSpaceRatio" plain, 10..=95, |_| 75;
        /// Above it, files are deleted at any age, if that is allowed.
        disk_ratio_force_percent: u8 = "diskSpaceCleanForciblyRatio" plain, 10..=85, |_| 85;
        /// Above it, sends are refused.
        disk_ratio_stop_percent: u8 = "diskSpaceWarningLevelRatio" plain, 10..=90, |_| 90;
        clean_forcibly: bool = "cleanFileForciblyEnable" plain, (), |_| true;
        clean_interval_ms: u32 = "cleanResourceInterval" plain, 100..=INT_MAX, |_| 10_000;
        log_delete_interval_ms: u32 = "deleteCommitLogFilesInterval" plain, 0..=60_000, |_| 100;
        queue_delete_interval_ms: u32 = "deleteConsumeQueueFilesInterval" plain, 0..=60_000, |_| 100;
        /// Log files of one round.
        delete_batch_max: u32 = "deleteFileBatchMax" plain, 1..=10_000, |_| 10;
        crc_check_on_recover: bool = "checkCRCOnRecover" plain, (), |_| true;
        index_enable: bool = "messageIndexEnable" plain, (), |_| true;
        index_slot_count: u32 = "maxHashSlotNum" plain, 1..=INT_MAX, |_| 5_000_000;
        index_item_count: u32 = "maxIndexNum" plain, 2..=INT_MAX, |_| 20_000_000;
        /// Messages in the answer to a query for a unique key, and to any query.
        query_count_default: u32 = "defaultQueryMaxNum" plain, 1..=1024, |_| 32;
        query_count_max: u32 = "maxMsgsNumBatch" plain, 1..=1024, |_| 64;

        /// Bytes of a message's body.
        message_bytes_max: u32 = "maxMessageSize" plain, 1..=16_711_680, |_| 4 << 20;
        topic_auto_create: bool = "autoCreateTopicEnable" important, (), |_| true;
        topic_queue_count_default: u16 = "defaultTopicQueueNums" plain, 1..=32_767, |_| 8;
        group_auto_create: bool = "autoCreateSubscriptionGroup" important, (), |_| true;
        /// Bit 4 read, bit 2 write.
        broker_permission: u8 = "brokerPermission" plain, 0..=7, |_| 6;
        cluster_topic_enable: bool = "clusterTopicEnable" plain, (), |_| true;
        broker_topic_enable: bool = "brokerTopicEnable" plain, (), |_| true;
        trace_topic_enable: bool = "traceTopicEnable" important, (), |_| false;
        trace_topic_name: String = "msgTraceTopicName" important, Text::Topic, |_| "RMQ_SYS_TRACE_TOPIC".to_string();
        /// Whether send answers ask clients to trace.
        trace_on: bool = "traceOn" plain, (), |_| true;
        /// Whether a reply message is stored, too, and not only given to its client.
        reply_store_enable: bool = "storeReplyMessageEnable" plain, (), |_| true;
        transaction_reject: bool = "rejectTransactionMessage" important, (), |_| false;
        /// Age from which a producer is asked about a half message.
        transaction_timeout_ms: u32 = "transactionTimeOut" important, 0..=INT_MAX, |_| 6000;
        transaction_check_interval_ms: u32 = "transactionCheckInterval" important, 1..=INT_MAX, |_| 60_000;
        /// Asked so often without an answer, a half message goes to TRANS_CHECK_MAX_TIME_TOPIC.
        transaction_check_max: u32 = "transactionCheckMax" important, 0..=INT_MAX, |_| 15;
        delay_levels: DelayLevels = "messageDelayLevel" plain, (),
            |_| DelayLevels { ms: ringmq_storage::record::properties::DELAYS_MS.to_vec() };
        delay_offset_flush_interval_ms: u32 = "flushDelayOffsetInterval" plain, 1..=INT_MAX, |_| 10_000;

        consumer_offset_flush_interval_ms: u32 = "flushConsumerOffsetInterval" plain, 1..=INT_MAX, |_| 5000;
        long_polling_enable: bool = "longPollingEnable" plain, (), |_| true;
        short_polling_ms: u32 = "shortPollingTimeMills" plain, 0..=INT_MAX, |_| 1000;
        /// Whether subscriptions may be SQL92 expressions.
        property_filter_enable: bool = "enablePropertyFilter" plain, (), |_| false;
        /// What was sent back is held against the expression for its first topic, too.
        filter_retry_enable: bool = "filterSupportRetry" plain, (), |_| false;
        /// An expression that no consumer has used for so long is forgotten.
        filter_clean_ms: u32 = "filterDataCleanTimeSpan" plain, 0..=INT_MAX, |_| 86_400_000;
        consumer_ids_changed_notify: bool = "notifyConsumerIdsChangedEnable" plain, (), |_| true;
        pull_bytes_in_memory_max: u32 = "maxTransferBytesOnMessageInMemory" important, 1..=INT_MAX, |_| 262_144;
        pull_count_in_memory_max: u32 = "maxTransferCountOnMessageInMemory" important, 1..=INT_MAX, |_| 32;
        pull_bytes_on_disk_max: u32 = "maxTransferBytesOnMessageInDisk" important, 1..=INT_MAX, |_| 65_536;
        pull_count_on_disk_max: u32 = "maxTransferCountOnMessageInDisk" important, 1..=INT_MAX, |_| 8;
        /// Percent of memory: what lies further back from the log's end is taken to be on disk.
        in_memory_ratio_max_percent: u8 = "accessMessageInMemoryMaxRatio" important, 0..=100, |_| 40;
        slave_read_enable: bool = "slaveReadEnable" plain, (), |_| false;
        /// Keys, separated by `;`, that UPDATE_BROKER_CONFIG must not change.
        config_black_list: String = "configBlackList" plain, Text::Line,
            |_| "configBlackList;brokerConfigPath".to_string();

        /// Between 10 and 60 s, as Java clamps it.
        register_interval_ms: u32 = "registerNameServerPeriod" plain, 0..=INT_MAX, |_| 30_000;
        register_timeout_ms: u32 = "registerBrokerTimeoutMills" plain, 1..=INT_MAX, |_| 6000;
        register_force: bool = "forceRegister" plain, (), |_| true;
        register_compressed: bool = "compressedRegister" plain, (), |_| false;
        idle_max_s: u32 = "serverChannelMaxIdleTimeSeconds" plain, 1..=86_400, |_| 120;

        /// What a group that ever committed has not consumed is not deleted, however full the disk is.
        keep_unconsumed: bool = "ringmq.retentionKeepUnconsumed" plain, (), |_| false;
        shard_count: u32 = "ringmq.shards" important, 1..=SHARD_COUNT_MAX,
            |machine| default_shard_count(machine.core_count, machine.memory_bytes);
        recv_buffer_bytes: u32 = "ringmq.recvBufferBytes" plain, 4096..=1_048_576, |_| 16_384;
        /// A power of two: the kernel's buffer ring wants one.
        recv_buffer_count: u16 = "ringmq.recvBufferCount" plain, 8..=32_768, |_| 256;
        /// Busy-polls so long before a shard sleeps; 0 is off.
        spin_us: u32 = "ringmq.spinMicros" plain, 0..=1_000_000, |_| 0;
    }
}

/// Keys that UPDATE_BROKER_CONFIG never changes, whatever `configBlackList` says.
const BLACK_LIST: &[&str] = &["brokerConfigPath", "configBlackList", "rocketmqHome"];
/// Keys that come into force while the broker runs.
const RUNNING: &[&str] = &[
    "flushCommitLogTimed",
    "flushIntervalCommitLog",
    "flushCommitLogLeastPages",
    "flushCommitLogThoroughInterval",
    "commitIntervalCommitLog",
    "commitCommitLogLeastPages",
    "commitCommitLogThoroughInterval",
    "flushIntervalConsumeQueue",
    "flushConsumeQueueLeastPages",
    "flushConsumeQueueThoroughInterval",
    "syncFlushTimeout",
    "brokerPermission",
    "deleteWhen",
    "fileReservedTime",
    "diskMaxUsedSpaceRatio",
    "diskSpaceCleanForciblyRatio",
    "diskSpaceWarningLevelRatio",
    "cleanFileForciblyEnable",
    "cleanResourceInterval",
    "deleteCommitLogFilesInterval",
    "deleteConsumeQueueFilesInterval",
    "deleteFileBatchMax",
    "longPollingEnable",
    "shortPollingTimeMills",
    "maxTransferBytesOnMessageInMemory",
    "maxTransferCountOnMessageInMemory",
    "maxTransferBytesOnMessageInDisk",
    "maxTransferCountOnMessageInDisk",
    "accessMessageInMemoryMaxRatio",
    "slaveReadEnable",
    "enablePropertyFilter",
    "filterSupportRetry",
    "filterDataCleanTimeSpan",
    "notifyConsumerIdsChangedEnable",
    "autoCreateTopicEnable",
    "autoCreateSubscriptionGroup",
    "traceOn",
    "storeReplyMessageEnable",
    "rejectTransactionMessage",
    "transactionTimeOut",
    "transactionCheckInterval",
    "transactionCheckMax",
    "defaultQueryMaxNum",
    "maxMsgsNumBatch",
    "registerBrokerTimeoutMills",
    "forceRegister",
    "compressedRegister",
];
/// Where changes are kept when no file was given, below the store's root.
const UPDATES_FILE: &str = "config/ringmq-broker.properties";

const KNOWN: Known = Known { blocked: BROKER_BLOCKED, tuning: BROKER_TUNING };

impl BrokerConfig {
    /// # Errors
    /// Every value that is not allowed or whose feature is missing, all together.
    pub fn load(file: Option<&Path>, overrides: &[(String, String)]) -> Result<BrokerConfig, ConfigError> {
        BrokerConfig::load_over(&[], file, overrides)
    }

    /// As [`BrokerConfig::load`], with `defaults` (of a mode of starting) in place of Java's where the file and the
    /// command line say nothing. They win over the environment: a broker for this machine only must not register
    /// elsewhere because `NAMESRV_ADDR` is set for the clients.
    ///
    /// # Errors
    /// As [`BrokerConfig::load`].
    pub fn load_over(
        defaults: &[(String, String)],
        file: Option<&Path>,
        overrides: &[(String, String)],
    ) -> Result<BrokerConfig, ConfigError> {
        let machine = Machine::detect();
        let kept = kept_path(&machine, &[defaults, overrides].concat());
        let read = file.or_else(|| Some(kept.as_path()).filter(|kept| kept.exists()));
        let mut config = BrokerConfig::of(&machine, &entries(defaults, read, overrides)?)?;
        config.notes.file = file.map(Path::to_path_buf);
        config.notes.facts.extend(config.passed_over());
        Ok(config)
    }

    /// With a file of the command line, what was set while a broker without one ran is not read.
    fn passed_over(&self) -> Option<String> {
        let file = self.notes.file.as_ref()?;
        let set_before = self.store_path_root.join(UPDATES_FILE);
        let whole = |path: &Path| std::fs::canonicalize(path).ok();
        (set_before.exists() && whole(&set_before) != whole(file)).then(|| {
            format!(
                "{} is not in force: it has what was set while the broker ran without -c; put its lines into {} if they are \
                 to hold",
                set_before.display(),
                file.display()
            )
        })
    }

    /// This configuration with the lines of a `.properties` text put over it, all of them or none; and these lines.
    ///
    /// # Errors
    /// The first line that may not be, or cannot be, put into force.
    pub fn updated(&self, text: &[u8]) -> Result<(BrokerConfig, Vec<(String, String)>), UpdateError> {
        let entries = file_entries(Path::new(""), text).map_err(|_| UpdateError::Syntax)?;
        let listed = |key: &str| self.config_black_list.split(';').any(|listed| listed.trim() == key);
        if entries.iter().any(|entry| BLACK_LIST.contains(&entry.key.as_str()) || listed(&entry.key)) {
            return Err(UpdateError::BlackList);
        }
        let mut config = self.clone();
        for Entry { key, value, .. } in &entries {
            let (name, key, value) = (key.as_str(), key.clone(), value.trim().to_string());
            if RUNNING.contains(&name) {
                if let Some(Err(allowed)) = config.set(name, &value) {
                    return Err(UpdateError::Value { key, value, allowed });
                }
            } else if BrokerConfig::names().contains(&name) {
                return Err(UpdateError::NotWhileRunning { key });
            } else if let Some(blocked) = BROKER_BLOCKED.iter().find(|blocked| blocked.key == name) {
                return Err(UpdateError::NotBuilt { key, value, instead: blocked.instead });
            } else if BROKER_TUNING.contains(&name) {
                return Err(UpdateError::WithoutEffect { key });
            } else {
                return Err(UpdateError::Unknown { named: named(name, &known_keys()) });
            }
        }
        let set = entries.into_iter().map(|entry| (entry.key, entry.value.trim().to_string())).collect();
        Ok((config, set))
    }

    /// Where UPDATE_BROKER_CONFIG keeps what it changes: the file of the command line, or one in the store.
    pub fn update_path(&self) -> PathBuf {
        self.notes.file.clone().unwrap_or_else(|| self.store_path_root.join(UPDATES_FILE))
    }

    /// The defaults, for [`BrokerConfig::load_over`], of a broker for this machine only, in `store`.
    pub fn standalone(store: &Path) -> Vec<(String, String)> {
        [
            ("brokerIP1", "127.0.0.1".to_string()),
            ("brokerIP2", "127.0.0.1".to_string()),
            ("bindAddress", "127.0.0.1".to_string()),
            ("namesrvAddr", "127.0.0.1:9876".to_string()),
            ("storePathRootDir", store.display().to_string()),
        ]
        .map(|(key, value)| (key.to_string(), value))
        .to_vec()
    }

    fn of(machine: &Machine, given: &[Entry]) -> Result<BrokerConfig, ConfigError> {
        let mut config = BrokerConfig::defaults(machine);
        let environment = machine.namesrv_addr.iter().map(|list| Entry {
            place: Place::Environment,
            key: "namesrvAddr".to_string(),
            value: list.clone(),
        });
        let entries: Vec<Entry> = environment.chain(given.iter().cloned()).collect();
        let mut notes = Notes { memory_bytes: machine.memory_bytes, ..Notes::default() };
        let problems = apply(&entries, &KNOWN, &mut notes, |key, value| config.set(key, value));
        if !problems.is_empty() {
            return Err(ConfigError::Values(problems));
        }
        config.complete();
        config.notes = notes;
        config.notes.facts = config.facts(machine);
        config.rules(&entries)?;
        Ok(config)
    }

    /// What a value follows from others.
    fn complete(&mut self) {
        if self.store_path_commit_log.as_os_str().is_empty() {
            self.store_path_commit_log = self.store_path_root.join("commitlog");
        }
        if self.ha_listen_port == 0 {
            self.ha_listen_port = self.listen_port + 1;
        }
        self.consume_queue_file_bytes = self
            .consume_queue_file_bytes
            .checked_next_multiple_of(QUEUE_ENTRY_BYTES)
            .unwrap_or(QUEUE_FILE_BYTES_MAX)
            .min(QUEUE_FILE_BYTES_MAX);
        self.register_interval_ms = self.register_interval_ms.clamp(10_000, 60_000);
    }

    /// What one row of the table cannot say.
    fn rules(&self, entries: &[Entry]) -> Result<(), ConfigError> {
        let mut problems = Vec::new();
        let mut wrong = |key: &str, allowed: &str| {
            let entry = entries.iter().rev().find(|entry| entry.key == key);
            if let Some(Entry { place, key, value }) = entry {
                let (place, key, value) = (place.clone(), key.clone(), value.clone());
                problems.push(Problem::Value { place, key, value, allowed: allowed.to_string() });
            }
        };
        if self.store_path_commit_log.to_string_lossy().contains(',') {
            wrong("storePathCommitLog", "one folder: a log over several folders is not built yet");
        }
        if matches!(self.promise(), Promise::Pool(_)) && self.pool_bytes() > self.notes.memory_bytes / 8 * 7 {
            let pool = self.pool_bytes() >> 20;
            let memory = self.notes.memory_bytes >> 20;
            let allowed = format!(
                "false, or fewer or smaller buffers: {} of mappedFileSizeCommitLog={} take {pool} MiB, the memory is {memory} MiB",
                self.pool_size, self.commit_log_file_bytes
            );
            wrong("transientStorePoolEnable", &allowed);
        }
        let index_bytes = 40 + 4 * u64::from(self.index_slot_count) + 20 * u64::from(self.index_item_count);
        if index_bytes > u64::from(INT_MAX) {
            wrong("maxIndexNum", "less: with maxHashSlotNum it makes index files of more than 2147483647 bytes");
            wrong("maxHashSlotNum", "less: with maxIndexNum it makes index files of more than 2147483647 bytes");
        }
        if !self.recv_buffer_count.is_power_of_two() {
            wrong("ringmq.recvBufferCount", "a power of two from 8 to 32768");
        }
        if problems.is_empty() { Ok(()) } else { Err(ConfigError::Values(problems)) }
    }

    /// What an answered send may lose.
    pub fn promise(&self) -> Promise {
        match self.flush_disk_type {
            FlushDiskType::Sync => Promise::Sync,
            FlushDiskType::Async if self.pool_enable => {
                Promise::Pool(PoolSize { buffer_count: self.pool_size, fast_fail: self.pool_fast_fail })
            }
            FlushDiskType::Async => Promise::Async,
        }
    }

    /// Whether the next log file is preheated. A mapping must have its pages before records are stored to it.
    fn is_warmed(&self) -> bool {
        let is_mapped = self.commit_log_medium == Medium::Mapped && !matches!(self.promise(), Promise::Pool(_));
        let is_wanted = self.warm_enable || is_mapped;
        is_wanted && self.limits().preheat_enable
    }

    /// The intervals and page counts of flushes and commits.
    pub fn flush_keys(&self) -> FlushKeys {
        FlushKeys {
            timed: self.commit_log_flush_timed,
            interval_ms: u64::from(self.commit_log_flush_interval_ms),
            least_pages: self.commit_log_flush_pages_min,
            thorough_interval_ms: u64::from(self.commit_log_flush_thorough_interval_ms),
            commit_interval_ms: u64::from(self.commit_interval_ms),
            commit_least_pages: self.commit_pages_min,
            commit_thorough_interval_ms: u64::from(self.commit_thorough_interval_ms),
            queue_interval_ms: u64::from(self.consume_queue_flush_interval_ms),
            queue_least_pages: self.consume_queue_flush_pages_min,
            queue_thorough_interval_ms: u64::from(self.consume_queue_flush_thorough_interval_ms),
            warm_pages: self.is_warmed().then_some(self.warm_pages),
            warm_lock: self.warm_enable && self.limits().lock_enable,
        }
    }

    /// When old files are deleted and when the disk is too full.
    pub fn retention_keys(&self) -> RetentionKeys {
        RetentionKeys {
            interval_ms: u64::from(self.clean_interval_ms),
            reserved_ms: u64::from(self.reserved_hours) * 3_600_000,
            hours: self.delete_hours.0,
            batch_max: self.delete_batch_max,
            log_file_interval_ms: u64::from(self.log_delete_interval_ms),
            queue_file_interval_ms: u64::from(self.queue_delete_interval_ms),
            max_used_percent: self.disk_ratio_max_percent,
            force_percent: self.disk_ratio_force_percent,
            stop_percent: self.disk_ratio_stop_percent,
            is_forced: self.clean_forcibly,
        }
    }

    pub fn index(&self) -> IndexConfig {
        IndexConfig {
            is_enabled: self.index_enable,
            slot_count: self.index_slot_count,
            item_count: self.index_item_count,
        }
    }

    /// The promise in one line, for the start.
    pub fn promise_line(&self) -> String {
        let mut line = self.promise_text();
        if matches!(self.promise(), Promise::Async | Promise::Sync) && self.commit_log_medium == Medium::Mapped {
            line.push_str("; records are stored into mapped files (ringmq.commitLogMedium=mapped)");
        }
        if self.is_warmed() {
            line.push_str("; the next log file is preheated");
        }
        line
    }

    fn promise_text(&self) -> String {
        let flush = Wait {
            pages: self.commit_log_flush_pages_min,
            interval_ms: self.commit_log_flush_interval_ms,
            thorough_interval_ms: self.commit_log_flush_thorough_interval_ms,
        };
        let commit = Wait {
            pages: self.commit_pages_min,
            interval_ms: self.commit_interval_ms,
            thorough_interval_ms: self.commit_thorough_interval_ms,
        };
        match self.promise() {
            Promise::Async => format!(
                "flush mode ASYNC_FLUSH: a killed process loses nothing that was answered; a power loss loses what was \
                 answered in the last {}",
                lost(&[flush])
            ),
            Promise::Pool(pool) => format!(
                "flush mode ASYNC_FLUSH with {} buffers of the transient store pool: a killed process loses what was \
                 answered in the last {}; a power loss loses that of the last {}",
                pool.buffer_count,
                lost(&[commit]),
                lost(&[commit, flush])
            ),
            Promise::Sync => format!(
                "flush mode SYNC_FLUSH: nothing that was answered with 0 is lost, neither by a killed process nor by a \
                 power loss (with WAIT=false a power loss may lose it); code 10 after {} ms",
                self.sync_flush_timeout_ms
            ),
        }
    }

    /// What is worth saying at start though every value is allowed.
    fn facts(&self, machine: &Machine) -> Vec<String> {
        let mut facts = Vec::new();
        let ip: Option<IpAddr> = self.broker_ip1.parse().ok();
        if ip.is_some_and(|ip| ip.is_loopback()) && !self.bind_address.is_loopback() {
            facts.push(format!(
                "brokerIP1={} is registered: clients on other machines cannot reach it; set brokerIP1",
                self.broker_ip1
            ));
        }
        if ip.is_some_and(|ip| machine.bridge_addresses.contains(&ip)) {
            facts.push(format!(
                "brokerIP1={} is the address of a bridge: clients on other machines cannot reach it; set brokerIP1",
                self.broker_ip1
            ));
        }
        if ip.is_some_and(|ip| !ip.is_loopback()) && self.bind_address.is_loopback() {
            facts.push(format!(
                "brokerIP1={} is registered, but the broker listens on {} only: clients cannot reach it; set bindAddress or \
                 brokerIP1",
                self.broker_ip1, self.bind_address
            ));
        }
        if matches!(self.promise(), Promise::Pool(_)) && self.commit_log_medium == Medium::Mapped {
            facts.push(
                "ringmq.commitLogMedium=mapped has no effect with transientStorePoolEnable=true: records go to the pool"
                    .to_string(),
            );
        }
        facts.extend(self.ratio_contradiction());
        if self.warm_enable && !self.limits().preheat_enable {
            facts.push(format!(
                "warmMapedFileEnable=true has no effect: a log file (mappedFileSizeCommitLog={}) is more than a quarter of \
                 the memory",
                self.commit_log_file_bytes
            ));
        }
        if self.pool_enable && self.flush_disk_type == FlushDiskType::Sync {
            facts.push(
                "transientStorePoolEnable=true has no effect with flushDiskType=SYNC_FLUSH: the pool is not used"
                    .to_string(),
            );
        }
        if matches!(self.promise(), Promise::Pool(_)) && self.pool_bytes() > machine.memory_bytes / 2 {
            facts.push(format!(
                "the transient store pool may take {} MiB of the {} MiB of memory: set a smaller transientStorePoolSize or \
                 mappedFileSizeCommitLog if other things need it",
                self.pool_bytes() >> 20,
                machine.memory_bytes >> 20
            ));
        }
        if self.message_bytes_max > self.commit_log_file_bytes {
            facts.push(format!(
                "maxMessageSize={} is more than a log file holds (mappedFileSizeCommitLog={}): larger messages are refused",
                self.message_bytes_max, self.commit_log_file_bytes
            ));
        }
        facts
    }

    /// The limits of the disk in an order in which sends are refused and nothing makes room.
    pub fn ratio_contradiction(&self) -> Option<String> {
        let (key, percent, what) = match self.clean_forcibly {
            true => ("diskSpaceCleanForciblyRatio", self.disk_ratio_force_percent, "deleted by force"),
            false => ("diskMaxUsedSpaceRatio", self.disk_ratio_max_percent, "deleted outside deleteWhen"),
        };
        (self.disk_ratio_stop_percent < percent).then(|| {
            format!(
                "diskSpaceWarningLevelRatio={} is below {key}={percent}: sends are refused before anything is {what}",
                self.disk_ratio_stop_percent
            )
        })
    }

    fn pool_bytes(&self) -> u64 {
        u64::from(self.pool_size) * u64::from(self.commit_log_file_bytes)
    }

    /// One line each, for the start.
    pub fn warnings(&self) -> Vec<String> {
        self.notes.warnings(&known_keys())
    }

    /// Every key that works with its value, and the values in force of features that are not built.
    pub fn effective(&self) -> Vec<(String, String)> {
        pairs(BrokerConfig::KEYS, self.shown(), BROKER_BLOCKED, false)
    }

    /// Those of [`BrokerConfig::effective`] that Java marks as important.
    pub fn effective_important(&self) -> Vec<(String, String)> {
        pairs(BrokerConfig::KEYS, self.shown(), BROKER_BLOCKED, true)
    }

    pub fn limits(&self) -> Limits {
        Limits::new(self.notes.memory_bytes, self.shard_count, u64::from(self.commit_log_file_bytes))
    }

    /// What is registered and told to clients.
    pub fn broker_addr(&self) -> String {
        address(&self.broker_ip1, self.listen_port)
    }

    pub fn ha_server_addr(&self) -> String {
        address(&self.broker_ip2, self.ha_listen_port)
    }
}

/// What an answered message waits for on its way to the device.
#[derive(Clone, Copy)]
struct Wait {
    /// Fewer wait for the thorough interval.
    pages: u32,
    interval_ms: u32,
    thorough_interval_ms: u32,
}

impl Wait {
    /// Of a message that few others follow. No look is between two intervals.
    fn late_ms(&self) -> u64 {
        let thorough_ms = if self.pages == 0 { 0 } else { self.thorough_interval_ms };
        u64::from(self.interval_ms.max(thorough_ms))
    }
}

/// How much what is behind these waits may come to. ringmq-bench's `Loss` counts by the same rule.
fn lost(waits: &[Wait]) -> String {
    let ms: u64 = waits.iter().map(|wait| u64::from(wait.interval_ms)).sum();
    let late_ms: u64 = waits.iter().map(Wait::late_ms).sum();
    if ms == late_ms {
        return format!("{ms} ms or so");
    }
    let later = waits.iter().filter(|wait| wait.late_ms() > u64::from(wait.interval_ms));
    let pages = later.map(|wait| wait.pages).max().unwrap_or(0);
    format!("{ms} ms or so (of a trickle, fewer than {pages} pages of 4 KiB, in the last {late_ms} ms)")
}

/// What a typing error may have meant.
fn known_keys() -> Vec<&'static str> {
    [&BrokerConfig::names(), BROKER_TUNING, &blocked_names(BROKER_BLOCKED)].concat()
}

/// The file of changes in the store that `pairs`, the later over the earlier, name.
fn kept_path(machine: &Machine, pairs: &[(String, String)]) -> PathBuf {
    let root =
        pairs.iter().rev().find(|(key, _)| key == "storePathRootDir").map(|(_, value)| PathBuf::from(value.trim()));
    root.unwrap_or_else(|| BrokerConfig::defaults(machine).store_path_root).join(UPDATES_FILE)
}

fn address(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::super::Blocked;
    use super::*;
    use std::collections::BTreeMap;

    fn load(text: &str) -> Result<BrokerConfig, ConfigError> {
        load_on(&Machine::example(), text)
    }

    fn load_on(machine: &Machine, text: &str) -> Result<BrokerConfig, ConfigError> {
        BrokerConfig::of(machine, &file_entries(Path::new("broker.conf"), text.as_bytes())?)
    }

    fn refused(text: &str) -> String {
        load(text).expect_err(text).to_string()
    }

    #[test]
    fn nothing_set_gives_the_defaults_of_java() {
        let config = load("").unwrap();
        let shown: BTreeMap<String, String> = config.effective().into_iter().collect();
        for (key, want) in [
            ("brokerClusterName", "DefaultCluster"),
            ("brokerName", "host-1"),
            ("brokerIP1", "10.1.2.3"),
            ("brokerIP2", "10.1.2.3"),
            ("listenPort", "10911"),
            ("haListenPort", "10912"),
            ("bindAddress", "0.0.0.0"),
            ("namesrvAddr", ""),
            ("storePathRootDir", "/home/x/store"),
            ("storePathCommitLog", "/home/x/store/commitlog"),
            ("mappedFileSizeCommitLog", "1073741824"),
            ("mappedFileSizeConsumeQueue", "6000000"),
            ("flushDiskType", "ASYNC_FLUSH"),
            ("flushIntervalCommitLog", "500"),
            ("flushCommitLogLeastPages", "4"),
            ("flushCommitLogThoroughInterval", "10000"),
            ("flushIntervalConsumeQueue", "1000"),
            ("flushConsumeQueueThoroughInterval", "60000"),
            ("maxMessageSize", "4194304"),
            ("autoCreateTopicEnable", "true"),
            ("defaultTopicQueueNums", "8"),
            ("autoCreateSubscriptionGroup", "true"),
            ("brokerPermission", "6"),
            ("traceTopicEnable", "false"),
            ("msgTraceTopicName", "RMQ_SYS_TRACE_TOPIC"),
            ("flushConsumerOffsetInterval", "5000"),
            ("longPollingEnable", "true"),
            ("shortPollingTimeMills", "1000"),
            ("maxTransferBytesOnMessageInMemory", "262144"),
            ("maxTransferCountOnMessageInMemory", "32"),
            ("maxTransferBytesOnMessageInDisk", "65536"),
            ("maxTransferCountOnMessageInDisk", "8"),
            ("accessMessageInMemoryMaxRatio", "40"),
            ("registerNameServerPeriod", "30000"),
            ("registerBrokerTimeoutMills", "6000"),
            ("forceRegister", "true"),
            ("compressedRegister", "false"),
            ("slaveReadEnable", "false"),
            ("rejectTransactionMessage", "false"),
            ("transactionTimeOut", "6000"),
            ("transactionCheckInterval", "60000"),
            ("transactionCheckMax", "15"),
            ("messageDelayLevel", "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"),
            ("flushDelayOffsetInterval", "10000"),
            ("serverChannelMaxIdleTimeSeconds", "120"),
            ("checkCRCOnRecover", "true"),
            ("deleteWhen", "04"),
            ("fileReservedTime", "72"),
            ("diskMaxUsedSpaceRatio", "75"),
            ("diskSpaceCleanForciblyRatio", "85"),
            ("diskSpaceWarningLevelRatio", "90"),
            ("cleanFileForciblyEnable", "true"),
            ("cleanResourceInterval", "10000"),
            ("deleteCommitLogFilesInterval", "100"),
            ("deleteConsumeQueueFilesInterval", "100"),
            ("deleteFileBatchMax", "10"),
            ("ringmq.retentionKeepUnconsumed", "false"),
            ("brokerRole", "ASYNC_MASTER"),
            ("brokerId", "0"),
            ("ringmq.shards", "7"),
            ("ringmq.recvBufferBytes", "16384"),
            ("ringmq.recvBufferCount", "256"),
            ("ringmq.spinMicros", "0"),
        ] {
            assert_eq!(shown.get(key).map(String::as_str), Some(want), "{key}");
        }
    }

    #[test]
    fn a_file_is_read_as_java_reads_it_and_the_later_wins() {
        let config = load(
            "# comment\n! comment\nlistenPort = 20911\nbrokerName:b\\u002d1\nnamesrvAddr=a:1;\\\n   b:2\nmaxMessageSize=1  \nmaxMessageSize=2\n",
        )
        .unwrap();
        assert_eq!(config.listen_port, 20_911);
        assert_eq!(config.ha_listen_port, 20_912);
        assert_eq!(config.broker_name, "b-1");
        assert_eq!(config.namesrv_addrs, ["a:1", "b:2"]);
        assert_eq!(config.message_bytes_max, 2);
        assert_eq!(config.broker_addr(), "10.1.2.3:20911");
    }

    #[test]
    fn the_command_line_wins_over_the_file_and_the_file_over_the_environment() {
        let machine = Machine { namesrv_addr: Some("env:1".to_string()), ..Machine::example() };
        assert_eq!(load_on(&machine, "").unwrap().namesrv_addrs, ["env:1"]);
        assert_eq!(load_on(&machine, "namesrvAddr=file:1").unwrap().namesrv_addrs, ["file:1"]);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("b.conf");
        std::fs::write(&file, "namesrvAddr=file:1\nlistenPort=1000\n").unwrap();
        let config = BrokerConfig::load(Some(&file), &[("namesrvAddr".to_string(), "line:1".to_string())]).unwrap();
        assert_eq!((config.namesrv_addrs, config.listen_port), (vec!["line:1".to_string()], 1000));
        let missing = BrokerConfig::load(Some(&folder.path().join("none")), &[]).unwrap_err().to_string();
        assert!(missing.contains("none"), "{missing}");
        let machine = Machine { namesrv_addr: Some("no port".to_string()), ..Machine::example() };
        assert!(load_on(&machine, "").unwrap_err().to_string().starts_with("environment: namesrvAddr=no port"));
    }

    #[test]
    fn every_bad_value_is_named_with_its_place_and_what_is_allowed() {
        let text = "\nlistenPort=2\nautoCreateTopicEnable=yes\nmaxMessageSize=\nbrokerRole=SLAVE\n";
        let all = refused(text);
        let lines: Vec<&str> = all.lines().collect();
        assert_eq!(lines.len(), 4, "{all}");
        assert_eq!(lines[0], "broker.conf:2: listenPort=2: allowed is a whole number from 3 to 65534");
        assert_eq!(lines[1], "broker.conf:3: autoCreateTopicEnable=yes: allowed is true or false");
        assert!(lines[2].starts_with("broker.conf:4: maxMessageSize=: allowed is"));
        assert!(lines[3].starts_with("broker.conf:5: brokerRole=SLAVE is not possible: replication"));
        for text in [
            "storePathCommitLog=/a,/b",
            "ringmq.recvBufferCount=100",
            "mappedFileSizeCommitLog=1023",
            "brokerPermission=8",
            "brokerName=a b",
            "namesrvAddr=host",
            "bindAddress=localhost",
            "tls.server.mode=permissive",
            "tls.enable=true",
        ] {
            let (key, value) = text.split_once('=').unwrap();
            let refused = refused(text);
            assert!(refused.starts_with(&format!("broker.conf:1: {key}={value}")), "{refused}");
        }
        load("tls.server.mode=disabled\ntls.enable=false\n").unwrap();
        load("mappedFileSizeCommitLog=65536\n").unwrap();
    }

    #[test]
    fn what_is_not_built_stops_the_start_unless_it_is_off() {
        for Blocked { key, accepted, instead, .. } in BROKER_BLOCKED {
            for value in *accepted {
                load(&format!("{key}={value}")).unwrap_or_else(|error| panic!("{key}={value}: {error}"));
            }
            let refused = refused(&format!("{key}=other"));
            assert!(refused.contains(key) && refused.contains("other") && refused.contains(instead), "{refused}");
        }
        load("enableConsumeQueueExt=FALSE ").unwrap();
    }

    #[test]
    fn every_key_of_java_has_exactly_one_class() {
        let mut class: BTreeMap<&str, u32> = BTreeMap::new();
        let works = BrokerConfig::KEYS.iter().map(|(key, _)| *key);
        let others = BROKER_BLOCKED.iter().map(|blocked| blocked.key);
        for key in works.chain(others).chain(BROKER_TUNING.iter().copied()) {
            *class.entry(key).or_default() += 1;
        }
        let twice: Vec<_> = class.iter().filter(|(_, count)| **count != 1).collect();
        assert!(twice.is_empty(), "{twice:?}");
        let of_java = class.keys().filter(|key| !key.starts_with("ringmq.")).count();
        assert_eq!(of_java, JAVA_BROKER_KEY_COUNT);
    }

    /// Distinct bean properties of the broker's configuration classes in the published jars of 4.9.7 and 5.3.3.
    const JAVA_BROKER_KEY_COUNT: usize = 479;

    #[test]
    fn an_update_takes_all_of_its_keys_or_none() {
        let config = load("configBlackList=syncFlushTimeout").unwrap();
        let (updated, set) = config.updated(b"flushIntervalCommitLog=7\nbrokerPermission = 4\n").unwrap();
        assert_eq!((updated.flush_keys().interval_ms, updated.broker_permission), (7, 4));
        assert_eq!(set[1], ("brokerPermission".to_string(), "4".to_string()));
        for (text, want) in [
            ("flushIntervalCommitLog=1\nrocketmqHome=/x", "Can not update config in black list."),
            ("brokerConfigPath=/x", "Can not update config in black list."),
            ("configBlackList=", "Can not update config in black list."),
            ("syncFlushTimeout=1", "Can not update config in black list."),
            ("listenPort=1", "listenPort is read at start only: change it in the file and start again"),
            ("storePathRootDir=/x", "storePathRootDir is read at start only: change it in the file and start again"),
            ("flushDiskType=SYNC_FLUSH", "flushDiskType is read at start only: change it in the file and start again"),
            ("foo=1", "there is no key foo"),
            ("flushInterval=1", "there is no key flushInterval"),
            ("fileReservedtime=1", "there is no key fileReservedtime (did you mean fileReservedTime?)"),
            ("listenport=1", "there is no key listenport (did you mean listenPort?)"),
            ("slaveTimeOut=1", "there is no key slaveTimeOut (did you mean slaveTimeout?)"),
            ("slaveTimeout=1", "slaveTimeout has no effect here"),
            ("expectConsumerNumUseFilter=1", "expectConsumerNumUseFilter has no effect here"),
            ("flushIntervalCommitLog=0", "flushIntervalCommitLog=0: allowed is a whole number from 1 to 2147483647"),
            ("brokerPermission=\\u00", "string2Properties error"),
        ] {
            assert_eq!(config.updated(text.as_bytes()).unwrap_err().to_string(), want, "{text}");
        }
        let refused = config.updated(b"filterServerNums=1").unwrap_err();
        assert!(matches!(refused, UpdateError::NotBuilt { .. }), "{refused}");
    }

    #[test]
    fn what_was_set_without_a_file_is_there_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let defaults = BrokerConfig::standalone(folder.path());
        let load = |file: Option<&Path>| BrokerConfig::load_over(&defaults, file, &[]).unwrap();
        let path = load(None).update_path();
        assert!(path.starts_with(folder.path().join("config")));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, super::super::with_updates(b"", &[("syncFlushTimeout".into(), "7".into())])).unwrap();
        assert_eq!(load(None).sync_flush_timeout_ms, 7);
        assert_eq!(load(None).update_path(), path);
        let file = folder.path().join("b.conf");
        std::fs::write(&file, "").unwrap();
        assert_eq!(load(Some(&file)).sync_flush_timeout_ms, 5000);
        assert_eq!(load(Some(&file)).update_path(), file);
        let warnings = load(Some(&file)).warnings();
        let begin = format!("{} is not in force", path.display());
        assert!(warnings.len() == 1 && warnings[0].starts_with(&begin), "{warnings:?}");
        assert_eq!(load(None).warnings().len() + load(Some(&path)).warnings().len(), 0);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(load(Some(&file)).warnings().len(), 0);
    }

    #[test]
    fn retention_is_tuned_as_in_java() {
        assert_eq!(load("").unwrap().retention_keys(), RetentionKeys::default());
        let config = load("deleteWhen=4; 16;04\nfileReservedTime=1").unwrap();
        assert_eq!((config.retention_keys().hours, config.retention_keys().reserved_ms), (1 << 4 | 1 << 16, 3_600_000));
        let shown: BTreeMap<String, String> = config.effective().into_iter().collect();
        assert_eq!(shown["deleteWhen"], "04;16");
        for text in ["deleteWhen=24", "deleteWhen=", "deleteWhen=4,5", "diskMaxUsedSpaceRatio=96"] {
            refused(text);
        }
        let (updated, _) = config.updated(b"fileReservedTime=2\ndiskSpaceWarningLevelRatio=88").unwrap();
        assert_eq!((updated.retention_keys().reserved_ms, updated.retention_keys().stop_percent), (7_200_000, 88));
    }

    #[test]
    fn a_disk_that_refuses_before_it_deletes_is_warned_about() {
        // keys, the key named
        for (text, want) in [
            ("", None),
            ("diskSpaceWarningLevelRatio=85", None),
            ("diskSpaceWarningLevelRatio=80", Some("is below diskSpaceCleanForciblyRatio=85")),
            ("diskSpaceWarningLevelRatio=80\ndiskSpaceCleanForciblyRatio=80", None),
            ("diskSpaceWarningLevelRatio=80\ncleanFileForciblyEnable=false", None),
            ("diskSpaceWarningLevelRatio=70\ncleanFileForciblyEnable=false", Some("is below diskMaxUsedSpaceRatio=75")),
        ] {
            let warnings = load(text).unwrap().warnings();
            assert_eq!(warnings.len(), usize::from(want.is_some()), "{text}: {warnings:?}");
            assert!(want.is_none_or(|want| warnings[0].contains(want)), "{text}: {warnings:?}");
        }
    }

    #[test]
    fn the_modes_of_flushing_are_told_apart() {
        let small = "mappedFileSizeCommitLog=1048576\n";
        for (text, want) in [
            ("", Promise::Async),
            ("flushDiskType=sync_flush", Promise::Sync),
            ("transientStorePoolEnable=true", Promise::Pool(PoolSize { buffer_count: 5, fast_fail: false })),
            ("transientStorePoolEnable=true\nflushDiskType=SYNC_FLUSH", Promise::Sync),
        ] {
            let config = load(&format!("{small}{text}")).unwrap();
            assert_eq!(config.promise(), want, "{text}");
            let is_warned = config.warnings().iter().any(|line| line.contains("the pool is not used"));
            assert_eq!(is_warned, text.contains("SYNC_FLUSH"), "{text}");
        }
        assert_eq!(load("").unwrap().flush_keys().warm_pages, None);
        assert_eq!(load("warmMapedFileEnable=true").unwrap().flush_keys().warm_pages, Some(4096));
        let machine = Machine { memory_bytes: 512 << 20, ..Machine::example() };
        let config = load_on(&machine, "warmMapedFileEnable=true").unwrap();
        assert_eq!(config.flush_keys().warm_pages, None);
        assert!(config.warnings().iter().any(|line| line.starts_with("warmMapedFileEnable=true has no effect")));
        let refused = load_on(&machine, "transientStorePoolEnable=true").unwrap_err().to_string();
        assert!(refused.contains("take 5120 MiB, the memory is 512 MiB"), "{refused}");
        let tight = "transientStorePoolEnable=true\ntransientStorePoolSize=3\nmappedFileSizeCommitLog=134217728";
        let warnings = load_on(&machine, tight).unwrap().warnings();
        assert!(warnings.iter().any(|line| line.contains("may take 384 MiB of the 512 MiB")), "{warnings:?}");
        load_on(&machine, "transientStorePoolEnable=true\nflushDiskType=SYNC_FLUSH").unwrap();
    }

    #[test]
    fn the_start_says_what_a_trickle_may_lose() {
        let pool = "mappedFileSizeCommitLog=1048576\ntransientStorePoolEnable=true\n";
        let trickle =
            |pages: u32, ms: u32| format!(" (of a trickle, fewer than {pages} pages of 4 KiB, in the last {ms} ms)");
        // text, end of the line for a kill (the pool's), for a power loss
        for (text, kill, power) in [
            ("", None, format!("the last 500 ms or so{}", trickle(4, 10_000))),
            ("flushCommitLogLeastPages=0", None, "the last 500 ms or so".to_string()),
            ("flushCommitLogThoroughInterval=100", None, "the last 500 ms or so".to_string()),
            (pool, Some("the last 200 ms or so;".to_string()), format!("the last 700 ms or so{}", trickle(4, 10_200))),
            (
                &format!("{pool}commitCommitLogThoroughInterval=5000\nflushCommitLogLeastPages=0"),
                Some(format!("the last 200 ms or so{};", trickle(4, 5_000))),
                format!("the last 700 ms or so{}", trickle(4, 5_500)),
            ),
            (
                &format!("{pool}commitCommitLogThoroughInterval=5000\ncommitCommitLogLeastPages=9"),
                Some(format!("the last 200 ms or so{};", trickle(9, 5_000))),
                format!("the last 700 ms or so{}", trickle(9, 15_000)),
            ),
            (
                &format!(
                    "{pool}commitCommitLogThoroughInterval=5000\ncommitCommitLogLeastPages=0\nflushCommitLogLeastPages=0"
                ),
                Some("the last 200 ms or so;".to_string()),
                "the last 700 ms or so".to_string(),
            ),
        ] {
            let line = load(text).unwrap().promise_line();
            assert!(line.ends_with(&power), "{text}: {line}");
            assert!(kill.is_none_or(|kill| line.contains(&kill)), "{text}: {line}");
        }
    }

    #[test]
    fn keys_without_effect_are_named_in_one_line_and_unknown_ones_in_another() {
        let config =
            load("slaveTimeout=1\nenableCompaction=true\nslaveTimeout=2\nlistenport=1\nfoo=1\nfileReservedTime=48\n")
                .unwrap();
        let warnings = config.warnings();
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert_eq!(warnings[0], "keys without effect yet: slaveTimeout, enableCompaction");
        assert_eq!(warnings[1], "unknown keys, ignored: listenport (did you mean listenPort?), foo");
        assert_eq!(load("").unwrap().warnings().len(), 0);
    }

    #[test]
    fn an_address_that_nobody_reaches_is_warned_about() {
        for (text, want) in [("brokerIP1=127.0.0.1", "cannot reach"), ("brokerIP1=172.17.0.1", "bridge")] {
            let warnings = load(text).unwrap().warnings();
            assert!(warnings.iter().any(|line| line.contains(want)), "{text}: {warnings:?}");
        }
        assert_eq!(load("brokerIP1=127.0.0.1\nbindAddress=127.0.0.1").unwrap().warnings().len(), 0);
    }

    #[test]
    fn values_follow_from_others_as_in_java() {
        let config =
            load("mappedFileSizeConsumeQueue=1001\nregisterNameServerPeriod=1\nhaListenPort=7\nbrokerIP1=fe80::1")
                .unwrap();
        assert_eq!(config.consume_queue_file_bytes, 1020);
        assert_eq!(config.register_interval_ms, 10_000);
        assert_eq!(config.ha_server_addr(), "10.1.2.3:7");
        assert_eq!(config.broker_addr(), "[fe80::1]:10911");
        assert_eq!(load("mappedFileSizeConsumeQueue=2147483647").unwrap().consume_queue_file_bytes, 2_147_483_620);
    }

    #[test]
    fn the_important_part_is_a_part() {
        let config = load("").unwrap();
        let important = config.effective_important();
        assert!(important.contains(&("flushDiskType".to_string(), "ASYNC_FLUSH".to_string())));
        assert!(important.iter().any(|(key, _)| key == "brokerIP1"));
        assert!(!important.iter().any(|(key, _)| key == "brokerIP2"));
        assert!(important.iter().all(|pair| config.effective().contains(pair)));
    }

    #[test]
    fn a_small_machine_starts_with_nothing_set() {
        let machine = Machine { memory_bytes: 512 << 20, core_count: 16, ..Machine::example() };
        let config = load_on(&machine, "").unwrap();
        assert_eq!(config.shard_count, 4);
        assert!(!config.limits().preheat_enable);
    }

    #[test]
    fn standalone_is_for_this_machine_only() {
        let defaults = BrokerConfig::standalone(Path::new("/s"));
        let config = BrokerConfig::load_over(&defaults, None, &[]).unwrap();
        assert_eq!(config.broker_addr(), "127.0.0.1:10911");
        assert!(config.bind_address.is_loopback());
        assert_eq!(config.store_path_commit_log, Path::new("/s/commitlog"));
        assert_eq!(config.warnings().len(), 0, "{:?}", config.warnings());
    }

    #[test]
    fn the_mode_gives_way_to_the_file_and_the_file_to_the_command_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("b.conf");
        std::fs::write(&file, "brokerIP1=10.0.0.2\nbindAddress=0.0.0.0\n").unwrap();
        let line = [("bindAddress".to_string(), "10.0.0.2".to_string())];
        let config = BrokerConfig::load_over(&BrokerConfig::standalone(Path::new("/s")), Some(&file), &line).unwrap();
        assert_eq!((config.broker_ip1.as_str(), config.broker_ip2.as_str()), ("10.0.0.2", "127.0.0.1"));
        assert_eq!(config.bind_address.to_string(), "10.0.0.2");
        let wrong = BrokerConfig::load_over(&[("brokerRole".to_string(), "SLAVE".to_string())], None, &[]).unwrap_err();
        assert!(wrong.to_string().starts_with("defaults of this mode: brokerRole=SLAVE is not possible"), "{wrong}");

        let machine = Machine { namesrv_addr: Some("env:1".to_string()), ..Machine::example() };
        let entries = entries(&BrokerConfig::standalone(Path::new("/s")), None, &[]).unwrap();
        assert_eq!(BrokerConfig::of(&machine, &entries).unwrap().namesrv_addrs, ["127.0.0.1:9876"]);
    }
}
