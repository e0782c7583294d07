//! What processes and the machine used, from /proc.
//!
//! Processor time is that of the whole process: every thread, the kernel's io_uring workers of the process among
//! them, user and system. What the kernel does for a process in threads of its own (write-back) is only in the
//! machine's figure, which holds everything that ran at the time.

use std::fs;
use std::io;
use std::time::Duration;

/// The unit of /proc times is fixed in the kernel's interface (USER_HZ), whatever the tick of the kernel.
const TICK: Duration = Duration::from_millis(10);

/// Processor time used up to now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub own: Duration,
    pub broker: Option<Duration>,
    pub machine: Duration,
    /// Time the hypervisor gave to others while this machine wanted to run.
    pub stolen: Duration,
}

impl Usage {
    /// A broker that cannot be read (not local, or gone) has no figure.
    pub fn read(broker_pid: Option<u32>) -> io::Result<Self> {
        let (machine, stolen) = machine_time(&fs::read_to_string("/proc/stat")?)?;
        let own = process_time(std::process::id())?;
        let broker = broker_pid.and_then(|pid| process_time(pid).ok());
        Ok(Self { own, broker, machine, stolen })
    }

    pub fn since(&self, earlier: &Self) -> Self {
        let broker = match (self.broker, earlier.broker) {
            (Some(now), Some(then)) => Some(now.saturating_sub(then)),
            _ => None,
        };
        Self {
            own: self.own.saturating_sub(earlier.own),
            broker,
            machine: self.machine.saturating_sub(earlier.machine),
            stolen: self.stolen.saturating_sub(earlier.stolen),
        }
    }
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
    fn memory_is_read_in_bytes() {
        let status = "Name:\tx\nVmRSS:\t    2048 kB\nRssAnon:\t       4 kB\n";
        assert_eq!(status_bytes(status, "VmRSS:"), Some(2 << 20));
        assert_eq!(status_bytes(status, "RssAnon:"), Some(4096));
        assert_eq!(status_bytes(status, "RssFile:"), None);
        assert!(memory(std::process::id()).unwrap().resident > 0);
    }
}
