//! The seam between the store and the disk: every call that can fail, block or be lost in a crash goes through here,
//! per file, per turn's write and per sync, never per record.
//!
//! A file of the store is always born whole: it gets its full length and its first bytes while it has no name, and
//! only then its name. Java refuses a store with a short or foreign file in it (4.9.7) and invents a queue entry in
//! an all-zero queue file, so no crash may leave either behind. Where the file system knows no nameless files the
//! file is made in a staging folder of ours and renamed.

use crate::error::OpenError;
use crate::lock::StoreLock;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, FallocateFlags, fallocate};
use nix::unistd::Whence;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A file in the making, where it has to be made in its own folder; one that a kill has left is of no use.
pub(crate) const STAGED_PREFIX: &str = ".ringmq-staged-";

/// What a folder holds.
pub(crate) struct Found {
    pub name: OsString,
    pub is_dir: bool,
    /// A pipe, a socket, a device: opening it may wait for ever.
    pub is_special: bool,
    pub bytes: u64,
}

/// How full the partition of a path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Space {
    pub used_bytes: u64,
    /// To us; what is kept for root is neither.
    pub free_bytes: u64,
}

impl Space {
    /// Percent in use, rounded up. Source: UtilAll.getDiskPartitionSpaceUsedPercent.
    pub fn used_percent(&self) -> u8 {
        let all = (u128::from(self.used_bytes) + u128::from(self.free_bytes)).max(1);
        (u128::from(self.used_bytes) * 100).div_ceil(all) as u8
    }
}

/// Whether the blocks of a new file are taken at once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blocks {
    /// A full disk is an error of the creation, never of a later write or a fault in the mapping.
    Taken,
    /// A full disk is an error of the write. For files of which there are many and most stay short.
    Sparse,
}

/// A new file: zeros, with `content` from its start on.
pub(crate) struct NewFile<'a> {
    pub path: &'a Path,
    /// Where it may be made when it can not be made without a name.
    pub staging: &'a Path,
    pub bytes: u64,
    pub blocks: Blocks,
    pub content: &'a [u8],
}

pub(crate) trait Disk: Send + Sync {
    /// A folder's content sorted by name; empty when the folder does not exist.
    fn list(&self, dir: &Path) -> io::Result<Vec<Found>>;
    fn create_dirs(&self, dir: &Path) -> io::Result<()>;
    /// A file that nobody can find yet, and that is gone with the process unless [`DiskFile::name`] follows.
    fn create_nameless(&self, new: &NewFile<'_>) -> io::Result<Box<dyn DiskFile>>;
    /// Fails when `path` exists.
    fn create(&self, new: &NewFile<'_>) -> io::Result<Box<dyn DiskFile>> {
        let file = self.create_nameless(new)?;
        file.name(new.path)?;
        Ok(file)
    }
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// The whole file, `None` when it does not exist.
    fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>>;
    /// Replaces a small file so that a crash leaves the old or the new content; on the device when this returns.
    fn replace(&self, path: &Path, content: &[u8]) -> io::Result<()>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Missing is fine.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Missing is fine.
    fn remove_dir_all(&self, dir: &Path) -> io::Result<()>;
    /// Makes names in `dir` survive a power loss.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Everything of the file system that holds `dir`, data and names: cheaper than thousands of files one by one.
    fn sync_all(&self, dir: &Path) -> io::Result<()>;
    /// Of the partition that holds `path`.
    fn space(&self, path: &Path) -> io::Result<Space>;
    /// Makes the file `path` if need be and locks it against other stores.
    fn lock(&self, path: &Path) -> Result<StoreLock, OpenError>;
}

pub(crate) trait DiskFile: Send + Sync {
    /// Puts a nameless file where it belongs. Fails when `path` exists.
    fn name(&self, path: &Path) -> io::Result<()>;
    /// All of `bytes` or an error; after an error any part may have been written.
    fn write_at(&self, position: u64, bytes: &[u8]) -> io::Result<()>;
    fn read_at(&self, position: u64, out: &mut [u8]) -> io::Result<()>;
    /// fdatasync. An error is final: what it covered may be lost although a later call succeeds.
    fn sync(&self) -> io::Result<()>;
    /// Writes its content once more, byte for byte, holes left out: what the kernel holds as clean is dirty again.
    fn rewrite(&self) -> io::Result<()>;
    /// Makes `[from, to)` read as zeros. Touches nothing, not even the mtime, where it does so already.
    /// Returns how many bytes from `from` on there were up to the last that was not zero.
    fn zero(&self, from: u64, to: u64) -> io::Result<u64>;
    /// Position behind the last byte of `[from, to)` that is not zero, `from` when all are.
    fn data_end(&self, from: u64, to: u64) -> io::Result<u64>;
    /// Lengthens a short file with zeros.
    fn extend(&self, bytes: u64) -> io::Result<()>;
    fn bytes(&self) -> io::Result<u64>;
    /// The mtime, in ms since 1970.
    fn modified_ms(&self) -> io::Result<u64>;
    fn map(&self, bytes: usize) -> io::Result<memmap2::MmapRaw>;
    /// As `map`, to be stored to. Takes the blocks that the file lacks: a store must not meet a full disk.
    fn map_writable(&self, bytes: usize) -> io::Result<memmap2::MmapRaw>;
    /// Bytes were stored through the mapping. For simulated disks only, which may die here.
    fn stored(&self, _position: u64, _bytes: u64) {}
}

/// The machine's file systems.
pub(crate) struct RealDisk;

static STAGED: AtomicU64 = AtomicU64::new(0);

fn fill(file: &File, new: &NewFile<'_>) -> io::Result<()> {
    file.set_len(new.bytes)?;
    if new.blocks == Blocks::Taken {
        take_blocks(file, new.bytes)?;
    }
    file.write_all_at(new.content, 0)
}

fn take_blocks(file: &File, bytes: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, bytes as i64) {
        // A file system without the call: a full disk then shows at the write.
        Ok(()) | Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// For a new file of folder `own`. A file can not be renamed to another file system.
fn staged_path(staging: &Path, own: &Path) -> io::Result<PathBuf> {
    let number = STAGED.fetch_add(1, Ordering::Relaxed);
    let is_elsewhere = std::fs::metadata(own)?.dev() != std::fs::metadata(staging)?.dev();
    Ok(if is_elsewhere { own.join(format!("{STAGED_PREFIX}{number}")) } else { staging.join(number.to_string()) })
}

fn dir_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("."))
}

impl Disk for RealDisk {
    fn list(&self, dir: &Path) -> io::Result<Vec<Found>> {
        let entries = match std::fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(e),
        };
        let mut out = Vec::new();
        for entry in entries {
            let entry = entry?;
            // Follows links: a queue folder or a log file may have been moved and linked.
            let meta = std::fs::metadata(entry.path()).or_else(|_| entry.metadata())?;
            let (is_dir, is_special) = (meta.is_dir(), !meta.is_dir() && !meta.is_file());
            // A link that leads nowhere is met where it is opened.
            let is_special = is_special && !meta.is_symlink();
            out.push(Found { name: entry.file_name(), is_dir, is_special, bytes: meta.len() });
        }
        out.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(out)
    }

    fn create_dirs(&self, dir: &Path) -> io::Result<()> {
        std::fs::create_dir_all(dir)
    }

    fn create_nameless(&self, new: &NewFile<'_>) -> io::Result<Box<dyn DiskFile>> {
        let mut nameless = OpenOptions::new();
        nameless.read(true).write(true).custom_flags(nix::libc::O_TMPFILE);
        if let Ok(file) = nameless.open(dir_of(new.path))
            && Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())).exists()
        {
            fill(&file, new)?;
            return Ok(Box::new(RealFile { file, staged: None }));
        }
        // No such files on this file system, or no /proc here: by the staging folder.
        std::fs::create_dir_all(new.staging)?;
        let staged = staged_path(new.staging, dir_of(new.path))?;
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&staged)?;
        if let Err(e) = fill(&file, new) {
            let _ = std::fs::remove_file(&staged);
            return Err(e);
        }
        Ok(Box::new(RealFile { file, staged: Some(staged) }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Box::new(RealFile { file, staged: None }))
    }

    fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        match std::fs::read(path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn replace(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let mut staged = path.as_os_str().to_owned();
        staged.push(".tmp");
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&staged)?;
        file.write_all_at(content, 0)?;
        file.sync_all()?;
        std::fs::rename(&staged, path)?;
        self.sync_dir(dir_of(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        match std::fs::remove_file(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        match std::fs::remove_dir_all(dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    fn sync_all(&self, dir: &Path) -> io::Result<()> {
        Ok(nix::unistd::syncfs(File::open(dir)?)?)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        let stat = nix::sys::statvfs::statvfs(path)?;
        let unit = stat.fragment_size();
        let used_bytes = stat.blocks().saturating_sub(stat.blocks_free()) * unit;
        Ok(Space { used_bytes, free_bytes: stat.blocks_available() * unit })
    }

    fn lock(&self, path: &Path) -> Result<StoreLock, OpenError> {
        StoreLock::take(path)
    }
}

struct RealFile {
    file: File,
    /// Where it was made, if it could not be made without a name.
    staged: Option<PathBuf>,
}

/// Above this a range is zeroed by the file system instead of by writing.
const ZERO_BY_WRITING_BYTES_MAX: u64 = 1 << 20;

impl DiskFile for RealFile {
    fn name(&self, path: &Path) -> io::Result<()> {
        if let Some(staged) = &self.staged {
            if path.try_exists()? {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            return std::fs::rename(staged, path);
        }
        let from = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        match nix::unistd::linkat(AT_FDCWD, from.as_str(), AT_FDCWD, path, AtFlags::AT_SYMLINK_FOLLOW) {
            Err(Errno::EEXIST) => Err(io::ErrorKind::AlreadyExists.into()),
            other => Ok(other?),
        }
    }

    fn write_at(&self, position: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, position)
    }

    fn read_at(&self, position: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, position)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn rewrite(&self) -> io::Result<()> {
        let end = self.bytes()?;
        let mut buffer = vec![0; 1 << 20];
        let mut position = 0;
        while let Some((data, hole)) = self.data_from(position, end)? {
            position = data;
            while position < hole {
                let step = (hole - position).min(buffer.len() as u64) as usize;
                self.file.read_exact_at(&mut buffer[..step], position)?;
                self.file.write_all_at(&buffer[..step], position)?;
                position += step as u64;
            }
        }
        Ok(())
    }

    fn zero(&self, from: u64, to: u64) -> io::Result<u64> {
        let Some((first, last)) = self.data_bounds(from, to)? else {
            return Ok(0);
        };
        let bytes = last + 1 - first;
        let by_file_system = bytes > ZERO_BY_WRITING_BYTES_MAX && {
            let flags = FallocateFlags::FALLOC_FL_ZERO_RANGE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            fallocate(&self.file, flags, first as i64, bytes as i64).is_ok()
        };
        if !by_file_system {
            let zeros = vec![0; bytes.min(256 << 10) as usize];
            let mut position = first;
            while position <= last {
                let step = (last + 1 - position).min(zeros.len() as u64);
                self.file.write_all_at(&zeros[..step as usize], position)?;
                position += step;
            }
        }
        Ok(last + 1 - from)
    }

    fn data_end(&self, from: u64, to: u64) -> io::Result<u64> {
        Ok(self.data_bounds(from, to)?.map_or(from, |(_, last)| last + 1))
    }

    fn extend(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)?;
        take_blocks(&self.file, bytes)
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn modified_ms(&self) -> io::Result<u64> {
        let since = self.file.metadata()?.modified()?.duration_since(std::time::UNIX_EPOCH);
        Ok(since.map_or(0, |since| since.as_millis() as u64))
    }

    fn map(&self, bytes: usize) -> io::Result<memmap2::MmapRaw> {
        memmap2::MmapOptions::new().len(bytes).map_raw_read_only(&self.file)
    }

    fn map_writable(&self, bytes: usize) -> io::Result<memmap2::MmapRaw> {
        take_blocks(&self.file, bytes as u64)?;
        memmap2::MmapOptions::new().len(bytes).map_raw(&self.file)
    }
}

impl RealFile {
    /// The first piece of `[from, to)` that is neither a hole nor blocks never written, as far as the file system tells.
    fn data_from(&self, from: u64, to: u64) -> io::Result<Option<(u64, u64)>> {
        if from >= to {
            return Ok(None);
        }
        let data = match nix::unistd::lseek64(&self.file, from as i64, Whence::SeekData) {
            Ok(data) => data as u64,
            Err(Errno::ENXIO) => return Ok(None),
            Err(_) => from,
        };
        let hole = match nix::unistd::lseek64(&self.file, data as i64, Whence::SeekHole) {
            Ok(hole) if hole as u64 > data => hole as u64,
            _ => to,
        };
        Ok((data < to).then_some((data, hole.min(to))))
    }

    /// Positions of the first and the last byte of `[from, to)` that is not zero. Holes and blocks never written are
    /// passed over without reading them: a fresh log file has a gigabyte of those.
    fn data_bounds(&self, from: u64, to: u64) -> io::Result<Option<(u64, u64)>> {
        let mut bounds: Option<(u64, u64)> = None;
        let mut buffer = vec![0; 64 << 10];
        let mut position = from;
        while let Some((data, end)) = self.data_from(position, to)? {
            position = data;
            while position < end {
                let step = (end - position).min(buffer.len() as u64) as usize;
                let chunk = &mut buffer[..step];
                self.file.read_exact_at(chunk, position)?;
                let first = chunk.iter().position(|byte| *byte != 0);
                let last = chunk.iter().rposition(|byte| *byte != 0);
                if let (Some(first), Some(last)) = (first, last) {
                    let first = bounds.map_or(position + first as u64, |(first, _)| first);
                    bounds = Some((first, position + last as u64));
                }
                position += step as u64;
            }
        }
        Ok(bounds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new<'a>(path: &'a Path, staging: &'a Path, bytes: u64, blocks: Blocks, content: &'a [u8]) -> NewFile<'a> {
        NewFile { path, staging, bytes, blocks, content }
    }

    #[test]
    fn a_file_in_the_making_is_where_it_can_be_renamed_from() {
        let (dir, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        assert!(staged_path(dir.path(), own.path()).unwrap().starts_with(dir.path()));
        if let Ok(elsewhere) = tempfile::tempdir_in("/dev/shm") {
            let staged = staged_path(dir.path(), elsewhere.path()).unwrap();
            assert!(staged.starts_with(elsewhere.path()), "{staged:?}");
            assert!(staged.file_name().unwrap().to_str().unwrap().starts_with(STAGED_PREFIX));
        }
    }

    #[test]
    fn a_file_is_born_whole_and_never_replaces_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let staging = dir.path().join("staging");
        for blocks in [Blocks::Taken, Blocks::Sparse] {
            let file = RealDisk.create(&new(&path, &staging, 4096, blocks, b"xyz")).unwrap();
            assert_eq!(file.bytes().unwrap(), 4096);
            let read = std::fs::read(&path).unwrap();
            assert_eq!(read.len(), 4096);
            assert_eq!(&read[..5], b"xyz\0\0");
            let again = RealDisk.create(&new(&path, &staging, 4096, blocks, b"q"));
            assert_eq!(again.err().map(|e| e.kind()), Some(io::ErrorKind::AlreadyExists));
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn a_partition_is_as_full_as_java_says() {
        // used, free, percent
        for (used_bytes, free_bytes, want) in
            [(0, 0, 0), (0, 10, 0), (1, 999, 1), (90, 10, 90), (901, 99, 91), (u64::MAX, 0, 100)]
        {
            assert_eq!(Space { used_bytes, free_bytes }.used_percent(), want, "{used_bytes} {free_bytes}");
        }
        assert!(RealDisk.space(Path::new("/")).unwrap().used_bytes > 0);
    }

    #[test]
    fn zeroing_leaves_what_is_zero_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let file = RealDisk.create(&new(&path, dir.path(), 8 << 20, Blocks::Taken, b"")).unwrap();
        assert_eq!(file.zero(0, 8 << 20).unwrap(), 0);
        // written at, zeroed from, bytes that held something
        for (at, from, held) in [(5000, 5000, 3), (5000, 100, 4903), (7 << 20, 4096, (7 << 20) + 3 - 4096)] {
            file.write_at(at, b"abc").unwrap();
            if from != at {
                file.write_at(from, b"d").unwrap();
            }
            assert_eq!(file.zero(from, 8 << 20).unwrap(), held, "at {at} from {from}");
            assert!(std::fs::read(&path).unwrap().iter().all(|byte| *byte == 0));
        }
    }
}
