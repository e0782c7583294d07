//! What this kernel's io_uring offers.

use super::buffers::BufferRing;
use super::error::{RingError, kernel};
use super::ring::Ring;
use io_uring::{Probe, opcode};

/// What this kernel's io_uring offers, for the start-up line; or the one line that says what is missing and the
/// remedy.
///
/// # Errors
/// A reactor would not start.
pub fn probe() -> Result<String, RingError> {
    let mut ring = Ring::new(8, false)?;
    let mut probe = Probe::new();
    let source = |source| RingError::register("IORING_REGISTER_PROBE", source);
    ring.uring().submitter().register_probe(&mut probe).map_err(source)?;
    for (name, code) in [
        ("ACCEPT", opcode::AcceptMulti::CODE),
        ("RECV", opcode::RecvMulti::CODE),
        ("SEND", opcode::Send::CODE),
        ("SENDMSG", opcode::SendMsg::CODE),
        ("POLL_ADD", opcode::PollAdd::CODE),
        ("ASYNC_CANCEL", opcode::AsyncCancel::CODE),
    ] {
        if !probe.is_supported(code) {
            return Err(RingError::too_old(&format!("operation {name}")));
        }
    }
    let buffers = BufferRing::new(8, 4096).map_err(|source| RingError::Call { call: "mmap", source })?;
    ring.register_buffers(&buffers).map_err(|source| RingError::register("IORING_REGISTER_PBUF_RING", source))?;
    let params = ring.uring().params();
    let mut text = format!("io_uring on kernel {}: deferred task run, multishot, buffer ring", kernel());
    for (name, is_there) in [
        ("bundles", params.is_feature_recvsend_bundle()),
        ("min timeout", params.is_feature_min_timeout()),
        ("no iowait", params.is_feature_no_iowait()),
    ] {
        if is_there {
            text.push_str(", ");
            text.push_str(name);
        }
    }
    Ok(text)
}
