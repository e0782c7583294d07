//! The command line: `ringmq` (standalone), `ringmq broker`, `ringmq namesrv`.

use clap::{Args, Parser, Subcommand};
use nix::sys::signal::{SigSet, Signal};
use ringmq::config::{BrokerConfig, NamesrvConfig};
use ringmq::node::Node;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Parser)]
#[command(version, about = "A RocketMQ broker and name server for Linux", args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    mode: Option<Mode>,
    #[command(flatten)]
    standalone: Standalone,
}

#[derive(Subcommand)]
enum Mode {
    /// A broker and a name server for this machine, in one process (what `ringmq` alone does).
    Standalone(Standalone),
    /// A broker.
    Broker(BrokerArgs),
    /// A name server.
    Namesrv(NamesrvArgs),
}

#[derive(Args)]
struct Print {
    /// Print the effective configuration and exit.
    #[arg(short = 'p')]
    print: bool,
    /// Print the important part of the effective configuration and exit.
    #[arg(short = 'm')]
    print_important: bool,
}

#[derive(Args)]
struct Standalone {
    /// A .properties file with the broker's keys.
    #[arg(short = 'c', value_name = "FILE")]
    file: Option<PathBuf>,
    /// The store's folder (default ~/.ringmq).
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// The broker's port (default 10911).
    #[arg(long, value_name = "PORT")]
    listen_port: Option<u16>,
    /// The name server's port.
    #[arg(long, value_name = "PORT", default_value_t = 9876)]
    namesrv_port: u16,
    #[command(flatten)]
    print: Print,
}

#[derive(Args)]
struct BrokerArgs {
    /// A .properties file with Java's keys.
    #[arg(short = 'c', value_name = "FILE")]
    file: Option<PathBuf>,
    /// Name servers, `host:port`, joined by `;`.
    #[arg(short = 'n', value_name = "ADDR")]
    namesrv: Option<String>,
    #[command(flatten)]
    print: Print,
}

#[derive(Args)]
struct NamesrvArgs {
    /// A .properties file with Java's keys.
    #[arg(short = 'c', value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    print: Print,
}

/// What the command line comes to.
struct Plan {
    broker: Option<BrokerConfig>,
    namesrv: Option<NamesrvConfig>,
    print: Print,
}

fn plan(cli: Cli) -> Result<Plan, String> {
    let wrong = |error: ringmq::config::ConfigError| error.to_string();
    match cli.mode.unwrap_or(Mode::Standalone(cli.standalone)) {
        Mode::Standalone(args) => {
            let store = args.store.clone().or_else(|| std::env::home_dir().map(|home| home.join(".ringmq")));
            let store = store.ok_or("no home folder: give --store DIR")?;
            let mut defaults = BrokerConfig::standalone(&store);
            let namesrv_addr = format!("127.0.0.1:{}", args.namesrv_port);
            for (key, value) in &mut defaults {
                if key == "namesrvAddr" {
                    value.clone_from(&namesrv_addr);
                }
            }
            let mut overrides = Vec::new();
            if let Some(port) = args.listen_port {
                overrides.push(("listenPort".to_string(), port.to_string()));
            }
            if let Some(store) = &args.store {
                overrides.push(("storePathRootDir".to_string(), store.display().to_string()));
            }
            let broker = BrokerConfig::load_over(&defaults, args.file.as_deref(), &overrides).map_err(wrong)?;
            let pairs = [
                ("listenPort".to_string(), args.namesrv_port.to_string()),
                ("bindAddress".to_string(), broker.bind_address.to_string()),
            ];
            let defaults = NamesrvConfig::standalone(&broker.store_path_root);
            let namesrv = NamesrvConfig::load_over(&defaults, None, &pairs).map_err(wrong)?;
            Ok(Plan { broker: Some(broker), namesrv: Some(namesrv), print: args.print })
        }
        Mode::Broker(args) => {
            let overrides: Vec<_> = args.namesrv.map(|list| ("namesrvAddr".to_string(), list)).into_iter().collect();
            let broker = BrokerConfig::load(args.file.as_deref(), &overrides).map_err(wrong)?;
            Ok(Plan { broker: Some(broker), namesrv: None, print: args.print })
        }
        Mode::Namesrv(args) => {
            let namesrv = NamesrvConfig::load(args.file.as_deref(), &[]).map_err(wrong)?;
            Ok(Plan { broker: None, namesrv: Some(namesrv), print: args.print })
        }
    }
}

fn print(plan: &Plan) {
    let mut out = std::io::stdout().lock();
    let important = plan.print.print_important;
    let mut show = |pairs: Vec<(String, String)>| {
        for (key, value) in pairs {
            // A closed pipe is no reason to fail.
            let _ = writeln!(out, "{key}={value}");
        }
    };
    if let Some(config) = &plan.broker {
        show(if important { config.effective_important() } else { config.effective() });
    } else if let Some(config) = &plan.namesrv {
        show(if important { config.effective_important() } else { config.effective() });
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_env("RINGMQ_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();

    let plan = match plan(Cli::parse()) {
        Ok(plan) => plan,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(255);
        }
    };
    let warnings = plan.broker.iter().flat_map(BrokerConfig::warnings).collect::<Vec<_>>();
    let namesrv_warnings = plan.namesrv.iter().flat_map(NamesrvConfig::warnings);
    let warnings = warnings.into_iter().chain(namesrv_warnings.map(|warning| format!("name server: {warning}")));
    if plan.print.print || plan.print.print_important {
        for warning in warnings {
            eprintln!("WARNING {warning}");
        }
        print(&plan);
        return ExitCode::SUCCESS;
    }
    // Before any thread is made: all of them inherit the mask, and this one waits for the signals.
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        signals.add(signal);
    }
    if let Err(error) = signals.thread_block() {
        eprintln!("cannot block signals: {error}");
        return ExitCode::from(255);
    }
    say(&format!("ringmq {} (RocketMQ 4.9.7 protocol and store format)", env!("CARGO_PKG_VERSION")));
    for warning in warnings {
        say(&format!("WARNING {warning}"));
    }
    let broker = plan.broker.as_ref().map(|config| (config.broker_name.clone(), config.broker_addr()));
    let node = match Node::start(plan.broker, plan.namesrv) {
        Ok(node) => node,
        Err(error) => {
            eprintln!("ringmq does not start: {error}");
            return ExitCode::from(253);
        }
    };
    for line in &node.lines {
        say(line);
    }
    match broker {
        // Scripts look for this line of Java's.
        Some((name, address)) => {
            say(&format!("The broker[{name}, {address}] boot success. serializeType=JSON. ringmq is ready"))
        }
        None => say("The Name Server boot success. serializeType=JSON. ringmq is ready"),
    }
    let mut failed = false;
    loop {
        match wait_signal(&signals) {
            Some(signal) => {
                say(&format!("{signal}: stopping"));
                break;
            }
            None if !node.is_running() => {
                failed = true;
                break;
            }
            None => {}
        }
    }
    let wrong = node.stop();
    for line in &wrong {
        eprintln!("{line}");
    }
    if wrong.is_empty() {
        say("stopped, everything is on disk");
    }
    if failed || !wrong.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// `None` after a second without one.
fn wait_signal(signals: &SigSet) -> Option<Signal> {
    let timeout = Duration::from_secs(1);
    let timeout = libc::timespec { tv_sec: timeout.as_secs() as libc::time_t, tv_nsec: 0 };
    // SAFETY: both pointers are to live values of the right types; no information about the signal is asked for.
    let number = unsafe { libc::sigtimedwait(signals.as_ref(), std::ptr::null_mut(), &timeout) };
    Signal::try_from(number).ok()
}
