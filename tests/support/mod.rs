//! Nodes and official clients for the integration tests.
//!
//! ```text
//! Cluster   a name server and a broker, each a child process: ringmq, or the published Java one
//! Client    a program of tests/clients, built once into <target>/clients and then only run
//! wire      raw frames, for what no official client would send
//! ```
//!
//! | environment | meaning |
//! |---|---|
//! | `RINGMQ_REQUIRE_CLIENTS=1` | a missing java, mvn or go fails the test instead of skipping it |
//! | `RINGMQ_ORACLE=java-4.9.7` or `java-5.3.3` | the published nodes take ringmq's place: is the test right? |
//! | `RINGMQ_NAMESRV=host:port` with `RINGMQ_BROKER=host:port` | a cluster that already runs takes its place |
//! | `RINGMQ_FULL=1` | the main job at its full size |
//! | `RINGMQ_KEEP=1` | the directories stay |
//!
//! Every child is ended by its own id when its owner goes; nothing else is ever signalled.

// Each test binary compiles this file and uses its own part of it.
#![allow(dead_code)]

pub mod wire;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::cell::Cell;
use std::collections::HashSet;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{LazyLock, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

/// Bounds that only end a hang.
const START_MAX: Duration = Duration::from_secs(90);
const GET_BROKER_CLUSTER_INFO: i32 = 106;
const STOP_MAX: Duration = Duration::from_secs(60);
const BUILD_MAX: Duration = Duration::from_secs(900);
const TAIL_LINES: usize = 40;

pub const CLUSTER_NAME: &str = "DefaultCluster";
pub const BROKER_NAME: &str = "broker-a";

/// Two releases stand for their generations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Java {
    V4,
    V5,
}

impl Java {
    pub fn version(self) -> &'static str {
        match self {
            Java::V4 => "4.9.7",
            Java::V5 => "5.3.3",
        }
    }
}

/// Whose name server or broker it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    Ringmq,
    Java(Java),
}

impl Maker {
    /// What stands in for ringmq when the tests themselves are tested.
    fn or_oracle(self) -> Maker {
        match (self, std::env::var("RINGMQ_ORACLE").as_deref()) {
            (Maker::Ringmq, Ok("java-4.9.7")) => Maker::Java(Java::V4),
            (Maker::Ringmq, Ok("java-5.3.3")) => Maker::Java(Java::V5),
            (Maker::Ringmq, Ok(other)) => panic!("RINGMQ_ORACLE={other}: java-4.9.7 or java-5.3.3"),
            _ => self,
        }
    }
}

/// A client program. The Java ones bring the Java nodes with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    Java(Java),
    Go,
}

impl Client {
    /// Checks the tools and builds the program unless that is done. `None`, after saying SKIPPED, where a tool is
    /// missing.
    pub fn ready(self) -> Option<Client> {
        let missing = match self {
            Client::Java(_) => missing_tool("java", "-version").or_else(|| missing_tool("mvn", "-v")),
            Client::Go => missing_tool("go", "version"),
        };
        if let Some(missing) = missing {
            skip(&format!("{missing} is missing"));
            return None;
        }
        match self {
            Client::Java(java) => build_java(java),
            Client::Go => build_go(),
        }
        Some(self)
    }

    /// Runs a command of the program to its end and gives its RESULT, which must say ok.
    pub fn run(self, cluster: &Cluster, name: &str, args: &[&str]) -> serde_json::Value {
        self.start(cluster, name, args).end().0
    }

    /// The same, but the caller goes on meanwhile.
    pub fn start(self, cluster: &Cluster, name: &str, args: &[&str]) -> Running {
        let mut command = match self {
            Client::Java(java) => {
                let mut command = java_command(java, &cluster.home(), "1g");
                command.arg("ringmq.Clients");
                command
            }
            Client::Go => Command::new(self.directory().join("clients")),
        };
        command.args([name, "--namesrv", cluster.namesrv_address()]);
        if self == Client::Go {
            command.args(["--broker", cluster.broker_address()]);
        }
        command.args(args);
        let label = format!("client-{name}-{}", cluster.next_run());
        Running { process: Process::start(&label, cluster.directory(), command), client: self }
    }

    fn directory(self) -> PathBuf {
        match self {
            Client::Java(java) => clients_directory().join(format!("java-{}", java.version())),
            Client::Go => clients_directory().join("go"),
        }
    }
}

/// A client program at work.
pub struct Running {
    process: Process,
    client: Client,
}

impl Running {
    pub fn is_running(&mut self) -> bool {
        self.process.is_running()
    }

    /// Its RESULT, which must say ok, and all that it printed.
    pub fn end(mut self) -> (serde_json::Value, String) {
        // The programs end themselves sooner, and say where they hung.
        let seconds_max = if is_full() { 1_500 } else { 300 };
        let status = self.process.wait(Duration::from_secs(seconds_max));
        let out = self.process.stdout();
        let Some(result) = out.lines().rev().find_map(|line| line.strip_prefix("RESULT ")) else {
            panic!("{:?} ended with {status:?} and no result\n{}", self.client, self.process.tails());
        };
        let result: serde_json::Value = serde_json::from_str(result).expect("the programs print JSON");
        let is_ok = status.is_some_and(|status| status.success()) && result["ok"] == true;
        assert!(is_ok, "{:?}: {result}\n{}", self.client, self.process.tails());
        (result, out)
    }
}

/// One name server and one broker of it, on ports and in a directory of their own.
pub struct Cluster {
    // In this order: children end before their directory goes.
    broker: Option<Process>,
    namesrv: Option<Process>,
    directory: TempDir,
    broker_maker: Maker,
    namesrv_maker: Maker,
    /// Both parts in one process, as ringmq starts when nothing else is asked for.
    is_standalone: bool,
    namesrv_address: String,
    broker_address: String,
    config: Vec<(String, String)>,
    run_count: Cell<u32>,
}

impl Cluster {
    /// `ringmq standalone`, or what the environment names in its place. `None` where that takes a Java that is not
    /// there.
    pub fn start(name: &str) -> Option<Cluster> {
        Cluster::start_with(name, &[])
    }

    /// The same, with more keys in the broker's file.
    pub fn start_with(name: &str, config: &[(&str, &str)]) -> Option<Cluster> {
        if let Ok(namesrv) = std::env::var("RINGMQ_NAMESRV") {
            let broker = std::env::var("RINGMQ_BROKER").expect("RINGMQ_BROKER goes with RINGMQ_NAMESRV");
            return Some(Cluster::new(name, Maker::Ringmq, Maker::Ringmq, namesrv, broker, config));
        }
        let maker = Maker::Ringmq.or_oracle();
        Cluster::of(name, maker, maker, config)
    }

    /// A name server and a broker, each in a process of its own.
    pub fn mixed(name: &str, namesrv: Maker, broker: Maker) -> Option<Cluster> {
        Cluster::mixed_with(name, namesrv, broker, &[])
    }

    /// The same, with more keys in the broker's file.
    pub fn mixed_with(name: &str, namesrv: Maker, broker: Maker, config: &[(&str, &str)]) -> Option<Cluster> {
        let mut cluster = Cluster::made(name, namesrv.or_oracle(), broker.or_oracle(), config)?;
        cluster.is_standalone = false;
        cluster.start_again();
        Some(cluster)
    }

    fn of(name: &str, namesrv: Maker, broker: Maker, config: &[(&str, &str)]) -> Option<Cluster> {
        let mut cluster = Cluster::made(name, namesrv, broker, config)?;
        cluster.start_again();
        Some(cluster)
    }

    fn made(name: &str, namesrv: Maker, broker: Maker, config: &[(&str, &str)]) -> Option<Cluster> {
        for maker in [namesrv, broker] {
            if let Maker::Java(java) = maker {
                Client::Java(java).ready()?;
            }
        }
        let port = free_ports();
        let (at_namesrv, at_broker) = (format!("127.0.0.1:{}", port + 2), format!("127.0.0.1:{port}"));
        Some(Cluster::new(name, namesrv, broker, at_namesrv, at_broker, config))
    }

    fn new(
        name: &str,
        namesrv_maker: Maker,
        broker_maker: Maker,
        namesrv_address: String,
        broker_address: String,
        config: &[(&str, &str)],
    ) -> Cluster {
        let mut builder = tempfile::Builder::new();
        let prefix = format!("{name}-");
        builder.prefix(&prefix).disable_cleanup(std::env::var_os("RINGMQ_KEEP").is_some());
        Cluster {
            broker: None,
            namesrv: None,
            directory: builder.tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory below the target"),
            broker_maker,
            namesrv_maker,
            is_standalone: namesrv_maker == Maker::Ringmq && broker_maker == Maker::Ringmq,
            namesrv_address,
            broker_address,
            config: config.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            run_count: Cell::new(0),
        }
    }

    pub fn namesrv_address(&self) -> &str {
        &self.namesrv_address
    }

    pub fn broker_address(&self) -> &str {
        &self.broker_address
    }

    /// For logs, files of acknowledgements and the like. Goes with the cluster.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn store(&self) -> PathBuf {
        self.directory().join("store")
    }

    /// The broker may be ended and started by the test: it is not somebody else's.
    pub fn is_ours(&self) -> bool {
        self.broker.is_some()
    }

    /// The broker's process, in `standalone` the name server's too.
    pub fn broker_process(&self) -> &Process {
        self.broker.as_ref().expect("a broker that runs")
    }

    /// Starts what does not run, on the same ports and the same store.
    pub fn start_again(&mut self) {
        if self.namesrv.is_none() && !self.is_standalone {
            self.namesrv = Some(self.start_namesrv());
        }
        if self.broker.is_none() {
            self.broker = Some(self.start_broker());
        }
    }

    /// The store goes to a broker of another maker, which `start_again` starts.
    pub fn hand_over(&mut self, maker: Maker) {
        assert!(self.broker.is_none(), "the broker still runs");
        assert!(!self.is_standalone, "the name server would go with the broker");
        self.broker_maker = maker;
    }

    /// SIGKILL to the broker, which in `standalone` is the name server too.
    pub fn kill_broker(&mut self) {
        let mut process = self.broker.take().expect("a broker that runs");
        process.signal(Signal::SIGKILL);
        let status = process.wait(STOP_MAX);
        assert_eq!(status.and_then(|status| status.signal()), Some(Signal::SIGKILL as i32));
    }

    /// SIGTERM to the broker, which must end by itself and well.
    pub fn stop_broker(&mut self) {
        let mut process = self.broker.take().expect("a broker that runs");
        process.signal(Signal::SIGTERM);
        let Some(status) = process.wait(STOP_MAX) else {
            panic!("no end {STOP_MAX:?} after SIGTERM\n{}", process.tails());
        };
        // A Java process that has run its shutdown hooks still reports the signal: 143.
        let is_well = match self.broker_maker {
            Maker::Ringmq => status.success(),
            Maker::Java(_) => status.success() || status.code() == Some(143),
        };
        assert!(is_well, "SIGTERM ended it with {status:?}\n{}", process.tails());
    }

    fn start_namesrv(&self) -> Process {
        let file = self.write_config(
            "namesrv.properties",
            &[
                ("listenPort", port_of(&self.namesrv_address).to_string()),
                ("bindAddress", "127.0.0.1".to_owned()),
                ("kvConfigPath", self.directory().join("kvConfig.json").display().to_string()),
            ],
        );
        let command = match self.namesrv_maker {
            Maker::Ringmq => {
                let mut command = Command::new(env!("CARGO_BIN_EXE_ringmq"));
                command.args(["namesrv", "-c"]).arg(file);
                command
            }
            Maker::Java(java) => {
                let mut command = java_command(java, &self.home(), "256m");
                command.args(["org.apache.rocketmq.namesrv.NamesrvStartup", "-c"]).arg(file);
                command
            }
        };
        self.start_node("namesrv", self.namesrv_maker, command)
    }

    fn start_broker(&self) -> Process {
        let store = self.store().display().to_string();
        let mut config = vec![
            ("brokerClusterName", CLUSTER_NAME.to_owned()),
            ("brokerName", BROKER_NAME.to_owned()),
            ("brokerId", "0".to_owned()),
            ("brokerIP1", "127.0.0.1".to_owned()),
            ("brokerIP2", "127.0.0.1".to_owned()),
            ("bindAddress", "127.0.0.1".to_owned()),
            ("listenPort", port_of(&self.broker_address).to_string()),
            ("storePathRootDir", store.clone()),
            ("storePathCommitLog", format!("{store}/commitlog")),
            ("autoCreateTopicEnable", "true".to_owned()),
        ];
        config.extend(self.config.iter().map(|(key, value)| (key.as_str(), value.clone())));
        let file = self.write_config("broker.properties", &config);
        let command = match self.broker_maker {
            Maker::Ringmq => {
                let mut command = Command::new(env!("CARGO_BIN_EXE_ringmq"));
                if self.is_standalone {
                    let port = port_of(&self.namesrv_address).to_string();
                    command.args(["standalone", "-c"]).arg(file);
                    command.args(["--store", &store, "--namesrv-port", &port]);
                } else {
                    command.args(["broker", "-c"]).arg(file).args(["-n", &self.namesrv_address]);
                }
                command
            }
            Maker::Java(java) => {
                let mut command = java_command(java, &self.home(), "512m");
                command.args(["org.apache.rocketmq.broker.BrokerStartup", "-c"]).arg(file);
                command.args(["-n", &self.namesrv_address]);
                command
            }
        };
        let process = self.start_node("broker", self.broker_maker, command);
        if !self.is_standalone {
            self.await_registration(&process);
        }
        process
    }

    /// A broker may say that it is there before the name server knows it: Java 5 asks around for name servers on
    /// another thread, and where that comes second it registers ten seconds later.
    fn await_registration(&self, broker: &Process) {
        let mut namesrv = wire::Wire::to(&self.namesrv_address);
        let end = Instant::now() + START_MAX;
        loop {
            let told = namesrv.ask(&wire::Ask::new(GET_BROKER_CLUSTER_INFO));
            if String::from_utf8_lossy(&told.body).contains(&self.broker_address) {
                return;
            }
            assert!(Instant::now() < end, "not registered after {START_MAX:?}\n{}", broker.tails());
            sleep(Duration::from_millis(20));
        }
    }

    fn start_node(&self, label: &str, maker: Maker, command: Command) -> Process {
        let mut process = Process::start(&format!("{label}-{}", self.next_run()), self.directory(), command);
        process.await_line(match maker {
            Maker::Ringmq => " ready",
            Maker::Java(_) => "boot success",
        });
        process
    }

    fn write_config(&self, name: &str, pairs: &[(&str, String)]) -> PathBuf {
        let path = self.directory().join(name);
        let text: String = pairs.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
        fs::write(&path, text).expect("a file in our directory");
        path
    }

    /// Where Java programs keep logs and local offsets, and where 4.9 insists on finding its logging configured.
    fn home(&self) -> PathBuf {
        let home = self.directory().join("home");
        let conf = home.join("conf");
        fs::create_dir_all(&conf).expect("a directory in our directory");
        for part in ["namesrv", "broker", "tools"] {
            let text = "<configuration><root level=\"OFF\"/></configuration>\n";
            fs::write(conf.join(format!("logback_{part}.xml")), text).expect("a file in our directory");
        }
        home
    }

    fn next_run(&self) -> u32 {
        self.run_count.replace(self.run_count.get() + 1)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for process in self.broker.iter().chain(&self.namesrv) {
                eprintln!("{}", process.tails());
            }
        }
    }
}

/// A child, its output in files, ended with its owner.
pub struct Process {
    label: String,
    child: Child,
    status: Option<ExitStatus>,
    out: PathBuf,
    err: PathBuf,
}

impl Process {
    pub fn start(label: &str, directory: &Path, mut command: Command) -> Process {
        let (out, err) = (directory.join(format!("{label}.out")), directory.join(format!("{label}.err")));
        command.stdin(Stdio::null());
        command.stdout(File::create(&out).expect("a file in our directory"));
        command.stderr(File::create(&err).expect("a file in our directory"));
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Process { label: label.to_owned(), child, status: None, out, err }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn is_running(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.child.try_wait().expect("our own child");
        }
        self.status.is_none()
    }

    /// `None` when it still runs at the end.
    pub fn wait(&mut self, wait_max: Duration) -> Option<ExitStatus> {
        let end = Instant::now() + wait_max;
        while self.is_running() && Instant::now() < end {
            sleep(Duration::from_millis(20));
        }
        self.status
    }

    pub fn signal(&mut self, signal: Signal) {
        // Until it is waited for, the id stays the child's even if that has ended.
        if self.is_running() {
            let id = i32::try_from(self.child.id()).expect("process ids are positive i32");
            kill(Pid::from_raw(id), signal).expect("our own child");
        }
    }

    pub fn stdout(&self) -> String {
        read(&self.out)
    }

    pub fn stderr(&self) -> String {
        read(&self.err)
    }

    fn await_line(&mut self, mark: &str) {
        let end = Instant::now() + START_MAX;
        while !self.stdout().lines().any(|line| line.contains(mark)) {
            assert!(self.is_running(), "it ended before `{mark}`: {:?}\n{}", self.status, self.tails());
            assert!(Instant::now() < end, "no `{mark}` after {START_MAX:?}\n{}", self.tails());
            sleep(Duration::from_millis(10));
        }
    }

    /// The last lines it printed.
    pub fn tails(&self) -> String {
        let tail = |text: String| {
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
        };
        let (out, err) = (tail(self.stdout()), tail(self.stderr()));
        format!("---- {0} stdout\n{out}\n---- {0} stderr\n{err}\n----", self.label)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.is_running() {
            // It is our own child and not waited for, so this reaches nobody else.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

pub fn is_full() -> bool {
    std::env::var_os("RINGMQ_FULL").is_some_and(|value| value == "1")
}

/// Long ones whose like runs always: with `RINGMQ_FULL=1` only. True: leave it.
pub fn only_in_full() -> bool {
    if !is_full() {
        println!("left for RINGMQ_FULL=1");
    }
    !is_full()
}

/// Says what is not tested, past the capture of the test runner; fails where the clients are required.
pub fn skip(why: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let is_required = std::env::var_os("RINGMQ_REQUIRE_CLIENTS").is_some_and(|value| value == "1");
    assert!(!is_required, "{test} would be skipped: {why}, and RINGMQ_REQUIRE_CLIENTS=1");
    let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: {why}");
}

/// For a state that another process brings about.
pub fn await_that(what: &str, wait_max: Duration, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + wait_max;
    while !condition() {
        assert!(Instant::now() < end, "still waiting after {wait_max:?} for: {what}");
        sleep(Duration::from_millis(20));
    }
}

fn read(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

pub fn port_of(address: &str) -> u16 {
    address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("host:port")
}

/// A port `p` such that p−2 (fast), p, p+1 (replication) and p+2 (ours, for the name server) are free. They lie below
/// the range from which the kernel gives ports to clients, so that no connection takes one in between.
pub fn free_ports() -> u16 {
    const FIRST: usize = 12_000;
    const STEP: usize = 8;
    const STEP_COUNT: usize = 2_400;
    static GIVEN: LazyLock<Mutex<HashSet<u16>>> = LazyLock::new(Mutex::default);
    let micros = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.subsec_micros());
    let at = micros as usize + std::process::id() as usize;
    let mut given = GIVEN.lock().expect("no panic while it is held");
    for step in 0..STEP_COUNT {
        let port = u16::try_from(FIRST + (at + step) % STEP_COUNT * STEP + 2).expect("below 2^16");
        let is_free = [port - 2, port, port + 1, port + 2].iter().all(|&p| TcpListener::bind(("0.0.0.0", p)).is_ok());
        if is_free && given.insert(port) {
            return port;
        }
    }
    unreachable!("none of {STEP_COUNT} places for four ports is free");
}

fn clients_directory() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("cargo's tmp is below the target");
    target.join("clients")
}

fn sources(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name)
}

fn missing_tool(tool: &'static str, version: &str) -> Option<&'static str> {
    let status = Command::new(tool).arg(version).stdout(Stdio::null()).stderr(Stdio::null()).status();
    (!status.is_ok_and(|status| status.success())).then_some(tool)
}

fn java_command(java: Java, home: &Path, heap: &str) -> Command {
    let built = Client::Java(java).directory();
    let mut command = Command::new("java");
    command.args([format!("-Xms{heap}"), format!("-Xmx{heap}"), "-XX:+UseSerialGC".to_owned()]);
    command.args(["--add-opens", "java.base/java.nio=ALL-UNNAMED"]);
    command.args(["--add-opens", "java.base/sun.nio.ch=ALL-UNNAMED"]);
    // 4.9 unmaps what it deletes through a class that Java 17 hides.
    command.args(["--add-opens", "java.base/jdk.internal.ref=ALL-UNNAMED"]);
    command.arg(format!("-Duser.home={}", home.display()));
    command.arg(format!("-Drocketmq.home.dir={}", home.display()));
    command.env("ROCKETMQ_HOME", home).env_remove("NAMESRV_ADDR");
    command.arg("-cp").arg(format!("{0}/clients.jar:{0}/lib/*", built.display()));
    command
}

fn build_java(java: Java) {
    let built = Client::Java(java).directory();
    build(&format!("build-java-{}", java.version()), &sources("java"), &["pom.xml", "src"], &built, || {
        let mut command = Command::new("mvn");
        command.args(["-B", "-ntp", "-q", "clean", "package"]).current_dir(sources("java"));
        command.arg(format!("-Drocketmq.version={}", java.version()));
        command.arg(format!("-DbuildDirectory={}", built.display()));
        command
    });
}

fn build_go() {
    let built = Client::Go.directory();
    build("build-go", &sources("go"), &[""], &built, || {
        let mut command = Command::new("go");
        command.args(["build", "-trimpath", "-o"]).arg(built.join("clients")).arg(".");
        command.current_dir(sources("go")).env("CGO_ENABLED", "0").env("GOFLAGS", "-mod=readonly -buildvcs=false");
        command
    });
}

/// Builds, unless the stamp says that these very sources are built. Other tests and test binaries wait meanwhile.
fn build(label: &str, from: &Path, parts: &[&str], to: &Path, command: impl FnOnce() -> Command) {
    let directory = clients_directory();
    fs::create_dir_all(&directory).expect("a directory below the target");
    let lock = File::create(directory.join("lock")).expect("a file below the target");
    lock.lock().expect("a lock on our own file");
    let mut hasher = DefaultHasher::new();
    for part in parts {
        hash_tree(&from.join(part), &mut hasher);
    }
    let want = format!("{:016x}", hasher.finish());
    let stamp = directory.join(format!("{label}.stamp"));
    if read(&stamp) == want {
        return;
    }
    let _ = fs::remove_file(&stamp);
    fs::create_dir_all(to).expect("a directory below the target");
    let mut process = Process::start(label, &directory, command());
    let status = process.wait(BUILD_MAX);
    assert!(status.is_some_and(|status| status.success()), "{label} ended with {status:?}\n{}", process.tails());
    fs::write(&stamp, want).expect("a file below the target");
}

fn hash_tree(path: &Path, hasher: &mut DefaultHasher) {
    if path.is_dir() {
        let entries = fs::read_dir(path).expect("our sources").map(|entry| entry.expect("our sources").path());
        let mut entries: Vec<PathBuf> = entries.collect();
        entries.sort();
        for entry in entries {
            hash_tree(&entry, hasher);
        }
    } else {
        path.file_name().hash(hasher);
        fs::read(path).expect("our sources").hash(hasher);
    }
}
