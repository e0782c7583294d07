//! Registration with name servers: one thread and one lasting connection for each.
//!
//! ```text
//! start, every 30 s, and when the metadata moved ── REGISTER_BROKER (103) ──> known: this name server has version v
//! stop ── UNREGISTER_BROKER (104)
//! ```
//! The connection stays open: a name server forgets a broker at once when it closes. A name server that cannot be
//! reached is tried again each second and nobody waits for it.
//! Source: BrokerOuterAPI.java, BrokerController.registerBrokerAll.

use super::Broker;
use ringmq_net::client::Client;
use ringmq_net::protocol::body::register::{RegisterBrokerBody, body_crc32};
use ringmq_net::protocol::body::stats::KVTable;
use ringmq_net::protocol::codes::{request, response};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const RETRY_PAUSE: Duration = Duration::from_secs(1);
const UNREGISTER_TIMEOUT: Duration = Duration::from_secs(1);
/// A larger body is compressed whatever the configuration says: a frame has 16 MiB.
const PLAIN_BODY_BYTES_MAX: usize = 8 << 20;
const MASTER_ID: &str = "0";

#[derive(Debug)]
struct Server {
    address: String,
    /// The metadata version that it was told last.
    known: AtomicU64,
    is_reachable: AtomicBool,
}

/// What each name server knows.
#[derive(Debug)]
pub struct Registrations {
    servers: Vec<Server>,
    stopping: Mutex<bool>,
    condvar: Condvar,
}

impl Registrations {
    pub fn new(addresses: &[String]) -> Registrations {
        let servers = addresses
            .iter()
            .map(|address| Server {
                address: address.clone(),
                known: AtomicU64::new(0),
                is_reachable: AtomicBool::new(true),
            })
            .collect();
        Registrations { servers, stopping: Mutex::new(false), condvar: Condvar::new() }
    }

    pub fn count(&self) -> usize {
        self.servers.len()
    }

    /// Whether every name server that can be reached was told `version` or later.
    pub fn all_reached(&self) -> bool {
        self.servers
            .iter()
            .all(|server| server.is_reachable.load(Ordering::Acquire) && server.known.load(Ordering::Acquire) > 0)
    }

    /// Whether every name server that can be reached was told `version` or later.
    pub fn knows(&self, version: u64) -> bool {
        self.servers.iter().all(|server| {
            !server.is_reachable.load(Ordering::Acquire) || server.known.load(Ordering::Acquire) > version
        })
    }

    /// Something changed.
    pub fn wake(&self) {
        let _stopping = self.stopping.lock().unwrap_or_else(PoisonError::into_inner);
        self.condvar.notify_all();
    }

    /// The threads unregister and end.
    pub fn stop(&self) {
        *self.stopping.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.condvar.notify_all();
    }

    fn is_stopping(&self) -> bool {
        *self.stopping.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread of name server `index`, until `stop`. `moved` is called when it knows more than before.
pub fn run(broker: &Broker, index: usize, moved: &dyn Fn()) {
    let registrations = &broker.registrations;
    let server = &registrations.servers[index];
    let mut client = None;
    let mut failed_before = false;
    while !registrations.is_stopping() {
        let begin = Instant::now();
        let version = broker.dirty.durable();
        let registered = connect(&mut client, &server.address).and_then(|client| register(broker, client));
        let pause = match registered {
            Ok(ordered) => {
                server.is_reachable.store(true, Ordering::Release);
                // One more than the version, so that 0 means nothing at all.
                server.known.store(version + 1, Ordering::Release);
                if failed_before {
                    tracing::info!(name_server = server.address, "registered");
                }
                failed_before = false;
                moved();
                if let Some(table) = ordered {
                    broker.topics.set_ordered(&table.table, crate::wall_ms());
                }
                Duration::from_millis(u64::from(broker.config.register_interval_ms))
            }
            Err(why) => {
                client = None;
                server.is_reachable.store(false, Ordering::Release);
                if !failed_before {
                    tracing::warn!(name_server = server.address, why, "not registered, trying again each second");
                }
                failed_before = true;
                moved();
                RETRY_PAUSE
            }
        };
        if broker.live.is_registration_awaited() {
            broker.dirty.wake();
        }
        let stopping = registrations.stopping.lock().unwrap_or_else(PoisonError::into_inner);
        let sleep = || failed_before || server.known.load(Ordering::Acquire) > broker.dirty.durable();
        drop(
            registrations
                .condvar
                .wait_timeout_while(stopping, pause.saturating_sub(begin.elapsed()), |stopping| !*stopping && sleep())
                .unwrap_or_else(PoisonError::into_inner),
        );
    }
    if let Some(client) = &mut client {
        unregister(broker, client);
    }
}

fn connect<'a>(client: &'a mut Option<Client>, address: &str) -> Result<&'a mut Client, String> {
    if client.is_none() {
        let addresses = address.to_socket_addrs().map_err(|error| format!("{address}: {error}"))?;
        let addresses: Vec<SocketAddr> = addresses.collect();
        let mut why = format!("{address}: no address");
        for address in addresses {
            match Client::connect(address, CONNECT_TIMEOUT) {
                Ok(connected) => {
                    *client = Some(connected);
                    break;
                }
                Err(error) => why = format!("{address}: {error}"),
            }
        }
        if client.is_none() {
            return Err(why);
        }
    }
    Ok(client.as_mut().expect("made above"))
}

/// Returns the order configuration that the name server has.
fn register(broker: &Broker, client: &mut Client) -> Result<Option<KVTable>, String> {
    let config = broker.live.config();
    let timeout = Duration::from_millis(u64::from(config.register_timeout_ms));
    let (address, ha_address) = (config.broker_addr(), config.ha_server_addr());
    if !config.register_force && is_known(broker, client, timeout)? {
        return Ok(None);
    }
    let mut wrapper = broker.topics.wrapper();
    let permission = broker.live.permission();
    if permission & 6 != 6 {
        for topic in wrapper.topic_config_table.values_mut() {
            topic.perm = i32::from(permission);
        }
    }
    let body = RegisterBrokerBody { filter_server_list: Vec::new(), topic_config_serialize_wrapper: wrapper };
    let mut compressed = config.register_compressed;
    let mut bytes = if compressed { body.to_compressed(super::OWN_VERSION) } else { body.to_json() };
    if !compressed && bytes.len() > PLAIN_BODY_BYTES_MAX {
        compressed = true;
        bytes = body.to_compressed(super::OWN_VERSION);
    }
    let crc = body_crc32(&bytes).to_string();
    let fields = [
        ("brokerName", config.broker_name.as_str()),
        ("brokerAddr", &address),
        ("clusterName", &config.cluster_name),
        ("haServerAddr", &ha_address),
        ("brokerId", MASTER_ID),
        ("compressed", if compressed { "true" } else { "false" }),
        ("bodyCrc32", &crc),
    ];
    let answer = client.call(request::REGISTER_BROKER, &fields, &bytes, timeout).map_err(|error| error.to_string())?;
    if answer.code != response::SUCCESS {
        return Err(format!("refused with code {}: {}", answer.code, answer.remark.unwrap_or_default()));
    }
    if answer.body.is_empty() {
        return Ok(None);
    }
    KVTable::from_json(&answer.body).map(Some).map_err(|error| format!("the answer is no KV table: {error}"))
}

/// QUERY_DATA_VERSION (322), where `forceRegister` is off.
fn is_known(broker: &Broker, client: &mut Client, timeout: Duration) -> Result<bool, String> {
    let config = &broker.config;
    let address = config.broker_addr();
    let fields = [
        ("brokerName", config.broker_name.as_str()),
        ("brokerAddr", &address),
        ("clusterName", &config.cluster_name),
        ("brokerId", MASTER_ID),
    ];
    let body = broker.topics.data_version().to_json();
    let answer =
        client.call(request::QUERY_DATA_VERSION, &fields, &body, timeout).map_err(|error| error.to_string())?;
    let changed = answer.ext.iter().find(|(name, _)| name == "changed").map(|(_, value)| value.as_str());
    Ok(answer.code == response::SUCCESS && changed == Some("false"))
}

fn unregister(broker: &Broker, client: &mut Client) {
    let config = &broker.config;
    let address = config.broker_addr();
    let fields = [
        ("brokerName", config.broker_name.as_str()),
        ("brokerAddr", &address),
        ("clusterName", &config.cluster_name),
        ("brokerId", MASTER_ID),
    ];
    if let Err(error) = client.call(request::UNREGISTER_BROKER, &fields, &[], UNREGISTER_TIMEOUT) {
        tracing::warn!(%error, "not unregistered; the closed connection does it");
    }
}
