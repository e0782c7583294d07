//! The official Go client against a whole node. See `support` for what the environment can change.

mod support;

use support::{Client, Cluster, is_full};

#[test]
fn go_roundtrip() {
    let Some(client) = Client::Go.ready() else { return };
    let Some(cluster) = Cluster::start("go-roundtrip") else { return };
    let (count, big, timeout) = if is_full() { ("10000", "20", "1200") } else { ("2000", "4", "240") };
    let args = ["--topic", "roundtrip", "--group", "roundtrip", "--count", count, "--big", big, "--timeout", timeout];
    println!("{}", client.run(&cluster, "roundtrip", &args));
}

#[test]
fn go_filters() {
    let Some(client) = Client::Go.ready() else { return };
    let Some(cluster) = Cluster::start_with("go-filters", &[("enablePropertyFilter", "true")]) else { return };
    println!("{}", client.run(&cluster, "filters", &["--topic", "filters", "--group", "filters"]));
}

#[test]
fn go_features() {
    let Some(client) = Client::Go.ready() else { return };
    let Some(cluster) = Cluster::start("go-features") else { return };
    println!("{}", client.run(&cluster, "features", &["--topic", "features"]));
}
