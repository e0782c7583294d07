//! SQL92 filters with the official Java clients 4.9.7 and 5.3.3, and their filter classes as the judges of ours.

mod support;

use ringmq::broker::filter::{Expression, NoAnswer};
use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use support::wire::{Wire, create_topic, heartbeat, pull, send};
use support::{Client, Cluster, Java, Maker};

#[test]
fn java_4_consumers_get_what_their_expressions_say() {
    consumers(Java::V4);
}

#[test]
fn java_5_consumers_get_what_their_expressions_say() {
    consumers(Java::V5);
}

fn consumers(java: Java) {
    let Some(client) = Client::Java(java).ready() else { return };
    let config = [("enablePropertyFilter", "true"), ("messageDelayLevel", "1s 1s 1s 1s 1s 1s 1s 1s 1s 1s")];
    let Some(cluster) = Cluster::start_with("java-filters", &config) else { return };
    // Lite pulls of 5.x have a code (361) that 4.9.7 does not know.
    let is_old_node = std::env::var("RINGMQ_ORACLE").is_ok_and(|name| name == "java-4.9.7");
    let lite = if is_old_node && java == Java::V5 { "0" } else { "1" };
    println!("{}", client.run(&cluster, "filters", &["--topic", "filters", "--group", "filters", "--lite", lite]));
    let refused = |sql: &str, code: &str, remark: &str| {
        let args = ["--topic", "filters", "--group", "refused", "--sql", sql, "--code", code, "--remark", remark];
        println!("{}", client.run(&cluster, "refused-filter", &args));
    };
    refused("i >> 5", "23", "line 1, column 4");
    refused("i = NULL", "23", if is_java_node() { "'NULL' cannot be compared" } else { "line 1, column 5" });
    let Some(cluster) = Cluster::start("java-no-filters") else { return };
    let remark = "The broker does not support consumer to filter message by SQL92";
    let args = ["--topic", "off", "--group", "off", "--sql", "i > 5", "--code", "1", "--remark", remark];
    println!("{}", client.run(&cluster, "refused-filter", &args));
}

fn is_java_node() -> bool {
    std::env::var_os("RINGMQ_ORACLE").is_some()
}

#[test]
fn java_4_says_the_same_of_every_expression() {
    same_verdicts(Java::V4);
}

#[test]
fn java_5_says_the_same_of_every_expression() {
    same_verdicts(Java::V5);
}

/// The table that the unit tests have, and random expressions, of which the seed is printed.
fn same_verdicts(java: Java) {
    let Some(client) = Client::Java(java).ready() else { return };
    let Some(cluster) = Cluster::start("java-verdicts") else { return };
    let seed = std::env::var("RINGMQ_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.as_nanos() as u64 | 1));
    println!("RINGMQ_SEED={seed}");
    let table = include_str!("../src/broker/filter/java.tsv").lines();
    let mut lines: Vec<String> = table.filter_map(|line| Some(line.rsplit_once('\t')?.0.to_owned())).collect();
    let mut random = Random { state: seed };
    lines.extend((0..20_000).map(|_| random.line()));
    let (given, judged) = (cluster.directory().join("given.tsv"), cluster.directory().join("judged.tsv"));
    fs::write(&given, lines.join("\n") + "\n").expect("a file in our directory");
    let path = |path: &std::path::Path| path.display().to_string();
    client.run(&cluster, "expressions", &["--in", &path(&given), "--out", &path(&judged)]);
    let judged = fs::read_to_string(&judged).expect("Java wrote it");
    assert_eq!(judged.lines().count(), lines.len());
    let mut wrong = Vec::new();
    let mut counts = std::collections::BTreeMap::new();
    for line in judged.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [expression, message, want] = fields[..] else { panic!("{line:?}") };
        // 4.9.7 takes these words for names.
        let upper = expression.to_uppercase();
        if java == Java::V4 && ["CONTAINS", "STARTSWITH", "ENDSWITH"].iter().any(|word| upper.contains(word)) {
            continue;
        }
        let got = verdict(expression, message);
        *counts.entry(got).or_insert(0) += 1;
        if got != want {
            wrong.push(format!("{expression:?} of {message:?}: {got}, Java {want}"));
        }
    }
    println!("{counts:?}");
    let shown = wrong.len().min(30);
    assert!(wrong.is_empty(), "seed {seed}: {} wrong\n{}", wrong.len(), wrong[..shown].join("\n"));
}

fn verdict(expression: &str, message: &str) -> &'static str {
    let unescaped =
        |text: &str| text.replace("\\n", "\n").replace("\\t", "\t").replace("\\r", "\r").replace("\\f", "\x0c");
    let properties: String =
        message.split(';').map(|pair| unescaped(pair).replacen('=', "\u{1}", 1) + "\u{2}").collect();
    match Expression::compile(&unescaped(expression)).map(|it| it.evaluate(properties.as_bytes())) {
        Err(_) => "E",
        Ok(Err(NoAnswer)) => "X",
        Ok(Ok(None)) => "N",
        Ok(Ok(Some(true))) => "T",
        Ok(Ok(Some(false))) => "F",
    }
}

/// xorshift64*.
struct Random {
    state: u64,
}

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        (self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    fn line(&mut self) -> String {
        let expression = match self.below(10) {
            0 => self.soup(),
            _ => self.condition(3),
        };
        let mut message = Vec::new();
        for name in ["a", "b", "c"] {
            if self.below(4) > 0 {
                message.push(format!("{name}={}", self.pick(VALUES)));
            }
        }
        format!("{expression}\t{}", message.join(";"))
    }

    /// Words at random: most are no expression.
    fn soup(&mut self) -> String {
        (0..self.below(8)).map(|_| self.pick(WORDS).to_owned() + self.pick(&[" ", " ", ""])).collect()
    }

    fn value(&mut self) -> String {
        match self.below(8) {
            0..4 => self.pick(&["a", "b", "c", "d"]).to_owned(),
            4..6 => self.pick(NUMBERS).to_owned(),
            6 => format!("{}{}", self.pick(&["-", "+", "- "]), self.pick(&["a", "1", "2.5", "(1)", "(-1)"])),
            _ => self.pick(&["'x'", "'1'", "TRUE", "NULL", "FALSE", "'true'", "''"]).to_owned(),
        }
    }

    fn condition(&mut self, depth: usize) -> String {
        let kind = if depth == 0 { self.below(12) } else { self.below(22) };
        match kind {
            0..3 => format!("{} {} {}", self.value(), self.pick(&["=", "<>"]), self.value()),
            3..6 => format!("{}{}{}", self.value(), self.pick(&[" > ", ">=", "< ", " <= "]), self.value()),
            6 => {
                let not = self.pick(&["", "NOT "]);
                format!("{} {not}BETWEEN {} AND {}", self.value(), self.value(), self.value())
            }
            7 | 8 => {
                let not = self.pick(&["", "NOT "]);
                format!("{} {not}IN ({}, {})", self.pick(&["a", "b", "c", "(a)", "1"]), self.text(), self.text())
            }
            9 => format!("{} IS {}NULL", self.value(), self.pick(&["", "NOT "])),
            10 => {
                let not = self.pick(&["", "NOT "]);
                let word = self.pick(&["CONTAINS", "STARTSWITH", "ENDSWITH"]);
                format!("{} {not}{word} {}", self.value(), self.text())
            }
            11 => self.pick(&["TRUE", "FALSE", "NULL", "a", "b", "TRUE = a", "a = TRUE"]).to_owned(),
            12..16 => {
                format!("{} {} {}", self.condition(depth - 1), self.pick(&["AND", "or"]), self.condition(depth - 1))
            }
            16 | 17 => format!("({})", self.condition(depth - 1)),
            18 => format!("NOT ({})", self.condition(depth - 1)),
            19 => format!("NOT {}", self.condition(depth - 1)),
            20 => format!(
                "({}) {} ({})",
                self.condition(depth - 1),
                self.pick(&["=", "<>", ">"]),
                self.condition(depth - 1)
            ),
            _ => format!(
                "{} {}",
                self.condition(depth - 1),
                self.pick(&["IS NULL", "IS NOT NULL", "= TRUE", "= a", "x", ")"])
            ),
        }
    }

    fn text(&mut self) -> &'static str {
        self.pick(&["'x'", "'1'", "'it''s'", "'5'", "''", "'xy'", "'主'"])
    }
}

const VALUES: &[&str] = &[
    "x",
    "xy",
    "1",
    "2",
    "5",
    "-1",
    "+1",
    "1.5",
    "2.50",
    "1e3",
    " 1",
    "1d",
    "NaN",
    "Infinity",
    "-0.0",
    "0",
    "true",
    "TRUE",
    "false",
    "it's",
    "主",
    "2147483648",
    "99999999999",
    "9223372036854775808",
    "0x1p1",
    "01",
    "1L",
    "-",
    ".5",
];
const NUMBERS: &[&str] = &[
    "1",
    "2",
    "5",
    "0",
    "1L",
    "1.5",
    "2.5",
    ".5",
    "5.",
    "1e3",
    "2147483647",
    "2147483648",
    "99999999999",
    "0.0",
    "007",
    "9223372036854775807",
    "9223372036854775808",
    "1e400",
    "1.0",
    "2.0",
];
const WORDS: &[&str] = &[
    "a", "b", "1", "1.5", "'x'", "''", "NOT", "AND", "OR", "IN", "IS", "NULL", "TRUE", "BETWEEN", "CONTAINS", "(", ")",
    ",", "=", "<>", ">", ">=", "<", "<=", "-", "+", "--", "--\\n", "/*", "*/", "/* c */", ".", "e5", "L", "$", "_",
    "!", ";", "'", "\\t", "\\n", "0", "9",
];

/// A store goes from one maker to the other with the filters of its groups.
#[test]
fn filters_go_from_java_to_ringmq_and_back() {
    let Some(_client) = Client::Java(Java::V4).ready() else { return };
    let config =
        [("enablePropertyFilter", "true"), ("mappedFileSizeCommitLog", "4194304"), ("filterSupportRetry", "true")];
    let java = Maker::Java(Java::V4);
    let Some(mut cluster) = Cluster::mixed_with("filters", Maker::Ringmq, java, &config) else { return };
    let mut wire = Wire::to(cluster.broker_address());
    wire.ask(&create_topic("handed", 1)).ok();
    for text in ["a\u{1}4\u{2}RETRY_TOPIC\u{1}handed", "a\u{1}6\u{2}RETRY_TOPIC\u{1}handed"] {
        wire.ask(&heartbeat("c", "g", &[("handed", "SQL92", "a > 5", 7), ("%RETRY%g", "TAG", "*", 7)])).ok();
        wire.ask(&send("%RETRY%g", 0, text.as_bytes(), text)).ok();
    }
    let path = cluster.store().join("config/consumerFilter.json");
    for next in [Maker::Ringmq, java, Maker::Ringmq] {
        cluster.stop_broker();
        let file: serde_json::Value = serde_json::from_slice(&fs::read(&path).expect("kept")).expect("JSON");
        let kept = &file["filterDataByTopic"]["handed"]["groupFilterData"]["g"];
        assert_eq!((&kept["expression"], &kept["clientVersion"]), (&"a > 5".into(), &7.into()), "before {next:?}");
        cluster.hand_over(next);
        cluster.start_again();
        std::thread::sleep(Duration::from_millis(500));
        // The group is not online: what filters its retries is what the file says.
        let mut wire = Wire::to(cluster.broker_address());
        let told = wire.ask(&pull("g", "%RETRY%g", 0, 0)).ok();
        assert_eq!(told.messages().len(), 1, "{next:?}: {told:?}");
        assert!(told.messages()[0].body.starts_with(b"a\x016"), "{next:?}");
    }
}
