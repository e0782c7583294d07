//! Reports name the commit that the harness was built from.

use std::process::Command;

fn main() {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
    };
    if let Some(dir) = git(&["rev-parse", "--absolute-git-dir"]) {
        println!("cargo::rerun-if-changed={dir}/HEAD");
        println!("cargo::rerun-if-changed={dir}/index");
    }
    println!("cargo::rerun-if-changed=src");
    let commit = git(&["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]).unwrap_or_default();
    println!("cargo::rustc-env=RINGMQ_BENCH_COMMIT={commit}");
}
