//! What lies beside log and queues: `config/*.json`, `checkpoint`, `ringmq-deleted-topics`.

use crate::files::{failed, list};
use crate::report::Report;
use ringmq_net::protocol::fastjson;
use ringmq_storage::deleted_topics::parse_line;
use serde_json::Value;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::io;
use std::path::Path;

/// `None` when the file does not exist.
pub fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some).map_err(failed(path)),
    }
}

/// Parses every metadata file or, as a broker would, its `.bak`. The topics, if they are known.
pub fn check_config(dir: &Path, report: &mut Report<'_>) -> io::Result<Option<HashSet<String>>> {
    let mut topics = None;
    let mut names = BTreeSet::new();
    for (path, _) in list(dir)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let name = name.strip_suffix(".bak").unwrap_or(&name);
        if name.ends_with(".json") {
            names.insert(name.to_owned());
        }
    }
    for name in names {
        let path = dir.join(&name);
        let backup_path = dir.join(format!("{name}.bak"));
        let parse = |path: &Path| -> io::Result<Option<Result<Value, String>>> {
            let whole = |bytes: Vec<u8>| {
                let value = fastjson::from_slice::<Value>(&bytes).map_err(|error| error.to_string())?;
                has_tables(&name, &value).map(|()| value)
            };
            Ok(read(path)?.map(whole))
        };
        let main = parse(&path)?;
        let value = match main {
            Some(Ok(value)) => Some(value),
            main => {
                let why = match main {
                    Some(Err(error)) => error,
                    _ => "absent".to_string(),
                };
                let (backup, text) = match parse(&backup_path)? {
                    Some(Ok(value)) => (Some(value), format!("{why}; its .bak is whole and is taken at a start")),
                    Some(Err(error)) => (None, format!("{why}; neither is its .bak: {error}")),
                    None => (None, format!("{why}; it has no .bak")),
                };
                report.finding("metadata", &path, 0, &text)?;
                backup
            }
        };
        if name == "topics.json" {
            let table = value.as_ref().and_then(|value| value["topicConfigTable"].as_object());
            topics = table.map(|table| table.keys().cloned().collect());
        }
    }
    Ok(topics)
}

/// Whether the table without which a broker does not start is there, with rows of the right kind.
fn has_tables(name: &str, value: &Value) -> Result<(), String> {
    type IsRow = fn(&Value) -> bool;
    let is_number: IsRow = |row| row.is_i64() || row.as_str().is_some_and(|row| row.parse::<i64>().is_ok());
    let (table, is_row): (&str, IsRow) = match name {
        "topics.json" => ("topicConfigTable", Value::is_object),
        "subscriptionGroup.json" => ("subscriptionGroupTable", Value::is_object),
        "consumerOffset.json" => ("offsetTable", Value::is_object),
        "delayOffset.json" => ("offsetTable", is_number),
        _ => return Ok(()),
    };
    let rows = value[table].as_object().ok_or_else(|| format!("it has no {table}"))?;
    match rows.iter().find(|(_, row)| !is_row(row)) {
        Some((key, row)) => Err(format!("in its {table} {key} is {row}")),
        None => Ok(()),
    }
}

/// For each topic deleted by ringmq the log's end at that time: records before it have no entries.
pub fn deleted_topics(root: &Path, report: &mut Report<'_>) -> io::Result<HashMap<String, u64>> {
    let path = root.join("ringmq-deleted-topics");
    let text = read(&path)?.unwrap_or_default();
    let mut ends = HashMap::new();
    let mut position = 0;
    for line in String::from_utf8_lossy(&text).lines() {
        match parse_line(line) {
            Some((end, topic)) => {
                ends.insert(topic.to_owned(), end);
            }
            None => {
                report.finding("deleted-topics", &path, position, "no line of a log offset, a topic and their CRC")?
            }
        }
        position += line.len() as u64 + 1;
    }
    Ok(ends)
}

/// A time newer than the newest record says that more is on the device than there is; recovery starts too late then.
pub fn check_checkpoint(
    root: &Path,
    store_timestamp_max: Option<i64>,
    is_running: bool,
    report: &mut Report<'_>,
) -> io::Result<()> {
    const BYTES: usize = 4096;
    let path = root.join("checkpoint");
    let Some(bytes) = read(&path)? else {
        return report.finding("checkpoint", &path, 0, "absent; after a crash the whole log would be read");
    };
    if bytes.len() != BYTES {
        return report.finding("checkpoint", &path, 0, &format!("{} bytes instead of {BYTES}", bytes.len()));
    }
    for (position, name) in [(0, "log"), (8, "queues"), (16, "index")] {
        let time = i64::from_be_bytes(bytes[position..position + 8].try_into().expect("8 bytes"));
        if time < 0 {
            report.finding("checkpoint", &path, position as u64, &format!("{name} time {time} is negative"))?;
        }
        // A running broker may have written both since the log was read.
        let newest = store_timestamp_max.unwrap_or(0);
        if time > newest && !is_running {
            let text = format!("{name} time {time} is newer than the newest record ({newest})");
            report.finding("checkpoint", &path, position as u64, &text)?;
        }
    }
    Ok(())
}
