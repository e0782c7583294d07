//! Load generator for brokers of the RocketMQ remoting protocol, ours or Java's.
//!
//! ```text
//! ringmq-bench produce      sends: closed loop (connections × in flight), or open loop with --rate; --one-way, --verify
//! ringmq-bench batch        the same with 32 messages of 128 bytes a request
//! ringmq-bench e2e          open loop with held pulls: latency from the intended send time to the pulled message
//! ringmq-bench mixed        producers and consumers at once, as hard as they can or with --rate
//! ringmq-bench consume      drains existing queues, 32 messages a pull
//! ringmq-bench transaction  half messages, commits, rollbacks, and the broker's questions
//! ringmq-bench delay        messages with a delay level: how late they come, and that none is early
//! ringmq-bench ladder       rising rates up to saturation: the knee and the capacity
//! ringmq-bench tune         measures configurations of ringmq for a goal, and writes a broker.conf
//! ringmq-bench compare      two brokers, A B A B …, on fresh stores; ratios, and whether they are what they must be
//! ringmq-bench touch        free memory once, before a run by hand on a virtual machine
//! ringmq-bench echo         a server that stores nothing: the floor of the other figures
//! ```
//! docs/benchmarks.md has the options and more examples.
//!
//! # How to use it
//!
//! A broker that runs (its process id gives processor time and memory):
//! ```text
//! ringmq-bench produce --broker 127.0.0.1:10911 --broker-pid PID --connections 4 --in-flight 64 --messages 1000000
//! ringmq-bench produce --broker 127.0.0.1:10911 --broker-pid PID --rate 20000 --seconds 20 --json report.json
//! ringmq-bench produce --broker 127.0.0.1:10911 --topic Fresh --messages 100000 --verify
//! ringmq-bench e2e     --broker 127.0.0.1:10911 --broker-pid PID --rate 5000 --seconds 20
//! ringmq-bench consume --broker 127.0.0.1:10911 --broker-pid PID --topic Fresh
//! ```
//!
//! Beside the published Java broker (Java 17 and Maven are needed, and 20 GiB of free disk):
//! ```text
//! cargo build --release -p ringmq -p ringmq-bench
//! target/release/ringmq-bench compare --a ringmq:target/release/ringmq --b java --workloads table --json table.json
//! target/release/ringmq-bench compare --b java --workloads produce,e2e --property flushDiskType=SYNC_FLUSH
//! ```
//! `--b ringmq:OTHER` compares two builds, and without `--b` A is measured alone. `--json FILE` writes every figure of
//! every run, with command, commit, machine, kernel, file system and what the broker promises to keep.
//!
//! Single costs in nanoseconds: `cargo bench -p ringmq-bench` (frames, headers, records, append, queue reads).
//!
//! # What the figures mean
//!
//! - Processor time of the broker is that of its whole process, all threads, over the measured part, user and system,
//!   from /proc/PID/stat (in steps of 10 ms: measure for seconds). "machine" is everything that ran in that time;
//!   "other" is what is left of it without broker and client, kernel threads too.
//! - Latencies of the closed loop are turn to turn of the client; those of the open loops count from the intended time
//!   ([`workload::produce`], `workload::round_trip`), and how late the sends left stands beside.
//! - "stored" is counted by the ends of the queues, so what was acknowledged and is not there is seen as lost, and what
//!   is there more often than it was sent as too many ([`workload::stored`]).
//! - A run is good when no answer had a code but 0, nothing was lost and nothing came twice; else the exit status
//!   is 1 and the table says FAULTS.
//! - The client says so when it used more than 0.9 of a core for each of its threads: then the figures may be its own limit.

pub mod body;
pub mod chance;
pub mod client;
pub mod compare;
pub mod disk;
pub mod echo;
pub mod environment;
pub mod frame;
pub mod goal;
pub mod ladder;
pub mod latency;
pub mod memory;
pub mod peer;
pub mod process;
pub mod report;
pub mod template;
pub mod tune;
pub mod workload;
