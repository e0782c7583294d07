//! The load generator against brokers of known delay and known faults. Bounds on time are lower bounds, which a slow
//! machine cannot break, or very wide.

mod stub;

use clap::Parser;
use ringmq_bench::environment::Environment;
use ringmq_bench::report::{document, page};
use ringmq_bench::workload::{consume, delay, e2e, mixed, produce, transaction};
use ringmq_bench::{compare, ladder};
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

#[test]
fn threads_share_the_work_and_nothing_is_counted_twice() {
    let stub = Stub { send_delay: Duration::from_millis(1), ..Stub::default() };
    for line in ["--messages 600", "--rate 1000 --seconds 1", "--rate 1000 --messages 600 --one-way"] {
        let line = format!("--connections 4 --threads 3 --in-flight 8 --warmup 60 --size 64 --queues 3 {line}");
        let report = produce(stub.start(), &line);
        assert!(report.is_good(), "{line} {report}");
        let stored = report.stored.unwrap();
        assert_eq!((stored.stored, report.cost.client_threads), (stored.sent, 3), "{report}");
        if line.contains("--seconds") {
            assert_eq!((report.ack.unwrap().count, stored.sent), (1_000, 1_060), "{report}");
        }
    }
    let error = produce::run(&settings(stub.start(), "--connections 2 --threads 3")).unwrap_err();
    assert!(error.to_string().contains("3 threads share 2 connections"), "{error}");
}

#[test]
fn drawn_arrivals_send_as_many_in_all() {
    let report = produce(Stub::default().start(), &format!("{SMALL} --rate 1000 --seconds 1 --arrivals poisson"));
    assert!(report.is_good() && report.ack.unwrap().count == 1_000, "{report}");
    // The time line holds what the histogram holds.
    let counted: u64 = report.timeline.iter().map(|second| second.messages).sum();
    assert!((900..=1_000).contains(&counted), "{:?}", report.timeline);
}

#[test]
fn bodies_of_a_distribution_are_stored_with_their_sizes() {
    let stub = Stub::default().start();
    let line = "--connections 2 --in-flight 4 --warmup 0 --messages 400 --queues 2 --body 64..1k";
    for batch in [1, 8] {
        let report = produce(stub, &format!("{line} --topic Sizes{batch} --batch {batch}"));
        assert!(report.is_good(), "{report}");
        let line = format!("--connections 1 --queues 2 --topic Sizes{batch}");
        let drained = consume::run(&settings(stub, &line)).unwrap();
        assert!(drained.is_good() && drained.pulled == report.stored.unwrap().stored, "{drained}");
        // 91 bytes of a record and a body of 544 in the mean.
        let bytes = drained.mib_per_s * drained.cost.seconds * f64::from(1 << 20) / drained.pulled as f64;
        assert!((500.0..800.0).contains(&bytes), "{bytes} {drained}");
    }
}

/// Both loops against a broker that shows messages late and delivers some twice.
#[test]
fn mixed_counts_both_ways() {
    let delay = Duration::from_millis(30);
    for loops in ["--in-flight 4", "--rate 500"] {
        let stub = Stub { send_delay: Duration::from_millis(2), visible_delay: delay, ..Stub::default() };
        let line = format!("--connections 2 --consumers 2 --queues 3 --size 64 --seconds 1 --warmup 0 {loops}");
        let report = mixed::run(&settings(stub.start(), &line)).unwrap();
        assert!(report.is_good() && report.pulled == report.acknowledged, "{line} {report}");
        assert!(report.ack.count > 0 && report.end_to_end.mean_us > report.ack.mean_us, "{report}");
        assert_eq!(report.schedule_delay.is_some(), loops.contains("rate"));
    }
    let faults = Faults { delivered_twice: 10, ..Faults::default() };
    let stub = Stub { send_delay: Duration::from_millis(2), faults, ..Stub::default() };
    let line = "--connections 1 --queues 3 --size 64 --seconds 1 --warmup 0 --in-flight 2";
    let report = mixed::run(&settings(stub.start(), line)).unwrap();
    assert_eq!(report.repeated, report.pulled / 10, "{report}");
    assert!(!report.is_good());
    // Acknowledged and never there: it is waited for, and then lost.
    let faults = Faults { lost: 50, ..Faults::default() };
    let stub = Stub { send_delay: Duration::from_millis(2), faults, ..Stub::default() };
    let report = mixed::run(&settings(stub.start(), line)).unwrap();
    assert_eq!(report.lost, report.acknowledged / 50, "{report}");
}

#[test]
fn a_delayed_message_is_late_by_what_its_broker_is_and_never_early() {
    let line = "--connections 1 --queues 2 --size 64 --rate 200 --seconds 1 --warmup 0";
    let stub = Stub { level_delay: Duration::from_millis(1_200), ..Stub::default() };
    let report = delay::run(&settings(stub.start(), line)).unwrap();
    assert!(report.is_good() && report.pulled == 200, "{report}");
    let lateness = report.lateness.unwrap();
    assert!(lateness.count == 200 && lateness.p50_us >= 195_000.0, "{report}");
    let stub = Stub { level_delay: Duration::from_millis(500), ..Stub::default() };
    let report = delay::run(&settings(stub.start(), line)).unwrap();
    // On a machine that stands still for half a second some are not early.
    assert!(report.early > 100 && !report.is_good(), "{report}");
}

#[test]
fn transactions_are_counted_by_their_ends() {
    let line = "--connections 2 --in-flight 4 --queues 3 --size 64 --seconds 1 --warmup 0 --rollback 0.3";
    let stub = Stub { send_delay: Duration::from_millis(3), ..Stub::default() };
    for more in ["", "--rate 300", "--one-way-end", "--header binary"] {
        let report = transaction::run(&settings(stub.start(), &format!("{line} {more}"))).unwrap();
        assert!(report.is_good(), "{more} {report}");
        assert!(report.committed > report.rolled_back && report.rolled_back > 0, "{report}");
        assert_eq!(report.stored.unwrap().stored, report.committed, "{report}");
        assert!(report.half.p50_us >= 3_000.0 && report.whole.p50_us >= report.half.p50_us, "{report}");
        assert_eq!(report.end.is_none(), more == "--one-way-end");
    }
    let faults = Faults { commit_lost: 10, ..Faults::default() };
    let report = transaction::run(&settings(Stub { faults, ..stub }.start(), line)).unwrap();
    assert_eq!(report.stored.unwrap().lost, report.committed / 10, "{report}");
    assert!(!report.is_good());
    let faults = Faults { rollback_kept: 10, ..Faults::default() };
    let report = transaction::run(&settings(Stub { faults, ..stub }.start(), line)).unwrap();
    assert_eq!(report.stored.unwrap().surplus, report.rolled_back / 10, "{report}");
    assert!(!report.is_good());
}

#[test]
fn the_broker_that_asks_back_is_answered() {
    let check_delay = Some(Duration::from_millis(300));
    let stub = Stub { send_delay: Duration::from_millis(3), check_delay, ..Stub::default() };
    let line =
        "--connections 2 --in-flight 4 --queues 3 --size 64 --seconds 1 --warmup 0 --open 0.2 --check-seconds 20";
    let report = transaction::run(&settings(stub.start(), line)).unwrap();
    assert!(report.is_good() && report.checked > 0 && report.left_open == 0, "{report}");
    assert_eq!(report.stored.unwrap().stored, report.committed, "{report}");
    // Nobody asks: they stay open, and that is no fault.
    let report =
        transaction::run(&settings(Stub { check_delay: None, ..stub }.start(), &line.replace("20", "0"))).unwrap();
    assert!(report.is_good() && report.checks == 0 && report.left_open > 0, "{report}");
}

/// One send after the other takes 4 ms, so 250 a second are the most; a machine that is slow finds less.
#[test]
fn a_ladder_finds_the_capacity() {
    let stub = Stub { serial_delay: Duration::from_millis(4), ..Stub::default() };
    let line = "--connections 4 --in-flight 64 --queues 3 --size 64 --from 20 --factor 4 --refine 1 --step-seconds 1 --step-warmup 0";
    let mut told = 0;
    let report = ladder::run(&settings(stub.start(), line), |_| told += 1).unwrap();
    assert_eq!(told, report.steps.len());
    assert!(!report.is_open_ended && report.is_good(), "{report}");
    let knee = report.knee_per_s.unwrap();
    assert!((20..=250).contains(&knee), "{report}");
    assert!(report.capacity_per_s <= 300.0 && report.capacity_per_s >= 19.0, "{report}");
    let html = page(&Environment::read(), &report, true);
    for word in ["http", "src=", "href=", "url(", "@import", "<script", "<link", "NaN"] {
        assert!(!html.contains(word), "{word}");
    }
    assert_eq!(html.matches("<svg").count(), 3);
    let last = report.steps.last().unwrap();
    assert!(!last.is_sustained && last.offered_per_s > 250, "{report}");
}

#[test]
fn a_comparison_tells_what_it_knows_after_each_broker() {
    let faults = Faults { lost: 100, ..Faults::default() };
    let (a, b) = (Stub::default().start(), Stub { faults, ..Stub::default() }.start());
    let line = format!(
        "compare --a address:{a} --b address:{b} --workloads produce,consume,sync --rounds 2 --messages 2000 --warmup 100 \
         --idle-seconds 0 --disk-mib 1 --connections 2 --in-flight 4"
    );
    let settings = Line::<compare::Settings>::try_parse_from(line.split_whitespace()).unwrap().settings;
    let mut known = Vec::new();
    let report = compare::run(&settings, |_, report| {
        known.push(report.rounds.iter().map(|rounds| rounds.len()).collect::<Vec<_>>());
        let json = document(&Environment::read(), report, false, false);
        assert!(json.contains("\"is_complete\": false"));
    })
    .unwrap();
    // A B A B; a broker that runs cannot be given SYNC_FLUSH, so that row is left out.
    assert_eq!(known, [[1, 1], [1, 1], [2, 2], [2, 2]]);
    assert!(!report.is_good());
    let text = report.to_string();
    assert!(text.contains("B: FAULTS in 2 of 2 rounds (produce, produce)"), "{text}");
    assert!(text.contains("| produce: rate, msg/s |") && !text.contains("sync:"), "{text}");
    assert!(text.contains("not measured: SYNC_FLUSH of B: it runs already"), "{text}");
}
