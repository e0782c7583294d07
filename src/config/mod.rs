//! Java's property keys as typed fields with units and limits.
//!
//! ```text
//! defaults (of this machine)  <  environment  <  defaults (of the mode)  <  file (.properties)  <  command line
//! ```
//!
//! `keys.rs` says what becomes of each key that Java knows; `setting.rs` parses values; `broker.rs` and `namesrv.rs`
//! are the tables of what works; `limits.rs` computes pool sizes. All faults of a start are reported together, each
//! with its place, its value and what is allowed.
//! Source: BrokerStartup.java, MixAll.properties2Object (4.9.7, 5.3.3). Values are trimmed here; Java keeps a blank at
//! a line's end and then silently falls back to the default.

mod broker;
mod keys;
mod limits;
mod machine;
mod namesrv;
mod setting;

pub use broker::BrokerConfig;
pub use limits::{Limits, SHARD_COUNT_MAX};
pub use machine::Machine;
pub use namesrv::NamesrvConfig;

use keys::{Blocked, TLS, TLS_PREFIX};
use std::fmt;
use std::path::{Path, PathBuf};

/// Where a value was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    File {
        path: PathBuf,
        line: usize,
    },
    CommandLine,
    /// What the mode of the start (standalone) sets before the file.
    Mode,
    Environment,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File { path, line } => write!(f, "{}:{line}", path.display()),
            Place::CommandLine => f.write_str("command line"),
            Place::Mode => f.write_str("defaults of this mode"),
            Place::Environment => f.write_str("environment"),
        }
    }
}

/// One `key=value`, wherever it came from.
#[derive(Clone, Debug)]
struct Entry {
    place: Place,
    key: String,
    value: String,
}

/// Why a node cannot start with what it was given.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{}:{line}: not a line of a .properties file: {reason}", path.display())]
    Syntax { path: PathBuf, line: usize, reason: String },
    /// All of them, so that a file is mended in one go.
    #[error("{}", .0.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n"))]
    Values(Vec<Problem>),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("{place}: {key}={value}: allowed is {allowed}")]
    Value { place: Place, key: String, value: String, allowed: String },
    #[error("{place}: {key}={value} is not possible: {instead}")]
    NotBuilt { place: Place, key: String, value: String, instead: &'static str },
}

/// Why UPDATE_BROKER_CONFIG or UPDATE_NAMESRV_CONFIG changed nothing.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpdateError {
    /// The text of Java.
    #[error("string2Properties error")]
    Syntax,
    /// The text of Java.
    #[error("Can not update config in black list.")]
    BlackList,
    #[error("{key} is read at start only: change it in the file and start again")]
    NotWhileRunning { key: String },
    #[error("{key} has no effect here")]
    WithoutEffect { key: String },
    /// `named`: with the key that was probably meant.
    #[error("there is no key {named}")]
    Unknown { named: String },
    #[error("{key}={value}: allowed is {allowed}")]
    Value { key: String, value: String, allowed: String },
    #[error("{key}={value} is not possible: {instead}")]
    NotBuilt { key: String, value: String, instead: &'static str },
}

/// What was read beside the values that work: for the warnings of a start.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    memory_bytes: u64,
    /// The file of the command line.
    file: Option<PathBuf>,
    facts: Vec<String>,
    without_effect: Vec<String>,
    unknown: Vec<String>,
}

impl Notes {
    fn warnings(&self, known: &[&str]) -> Vec<String> {
        let mut warnings = self.facts.clone();
        if !self.without_effect.is_empty() {
            warnings.push(format!("keys without effect yet: {}", self.without_effect.join(", ")));
        }
        if !self.unknown.is_empty() {
            let unknown: Vec<String> = self.unknown.iter().map(|key| named(key, known)).collect();
            warnings.push(format!("unknown keys, ignored: {}", unknown.join(", ")));
        }
        warnings
    }
}

/// An unknown key, and the one that was probably meant.
fn named(key: &str, known: &[&str]) -> String {
    match near(key, known) {
        Some(meant) => format!("{key} (did you mean {meant}?)"),
        None => key.to_string(),
    }
}

/// The key that was probably meant: Java's have odd capitals and old spellings, and a slip or two is usual.
fn near<'a>(key: &str, known: &[&'a str]) -> Option<&'a str> {
    let key = key.to_ascii_lowercase();
    let distances = known.iter().map(|other| {
        let distance = strsim::damerau_levenshtein(&key, &other.to_ascii_lowercase());
        (distance, *other)
    });
    let (distance, other) = distances.min_by_key(|(distance, _)| *distance)?;
    (distance <= if key.len() < 6 { 1 } else { 2 }).then_some(other)
}

/// The kinds of keys that are known but do not work, for one of the two configurations.
struct Known {
    blocked: &'static [Blocked],
    tuning: &'static [&'static str],
}

fn blocked_names(blocked: &[Blocked]) -> Vec<&'static str> {
    blocked.iter().map(|blocked| blocked.key).collect()
}

/// `key=value` of the keys that work, then of the features that are off.
fn pairs(
    keys: &[(&str, bool)],
    shown: Vec<(&'static str, String)>,
    blocked: &[Blocked],
    important_only: bool,
) -> Vec<(String, String)> {
    let works = keys.iter().zip(shown).map(|((_, important), (key, value))| (*important, key, value));
    let off = blocked.iter().map(|blocked| (blocked.important, blocked.key, blocked.accepted[0].to_string()));
    works
        .chain(off)
        .filter(|(important, _, _)| *important || !important_only)
        .map(|(_, key, value)| (key.to_string(), value))
        .collect()
}

/// Sets every entry in order, so that the later wins, and sorts the rest into notes and problems.
fn apply(
    entries: &[Entry],
    known: &Known,
    notes: &mut Notes,
    mut set: impl FnMut(&str, &str) -> Option<Result<(), String>>,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    for Entry { place, key, value } in entries {
        let value = value.trim();
        let blocked = known.blocked.iter().find(|blocked| blocked.key == key);
        let blocked = blocked.or_else(|| key.starts_with(TLS_PREFIX).then_some(&TLS));
        if let Some(blocked) = blocked {
            if !blocked.accepts(value) {
                problems.push(Problem::NotBuilt {
                    place: place.clone(),
                    key: key.clone(),
                    value: value.to_string(),
                    instead: blocked.instead,
                });
            }
            continue;
        }
        match set(key, value) {
            Some(Ok(())) => {}
            Some(Err(allowed)) => problems.push(Problem::Value {
                place: place.clone(),
                key: key.clone(),
                value: value.to_string(),
                allowed,
            }),
            None => {
                let tuning = known.tuning.contains(&key.as_str());
                let list = if tuning { &mut notes.without_effect } else { &mut notes.unknown };
                if !list.contains(key) {
                    list.push(key.clone());
                }
            }
        }
    }
    problems
}

/// Those of `defaults`, then those of `file`, then those of `overrides`.
fn entries(
    defaults: &[(String, String)],
    file: Option<&Path>,
    overrides: &[(String, String)],
) -> Result<Vec<Entry>, ConfigError> {
    let at = |place: Place| {
        move |(key, value): &(String, String)| Entry { place: place.clone(), key: key.clone(), value: value.clone() }
    };
    let mut entries: Vec<Entry> = defaults.iter().map(at(Place::Mode)).collect();
    if let Some(path) = file {
        let bytes = std::fs::read(path).map_err(|source| ConfigError::Read { path: path.to_path_buf(), source })?;
        entries.extend(file_entries(path, &bytes)?);
    }
    entries.extend(overrides.iter().map(at(Place::CommandLine)));
    Ok(entries)
}

/// `key=value` lines that Java and [`file_entries`] read back as they were: in values, backslashes, leading blanks
/// and what is not ASCII are escaped; the colons of addresses are not. Keys are names of beans.
pub fn properties_text(pairs: &[(String, String)]) -> Vec<u8> {
    let mut text = Vec::new();
    for (key, value) in pairs {
        text.extend_from_slice(key.as_bytes());
        text.push(b'=');
        for (index, unit) in value.encode_utf16().enumerate() {
            match u8::try_from(unit) {
                Ok(b'\\') => text.extend_from_slice(br"\\"),
                Ok(b' ') if index == 0 => text.extend_from_slice(br"\ "),
                Ok(byte @ b' '..=b'~') => text.push(byte),
                _ => text.extend_from_slice(format!("\\u{unit:04x}").as_bytes()),
            }
        }
        text.push(b'\n');
    }
    text
}

/// Stands above what was set while the broker ran.
const UPDATES_MARK: &[u8] = b"# Set while the broker ran (updateBrokerConfig); the last line of a key wins.\n";

/// The text of a configuration file with `updates` put into force: below a mark at its end, beside those that came
/// before them. What stands above the mark stays as a person wrote it.
pub fn with_updates(text: &[u8], updates: &[(String, String)]) -> Vec<u8> {
    let mark = text.windows(UPDATES_MARK.len()).rposition(|window| window == UPDATES_MARK);
    let (head, tail) = text.split_at(mark.unwrap_or(text.len()));
    let before = file_entries(Path::new(""), tail).unwrap_or_default();
    let mut set: Vec<(String, String)> = before.into_iter().map(|entry| (entry.key, entry.value)).collect();
    set.retain(|(key, _)| !updates.iter().any(|(updated, _)| updated == key));
    set.extend_from_slice(updates);
    let head_bytes = head.iter().rposition(|byte| *byte != b'\n').map_or(0, |last| last + 1);
    let mut out = head[..head_bytes].to_vec();
    if !out.is_empty() {
        // Two: the first may only continue a line.
        out.extend_from_slice(b"\n\n");
    }
    out.extend_from_slice(UPDATES_MARK);
    out.extend_from_slice(&properties_text(&set));
    out
}

fn file_entries(path: &Path, bytes: &[u8]) -> Result<Vec<Entry>, ConfigError> {
    let mut entries = Vec::new();
    for line in java_properties::PropertiesIter::new(bytes) {
        let line = line.map_err(|error| ConfigError::Syntax {
            path: path.to_path_buf(),
            line: error.line_number().unwrap_or(0),
            reason: error.to_string(),
        })?;
        let place = Place::File { path: path.to_path_buf(), line: line.line_number() };
        if let java_properties::LineContent::KVPair(key, value) = line.consume_content() {
            entries.push(Entry { place, key, value });
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_stand_below_the_text_of_a_person() {
        let pair = |key: &str, value: &str| (key.to_string(), value.to_string());
        let read = |text: &[u8]| -> Vec<(String, String)> {
            file_entries(Path::new("f"), text).unwrap().into_iter().map(|entry| (entry.key, entry.value)).collect()
        };
        for head in ["", "a=1", "# note\n\na=1\n", "a=1\\"] {
            let once = with_updates(head.as_bytes(), &[pair("b", "2"), pair("a", "3")]);
            assert!(once.starts_with(head.trim_end().as_bytes()));
            let read_once = read(&once);
            assert_eq!(read_once[read_once.len() - 2..], [pair("b", "2"), pair("a", "3")], "{head:?}");
            let twice = with_updates(&once, &[pair("b", "4")]);
            let read_twice = read(&twice);
            assert_eq!(read_twice[read_twice.len() - 2..], [pair("a", "3"), pair("b", "4")], "{head:?}");
            assert_eq!(read_twice.len(), read_once.len());
            assert_eq!(with_updates(&twice, &[pair("b", "4")]), twice);
        }
    }

    #[test]
    fn what_is_written_is_read_back_as_it_was() {
        let pairs = [
            ("plain", "value"),
            ("empty", ""),
            ("namesrvAddr", "10.0.0.1:9876;[::1]:9876"),
            ("path", r"C:\new\table"),
            ("blanks", " two  and at the end "),
            ("marks", "#a=b!c"),
            ("lines", "one\ntwo\r\t"),
            ("far", "ä ÿ 主题"),
        ]
        .map(|(key, value)| (key.to_string(), value.to_string()));
        let text = properties_text(&pairs);
        assert!(text.is_ascii());
        let read = file_entries(Path::new("f"), &text).unwrap();
        let read: Vec<(String, String)> = read.into_iter().map(|entry| (entry.key, entry.value)).collect();
        assert_eq!(read, pairs);
        // Addresses stay as a person writes them.
        assert!(String::from_utf8(text).unwrap().contains("namesrvAddr=10.0.0.1:9876;[::1]:9876\n"));
    }
}
