//! `lock`: one process for a store.
//!
//! The same record lock on byte 0 that Java takes, so each excludes the other, but of the "open file description" kind:
//! it is not lost when some other descriptor of the file is closed, and it excludes a second store in this process.
//! It is taken before anything is read; Java takes it after its recovery has already changed the store.
//! Source: DefaultMessageStore.start, FileChannel.tryLock(0, 1, false).

use crate::error::OpenError;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc::{F_WRLCK, SEEK_SET, flock};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Held while it lives.
pub(crate) struct StoreLock {
    _file: File,
}

impl StoreLock {
    pub fn take(path: &Path) -> Result<StoreLock, OpenError> {
        if path.is_dir() {
            let found = "a folder where a file belongs".to_owned();
            let remedy = "move it to another place".to_owned();
            return Err(OpenError::OddFile { path: path.to_path_buf(), found, remedy });
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        StoreLock::hold(options.open(path).map_err(|e| OpenError::io("can not open", path, e))?, path)
    }

    /// Locks `file`, which is known as `path`.
    pub fn hold(file: File, path: &Path) -> Result<StoreLock, OpenError> {
        let range = flock { l_type: F_WRLCK as i16, l_whence: SEEK_SET as i16, l_start: 0, l_len: 1, l_pid: 0 };
        if fcntl(&file, FcntlArg::F_OFD_SETLK(&range)).is_err() {
            let mut holder = range;
            let is_known = fcntl(&file, FcntlArg::F_OFD_GETLK(&mut holder)).is_ok();
            return Err(OpenError::Locked { path: path.to_path_buf(), pid: is_known.then_some(holder.l_pid) });
        }
        file.write_all_at(b"lock", 0).map_err(|e| OpenError::io("can not write", path, e))?;
        Ok(StoreLock { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_holder_is_refused_until_the_first_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = StoreLock::take(&path).unwrap();
        // Reading opens and closes another descriptor: the lock stays.
        assert_eq!(std::fs::read(&path).unwrap(), b"lock");
        assert!(matches!(StoreLock::take(&path), Err(OpenError::Locked { .. })));
        drop(first);
        StoreLock::take(&path).unwrap();
    }
}
