//! What a configuration is wanted for, in words.
//!
//! ```text
//! goal      clause , clause …                       "and" and ";" separate, too
//! clause    [ack | e2e | end to end] QUANTILE < TIME [at RATE]
//!           at RATE
//!           may lose TIME|nothing [on power loss | on kill]
//! QUANTILE  p50 p90 p99 p99.9 p99.99 max
//! <         also: <=  below  under  at most
//! TIME      250us  1 ms  0.2 s                      "µs", too
//! RATE      30000 msg/s  30 000 msg/s  30k/s
//! ```
//! "may lose nothing" without an end of it holds for both. What is not said does not matter.

use crate::latency::Summary;
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

pub const UNDERSTOOD: &str = "understood: clauses separated by commas, as in \
    \"p99 < 1ms at 30000 msg/s, e2e p99.9 < 5ms, may lose 200ms on power loss, may lose nothing on kill\"; \
    quantiles are p50 p90 p99 p99.9 p99.99 max, times have us, ms or s, rates have msg/s or /s";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quantile {
    P50,
    P90,
    P99,
    P999,
    P9999,
    Max,
}

impl Quantile {
    fn named(text: &str) -> Option<Self> {
        Some(match text {
            "50" => Self::P50,
            "90" => Self::P90,
            "99" => Self::P99,
            "99.9" => Self::P999,
            "99.99" => Self::P9999,
            _ => return None,
        })
    }

    pub fn of(self, summary: &Summary) -> f64 {
        match self {
            Self::P50 => summary.p50_us,
            Self::P90 => summary.p90_us,
            Self::P99 => summary.p99_us,
            Self::P999 => summary.p999_us,
            Self::P9999 => summary.p9999_us,
            Self::Max => summary.max_us,
        }
    }
}

impl fmt::Display for Quantile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::P50 => "p50",
            Self::P90 => "p90",
            Self::P99 => "p99",
            Self::P999 => "p99.9",
            Self::P9999 => "p99.99",
            Self::Max => "max",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LatencyGoal {
    pub is_end_to_end: bool,
    pub quantile: Quantile,
    pub below_us: f64,
}

impl fmt::Display for LatencyGoal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = if self.is_end_to_end { "end to end" } else { "ack" };
        write!(f, "{of} {} < {}", self.quantile, crate::report::text::duration(self.below_us))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Goal {
    pub latencies: Vec<LatencyGoal>,
    pub rate_per_s: Option<u64>,
    /// `None`: it does not matter.
    pub power_loss_ms: Option<f64>,
    pub kill_loss_ms: Option<f64>,
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    /// As it was written, without the spaces between its thousands.
    Number(String),
    Word(String),
    Less,
    End,
}

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut tokens: Vec<Token> = Vec::new();
    let mut rest = text.trim();
    while let Some(first) = rest.chars().next() {
        let end = |test: &dyn Fn(char) -> bool| rest.find(|c: char| !test(c)).unwrap_or(rest.len());
        let bytes = match first {
            '0'..='9' => {
                let bytes = end(&|c| c.is_ascii_digit() || c == '.' || c == '_');
                let number = rest[..bytes].replace('_', "");
                match tokens.last_mut() {
                    Some(Token::Number(before)) if number.len() == 3 && !before.contains('.') => {
                        before.push_str(&number)
                    }
                    _ => tokens.push(Token::Number(number)),
                }
                bytes
            }
            '<' | '≤' => {
                tokens.push(Token::Less);
                if rest.starts_with("<=") { 2 } else { first.len_utf8() }
            }
            ',' | ';' => {
                tokens.push(Token::End);
                1
            }
            _ if first.is_alphabetic() || first == '/' => {
                let bytes = end(&|c| c.is_alphabetic() || c == '/');
                let word = rest[..bytes].to_lowercase().replace(['µ', 'μ'], "u");
                tokens.push(if word == "and" { Token::End } else { Token::Word(word) });
                bytes
            }
            _ => return Err(format!("{first:?} in a goal")),
        };
        rest = rest[bytes..].trim_start();
    }
    Ok(tokens)
}

/// Takes tokens from the front.
struct Reader<'a> {
    tokens: &'a [Token],
}

impl Reader<'_> {
    fn is_word(&mut self, words: &[&str]) -> bool {
        match self.tokens {
            [Token::Word(word), rest @ ..] if words.contains(&word.as_str()) => {
                self.tokens = rest;
                true
            }
            _ => false,
        }
    }

    fn are_words(&mut self, words: &[&str]) -> bool {
        let before = self.tokens;
        let found = words.iter().all(|word| self.is_word(&[word]));
        if !found {
            self.tokens = before;
        }
        found
    }

    fn number(&mut self) -> Result<String, String> {
        match self.tokens {
            [Token::Number(number), rest @ ..] => {
                self.tokens = rest;
                Ok(number.clone())
            }
            _ => Err(format!("a number is expected before {}", self.shown())),
        }
    }

    fn word(&mut self) -> Result<String, String> {
        match self.tokens {
            [Token::Word(word), rest @ ..] => {
                self.tokens = rest;
                Ok(word.clone())
            }
            _ => Err(format!("a word is expected before {}", self.shown())),
        }
    }

    fn shown(&self) -> String {
        match self.tokens.first() {
            Some(Token::Number(text) | Token::Word(text)) => format!("{text:?}"),
            Some(Token::Less) => "\"<\"".into(),
            Some(Token::End) => "the comma".into(),
            None => "the end".into(),
        }
    }

    fn us(&mut self) -> Result<f64, String> {
        let number = self.number()?;
        let unit = self.word()?;
        let factor = match unit.as_str() {
            "us" => 1.0,
            "ms" => 1e3,
            "s" => 1e6,
            _ => return Err(format!("{unit:?} is no unit of time")),
        };
        number.parse::<f64>().map(|count| count * factor).map_err(|_| format!("{number:?} is no number"))
    }

    fn rate(&mut self) -> Result<u64, String> {
        let number = self.number()?;
        let mut unit = self.word()?;
        let mut factor = 1.0;
        for (letter, times) in [("k", 1e3), ("m", 1e6)] {
            if unit == letter {
                (factor, unit) = (times, self.word()?);
            } else if unit.strip_prefix(letter) == Some("/s") {
                (factor, unit) = (times, "/s".into());
            }
        }
        if !["/s", "msg/s", "msgs/s", "message/s", "messages/s"].contains(&unit.as_str()) {
            return Err(format!("{unit:?} is no unit of a rate"));
        }
        let rate = number.parse::<f64>().map_err(|_| format!("{number:?} is no number"))? * factor;
        if (1.0..=1e7).contains(&rate) { Ok(rate as u64) } else { Err(format!("a rate of {rate} msg/s")) }
    }
}

impl FromStr for Goal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parsed(text).map_err(|error| format!("{error}; {UNDERSTOOD}"))
    }
}

fn parsed(text: &str) -> Result<Goal, String> {
    let tokens = tokens(text)?;
    let mut goal = Goal::default();
    for clause in tokens.split(|token| *token == Token::End) {
        let mut reader = Reader { tokens: clause };
        if clause.is_empty() {
            continue;
        }
        if reader.are_words(&["may", "lose"]) {
            loss(&mut reader, &mut goal)?;
        } else {
            if !reader.is_word(&["at"]) {
                latency(&mut reader, &mut goal)?;
                if !reader.tokens.is_empty() && !reader.is_word(&["at"]) {
                    return Err(format!("{} comes after a latency", reader.shown()));
                }
                if reader.tokens.is_empty() {
                    continue;
                }
            }
            let rate = reader.rate()?;
            if goal.rate_per_s.is_some_and(|known| known != rate) {
                return Err("two rates".into());
            }
            goal.rate_per_s = Some(rate);
        }
        if !reader.tokens.is_empty() {
            return Err(format!("{} is too much", reader.shown()));
        }
    }
    if goal == Goal::default() { Err("nothing is asked for".into()) } else { Ok(goal) }
}

fn latency(reader: &mut Reader<'_>, goal: &mut Goal) -> Result<(), String> {
    let is_end_to_end = reader.are_words(&["end", "to", "end"])
        || reader.are_words(&["e", "to", "e"])
        || {
            let is_short = matches!(reader.tokens, [Token::Word(e), Token::Number(two), Token::Word(..), ..] if e == "e" && two == "2");
            if is_short {
                // "e2e" and what follows without a space are letters, a digit, letters.
                reader.tokens = &reader.tokens[2..];
                reader.is_word(&["e"])
            } else {
                false
            }
        };
    if !is_end_to_end {
        reader.is_word(&["ack"]);
    }
    let quantile = if reader.is_word(&["max"]) {
        Quantile::Max
    } else if reader.is_word(&["p"]) {
        let number = reader.number()?;
        Quantile::named(&number).ok_or_else(|| format!("p{number} is not measured"))?
    } else {
        return Err(format!("no clause begins with {}", reader.shown()));
    };
    let is_less = match reader.tokens {
        [Token::Less, rest @ ..] => {
            reader.tokens = rest;
            true
        }
        _ => reader.is_word(&["below", "under"]) || reader.are_words(&["at", "most"]),
    };
    if !is_less {
        return Err(format!("\"<\" is expected before {}", reader.shown()));
    }
    let below_us = reader.us()?;
    goal.latencies.push(LatencyGoal { is_end_to_end, quantile, below_us });
    Ok(())
}

fn loss(reader: &mut Reader<'_>, goal: &mut Goal) -> Result<(), String> {
    let ms = if reader.is_word(&["nothing"]) { 0.0 } else { reader.us()? / 1e3 };
    if !reader.is_word(&["on"]) {
        (goal.power_loss_ms, goal.kill_loss_ms) = (Some(ms), Some(ms));
    } else if reader.are_words(&["power", "loss"]) || reader.are_words(&["power", "failure"]) {
        goal.power_loss_ms = Some(ms);
    } else if reader.are_words(&["process", "kill"]) || reader.is_word(&["kill"]) {
        goal.kill_loss_ms = Some(ms);
    } else {
        return Err(format!("\"on power loss\" or \"on kill\" is expected, not {}", reader.shown()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latency(is_end_to_end: bool, quantile: Quantile, below_us: f64) -> LatencyGoal {
        LatencyGoal { is_end_to_end, quantile, below_us }
    }

    #[test]
    fn goals_are_read_from_words() {
        let p99 = vec![latency(false, Quantile::P99, 1_000.0)];
        let goal = |latencies: &[LatencyGoal], rate_per_s, power_loss_ms, kill_loss_ms| Goal {
            latencies: latencies.to_vec(),
            rate_per_s,
            power_loss_ms,
            kill_loss_ms,
        };
        for (text, want) in [
            ("p99 < 1ms at 30000 msg/s, may lose 200ms on power loss", goal(&p99, Some(30_000), Some(200.0), None)),
            (
                "P99 below 1 ms at 30 000 msg/s, may lose 200 ms on power loss",
                goal(&p99, Some(30_000), Some(200.0), None),
            ),
            ("p99 <= 1000us at 30k/s and may lose nothing", goal(&p99, Some(30_000), Some(0.0), Some(0.0))),
            ("ack p99 under 1000 µs; at 1.5m msg/s", goal(&p99, Some(1_500_000), None, None)),
            ("may lose nothing on kill", goal(&[], None, None, Some(0.0))),
            ("may lose 0.5 s on process kill, at 1_000 messages/s", goal(&[], Some(1_000), None, Some(500.0))),
            (
                "e2e p99.9 < 5ms, end to end max at most 1s",
                goal(&[latency(true, Quantile::P999, 5e3), latency(true, Quantile::Max, 1e6)], None, None, None),
            ),
        ] {
            assert_eq!(text.parse(), Ok(want), "{text}");
        }
    }

    #[test]
    fn what_is_not_understood_is_said_with_what_is() {
        // text, a part of the error
        for (text, why) in [
            ("", "nothing is asked for"),
            ("fast", "no clause begins with \"fast\""),
            ("p98 < 1ms", "p98 is not measured"),
            ("p99 1ms", "\"<\" is expected before \"1\""),
            ("p99 < 1", "a word is expected before the end"),
            ("p99 < 1 hour", "\"hour\" is no unit of time"),
            ("p99 < 1ms at 30000", "a word is expected before the end"),
            ("p99 < 1ms at 30000 km/h", "is no unit of a rate"),
            ("at 1 msg/s, at 2 msg/s", "two rates"),
            ("at 0 msg/s", "a rate of 0"),
            ("may lose 1ms on fire", "\"on power loss\" or \"on kill\" is expected, not \"fire\""),
            ("p99 < 1ms please", "\"please\" comes after a latency"),
            ("p99 = 1ms", "'=' in a goal"),
            ("at 5 msg/s now", "\"now\" is too much"),
        ] {
            let error = text.parse::<Goal>().unwrap_err();
            assert!(error.contains(why) && error.contains("understood:"), "{text}: {error}");
        }
    }
}
