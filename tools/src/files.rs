//! Folders of mapped files, read by position: commit log, consume queues and their extensions.
//!
//! Nothing is mapped: a file that a broker removes or cuts short at this moment gives an error or fewer bytes, not a
//! signal. A bounded number of files is open.

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::unistd::{Whence, lseek};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const OPEN_COUNT_MAX: usize = 128;

/// One file of a row, named by the offset of its first byte.
#[derive(Debug, Clone)]
pub struct Segment {
    pub start: u64,
    pub bytes: u64,
    pub path: PathBuf,
}

impl Segment {
    pub fn end(&self) -> u64 {
        self.start + self.bytes
    }
}

/// The files of a folder by offset, and what does not belong there.
#[derive(Default)]
pub struct Folder {
    pub segments: Vec<Segment>,
    pub odd: Vec<(PathBuf, &'static str)>,
}

/// Names the path in an error.
pub fn failed(path: &Path) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Sorted; none when there is no such folder.
pub fn list(dir: &Path) -> io::Result<Vec<(PathBuf, fs::Metadata)>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(failed(dir))?,
    };
    let mut all = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed(dir))?.path();
        match fs::metadata(&path) {
            Ok(metadata) => all.push((path, metadata)),
            // Removed by a broker since it was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(&path)(error)),
        }
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(all)
}

pub fn folder(dir: &Path) -> io::Result<Folder> {
    let mut folder = Folder::default();
    for (path, metadata) in list(dir)? {
        if metadata.is_dir() {
            folder.odd.push((path, "a folder among the files; a 4.9 broker does not start"));
            continue;
        }
        match path.file_name().and_then(offset_of_name) {
            Some(start) => folder.segments.push(Segment { start, bytes: metadata.len(), path }),
            None => folder.odd.push((path, "the name is not 20 digits of an offset; a broker does not start")),
        }
    }
    Ok(folder)
}

fn offset_of_name(name: &OsStr) -> Option<u64> {
    let name = name.to_str()?;
    let is_digits = name.len() == 20 && name.bytes().all(|byte| byte.is_ascii_digit());
    is_digits.then(|| name.parse().ok()).flatten().filter(|&offset| offset <= i64::MAX as u64 / 2)
}

/// The segment that holds the byte at `offset`.
pub fn find(segments: &[Segment], offset: u64) -> Option<&Segment> {
    let behind = segments.partition_point(|segment| segment.start <= offset);
    segments[..behind].last().filter(|segment| offset < segment.end())
}

#[derive(Default)]
pub struct Reader {
    open: HashMap<PathBuf, File>,
}

impl Reader {
    /// `None` when a broker has removed the file since it was listed.
    fn file(&mut self, path: &Path) -> io::Result<Option<&File>> {
        if !self.open.contains_key(path) {
            if self.open.len() >= OPEN_COUNT_MAX {
                self.open.clear();
            }
            match File::open(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                other => self.open.insert(path.to_path_buf(), other.map_err(failed(path))?),
            };
        }
        Ok(self.open.get(path))
    }

    /// Fills `bytes` from `position` on as far as the file reaches; how many.
    pub fn read_at(&mut self, path: &Path, position: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let Some(file) = self.file(path)? else { return Ok(0) };
        let mut filled = 0;
        while filled < bytes.len() {
            match file.read_at(&mut bytes[filled..], position + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(path)(error)),
            }
        }
        Ok(filled)
    }

    /// The first position from `position` on that is not in a hole; `None` when only a hole is left. Most files of a
    /// store are sparse: a hundred thousand queues of one message would be 600 GB of zeros to read.
    pub fn data_from(&mut self, path: &Path, position: u64) -> io::Result<Option<u64>> {
        let Some(file) = self.file(path)? else { return Ok(None) };
        match lseek(file, position as i64, Whence::SeekData) {
            Ok(found) => Ok(Some(found as u64)),
            Err(Errno::ENXIO) => Ok(None),
            // A file system that does not know of holes.
            Err(_) => Ok(Some(position)),
        }
    }
}

/// Whether a broker, ours or Java's, has the store open. The lock is asked about, not taken.
pub fn is_locked(lock: &Path) -> io::Result<bool> {
    let file = match File::open(lock) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other.map_err(failed(lock))?,
    };
    let mut asked = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 1,
        l_pid: 0,
    };
    fcntl(&file, FcntlArg::F_GETLK(&mut asked)).map_err(|errno| failed(lock)(errno.into()))?;
    Ok(asked.l_type != libc::F_UNLCK as libc::c_short)
}
