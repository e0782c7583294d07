//! The load generator against brokers of known delay and known faults. Bounds on time are lower bounds, which a slow
//! machine cannot break, or very wide.

mod stub;

use clap::Parser;
use ringmq_bench::workload::{consume, e2e, produce};
use std::net::SocketAddr;
use std::time::Duration;
use stub::{Faults, Stub};

#[derive(clap::Parser)]
struct Line<A: clap::Args> {
    #[command(flatten)]
    settings: A,
}

/// Settings as from the command line, so that defaults are those of the users.
fn settings<A: clap::Args>(broker: SocketAddr, line: &str) -> A {
    let line = format!("bench --broker {broker} {line}");
    Line::<A>::try_parse_from(line.split_whitespace()).unwrap().settings
}

fn produce(broker: SocketAddr, line: &str) -> produce::Report {
    produce::run(&settings(broker, line)).unwrap()
}

const SMALL: &str = "--connections 2 --in-flight 4 --warmup 50 --size 64 --queues 3";

#[test]
fn a_closed_loop_shows_the_delay_and_the_rate_that_follows() {
    let stub = Stub { send_delay: Duration::from_millis(5), ..Stub::default() }.start();
    let report = produce(stub, "--connections 1 --in-flight 1 --warmup 2 --messages 60 --verify");
    assert!(report.is_good(), "{report}");
    let ack = report.ack.unwrap();
    // The phase ends with the turn that sees the 60th answer, so at least as many are counted.
    assert!(ack.count >= 60 && report.cost.messages >= 60, "{report}");
    assert!(ack.p50_us >= 5_000.0 && ack.p50_us < 1e6, "{report}");
    assert!(report.cost.rate_per_s <= 200.0, "{report}");
    let stored = report.stored.unwrap();
    assert_eq!((stored.lost, stored.surplus, stored.stored), (0, 0, stored.sent));
}

#[test]
fn four_in_flight_wait_for_each_other_in_a_serial_broker() {
    let stub = Stub { send_delay: Duration::from_millis(2), ..Stub::default() }.start();
    let report = produce(stub, "--connections 1 --in-flight 4 --warmup 8 --messages 100");
    let ack = report.ack.unwrap();
    // A client that is late sees its four answers at once and sends four at once: not each waits for three.
    assert!(ack.max_us >= 8_000.0 * 0.99, "{report}");
    assert!(report.cost.rate_per_s <= 600.0, "{report}");
    // Little's law: never more than four are under way.
    assert!(ack.mean_us * report.cost.rate_per_s <= 4.4e6, "{report}");
}

/// One stall of 400 ms among 1000 requests a second. In the open loop 400 requests were due in it and waited 200 ms in
/// the mean; in a closed loop one request met it.
#[test]
fn a_stall_is_charged_to_every_request_that_was_due_in_it() {
    let stall = Stub { stall: Some((300, Duration::from_millis(400))), ..Stub::default() };
    // All slots are used up in the stall: those that could not even leave are charged too.
    let line = "--connections 1 --warmup 100 --rate 1000 --seconds 1 --size 64";
    for in_flight in [1, 8, 1024] {
        let report = produce(stall.start(), &format!("{line} --in-flight {in_flight}"));
        assert!(report.is_good(), "{report}");
        let ack = report.ack.unwrap();
        assert_eq!(ack.count, 1000, "{report}");
        assert!(ack.mean_us >= 70_000.0, "in_flight={in_flight} {report}");
        // A hundred requests waited above 300 ms.
        assert!(ack.p99_us >= 300_000.0, "in_flight={in_flight} {report}");
        let delay = report.schedule_delay.unwrap();
        assert_eq!(delay.count, 1000);
        if in_flight == 1 {
            assert!(delay.p99_us >= 300_000.0, "{report}");
        }
    }
    let report = produce(stall.start(), "--connections 1 --in-flight 1 --warmup 100 --messages 1000 --size 64");
    let ack = report.ack.unwrap();
    assert!(ack.max_us >= 400_000.0, "{report}");
    assert!(ack.p99_us < 300_000.0, "one request in a thousand met the stall: {report}");
}

#[test]
fn an_acknowledged_message_that_is_not_stored_is_lost() {
    let faults = Faults { lost: 10, ..Faults::default() };
    let report = produce(Stub { faults, ..Stub::default() }.start(), &format!("{SMALL} --messages 500"));
    let stored = report.stored.unwrap();
    assert_eq!(stored.lost, stored.sent / 10, "{report}");
    assert_eq!((stored.acknowledged, stored.surplus), (stored.sent, 0));
    assert!(!report.is_good());
}

#[test]
fn a_message_stored_twice_is_too_many() {
    let faults = Faults { stored_twice: 10, ..Faults::default() };
    let line = format!("{SMALL} --messages 500 --topics 2");
    let report = produce(Stub { faults, ..Stub::default() }.start(), &line);
    let stored = report.stored.unwrap();
    assert_eq!((stored.lost, stored.surplus), (0, stored.sent / 10), "{report}");
    assert!(!report.is_good());
}

#[test]
fn a_refusal_is_a_fault_by_its_code_and_no_message() {
    let faults = Faults { refused: 10, ..Faults::default() };
    let report = produce(Stub { faults, ..Stub::default() }.start(), &format!("{SMALL} --messages 500"));
    let stored = report.stored.unwrap();
    assert_eq!(report.faults.codes[&2], stored.sent / 10, "{report}");
    assert_eq!((stored.lost, stored.surplus), (0, 0), "{report}");
    assert_eq!(stored.acknowledged, stored.sent - stored.sent / 10);
    assert!(!report.is_good());
}

#[test]
fn a_second_answer_answers_nothing() {
    let faults = Faults { answered_twice: 50, ..Faults::default() };
    let report = produce(Stub { faults, ..Stub::default() }.start(), &format!("{SMALL} --messages 500"));
    // The very last one may still be on its way when the run ends.
    let expected = report.stored.unwrap().sent / 50;
    assert!((expected - 1..=expected).contains(&report.faults.unexpected), "{report}");
    assert!(!report.is_good());
}

#[test]
fn a_missing_answer_is_counted_and_charged_with_its_age() {
    let faults = Faults { unanswered: 200, ..Faults::default() };
    let line = format!("{SMALL} --rate 1000 --messages 150");
    let report = produce(Stub { faults, ..Stub::default() }.start(), &line);
    assert_eq!(report.faults.unanswered, 1, "{report}");
    let ack = report.ack.unwrap();
    assert_eq!(ack.count, 150);
    // It was waited for ten seconds.
    assert!(ack.max_us >= 9e6, "{report}");
    assert!(!report.is_good());
}

#[test]
fn one_way_sends_are_counted_by_the_queues() {
    let line = format!("{SMALL} --one-way --rate 1000 --messages 400 --header rocketmq");
    let report = produce(Stub::default().start(), &line);
    assert!(report.is_good() && report.ack.is_none(), "{report}");
    assert_eq!(report.stored.unwrap().stored, 450, "{report}");
    let faults = Faults { lost: 10, ..Faults::default() };
    let report = produce(Stub { faults, ..Stub::default() }.start(), &line);
    assert_eq!(report.stored.unwrap().lost, 45, "{report}");
}

#[test]
fn a_batch_counts_its_messages_and_times_its_request() {
    for header in ["json", "rocketmq"] {
        let stub = Stub { send_delay: Duration::from_millis(1), ..Stub::default() }.start();
        let line =
            format!("--connections 1 --in-flight 1 --warmup 64 --messages 960 --batch 32 --verify --header {header}");
        let report = produce(stub, &line);
        assert!(report.is_good(), "{report}");
        let stored = report.stored.unwrap();
        assert_eq!(stored.stored % 32, 0);
        assert_eq!(report.cost.messages, 32 * report.ack.unwrap().count, "{report}");
        assert!(report.ack.unwrap().p50_us >= 1_000.0, "{report}");
    }
}

#[test]
fn end_to_end_holds_the_time_until_a_message_is_visible() {
    let stub = Stub { visible_delay: Duration::from_millis(30), ..Stub::default() }.start();
    let line = "--connections 2 --rate 500 --seconds 1 --warmup 0 --queues 3 --topics 2 --size 64";
    let report = e2e::run(&settings(stub, line)).unwrap();
    assert!(report.is_good(), "{report}");
    assert_eq!((report.acknowledged, report.pulled, report.end_to_end.count), (500, 500, 500));
    assert!(report.end_to_end.mean_us > report.ack.mean_us, "{report}");
    assert!(report.end_to_end.p50_us < 10e6, "{report}");
}

#[test]
fn a_message_pulled_twice_is_seen_end_to_end() {
    let faults = Faults { delivered_twice: 10, ..Faults::default() };
    let stub = Stub { faults, ..Stub::default() }.start();
    let line = "--connections 2 --rate 500 --seconds 1 --warmup 0 --queues 3 --size 64";
    let report = e2e::run(&settings(stub, line)).unwrap();
    assert_eq!((report.pulled, report.repeated, report.lost), (500, 50, 0), "{report}");
    assert!(!report.is_good());
}

#[test]
fn draining_meets_every_message_as_often_as_it_is_told_to() {
    let stub = Stub::default().start();
    let stored = produce(stub, &format!("{SMALL} --messages 500 --topics 2")).stored.unwrap().stored;
    let line = "--connections 2 --queues 3 --topics 2 --passes 3 --warmup 100";
    for header in ["json", "rocketmq"] {
        let report = consume::run(&settings(stub, &format!("{line} --header {header}"))).unwrap();
        assert!(report.is_good(), "{report}");
        assert_eq!((report.due, report.pulled), (3 * stored, 3 * stored));
        assert!(report.messages_per_pull > 20.0, "{report}");
        assert!(report.cost.messages <= 3 * stored - 100, "{report}");
    }
}

#[test]
fn draining_counts_what_comes_twice() {
    let faults = Faults { delivered_twice: 10, ..Faults::default() };
    let stub = Stub { faults, ..Stub::default() }.start();
    let stored = produce(stub, &format!("{SMALL} --messages 500")).stored.unwrap().stored;
    let report = consume::run(&settings(stub, "--connections 2 --queues 3")).unwrap();
    assert_eq!((report.repeated, report.lost), (stored / 10, 0), "{report}");
    assert!(!report.is_good());
}

#[test]
fn nothing_to_drain_is_an_error() {
    let error = consume::run(&settings(Stub::default().start(), "--topic Empty")).unwrap_err();
    assert!(error.to_string().contains("0 messages"), "{error}");
}
