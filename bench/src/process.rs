//! What processes and the machine used, from /proc.
//!
//! Processor time is that of the whole process: every thread, the kernel's io_uring workers of the process among
//! them, user and system. What the kernel does for a process in threads of its own (write-back) is only in the
//! machine's figure, which holds everything that ran at the time.
//!
//! Writes are counted twice: as the process asked for them (/proc/PID/io), and as the device below its store got them,
//! with the flushes of its cache (/sys/dev/block/…/stat), which hold what the whole machine writes there.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The unit of /proc times is fixed in the kernel's interface (USER_HZ), whatever the tick of the kernel.
const TICK: Duration = Duration::from_millis(10);

/// What is looked at beside this process and the machine.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    pub broker_pid: Option<u32>,
    /// Figures of the device that holds the store.
    device_stat: Option<PathBuf>,
}

impl Watch {
    /// A store that is not on a block device of this machine has no figures of its device.
    pub fn new(broker_pid: Option<u32>, store: Option<&Path>) -> Self {
        Self { broker_pid, device_stat: store.and_then(device_stat) }
    }

    /// A broker that cannot be read (not local, or gone) has no figures.
    pub fn read(&self) -> io::Result<Usage> {
        let (machine, stolen) = machine_time(&fs::read_to_string("/proc/stat")?)?;
        let pid = self.broker_pid;
        Ok(Usage {
            own: process_time(std::process::id())?,
            broker: pid.and_then(|pid| process_time(pid).ok()),
            machine,
            stolen,
            broker_writes: pid.and_then(|pid| io_writes(&fs::read_to_string(format!("/proc/{pid}/io")).ok()?)),
            device_writes: self.device_stat.as_ref().and_then(|path| device_writes(&fs::read_to_string(path).ok()?)),
        })
    }
}

/// The kernel counts flushes for whole devices, so a partition's are those of its disk.
fn device_stat(store: &Path) -> Option<PathBuf> {
    let device = fs::metadata(store).ok()?.dev();
    let block = PathBuf::from(format!("/sys/dev/block/{}:{}", libc::major(device), libc::minor(device)));
    let block = fs::canonicalize(block).ok()?;
    let disk = if block.join("partition").exists() { block.parent()?.to_owned() } else { block };
    let stat = disk.join("stat");
    stat.exists().then_some(stat)
}

/// Write calls or requests, and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writes {
    pub count: u64,
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceWrites {
    pub writes: Writes,
    /// `None` from a kernel that does not count them.
    pub flushes: Option<u64>,
}

/// Processor time used and writes done up to now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub own: Duration,
    pub broker: Option<Duration>,
    pub machine: Duration,
    /// Time the hypervisor gave to others while this machine wanted to run.
    pub stolen: Duration,
    pub broker_writes: Option<Writes>,
    pub device_writes: Option<DeviceWrites>,
}

impl Usage {
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            own: self.own.saturating_sub(earlier.own),
            broker: self.broker.zip(earlier.broker).map(|(now, then)| now.saturating_sub(then)),
            machine: self.machine.saturating_sub(earlier.machine),
            stolen: self.stolen.saturating_sub(earlier.stolen),
            broker_writes: self.broker_writes.zip(earlier.broker_writes).map(|(now, then)| now.since(then)),
            device_writes: self.device_writes.zip(earlier.device_writes).map(|(now, then)| DeviceWrites {
                writes: now.writes.since(then.writes),
                flushes: now.flushes.zip(then.flushes).map(|(now, then)| now.saturating_sub(then)),
            }),
        }
    }
}

impl Writes {
    fn since(self, earlier: Self) -> Self {
        Self { count: self.count.saturating_sub(earlier.count), bytes: self.bytes.saturating_sub(earlier.bytes) }
    }
}

/// `syscw` and `write_bytes`: write calls of every kind, sockets too, and bytes that go to a device.
fn io_writes(io: &str) -> Option<Writes> {
    let number = |name: &str| io.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Some(Writes { count: number("syscw:")?, bytes: number("write_bytes:")? })
}

/// Fields 5, 7 and 16 of Documentation/block/stat.rst: writes, sectors of 512 bytes, flushes.
fn device_writes(stat: &str) -> Option<DeviceWrites> {
    let fields: Vec<u64> = stat.split_ascii_whitespace().map_while(|field| field.parse().ok()).collect();
    let writes = Writes { count: *fields.get(4)?, bytes: fields.get(6)? * 512 };
    Some(DeviceWrites { writes, flushes: fields.get(15).copied() })
}

/// The cores a process may use, as the kernel writes it: `0-1,4`.
pub fn cores_allowed(pid: u32) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).map(|list| list.trim().to_owned())
}

fn process_time(pid: u32) -> io::Result<Duration> {
    stat_time(&fs::read_to_string(format!("/proc/{pid}/stat"))?)
}

/// utime and stime, fields 14 and 15. The second field is a name in parentheses that may hold anything.
fn stat_time(stat: &str) -> io::Result<Duration> {
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut fields = after_name.split_ascii_whitespace().skip(11);
    let user = ticks(fields.next())?;
    Ok(user + ticks(fields.next())?)
}

/// First line of /proc/stat: user nice system idle iowait irq softirq steal …
fn machine_time(stat: &str) -> io::Result<(Duration, Duration)> {
    let mut busy = Duration::ZERO;
    let mut fields = stat.split_ascii_whitespace().skip(1);
    for index in 0..7 {
        let time = ticks(fields.next())?;
        if index != 3 && index != 4 {
            busy += time;
        }
    }
    Ok((busy, ticks(fields.next())?))
}

fn ticks(field: Option<&str>) -> io::Result<Duration> {
    let count: u32 = field
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a time is missing in /proc"))?;
    Ok(TICK * count)
}

/// Resident memory in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    pub resident: u64,
    /// Without mapped files and the page cache behind them.
    pub anonymous: u64,
}

pub fn memory(pid: u32) -> io::Result<Memory> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    match (status_bytes(&status, "VmRSS:"), status_bytes(&status, "RssAnon:")) {
        (Some(resident), Some(anonymous)) => Ok(Memory { resident, anonymous }),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, format!("no memory figures for process {pid}"))),
    }
}

fn status_bytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_times_survive_any_name() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194304 100 0 0 0 250 150 9 9 20 0 3 0 55 1 2";
        assert_eq!(stat_time(stat).unwrap(), Duration::from_secs(4));
        assert!(stat_time("7 (a").is_err());
    }

    #[test]
    fn the_machine_is_busy_without_idle_and_waiting() {
        let stat = "cpu  100 10 200 5000 700 3 7 20 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(machine_time(stat).unwrap(), (Duration::from_millis(3_200), Duration::from_millis(200)));
        assert!(machine_time("cpu 1 2 3").is_err());
    }

    #[test]
    fn writes_are_read_from_their_fields() {
        let io = "rchar: 9\nwchar: 8\nsyscr: 7\nsyscw: 6\nread_bytes: 5\nwrite_bytes: 4096\ncancelled_write_bytes: 3\n";
        assert_eq!(io_writes(io), Some(Writes { count: 6, bytes: 4096 }));
        assert_eq!(io_writes(""), None);
        let stat = "  10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26\n";
        let writes = Writes { count: 14, bytes: 16 * 512 };
        assert_eq!(device_writes(stat), Some(DeviceWrites { writes, flushes: Some(25) }));
        assert_eq!(device_writes("1 2 3 4 5 6 7 8 9 10 11").unwrap().flushes, None);
        assert_eq!(device_writes(""), None);
    }

    #[test]
    fn the_cores_of_this_process_are_known() {
        assert!(!cores_allowed(std::process::id()).unwrap().is_empty());
        assert_eq!(cores_allowed(u32::MAX), None);
    }

    #[test]
    fn memory_is_read_in_bytes() {
        let status = "Name:\tx\nVmRSS:\t    2048 kB\nRssAnon:\t       4 kB\n";
        assert_eq!(status_bytes(status, "VmRSS:"), Some(2 << 20));
        assert_eq!(status_bytes(status, "RssAnon:"), Some(4096));
        assert_eq!(status_bytes(status, "RssFile:"), None);
        assert!(memory(std::process::id()).unwrap().resident > 0);
    }
}
