//! Order, retries, delays and transactions with the official Java clients 4.9.7 and 5.3.3.

mod support;

use support::{Client, Cluster, Java};

#[test]
fn java_4_orderly_consumers_keep_the_order() {
    orderly(Java::V4);
}

#[test]
fn java_5_orderly_consumers_keep_the_order() {
    orderly(Java::V5);
}

fn orderly(java: Java) {
    let Some(client) = Client::Java(java).ready() else { return };
    let Some(cluster) = Cluster::start("java-orderly") else { return };
    println!("{}", client.run(&cluster, "orderly", &["--topic", "orderly", "--group", "orderly"]));
}

#[test]
fn java_4_retries_end_in_dead_letters() {
    retries(Java::V4);
}

#[test]
fn java_5_retries_end_in_dead_letters() {
    retries(Java::V5);
}

fn retries(java: Java) {
    let Some(client) = Client::Java(java).ready() else { return };
    let levels = [("messageDelayLevel", "1s 1s 1s 1s 1s 1s 1s 1s 1s 1s")];
    let Some(cluster) = Cluster::start_with("java-retries", &levels) else { return };
    println!("{}", client.run(&cluster, "retries", &["--topic", "retries", "--group", "retries"]));
}

#[test]
fn java_4_delayed_messages_come_at_their_time() {
    delays(Java::V4);
}

#[test]
fn java_5_delayed_messages_come_at_their_time() {
    delays(Java::V5);
}

fn delays(java: Java) {
    let Some(client) = Client::Java(java).ready() else { return };
    let Some(cluster) = Cluster::start_with("java-delays", &[("messageDelayLevel", "1s 2s 3s")]) else { return };
    println!("{}", client.run(&cluster, "delays", &["--topic", "delays", "--group", "delays"]));
}

#[test]
fn java_4_transactions_end_once() {
    transactions(Java::V4);
}

#[test]
fn java_5_transactions_end_once() {
    transactions(Java::V5);
}

fn transactions(java: Java) {
    let Some(client) = Client::Java(java).ready() else { return };
    let quick = [("transactionTimeOut", "1000"), ("transactionCheckInterval", "1000")];
    let Some(cluster) = Cluster::start_with("java-transactions", &quick) else { return };
    println!("{}", client.run(&cluster, "transactions", &["--topic", "transactions", "--group", "transactions"]));
}

#[test]
fn java_4_requests_are_answered_and_offsets_moved() {
    replies(Java::V4);
}

#[test]
fn java_5_requests_are_answered_and_offsets_moved() {
    replies(Java::V5);
}

fn replies(java: Java) {
    let Some(client) = Client::Java(java).ready() else { return };
    let Some(cluster) = Cluster::start("java-replies") else { return };
    println!("{}", client.run(&cluster, "replies", &["--topic", "replies", "--group", "replies"]));
}
