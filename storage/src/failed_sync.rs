//! `ringmq-sync-failed`: a sync of a log, queue or index file has failed, and no start has seen to it since.
//!
//! After such a failure the kernel may hold pages as clean that never reached the device: it reads them back, and no later
//! sync writes them. A new process sees what a power loss would take away. So a start that finds the note writes once
//! more, byte for byte, whatever may lie in such pages, syncs it, and only then takes the note away.

use crate::disk::Disk;
use crate::mapped_file::MappedFile;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn path(root: &Path) -> PathBuf {
    root.join("ringmq-sync-failed")
}

/// On a disk that fails this may fail, too; it is tried.
pub(crate) fn note(disk: &dyn Disk, root: &Path) {
    if let Err(e) = disk.replace(&path(root), b"") {
        let path = path(root);
        tracing::error!(path = %path.display(), error = %e, "not written: before the next start, restart the machine");
    }
}

pub(crate) fn is_noted(disk: &dyn Disk, root: &Path) -> io::Result<bool> {
    Ok(disk.read(&path(root))?.is_some())
}

/// Writes the queues, the index and the files of `log` anew. All of it is on the device when this returns.
pub(crate) fn rewrite(disk: &dyn Disk, root: &Path, log: &[Arc<MappedFile>]) -> io::Result<()> {
    for file in log {
        file.file.rewrite()?;
        file.file.sync()?;
    }
    for topic in disk.list(&root.join("consumequeue"))? {
        let topic = root.join("consumequeue").join(topic.name);
        for queue in disk.list(&topic)? {
            rewrite_folder(disk, &topic.join(queue.name))?;
        }
    }
    rewrite_folder(disk, &root.join("index"))?;
    disk.sync_all(root)
}

fn rewrite_folder(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    for found in disk.list(dir)? {
        if !found.is_dir {
            disk.open(&dir.join(found.name))?.rewrite()?;
        }
    }
    Ok(())
}

pub(crate) fn remove(disk: &dyn Disk, root: &Path) -> io::Result<()> {
    disk.remove_file(&path(root))
}
