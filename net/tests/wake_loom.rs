//! Interleavings of posting and falling asleep, all with one sender: no mail is slept over.

/// What `wake.rs` takes from its parent.
mod atomic {
    pub use loom::sync::atomic::{AtomicBool, Ordering, fence};
}

#[path = "../src/reactor/wake.rs"]
mod wake;

use loom::sync::{Arc, Mutex};
use loom::thread;
use wake::WakeFlags;

struct Shared {
    mails: Mutex<u32>,
    flags: WakeFlags,
    /// The eventfd: a lock, as the kernel has one.
    rung: Mutex<bool>,
}

fn post(shared: &Shared) {
    let is_first = {
        let mut mails = shared.mails.lock().unwrap();
        *mails += 1;
        shared.flags.note_mail()
    };
    if is_first && shared.flags.must_ring() {
        *shared.rung.lock().unwrap() = true;
    }
}

/// One turn of the owner: takes mails, then sleeps if it may. True: it blocked and nobody has rung yet.
fn turn(shared: &Shared, taken: &mut u32) -> bool {
    if shared.flags.has_mail() {
        let mut mails = shared.mails.lock().unwrap();
        *taken += std::mem::take(&mut *mails);
        shared.flags.note_taken();
    }
    shared.flags.fall_asleep()
}

/// `preemptions`: how often a thread may be stopped in the middle, `None` for every interleaving.
fn check(senders: u32, preemptions: Option<usize>) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions;
    model.check(move || {
        let shared = Arc::new(Shared { mails: Mutex::new(0), flags: WakeFlags::new(), rung: Mutex::new(false) });
        let threads: Vec<_> = (0..senders)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || post(&shared))
            })
            .collect();
        let mut taken = 0;
        let mut blocked = false;
        for _ in 0..2 {
            blocked = turn(&shared, &mut taken);
            if blocked {
                if !std::mem::take(&mut *shared.rung.lock().unwrap()) {
                    break;
                }
                shared.flags.wake_up();
                blocked = false;
            }
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let left = *shared.mails.lock().unwrap();
        assert_eq!(taken + left, senders);
        // All have posted. An owner that is still blocked with mail must have been rung.
        let is_rung = *shared.rung.lock().unwrap();
        assert!(!blocked || left == 0 || is_rung, "slept over {left} mails");
    });
}

#[test]
fn one_sender() {
    check(1, None);
}

#[test]
fn two_senders() {
    check(2, Some(2));
}
