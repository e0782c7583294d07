//! A disk in memory, with two images of everything: what the kernel shows and what the device holds.
//!
//! ```text
//! file     live: a memfd, so that it can be mapped      durable: bytes
//!          a sector of 512 bytes is dirty when the two differ, however it was written (call or mapping)
//! folder   live: names                                  durable: names     pending: changes in between, in order
//! kill         live stays, buffers and nameless files go
//! power loss   durable, with any of the dirty sectors and pending changes as a seed says
//! ```
//! What a power loss may do here is as much as a Linux file system may do to us. The store relies on this much:
//! - a sector is written whole or not at all;
//! - the length of a new file is durable with its name (set before it), its bytes are not;
//! - changes of one folder reach the device in their order, those of different folders in any; a rename is one change;
//! - fdatasync makes a file's bytes durable and not its name, fsync of a folder the names in it and not their folders.
//!
//! ext4, XFS and btrfs keep the order of all name changes; only that of one folder is needed: recovery removes files from
//! the highest down, and a hole among them would be refused by the next start.
//!
//! Every call that changes something is counted. At a chosen one the process dies (the call is done in part, all later
//! ones fail), or some calls fail as on a full or broken disk. Meanwhile dirty sectors go to the device by themselves, as
//! the kernel writes them back, so that the device holds older versions, too.

use super::Rng;
use crate::disk::{Disk, DiskFile, Found, NewFile, Space};
use crate::error::OpenError;
use crate::lock::StoreLock;
use nix::libc::{EIO, ENOSPC};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const SECTOR_BYTES: usize = 512;
const ROOT: usize = 0;
/// One call in so many finds the kernel writing back.
const WRITE_BACK_PARTS: u64 = 8;

type Names = BTreeMap<OsString, usize>;

/// What goes wrong, counted in calls that change something, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Trouble {
    #[default]
    None,
    Death {
        at: u64,
    },
    /// ENOSPC to what takes room.
    FullDisk {
        at: u64,
        count: u64,
    },
    /// EIO to the first sync from there on.
    FailedSync {
        at: u64,
    },
}

/// What a power loss leaves of what was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tear {
    Nothing,
    All,
    Some(u64),
}

enum Node {
    Dir { live: Names, durable: Names },
    File(Inode),
}

struct Inode {
    live: File,
    bytes: u64,
    durable: Vec<u8>,
    /// What a failed sync covered: as long as it is not written again no later one brings it to the device.
    forsaken: Option<Vec<u8>>,
    modified_ms: u64,
}

impl Inode {
    fn new(content: &[u8], bytes: u64, modified_ms: u64) -> io::Result<Inode> {
        let live = File::from(memfd_create(c"sim", MFdFlags::MFD_CLOEXEC)?);
        live.set_len(bytes)?;
        live.write_all_at(content, 0)?;
        Ok(Inode { live, bytes, durable: vec![0; bytes as usize], forsaken: None, modified_ms })
    }

    fn content(&self) -> Vec<u8> {
        let mut content = vec![0; self.bytes as usize];
        self.live.read_exact_at(&mut content, 0).expect("a memfd of that length");
        content
    }

    /// Sectors that were written again are dirty again, whatever they hold.
    fn take_back(&mut self, written: Range<usize>) {
        let Some(forsaken) = &mut self.forsaken else { return };
        for sector in written.start / SECTOR_BYTES..written.end.div_ceil(SECTOR_BYTES) {
            let mut live = [0];
            self.live.read_exact_at(&mut live, (sector * SECTOR_BYTES) as u64).expect("within the file");
            forsaken[sector * SECTOR_BYTES] = !live[0];
        }
    }

    /// The sectors for which `keep` says yes become durable, and the length.
    fn write_back(&mut self, mut keep: impl FnMut(usize) -> bool) {
        let content = self.content();
        self.durable.resize(content.len(), 0);
        for (sector, live) in content.chunks(SECTOR_BYTES).enumerate() {
            let at = sector * SECTOR_BYTES;
            let range = at..at + live.len();
            let is_dirty = self.durable[range.clone()] != *live;
            let is_forsaken = self.forsaken.as_ref().is_some_and(|forsaken| forsaken.get(range.clone()) == Some(live));
            if is_dirty && !is_forsaken && keep(sector) {
                self.durable[range].copy_from_slice(live);
            }
        }
    }
}

/// Changes of names that are durable together or not at all.
#[derive(Clone)]
struct NameChange {
    /// Folder, name, and what it stands for from here on.
    parts: Vec<(usize, OsString, Option<usize>)>,
}

pub(crate) struct Machine {
    nodes: Vec<Node>,
    pending: Vec<NameChange>,
    rng: Rng,
    trouble: Trouble,
    call_count: u64,
    is_dead: bool,
    now_ms: u64,
    staged_count: u64,
    /// Whether this file system knows files without a name.
    has_nameless: bool,
    used_percent: u8,
    has_failed_sync: bool,
}

/// Runs in the middle of a sync, as if another thread did.
type DuringSync = Box<dyn FnMut() + Send>;

#[derive(Clone)]
pub(crate) struct SimDisk {
    machine: Arc<Mutex<Machine>>,
    during_sync: Arc<Mutex<Option<DuringSync>>>,
}

fn dead() -> io::Error {
    io::Error::other("the process is dead")
}

impl Machine {
    /// How many of `units` are done, and what the call answers then.
    fn begin(&mut self, units: usize, takes_room: bool) -> (usize, io::Result<()>) {
        if self.is_dead {
            return (0, Err(dead()));
        }
        self.call_count += 1;
        if self.rng.one_in(WRITE_BACK_PARTS) {
            self.write_back();
        }
        match self.trouble {
            Trouble::Death { at } if self.call_count >= at => {
                self.is_dead = true;
                (self.rng.below(units as u64 + 1) as usize, Err(dead()))
            }
            Trouble::FullDisk { at, count } if takes_room && (at..at + count).contains(&self.call_count) => {
                (self.rng.below(units.max(1) as u64) as usize, Err(io::Error::from_raw_os_error(ENOSPC)))
            }
            _ => (units, Ok(())),
        }
    }

    fn write_back(&mut self) {
        let mut rng = self.rng.clone();
        let first = rng.below(self.nodes.len() as u64) as usize;
        let count = self.nodes.len();
        let file = (first..count).chain(0..first).find(|id| matches!(self.nodes[*id], Node::File(_)));
        if let Some(Node::File(inode)) = file.map(|id| &mut self.nodes[id]) {
            inode.write_back(|_| rng.one_in(2));
        }
        if rng.one_in(2) {
            let count = rng.below(self.pending.len() as u64 + 1) as usize;
            let done: Vec<_> = self.pending.drain(..count).collect();
            done.iter().for_each(|change| self.settle(change));
        }
        self.rng = rng;
    }

    fn node(&self, path: &Path) -> Option<usize> {
        path.components().try_fold(ROOT, |id, component| match component {
            Component::Normal(name) => match &self.nodes[id] {
                Node::Dir { live, .. } => live.get(name).copied(),
                Node::File(_) => None,
            },
            _ => Some(id),
        })
    }

    fn found(&self, path: &Path) -> io::Result<usize> {
        self.node(path).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, path.display().to_string()))
    }

    fn place(&self, path: &Path) -> io::Result<(usize, OsString)> {
        let dir = self.found(path.parent().expect("no file is the root"))?;
        Ok((dir, path.file_name().expect("no file is the root").to_owned()))
    }

    fn live(&mut self, dir: usize) -> &mut Names {
        match &mut self.nodes[dir] {
            Node::Dir { live, .. } => live,
            Node::File(_) => panic!("not a folder"),
        }
    }

    fn file(&mut self, id: usize) -> &mut Inode {
        match &mut self.nodes[id] {
            Node::File(inode) => inode,
            Node::Dir { .. } => panic!("not a file"),
        }
    }

    fn change(&mut self, parts: Vec<(usize, OsString, Option<usize>)>) {
        for (dir, name, now) in &parts {
            put(self.live(*dir), name, *now);
        }
        self.pending.push(NameChange { parts });
    }

    /// Makes a change durable.
    fn settle(&mut self, change: &NameChange) {
        for (dir, name, now) in &change.parts {
            if let Node::Dir { durable, .. } = &mut self.nodes[*dir] {
                put(durable, name, *now);
            }
        }
    }

    fn sync_dir(&mut self, dir: usize) {
        // With what must come before it.
        let mut dirs = BTreeSet::from([dir]);
        let mut is_taken = vec![false; self.pending.len()];
        for (index, change) in self.pending.iter().enumerate().rev() {
            if change.parts.iter().any(|(dir, ..)| dirs.contains(dir)) {
                dirs.extend(change.parts.iter().map(|(dir, ..)| *dir));
                is_taken[index] = true;
            }
        }
        let mut taken = is_taken.iter();
        let (done, left) = self.pending.drain(..).partition(|_| *taken.next().expect("one for each"));
        self.pending = left;
        let done: Vec<NameChange> = done;
        done.iter().for_each(|change| self.settle(change));
    }

    fn make_dirs(&mut self, path: &Path) -> io::Result<()> {
        let mut at = PathBuf::new();
        for component in path.components() {
            at.push(component);
            if self.node(&at).is_none() {
                let (done, result) = self.begin(1, true);
                if done == 1 {
                    let (dir, name) = self.place(&at)?;
                    self.nodes.push(Node::Dir { live: Names::new(), durable: Names::new() });
                    let id = self.nodes.len() - 1;
                    self.change(vec![(dir, name, Some(id))]);
                }
                result?;
            }
        }
        Ok(())
    }

    /// Nobody finds it yet.
    fn make_file(&mut self, content: &[u8], bytes: u64) -> io::Result<usize> {
        self.nodes.push(Node::File(Inode::new(content, bytes, self.now_ms)?));
        Ok(self.nodes.len() - 1)
    }

    fn write(&mut self, id: usize, position: u64, bytes: &[u8]) -> io::Result<()> {
        let (done, result) = self.begin(bytes.len(), true);
        let now_ms = self.now_ms;
        let inode = self.file(id);
        assert!(position + bytes.len() as u64 <= inode.bytes, "a file of the store never grows by a write");
        // A kill stops a write between two pages, and a sector is the more cruel page.
        let end =
            if done < bytes.len() { (position as usize + done) / SECTOR_BYTES * SECTOR_BYTES } else { usize::MAX };
        let done = done.min(end.saturating_sub(position as usize));
        if done > 0 {
            inode.live.write_all_at(&bytes[..done], position)?;
            inode.modified_ms = now_ms;
            inode.take_back(position as usize..position as usize + done);
        }
        result
    }

    fn sync_content(&mut self, id: usize, covered: Option<Vec<u8>>) -> io::Result<()> {
        let (done, result) = self.begin(1, false);
        let is_failed = matches!(self.trouble, Trouble::FailedSync { at } if result.is_ok() && self.call_count >= at);
        if is_failed {
            (self.trouble, self.has_failed_sync) = (Trouble::None, true);
            let inode = self.file(id);
            inode.forsaken = Some(inode.content());
            return Err(io::Error::from_raw_os_error(EIO));
        }
        if done == 1 {
            let inode = self.file(id);
            match covered {
                // What was written meanwhile is not covered.
                Some(covered) => {
                    let live = inode.content();
                    let is_covered = |sector: usize| {
                        let range = sector * SECTOR_BYTES..live.len().min((sector + 1) * SECTOR_BYTES);
                        covered[range.clone()] == live[range]
                    };
                    let late: Vec<bool> = (0..live.len().div_ceil(SECTOR_BYTES)).map(|s| !is_covered(s)).collect();
                    inode.write_back(|sector| !late[sector]);
                    for (sector, _) in late.iter().enumerate().filter(|(_, is_late)| **is_late) {
                        let range = sector * SECTOR_BYTES..live.len().min((sector + 1) * SECTOR_BYTES);
                        inode.durable[range.clone()].copy_from_slice(&covered[range]);
                    }
                }
                None => inode.write_back(|_| true),
            }
        } else if result.is_err() {
            // Died in it: some of it is on the device.
            let mut rng = self.rng.clone();
            self.file(id).write_back(|_| rng.one_in(2));
            self.rng = rng;
        }
        result
    }

    fn unlink(&mut self, path: &Path) -> io::Result<()> {
        let (dir, name) = self.place(path)?;
        let (done, result) = self.begin(1, false);
        if done == 1 {
            self.change(vec![(dir, name, None)]);
        }
        result
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let id = self.found(from)?;
        let ((from_dir, from_name), (to_dir, to_name)) = (self.place(from)?, self.place(to)?);
        let (done, result) = self.begin(1, true);
        if done == 1 {
            self.change(vec![(from_dir, from_name, None), (to_dir, to_name, Some(id))]);
        }
        result
    }

    fn remove_tree(&mut self, path: &Path) -> io::Result<()> {
        let Some(id) = self.node(path) else { return Ok(()) };
        if let Node::Dir { live, .. } = &self.nodes[id] {
            let names: Vec<_> = live.keys().cloned().collect();
            for name in names {
                self.remove_tree(&path.join(name))?;
            }
        }
        self.unlink(path)
    }

    /// The machine that starts again with `nodes`.
    fn restarted(&self, nodes: Vec<Node>, pending: Vec<NameChange>, seed: u64) -> SimDisk {
        SimDisk::of(Machine {
            nodes,
            pending,
            rng: Rng::new(seed),
            trouble: Trouble::None,
            call_count: 0,
            is_dead: false,
            now_ms: self.now_ms,
            staged_count: self.staged_count,
            has_nameless: self.has_nameless,
            used_percent: self.used_percent,
            has_failed_sync: false,
        })
    }

    /// Which nodes a walk over the names that `names` gives comes by.
    fn reached<'m>(&'m self, names: impl Fn(usize) -> &'m Names) -> Vec<bool> {
        let mut is_reached = vec![false; self.nodes.len()];
        let mut left = vec![ROOT];
        while let Some(id) = left.pop() {
            is_reached[id] = true;
            if matches!(self.nodes[id], Node::Dir { .. }) {
                left.extend(names(id).values());
            }
        }
        is_reached
    }

    fn kill(&self, seed: u64) -> SimDisk {
        // Whatever a pending change could bring back stays, too, and so do pages that the kernel will not write again.
        let nodes = self.nodes.iter().map(|node| match node {
            Node::Dir { live, durable } => Node::Dir { live: live.clone(), durable: durable.clone() },
            Node::File(inode) => {
                let copy = Inode::new(&inode.content(), inode.bytes, inode.modified_ms).expect("memory");
                Node::File(Inode { durable: inode.durable.clone(), forsaken: inode.forsaken.clone(), ..copy })
            }
        });
        self.restarted(nodes.collect(), self.pending.clone(), seed)
    }

    fn lose_power(&self, tear: Tear) -> SimDisk {
        let mut rng = Rng::new(match tear {
            Tear::Some(seed) => seed,
            Tear::Nothing | Tear::All => 0,
        });
        let mut names: Vec<Names> = self
            .nodes
            .iter()
            .map(|node| match node {
                Node::Dir { durable, .. } => durable.clone(),
                Node::File(_) => Names::new(),
            })
            .collect();
        // A folder's changes are lost from the first lost one on.
        let mut is_closed = BTreeSet::new();
        let parts = 1 + rng.below(8);
        for change in &self.pending {
            let is_kept = match tear {
                Tear::Nothing => false,
                Tear::All => true,
                Tear::Some(_) => !rng.one_in(parts),
            };
            if is_kept && change.parts.iter().all(|(dir, ..)| !is_closed.contains(dir)) {
                for (dir, name, now) in &change.parts {
                    put(&mut names[*dir], name, *now);
                }
            } else {
                is_closed.extend(change.parts.iter().map(|(dir, ..)| *dir));
            }
        }
        let is_reached = self.reached(|id| &names[id]);
        let nodes = self.nodes.iter().enumerate().map(|(id, node)| match node {
            Node::Dir { .. } => Node::Dir { live: names[id].clone(), durable: names[id].clone() },
            Node::File(inode) if is_reached[id] => {
                let mut left = inode.durable.clone();
                if tear != Tear::Nothing {
                    let mut torn = Inode {
                        live: inode.live.try_clone().expect("a descriptor"),
                        durable: left,
                        forsaken: inode.forsaken.clone(),
                        ..*inode
                    };
                    let parts = 1 + rng.below(4);
                    torn.write_back(|_| tear == Tear::All || !rng.one_in(parts));
                    left = torn.durable;
                }
                let bytes = left.len() as u64;
                let made = Inode::new(&left, bytes, inode.modified_ms).expect("memory");
                Node::File(Inode { durable: left, ..made })
            }
            // Nobody comes by it any more.
            Node::File(_) => Node::Dir { live: Names::new(), durable: Names::new() },
        });
        self.restarted(nodes.collect(), Vec::new(), rng.next())
    }
}

fn put(names: &mut Names, name: &OsString, now: Option<usize>) {
    match now {
        Some(id) => names.insert(name.clone(), id),
        None => names.remove(name),
    };
}

impl SimDisk {
    pub fn new(seed: u64) -> SimDisk {
        let mut rng = Rng::new(seed);
        let has_nameless = !rng.one_in(4);
        SimDisk::of(Machine {
            nodes: vec![Node::Dir { live: Names::new(), durable: Names::new() }],
            pending: Vec::new(),
            rng,
            trouble: Trouble::None,
            call_count: 0,
            is_dead: false,
            now_ms: 0,
            staged_count: 0,
            has_nameless,
            used_percent: 50,
            has_failed_sync: false,
        })
    }

    fn of(machine: Machine) -> SimDisk {
        SimDisk { machine: Arc::new(Mutex::new(machine)), during_sync: Arc::default() }
    }

    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self, id: usize, staged: Option<PathBuf>) -> Box<dyn DiskFile> {
        Box::new(SimFile { disk: self.clone(), id, staged })
    }

    pub fn set_trouble(&self, trouble: Trouble) {
        self.machine().trouble = trouble;
    }

    pub fn set_now(&self, now_ms: u64) {
        self.machine().now_ms = now_ms;
    }

    /// What the next syncs of files find happening beside them.
    pub fn set_during_sync(&self, act: Option<DuringSync>) {
        *self.during_sync.lock().unwrap_or_else(PoisonError::into_inner) = act;
    }

    pub fn is_dead(&self) -> bool {
        self.machine().is_dead
    }

    pub fn has_failed_sync(&self) -> bool {
        self.machine().has_failed_sync
    }

    /// Calls that changed something, or tried to.
    pub fn call_count(&self) -> u64 {
        self.machine().call_count
    }

    /// A machine whose process was killed now. This one goes on.
    pub fn after_kill(&self, seed: u64) -> SimDisk {
        self.machine().kill(seed)
    }

    pub fn after_power_loss(&self, tear: Tear) -> SimDisk {
        self.machine().lose_power(tear)
    }

    /// Every file and what is in it.
    pub fn contents(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let machine = self.machine();
        let mut contents = BTreeMap::new();
        let mut left = vec![(PathBuf::from("/"), ROOT)];
        while let Some((path, id)) = left.pop() {
            match &machine.nodes[id] {
                Node::Dir { live, .. } => left.extend(live.iter().map(|(name, id)| (path.join(name), *id))),
                Node::File(inode) => {
                    contents.insert(path, inode.content());
                }
            }
        }
        contents
    }

    /// Turns one bit of some file, on the device, too. Returns where.
    pub fn rot(&self, rng: &mut Rng) -> Option<(PathBuf, u64)> {
        let contents = self.contents();
        let held: Vec<_> = contents.iter().filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0)).collect();
        let (path, bytes) = held.get(rng.below(held.len().max(1) as u64) as usize)?;
        let used: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
        let at = used[rng.below(used.len() as u64) as usize];
        let turned = bytes[at] ^ (1 << rng.below(8));
        let mut machine = self.machine();
        let id = machine.node(path).expect("it was listed");
        let inode = machine.file(id);
        inode.live.write_all_at(&[turned], at as u64).expect("a memfd");
        inode.write_back(|_| true);
        Some(((*path).clone(), at as u64))
    }
}

impl Disk for SimDisk {
    fn list(&self, dir: &Path) -> io::Result<Vec<Found>> {
        let machine = self.machine();
        let Some(id) = machine.node(dir) else { return Ok(Vec::new()) };
        let Node::Dir { live, .. } = &machine.nodes[id] else {
            return Err(io::ErrorKind::NotADirectory.into());
        };
        let found = |(name, id): (&OsString, &usize)| match &machine.nodes[*id] {
            Node::Dir { .. } => Found { name: name.clone(), is_dir: true, is_special: false, bytes: 0 },
            Node::File(inode) => Found { name: name.clone(), is_dir: false, is_special: false, bytes: inode.bytes },
        };
        Ok(live.iter().map(found).collect())
    }

    fn create_dirs(&self, dir: &Path) -> io::Result<()> {
        self.machine().make_dirs(dir)
    }

    fn create_nameless(&self, new: &NewFile<'_>) -> io::Result<Box<dyn DiskFile>> {
        let mut machine = self.machine();
        if machine.has_nameless {
            machine.begin(1, true).1?;
            let id = machine.make_file(new.content, new.bytes)?;
            return Ok(self.handle(id, None));
        }
        machine.make_dirs(new.staging)?;
        machine.staged_count += 1;
        let staged = new.staging.join(machine.staged_count.to_string());
        let (done, result) = machine.begin(3, true);
        // Made, then lengthened, then filled.
        if done > 0 {
            let (content, bytes) =
                if done == 3 { (new.content, new.bytes) } else { (&[][..], (done as u64 - 1) * new.bytes) };
            let id = machine.make_file(content, bytes)?;
            let (dir, name) = machine.place(&staged)?;
            machine.change(vec![(dir, name, Some(id))]);
            result?;
            return Ok(self.handle(id, Some(staged)));
        }
        result.and(Err(dead()))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let id = self.machine().found(path)?;
        Ok(self.handle(id, None))
    }

    fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        let mut machine = self.machine();
        Ok(machine.node(path).map(|id| machine.file(id).content()))
    }

    fn replace(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let mut machine = self.machine();
        let mut staged = path.as_os_str().to_owned();
        staged.push(".tmp");
        let staged = PathBuf::from(staged);
        let (dir, name) = machine.place(&staged)?;
        let (done, result) = machine.begin(1, true);
        if done == 0 {
            return result;
        }
        // As if emptied and lengthened: the bytes come with the write.
        let id = machine.make_file(&[], content.len() as u64)?;
        machine.change(vec![(dir, name, Some(id))]);
        result?;
        machine.write(id, 0, content)?;
        machine.sync_content(id, None)?;
        machine.rename(&staged, path)?;
        let (done, result) = machine.begin(1, false);
        if done == 1 {
            machine.sync_dir(dir);
        }
        result
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.machine().rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut machine = self.machine();
        if machine.node(path).is_none() { Ok(()) } else { machine.unlink(path) }
    }

    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.machine().remove_tree(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut machine = self.machine();
        let id = machine.found(dir)?;
        let (done, result) = machine.begin(1, false);
        if done == 1 {
            machine.sync_dir(id);
        }
        result
    }

    fn sync_all(&self, _dir: &Path) -> io::Result<()> {
        let mut machine = self.machine();
        let (done, result) = machine.begin(1, false);
        if done == 1 {
            for node in &mut machine.nodes {
                if let Node::File(inode) = node {
                    inode.write_back(|_| true);
                }
            }
            let pending = std::mem::take(&mut machine.pending);
            pending.iter().for_each(|change| machine.settle(change));
        }
        result
    }

    fn space(&self, _path: &Path) -> io::Result<Space> {
        let percent = u64::from(self.machine().used_percent);
        Ok(Space { used_bytes: percent << 20, free_bytes: (100 - percent) << 20 })
    }

    fn lock(&self, path: &Path) -> Result<StoreLock, OpenError> {
        let file =
            memfd_create(c"lock", MFdFlags::MFD_CLOEXEC).map_err(|e| OpenError::io("can not open", path, e.into()))?;
        StoreLock::hold(File::from(file), path)
    }
}

struct SimFile {
    disk: SimDisk,
    id: usize,
    staged: Option<PathBuf>,
}

impl DiskFile for SimFile {
    fn name(&self, path: &Path) -> io::Result<()> {
        let mut machine = self.disk.machine();
        if machine.node(path).is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if let Some(staged) = &self.staged {
            return machine.rename(staged, path);
        }
        let (dir, name) = machine.place(path)?;
        let (done, result) = machine.begin(1, true);
        if done == 1 {
            machine.change(vec![(dir, name, Some(self.id))]);
        }
        result
    }

    fn write_at(&self, position: u64, bytes: &[u8]) -> io::Result<()> {
        self.disk.machine().write(self.id, position, bytes)
    }

    fn read_at(&self, position: u64, out: &mut [u8]) -> io::Result<()> {
        self.disk.machine().file(self.id).live.read_exact_at(out, position)
    }

    fn sync(&self) -> io::Result<()> {
        let act = self.disk.during_sync.lock().unwrap_or_else(PoisonError::into_inner).take();
        let covered = act.map(|mut act| {
            let covered = self.disk.machine().file(self.id).content();
            act();
            covered
        });
        self.disk.machine().sync_content(self.id, covered)
    }

    fn rewrite(&self) -> io::Result<()> {
        let mut machine = self.disk.machine();
        let content = machine.file(self.id).content();
        machine.write(self.id, 0, &content)
    }

    fn zero(&self, from: u64, to: u64) -> io::Result<u64> {
        let mut machine = self.disk.machine();
        let content = machine.file(self.id).content();
        let range = &content[from as usize..to as usize];
        let is_held = |byte: &u8| *byte != 0;
        let (Some(first), Some(last)) = (range.iter().position(is_held), range.iter().rposition(is_held)) else {
            return Ok(0);
        };
        machine.write(self.id, from + first as u64, &vec![0; last + 1 - first])?;
        Ok(last as u64 + 1)
    }

    fn data_end(&self, from: u64, to: u64) -> io::Result<u64> {
        let mut machine = self.disk.machine();
        let content = machine.file(self.id).content();
        let last = content[from as usize..to as usize].iter().rposition(|byte| *byte != 0);
        Ok(last.map_or(from, |last| from + last as u64 + 1))
    }

    fn extend(&self, bytes: u64) -> io::Result<()> {
        let mut machine = self.disk.machine();
        let (done, result) = machine.begin(1, true);
        if done == 1 {
            let inode = machine.file(self.id);
            inode.live.set_len(bytes)?;
            inode.bytes = bytes;
        }
        result
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.disk.machine().file(self.id).bytes)
    }

    fn modified_ms(&self) -> io::Result<u64> {
        Ok(self.disk.machine().file(self.id).modified_ms)
    }

    fn map(&self, bytes: usize) -> io::Result<memmap2::MmapRaw> {
        memmap2::MmapOptions::new().len(bytes).map_raw_read_only(&self.disk.machine().file(self.id).live)
    }

    fn map_writable(&self, bytes: usize) -> io::Result<memmap2::MmapRaw> {
        memmap2::MmapOptions::new().len(bytes).map_raw(&self.disk.machine().file(self.id).live)
    }

    fn stored(&self, position: u64, bytes: u64) {
        // It had only got so far: what it would have stored is taken away again.
        let mut machine = self.disk.machine();
        let was_dead = machine.is_dead;
        let (done, result) = machine.begin(bytes as usize, false);
        if result.is_err() || was_dead {
            let inode = machine.file(self.id);
            inode.live.write_all_at(&vec![0; bytes as usize - done], position + done as u64).expect("a memfd");
        }
    }
}
