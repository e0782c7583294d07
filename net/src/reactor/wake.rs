//! When a posted mail must ring the bell: the flags between any thread that posts and the one that may sleep.
//!
//! ```text
//! sender                      owner
//! mail = true  (first only)   asleep = true
//! fence SeqCst                fence SeqCst
//! asleep? → ring              mail? → do not block
//! ```
//!
//! At least one of the two sees the other's flag, so no mail is slept over; and of many mails only the first
//! since the last `taken` pays for the fence. Proved in `net/tests/wake_loom.rs`, which compiles this file
//! against loom's atomics: that is why they come from `super`.

use super::atomic::{AtomicBool, Ordering, fence};

pub struct WakeFlags {
    /// The owner blocks or is about to.
    asleep: AtomicBool,
    /// The box is not empty. Written under the box's lock.
    mail: AtomicBool,
}

impl WakeFlags {
    pub fn new() -> Self {
        Self { asleep: AtomicBool::new(false), mail: AtomicBool::new(false) }
    }

    /// Sender, box locked, mail inside. True for the first mail since the box was taken: its sender goes on to
    /// [`must_ring`](Self::must_ring) after it has unlocked.
    pub fn note_mail(&self) -> bool {
        !self.mail.swap(true, Ordering::AcqRel)
    }

    /// Sender of a first mail. True at most once for each sleep.
    pub fn must_ring(&self) -> bool {
        fence(Ordering::SeqCst);
        // A failed exchange writes nothing: a late sender cannot end a sleep it has not seen.
        self.asleep.load(Ordering::Relaxed)
            && self.asleep.compare_exchange(true, false, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    pub fn has_mail(&self) -> bool {
        self.mail.load(Ordering::Acquire)
    }

    /// Owner, box locked and emptied.
    pub fn note_taken(&self) {
        self.mail.store(false, Ordering::Release);
    }

    /// Owner, before it blocks. False: there is mail, do not block.
    #[must_use]
    pub fn fall_asleep(&self) -> bool {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.mail.load(Ordering::Relaxed) {
            self.wake_up();
            return false;
        }
        true
    }

    pub fn wake_up(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }
}
