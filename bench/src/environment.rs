//! What a figure is worth nothing without: machine, kernel, file system, commit, command, and what the broker promises.

use crate::client::{self, Client};
use crate::process;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::thread;

#[derive(Clone, Debug, Serialize)]
pub struct Environment {
    pub command: Vec<String>,
    /// Of the checkout this binary was built from, with `-dirty` when files differ from it now.
    pub commit: Option<String>,
    pub kernel: Option<String>,
    pub cpu: Option<String>,
    pub cores: Option<usize>,
    /// Those this process may use.
    pub cores_allowed: Option<String>,
    pub memory_mib: Option<u64>,
}

impl Environment {
    /// What cannot be read is left out; a measurement does not fail for it.
    pub fn read() -> Self {
        let text = |path: &str| fs::read_to_string(path).ok();
        Self {
            command: std::env::args().collect(),
            commit: commit(),
            kernel: text("/proc/sys/kernel/osrelease").map(|text| text.trim().to_owned()),
            cpu: text("/proc/cpuinfo").and_then(|text| value(&text, "model name")),
            cores: thread::available_parallelism().ok().map(usize::from),
            cores_allowed: process::cores_allowed(std::process::id()),
            memory_mib: text("/proc/meminfo")
                .and_then(|text| value(&text, "MemTotal")?.strip_suffix(" kB")?.parse().ok())
                .map(|kib: u64| kib / 1024),
        }
    }
}

/// That this harness was built from.
fn commit() -> Option<String> {
    Some(env!("RINGMQ_BENCH_COMMIT")).filter(|commit| !commit.is_empty()).map(str::to_owned)
}

/// Of the first line `name : value`.
fn value(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

impl fmt::Display for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "unknown".into());
        writeln!(f, "command   {}", self.command.join(" "))?;
        writeln!(f, "commit    {}", known(&self.commit))?;
        let cores = self.cores.map_or("?".into(), |cores| cores.to_string());
        let mib = self.memory_mib.map_or("?".into(), |mib| mib.to_string());
        writeln!(f, "machine   {cores} cores of {}, {mib} MiB, Linux {}", known(&self.cpu), known(&self.kernel))?;
        writeln!(f, "client    may use cores {}", known(&self.cores_allowed))
    }
}

/// What a broker says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BrokerFacts {
    /// What an acknowledged message survives, by the flush mode and the role.
    pub durability: Option<String>,
    pub store_path: Option<String>,
    /// Of the store, if it is on this machine.
    pub file_system: Option<String>,
    /// Those a broker on this machine may use.
    pub cores_allowed: Option<String>,
    /// What a delay level means, as configured.
    pub delay_levels: Option<String>,
}

impl BrokerFacts {
    /// A broker that does not give its configuration has little.
    pub fn read(address: SocketAddr, pid: Option<u32>) -> Self {
        let facts = match Client::connect(address).and_then(|mut client| client.config()) {
            Ok(config) => Self::of(&config),
            Err(_) => Self::default(),
        };
        Self { cores_allowed: pid.and_then(process::cores_allowed), ..facts }
    }

    /// As a configuration file promises it, for a broker that does not give its own.
    pub fn configured(text: &str) -> Self {
        let mut facts = Self::of(&client::properties(text));
        facts.durability = facts.durability.map(|durability| format!("{durability} (as configured)"));
        facts
    }

    fn of(config: &BTreeMap<String, String>) -> Self {
        let store_path = config.get("storePathRootDir").cloned();
        Self {
            durability: durability(config),
            file_system: store_path.as_ref().and_then(|path| file_system(Path::new(path))),
            store_path,
            cores_allowed: None,
            delay_levels: config.get("messageDelayLevel").cloned(),
        }
    }
}

fn durability(config: &BTreeMap<String, String>) -> Option<String> {
    let flush = config.get("flushDiskType")?;
    let is_true = |key: &str| config.get(key).is_some_and(|value| value == "true");
    let pool =
        if flush == "ASYNC_FLUSH" && is_true("transientStorePoolEnable") { " with transientStorePool" } else { "" };
    let role = config.get("brokerRole").map_or("unknown role", String::as_str);
    let loss = match (flush.as_str(), pool.is_empty()) {
        ("SYNC_FLUSH", _) => "an answered message survives kill and power loss",
        (_, true) => "an answered message survives a kill; a power loss takes what was not flushed",
        (_, false) => "a kill takes what was not committed, a power loss what was not flushed",
    };
    Some(format!("{flush}{pool}, {role}: {loss}"))
}

/// Type of the file system of a folder, by the longest mount point above it.
pub fn file_system(path: &Path) -> Option<String> {
    let path = fs::canonicalize(path).ok()?;
    mounted(&fs::read_to_string("/proc/self/mounts").ok()?, &path)
}

fn mounted(mounts: &str, path: &Path) -> Option<String> {
    let mounts = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((fields.next()?, fields.next()?))
    });
    // A later mount covers an earlier one at the same place, and max_by_key gives the last of equals.
    let above = mounts.filter(|(point, _)| path.starts_with(point));
    above.max_by_key(|(point, _)| point.len()).map(|(_, kind)| kind.to_owned())
}

impl fmt::Display for BrokerFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(durability) = &self.durability else {
            return write!(f, "the broker does not give its configuration");
        };
        write!(f, "{durability}")?;
        if let (Some(path), Some(kind)) = (&self.store_path, &self.file_system) {
            write!(f, "; store on {kind} in {path}")?;
        }
        match &self.cores_allowed {
            Some(cores) => write!(f, "; may use cores {cores}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_mount_point_counts() {
        let mounts = "/dev/a / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n/dev/b /tmp/x xfs rw 0 0\n";
        for (path, want) in [("/home", "ext4"), ("/tmp", "tmpfs"), ("/tmpfoo", "ext4"), ("/tmp/x/y", "xfs")] {
            assert_eq!(mounted(mounts, Path::new(path)).as_deref(), Some(want), "{path}");
        }
    }

    #[test]
    fn the_promise_is_named_by_flush_mode_pool_and_role() {
        let config = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<BTreeMap<_, _>>()
        };
        let pool = [("flushDiskType", "ASYNC_FLUSH"), ("transientStorePoolEnable", "true"), ("brokerRole", "SLAVE")];
        for (pairs, want) in [
            (&[][..], None),
            (&[("flushDiskType", "SYNC_FLUSH")][..], Some("SYNC_FLUSH, unknown role: an answered message survives")),
            (&pool[..], Some("ASYNC_FLUSH with transientStorePool, SLAVE: a kill takes")),
        ] {
            let durability = durability(&config(pairs));
            assert_eq!(durability.is_some(), want.is_some());
            assert!(durability.unwrap_or_default().starts_with(want.unwrap_or_default()));
        }
    }

    #[test]
    fn this_machine_is_known() {
        let environment = Environment::read();
        assert!(environment.kernel.is_some() && environment.cores.is_some() && !environment.command.is_empty());
        assert!(file_system(Path::new("/")).is_some());
    }
}
