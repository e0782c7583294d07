//! Consume queue extension files, written by a Java broker with `enableConsumeQueueExt`: read, never written.
//!
//! ```text
//! entry's tags code <= -2147483649: an address; minus i64::MIN it is a byte offset in the queue's extension
//! unit    | unit bytes 2 | tags code 8 | store time 8 | bit map bytes 2 | bit map |
//! ```
//! Without them such an entry would match no tag. A unit that is not there lets the message pass, as in Java; the client
//! tests the tag again.
//! Source: ConsumeQueueExt.java.

use crate::consume_queue::ConsumeQueue;
use crate::disk::{Disk, DiskFile};
use crate::mapped_file::parse_file_name;
use std::collections::HashMap;
use std::io;
use std::path::Path;

const ADDRESS_MAX: i64 = i32::MIN as i64 - 1;
const UNIT_BYTES_MIN: usize = 2 + 8 + 8 + 2;

/// Whether a tags code stands for a place in the extension.
pub(crate) fn is_address(code: i64) -> bool {
    code <= ADDRESS_MAX
}

#[derive(Default)]
pub(crate) struct ExtFiles {
    /// For each topic and queue id its files; how long they are, the files tell.
    queues: HashMap<(Box<str>, i32), Vec<ExtFile>>,
}

struct ExtFile {
    start: u64,
    bytes: u64,
    file: Box<dyn DiskFile>,
}

impl ExtFiles {
    /// What lies in `dir`; folders and files that are no queues are passed over.
    pub fn load(disk: &dyn Disk, dir: &Path) -> io::Result<ExtFiles> {
        let mut queues: HashMap<(Box<str>, i32), Vec<ExtFile>> = HashMap::new();
        for topic in disk.list(dir)? {
            let Some(name) = topic.name.to_str().filter(|_| topic.is_dir) else {
                continue;
            };
            for queue in disk.list(&dir.join(name))? {
                let Some(queue_id) = queue.name.to_str().and_then(|id| id.parse().ok()) else {
                    continue;
                };
                let dir = dir.join(name).join(&queue.name);
                let mut files = Vec::new();
                for found in disk.list(&dir)? {
                    if let Some(start) = parse_file_name(&found.name) {
                        files.push(ExtFile { start, bytes: found.bytes, file: disk.open(&dir.join(&found.name))? });
                    }
                }
                queues.insert((name.into(), queue_id), files);
            }
        }
        Ok(ExtFiles { queues })
    }

    /// The tags code that `code` stands for; `None` when its unit can not be read.
    pub fn resolve(&self, queue: &ConsumeQueue, code: i64) -> Option<i64> {
        if !is_address(code) {
            return Some(code);
        }
        let offset = code.wrapping_sub(i64::MIN) as u64;
        let files = self.queues.get(&(queue.topic.clone(), queue.queue_id))?;
        let file = files.iter().find(|file| (file.start..file.start + file.bytes).contains(&offset))?;
        let mut unit = [0; UNIT_BYTES_MIN];
        file.file.read_at(offset - file.start, &mut unit).ok()?;
        let unit_bytes = i16::from_be_bytes([unit[0], unit[1]]);
        let tags_code = i64::from_be_bytes(unit[2..10].try_into().expect("8 bytes"));
        (unit_bytes >= UNIT_BYTES_MIN as i16).then_some(tags_code)
    }
}
