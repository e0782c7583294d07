//! A server that stores nothing: it answers every request at once, on the same reactor as the broker. What the machine,
//! the kernel, the reactor and the load generator cost without any broker: the floor of every other figure.

use crate::frame::{self, FLAG_ONE_WAY, FLAG_RESPONSE, Header, OPAQUE_BASE, Scanner, code};
use ringmq_net::reactor::{ConnId, Outbound, Port, Reactor, ReactorConfig, Service};
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};

#[derive(Clone, Debug, clap::Args)]
pub struct Settings {
    /// Address to listen on; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:10911")]
    pub listen: SocketAddr,
}

/// Serves until the process is told to end. Prints `ready ADDRESS` when it listens.
///
/// # Errors
/// The address cannot be bound, or the kernel refuses the ring.
pub fn run(settings: &Settings) -> io::Result<()> {
    let listener = TcpListener::bind(settings.listen)?;
    let address = listener.local_addr()?;
    let mut reactor = Reactor::new(ReactorConfig::default()).map_err(io::Error::other)?;
    reactor.listen(listener, Port(0)).map_err(io::Error::other)?;
    println!("ready {address}");
    io::stdout().flush()?;
    reactor.run(&mut Echo::default()).map_err(io::Error::other)
}

/// As long as the answer to a send, and the answers to a client's questions before a run.
struct Answer {
    json: Vec<u8>,
    json_opaque_at: usize,
    binary: Vec<u8>,
}

impl Answer {
    fn new(code: i32, ext: &[(&str, &str)]) -> Self {
        let json = frame::request_with_flag(Header::Json, code, FLAG_RESPONSE, OPAQUE_BASE, ext, &[]);
        let opaque = format!("\"opaque\":{OPAQUE_BASE}");
        let at = frame::search(&json, opaque.as_bytes()).expect("the opaque was just written");
        Self {
            json_opaque_at: at + "\"opaque\":".len(),
            json,
            binary: frame::request_with_flag(Header::Rocketmq, code, FLAG_RESPONSE, OPAQUE_BASE, ext, &[]),
        }
    }

    /// `opaque` must have ten digits, as all of the bench have.
    fn append(&self, out: &mut Vec<u8>, is_json: bool, opaque: u32) {
        let start = out.len();
        if is_json {
            out.extend_from_slice(&self.json);
            let at = start + self.json_opaque_at;
            frame::digits(&mut out[at..at + 10], u64::from(opaque));
        } else {
            out.extend_from_slice(&self.binary);
            out[start + 13..start + 17].copy_from_slice(&opaque.to_be_bytes());
        }
    }
}

struct Echo {
    scanner: Scanner,
    sent: Answer,
    unsupported: Answer,
}

impl Default for Echo {
    fn default() -> Self {
        let ext = [("msgId", "7F00000100002A9F0000000000000000"), ("queueId", "0"), ("queueOffset", "0")];
        Self {
            scanner: Scanner::default(),
            sent: Answer::new(code::SUCCESS, &ext),
            unsupported: Answer::new(code::REQUEST_CODE_NOT_SUPPORTED, &[]),
        }
    }
}

impl Service for Echo {
    type Mail = ();

    fn on_frame(&mut self, conn: ConnId, frame: &[u8], out: &mut Outbound<'_>) {
        let Ok(request) = self.scanner.scan(frame) else { return out.close(conn) };
        if request.flag & FLAG_ONE_WAY != 0 {
            return;
        }
        let answer = match request.code {
            code::SEND_MESSAGE_V2 | code::SEND_BATCH_MESSAGE | code::UPDATE_AND_CREATE_TOPIC => &self.sent,
            _ => &self.unsupported,
        };
        let Some(outbox) = out.buffer(conn) else { return };
        answer.append(outbox, frame[4] == 0, request.opaque);
    }

    fn on_mail(&mut self, (): (), _out: &mut Outbound<'_>) {}

    fn on_close(&mut self, _conn: ConnId, _out: &mut Outbound<'_>) {}

    fn on_turn(&mut self, _out: &mut Outbound<'_>) -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_carries_the_opaque_of_its_request() {
        let answer = Echo::default().sent;
        for is_json in [true, false] {
            for opaque in [OPAQUE_BASE, i32::MAX as u32] {
                let mut out = b"before".to_vec();
                answer.append(&mut out, is_json, opaque);
                let read = frame::decode(&out[6..]).unwrap();
                assert_eq!((read.code, read.opaque, read.is_response), (0, opaque, true));
                assert_eq!(read.ext["queueOffset"], "0");
            }
        }
    }
}
