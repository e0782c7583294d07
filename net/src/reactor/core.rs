//! The connections of a reactor, their states, and what is submitted for them at the end of a turn.
//!
//! ```text
//! open ── close() or end of peer ──> drains ── outbox empty ──> doomed ── on_close ──> closed ── last CQE ──> free
//!   └──────────── error, idle, no frame ───────────────────────────^
//! ```
//!
//! A socket is closed and its slot given on only when no operation of it is outstanding, so a CQE always meets the
//! connection it belongs to, and a descriptor's number is never reused under a queued operation.

use super::connection::{Inbox, Outbox, PartialBudget, Pool, Refusal};
use super::error::RingError;
use super::ring::{Flight, Ring};
use super::timer::{IdleSweep, LogLimit};
use super::{ConnId, Now, Port, ReactorConfig};
use std::collections::VecDeque;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};

/// How long accepting rests when no descriptor (or no kernel memory) is left.
const ACCEPT_PAUSE_NS: u64 = 100_000_000;
/// How long a closing connection waits for its peer's end. A close while bytes are unread is a reset, which takes
/// away what the peer has not read yet.
const LINGER_NS: u64 = 1_000_000_000;
/// A buffer of kept bytes above this is given up once empty.
const KEPT_ROOM_MAX: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// What is queued goes out, then it is doomed. Nothing is added any more, what comes is dropped.
    Draining,
    /// Shut down (after a close only its sending half); `on_close` is still to be called.
    Doomed,
    /// `on_close` was called; waits for its last CQE.
    Closed,
}

/// Received bytes of a connection whose reading rests.
#[derive(Default)]
struct Kept {
    bytes: Vec<u8>,
    position: usize,
}

pub struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    port: Port,
    state: State,
    /// A receive is outstanding.
    receives: bool,
    /// Its cancellation is on the way.
    cancels: bool,
    /// Bytes of the outstanding send and of what follows it in the same flight; 0 when there is none.
    flight_bytes: usize,
    /// Too much is unsent: nothing is read.
    paused: bool,
    /// The peer sends no more.
    ended: bool,
    is_dirty: bool,
    /// `mono_ns` of the last byte in or out.
    active_ns: u64,
    /// Closed, and waits for its peer's end so long (`mono_ns`).
    linger_ns: Option<u64>,
    pub inbox: Inbox,
    kept: Kept,
    outbox: Outbox,
}

impl Connection {
    fn unsent_bytes(&self) -> usize {
        self.flight_bytes + self.outbox.bytes()
    }

    fn is_outstanding(&self) -> bool {
        self.receives || self.flight_bytes > 0
    }

    /// Frames may be taken from what it received.
    pub fn reads(&self) -> bool {
        self.state == State::Open && !self.paused
    }
}

struct Slot {
    generation: u32,
    connection: Option<Connection>,
}

pub struct Listener {
    /// `None` once closed.
    socket: Option<TcpListener>,
    port: Port,
    is_armed: bool,
    /// A cancellation is on the way.
    cancels: bool,
    retry_ns: Option<u64>,
    /// The last accept found no descriptor: said once, not ten times a second.
    is_starved: bool,
}

pub struct Core {
    pub config: ReactorConfig,
    pub now: Now,
    pub ring: Ring,
    pub budget: PartialBudget,
    pool: Pool,
    /// Boxed as the ring needs them: moved there and back, not made anew.
    #[expect(clippy::vec_box)]
    flights: Vec<Box<Flight>>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    open_count: usize,
    listeners: Vec<Listener>,
    accepts: bool,
    /// Slots to look at before the turn's submit.
    dirty: Vec<u32>,
    /// Slots whose kept bytes may be read on.
    pub ready: Vec<u32>,
    /// `on_open` is to be called.
    pub opened: VecDeque<ConnId>,
    /// `on_close` is to be called.
    pub doomed: VecDeque<u32>,
    pub idle: IdleSweep,
    refusals: LogLimit,
    /// `run` returns at this `mono_ns`, or when all is sent.
    pub finish_ns: Option<u64>,
}

impl Core {
    pub fn new(config: ReactorConfig, ring: Ring, now: Now, buffer_bytes: usize) -> Self {
        Self {
            budget: PartialBudget::new(config.partial_bytes_max, buffer_bytes),
            idle: IdleSweep::new(config.idle_ms),
            refusals: LogLimit::default(),
            config,
            now,
            ring,
            pool: Pool::default(),
            flights: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
            open_count: 0,
            listeners: Vec::new(),
            accepts: true,
            dirty: Vec::new(),
            ready: Vec::new(),
            opened: VecDeque::new(),
            doomed: VecDeque::new(),
            finish_ns: None,
        }
    }

    // Connections by their id, as services know them.

    fn find(&self, id: ConnId) -> Option<&Connection> {
        let slot = self.slots.get(id.slot as usize)?;
        if slot.generation != id.generation {
            return None;
        }
        slot.connection.as_ref().filter(|connection| connection.state != State::Closed)
    }

    /// An open connection, marked for the end of the turn.
    fn open_mut(&mut self, id: ConnId) -> Option<(&mut Connection, &mut Pool)> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        if slot.generation != id.generation {
            return None;
        }
        let connection = slot.connection.as_mut().filter(|connection| connection.state == State::Open)?;
        if !connection.is_dirty {
            connection.is_dirty = true;
            self.dirty.push(id.slot);
        }
        Some((connection, &mut self.pool))
    }

    pub fn peer(&self, id: ConnId) -> Option<SocketAddr> {
        self.find(id).map(|connection| connection.peer)
    }

    pub fn port(&self, id: ConnId) -> Option<Port> {
        self.find(id).map(|connection| connection.port)
    }

    pub fn buffer(&mut self, id: ConnId) -> Option<&mut Vec<u8>> {
        let (connection, pool) = self.open_mut(id)?;
        Some(connection.outbox.tail(pool))
    }

    pub fn push(&mut self, id: ConnId, bytes: bytes::Bytes) {
        if let Some((connection, pool)) = self.open_mut(id) {
            connection.outbox.push(bytes, pool);
        }
    }

    pub fn close(&mut self, id: ConnId) {
        if let Some((connection, _)) = self.open_mut(id) {
            connection.state = State::Draining;
        }
    }

    pub fn unsent_bytes(&self, id: ConnId) -> usize {
        self.find(id).map_or(0, Connection::unsent_bytes)
    }

    pub fn connection_count(&self) -> usize {
        self.open_count
    }

    /// The socket is made blocking: on others the kernel answers EAGAIN instead of waiting.
    pub fn adopt(&mut self, stream: TcpStream, peer: SocketAddr, port: Port) -> ConnId {
        if let Err(error) = stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(false)) {
            // Of a socket that was reset already; the first receive says so again.
            tracing::debug!(%peer, %error, "socket options");
        }
        let connection = Connection {
            stream,
            peer,
            port,
            state: State::Open,
            receives: false,
            cancels: false,
            flight_bytes: 0,
            paused: false,
            ended: false,
            is_dirty: true,
            active_ns: self.now.mono_ns,
            linger_ns: None,
            inbox: Inbox::default(),
            kept: Kept::default(),
            outbox: Outbox::default(),
        };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, connection: None });
            u32::try_from(self.slots.len() - 1).expect("fewer connections than 2^32")
        });
        let entry = &mut self.slots[slot as usize];
        entry.generation = entry.generation.wrapping_add(1);
        entry.connection = Some(connection);
        let id = ConnId { slot, generation: entry.generation };
        self.open_count += 1;
        self.dirty.push(slot);
        self.opened.push_back(id);
        self.idle.add(self.now.mono_ns);
        id
    }

    // Connections by their slot, as completions know them.

    pub fn connection(&mut self, slot: u32) -> &mut Connection {
        self.slots[slot as usize].connection.as_mut().expect("a slot with an operation has its connection")
    }

    pub fn id(&self, slot: u32) -> ConnId {
        ConnId { slot, generation: self.slots[slot as usize].generation }
    }

    fn mark(&mut self, slot: u32) {
        let connection = self.connection(slot);
        if !connection.is_dirty {
            connection.is_dirty = true;
            self.dirty.push(slot);
        }
    }

    /// A CQE of the connection's receive. True: bytes that came with it are to be read at once.
    pub fn note_received(&mut self, slot: u32, bytes: &[u8], more: bool) -> bool {
        let active_ns = self.now.mono_ns;
        let connection = self.connection(slot);
        if !more {
            connection.receives = false;
            connection.cancels = false;
        }
        connection.active_ns = active_ns;
        let reads = connection.reads() && connection.kept.bytes.is_empty();
        if !reads && connection.state == State::Open {
            connection.kept.bytes.extend_from_slice(bytes);
        }
        if !more {
            self.mark(slot);
            self.retire(slot);
        }
        reads
    }

    /// The last CQE of the connection's receive brought no bytes: the peer's end (`None`) or an errno.
    pub fn note_receive_end(&mut self, slot: u32, errno: Option<i32>) {
        let connection = self.connection(slot);
        connection.receives = false;
        connection.cancels = false;
        match errno {
            None => connection.ended = true,
            // No buffer was free, or we cancelled: the end of the turn decides whether it goes on.
            Some(libc::ENOBUFS | libc::ECANCELED | libc::EINTR | libc::EAGAIN) => {}
            Some(errno) => {
                tracing::debug!(peer = %connection.peer, errno, "connection lost while receiving");
                self.doom(slot);
            }
        }
        self.mark(slot);
        self.retire(slot);
    }

    /// Bytes of the receive buffer that `read` left because the connection was paused.
    pub fn keep(&mut self, slot: u32, bytes: &[u8]) {
        let connection = self.connection(slot);
        if connection.state == State::Open {
            connection.kept.bytes.extend_from_slice(bytes);
        }
    }

    pub fn take_kept(&mut self, slot: u32) -> (Vec<u8>, usize) {
        let connection = self.connection(slot);
        let kept = std::mem::take(&mut connection.kept);
        (kept.bytes, kept.position)
    }

    /// After `take_kept`: `left_bytes` at its end were not read.
    pub fn restore_kept(&mut self, slot: u32, mut bytes: Vec<u8>, left_bytes: usize) {
        let connection = self.connection(slot);
        let mut position = bytes.len() - left_bytes;
        if left_bytes == 0 || connection.state != State::Open {
            bytes.clear();
            bytes.shrink_to(KEPT_ROOM_MAX);
            position = 0;
        }
        connection.kept = Kept { bytes, position };
        self.mark(slot);
    }

    /// Stops reading when too much is unsent. True: it may read on.
    pub fn may_read_on(&mut self, slot: u32) -> bool {
        let out_bytes_max = self.config.out_bytes_max;
        let connection = self.connection(slot);
        if connection.unsent_bytes() > out_bytes_max {
            connection.paused = true;
            self.mark(slot);
        }
        self.connection(slot).reads()
    }

    /// The CQE of a connection's send.
    pub fn note_sent(
        &mut self,
        slot: u32,
        result: Result<usize, i32>,
        mut flight: Box<Flight>,
    ) -> Result<(), RingError> {
        let now_ns = self.now.mono_ns;
        let is_gone = matches!(self.connection(slot).state, State::Doomed | State::Closed);
        let goes_on = match result {
            Ok(bytes @ 1..) => {
                flight.advance(bytes, &mut self.pool);
                self.connection(slot).active_ns = now_ns;
                !is_gone
            }
            Err(libc::EINTR | libc::EAGAIN | libc::ECANCELED) => !is_gone,
            Ok(0) | Err(_) => {
                if !is_gone {
                    tracing::debug!(peer = %self.connection(slot).peer, ?result, "connection lost while sending");
                    self.doom(slot);
                }
                false
            }
        };
        if goes_on && flight.left_bytes() > 0 {
            let connection = self.connection(slot);
            connection.flight_bytes = flight.left_bytes();
            let fd = connection.stream.as_raw_fd();
            self.ring.send(slot, fd, flight)?;
        } else {
            flight.unload(&mut self.pool);
            if self.flights.len() < 256 {
                self.flights.push(flight);
            }
            self.connection(slot).flight_bytes = 0;
            self.mark(slot);
        }
        // Half, so that a connection at the limit does not stop and go with each frame.
        let resume_bytes = self.config.out_bytes_max / 2;
        let connection = self.connection(slot);
        if connection.paused && connection.state == State::Open && connection.unsent_bytes() <= resume_bytes {
            connection.paused = false;
            self.ready.push(slot);
            self.mark(slot);
        }
        self.retire(slot);
        Ok(())
    }

    /// Ends a connection at once: what it has queued is dropped, its operations come back, `on_close` follows.
    pub fn doom(&mut self, slot: u32) {
        self.doom_by(slot, Shutdown::Both);
    }

    fn doom_by(&mut self, slot: u32, how: Shutdown) {
        let Self { slots, pool, doomed, open_count, .. } = self;
        let connection = slots[slot as usize].connection.as_mut().expect("a slot in use");
        if matches!(connection.state, State::Doomed | State::Closed) {
            return;
        }
        connection.state = State::Doomed;
        connection.outbox.clear(pool);
        connection.kept = Kept::default();
        // `Both` ends an outstanding receive and send. Fails where the peer was faster.
        let _ = connection.stream.shutdown(how);
        *open_count -= 1;
        doomed.push_back(slot);
    }

    /// What came is no frame, or too much: one line that names the likely cause.
    #[cold]
    pub fn refuse(&mut self, slot: u32, refusal: &Refusal) {
        if let Some(unlogged) = self.refusals.line(self.now.mono_ns) {
            tracing::warn!(peer = %self.connection(slot).peer, unlogged, "connection closed: {refusal}");
        }
        // A reset: a peer that sends on behind a closed window would wait for a minute on a polite end.
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        let fd = self.connection(slot).stream.as_fd();
        if let Err(error) = nix::sys::socket::setsockopt(&fd, nix::sys::socket::sockopt::Linger, &linger) {
            tracing::debug!(%error, "a refused connection ends politely");
        }
        self.doom(slot);
    }

    /// `on_close` was called.
    pub fn note_closed(&mut self, slot: u32) {
        let connection = self.connection(slot);
        assert_eq!(connection.state, State::Doomed);
        connection.state = State::Closed;
        self.retire(slot);
    }

    /// Frees the slot of a closed connection without operations.
    fn retire(&mut self, slot: u32) {
        let Self { slots, budget, free, .. } = self;
        let entry = &mut slots[slot as usize];
        let connection = entry.connection.as_mut().expect("a slot in use");
        if connection.state == State::Closed && !connection.is_outstanding() && !connection.is_dirty {
            connection.inbox.release(budget);
            entry.connection = None;
            free.push(slot);
        }
    }

    pub fn sweep_idle(&mut self) {
        let now_ns = self.now.mono_ns;
        if !self.idle.is_due(now_ns) {
            return;
        }
        let mut oldest_ns: Option<u64> = None;
        let mut linger_ns: Option<u64> = None;
        for slot in 0..self.slots.len() as u32 {
            let Some(connection) = self.slots[slot as usize].connection.as_mut() else { continue };
            if let Some(until_ns) = connection.linger_ns {
                if until_ns <= now_ns {
                    connection.linger_ns = None;
                    let _ = connection.stream.shutdown(Shutdown::Both);
                } else {
                    linger_ns = Some(linger_ns.map_or(until_ns, |linger_ns| linger_ns.min(until_ns)));
                }
            }
            let active_ns = connection.active_ns;
            if matches!(connection.state, State::Doomed | State::Closed) {
                continue;
            }
            if self.idle.is_idle(active_ns, now_ns) {
                tracing::debug!(peer = %connection.peer, half_frame = connection.inbox.is_partial(), "idle, closed");
                self.doom(slot);
            } else {
                oldest_ns = Some(oldest_ns.map_or(active_ns, |oldest_ns| oldest_ns.min(active_ns)));
            }
        }
        self.idle.swept(oldest_ns, now_ns);
        if let Some(linger_ns) = linger_ns {
            self.idle.hurry(linger_ns);
        }
    }

    /// Queues the turn's operations of all connections that were touched.
    pub fn flush(&mut self) -> Result<(), RingError> {
        self.flush_listeners()?;
        let mut dirty = std::mem::take(&mut self.dirty);
        for slot in dirty.drain(..) {
            self.flush_connection(slot)?;
        }
        assert!(self.dirty.is_empty());
        self.dirty = dirty;
        Ok(())
    }

    fn flush_connection(&mut self, slot: u32) -> Result<(), RingError> {
        let Self { slots, ring, flights, config, idle, now, .. } = self;
        let connection = slots[slot as usize].connection.as_mut().expect("a dirty slot is in use");
        connection.is_dirty = false;
        if matches!(connection.state, State::Doomed | State::Closed) {
            self.retire(slot);
            return Ok(());
        }
        let fd = connection.stream.as_raw_fd();
        if connection.flight_bytes == 0 && !connection.outbox.is_empty() {
            let mut flight = flights.pop().unwrap_or_else(Flight::new);
            flight.load(connection.outbox.take());
            connection.flight_bytes = flight.left_bytes();
            ring.send(slot, fd, flight)?;
        }
        if connection.unsent_bytes() > config.out_bytes_max {
            connection.paused = true;
        }
        let has_kept = connection.kept.position < connection.kept.bytes.len();
        let is_last = connection.state == State::Draining || (connection.ended && !has_kept);
        let drops_input = connection.state == State::Draining && !connection.ended;
        let wants = drops_input || (connection.reads() && !connection.ended && !has_kept);
        if wants && !connection.receives {
            connection.receives = true;
            ring.receive(slot, fd)?;
        } else if !wants && connection.receives && !connection.cancels {
            connection.cancels = true;
            ring.cancel_receive(slot)?;
        }
        if is_last && connection.unsent_bytes() == 0 {
            if drops_input {
                let until_ns = now.mono_ns + LINGER_NS;
                connection.linger_ns = Some(until_ns);
                idle.hurry(until_ns);
            }
            self.doom_by(slot, if drops_input { Shutdown::Write } else { Shutdown::Both });
        }
        Ok(())
    }

    /// Nothing is queued or on its way.
    pub fn is_all_sent(&self) -> bool {
        self.slots
            .iter()
            .filter_map(|slot| slot.connection.as_ref())
            .all(|connection| connection.state == State::Closed || connection.unsent_bytes() == 0)
    }

    // Listeners.

    pub fn listen(&mut self, socket: TcpListener, port: Port) -> Result<(), RingError> {
        let listener_count = self.listeners.len() + 1;
        if listener_count > 256 {
            return Err(RingError::Listeners { listener_count });
        }
        socket.set_nonblocking(false).map_err(|source| RingError::Call { call: "listener", source })?;
        self.listeners.push(Listener {
            socket: Some(socket),
            port,
            is_armed: false,
            cancels: false,
            retry_ns: None,
            is_starved: false,
        });
        Ok(())
    }

    pub fn stop_accepting(&mut self) {
        self.accepts = false;
    }

    pub fn accepts(&self) -> bool {
        self.accepts
    }

    pub fn listener_port(&self, listener: u32) -> Port {
        self.listeners[listener as usize].port
    }

    /// After an accept's CQE: whether and when the listener goes on.
    pub fn note_accepted(&mut self, listener: u32, errno: Option<i32>, more: bool) {
        let retry_ns = self.now.mono_ns + ACCEPT_PAUSE_NS;
        let listener = &mut self.listeners[listener as usize];
        if !more {
            listener.is_armed = false;
            listener.cancels = false;
        }
        match errno {
            Some(errno @ (libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)) => {
                if !listener.is_starved {
                    tracing::warn!(errno, "cannot accept, trying every 100 ms: raise the limit of open files");
                }
                listener.is_starved = true;
                listener.retry_ns = Some(retry_ns);
            }
            Some(errno @ (libc::EBADF | libc::EINVAL | libc::ENOTSOCK | libc::EOPNOTSUPP)) => {
                tracing::error!(errno, port = listener.port.0, "listener is unusable, closed");
                listener.socket = None;
            }
            Some(_) => {}
            None => listener.is_starved = false,
        }
    }

    /// When a resting listener tries again.
    pub fn accept_retry_ns(&self) -> Option<u64> {
        self.listeners.iter().filter_map(|listener| listener.retry_ns).min()
    }

    fn flush_listeners(&mut self) -> Result<(), RingError> {
        let Self { listeners, ring, accepts, now, .. } = self;
        for (index, listener) in listeners.iter_mut().enumerate() {
            let Some(socket) = &listener.socket else { continue };
            if !*accepts {
                listener.retry_ns = None;
                if !listener.is_armed {
                    listener.socket = None;
                } else if !listener.cancels {
                    listener.cancels = true;
                    ring.cancel_accept(index as u32)?;
                }
                continue;
            }
            if listener.retry_ns.is_some_and(|retry_ns| retry_ns > now.mono_ns) {
                continue;
            }
            listener.retry_ns = None;
            if !listener.is_armed {
                listener.is_armed = true;
                ring.accept(index as u32, socket.as_raw_fd())?;
            }
        }
        Ok(())
    }

    /// Shuts all sockets down and waits for what is outstanding.
    pub fn shut_down(&mut self) {
        for connection in self.slots.iter().filter_map(|slot| slot.connection.as_ref()) {
            let _ = connection.stream.shutdown(Shutdown::Both);
        }
        self.ring.drain(std::time::Duration::from_secs(1));
    }
}
