//! Metadata files: `config/*.json`, in Java's shape, replaced as a whole.
//!
//! ```text
//! store   f.bak.tmp ─fsync─ rename ─> f.bak       f.tmp ─fsync─ rename ─> f       fsync of the folder
//! load    f, or f.bak where f is absent, empty, torn or not of its shape; f is then made anew from it
//! ```
//! At every moment one of the two files is whole. After a `store` both hold the new content (Java's `.bak` lags by one
//! write): a torn or truncated `f` loses nothing that was answered.
//! Source: ConfigManager.java, MixAll.string2File.

use ringmq_net::protocol::fastjson;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub enum PersistError {
    #[error("{act} {}: {source}", path.display())]
    Io { act: &'static str, path: PathBuf, source: io::Error },
    #[error("{} cannot be read ({file}) and neither can {} ({backup}): mend one of them, or move both away to start without", path.display(), backup_path.display())]
    Unusable { path: PathBuf, file: String, backup_path: PathBuf, backup: String },
}

/// One metadata file and its backup.
#[derive(Debug)]
pub struct JsonFile {
    path: PathBuf,
}

impl JsonFile {
    /// `name` in the store's `config` folder.
    pub fn new(config_dir: &Path, name: &str) -> JsonFile {
        JsonFile { path: config_dir.join(name) }
    }

    /// A file that lacks its table is none: `{}` parses, and so does a name with a flipped bit, and either would forget
    /// everything without a word. The table may be empty: Java writes it so.
    pub fn load_table<T, E: std::fmt::Display>(
        &self,
        table: &str,
        parse: impl Fn(&[u8]) -> Result<T, E>,
    ) -> Result<Option<T>, PersistError> {
        self.load(|bytes| parse_table(bytes, table, &parse))
    }

    /// The file alone, where it is whole.
    pub fn read_table<T, E: std::fmt::Display>(&self, table: &str, parse: impl Fn(&[u8]) -> Result<T, E>) -> Option<T> {
        parse_table(&read_file(&self.path).ok()?, table, &parse).ok()
    }

    /// `None` when neither the file nor its backup exists.
    ///
    /// # Errors
    /// One of them exists and none can be used: starting without would forget what was acknowledged.
    fn load<T, E: std::fmt::Display>(&self, parse: impl Fn(&[u8]) -> Result<T, E>) -> Result<Option<T>, PersistError> {
        let read = |path: &Path| match read_file(path) {
            Ok(bytes) if bytes.iter().all(u8::is_ascii_whitespace) => Err("empty".to_string()),
            Ok(bytes) => parse(&bytes).map(Some).map_err(|error| error.to_string()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.to_string()),
        };
        let backup_path = self.beside(".bak");
        let file = read(&self.path);
        if let Ok(Some(value)) = file {
            return Ok(Some(value));
        }
        let backup = read(&backup_path);
        match (file, backup) {
            (file, Ok(Some(value))) => {
                let why = file.err().unwrap_or_else(|| "absent".to_string());
                tracing::warn!(path = %self.path.display(), why, "metadata taken from its .bak");
                if let Err(error) = self.mend(&backup_path) {
                    tracing::warn!(path = %self.path.display(), %error, "not made anew from its .bak");
                }
                Ok(Some(value))
            }
            (Ok(_), Ok(None)) => Ok(None),
            (file, backup) => {
                let text = |result: Result<Option<T>, String>| result.err().unwrap_or_else(|| "absent".to_string());
                Err(PersistError::Unusable {
                    path: self.path.clone(),
                    file: text(file),
                    backup_path,
                    backup: text(backup),
                })
            }
        }
    }

    /// The file anew from its backup; one that was damaged is kept as `.damaged`. So the next damage finds two again.
    fn mend(&self, backup_path: &Path) -> Result<(), PersistError> {
        let bytes = fs::read(backup_path).map_err(failed("cannot read", backup_path))?;
        match fs::rename(&self.path, self.beside(".damaged")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("cannot move", &self.path)(error)),
            _ => replace(&self.path, &bytes),
        }
    }

    /// Durable when it returns.
    pub fn store(&self, bytes: &[u8]) -> Result<(), PersistError> {
        let dir = self.path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(dir).map_err(failed("cannot create", dir))?;
        for target in [self.beside(".bak"), self.path.clone()] {
            replace(&target, bytes)?;
        }
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed("cannot sync", dir))
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(suffix);
        PathBuf::from(path)
    }
}

fn parse_table<T, E: std::fmt::Display>(
    bytes: &[u8],
    table: &str,
    parse: &impl Fn(&[u8]) -> Result<T, E>,
) -> Result<T, String> {
    let whole: Value = fastjson::from_slice(bytes).map_err(|error| error.to_string())?;
    if !whole.get(table).is_some_and(Value::is_object) {
        return Err(format!("no {table} in it"));
    }
    parse(bytes).map_err(|error| error.to_string())
}

/// Only of a file: the opening of a FIFO waits for somebody who writes into it.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a file"));
    }
    fs::read(path)
}

fn failed(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PersistError {
    let path = path.to_path_buf();
    move |source| PersistError::Io { act, path, source }
}

/// By a file beside it, which is synced first.
fn replace(target: &Path, bytes: &[u8]) -> Result<(), PersistError> {
    let mut temporary = target.to_path_buf().into_os_string();
    temporary.push(".tmp");
    let temporary = PathBuf::from(temporary);
    let mut file = File::create(&temporary).map_err(failed("cannot write", &temporary))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(failed("cannot write", &temporary))?;
    fs::rename(&temporary, target).map_err(failed("cannot replace", target))
}

/// Versions of all metadata together: what changed, what is on disk, what the name servers know. Changes wait for one
/// of the last two before they are answered.
#[derive(Debug, Default)]
pub struct MetaDirty {
    changed: AtomicU64,
    durable: AtomicU64,
    /// Why the last attempt to write failed.
    failure: Mutex<Option<String>>,
    wake: Mutex<bool>,
    condvar: Condvar,
}

impl MetaDirty {
    /// To be called after the change is in its table. What is returned becomes durable with it.
    pub fn touch(&self) -> u64 {
        let version = self.changed.fetch_add(1, Ordering::SeqCst) + 1;
        self.wake();
        version
    }

    pub fn changed(&self) -> u64 {
        self.changed.load(Ordering::SeqCst)
    }

    pub fn durable(&self) -> u64 {
        self.durable.load(Ordering::SeqCst)
    }

    pub fn set_durable(&self, version: u64) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.durable.fetch_max(version, Ordering::SeqCst);
    }

    pub fn set_failure(&self, why: String) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }

    pub fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn wake(&self) {
        *self.wake.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.condvar.notify_all();
    }

    /// Until the next `wake`, at most `timeout`.
    pub fn wait(&self, timeout: Duration) {
        let woken = self.wake.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut woken, _) =
            self.condvar.wait_timeout_while(woken, timeout, |woken| !*woken).unwrap_or_else(PoisonError::into_inner);
        *woken = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(bytes: &[u8]) -> Result<u32, String> {
        std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok()).ok_or_else(|| "no number".to_string())
    }

    #[test]
    fn a_torn_file_falls_back_and_two_torn_ones_refuse() {
        // content of the file, of the backup (`None` = absent), wanted (`Err` = refused)
        type Case = (Option<&'static str>, Option<&'static str>, Result<Option<u32>, ()>);
        let cases: &[Case] = &[
            (None, None, Ok(None)),
            (Some("7"), None, Ok(Some(7))),
            (Some("7"), Some("6"), Ok(Some(7))),
            (Some(""), Some("6"), Ok(Some(6))),
            (Some("{"), Some("6"), Ok(Some(6))),
            (None, Some("6"), Ok(Some(6))),
            (Some("{"), None, Err(())),
            (Some(""), None, Err(())),
            (Some("{"), Some(""), Err(())),
            (None, Some("{"), Err(())),
        ];
        for (file, backup, want) in cases {
            let dir = tempfile::tempdir().unwrap();
            for (name, content) in [("t.json", file), ("t.json.bak", backup)] {
                if let Some(content) = content {
                    fs::write(dir.path().join(name), content).unwrap();
                }
            }
            let json = JsonFile::new(dir.path(), "t.json");
            assert_eq!(json.load(number).map_err(|_| ()), *want, "{file:?} {backup:?}");
            if want == &Ok(Some(6)) {
                // Both hold it again, and what was damaged is kept.
                fs::remove_file(dir.path().join("t.json.bak")).unwrap();
                assert_eq!(json.load(number).map_err(|_| ()), *want, "{file:?} {backup:?}");
                let kept = fs::read_to_string(dir.path().join("t.json.damaged")).ok();
                assert_eq!(kept.as_deref(), *file);
            }
        }
    }

    #[test]
    fn a_file_without_its_table_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let json = JsonFile::new(dir.path(), "t.json");
        let parse = |bytes: &[u8]| Ok::<_, String>(bytes.len());
        for text in [
            "{}",
            "[]",
            "{\"dataVersion\":{}}",
            "{\"table\":null}",
            "{\"table\":7}",
            "{\"tablf\":{}}",
            "{\"tablf\":{\"table\":{}}}",
            "{\"table\":{}",
        ] {
            fs::write(dir.path().join("t.json"), text).unwrap();
            assert!(json.load_table("table", parse).is_err(), "{text}");
            fs::write(dir.path().join("t.json.bak"), "{\"table\":{}}").unwrap();
            assert_eq!(json.load_table("table", parse).unwrap(), Some(12), "{text}");
            fs::remove_file(dir.path().join("t.json.bak")).unwrap();
        }
    }

    #[test]
    fn an_empty_table_is_one_in_each_dialect() {
        let dir = tempfile::tempdir().unwrap();
        let json = JsonFile::new(dir.path(), "t.json");
        let parse = |bytes: &[u8]| Ok::<_, String>(bytes.len());
        for text in
            ["{\"table\":{}}", "{\n\t\"dataVersion\":{\"counter\":0},\n\t\"table\":{}\n}", "{table:{1:2,18:0\n\t}\n}"]
        {
            fs::write(dir.path().join("t.json"), text).unwrap();
            assert_eq!(json.load_table("table", parse).unwrap(), Some(text.len()), "{text}");
        }
    }

    /// The opening of a FIFO would wait for ever.
    #[test]
    fn what_is_no_file_is_said_and_not_waited_for() {
        type Make = fn(&Path);
        let fifo: Make = |path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let socket: Make = |path| _ = std::os::unix::net::UnixListener::bind(path).unwrap();
        let folder: Make = |path| fs::create_dir(path).unwrap();
        for make in [fifo, socket, folder] {
            let dir = tempfile::tempdir().unwrap();
            let json = JsonFile::new(dir.path(), "t.json");
            make(&dir.path().join("t.json"));
            let told = json.load(number).unwrap_err().to_string();
            assert!(told.contains("t.json cannot be read (not a file)"), "{told}");
            fs::write(dir.path().join("t.json.bak"), "6").unwrap();
            assert_eq!(json.load(number).unwrap(), Some(6));
            assert_eq!(fs::read(dir.path().join("t.json")).unwrap(), b"6");

            fs::remove_file(dir.path().join("t.json.bak")).unwrap();
            make(&dir.path().join("t.json.bak"));
            assert_eq!(json.load(number).unwrap(), Some(6));
            fs::remove_file(dir.path().join("t.json")).unwrap();
            let told = json.load(number).unwrap_err().to_string();
            assert!(told.contains("(absent)") && told.contains("t.json.bak (not a file)"), "{told}");
        }
    }

    #[test]
    fn a_store_survives_the_loss_of_either_file() {
        let dir = tempfile::tempdir().unwrap();
        let json = JsonFile::new(&dir.path().join("config"), "t.json");
        json.store(b"1").unwrap();
        json.store(b"2").unwrap();
        fs::write(dir.path().join("config/t.json"), "").unwrap();
        assert_eq!(json.load(number).unwrap(), Some(2));
        json.store(b"3").unwrap();
        fs::remove_file(dir.path().join("config/t.json.bak")).unwrap();
        assert_eq!(json.load(number).unwrap(), Some(3));
    }

    #[test]
    fn a_wake_before_the_wait_is_not_lost() {
        let dirty = MetaDirty::default();
        assert_eq!((dirty.touch(), dirty.touch()), (1, 2));
        dirty.wait(Duration::from_secs(60));
        dirty.set_durable(2);
        dirty.set_durable(1);
        assert_eq!(dirty.durable(), 2);
    }
}
