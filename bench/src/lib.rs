//! Load generator for brokers of the RocketMQ remoting protocol, ours or Java's.
//!
//! ```text
//! ringmq-bench produce   closed loop: connections × in flight, one message a request
//! ringmq-bench e2e       open loop with held pulls: latency from the intended send time to the pulled message
//! ringmq-bench compare   two brokers, A B A B …, on fresh stores; medians and ratios
//! ```
//!
//! # How to use it
//!
//! A broker that runs (its process id gives processor time and memory):
//! ```text
//! ringmq-bench produce --broker 127.0.0.1:10911 --broker-pid PID --connections 4 --in-flight 64 --messages 1000000
//! ringmq-bench produce --broker 127.0.0.1:10911 --topic Fresh --messages 100000 --verify
//! ringmq-bench e2e --broker 127.0.0.1:10911 --broker-pid PID --rate 5000 --seconds 20
//! ```
//!
//! Beside the published Java broker (Java 17 and Maven are needed, and 20 GiB of free disk):
//! ```text
//! cargo build --release -p ringmq -p ringmq-bench
//! mvn -q -f bench/java/pom.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=/tmp/rocketmq-lib
//! target/release/ringmq-bench compare --a ringmq:target/release/ringmq --java-lib /tmp/rocketmq-lib
//! ```
//! `--b ringmq:OTHER` compares two builds, and without `--b` and `--java-lib` A is measured alone. `--json` prints
//! every figure of every run.
//!
//! # What the figures mean
//!
//! - Processor time of the broker is that of its whole process, all threads, over the measured part, from
//!   /proc/PID/stat. "machine" is everything that ran in that time, client and kernel threads too.
//! - Latencies of the closed loop are turn to turn of the client; those of the open loop count from the intended
//!   time ([`workload::e2e`]).
//! - A run is good when no answer had a code but 0, nothing was lost and nothing came twice; else the exit status
//!   is 1 and the table says FAULTS.
//! - The client says so when it used more than 0.9 of a core: then the figures may be its own limit.

pub mod client;
pub mod compare;
pub mod disk;
pub mod echo;
pub mod environment;
pub mod frame;
pub mod latency;
pub mod peer;
pub mod process;
pub mod template;
pub mod workload;
