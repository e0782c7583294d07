//! Writes frames straight into an outbox.

use super::frame::Serialize;

/// What an answer must take from its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    pub opaque: i32,
    pub serialize: Serialize,
}

/// One frame being written at the end of `out`. Call order: `response` or `request`, then `remark` and `ext*`
/// in any order, then exactly one `finish*`.
pub struct FrameWriter<'a> {
    _out: &'a mut Vec<u8>,
}

impl<'a> FrameWriter<'a> {
    pub fn response(_out: &'a mut Vec<u8>, _reply: Reply, _code: i32) -> Self {
        todo!()
    }
    pub fn request(
        _out: &'a mut Vec<u8>,
        _serialize: Serialize,
        _code: i32,
        _opaque: i32,
        _oneway: bool,
    ) -> Self {
        todo!()
    }
    pub fn remark(self, _remark: &str) -> Self {
        todo!()
    }
    pub fn ext(self, _key: &str, _value: &str) -> Self {
        todo!()
    }
    pub fn ext_num(self, _key: &str, _value: i64) -> Self {
        todo!()
    }
    pub fn ext_bool(self, _key: &str, _value: bool) -> Self {
        todo!()
    }
    pub fn finish(self) {
        todo!()
    }
    pub fn finish_body(self, _body: &[u8]) {
        todo!()
    }
    /// The body's bytes follow as other segments of the same connection's outbox.
    pub fn finish_body_bytes(self, _body_bytes: usize) {
        todo!()
    }
}
