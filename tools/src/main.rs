//! `ringmq-tools`: looks into a store and into captured frames. Opens nothing for writing and takes no lock, so it may
//! run beside a broker, ours or Java's, and then sees what is written so far. `simulate` runs a store in memory only.
//!
//! ```text
//! store dump     a line for each record
//! store verify   everything against everything        0 sound, 1 findings, 2 cannot be read
//! frame dump     frames from stdin, hex or binary     0 whole, 1 malformed, 2 cannot be read
//! simulate       the store through simulated crashes  0 promises kept, 1 one broken
//! ```

mod dump;
mod files;
mod frame;
mod index;
mod metadata;
mod queues;
mod report;
mod simulate;
mod verify;
mod walk;

use clap::{Args, Parser, Subcommand};
use ringmq_storage::testing::crash_sweep::Mode;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "ringmq-tools", version, about = "Looks into RocketMQ stores and frames; changes nothing")]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// A store folder, of ringmq or of a Java broker 4.9 or 5.x.
    #[command(subcommand)]
    Store(StoreAct),
    /// Frames of the remoting protocol.
    #[command(subcommand)]
    Frame(FrameAct),
    /// Stops a store in memory at its calls to the disk, kills it or cuts its power, and checks what it promised.
    Simulate(SimulateArgs),
}

#[derive(Subcommand)]
enum StoreAct {
    /// Prints a line for each record of the commit log.
    Dump(DumpArgs),
    /// Checks log, queues, checkpoint and metadata against each other.
    Verify(VerifyArgs),
}

#[derive(Subcommand)]
enum FrameAct {
    /// Prints header fields and a summary of the body of each frame on stdin, given as bytes or as hex text.
    Dump,
}

#[derive(Args)]
pub struct DumpArgs {
    /// The store's folder, or the commit log's.
    dir: PathBuf,
    #[arg(long)]
    topic: Option<String>,
    #[arg(long)]
    queue: Option<i32>,
    /// Begins at this place of the log; if no record begins there, at the next one.
    #[arg(long, value_name = "LOG_OFFSET")]
    from: Option<u64>,
    /// Records to print at most.
    #[arg(long)]
    limit: Option<u64>,
    /// A JSON object on each line.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct VerifyArgs {
    /// The store's folder (storePathRootDir).
    dir: PathBuf,
    /// Where the log is, if not in the store's folder (storePathCommitLog).
    #[arg(long, value_name = "DIR")]
    commit_log: Option<PathBuf>,
    /// Slots of an index file (maxHashSlotNum), which the files do not say; if not given, a quarter of the items.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    index_slots: Option<u32>,
    /// A JSON object on each line.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct SimulateArgs {
    /// All of them by turns, if not given.
    #[arg(long, value_parser = mode)]
    mode: Option<Mode>,
    /// Only this seed; otherwise from a new one on.
    #[arg(long)]
    seed: Option<u64>,
    /// Only where the seed's script makes this call to the disk.
    #[arg(long, value_name = "CALL", requires = "seed")]
    at: Option<u64>,
    /// New seeds are begun for so long.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

fn mode(name: &str) -> Result<Mode, String> {
    let names = || Mode::ALL.map(Mode::name).join(", ");
    Mode::ALL.into_iter().find(|mode| mode.name() == name).ok_or_else(|| format!("one of {}", names()))
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut out = BufWriter::new(io::stdout().lock());
    let done = match &cli.what {
        What::Store(StoreAct::Dump(args)) => dump::run(args, &mut out),
        What::Store(StoreAct::Verify(args)) => verify::run(args, &mut out),
        What::Frame(FrameAct::Dump) => frame::run(&mut io::stdin().lock(), &mut out),
        What::Simulate(args) => simulate::run(args, &mut out),
    };
    match done.and_then(|is_sound| out.flush().map(|()| is_sound)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        // `| head` has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            // What was found before it is worth seeing; the exit code tells of the rest.
            let _ = out.flush();
            eprintln!("ringmq-tools: {error}");
            ExitCode::from(2)
        }
    }
}
