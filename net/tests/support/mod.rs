//! A server on a reactor in its own thread, and frames to feed it.
#![allow(dead_code, reason = "each test binary uses its part")]

use bytes::Bytes;
use ringmq_net::mailbox::MailSender;
use ringmq_net::reactor::{ConnId, Now, Outbound, Port, Reactor, ReactorConfig, Service};
use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub enum Mail {
    Count,
    Adopt(OwnedFd, SocketAddr),
    /// Adopted by the turn's `on_turn`.
    AdoptLate(OwnedFd, SocketAddr),
    /// Milliseconds from now.
    Finish(u64),
    StopAccepting,
    /// Milliseconds from now.
    Deadline(u64),
}

#[derive(Default)]
pub struct Counts {
    pub opened: AtomicUsize,
    pub closed: AtomicUsize,
    pub frames: AtomicUsize,
    pub mails: AtomicUsize,
    pub turns: AtomicUsize,
    /// `connection_count` after the last turn.
    pub connections: AtomicUsize,
    /// How late the turn of a `Deadline` came; MAX before.
    pub late_us: AtomicU64,
}

#[derive(Default)]
pub struct TestService {
    pub counts: Arc<Counts>,
    open: std::collections::HashSet<ConnId>,
    deadline_ns: Option<u64>,
    late: Vec<(OwnedFd, SocketAddr)>,
}

/// Sends each frame back, but
/// `many N`: a frame with a body of N bytes; `pieces N`: of N times two numbers, one pushed and one written;
/// `close`: sends it back and closes.
impl Service for TestService {
    type Mail = Mail;

    fn on_open(&mut self, conn: ConnId, out: &mut Outbound<'_>) {
        assert!(self.open.insert(conn));
        assert!(out.peer(conn).is_some());
        self.counts.opened.fetch_add(1, Ordering::SeqCst);
    }

    fn on_frame(&mut self, conn: ConnId, bytes: &[u8], out: &mut Outbound<'_>) {
        assert!(self.open.contains(&conn));
        self.counts.frames.fetch_add(1, Ordering::SeqCst);
        let text = std::str::from_utf8(&bytes[8..]).unwrap_or("");
        let (word, number) = text.split_once(' ').unwrap_or((text, ""));
        match (word, number.parse::<usize>()) {
            ("many", Ok(count)) => {
                let body = Bytes::from(vec![1; count]);
                out.buffer(conn).unwrap().extend(head(count));
                out.push(conn, body);
            }
            ("pieces", Ok(count)) => {
                out.buffer(conn).unwrap().extend(head(8 * count));
                for index in 0..count as u32 {
                    out.push(conn, Bytes::copy_from_slice(&index.to_be_bytes()));
                    out.buffer(conn).unwrap().extend((!index).to_be_bytes());
                }
            }
            ("close", _) => {
                out.buffer(conn).unwrap().extend(bytes);
                out.close(conn);
                assert!(out.buffer(conn).is_none());
            }
            _ => out.buffer(conn).unwrap().extend(bytes),
        }
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbound<'_>) {
        let later = |ms: u64| out.now().mono_ns + ms * 1_000_000;
        match mail {
            Mail::Count => {}
            Mail::Adopt(socket, peer) => {
                let conn = out.adopt(socket, peer, Port(255));
                assert_eq!(out.port(conn), Some(Port(255)));
            }
            Mail::AdoptLate(socket, peer) => self.late.push((socket, peer)),
            Mail::Finish(ms) => out.finish(later(ms)),
            Mail::StopAccepting => out.stop_accepting(),
            Mail::Deadline(ms) => {
                self.counts.late_us.store(u64::MAX, Ordering::SeqCst);
                self.deadline_ns = Some(later(ms));
            }
        }
        self.counts.mails.fetch_add(1, Ordering::SeqCst);
    }

    fn on_close(&mut self, conn: ConnId, out: &mut Outbound<'_>) {
        assert!(self.open.remove(&conn), "closed twice or never opened");
        assert!(out.peer(conn).is_some());
        assert!(out.buffer(conn).is_none());
        self.counts.closed.fetch_add(1, Ordering::SeqCst);
    }

    fn on_turn(&mut self, out: &mut Outbound<'_>) -> Option<u64> {
        for (socket, peer) in self.late.drain(..) {
            out.adopt(socket, peer, Port(255));
        }
        self.counts.turns.fetch_add(1, Ordering::SeqCst);
        self.counts.connections.store(out.connection_count(), Ordering::SeqCst);
        if let Some(deadline_ns) = self.deadline_ns
            && let Some(late_ns) = Now::read().mono_ns.checked_sub(deadline_ns)
        {
            self.deadline_ns = None;
            self.counts.late_us.store(late_ns / 1000, Ordering::SeqCst);
        }
        self.deadline_ns
    }
}

pub struct Server {
    pub addr: SocketAddr,
    pub sender: MailSender<Mail>,
    pub counts: Arc<Counts>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start(config: ReactorConfig) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let service = TestService::default();
        service.counts.late_us.store(u64::MAX, Ordering::SeqCst);
        let counts = Arc::clone(&service.counts);
        let (made, wait) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            let mut service = service;
            let mut reactor = Reactor::new(config).unwrap();
            reactor.listen(listener, Port(7)).unwrap();
            made.send(reactor.mail_sender()).unwrap();
            reactor.run(&mut service).unwrap();
        });
        Self { addr, sender: wait.recv().unwrap(), counts, thread: Some(thread) }
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.addr).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    pub fn wait_until(&self, what: &str, is_so: impl Fn(&Counts) -> bool) {
        let start = Instant::now();
        while !is_so(&self.counts) {
            assert!(start.elapsed() < Duration::from_secs(20), "waited for {what}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn wait_for_count(&self, count: usize) {
        self.wait_until("connection count", |counts| counts.connections.load(Ordering::SeqCst) == count);
        self.wait_until("closes", |counts| {
            counts.opened.load(Ordering::SeqCst) - counts.closed.load(Ordering::SeqCst) == count
        });
    }

    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    pub fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.sender.send(Mail::Finish(0));
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !thread::panicking()
        {
            panic!("the reactor's thread panicked");
        }
    }
}

/// Few and small buffers, so that frames are cut and buffers run out.
pub fn small() -> ReactorConfig {
    ReactorConfig { recv_buffer_bytes: 512, recv_buffer_count: 8, ..ReactorConfig::default() }
}

fn head(body_bytes: usize) -> [u8; 8] {
    let [a, b, c, d] = (4 + body_bytes as u32).to_be_bytes();
    [a, b, c, d, 0, 0, 0, 0]
}

/// A frame without a header.
pub fn frame(body: &[u8]) -> Vec<u8> {
    [&head(body.len()), body].concat()
}

pub fn read_frame(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut word = [0; 4];
    stream.read_exact(&mut word)?;
    let mut frame = word.to_vec();
    frame.resize(4 + u32::from_be_bytes(word) as usize, 0);
    stream.read_exact(&mut frame[4..])?;
    Ok(frame)
}
