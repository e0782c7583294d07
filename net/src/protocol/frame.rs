//! Where one frame ends and the next begins.
//!
//! ```text
//! offset  size
//! 0       4     length of what follows
//! 4       1     serialize type, 0 JSON, 1 binary
//! 5       3     header length, h
//! 8       h     header
//! 8+h     rest  body
//! ```
//!
//! Nothing of a frame is believed before it is checked here, and a length that cannot be right is refused from
//! the first four bytes: nobody waits for the gigabyte that `GET ` announces.
//! Source: NettyDecoder.java, RemotingCommand.java.

/// The longest frame, counted with its own four length bytes (Java: `frameMaxLength`).
pub const FRAME_BYTES_MAX: usize = 16_777_216;

/// Length word and header word.
pub const HEAD_BYTES: usize = 8;

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

/// Each of these ends the connection: where the next frame begins is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error(
        "{protocol} on the remoting port; {advice} (read as a frame of {frame_bytes} bytes, limit {frame_bytes_max})"
    )]
    Foreign { protocol: &'static str, advice: &'static str, frame_bytes: u64, frame_bytes_max: usize },
    #[error("frame of {frame_bytes} bytes, limit {frame_bytes_max}")]
    TooLong { frame_bytes: u64, frame_bytes_max: usize },
    #[error("frame length word of {length}, at least 4 is needed for the header word")]
    TooShort { length: u32 },
    #[error("header of {header_bytes} bytes in a frame of {frame_bytes}")]
    HeaderTooLong { header_bytes: usize, frame_bytes: usize },
    #[error("header serialize type {found}, known are 0 (JSON) and 1 (ROCKETMQ)")]
    UnknownSerialize { found: u8 },
}

/// [`frame_head_limited`] with Java's limit.
pub fn frame_head(bytes: &[u8]) -> Result<Option<FrameHead>, FrameError> {
    frame_head_limited(bytes, FRAME_BYTES_MAX)
}

/// `None` while fewer than eight bytes are there. A length that can be judged from the first four bytes
/// alone (too long, foreign protocol) is an error as soon as those are there.
pub fn frame_head_limited(bytes: &[u8], frame_bytes_max: usize) -> Result<Option<FrameHead>, FrameError> {
    let Some((word, rest)) = bytes.split_first_chunk::<4>() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes(*word);
    let frame_bytes = u64::from(length) + 4;
    if frame_bytes > frame_bytes_max as u64 {
        return Err(too_long(*word, frame_bytes, frame_bytes_max));
    }
    if length < 4 {
        return Err(FrameError::TooShort { length });
    }
    let Some(&[kind, high, middle, low]) = rest.first_chunk::<4>() else {
        return Ok(None);
    };
    let serialize = match kind {
        0 => Serialize::Json,
        1 => Serialize::Binary,
        found => return Err(FrameError::UnknownSerialize { found }),
    };
    let frame_bytes = length as usize + 4;
    let header_bytes = u32::from_be_bytes([0, high, middle, low]) as usize;
    if header_bytes > frame_bytes - HEAD_BYTES {
        return Err(FrameError::HeaderTooLong { header_bytes, frame_bytes });
    }
    Ok(Some(FrameHead { frame_bytes, header_bytes, serialize }))
}

#[cold]
fn too_long(word: [u8; 4], frame_bytes: u64, frame_bytes_max: usize) -> FrameError {
    match foreign(word) {
        Some((protocol, advice)) => FrameError::Foreign { protocol, advice, frame_bytes, frame_bytes_max },
        None => FrameError::TooLong { frame_bytes, frame_bytes_max },
    }
}

/// Who else begins like this, and what its user should do.
fn foreign(word: [u8; 4]) -> Option<(&'static str, &'static str)> {
    const REMOTING_ONLY: &str = "only RocketMQ remoting is spoken here";
    Some(match &word {
        b"PRI " => ("HTTP/2", "use the proxy port"),
        b"GET " | b"POST" | b"PUT " | b"HEAD" | b"DELE" | b"OPTI" | b"PATC" | b"CONN" | b"TRAC" => {
            ("HTTP", "a browser or health probe should use another port")
        }
        [0x16, 0x03, ..] => ("TLS", "TLS is not served here, set tls.enable=false in the client"),
        b"SSH-" => ("SSH", REMOTING_ONLY),
        b"PROX" | b"\r\n\r\n" => ("the PROXY protocol", "it is not understood here, switch it off in the balancer"),
        b"AMQP" => ("AMQP", REMOTING_ONLY),
        b"PING" | b"*1\r\n" | b"*2\r\n" | b"*3\r\n" => ("Redis", REMOTING_ONLY),
        b"ruok" | b"stat" | b"mntr" => ("a ZooKeeper probe", REMOTING_ONLY),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(length: u32, kind: u8, header_bytes: u32) -> Vec<u8> {
        let mut bytes = length.to_be_bytes().to_vec();
        bytes.extend(((u32::from(kind) << 24) | header_bytes).to_be_bytes());
        bytes
    }

    #[test]
    fn a_head_is_read_once_it_is_whole() {
        let bytes = head(104, 1, 40);
        for count in 0..8 {
            assert_eq!(frame_head(&bytes[..count]), Ok(None), "{count} bytes");
        }
        let want = FrameHead { frame_bytes: 108, header_bytes: 40, serialize: Serialize::Binary };
        assert_eq!(frame_head(&bytes), Ok(Some(want)));
    }

    #[test]
    fn lengths_are_limited() {
        let max = FRAME_BYTES_MAX as u32;
        let too_long = |frame_bytes| Some(FrameError::TooLong { frame_bytes, frame_bytes_max: FRAME_BYTES_MAX });
        // length, kind, header length, error
        for (length, kind, header_bytes, want) in [
            (4, 0, 0, None),
            (max - 4, 0, 100, None),
            (max - 3, 0, 100, too_long(u64::from(max) + 1)),
            (max, 0, 0, too_long(u64::from(max) + 4)),
            (u32::MAX, 0, 0, too_long(0x1_0000_0003)),
            (3, 0, 0, Some(FrameError::TooShort { length: 3 })),
            (0, 0, 0, Some(FrameError::TooShort { length: 0 })),
            (64, 0, 60, None),
            (64, 0, 61, Some(FrameError::HeaderTooLong { header_bytes: 61, frame_bytes: 68 })),
            (64, 1, 0xff_ffff, Some(FrameError::HeaderTooLong { header_bytes: 0xff_ffff, frame_bytes: 68 })),
            (64, 2, 10, Some(FrameError::UnknownSerialize { found: 2 })),
            (64, 0x7b, 10, Some(FrameError::UnknownSerialize { found: 0x7b })),
        ] {
            let error = frame_head(&head(length, kind, header_bytes)).err();
            assert_eq!(error, want, "length={length} kind={kind} header={header_bytes}");
        }
    }

    /// Fault 3: the cause is named from the first four bytes.
    #[test]
    fn a_foreign_protocol_is_named() {
        // first bytes, what the log line must say
        let cases: [(&[u8; 4], &str); 7] = [
            (b"PRI ", "HTTP/2 on the remoting port; use the proxy port"),
            (b"GET ", "HTTP on"),
            (b"POST", "HTTP on"),
            (b"HEAD", "HTTP on"),
            (b"\x16\x03\x01\x02", "TLS on"),
            (b"SSH-", "SSH on"),
            (b"\xff\xff\xff\xff", "frame of 4294967299 bytes, limit 16777216"),
        ];
        for (bytes, want) in cases {
            let error = frame_head(bytes).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
            assert!(!error.contains('\n'));
        }
        assert!(frame_head(b"PRI ").unwrap_err().to_string().contains("1347569956"));
    }

    #[test]
    fn the_limit_is_an_argument() {
        assert!(frame_head_limited(&head(100, 0, 0), 104).is_ok());
        assert!(frame_head_limited(&head(101, 0, 0), 104).is_err());
    }
}
