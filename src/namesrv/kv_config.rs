//! The KV configuration: the one thing that a name server remembers over a restart.
//!
//! ```text
//! kvConfig.json   {"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:8"}}}
//! ```
//!
//! Every change is on disk before it is answered; a change that cannot be written did not happen. The file is written
//! by the shard that was asked: puts are an operator's, a few a day, and a few milliseconds long.
//! Source: KVConfigManager.java (4.9.7, 5.3.3), which accepts null keys and values and then cannot read them back.

use crate::text_file;
use ringmq_net::protocol::body::stats::KVTable;
use ringmq_net::protocol::fastjson::{self, JsonError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// Values of topics with a fixed order of queues: `broker:queues;…`.
pub const ORDER_TOPIC_CONFIG: &str = "ORDER_TOPIC_CONFIG";

/// The whole file is written at each change.
pub const KV_BYTES_MAX: usize = 8 << 20;

type Table = BTreeMap<String, BTreeMap<String, String>>;

#[derive(Debug)]
pub struct KvConfig {
    path: PathBuf,
    table: Table,
    bytes: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum KvOpenError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// Starting without it would throw the configuration away at the next change.
    #[error("{} is damaged and has no readable .bak beside it: {source}; mend it or remove it", path.display())]
    Damaged { path: PathBuf, source: JsonError },
}

#[derive(Debug, thiserror::Error)]
pub enum KvError {
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("the KV configuration would hold {bytes} bytes, the limit is {KV_BYTES_MAX}")]
    TooLarge { bytes: usize },
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Stored {
    config_table: BTreeMap<String, Option<BTreeMap<String, Option<String>>>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Storing<'a> {
    config_table: &'a Table,
}

impl KvConfig {
    /// Reads `path`, and where that is missing, empty or torn, its `.bak`.
    pub fn open(path: &Path) -> Result<KvConfig, KvOpenError> {
        let backup = text_file::backup(path);
        let mut damage = None;
        for source in [path, backup.as_path()] {
            match load(source)? {
                Loaded::Table(table) => {
                    if source != path {
                        tracing::warn!("{} is missing or torn: {} is taken", path.display(), source.display());
                    }
                    return Ok(KvConfig::with(path.to_path_buf(), table));
                }
                Loaded::Nothing => {}
                Loaded::Damaged(error) => damage = damage.or(Some(error)),
            }
        }
        match damage {
            None => Ok(KvConfig::with(path.to_path_buf(), Table::new())),
            Some(source) => Err(KvOpenError::Damaged { path: path.to_path_buf(), source }),
        }
    }

    fn with(path: PathBuf, table: Table) -> KvConfig {
        let bytes = table.values().flatten().map(|(key, value)| key.len() + value.len()).sum();
        KvConfig { path, table, bytes }
    }

    pub fn get(&self, namespace: &str, key: &str) -> Option<&str> {
        self.table.get(namespace)?.get(key).map(String::as_str)
    }

    /// `None` for a namespace that does not exist.
    pub fn namespace(&self, namespace: &str) -> Option<KVTable> {
        Some(KVTable { table: self.table.get(namespace)?.clone() })
    }

    pub fn put(&mut self, namespace: &str, key: &str, value: &str) -> Result<(), KvError> {
        for (name, text) in [("namespace", namespace), ("key", key), ("value", value)] {
            if text.is_empty() {
                return Err(KvError::Missing(name));
            }
        }
        let before = self.get(namespace, key).map(str::to_owned);
        let less = before.as_ref().map_or(0, |before| key.len() + before.len());
        let bytes = self.bytes - less + key.len() + value.len();
        if bytes > KV_BYTES_MAX {
            return Err(KvError::TooLarge { bytes });
        }
        self.table.entry(namespace.to_owned()).or_default().insert(key.to_owned(), value.to_owned());
        if let Err(error) = self.store() {
            self.set(namespace, key, before);
            return Err(error);
        }
        self.bytes = bytes;
        Ok(())
    }

    /// A namespace stays when its last key goes, as in Java. Nothing to delete is no error.
    pub fn delete(&mut self, namespace: &str, key: &str) -> Result<(), KvError> {
        let Some(before) = self.table.get_mut(namespace).and_then(|pairs| pairs.remove(key)) else { return Ok(()) };
        let bytes = key.len() + before.len();
        if let Err(error) = self.store() {
            self.set(namespace, key, Some(before));
            return Err(error);
        }
        self.bytes -= bytes;
        Ok(())
    }

    fn set(&mut self, namespace: &str, key: &str, value: Option<String>) {
        let pairs = self.table.entry(namespace.to_owned()).or_default();
        match value {
            Some(value) => drop(pairs.insert(key.to_owned(), value)),
            None => drop(pairs.remove(key)),
        }
    }

    fn store(&self) -> Result<(), KvError> {
        let text = fastjson::to_vec(&Storing { config_table: &self.table });
        text_file::replace(&self.path, &text).map_err(|source| KvError::Write { path: self.path.clone(), source })
    }
}

enum Loaded {
    Table(Table),
    Nothing,
    Damaged(JsonError),
}

fn load(path: &Path) -> Result<Loaded, KvOpenError> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Loaded::Nothing),
        Err(source) => return Err(KvOpenError::Read { path: path.to_path_buf(), source }),
    };
    match fastjson::from_slice::<Stored>(&text) {
        Ok(stored) => {
            let pairs = |pairs: BTreeMap<String, Option<String>>| -> BTreeMap<String, String> {
                pairs.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
            };
            let table = stored.config_table.into_iter();
            Ok(Loaded::Table(
                table.map(|(namespace, entries)| (namespace, pairs(entries.unwrap_or_default()))).collect(),
            ))
        }
        Err(JsonError::Empty) => Ok(Loaded::Nothing),
        Err(error) => Ok(Loaded::Damaged(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const GOOD: &str = r#"{"configTable":{"NS":{"k":"v"}}}"#;

    #[test]
    fn what_was_put_is_there_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kv/kvConfig.json");
        let mut kv = KvConfig::open(&path).unwrap();
        kv.put("NS", "k", "v").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), GOOD);
        kv.put("NS", "k2", "ä;\"").unwrap();
        kv.put("NS", "k", "w").unwrap();
        kv.delete("NS", "k2").unwrap();
        kv.delete("NS", "never").unwrap();
        kv.delete("never", "k").unwrap();
        let again = KvConfig::open(&path).unwrap();
        assert_eq!(again.get("NS", "k"), Some("w"));
        assert_eq!(again.get("NS", "k2"), None);
        assert_eq!(again.namespace("NS").unwrap().table.len(), 1);
        assert!(again.namespace("never").is_none());
        assert_eq!((again.bytes, kv.bytes), (2, 2));
    }

    #[test]
    fn a_torn_file_gives_way_to_its_backup() {
        // kvConfig.json, kvConfig.json.bak, value of NS/k (Err: the start is refused)
        let cases = [
            (None, None, Ok(None)),
            (Some(GOOD), None, Ok(Some("v"))),
            (Some(""), None, Ok(None)),
            (Some(""), Some(GOOD), Ok(Some("v"))),
            (None, Some(GOOD), Ok(Some("v"))),
            (Some("{\"configTable\":{\"NS\":{"), Some(GOOD), Ok(Some("v"))),
            (Some("{\"configTable\":{\"NS\":{"), None, Err(())),
            (Some("null"), None, Err(())),
            (Some("{configTable:{NS:{'k':'v',},},}"), None, Ok(Some("v"))),
            (Some(r#"{"configTable":{"NS":{"k":null},"N2":null}}"#), Some(GOOD), Ok(None)),
        ];
        for (main, backup, want) in cases {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("kvConfig.json");
            for (path, text) in [(path.clone(), main), (text_file::backup(&path), backup)] {
                if let Some(text) = text {
                    fs::write(path, text).unwrap();
                }
            }
            let opened = KvConfig::open(&path);
            let got = opened.as_ref().map(|kv| kv.get("NS", "k")).map_err(|_| ());
            assert_eq!(got, want, "{main:?} {backup:?}");
            if let Err(error) = opened {
                assert!(error.to_string().contains("kvConfig.json is damaged"), "{error}");
                continue;
            }
            // Whatever was read: the next change lands in the main file.
            let mut kv = opened.unwrap();
            kv.put("X", "y", "z").unwrap();
            assert_eq!(KvConfig::open(&path).unwrap().get("X", "y"), Some("z"));
        }
    }

    #[test]
    fn a_change_that_cannot_be_written_did_not_happen() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kvConfig.json");
        let mut kv = KvConfig::open(&path).unwrap();
        kv.put("NS", "k", "v").unwrap();
        // A folder stands where the new text is staged.
        fs::create_dir(folder.path().join("kvConfig.json.tmp")).unwrap();
        assert!(matches!(kv.put("NS", "k", "w"), Err(KvError::Write { .. })));
        assert!(matches!(kv.put("NS", "new", "w"), Err(KvError::Write { .. })));
        assert!(matches!(kv.delete("NS", "k"), Err(KvError::Write { .. })));
        assert_eq!(kv.get("NS", "k"), Some("v"));
        assert_eq!(kv.get("NS", "new"), None);
        assert_eq!(kv.bytes, 2);
        assert_eq!(KvConfig::open(&path).unwrap().get("NS", "k"), Some("v"));
    }

    #[test]
    fn a_put_names_what_it_lacks_and_stays_within_its_limit() {
        let folder = tempfile::tempdir().unwrap();
        let mut kv = KvConfig::open(&folder.path().join("kvConfig.json")).unwrap();
        for (namespace, key, value, want) in
            [("", "k", "v", "namespace"), ("n", "", "v", "key"), ("n", "k", "", "value")]
        {
            assert_eq!(kv.put(namespace, key, value).unwrap_err().to_string(), format!("{want} is missing"));
        }
        let large = "x".repeat(KV_BYTES_MAX - 1);
        kv.put("n", "k", &large).unwrap();
        kv.put("n", "k", &large).unwrap();
        assert!(matches!(kv.put("n", "l", "1"), Err(KvError::TooLarge { .. })));
        kv.delete("n", "k").unwrap();
        kv.put("n", "l", "1").unwrap();
    }
}
