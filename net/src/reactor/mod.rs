//! One thread's I/O: a ring, its connections, their buffers. Works in turns: gather completions, let the
//! service work, submit once.

use crate::mailbox::MailSender;
use bytes::Bytes;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;

/// Read once per turn and passed down.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    pub wall_ms: u64,
    pub mono_ns: u64,
}

/// A connection of one reactor. The generation keeps a late answer away from the slot's next tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId {
    pub slot: u32,
    pub generation: u32,
}

/// Which listener a connection came through; 255 is for connections adopted without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port(pub u8);

#[derive(Clone, Debug)]
pub struct ReactorConfig {
    pub sq_entries: u32,
    pub recv_buffer_bytes: u32,
    pub recv_buffer_count: u16,
    /// No byte in or out for so long closes a connection (Java: 120 s).
    pub idle_ms: u64,
    pub frame_bytes_max: usize,
    /// Unsent bytes of one connection at which reading from it stops.
    pub out_bytes_max: usize,
    /// Bytes of all half-received large frames of this reactor.
    pub partial_bytes_max: usize,
    /// Busy-poll the completion queue so long before blocking; 0 is off.
    pub spin_us: u32,
    pub mail_count_max: usize,
}

impl Default for ReactorConfig {
    fn default() -> Self {
        todo!()
    }
}

/// What a node, a bench client or an echo server does with frames.
pub trait Service {
    type Mail: Send + 'static;

    /// A listener of this reactor accepted `socket`. Default: serve it here.
    fn on_accept(&mut self, socket: OwnedFd, peer: SocketAddr, port: Port, out: &mut Outbound<'_>) {
        out.adopt(socket, peer, port);
    }
    fn on_open(&mut self, _conn: ConnId, _out: &mut Outbound<'_>) {}
    /// `frame` is one whole frame, its length word first; head already checked. Borrowed from the receive buffer.
    fn on_frame(&mut self, conn: ConnId, frame: &[u8], out: &mut Outbound<'_>);
    fn on_mail(&mut self, mail: Self::Mail, out: &mut Outbound<'_>);
    /// Called once for each opened connection, whatever closed it. Its peer is still known.
    fn on_close(&mut self, conn: ConnId, out: &mut Outbound<'_>);
    /// After all completions and mails of a turn, before the submit. Returns the next deadline (`mono_ns`)
    /// at which it wants a turn even if nothing happens.
    fn on_turn(&mut self, out: &mut Outbound<'_>) -> Option<u64>;
}

/// What a service may do to connections during a turn. Nothing is sent before the turn's end; then each
/// connection's segments go out in one SEND/SENDMSG, in the order they were added.
pub struct Outbound<'a> {
    _p: std::marker::PhantomData<&'a mut ()>,
}

impl Outbound<'_> {
    pub fn now(&self) -> Now {
        todo!()
    }
    /// `None` for a connection that is gone.
    pub fn peer(&self, _conn: ConnId) -> Option<SocketAddr> {
        todo!()
    }
    pub fn port(&self, _conn: ConnId) -> Option<Port> {
        todo!()
    }
    /// The end of the connection's outbox, to append whole frames to (or a frame head whose body follows by
    /// `push`). `None` for a connection that is gone or closing.
    pub fn buffer(&mut self, _conn: ConnId) -> Option<&mut Vec<u8>> {
        todo!()
    }
    /// Appends bytes that are sent from where they are; they live until the CQE of their send.
    pub fn push(&mut self, _conn: ConnId, _bytes: Bytes) {
        todo!()
    }
    /// Sends what is queued, then closes.
    pub fn close(&mut self, _conn: ConnId) {
        todo!()
    }
    pub fn adopt(&mut self, _socket: OwnedFd, _peer: SocketAddr, _port: Port) -> ConnId {
        todo!()
    }
    pub fn connection_count(&self) -> usize {
        todo!()
    }
    /// Stops accepting on all listeners of this reactor (and closes them).
    pub fn stop_accepting(&mut self) {
        todo!()
    }
    /// The reactor's `run` returns once every outbox is empty or `deadline_ns` (mono) is reached.
    pub fn finish(&mut self, _deadline_ns: u64) {
        todo!()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum RingError {
    #[error("placeholder")]
    Placeholder,
}

pub struct Reactor<S: Service> {
    _s: std::marker::PhantomData<S>,
}

impl<S: Service> Reactor<S> {
    /// Must be called on the thread that will run it (SINGLE_ISSUER).
    pub fn new(_config: ReactorConfig) -> Result<Self, RingError> {
        todo!()
    }
    pub fn mail_sender(&self) -> MailSender<S::Mail> {
        todo!()
    }
    pub fn listen(&mut self, _listener: TcpListener, _port: Port) -> Result<(), RingError> {
        todo!()
    }
    /// An outgoing connection (bench, tests), already connected.
    pub fn adopt(&mut self, _stream: TcpStream, _port: Port, _service: &mut S) -> ConnId {
        todo!()
    }
    pub fn run(&mut self, _service: &mut S) -> Result<(), RingError> {
        todo!()
    }
}

/// What this kernel's io_uring offers, for the start-up line; or the one line that says what is missing and the remedy.
pub fn probe() -> Result<String, RingError> {
    todo!()
}

use std::sync::atomic;
pub(crate) mod wake;
