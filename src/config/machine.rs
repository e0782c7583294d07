//! What the defaults depend on: this machine's name, addresses, memory and cores. Read once at start; tests make
//! up their own.

use nix::ifaddrs::getifaddrs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

#[derive(Clone, Debug)]
pub struct Machine {
    pub host_name: String,
    /// The address that Java would register (see [`pick_address`]).
    pub local_address: IpAddr,
    /// Addresses of bridges (docker0 and the like): nobody outside this machine reaches them.
    pub bridge_addresses: Vec<IpAddr>,
    pub home: PathBuf,
    /// Environment variable `NAMESRV_ADDR`.
    pub namesrv_addr: Option<String>,
    /// What this process may use: the machine's memory or, where smaller, its cgroup's limit.
    pub memory_bytes: u64,
    pub core_count: usize,
}

impl Machine {
    pub fn detect() -> Machine {
        let addresses = interface_addresses();
        let bridge_addresses = addresses.iter().filter(|address| address.on_bridge).map(|address| address.ip).collect();
        Machine {
            host_name: nix::unistd::gethostname()
                .ok()
                .and_then(|name| name.into_string().ok())
                .filter(|name| !name.is_empty())
                .unwrap_or_else(|| "DEFAULT_BROKER".to_string()),
            local_address: pick_address(&addresses),
            bridge_addresses,
            home: std::env::home_dir()
                .filter(|home| !home.as_os_str().is_empty())
                .unwrap_or_else(|| PathBuf::from("/")),
            namesrv_addr: std::env::var("NAMESRV_ADDR").ok().filter(|list| !list.trim().is_empty()),
            memory_bytes: memory_bytes(Path::new("/")),
            core_count: std::thread::available_parallelism().map_or(1, |count| count.get()),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct InterfaceAddress {
    ip: IpAddr,
    on_bridge: bool,
}

/// In the order in which Java sees them: its native code puts each interface and address it finds at the head of a
/// list, so the last one comes first.
fn interface_addresses() -> Vec<InterfaceAddress> {
    let Ok(interfaces) = getifaddrs() else { return Vec::new() };
    let mut addresses: Vec<InterfaceAddress> = interfaces
        .filter_map(|interface| {
            let address = interface.address?;
            let ip = match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
                (Some(v4), _) => IpAddr::V4(v4.ip()),
                (None, Some(v6)) => IpAddr::V6(v6.ip()),
                (None, None) => return None,
            };
            let on_bridge = Path::new("/sys/class/net").join(&interface.interface_name).join("bridge").exists();
            Some(InterfaceAddress { ip, on_bridge })
        })
        .collect();
    addresses.reverse();
    addresses
}

/// The first IPv4 address that is neither 127.0.*, 192.168.* nor 0.*; without one the last IPv4 address, then the
/// first IPv6 address. Loopback and bridges do not count. Source: RemotingUtil.getLocalAddress (4.9.7).
fn pick_address(addresses: &[InterfaceAddress]) -> IpAddr {
    let usable = || addresses.iter().filter(|address| !address.on_bridge && !address.ip.is_loopback()).map(|a| a.ip);
    let v4 = || usable().filter(IpAddr::is_ipv4);
    let far = |ip: &IpAddr| {
        let text = ip.to_string();
        !["127.0", "192.168", "0."].iter().any(|near| text.starts_with(near))
    };
    v4().find(far).or_else(|| v4().next_back()).or_else(|| usable().next()).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// The smallest of the machine's memory and the limits of this process's cgroup and its ancestors. `root` is `/`.
fn memory_bytes(root: &Path) -> u64 {
    let machine = std::fs::read_to_string(root.join("proc/meminfo"))
        .ok()
        .and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
            Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
        })
        .unwrap_or(1 << 30);
    let groups = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    groups.lines().filter_map(|line| cgroup_limit(root, line)).fold(machine, u64::min)
}

/// One line of `/proc/self/cgroup`: `0::/path` (v2) or `4:memory:/path` (v1).
fn cgroup_limit(root: &Path, line: &str) -> Option<u64> {
    let mut parts = line.splitn(3, ':');
    let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let (mount, file) = match controllers {
        "" => ("sys/fs/cgroup", "memory.max"),
        _ if controllers.split(',').any(|name| name == "memory") => ("sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        _ => return None,
    };
    let mount = root.join(mount);
    let mut folder = mount.join(path.trim_start_matches('/'));
    let mut smallest = None;
    // Inside a container the path may name folders that are not mounted: a missing file is no limit.
    while folder.starts_with(&mount) {
        let limit = std::fs::read_to_string(folder.join(file)).ok().and_then(|text| text.trim().parse::<u64>().ok());
        smallest = [smallest, limit].into_iter().flatten().min();
        if !folder.pop() {
            break;
        }
    }
    smallest
}

#[cfg(test)]
impl Machine {
    /// A machine with nothing special about it.
    pub fn example() -> Machine {
        Machine {
            host_name: "host-1".to_string(),
            local_address: "10.1.2.3".parse().unwrap(),
            bridge_addresses: vec!["172.17.0.1".parse().unwrap()],
            home: PathBuf::from("/home/x"),
            namesrv_addr: None,
            memory_bytes: 16 << 30,
            core_count: 8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_the_one_that_java_picks() {
        // addresses in Java's order (`b` = on a bridge), picked
        for (list, want) in [
            ("10.0.0.1 127.0.0.1", "10.0.0.1"),
            ("b172.17.0.1 10.0.0.1", "10.0.0.1"),
            ("192.168.1.2 10.0.0.1", "10.0.0.1"),
            ("192.168.1.2 192.168.1.3", "192.168.1.3"),
            ("fe80::1 192.168.1.2", "192.168.1.2"),
            ("fe80::1 ::1 127.0.0.1", "fe80::1"),
            ("b172.17.0.1 127.0.0.1", "127.0.0.1"),
            ("", "127.0.0.1"),
        ] {
            let addresses: Vec<_> = list
                .split_whitespace()
                .map(|item| InterfaceAddress {
                    ip: item.trim_start_matches('b').parse().unwrap(),
                    on_bridge: item.starts_with('b'),
                })
                .collect();
            assert_eq!(pick_address(&addresses).to_string(), want, "{list:?}");
        }
    }

    #[test]
    fn a_cgroup_limit_anywhere_above_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\n");
        assert_eq!(memory_bytes(root.path()), 16 << 30);
        write("proc/self/cgroup", "4:memory:/old\n0::/a/b\n");
        write("sys/fs/cgroup/a/b/memory.max", "max\n");
        assert_eq!(memory_bytes(root.path()), 16 << 30);
        write("sys/fs/cgroup/a/memory.max", "536870912\n");
        assert_eq!(memory_bytes(root.path()), 512 << 20);
        write("sys/fs/cgroup/memory/old/memory.limit_in_bytes", "268435456\n");
        assert_eq!(memory_bytes(root.path()), 256 << 20);
    }

    #[test]
    fn this_machine_has_memory_and_a_core() {
        let machine = Machine::detect();
        assert!(machine.memory_bytes > 64 << 20);
        assert!(machine.core_count >= 1);
        assert!(!machine.host_name.is_empty());
    }
}
