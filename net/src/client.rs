//! A small blocking client on std sockets: registration, config sync, tests. Never on a shard.
//!
//! One request at a time: `call` writes a frame and reads until the answer with its opaque is whole. What else
//! arrives meanwhile, requests of the server and answers to calls that were given up, is skipped.

use crate::protocol::command::{self, DecodeError, Scratch};
use crate::protocol::frame::{FrameError, Serialize, frame_head};
use crate::protocol::writer::FrameWriter;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

const READ_BYTES: usize = 64 << 10;

/// A blocking connection. After an error other than [`ClientError::Timeout`] while reading, drop it.
pub struct Client {
    stream: TcpStream,
    opaque: i32,
    /// Bytes behind the last frame that was looked at.
    received: Vec<u8>,
    scratch: Scratch,
    /// A request was written in part: no further frame can follow it.
    is_broken: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub code: i32,
    pub remark: Option<String>,
    pub ext: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn ext(&self, key: &str) -> Option<&str> {
        self.ext.iter().rev().find(|field| field.0 == key).map(|field| field.1.as_str())
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("no answer to request code {code} within {timeout_ms} ms")]
    Timeout { code: i32, timeout_ms: u128 },
    #[error("request code {code}: {source}")]
    Io { code: i32, source: io::Error },
    #[error("answer to request code {code}: {source}")]
    Frame { code: i32, source: FrameError },
    #[error("answer to request code {code}: {source}")]
    Decode { code: i32, source: DecodeError },
    #[error("request code {code}: an earlier request was written in part, connect again")]
    Broken { code: i32 },
}

impl Client {
    /// # Errors
    /// Refused, unreachable, or not there within `timeout`.
    pub fn connect(addr: SocketAddr, timeout: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, timeout)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, opaque: 0, received: Vec::new(), scratch: Scratch::default(), is_broken: false })
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    /// The stream itself, to send what no client should. Its time-outs are those of the last call.
    pub fn raw(&self) -> &TcpStream {
        &self.stream
    }

    /// Sends a request with a JSON header and waits for its answer, `timeout` in all.
    ///
    /// # Errors
    /// After [`ClientError::Timeout`] the next call may be made; its late answer will be skipped.
    pub fn call(
        &mut self,
        code: i32,
        fields: &[(&str, &str)],
        body: &[u8],
        timeout: Duration,
    ) -> Result<Answer, ClientError> {
        let call = Call { code, timeout, deadline: Instant::now() + timeout };
        let opaque = self.write(call, fields, body, false)?;
        loop {
            let frame_bytes = self.read_frame(call)?;
            let answer = command::decode(&self.received[..frame_bytes], &mut self.scratch)
                .map_err(|source| ClientError::Decode { code, source })
                .map(|command| {
                    (command.is_response() && command.opaque == opaque).then(|| Answer {
                        code: command.code,
                        remark: command.remark.map(str::to_owned),
                        ext: command
                            .ext
                            .fields
                            .iter()
                            .map(|&(key, value)| (key.to_owned(), value.to_owned()))
                            .collect(),
                        body: command.body.to_vec(),
                    })
                });
            self.received.drain(..frame_bytes);
            if let Some(answer) = answer? {
                return Ok(answer);
            }
        }
    }

    /// Sends a request that nobody answers.
    ///
    /// # Errors
    /// The request could not be written within `timeout`.
    pub fn call_oneway(
        &mut self,
        code: i32,
        fields: &[(&str, &str)],
        body: &[u8],
        timeout: Duration,
    ) -> Result<(), ClientError> {
        let call = Call { code, timeout, deadline: Instant::now() + timeout };
        self.write(call, fields, body, true).map(drop)
    }

    /// Returns the opaque that was given to the request.
    fn write(&mut self, call: Call, fields: &[(&str, &str)], body: &[u8], oneway: bool) -> Result<i32, ClientError> {
        if self.is_broken {
            return Err(ClientError::Broken { code: call.code });
        }
        self.opaque = self.opaque.wrapping_add(1);
        let mut frame = Vec::with_capacity(512 + body.len());
        let mut writer = FrameWriter::request(&mut frame, Serialize::Json, call.code, self.opaque, oneway);
        for (key, value) in fields {
            writer = writer.ext(key, value);
        }
        writer.finish_body(body);
        self.is_broken = true;
        let mut rest = frame.as_slice();
        while !rest.is_empty() {
            self.stream.set_write_timeout(Some(call.time_left()?)).map_err(|source| call.io(source))?;
            match (&self.stream).write(rest) {
                Ok(0) => return Err(call.io(ErrorKind::WriteZero.into())),
                Ok(bytes) => rest = &rest[bytes..],
                Err(error) => call.retry(error)?,
            }
        }
        self.is_broken = false;
        Ok(self.opaque)
    }

    /// Reads until `received` begins with a whole frame and returns its length.
    fn read_frame(&mut self, call: Call) -> Result<usize, ClientError> {
        loop {
            let head = frame_head(&self.received).map_err(|source| ClientError::Frame { code: call.code, source })?;
            if let Some(head) = head
                && self.received.len() >= head.frame_bytes
            {
                return Ok(head.frame_bytes);
            }
            self.stream.set_read_timeout(Some(call.time_left()?)).map_err(|source| call.io(source))?;
            let received_bytes = self.received.len();
            self.received.resize(received_bytes + READ_BYTES, 0);
            let result = (&self.stream).read(&mut self.received[received_bytes..]);
            self.received.truncate(received_bytes + *result.as_ref().unwrap_or(&0));
            match result {
                Ok(0) => return Err(call.io(ErrorKind::UnexpectedEof.into())),
                Ok(_) => {}
                Err(error) => call.retry(error)?,
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Call {
    code: i32,
    timeout: Duration,
    deadline: Instant,
}

impl Call {
    fn io(self, source: io::Error) -> ClientError {
        ClientError::Io { code: self.code, source }
    }

    /// Never zero, which std sockets refuse.
    fn time_left(self) -> Result<Duration, ClientError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ClientError::Timeout { code: self.code, timeout_ms: self.timeout.as_millis() });
        }
        Ok(left)
    }

    /// The deadline decides whether a socket time-out was the last one.
    fn retry(self, error: io::Error) -> Result<(), ClientError> {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Ok(()),
            _ => Err(self.io(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::writer::Reply;
    use std::net::TcpListener;
    use std::thread;

    const SECOND: Duration = Duration::from_secs(1);

    /// A server that answers each frame with what `answer` makes of its opaque.
    fn serve(answer: impl Fn(i32, &mut Vec<u8>) + Send + 'static) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut server =
                Client { stream, opaque: 0, received: Vec::new(), scratch: Scratch::default(), is_broken: false };
            let call = Call { code: 0, timeout: SECOND, deadline: Instant::now() + 10 * SECOND };
            while let Ok(frame_bytes) = server.read_frame(call) {
                let command = command::decode(&server.received[..frame_bytes], &mut server.scratch).unwrap();
                let mut out = Vec::new();
                let (opaque, is_oneway) = (command.opaque, command.is_oneway());
                drop(command);
                if !is_oneway {
                    answer(opaque, &mut out);
                }
                server.received.drain(..frame_bytes);
                // One byte at a time at first: an answer may come in any pieces.
                let (slow, rest) = out.split_at(out.len().min(20));
                for byte in slow {
                    (&server.stream).write_all(&[*byte]).unwrap();
                }
                (&server.stream).write_all(rest).unwrap();
            }
        });
        addr
    }

    #[test]
    fn the_answer_with_the_right_opaque_is_taken() {
        let addr = serve(|opaque, out| {
            FrameWriter::request(out, Serialize::Json, 40, opaque, true).finish();
            FrameWriter::response(out, Reply { opaque: opaque + 77, serialize: Serialize::Json }, 1).finish();
            FrameWriter::response(out, Reply { opaque, serialize: Serialize::Binary }, 17)
                .remark("no topic")
                .ext("key", "value")
                .finish_body(b"body");
        });
        let mut client = Client::connect(addr, SECOND).unwrap();
        client.call_oneway(34, &[], b"beat", SECOND).unwrap();
        for _ in 0..3 {
            let answer = client.call(105, &[("topic", "t")], b"", SECOND).unwrap();
            assert_eq!(
                (answer.code, answer.remark.as_deref(), answer.body.as_slice()),
                (17, Some("no topic"), &b"body"[..])
            );
            assert_eq!(answer.ext("key"), Some("value"));
        }
    }

    #[test]
    fn a_silent_server_is_a_time_out_and_a_closed_one_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = Client::connect(listener.local_addr().unwrap(), SECOND).unwrap();
        let error = client.call(10, &[], b"", Duration::from_millis(30)).unwrap_err();
        assert_eq!(error.to_string(), "no answer to request code 10 within 30 ms");
        drop(listener);
        assert!(matches!(client.call(10, &[], b"", SECOND), Err(ClientError::Io { code: 10, .. })));
    }
}
