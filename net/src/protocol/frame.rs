//! Where one frame ends and the next begins.

/// The longest frame, counted with its own four length bytes (Java: `frameMaxLength`).
pub const FRAME_BYTES_MAX: usize = 16_777_216;

/// How the header of a frame is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serialize {
    Json = 0,
    Binary = 1,
}

/// The first eight bytes of a frame, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHead {
    /// Whole frame, its length word included.
    pub frame_bytes: usize,
    pub header_bytes: usize,
    pub serialize: Serialize,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("placeholder")]
    Placeholder,
}

/// `None` while fewer than eight bytes are there. A length that can be judged from the first four bytes
/// alone (too long, foreign protocol) is an error as soon as those are there.
pub fn frame_head(_bytes: &[u8]) -> Result<Option<FrameHead>, FrameError> {
    todo!()
}
