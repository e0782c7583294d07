//! Bounded mailbox into a reactor: any thread posts, the owner takes all of them in its next turn.
//!
//! ```text
//! sender ── lock, push, unlock ──> [M; mail_count_max] ── lock, swap, unlock ──> owner, once a turn
//!    └── first mail, owner asleep: write eventfd ──> poll of the ring ──┘
//! ```
//!
//! The lock is held for a push or a swap of two vectors. A mail to a busy owner costs no system call.

use crate::reactor::wake::WakeFlags;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard};

struct Shared<M> {
    state: Mutex<State<M>>,
    flags: WakeFlags,
    bell: EventFd,
    mail_count_max: usize,
}

struct State<M> {
    mails: Vec<M>,
    is_closed: bool,
}

impl<M> Shared<M> {
    /// A sender that panicked while it pushed has left the vector whole.
    fn lock(&self) -> MutexGuard<'_, State<M>> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The posting end. Posting to a sleeping reactor wakes it (eventfd), once for many mails.
pub struct MailSender<M> {
    shared: Arc<Shared<M>>,
}

impl<M> Clone for MailSender<M> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<M: Send> MailSender<M> {
    /// Mails of one sender arrive in their order.
    ///
    /// # Errors
    /// `Err` gives the mail back: the box is full or its reactor is gone.
    pub fn send(&self, mail: M) -> Result<(), M> {
        let shared = &*self.shared;
        let is_first = {
            let mut state = shared.lock();
            if state.is_closed || state.mails.len() >= shared.mail_count_max {
                return Err(mail);
            }
            state.mails.push(mail);
            shared.flags.note_mail()
        };
        if is_first && shared.flags.must_ring() {
            // Cannot fail: the counter would have to reach 2^64, and nobody closes the descriptor before `Shared`.
            let _ = shared.bell.write(1);
        }
        Ok(())
    }

    /// The reactor is gone: no later `send` can succeed.
    pub fn is_closed(&self) -> bool {
        self.shared.lock().is_closed
    }
}

/// The owner's end. Dropping it closes the box and drops what is still inside.
pub struct Mailbox<M> {
    shared: Arc<Shared<M>>,
}

impl<M> Mailbox<M> {
    /// # Errors
    /// No descriptor is left for the eventfd.
    pub fn new(mail_count_max: usize) -> io::Result<Self> {
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let state = Mutex::new(State { mails: Vec::new(), is_closed: false });
        Ok(Self { shared: Arc::new(Shared { state, flags: WakeFlags::new(), bell, mail_count_max }) })
    }

    pub fn sender(&self) -> MailSender<M> {
        MailSender { shared: Arc::clone(&self.shared) }
    }

    /// Readable after each ring of the bell. Never read: a poll that counts wake-ups needs no reset.
    pub fn bell_fd(&self) -> RawFd {
        self.shared.bell.as_raw_fd()
    }

    pub fn has_mail(&self) -> bool {
        self.shared.flags.has_mail()
    }

    /// Moves all mails into `into`, which must be empty; its room becomes the box's.
    pub fn take(&mut self, into: &mut Vec<M>) {
        debug_assert!(into.is_empty());
        if !self.has_mail() {
            return;
        }
        let mut state = self.shared.lock();
        std::mem::swap(&mut state.mails, into);
        self.shared.flags.note_taken();
    }

    /// Before the owner blocks. False: there is mail, do not block. After true, [`wake_up`](Self::wake_up) must
    /// follow the wait.
    #[must_use]
    pub fn fall_asleep(&self) -> bool {
        self.shared.flags.fall_asleep()
    }

    pub fn wake_up(&self) {
        self.shared.flags.wake_up();
    }
}

impl<M> Drop for Mailbox<M> {
    fn drop(&mut self) {
        let mails = {
            let mut state = self.shared.lock();
            state.is_closed = true;
            std::mem::take(&mut state.mails)
        };
        // Outside the lock: a mail's own drop may post.
        drop(mails);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_box_gives_the_mail_back() {
        let mut mailbox = Mailbox::new(2).unwrap();
        let sender = mailbox.sender();
        assert_eq!([sender.send(1), sender.send(2), sender.send(3)], [Ok(()), Ok(()), Err(3)]);
        let mut mails = Vec::new();
        mailbox.take(&mut mails);
        assert_eq!(mails, [1, 2]);
        assert_eq!(sender.send(4), Ok(()));
        drop(mailbox);
        assert_eq!(sender.send(5), Err(5));
        assert!(sender.is_closed());
    }

    #[test]
    fn the_bell_rings_once_for_each_sleep() {
        let mailbox = Mailbox::new(10).unwrap();
        let sender = mailbox.sender();
        assert!(mailbox.fall_asleep());
        for mail in 0..3 {
            sender.send(mail).unwrap();
        }
        assert_eq!(mailbox.shared.bell.read(), Ok(1));
        assert!(!mailbox.fall_asleep(), "mail is waiting");
        assert!(mailbox.shared.bell.read().is_err(), "an owner that is awake is not rung");
    }
}
