//! One thread's I/O: a ring, its connections, their buffers. Works in turns: gather completions, let the
//! service work, submit once.
//!
//! ```text
//! turn   clocks ─ CQEs ─> on_accept, on_frame ─ mails ─> on_mail ─ changes ─> on_open, on_close ─> on_turn ─┐
//!        └─ one io_uring_enter: all sends, receives, accepts of the turn, and the wait for the next <────────┘
//! ```
//!
//! A connection has one multishot receive and at most one send in flight. Its files: `connection` cuts frames and
//! keeps what is to be sent (no I/O), `core` holds the connections and their states, `ring` and `buffers` are
//! all that touches the kernel, `timer` and `wake` say when to look and when to ring.

mod buffers;
mod connection;
mod core;
mod error;
mod probe;
mod ring;
mod timer;
pub(crate) mod wake;

pub use error::RingError;
pub use probe::probe;

use crate::mailbox::{MailSender, Mailbox};
use crate::protocol::frame::FRAME_BYTES_MAX;
use buffers::BufferRing;
use bytes::Bytes;
use core::Core;
use io_uring::cqueue;
use ring::{Completion, Ring, clocks};
use std::mem;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic;
use std::time::Duration;

/// Read once per turn and passed down.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Milliseconds since 1970.
    pub wall_ms: u64,
    /// CLOCK_MONOTONIC, the same for all threads.
    pub mono_ns: u64,
}

impl Now {
    /// For threads that have no turn.
    pub fn read() -> Self {
        let (mono_ns, wall_ms) = clocks();
        Self { wall_ms, mono_ns }
    }
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
    /// Submissions between two system calls; more cost another call. Rounded up to a power of two.
    pub sq_entries: u32,
    pub recv_buffer_bytes: u32,
    /// Rounded up to a power of two.
    pub recv_buffer_count: u16,
    /// No byte in or out for so long closes a connection (Java: 120 s).
    pub idle_ms: u64,
    pub frame_bytes_max: usize,
    /// Unsent bytes of one connection at which reading from it stops, until half of them are sent.
    pub out_bytes_max: usize,
    /// Bytes of all half-received large frames of this reactor. The connection that exceeds it is closed.
    pub partial_bytes_max: usize,
    /// Busy-poll the completion queue so long before blocking; 0 is off.
    pub spin_us: u32,
    pub mail_count_max: usize,
}

impl Default for ReactorConfig {
    fn default() -> Self {
        Self {
            sq_entries: 1024,
            recv_buffer_bytes: 16 << 10,
            recv_buffer_count: 256,
            idle_ms: 120_000,
            frame_bytes_max: FRAME_BYTES_MAX,
            out_bytes_max: 8 << 20,
            partial_bytes_max: 256 << 20,
            spin_us: 0,
            mail_count_max: 1 << 16,
        }
    }
}

/// What a node, a bench client or an echo server does with frames.
pub trait Service {
    type Mail: Send + 'static;

    /// A listener of this reactor accepted `socket`. Default: serve it here.
    fn on_accept(&mut self, socket: OwnedFd, peer: SocketAddr, port: Port, out: &mut Outbound<'_>) {
        out.adopt(socket, peer, port);
    }
    /// Before any frame of the connection, after the call that adopted it has returned.
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
    core: &'a mut Core,
}

impl Outbound<'_> {
    pub fn now(&self) -> Now {
        self.core.now
    }
    /// `None` for a connection that is gone.
    pub fn peer(&self, conn: ConnId) -> Option<SocketAddr> {
        self.core.peer(conn)
    }
    pub fn port(&self, conn: ConnId) -> Option<Port> {
        self.core.port(conn)
    }
    /// The end of the connection's outbox, to append whole frames to (or a frame head whose body follows by
    /// `push`). `None` for a connection that is gone or closing.
    pub fn buffer(&mut self, conn: ConnId) -> Option<&mut Vec<u8>> {
        self.core.buffer(conn)
    }
    /// Appends bytes that are sent from where they are; they live until the CQE of their send.
    pub fn push(&mut self, conn: ConnId, bytes: Bytes) {
        self.core.push(conn, bytes);
    }
    /// Sends what is queued, then closes. Frames that were received but not yet given out are dropped.
    pub fn close(&mut self, conn: ConnId) {
        self.core.close(conn);
    }
    /// `on_open` is called later in this turn, or in the next one when this is `on_turn`.
    pub fn adopt(&mut self, socket: OwnedFd, peer: SocketAddr, port: Port) -> ConnId {
        self.core.adopt(TcpStream::from(socket), peer, port)
    }
    /// Queued and not yet taken by the kernel; 0 for a connection that is gone.
    pub fn unsent_bytes(&self, conn: ConnId) -> usize {
        self.core.unsent_bytes(conn)
    }
    pub fn connection_count(&self) -> usize {
        self.core.connection_count()
    }
    /// Stops accepting on all listeners of this reactor (and closes them).
    pub fn stop_accepting(&mut self) {
        self.core.stop_accepting();
    }
    /// The reactor's `run` returns once every outbox is empty or `deadline_ns` (mono) is reached.
    pub fn finish(&mut self, deadline_ns: u64) {
        self.core.finish_ns = Some(deadline_ns);
    }
}

/// Not `Send`: its ring takes submissions from the thread that made it only. Dropping it closes every socket and
/// the mailbox; `on_close` is not called then.
pub struct Reactor<S: Service> {
    core: Core,
    buffers: BufferRing,
    mailbox: Mailbox<S::Mail>,
    mails: Vec<S::Mail>,
    entries: Vec<cqueue::Entry>,
    bell_armed: bool,
}

impl<S: Service> Reactor<S> {
    /// Must be called on the thread that will run it (SINGLE_ISSUER).
    ///
    /// # Errors
    /// io_uring is denied or too old, or memory or descriptors are missing; the error names the remedy.
    pub fn new(config: ReactorConfig) -> Result<Self, RingError> {
        let mut ring = Ring::new(config.sq_entries, config.spin_us > 0)?;
        let buffers = BufferRing::new(config.recv_buffer_count, config.recv_buffer_bytes)
            .map_err(|source| RingError::Call { call: "mmap of receive buffers", source })?;
        ring.register_buffers(&buffers).map_err(|source| RingError::register("IORING_REGISTER_PBUF_RING", source))?;
        let mailbox = Mailbox::new(config.mail_count_max)
            .map_err(|source| RingError::Call { call: "eventfd of the mailbox", source })?;
        let core = Core::new(config, ring, Now::read(), buffers.buffer_bytes());
        Ok(Self { core, buffers, mailbox, mails: Vec::new(), entries: Vec::new(), bell_armed: false })
    }

    pub fn mail_sender(&self) -> MailSender<S::Mail> {
        self.mailbox.sender()
    }

    /// # Errors
    /// More than 256 listeners, or a bad socket.
    pub fn listen(&mut self, listener: TcpListener, port: Port) -> Result<(), RingError> {
        self.core.listen(listener, port)
    }

    /// An outgoing connection (bench, tests), already connected. Calls `on_open`.
    pub fn adopt(&mut self, stream: TcpStream, port: Port, service: &mut S) -> ConnId {
        self.core.now = Now::read();
        // A peer that is gone already is met by the first receive.
        let peer = stream.peer_addr().unwrap_or_else(|_| SocketAddr::from(([0, 0, 0, 0], 0)));
        let id = self.core.adopt(stream, peer, port);
        self.call_changes(service);
        id
    }

    /// Works until a service calls `finish`. May be called again afterwards.
    ///
    /// # Errors
    /// The ring itself failed; the reactor cannot go on.
    pub fn run(&mut self, service: &mut S) -> Result<(), RingError> {
        loop {
            let service_ns = self.turn(service)?;
            if let Some(finish_ns) = self.core.finish_ns {
                let is_late = finish_ns <= self.core.now.mono_ns;
                if is_late || (self.core.is_all_sent() && self.core.opened.is_empty() && self.core.doomed.is_empty()) {
                    self.call_changes(service);
                    self.core.finish_ns = None;
                    return self.core.ring.enter(0, None);
                }
            }
            self.wait(service_ns)?;
        }
    }

    /// Everything but the system call. Returns the service's deadline.
    fn turn(&mut self, service: &mut S) -> Result<Option<u64>, RingError> {
        self.core.now = Now::read();
        // Of the last turn's end: a connection adopted in `on_turn` is open before its first frame.
        self.call_changes(service);
        self.take_completions(service)?;
        self.take_mails(service);
        self.read_on(service);
        self.core.sweep_idle();
        self.call_changes(service);
        let service_ns = service.on_turn(&mut Outbound { core: &mut self.core });
        if !self.bell_armed {
            self.core.ring.poll_bell(self.mailbox.bell_fd())?;
            self.bell_armed = true;
        }
        self.core.flush()?;
        Ok(service_ns)
    }

    fn take_completions(&mut self, service: &mut S) -> Result<(), RingError> {
        let mut entries = mem::take(&mut self.entries);
        self.core.ring.reap(&mut entries)?;
        for entry in entries.drain(..) {
            match self.core.ring.completion(&entry) {
                Completion::Receive { slot, result: Ok(Some(received)), more } => {
                    if received.bytes() > 0 {
                        let bytes = self.buffers.bytes(&received);
                        if self.core.note_received(slot, bytes, more) {
                            let left_bytes = read(&mut self.core, service, slot, bytes);
                            self.core.keep(slot, &bytes[bytes.len() - left_bytes..]);
                        }
                    } else if !more {
                        self.core.note_receive_end(slot, None);
                    }
                    self.buffers.give_back(received);
                }
                Completion::Receive { slot, result: Ok(None), .. } => self.core.note_receive_end(slot, None),
                Completion::Receive { slot, result: Err(errno), .. } => self.core.note_receive_end(slot, Some(errno)),
                Completion::Send { slot, result, flight } => self.core.note_sent(slot, result, flight)?,
                Completion::Accept { listener, result, more } => {
                    self.core.note_accepted(listener, result.as_ref().err().copied(), more);
                    if let Ok(socket) = result
                        && self.core.accepts()
                    {
                        self.call_accept(service, listener, socket);
                    }
                }
                Completion::Bell { more } => self.bell_armed &= more,
                Completion::Cancel => {}
            }
        }
        self.entries = entries;
        Ok(())
    }

    fn call_accept(&mut self, service: &mut S, listener: u32, socket: OwnedFd) {
        let port = self.core.listener_port(listener);
        let stream = TcpStream::from(socket);
        match stream.peer_addr() {
            Ok(peer) => {
                service.on_accept(OwnedFd::from(stream), peer, port, &mut Outbound { core: &mut self.core });
            }
            Err(error) => tracing::debug!(%error, "gone before it was accepted"),
        }
    }

    fn take_mails(&mut self, service: &mut S) {
        let mut mails = mem::take(&mut self.mails);
        self.mailbox.take(&mut mails);
        for mail in mails.drain(..) {
            service.on_mail(mail, &mut Outbound { core: &mut self.core });
        }
        self.mails = mails;
    }

    /// Connections whose back-pressure is over: what they had sent meanwhile.
    fn read_on(&mut self, service: &mut S) {
        let mut ready = mem::take(&mut self.core.ready);
        for slot in ready.drain(..) {
            let (bytes, position) = self.core.take_kept(slot);
            let left_bytes = if self.core.connection(slot).reads() {
                read(&mut self.core, service, slot, &bytes[position..])
            } else {
                bytes.len() - position
            };
            self.core.restore_kept(slot, bytes, left_bytes);
        }
        self.core.ready = ready;
    }

    fn call_changes(&mut self, service: &mut S) {
        loop {
            if let Some(id) = self.core.opened.pop_front() {
                service.on_open(id, &mut Outbound { core: &mut self.core });
            } else if let Some(slot) = self.core.doomed.pop_front() {
                service.on_close(self.core.id(slot), &mut Outbound { core: &mut self.core });
                self.core.note_closed(slot);
            } else {
                return;
            }
        }
    }

    /// The turn's system call. Does not block when something is left to do.
    fn wait(&mut self, service_ns: Option<u64>) -> Result<(), RingError> {
        let Self { core, mailbox, .. } = self;
        let deadline_ns =
            [service_ns, core.idle.next_ns(), core.accept_retry_ns(), core.finish_ns].into_iter().flatten().min();
        let has_more = !core.opened.is_empty() || !core.doomed.is_empty() || mailbox.has_mail();
        if has_more || deadline_ns.is_some_and(|deadline_ns| deadline_ns <= core.now.mono_ns) {
            return core.ring.enter(0, None);
        }
        if core.config.spin_us > 0 {
            core.ring.enter(0, None)?;
            let until_ns = core.now.mono_ns + u64::from(core.config.spin_us) * 1000;
            loop {
                if core.ring.has_work() || mailbox.has_mail() {
                    return core.ring.enter(0, None);
                }
                let now_ns = Now::read().mono_ns;
                if deadline_ns.is_some_and(|deadline_ns| deadline_ns <= now_ns) {
                    return core.ring.enter(0, None);
                }
                if now_ns >= until_ns {
                    break;
                }
                std::hint::spin_loop();
            }
        }
        if !mailbox.fall_asleep() {
            return core.ring.enter(0, None);
        }
        // Read again: the turn itself took time, and a deadline must not be late by that.
        let timeout =
            deadline_ns.map(|deadline_ns| Duration::from_nanos(deadline_ns.saturating_sub(Now::read().mono_ns)));
        let result = core.ring.enter(1, timeout);
        mailbox.wake_up();
        result
    }
}

/// Gives the frames of `bytes` to the service until they are used up, the connection is paused or at its end.
/// Returns how many bytes are left.
fn read<S: Service>(core: &mut Core, service: &mut S, slot: u32, bytes: &[u8]) -> usize {
    let id = core.id(slot);
    let frame_bytes_max = core.config.frame_bytes_max;
    let mut inbox = mem::take(&mut core.connection(slot).inbox);
    let mut piece = bytes;
    loop {
        match inbox.next(&mut piece, frame_bytes_max, &mut core.budget) {
            Ok(Some(frame)) => {
                service.on_frame(id, frame, &mut Outbound { core });
                if !core.may_read_on(slot) {
                    break;
                }
            }
            Ok(None) => break,
            Err(refusal) => {
                core.refuse(slot, &refusal);
                break;
            }
        }
    }
    inbox.release_read(&mut core.budget);
    core.connection(slot).inbox = inbox;
    piece.len()
}

impl<S: Service> Drop for Reactor<S> {
    fn drop(&mut self) {
        self.core.shut_down();
    }
}
