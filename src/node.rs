//! Assembly: the one place that knows every room.
//!
//! ```text
//! start   configuration ─ ring probe ─ store (lock, recovery) ─ metadata ─ ports ─ shards ─ agents ─ registered ─ ready
//! stop    unregister ─ shards: stop accepting, answer, end ─ agents: last metadata ─ store: flush, checkpoint, no abort
//! ```

use crate::agents::Agents;
use crate::broker::Broker;
use crate::broker::persist::PersistError;
use crate::broker::topics::QUEUE_COUNT_MAX;
use crate::config::{BrokerConfig, Machine, NamesrvConfig};
use crate::namesrv::{KvOpenError, NameServer};
use crate::shard::{Mail, PORT_BROKER, PORT_NAMESRV, PORT_VIP, Peers, Shard};
use crate::{mono_ns, wall_ms};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, SockaddrIn6, bind, listen, setsockopt, socket, sockopt,
};
use ringmq_net::reactor::{Port, Reactor, ReactorConfig, RingError, probe};
use ringmq_storage::error::OpenError;
use ringmq_storage::store::{Store, StoreConfig};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

const BACKLOG: i32 = 4096;
const LISTEN_WAIT_NS: u64 = 2_000_000_000;
/// A start waits so long for name servers, then is ready without them.
const REGISTER_WAIT_NS: u64 = 1_000_000_000;

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Ring(#[from] RingError),
    #[error(transparent)]
    Store(#[from] OpenError),
    #[error(transparent)]
    Metadata(#[from] PersistError),
    #[error(transparent)]
    Kv(#[from] KvOpenError),
    #[error("cannot listen on {address} ({what}): {source}; stop the other process or set {key}")]
    Listen { address: SocketAddr, what: &'static str, key: &'static str, source: io::Error },
    #[error("brokerIP1={0} has no address")]
    Address(String),
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    #[error("a shard ended before it began")]
    Shard,
}

pub struct Node {
    peers: Arc<Peers>,
    shards: Vec<JoinHandle<Result<(), RingError>>>,
    agents: Option<Agents>,
    broker: Option<Arc<Broker>>,
    /// What a start says, one line each.
    pub lines: Vec<String>,
}

/// The store's part of a configuration.
pub fn store_config(config: &BrokerConfig) -> StoreConfig {
    StoreConfig {
        root: config.store_path_root.clone(),
        commit_log_dir: config.store_path_commit_log.clone(),
        commit_log_file_bytes: u64::from(config.commit_log_file_bytes),
        consume_queue_file_bytes: u64::from(config.consume_queue_file_bytes),
        body_bytes_max: config.message_bytes_max as usize,
        promise: config.promise(),
        medium: config.commit_log_medium,
        keys: config.flush_keys(),
        check_crc_on_recover: config.crc_check_on_recover,
        index: config.index(),
        delays_ms: config.delay_levels.ms.clone(),
        topics: crate::broker::topics::on_disk(config),
    }
}

/// Topics that a warning names; each costs a look at every queue that it could have.
const LOST_NAMED_MAX: usize = 20;

/// Queues of topics that the table does not have: topics.json was lost, or put in the place of another.
fn lost_topics(broker: &Broker) -> Option<String> {
    let names = broker.topics.names();
    // The broker makes its own again when it needs them.
    let is_lost = |topic: &String| !names.contains(topic) && !broker.topics.is_system(topic);
    let lost: Vec<String> = broker.store.topics().into_iter().filter(is_lost).collect();
    // Created anew, a topic needs queues up to its last one.
    let queue_count = |topic: &str| {
        let last = (0..QUEUE_COUNT_MAX).rev().find(|queue_id| broker.store.queue(topic, *queue_id).is_some());
        last.map_or(0, |queue_id| queue_id + 1)
    };
    let named = lost.iter().take(LOST_NAMED_MAX).map(|topic| format!("{topic} ({} queues)", queue_count(topic)));
    let named: Vec<String> = named.collect();
    let more = match lost.len().saturating_sub(named.len()) {
        0 if named.is_empty() => return None,
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!(
        "WARNING: {} topics have queues with messages but no configuration: {}{more}. Clients are told that they do not exist. \
         Bring {} back from a copy, or create them again with as many queues",
        lost.len(),
        named.join(", "),
        broker.config.store_path_root.join("config/topics.json").display()
    ))
}

/// What a message id and a record carry: an address that clients can call.
fn store_host(config: &BrokerConfig) -> Result<SocketAddr, StartError> {
    let resolved = (config.broker_ip1.as_str(), config.listen_port).to_socket_addrs();
    resolved.ok().and_then(|mut all| all.next()).ok_or_else(|| StartError::Address(config.broker_ip1.clone()))
}

fn listener(address: SocketAddr, what: &'static str, key: &'static str) -> Result<TcpListener, StartError> {
    let open = || -> nix::Result<TcpListener> {
        let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        setsockopt(&fd, sockopt::ReuseAddr, &true)?;
        match address {
            SocketAddr::V4(address) => bind(fd.as_raw_fd(), &SockaddrIn::from(address))?,
            SocketAddr::V6(address) => bind(fd.as_raw_fd(), &SockaddrIn6::from(address))?,
        }
        listen(&fd, Backlog::new(BACKLOG)?)?;
        Ok(TcpListener::from(fd))
    };
    // A process that was killed a moment ago may still hold the port: the kernel ends its ring first.
    let deadline_ns = mono_ns() + LISTEN_WAIT_NS;
    loop {
        match open() {
            Err(nix::errno::Errno::EADDRINUSE) if mono_ns() < deadline_ns => thread::sleep(Duration::from_millis(20)),
            opened => return opened.map_err(|errno| StartError::Listen { address, what, key, source: errno.into() }),
        }
    }
}

struct Ports {
    listeners: Vec<(TcpListener, Port)>,
    lines: Vec<String>,
}

impl Ports {
    fn open(
        &mut self,
        ip: IpAddr,
        port: u16,
        what: &'static str,
        key: &'static str,
        tag: Port,
    ) -> Result<(), StartError> {
        let address = SocketAddr::new(ip, port);
        self.listeners.push((listener(address, what, key)?, tag));
        self.lines.push(format!("{what}: listening on {address}"));
        Ok(())
    }
}

impl Node {
    /// A broker, a name server, or both in one process.
    ///
    /// # Errors
    /// [`StartError`], each with its remedy; nothing listens then and the store is as it was found.
    pub fn start(broker: Option<BrokerConfig>, namesrv: Option<NamesrvConfig>) -> Result<Node, StartError> {
        let features = probe()?;
        let mut lines = vec![format!("io_uring: {features}")];
        // Ports first: a port that is taken must not cost a recovery, and says it at once.
        let mut ports = Ports { listeners: Vec::new(), lines: Vec::new() };
        if let Some(config) = &namesrv {
            ports.open(
                config.bind_address,
                config.listen_port,
                "name server",
                "--namesrv-port or listenPort",
                PORT_NAMESRV,
            )?;
        }
        if let Some(config) = &broker {
            ports.open(config.bind_address, config.listen_port, "broker", "listenPort", PORT_BROKER)?;
            ports.open(
                config.bind_address,
                config.listen_port - 2,
                "broker, VIP port (no pull)",
                "listenPort",
                PORT_VIP,
            )?;
        }
        let name_server = namesrv.clone().map(NameServer::open).transpose()?;
        let reactor_config = reactor_config(broker.as_ref(), namesrv.as_ref());
        let limits = broker.as_ref().map(BrokerConfig::limits);
        let shard_count = broker.as_ref().map_or(1, |config| config.shard_count);
        let broker = match broker {
            None => None,
            Some(config) => {
                lines.push(format!("store: {}", config.store_path_root.display()));
                lines.push(config.promise_line());
                lines.push(format!("registered address: {}", config.broker_addr()));
                let host = store_host(&config)?;
                let (store, report) = Store::open(store_config(&config), wall_ms())?;
                lines.extend(report.lines.into_iter().map(|line| format!("store: {line}")));
                store.set_retention(config.retention_keys());
                let memory_bytes = Machine::detect().memory_bytes;
                let opened = Arc::clone(&store);
                let broker = Broker::open(config, store, host, memory_bytes, wall_ms()).inspect_err(|_| {
                    // As it was found: the next start is not one after a crash.
                    if let Err(error) = opened.close(wall_ms()) {
                        tracing::error!(%error, "the store is not closed cleanly");
                    }
                })?;
                lines.extend(lost_topics(&broker));
                let is_topic = |topic: &str| broker.topics.get(topic).is_some();
                lines.extend(broker.offsets.keep_within(&broker.store, is_topic));
                // Before anything is served: what comes in place of the lost messages would be passed over after a kill.
                if let Err(error) = broker.offsets.flush() {
                    tracing::error!(%error, "the offsets of groups can not be written, trying on");
                }
                Some(Arc::new(broker))
            }
        };
        lines.append(&mut ports.lines);

        let mut starts = Vec::new();
        let mut shards = Vec::new();
        let (mail_sender, mail_receiver) = mpsc::channel();
        let mut name_server = name_server;
        for index in 0..shard_count as u8 {
            let (start_sender, start_receiver) = mpsc::channel::<(Arc<Peers>, Vec<(TcpListener, Port)>)>();
            starts.push(start_sender);
            let (config, mail_sender) = (reactor_config.clone(), mail_sender.clone());
            let (broker, name_server) = (broker.clone(), if index == 0 { name_server.take() } else { None });
            let run = move || -> Result<(), RingError> {
                let mut reactor: Reactor<Shard> = match Reactor::new(config) {
                    Ok(reactor) => reactor,
                    Err(error) => {
                        let _ = mail_sender.send((index, None));
                        return Err(error);
                    }
                };
                let _ = mail_sender.send((index, Some(reactor.mail_sender())));
                drop(mail_sender);
                let Ok((peers, listeners)) = start_receiver.recv() else { return Ok(()) };
                let mut shard = Shard::new(index, peers, broker, name_server);
                for (listener, port) in listeners {
                    reactor.listen(listener, port)?;
                }
                reactor.run(&mut shard)
            };
            let thread = thread::Builder::new().name(format!("shard-{index}")).spawn(run);
            shards.push(thread.map_err(StartError::Thread)?);
        }
        drop(mail_sender);
        let mut mails = Vec::new();
        for (index, mail) in mail_receiver {
            mails.push((index, mail));
        }
        mails.sort_by_key(|(index, _)| *index);
        if mails.len() != shards.len() || mails.iter().any(|(_, mail)| mail.is_none()) {
            drop(starts);
            for shard in shards {
                if let Ok(Err(error)) = shard.join() {
                    return Err(error.into());
                }
            }
            return Err(StartError::Shard);
        }
        let peers = Arc::new(Peers {
            connection_counts: (0..shards.len()).map(|_| AtomicUsize::new(0)).collect(),
            connection_count_max: limits.map_or(65_536, |limits| limits.connection_count_max as usize),
            flush_waiters: AtomicU64::new(0),
            mails: mails.into_iter().filter_map(|(_, mail)| mail).collect(),
        });
        let mut listeners = Some(ports.listeners);
        for start in &starts {
            start.send((Arc::clone(&peers), listeners.take().unwrap_or_default())).map_err(|_| StartError::Shard)?;
        }
        let agents = match &broker {
            None => None,
            Some(broker) => Some(Agents::start(broker, &peers).map_err(StartError::Thread)?),
        };
        let mut node = Node { peers, shards, agents, broker, lines };
        node.wait_for_name_servers();
        Ok(node)
    }

    fn wait_for_name_servers(&mut self) {
        let Some(broker) = &self.broker else { return };
        let deadline_ns = mono_ns() + REGISTER_WAIT_NS;
        while !broker.registrations.knows(0) && mono_ns() < deadline_ns {
            thread::sleep(Duration::from_millis(1));
        }
        let names = if broker.config.namesrv_addrs.is_empty() {
            "no name server is configured: clients find this broker by its address only".to_string()
        } else if broker.registrations.all_reached() {
            format!("registered with {}", broker.config.namesrv_addrs.join("; "))
        } else {
            format!("not registered with all of {} yet, trying on", broker.config.namesrv_addrs.join("; "))
        };
        self.lines.push(names);
    }

    /// Whether every shard still runs.
    pub fn is_running(&self) -> bool {
        self.shards.iter().all(|shard| !shard.is_finished())
    }

    /// Answers what is in flight, writes everything, closes. Returns what went wrong.
    pub fn stop(mut self) -> Vec<String> {
        let mut wrong = Vec::new();
        if let Some(agents) = &mut self.agents {
            agents.unregister();
        }
        for mail in &self.peers.mails {
            let mut stop = Mail::Stop;
            // A full box empties in a turn.
            for _ in 0..1000 {
                match mail.send(stop) {
                    Ok(()) => break,
                    Err(back) => stop = back,
                }
                thread::sleep(Duration::from_millis(1));
            }
        }
        for (index, shard) in self.shards.drain(..).enumerate() {
            match shard.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => wrong.push(format!("shard {index}: {error}")),
                Err(_) => wrong.push(format!("shard {index} panicked")),
            }
        }
        if let Some(agents) = self.agents.take() {
            agents.stop();
        }
        if let Some(broker) = &self.broker {
            match broker.store.close(wall_ms()) {
                Ok(()) => {
                    if let Err(error) = broker.keep_progress() {
                        wrong.push(format!("what was delivered last may come once more after the next start: {error}"));
                    }
                }
                Err(error) => {
                    wrong.push(format!("the store was not closed cleanly, the next start recovers it: {error}"));
                }
            }
        }
        wrong
    }
}

fn reactor_config(broker: Option<&BrokerConfig>, namesrv: Option<&NamesrvConfig>) -> ReactorConfig {
    let mut reactor = ReactorConfig::default();
    if let Some(config) = broker {
        let limits = config.limits();
        reactor.recv_buffer_bytes = config.recv_buffer_bytes;
        reactor.recv_buffer_count = config.recv_buffer_count;
        reactor.idle_ms = u64::from(config.idle_max_s) * 1000;
        reactor.out_bytes_max = limits.out_bytes_max as usize;
        reactor.partial_bytes_max = limits.partial_bytes_max as usize;
        reactor.mail_count_max = limits.mail_count_max as usize;
        reactor.spin_us = config.spin_us;
    } else if let Some(config) = namesrv {
        reactor.idle_ms = u64::from(config.idle_max_s) * 1000;
    }
    reactor
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::testing;

    #[test]
    fn lost_topics_are_named_with_their_queues() {
        let dir = tempfile::tempdir().unwrap();
        let broker = testing::broker(dir.path(), &[]);
        assert_eq!(lost_topics(&broker), None);
        for (topic, queue_id) in [("a", 0), ("a", 6), ("b", 0), ("RMQ_SYS_TRANS_HALF_TOPIC", 0)] {
            broker.store.queue_or_create(topic, queue_id);
        }
        let told = lost_topics(&broker).unwrap();
        assert!(
            told.contains("2 topics have queues with messages but no configuration: a (7 queues), b (1 queues). "),
            "{told}"
        );
        for index in 0..21 {
            broker.store.queue_or_create(&format!("c{index:02}"), 0);
        }
        let told = lost_topics(&broker).unwrap();
        assert!(told.contains("23 topics") && told.contains("c17 (1 queues) and 3 more. "), "{told}");
    }
}
