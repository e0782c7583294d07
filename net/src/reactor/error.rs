//! What can be wrong with a ring, each with the remedy in the same line.

use std::fs;
use std::io;

#[derive(Debug, thiserror::Error)]
pub enum RingError {
    #[error("io_uring is denied: {cause}; {remedy}")]
    Denied { cause: &'static str, remedy: &'static str },
    #[error("io_uring of kernel {kernel} lacks {missing}; kernel 6.1 or newer is needed")]
    TooOld { kernel: String, missing: String },
    #[error("io_uring: {call} needs locked memory ({source}); raise the memlock limit (ulimit -l, LimitMEMLOCK)")]
    LockedMemory { call: &'static str, source: io::Error },
    #[error("io_uring: no file descriptor left; raise the limit of open files (ulimit -n, LimitNOFILE)")]
    Descriptors,
    #[error("io_uring: {call}: {source}")]
    Call { call: &'static str, source: io::Error },
    #[error("io_uring_enter: {source}")]
    Enter { source: io::Error },
    #[error("at most 256 listeners, {listener_count} are there")]
    Listeners { listener_count: usize },
}

impl RingError {
    /// From `io_uring_setup`.
    #[cold]
    pub(super) fn setup(error: &io::Error) -> Self {
        Self::explain(error, &kernel(), &sysctl_disabled())
    }

    #[cold]
    pub(super) fn too_old(missing: &str) -> Self {
        Self::TooOld { kernel: kernel(), missing: missing.to_owned() }
    }

    #[cold]
    pub(super) fn register(call: &'static str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::ENOMEM) => Self::LockedMemory { call, source },
            Some(libc::EINVAL) => Self::too_old(call),
            _ => Self::Call { call, source },
        }
    }

    /// `disabled` is the text of `kernel.io_uring_disabled`, empty where there is none.
    fn explain(error: &io::Error, kernel: &str, disabled: &str) -> Self {
        let denied = |cause, remedy| Self::Denied { cause, remedy };
        match (error.raw_os_error(), disabled) {
            (Some(libc::EPERM), "2") => denied("kernel.io_uring_disabled is 2", "sysctl -w kernel.io_uring_disabled=0"),
            (Some(libc::EPERM), "1") => denied(
                "kernel.io_uring_disabled is 1 and this user is not in kernel.io_uring_group",
                "sysctl -w kernel.io_uring_disabled=0 or add the user's group",
            ),
            (Some(libc::EPERM | libc::EACCES), _) => denied(
                "a seccomp filter or security module forbids io_uring_setup",
                "run the container with a seccomp profile that allows io_uring_setup, io_uring_enter and \
                 io_uring_register (docker: --security-opt seccomp=unconfined)",
            ),
            (Some(libc::ENOSYS), _) => denied(
                "the kernel has no io_uring or a seccomp filter hides it",
                "use kernel 6.1 or newer and allow io_uring_setup, io_uring_enter and io_uring_register",
            ),
            (Some(libc::EINVAL), _) => Self::TooOld {
                kernel: kernel.to_owned(),
                missing: "SINGLE_ISSUER, DEFER_TASKRUN, COOP_TASKRUN or SUBMIT_ALL".to_owned(),
            },
            (Some(libc::ENOMEM), _) => {
                Self::LockedMemory { call: "io_uring_setup", source: io::Error::from_raw_os_error(libc::ENOMEM) }
            }
            (Some(libc::EMFILE | libc::ENFILE), _) => Self::Descriptors,
            (Some(errno), _) => Self::Call { call: "io_uring_setup", source: io::Error::from_raw_os_error(errno) },
            (None, _) => Self::Call { call: "io_uring_setup", source: io::Error::new(error.kind(), error.to_string()) },
        }
    }
}

/// `uname -r`, or a word for it.
pub(super) fn kernel() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease")
        .map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

fn sysctl_disabled() -> String {
    fs::read_to_string("/proc/sys/kernel/io_uring_disabled")
        .map_or_else(|_| String::new(), |text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_its_remedy() {
        // errno, sysctl, words of the line
        for (errno, disabled, words) in [
            (libc::EPERM, "2", ["io_uring_disabled is 2", "sysctl -w"]),
            (libc::EPERM, "1", ["io_uring_group", "sysctl -w"]),
            (libc::EPERM, "0", ["seccomp", "io_uring_setup"]),
            (libc::EPERM, "", ["seccomp", "io_uring_setup"]),
            (libc::ENOSYS, "", ["seccomp", "6.1"]),
            (libc::EINVAL, "", ["5.15.0", "6.1"]),
            (libc::ENOMEM, "", ["memlock", "ulimit -l"]),
            (libc::EMFILE, "", ["open files", "ulimit -n"]),
            (libc::EIO, "", ["io_uring_setup", "os error 5"]),
        ] {
            let line = RingError::explain(&io::Error::from_raw_os_error(errno), "5.15.0", disabled).to_string();
            assert!(words.iter().all(|word| line.contains(word)), "{line}");
            assert!(!line.contains('\n'));
        }
    }
}
