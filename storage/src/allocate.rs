//! AllocateMappedFileService: the next log files, made by the file agent before an append needs them.
//!
//! ```text
//! | being written | next: made from 1/4 on, preheated | next but one: made from 1/2 on |
//! ```
//! They have their length and their blocks but no name: a kill leaves no empty file behind the last record, which Java
//! 4.9 on Java 17 would not get over. An append never makes a file where an agent runs that does: it is told to come
//! again.
//! Source: AllocateMappedFileService.java.

use crate::error::AppendError;
use crate::mapped_file::MappedFile;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const COUNT_MAX: usize = 2;

#[derive(Default)]
pub(crate) struct FilesAhead {
    state: Mutex<State>,
    /// As `state` has them, for a look without the lock.
    count: AtomicUsize,
    is_failing: AtomicBool,
    /// Somebody makes files when he is woken.
    has_agent: AtomicBool,
}

#[derive(Default)]
struct State {
    files: VecDeque<Arc<MappedFile>>,
    /// The first one is with the agent for a moment.
    is_first_out: bool,
    /// Why the agent could not make the next one.
    failure: Option<AppendError>,
}

impl State {
    /// One that was begun while an append made its own is of no use any more.
    fn drop_before(&mut self, start: u64) {
        while self.files.pop_front_if(|file| file.start < start).is_some() {}
    }
}

/// What an append gets that needs a file.
pub(crate) enum Taken {
    File(Arc<MappedFile>),
    /// It is to make the file itself.
    None,
    Error(AppendError),
}

impl FilesAhead {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, state: &State) {
        self.count.store(state.files.len() + usize::from(state.is_first_out), Ordering::Relaxed);
        self.is_failing.store(state.failure.is_some(), Ordering::Relaxed);
    }

    pub fn set_agent(&self) {
        if !self.has_agent.load(Ordering::Relaxed) {
            self.has_agent.store(true, Ordering::Relaxed);
        }
    }

    /// How many there should be when `written` of `bytes` of the current file are used; `None`: there is no file yet.
    fn wanted(used: Option<(u64, u64)>) -> usize {
        match used {
            None => COUNT_MAX,
            Some((written, bytes)) if written >= bytes / 2 => COUNT_MAX,
            Some((written, bytes)) => usize::from(written >= bytes / 4),
        }
    }

    /// Whether the agent should make one now. One that has failed tries again by itself.
    pub fn wants(&self, used: Option<(u64, u64)>) -> bool {
        self.count.load(Ordering::Relaxed) < FilesAhead::wanted(used) && !self.is_failing.load(Ordering::Relaxed)
    }

    /// The file that begins at `start`.
    pub fn take(&self, start: u64) -> Taken {
        let mut state = self.state();
        state.drop_before(start);
        // One that begins later waits behind the first, which is out.
        let taken = match state.files.pop_front_if(|file| file.start == start) {
            Some(file) => Taken::File(file),
            None if !self.has_agent.load(Ordering::Relaxed) => Taken::None,
            None => Taken::Error(state.failure.clone().unwrap_or(AppendError::NoFileYet { start })),
        };
        self.publish(&state);
        taken
    }

    pub fn give_back(&self, file: Arc<MappedFile>) {
        let mut state = self.state();
        state.files.push_front(file);
        self.publish(&state);
    }

    /// The agent's: makes what is missing. `next_start`: where the file after the current one begins.
    ///
    /// # Errors
    /// What `make` answers. Appends that need the file get `failure` of it until a later call succeeds.
    pub fn make(
        &self,
        used: Option<(u64, u64)>,
        next_start: u64,
        make: impl Fn(u64) -> io::Result<Arc<MappedFile>>,
        failure: impl FnOnce(u64, &io::Error) -> AppendError,
    ) -> io::Result<()> {
        loop {
            let start = {
                let mut state = self.state();
                state.drop_before(next_start);
                if state.files.len() >= FilesAhead::wanted(used) {
                    state.failure = None;
                    self.publish(&state);
                    return Ok(());
                }
                state.files.back().map_or(next_start, |last| last.end())
            };
            let made = make(start);
            let mut state = self.state();
            match made {
                Ok(file) => {
                    state.files.push_back(file);
                    state.failure = None;
                    self.publish(&state);
                }
                Err(e) => {
                    state.failure = Some(failure(start, &e));
                    self.publish(&state);
                    return Err(e);
                }
            }
        }
    }

    /// The agent's: does something with the next file, which no append gets meanwhile.
    pub fn with_first<T>(&self, act: impl FnOnce(&Arc<MappedFile>) -> T) -> Option<T> {
        let file = {
            let mut state = self.state();
            let file = state.files.pop_front()?;
            state.is_first_out = true;
            file
        };
        let result = act(&file);
        let mut state = self.state();
        state.files.push_front(file);
        state.is_first_out = false;
        Some(result)
    }

    /// Whether the agent tried and failed.
    pub fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::Relaxed)
    }

    /// They have no name and go with their descriptors.
    pub fn clear(&self) {
        let mut state = self.state();
        state.files.clear();
        self.publish(&state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;
    use crate::flush::Medium;
    use std::path::Path;

    /// With the files from 0 on, as many as are wanted.
    fn fill(ahead: &FilesAhead, dir: &Path) {
        let make = |start| MappedFile::create_nameless(&RealDisk, dir, dir, start, 4096, Medium::Write).map(Arc::new);
        ahead.make(None, 0, make, |start, _| AppendError::NoFileYet { start }).unwrap();
    }

    #[test]
    fn an_append_takes_nothing_away_while_the_next_file_is_being_preheated() {
        let dir = tempfile::tempdir().unwrap();
        let ahead = FilesAhead::default();
        ahead.set_agent();
        fill(&ahead, dir.path());
        ahead.with_first(|first| {
            assert_eq!(first.start, 0);
            assert!(matches!(ahead.take(0), Taken::Error(AppendError::NoFileYet { start: 0 })));
        });
        for start in [0, 4096] {
            assert!(matches!(ahead.take(start), Taken::File(file) if file.start == start), "{start}");
        }
        assert!(matches!(ahead.take(8192), Taken::Error(AppendError::NoFileYet { start: 8192 })));
    }

    #[test]
    fn what_an_append_has_made_itself_is_of_no_use_any_more() {
        let dir = tempfile::tempdir().unwrap();
        let ahead = FilesAhead::default();
        fill(&ahead, dir.path());
        assert!(matches!(ahead.take(4096), Taken::File(file) if file.start == 4096));
        assert!(matches!(ahead.take(0), Taken::None));
    }
}
