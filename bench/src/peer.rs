//! Brokers that `compare` and `tune` start, on loopback ports and in a folder that is deleted with them: ringmq with its
//! name server in one process, Java with a name server beside it, or the echo server of this binary. A broker that runs
//! already (an address) is left as it is.
//!
//! ```text
//! <work dir>/ringmq-bench-XXXX/         deleted at the end, and when the bench is told to stop
//!   broker.conf namesrv.conf            one text for every kind of broker
//!   home/conf/logback_*.xml             Java only; home is also its user.home, so nothing is written elsewhere
//!   store/                              storePathRootDir
//!   *.out                               what the processes print
//! ```
//!
//! Only processes started here are ever signalled, by their id.

use crate::client::Client;
use crate::environment::BrokerFacts;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::statvfs::statvfs;
use nix::unistd::Pid;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::mem;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const READY_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(1);

/// `ringmq:PATH` of the binary, `java` or `java:DIR` of the jars, `echo`, `address:HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Ringmq(PathBuf),
    Java(Jars),
    Echo,
    /// Started by somebody else.
    Running(SocketAddr),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Jars {
    Dir(PathBuf),
    /// As Maven resolves bench/java/pom.xml.
    Maven,
    Classpath(String),
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("ringmq", path)) if !path.is_empty() => Ok(Self::Ringmq(path.into())),
            Some(("java", dir)) if !dir.is_empty() => Ok(Self::Java(Jars::Dir(dir.into()))),
            Some(("address", address)) => {
                address.parse().map(Self::Running).map_err(|error| format!("{address}: {error}"))
            }
            None if text == "java" => Ok(Self::Java(Jars::Maven)),
            None if text == "echo" => Ok(Self::Echo),
            _ => Err("ringmq:PATH of the binary, java, java:DIR of the jars, address:IP:PORT, or echo".into()),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ringmq(path) => write!(f, "ringmq ({})", path.display()),
            Self::Java(jars) => write!(f, "Java broker {}", jars.version().unwrap_or_default()),
            Self::Echo => f.write_str("echo server, stores nothing"),
            Self::Running(address) => write!(f, "broker at {address}"),
        }
    }
}

impl Kind {
    /// Finds the binary or the jars, so that nothing is resolved between measurements.
    ///
    /// # Errors
    /// They are not there, or Maven does not resolve them.
    pub fn resolved(&self) -> io::Result<Self> {
        match self {
            Self::Ringmq(path) => fs::canonicalize(path).map(Self::Ringmq).map_err(|error| {
                io::Error::other(format!("{}: {error}; build it with cargo build --release", path.display()))
            }),
            Self::Java(jars) => jars.resolved().map(Self::Java),
            Self::Echo | Self::Running(_) => Ok(self.clone()),
        }
    }
}

impl Jars {
    fn resolved(&self) -> io::Result<Self> {
        let classpath = match self {
            Self::Dir(dir) => {
                let dir = fs::canonicalize(dir)?;
                java_version(&dir)
                    .ok_or_else(|| io::Error::other(format!("no rocketmq-broker-*.jar in {}", dir.display())))?;
                format!("{}/*", dir.display())
            }
            Self::Maven => maven_classpath()?,
            Self::Classpath(text) => text.clone(),
        };
        Ok(Self::Classpath(classpath))
    }

    fn version(&self) -> Option<String> {
        match self {
            Self::Dir(dir) => java_version(dir),
            Self::Maven => None,
            Self::Classpath(text) => match text.strip_suffix("/*") {
                Some(dir) => java_version(Path::new(dir)),
                None => text.split([':', '/']).find_map(version_of_jar),
            },
        }
    }
}

/// Of the published artefacts; Maven downloads what its local repository has not.
fn maven_classpath() -> io::Result<String> {
    let pom = concat!(env!("CARGO_MANIFEST_DIR"), "/java/pom.xml");
    let file = tempfile::NamedTempFile::new()?;
    let mut command = Command::new("mvn");
    command.args(["-q", "-B", "-f", pom, "dependency:build-classpath", "-DincludeScope=runtime"]);
    command.arg(format!("-Dmdep.outputFile={}", file.path().display()));
    let output = command.output().map_err(|error| io::Error::other(format!("mvn does not start: {error}")))?;
    let classpath = fs::read_to_string(file.path())?;
    if !output.status.success() || classpath.is_empty() {
        let printed = String::from_utf8_lossy(&output.stdout);
        return Err(io::Error::other(format!("mvn -f {pom} ended with {}:\n{}", output.status, tail(&printed, 20))));
    }
    Ok(classpath.trim().to_owned())
}

/// From the name of the jar, `rocketmq-broker-4.9.7.jar`.
fn java_version(dir: &Path) -> Option<String> {
    let mut names = fs::read_dir(dir).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.find_map(|name| version_of_jar(&name))
}

fn version_of_jar(name: &str) -> Option<String> {
    Some(name.strip_prefix("rocketmq-broker-")?.strip_suffix(".jar")?.to_owned())
}

/// What a started broker is told beyond addresses and folders.
#[derive(Clone, Debug)]
pub struct Options {
    pub work_dir: PathBuf,
    pub free_gib_min: u64,
    /// Lines of broker.conf.
    pub properties: Vec<String>,
    /// Of Java's broker, as -Xmx takes it.
    pub java_heap: String,
}

/// A running broker. If it was started here it is stopped, and its folder deleted, when dropped.
pub struct Peer {
    broker: Option<Process>,
    namesrv: Option<Process>,
    dir: TempDir,
    is_storing: bool,
    pub address: SocketAddr,
    /// From the start of the process to its first answer.
    pub ready: Duration,
}

impl Peer {
    /// # Errors
    /// The disk is too full, no ports are free, or a process does not start to answer; what it printed is then
    /// in the error.
    pub fn start(kind: &Kind, options: &Options) -> io::Result<Self> {
        if let Kind::Running(address) = kind {
            Client::connect(*address)?.ping()?;
            let dir = tempfile::Builder::new().prefix("ringmq-bench-").tempdir()?;
            let ready = Duration::ZERO;
            return Ok(Self { broker: None, namesrv: None, dir, is_storing: true, address: *address, ready });
        }
        check_free_space(options)?;
        let work_dir = fs::canonicalize(&options.work_dir)?;
        let dir = tempfile::Builder::new().prefix("ringmq-bench-").tempdir_in(work_dir)?;
        started().dir = Some(dir.path().to_owned());
        let ports = free_ports()?;
        let broker_conf = dir.path().join("broker.conf");
        let namesrv_conf = dir.path().join("namesrv.conf");
        fs::write(&broker_conf, broker_properties(dir.path(), ports.broker, &options.properties))?;
        fs::write(&namesrv_conf, format!("listenPort={}\n", ports.namesrv))?;
        let home = dir.path().join("home");
        fs::create_dir_all(home.join("conf"))?;
        for name in ["broker", "namesrv"] {
            fs::write(home.join(format!("conf/logback_{name}.xml")), logback(&home.join(format!("{name}.log"))))?;
        }

        let namesrv = match kind {
            Kind::Java(jars) => {
                let mut command = java_command(jars, Role::Namesrv, &home, &options.java_heap)?;
                command.arg("-c").arg(&namesrv_conf);
                let mut namesrv = Process::start(command, &dir.path().join("namesrv.out"))?;
                namesrv.wait_until(|| TcpStream::connect(local(ports.namesrv)).is_ok())?;
                Some(namesrv)
            }
            Kind::Ringmq(_) | Kind::Echo | Kind::Running(_) => None,
        };
        let mut command = match kind {
            Kind::Java(jars) => {
                let mut command = java_command(jars, Role::Broker, &home, &options.java_heap)?;
                command.arg("-c").arg(&broker_conf).arg("-n").arg(local(ports.namesrv).to_string());
                command
            }
            Kind::Ringmq(path) => {
                let mut command = Command::new(path);
                command.arg("standalone").arg("-c").arg(&broker_conf);
                command.arg("--store").arg(dir.path().join("store"));
                command.arg("--listen-port").arg(ports.broker.to_string());
                command.arg("--namesrv-port").arg(ports.namesrv.to_string());
                command
            }
            Kind::Echo => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg("echo").arg("--listen").arg(local(ports.broker).to_string());
                command
            }
            Kind::Running(_) => unreachable!("it runs already"),
        };
        // Default folders must not be the user's.
        command.env("HOME", &home).env_remove("NAMESRV_ADDR").current_dir(&home);
        let address = local(ports.broker);
        let started = Instant::now();
        let mut broker = Process::start(command, &dir.path().join("broker.out"))?;
        broker.wait_until(|| Client::connect(address).and_then(|mut client| client.ping()).is_ok())?;
        let ready = started.elapsed();
        let is_storing = *kind != Kind::Echo;
        Ok(Self { broker: Some(broker), namesrv, dir, is_storing, address, ready })
    }

    /// What it says about itself, or else what it was told.
    pub fn facts(&self) -> BrokerFacts {
        let facts = BrokerFacts::read(self.address, self.pid());
        if facts.durability.is_some() || !self.is_storing || self.broker.is_none() {
            return facts;
        }
        let text = fs::read_to_string(self.dir.path().join("broker.conf")).unwrap_or_default();
        BrokerFacts::configured(&text)
    }

    /// `None` of a broker that was not started here.
    pub fn pid(&self) -> Option<u32> {
        self.broker.as_ref().map(|broker| broker.child.id())
    }

    /// Ends both processes, deletes the folder, and gives back how long the broker took to end.
    ///
    /// # Errors
    /// The broker had to be killed, or had ended before.
    pub fn stop(mut self) -> io::Result<Duration> {
        let started = Instant::now();
        self.broker.as_mut().map_or(Ok(()), Process::end)?;
        let took = started.elapsed();
        self.namesrv.as_mut().map_or(Ok(()), Process::end)?;
        Ok(took)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The processes must be gone before their folder; what they say about it was said by `stop`.
        let _ = self.broker.as_mut().map(Process::end);
        let _ = self.namesrv.as_mut().map(Process::end);
        started().dir = None;
        // A folder that cannot be deleted is said, because it is gigabytes.
        if let Err(error) = fs::remove_dir_all(self.dir.path()) {
            eprintln!("{} is left: {error}", self.dir.path().display());
        }
    }
}

/// A started process, ended when dropped.
struct Process {
    child: Child,
    output: PathBuf,
    is_ended: bool,
}

impl Process {
    fn start(mut command: Command, output: &Path) -> io::Result<Self> {
        let file = File::create(output)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        // A child inherits the mask of `clean_up_on_signal` and would never see our SIGTERM.
        // SAFETY: between fork and exec only sigprocmask is called, which is async-signal-safe.
        unsafe { command.pre_exec(|| SigSet::all().thread_unblock().map_err(io::Error::from)) };
        // Held over the start, so that a signal finds every process in the list.
        let mut started = started();
        let child = command.spawn().map_err(|error| {
            io::Error::other(format!("{} does not start: {error}", command.get_program().to_string_lossy()))
        })?;
        let process = Self { child, output: output.to_owned(), is_ended: false };
        started.processes.push(process.pid());
        Ok(process)
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("process ids are positive i32"))
    }

    fn wait_until(&mut self, mut is_ready: impl FnMut() -> bool) -> io::Result<()> {
        let started = Instant::now();
        while !is_ready() {
            if let Some(status) = self.child.try_wait()? {
                return Err(self.error(&format!("ended with {status}")));
            }
            if started.elapsed() > READY_LIMIT {
                return Err(self.error(&format!("does not answer after {} s", READY_LIMIT.as_secs())));
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// SIGTERM, and SIGKILL when that does not help. Does nothing the second time.
    fn end(&mut self) -> io::Result<()> {
        if mem::replace(&mut self.is_ended, true) {
            return Ok(());
        }
        let outcome = self.terminate();
        started().processes.retain(|pid| *pid != self.pid());
        outcome
    }

    fn terminate(&mut self) -> io::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            return Err(self.error(&format!("had ended by itself with {status}")));
        }
        kill(self.pid(), Signal::SIGTERM)?;
        let asked = Instant::now();
        while self.child.try_wait()?.is_none() {
            if asked.elapsed() > STOP_LIMIT {
                self.child.kill()?;
                self.child.wait()?;
                return Err(self.error(&format!("did not end in {} s and was killed", STOP_LIMIT.as_secs())));
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    fn error(&self, what: &str) -> io::Error {
        let printed = fs::read_to_string(&self.output).unwrap_or_default();
        let name = self.output.file_stem().unwrap_or_default().to_string_lossy();
        io::Error::other(format!("the {name} {what}; it printed:\n{}", tail(&printed, 20)))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Here a run has failed already, with its own error.
        let _ = self.end();
    }
}

fn tail(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// What has to go when the bench is told to stop.
struct Started {
    processes: Vec<Pid>,
    dir: Option<PathBuf>,
}

static STARTED: Mutex<Started> = Mutex::new(Started { processes: Vec::new(), dir: None });

fn started() -> MutexGuard<'static, Started> {
    STARTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on an interrupt or a termination ends the started processes, deletes their folder and tells `last`, before
/// this process ends. Call it before any other thread is started.
pub fn clean_up_on_signal(last: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    signals.thread_block()?;
    thread::spawn(move || {
        if signals.wait().is_err() {
            return;
        }
        let started = started();
        for pid in &started.processes {
            // It may have ended by itself; nothing else can be done here.
            let _ = kill(*pid, Signal::SIGKILL);
        }
        thread::sleep(Duration::from_millis(500));
        if let Some(dir) = &started.dir {
            let _ = fs::remove_dir_all(dir);
        }
        last();
        std::process::exit(130);
    });
    Ok(())
}

fn check_free_space(options: &Options) -> io::Result<()> {
    let stat = statvfs(&options.work_dir)?;
    let free_gib = (stat.blocks_available() * stat.fragment_size()) >> 30;
    if free_gib < options.free_gib_min {
        let dir = options.work_dir.display();
        return Err(io::Error::other(format!("{free_gib} GiB are free in {dir}, {} are wanted", options.free_gib_min)));
    }
    Ok(())
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

struct Ports {
    /// Also taken: the port two below (VIP clients) and the one above (HA).
    broker: u16,
    namesrv: u16,
}

fn free_ports() -> io::Result<Ports> {
    let bind = |port: u16| TcpListener::bind(local(port));
    for _ in 0..100 {
        let middle = bind(0)?;
        let broker = middle.local_addr()?.port();
        let (Some(below), Some(above)) = (broker.checked_sub(2), broker.checked_add(1)) else { continue };
        // All are held at once, so they differ; the system gives a port again only after all others.
        let (Ok(_below), Ok(_above), namesrv) = (bind(below), bind(above), bind(0)?) else { continue };
        return Ok(Ports { broker, namesrv: namesrv.local_addr()?.port() });
    }
    Err(io::Error::other("no three neighbouring ports are free on 127.0.0.1"))
}

fn broker_properties(dir: &Path, port: u16, more: &[String]) -> String {
    let store = dir.join("store");
    let mut text = format!(
        "brokerClusterName=DefaultCluster\nbrokerName=bench\nbrokerId=0\nbrokerRole=ASYNC_MASTER\n\
         brokerIP1=127.0.0.1\nbrokerIP2=127.0.0.1\nlistenPort={port}\nflushDiskType=ASYNC_FLUSH\n\
         storePathRootDir={0}\nstorePathCommitLog={0}/commitlog\n",
        store.display()
    );
    for line in more {
        text.push_str(line);
        text.push('\n');
    }
    text
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Broker,
    Namesrv,
}

fn java_command(jars: &Jars, role: Role, home: &Path, heap: &str) -> io::Result<Command> {
    let Jars::Classpath(classpath) = jars.resolved()? else { unreachable!("resolved jars are a class path") };
    let mut command = Command::new(java());
    command.args(java_flags(role, home, heap));
    command.arg("-cp").arg(format!("{}/conf:{classpath}", home.display()));
    command.arg(match role {
        Role::Broker => "org.apache.rocketmq.broker.BrokerStartup",
        Role::Namesrv => "org.apache.rocketmq.namesrv.NamesrvStartup",
    });
    command.env("ROCKETMQ_HOME", home).env_remove("JAVA_TOOL_OPTIONS");
    command.env("HOME", home).env_remove("NAMESRV_ADDR").current_dir(home);
    Ok(command)
}

fn java() -> OsString {
    match std::env::var_os("JAVA_HOME") {
        Some(home) => Path::new(&home).join("bin/java").into_os_string(),
        None => "java".into(),
    }
}

/// As bin/runbroker.sh of 4.9.7 sets them for a Java above 8, with the heap asked for, without the garbage collector's
/// log, and with the two doors that 4.9 needs on Java 17.
fn java_flags(role: Role, home: &Path, heap: &str) -> Vec<String> {
    let own: &[&str] = match role {
        Role::Broker => &[
            &format!("-Xms{heap}"),
            &format!("-Xmx{heap}"),
            "-XX:+UseG1GC",
            "-XX:G1HeapRegionSize=16m",
            "-XX:G1ReservePercent=25",
            "-XX:InitiatingHeapOccupancyPercent=30",
            "-XX:SoftRefLRUPolicyMSPerMB=0",
            "-XX:+AlwaysPreTouch",
            "-XX:MaxDirectMemorySize=15g",
            "-XX:-UseLargePages",
        ],
        Role::Namesrv => &["-Xms256m", "-Xmx256m"],
    };
    let common = [
        "-server",
        "-XX:-OmitStackTraceInFastThrow",
        "--add-opens=java.base/java.nio=ALL-UNNAMED",
        "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    ];
    let mut flags: Vec<String> = own.iter().chain(&common).map(|flag| (*flag).to_owned()).collect();
    flags.push(format!("-Duser.home={}", home.display()));
    flags.push(format!("-Drocketmq.home.dir={}", home.display()));
    flags
}

/// One asynchronous file, where the published configuration has a dozen.
fn logback(file: &Path) -> String {
    format!(
        r#"<configuration>
  <appender name="file" class="ch.qos.logback.core.FileAppender">
    <file>{}</file>
    <encoder><pattern>%d %p %t - %m%n</pattern></encoder>
  </appender>
  <appender name="async" class="ch.qos.logback.classic.AsyncAppender"><appender-ref ref="file"/></appender>
  <root level="INFO"><appender-ref ref="async"/></root>
</configuration>
"#,
        file.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_read_from_text() {
        assert_eq!("ringmq:a/b".parse(), Ok(Kind::Ringmq("a/b".into())));
        assert_eq!("java:/x:y".parse(), Ok(Kind::Java(Jars::Dir("/x:y".into()))));
        assert_eq!("java".parse(), Ok(Kind::Java(Jars::Maven)));
        assert_eq!("echo".parse(), Ok(Kind::Echo));
        assert_eq!("address:127.0.0.1:10911".parse(), Ok(Kind::Running(local(10911))));
        for bad in ["", "java:", "go:x", "ringmq", "address:here"] {
            assert!(bad.parse::<Kind>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_version_of_java_is_read_from_its_jars() {
        let jars = Jars::Classpath("/m2/a-1.jar:/m2/rocketmq-broker/4.9.7/rocketmq-broker-4.9.7.jar:/m2/b.jar".into());
        assert_eq!(jars.version().as_deref(), Some("4.9.7"));
        let dir = tempfile::tempdir().unwrap();
        assert!(Jars::Dir(dir.path().into()).resolved().is_err());
        fs::write(dir.path().join("rocketmq-broker-5.3.3.jar"), "").unwrap();
        assert_eq!(Jars::Dir(dir.path().into()).resolved().unwrap().version().as_deref(), Some("5.3.3"));
    }

    #[test]
    fn a_broker_gets_three_ports_and_its_name_server_another() {
        let ports = free_ports().unwrap();
        assert!(![ports.broker - 2, ports.broker, ports.broker + 1].contains(&ports.namesrv));
    }

    fn shell(script: &str, dir: &Path) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Process::start(command, &dir.join("broker.out")).unwrap()
    }

    #[test]
    fn a_process_that_ends_early_is_reported_with_what_it_printed() {
        let dir = tempfile::tempdir().unwrap();
        let mut process = shell("echo no such luck; exit 3", dir.path());
        let error = process.wait_until(|| false).unwrap_err().to_string();
        assert!(error.contains("no such luck") && error.contains('3'), "{error}");
        assert!(process.end().is_err());
    }

    #[test]
    fn a_process_is_ended_once_and_leaves_the_list() {
        let dir = tempfile::tempdir().unwrap();
        let mut process = shell("exec sleep 100", dir.path());
        let pid = process.pid();
        assert!(started().processes.contains(&pid));
        process.end().unwrap();
        process.end().unwrap();
        assert!(!started().processes.contains(&pid));
    }
}
