//! One core: its connections, its held pulls, its turn's batch.
//!
//! ```text
//! on_frame   decode ─┬─ send ──> the batch          ─┐
//!                    ├─ pull ──> outbox or hold      │  nothing leaves before
//!                    ├─ the rest ──> outbox or parked│  the turn ends
//!                    └─ answer of a client ──> the shard that asked
//! on_turn    one append ─ answers ─ held pulls of those queues wake, here and on other shards ─ what is due
//! ```
//! Where a flush or a commit must come before the answer or before consumers may see the message (see `flush_waits`),
//! the agent that did it sends one mail.
//! A shard never waits: what needs the disk or a name server first is parked, with a limit and a deadline.
//! Shard 0 accepts for all and owns the name server.

use crate::broker::consumer_status::StatusGather;
use crate::broker::hold::{Held, HoldTable};
use crate::broker::pull::{Bounds, PullOutcome, Pulled, offset_moved, pull};
use crate::broker::reply::{self, PushedReply, ReplyPlace};
use crate::broker::retry::{Back, send_back};
use crate::broker::send::{SendScratch, Sent, push_message_id, send};
use crate::broker::stats::Totals;
use crate::broker::transaction::{self, Ended};
use crate::broker::{After, Answer, Broker, Channel, Push, PushWhat, Refusal, Request, unsupported};
use crate::flush_waits::{FlushWaits, Stored};
use crate::namesrv::NameServer;
use ringmq_net::mailbox::MailSender;
use ringmq_net::protocol::codes::{request, response};
use ringmq_net::protocol::command::{Command, Scratch, decode};
use ringmq_net::protocol::frame::Serialize;
use ringmq_net::protocol::writer::{FrameWriter, Reply};
use ringmq_net::reactor::{ConnId, Now, Outbound, Port, Service};
use ringmq_storage::append::AppendBatch;
use ringmq_storage::consume_queue::ConsumeQueue;
use ringmq_storage::error::AppendError;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

pub const PORT_BROKER: Port = Port(0);
/// `listenPort - 2`: all codes but pull.
pub const PORT_VIP: Port = Port(1);
pub const PORT_NAMESRV: Port = Port(2);

/// A send waits no longer for the next log file, as in Java.
const FILE_WAIT_NS_MAX: u64 = 5_000_000_000;
/// How often a batch that waits for it looks.
const STALL_LOOK_NS: u64 = 1_000_000;
/// A batch this large is appended before the turn ends: it stays in the cache.
const BATCH_BYTES_MAX: usize = 512 << 10;
const PARKED_NS_MAX: u64 = 5_000_000_000;
/// A new topic's answer waits no longer for name servers.
const REGISTERED_NS_MAX: u64 = 1_500_000_000;
/// A client that was asked for somebody else.
const FORWARD_NS_MAX: u64 = 10_000_000_000;
/// One of many clients that were asked together: an admin tool waits 5 s for all of them.
const STATUS_NS_MAX: u64 = 4_000_000_000;
const FORWARD_COUNT_MAX: usize = 4096;
const HOUSEKEEPING_NS: u64 = 5_000_000_000;
const UNDECODED_LOG_NS: u64 = 1_000_000_000;
const FINISH_NS_MAX: u64 = 2_000_000_000;

/// What shards and agents tell a shard.
pub enum Mail {
    Adopt {
        socket: OwnedFd,
        peer: SocketAddr,
        port: Port,
    },
    /// Entries came that pulls held here may wait for.
    Arrived(Arc<ConsumeQueue>),
    /// A commit or a flush is done: these queues have grown for consumers, and sends may be durable.
    Moved(Vec<Arc<ConsumeQueue>>),
    Push(Push),
    /// A client here is asked on behalf of a connection elsewhere.
    Forward(Box<Forward>),
    /// Whole frames for a connection here.
    Bytes {
        to: ConnId,
        bytes: Vec<u8>,
    },
    Close(ConnId),
    /// Metadata became durable or registered.
    MetaMoved,
    Stop,
}

/// Who waits for the answer of a client, and how it is told.
pub struct Asker {
    pub channel: Channel,
    pub reply: Reply,
    pub purpose: Purpose,
}

/// What becomes of the client's answer.
pub enum Purpose {
    /// It is the answer.
    Relay,
    /// The client got a reply message: the answer says where that is stored.
    Reply(Box<ReplyPlace>),
    /// It is one part of the answer: of this client.
    Status(Arc<StatusGather>, Arc<str>),
}

pub struct Forward {
    pub asker: Asker,
    pub to: ConnId,
    pub code: i32,
    pub ext: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// The way to every shard.
pub struct Peers {
    pub mails: Vec<MailSender<Mail>>,
    pub connection_counts: Vec<AtomicUsize>,
    pub connection_count_max: usize,
    /// Bit s: sends on shard s wait for a flush. Set by the shard, then SeqCst fence, then `flushed` is read again; the
    /// flush agent publishes `flushed`, SeqCst fence, then reads this.
    pub flush_waiters: AtomicU64,
}

impl Peers {
    pub fn meta_moved(&self) {
        for mail in &self.mails {
            // A full box has mails that lead to a turn, and each turn looks.
            let _ = mail.send(Mail::MetaMoved);
        }
    }

    /// Whole frames for a connection. Who asked gives up by its own time-out if this is lost.
    pub fn answer(&self, to: Channel, bytes: Vec<u8>) {
        if let Some(mail) = self.mails.get(usize::from(to.shard)) {
            let _ = mail.send(Mail::Bytes { to: to.conn, bytes });
        }
    }

    /// To the shard of its client. `false`: its mailbox is full.
    pub fn push(&self, push: Push) -> bool {
        self.mails.get(usize::from(push.to.shard)).is_some_and(|mail| mail.send(Mail::Push(push)).is_ok())
    }

    /// An agent's append was published: wakes who holds pulls of the queue.
    pub fn arrived(&self, queue: &Arc<ConsumeQueue>) {
        fence(Ordering::SeqCst);
        let mut waiters = queue.waiters.load(Ordering::SeqCst);
        while waiters != 0 {
            let shard = waiters.trailing_zeros() as usize;
            waiters &= waiters - 1;
            if let Some(mail) = self.mails.get(shard)
                && mail.send(Mail::Arrived(Arc::clone(queue))).is_err()
            {
                tracing::warn!(shard, topic = %queue.topic, "mailbox full: a held pull wakes late");
            }
        }
    }

    /// After an agent's turn that may have made appends visible or durable. One mail for each shard that waits.
    pub fn visible_moved(&self, arrived: &[Arc<ConsumeQueue>]) {
        fence(Ordering::SeqCst);
        let senders = self.flush_waiters.load(Ordering::SeqCst);
        for (shard, mail) in self.mails.iter().enumerate() {
            let bit = 1 << shard;
            let is_awaited = |queue: &&Arc<ConsumeQueue>| queue.waiters.load(Ordering::SeqCst) & bit != 0;
            let queues: Vec<_> = arrived.iter().filter(is_awaited).cloned().collect();
            let is_wanted = senders & bit != 0 || !queues.is_empty();
            if is_wanted && mail.send(Mail::Moved(queues)).is_err() {
                // Each turn looks for flushed sends; held pulls look every 5 s.
                tracing::warn!(shard, "mailbox full: held pulls wake late");
            }
        }
    }

    fn emptiest(&self) -> usize {
        let counts = self.connection_counts.iter().enumerate();
        counts.min_by_key(|(_, count)| count.load(Ordering::Relaxed)).map_or(0, |(shard, _)| shard)
    }

    fn connection_count(&self) -> usize {
        self.connection_counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }
}

struct PendingSend {
    conn: ConnId,
    reply: Reply,
    is_oneway: bool,
    unit: usize,
    what: PendingWhat,
    /// Answered after the flush that covers it.
    is_flush_awaited: bool,
}

impl PendingSend {
    /// Behind the last of its units.
    fn units_end(&self) -> usize {
        match self.what {
            PendingWhat::End { op, .. } => self.unit.max(op) + 1,
            _ => self.unit + 1,
        }
    }
}

enum PendingWhat {
    /// The answer tells where it is.
    Send {
        queue_id: i32,
    },
    Back,
    /// The client that waits for it is told next.
    Reply(Box<PushedReply>),
    /// The unit is the message that was committed, or else the op record.
    End {
        half: u64,
        message: Option<usize>,
        op: usize,
    },
}

enum ParkedWhat {
    /// A send, to be run again.
    Frame(Box<[u8]>),
    /// To be sent.
    Answer(Vec<u8>),
}

struct Parked {
    conn: ConnId,
    what: ParkedWhat,
    /// A hash of the topic of a send, whose later sends wait behind it.
    topic: Option<u64>,
    reply: Reply,
    is_oneway: bool,
    version: u64,
    registered: bool,
    since_ns: u64,
    /// To be sent behind the answer: a client that hears of its own arrival before its heartbeat is answered skips the
    /// heartbeat that the news asks for, and its pulls are refused until the next one, 30 s later.
    pushes: Vec<Push>,
}

/// Equal for sends to the same topic; `None` for what is no send.
fn sent_topic(command: &Command<'_>) -> Option<u64> {
    let name = match command.code {
        request::SEND_MESSAGE => "topic",
        request::SEND_MESSAGE_V2 | request::SEND_BATCH_MESSAGE => "b",
        _ => return None,
    };
    let mut hasher = DefaultHasher::new();
    command.ext.get(name)?.hash(&mut hasher);
    Some(hasher.finish())
}

impl Parked {
    fn frame(conn: ConnId, frame: &[u8], command: &Command<'_>, version: u64, since_ns: u64) -> Parked {
        Parked {
            conn,
            what: ParkedWhat::Frame(frame.into()),
            topic: sent_topic(command),
            reply: command.reply(),
            is_oneway: command.is_oneway(),
            version,
            registered: false,
            since_ns,
            pushes: Vec::new(),
        }
    }

    fn bytes(&self) -> usize {
        match &self.what {
            ParkedWhat::Frame(frame) => frame.len(),
            ParkedWhat::Answer(frame) => frame.len(),
        }
    }
}

struct Forwarded {
    asker: Asker,
    to: ConnId,
    deadline_ns: u64,
}

/// The broker's part of a shard.
pub struct BrokerShard {
    index: u8,
    broker: Arc<Broker>,
    batch: AppendBatch,
    pending: Vec<PendingSend>,
    /// Reply messages that were stored, with what their clients are to be told.
    replies: Vec<(Asker, Box<PushedReply>)>,
    /// Queues that this turn has appended to.
    touched: Vec<Arc<ConsumeQueue>>,
    /// Since when the rest of the batch waits for the next log file.
    stalled_ns: Option<u64>,
    send: SendScratch,
    holds: HoldTable,
    flush_waits: FlushWaits,
    /// Of the topics, when held pulls were last held against the queues there are.
    generation: u64,
    woken: Vec<Held>,
    parked: Vec<Parked>,
    parked_bytes: usize,
    parked_bytes_max: usize,
    meta_moved: bool,
    forwarded: HashMap<i32, Forwarded>,
    pushes: Vec<Push>,
    message_id: String,
}

pub struct Shard {
    peers: Arc<Peers>,
    index: u8,
    scratch: Scratch,
    broker: Option<BrokerShard>,
    namesrv: Option<NameServer>,
    housekeeping_ns: u64,
    is_stopping: bool,
    /// Stopping, but sends wait for their flush up to here.
    finish_ns: Option<u64>,
    refused_count: u64,
    /// Frames that did not decode since that was logged last, and when it may be again.
    undecoded_count: u64,
    undecoded_log_ns: u64,
}

impl Shard {
    pub fn new(index: u8, peers: Arc<Peers>, broker: Option<Arc<Broker>>, namesrv: Option<NameServer>) -> Shard {
        let broker = broker.map(|broker| {
            let limits = broker.config.limits();
            BrokerShard {
                index,
                send: SendScratch::new(&broker),
                batch: AppendBatch::default(),
                pending: Vec::new(),
                replies: Vec::new(),
                touched: Vec::new(),
                stalled_ns: None,
                holds: HoldTable::new(index, limits.hold_count_max as usize, Arc::clone(&broker.store)),
                flush_waits: FlushWaits::new(limits.parked_bytes_max as usize),
                generation: 0,
                woken: Vec::new(),
                parked: Vec::new(),
                parked_bytes: 0,
                parked_bytes_max: limits.parked_bytes_max as usize,
                meta_moved: false,
                forwarded: HashMap::new(),
                pushes: Vec::new(),
                message_id: String::new(),
                broker,
            }
        });
        Shard {
            peers,
            index,
            scratch: Scratch::default(),
            broker,
            namesrv,
            housekeeping_ns: 0,
            is_stopping: false,
            finish_ns: None,
            refused_count: 0,
            undecoded_count: 0,
            undecoded_log_ns: 0,
        }
    }

    fn housekeeping(&mut self, out: &mut Outbound<'_>) {
        let now = out.now();
        if let Some(namesrv) = &mut self.namesrv {
            for conn in namesrv.tick(now.mono_ns / 1_000_000) {
                out.close(conn);
            }
        }
        if let (Some(broker), 0) = (&self.broker, self.index) {
            for channel in broker.broker.expire(now) {
                tracing::info!(?channel, "no heartbeat for 120 s: closed");
                if channel.shard == self.index {
                    out.close(channel.conn);
                } else {
                    let _ = self.peers.mails[usize::from(channel.shard)].send(Mail::Close(channel.conn));
                }
            }
        }
    }

    fn stop(&mut self, out: &mut Outbound<'_>) {
        if self.is_stopping {
            return;
        }
        self.is_stopping = true;
        out.stop_accepting();
        if let Some(broker) = &mut self.broker {
            for held in broker.holds.drain() {
                broker.run_held(held, &mut self.scratch, out);
            }
        }
        self.finish_ns = Some(out.now().mono_ns + FINISH_NS_MAX);
    }

    /// The end comes when every stored send is answered.
    fn finish(&mut self, out: &mut Outbound<'_>) {
        let Some(finish_ns) = self.finish_ns else { return };
        let is_late = out.now().mono_ns >= finish_ns;
        let is_done = |broker: &BrokerShard| broker.flush_waits.is_empty() && broker.pending.is_empty();
        if is_late || self.broker.as_ref().is_none_or(is_done) {
            self.finish_ns = None;
            out.finish(finish_ns.max(out.now().mono_ns + FINISH_NS_MAX / 2));
        }
    }
}

impl Service for Shard {
    type Mail = Mail;

    fn on_accept(&mut self, socket: OwnedFd, peer: SocketAddr, port: Port, out: &mut Outbound<'_>) {
        if self.peers.connection_count() >= self.peers.connection_count_max {
            self.refused_count += 1;
            if self.refused_count.is_power_of_two() {
                let (refused, limit) = (self.refused_count, self.peers.connection_count_max);
                tracing::warn!(%peer, limit, refused, "connection refused: the limit is reached");
            }
            return;
        }
        // The name server lives here.
        let shard = if port == PORT_NAMESRV { usize::from(self.index) } else { self.peers.emptiest() };
        self.peers.connection_counts[shard].fetch_add(1, Ordering::Relaxed);
        if shard == usize::from(self.index) {
            out.adopt(socket, peer, port);
        } else if self.peers.mails[shard].send(Mail::Adopt { socket, peer, port }).is_err() {
            self.peers.connection_counts[shard].fetch_sub(1, Ordering::Relaxed);
            tracing::warn!(%peer, shard, "connection closed: the shard's mailbox is full");
        }
    }

    fn on_frame(&mut self, conn: ConnId, frame: &[u8], out: &mut Outbound<'_>) {
        let mut scratch = std::mem::take(&mut self.scratch);
        match decode(frame, &mut scratch) {
            Err(error) => {
                self.undecoded_count += 1;
                // Anybody can make these: one line a second.
                if out.now().mono_ns >= self.undecoded_log_ns {
                    let (peer, count) = (out.peer(conn), self.undecoded_count);
                    tracing::warn!(?peer, %error, count, "connection closed: a frame that does not decode");
                    self.undecoded_count = 0;
                    self.undecoded_log_ns = out.now().mono_ns + UNDECODED_LOG_NS;
                }
                out.close(conn);
            }
            Ok(command) => match (out.port(conn), &mut self.namesrv, &mut self.broker) {
                (Some(PORT_NAMESRV), Some(namesrv), _) => {
                    let now = out.now();
                    let peer = peer_of(out, conn);
                    if let Some(buffer) = out.buffer(conn) {
                        namesrv.handle(conn, peer, &command, now.wall_ms, now.mono_ns / 1_000_000, buffer);
                    }
                }
                (Some(port), _, Some(broker)) => {
                    broker.on_frame(conn, port, frame, &command, &self.peers, out);
                }
                _ => out.close(conn),
            },
        }
        self.scratch = scratch;
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbound<'_>) {
        match mail {
            Mail::Adopt { socket, peer, port } => {
                out.adopt(socket, peer, port);
            }
            Mail::Close(conn) => out.close(conn),
            Mail::Bytes { to, bytes } => {
                if let Some(buffer) = out.buffer(to) {
                    buffer.extend_from_slice(&bytes);
                }
            }
            Mail::Stop => self.stop(out),
            mail => {
                let Some(broker) = &mut self.broker else { return };
                match mail {
                    Mail::Arrived(queue) => broker.holds.arrived(&queue, &mut broker.woken),
                    Mail::Moved(queues) => {
                        for queue in &queues {
                            broker.holds.arrived(queue, &mut broker.woken);
                        }
                    }
                    Mail::Push(push) => broker.push(push.to.conn, push.what, out),
                    Mail::Forward(forward) => broker.forward(*forward, &self.peers, out),
                    Mail::MetaMoved => broker.meta_moved = true,
                    Mail::Adopt { .. } | Mail::Close(_) | Mail::Bytes { .. } | Mail::Stop => {}
                }
            }
        }
    }

    fn on_close(&mut self, conn: ConnId, out: &mut Outbound<'_>) {
        self.peers.connection_counts[usize::from(self.index)].fetch_sub(1, Ordering::Relaxed);
        if out.port(conn) == Some(PORT_NAMESRV) {
            if let Some(namesrv) = &mut self.namesrv {
                namesrv.on_close(conn);
            }
        } else if let Some(broker) = &mut self.broker {
            broker.on_close(conn, &self.peers, out);
        }
    }

    fn on_turn(&mut self, out: &mut Outbound<'_>) -> Option<u64> {
        let now_ns = out.now().mono_ns;
        let mut next = None;
        if let Some(broker) = &mut self.broker {
            next = broker.on_turn(&mut self.scratch, &self.peers, out);
        }
        self.finish(out);
        if let Some(finish_ns) = self.finish_ns {
            next = Some(next.map_or(finish_ns, |ns| ns.min(finish_ns)));
        }
        if now_ns >= self.housekeeping_ns {
            self.housekeeping_ns = now_ns + HOUSEKEEPING_NS;
            self.housekeeping(out);
        }
        if out.connection_count() > 0 {
            next = Some(next.map_or(self.housekeeping_ns, |ns| ns.min(self.housekeeping_ns)));
        }
        next
    }
}

fn peer_of(out: &Outbound<'_>, conn: ConnId) -> SocketAddr {
    out.peer(conn).unwrap_or((Ipv4Addr::UNSPECIFIED, 0).into())
}

fn write_answer(out: &mut Vec<u8>, reply: Reply, answer: &Answer) {
    let mut writer = FrameWriter::response(out, reply, response::SUCCESS);
    if let Some(remark) = &answer.remark {
        writer = writer.remark(remark);
    }
    for (name, value) in &answer.ext {
        writer = writer.ext(name, value);
    }
    writer.finish_body(&answer.body);
}

fn with_bounds<'a>(writer: FrameWriter<'a>, bounds: &Bounds, suggested_broker: i64) -> FrameWriter<'a> {
    writer
        .ext_num("suggestWhichBrokerId", suggested_broker)
        .ext_num("nextBeginOffset", bounds.next)
        .ext_num("minOffset", bounds.min)
        .ext_num("maxOffset", bounds.max)
}

impl BrokerShard {
    fn on_frame(
        &mut self,
        conn: ConnId,
        port: Port,
        frame: &[u8],
        command: &Command<'_>,
        peers: &Peers,
        out: &mut Outbound<'_>,
    ) {
        if command.is_response() {
            self.on_client_answer(conn, command, peers, out);
            return;
        }
        match command.code {
            request::SEND_MESSAGE
            | request::SEND_MESSAGE_V2
            | request::SEND_BATCH_MESSAGE
            | request::SEND_REPLY_MESSAGE
            | request::SEND_REPLY_MESSAGE_V2
            | request::CONSUMER_SEND_MSG_BACK
            | request::END_TRANSACTION => {
                self.on_send(conn, frame, command, out.now().mono_ns, out);
            }
            request::PULL_MESSAGE | request::LITE_PULL_MESSAGE if port != PORT_VIP => {
                self.on_pull(conn, frame, command, true, out);
            }
            _ => self.on_other(conn, port, command, peers, out),
        }
    }

    /// `since_ns`: when it came; one that was parked has waited since then.
    fn on_send(&mut self, conn: ConnId, frame: &[u8], command: &Command<'_>, since_ns: u64, out: &mut Outbound<'_>) {
        let (now, peer, reply) = (out.now(), peer_of(out, conn), command.reply());
        let is_oneway = command.is_oneway();
        // Behind an earlier send of its connection to the same topic that waits: their order is kept.
        if !self.parked.is_empty() {
            let topic = sent_topic(command);
            let is_earlier = |parked: &&Parked| parked.conn == conn && parked.topic.is_some() && parked.topic == topic;
            if let Some(version) = self.parked.iter().rev().find(is_earlier).map(|parked| parked.version) {
                self.park(Parked::frame(conn, frame, command, version, since_ns), out);
                return;
            }
        }
        if self.stalled_ns.is_some() && self.batch.bytes() + frame.len() > self.parked_bytes_max {
            let remark = format!("{} bytes of messages wait for the next log file, the limit", self.batch.bytes());
            self.refuse(conn, command, &Refusal::new(response::SYSTEM_ERROR, remark), out);
            return;
        }
        if self.flush_waits.is_full(self.pending.len()) {
            let remark = format!("{} sends wait for their flush, the limit: the disk is slow", self.flush_waits.len());
            self.refuse(conn, command, &Refusal::new(response::SYSTEM_BUSY, remark), out);
            return;
        }
        let (broker, batch) = (&*self.broker, &mut self.batch);
        let pushed = match command.code {
            request::CONSUMER_SEND_MSG_BACK => match send_back(broker, command, now, self.send.pick(), batch) {
                Ok(Back::Pushed { unit }) => Ok(Some((unit, PendingWhat::Back, false))),
                Ok(Back::Wait { version }) => Err(Ok(version)),
                Ok(Back::Dropped) => {
                    if !is_oneway && let Some(buffer) = out.buffer(conn) {
                        write_answer(buffer, reply, &Answer::empty());
                    }
                    Ok(None)
                }
                Err(refusal) => Err(Err(refusal)),
            },
            request::END_TRANSACTION => match transaction::end(broker, command, now, batch) {
                Ok(Ended::Pushed { half, message, op, is_flush_awaited }) => {
                    let what = PendingWhat::End { half, message, op };
                    Ok(Some((message.unwrap_or(op), what, is_flush_awaited)))
                }
                Ok(Ended::Unknown) => Ok(None),
                Err(refusal) => Err(Err(refusal)),
            },
            _ if reply::is_reply(command.code) && !broker.live.config().reply_store_enable => {
                // Checked like any send, and not stored.
                let sent = send(broker, &mut self.send, command, peer, now, &mut AppendBatch::default());
                match sent.and_then(|sent| Ok((sent, reply::push(broker, command, peer, now)?))) {
                    Ok((Sent::Pushed { .. }, pushed)) => {
                        let place = ReplyPlace::unstored(&pushed, is_oneway);
                        let channel = Channel { shard: self.index, conn };
                        let asker = Asker { channel, reply, purpose: Purpose::Reply(Box::new(place)) };
                        self.replies.push((asker, Box::new(pushed)));
                        Ok(None)
                    }
                    Ok((Sent::Wait { version }, _)) => Err(Ok(version)),
                    Err(refusal) => Err(Err(refusal)),
                }
            }
            _ => match send(broker, &mut self.send, command, peer, now, batch) {
                Ok(Sent::Pushed { unit, .. }) if reply::is_reply(command.code) => {
                    match reply::push(broker, command, peer, now) {
                        Ok(pushed) => Ok(Some((unit, PendingWhat::Reply(Box::new(pushed)), false))),
                        Err(refusal) => Err(Err(refusal)),
                    }
                }
                Ok(Sent::Pushed { unit, queue_id, is_flush_awaited }) => {
                    Ok(Some((unit, PendingWhat::Send { queue_id }, is_flush_awaited)))
                }
                Ok(Sent::Wait { version }) => Err(Ok(version)),
                Err(refusal) => Err(Err(refusal)),
            },
        };
        match pushed {
            Ok(Some((unit, what, is_flush_awaited))) => {
                self.pending.push(PendingSend { conn, reply, is_oneway, unit, what, is_flush_awaited });
                if self.batch.bytes() > BATCH_BYTES_MAX {
                    self.append(out);
                }
            }
            Ok(None) => {}
            Err(Ok(version)) => self.park(Parked::frame(conn, frame, command, version, since_ns), out),
            Err(Err(refusal)) => self.refuse(conn, command, &refusal, out),
        }
    }

    fn refuse(&mut self, conn: ConnId, command: &Command<'_>, refusal: &Refusal, out: &mut Outbound<'_>) {
        if command.is_oneway() {
            return;
        }
        if let Some(buffer) = out.buffer(conn) {
            refusal.write(buffer, command.reply());
        }
    }

    fn on_pull(&mut self, conn: ConnId, frame: &[u8], command: &Command<'_>, is_first: bool, out: &mut Outbound<'_>) {
        let (now, peer) = (out.now(), peer_of(out, conn));
        match pull(&self.broker, command, peer, is_first, now) {
            Ok(PullOutcome::Answer(pulled)) => {
                if pulled.code == response::PULL_OFFSET_MOVED
                    && let Some(unit) = offset_moved(&self.broker, command, &pulled, now, &mut self.batch)
                {
                    let (reply, what) = (command.reply(), PendingWhat::Send { queue_id: 0 });
                    // Nobody is told.
                    let (is_oneway, is_flush_awaited) = (true, false);
                    self.pending.push(PendingSend { conn, reply, is_oneway, unit, what, is_flush_awaited });
                }
                answer_pull(conn, command, pulled, out);
            }
            Ok(PullOutcome::Hold { queue, filter, from, wait_ms }) => {
                let held = Held {
                    conn,
                    frame: frame.into(),
                    queue,
                    filter,
                    from,
                    checked_to: from,
                    deadline_ns: now.mono_ns + wait_ms * 1_000_000,
                };
                // Something came meanwhile: not from this turn, which has not appended yet.
                if let Some(held) = self.holds.hold(held, now.mono_ns) {
                    self.woken.push(held);
                }
            }
            Err(refused) => {
                if command.is_oneway() {
                    return;
                }
                if let Some(buffer) = out.buffer(conn) {
                    let writer = FrameWriter::response(buffer, command.reply(), refused.refusal.code);
                    with_bounds(writer, &refused.bounds, 0).remark(&refused.refusal.remark).finish();
                }
            }
        }
    }

    /// Woken or due: the same pull once more, with suspension off.
    fn run_held(&mut self, held: Held, scratch: &mut Scratch, out: &mut Outbound<'_>) {
        if out.peer(held.conn).is_none() {
            return;
        }
        match decode(&held.frame, scratch) {
            Ok(command) => self.on_pull(held.conn, &held.frame, &command, false, out),
            Err(error) => tracing::error!(%error, "a held pull that decoded before does not now"),
        }
    }

    fn on_other(&mut self, conn: ConnId, port: Port, command: &Command<'_>, peers: &Peers, out: &mut Outbound<'_>) {
        let now = out.now();
        let channel = Channel { shard: self.index, conn };
        let request = Request { channel, peer: peer_of(out, conn), command, now };
        let pull_on_vip =
            matches!(command.code, request::PULL_MESSAGE | request::LITE_PULL_MESSAGE) && port == PORT_VIP;
        let result =
            if pull_on_vip { Err(unsupported(command.code)) } else { self.broker.handle(&request, &mut self.pushes) };
        let reply = command.reply();
        match result {
            Err(refusal) => self.refuse(conn, command, &refusal, out),
            Ok(answer @ Answer { after: After::Forwarded(target), .. }) => {
                let fields = command.ext.fields.iter();
                let ext: Vec<(String, String)> =
                    fields.map(|&(key, value)| (key.to_string(), value.to_string())).collect();
                let ext = ext.into_iter().chain(answer.ext.into_iter().map(|(key, value)| (key.to_string(), value)));
                let body = if answer.body.is_empty() { command.body.to_vec() } else { answer.body };
                let asker = Asker { channel, reply, purpose: Purpose::Relay };
                let forward = Forward { asker, to: target.conn, code: command.code, ext: ext.collect(), body };
                self.forward_to(target.shard, forward, peers, out);
            }
            Ok(Answer { after: After::Gathered(gather, clients), .. }) => {
                for (to, client_id) in clients {
                    let asker = Asker { channel, reply, purpose: Purpose::Status(Arc::clone(&gather), client_id) };
                    let (code, ext) = (request::GET_CONSUMER_STATUS_FROM_CLIENT, gather.ext());
                    self.forward_to(to.shard, Forward { asker, to: to.conn, code, ext, body: Vec::new() }, peers, out);
                }
            }
            Ok(Answer { after: After::Agent, .. }) => {}
            Ok(_) if command.is_oneway() => {}
            Ok(answer) => {
                let (version, registered) = match answer.after {
                    After::Durable(version) => (version, false),
                    After::Registered(version) => (version, true),
                    After::Now | After::Agent | After::Forwarded(_) | After::Gathered(..) => (0, false),
                };
                if self.is_settled(version, registered) {
                    if let Some(buffer) = out.buffer(conn) {
                        write_answer(buffer, reply, &answer);
                    }
                } else {
                    let mut bytes = Vec::new();
                    write_answer(&mut bytes, reply, &answer);
                    let what = ParkedWhat::Answer(bytes);
                    let since_ns = now.mono_ns;
                    let pushes = std::mem::take(&mut self.pushes);
                    let is_oneway = false;
                    let topic = None;
                    self.park(
                        Parked { conn, what, topic, reply, is_oneway, version, registered, since_ns, pushes },
                        out,
                    );
                }
            }
        }
        self.deliver_pushes(peers, out);
    }

    fn is_settled(&self, version: u64, registered: bool) -> bool {
        self.broker.dirty.durable() >= version && (!registered || self.broker.registrations.knows(version))
    }

    fn park(&mut self, parked: Parked, out: &mut Outbound<'_>) {
        if self.parked_bytes + parked.bytes() > self.parked_bytes_max {
            let remark = format!("{} bytes of requests wait for topics.json, its limit", self.parked_bytes);
            refuse_parked(&parked, remark, out);
            self.pushes.extend(parked.pushes);
            return;
        }
        self.parked_bytes += parked.bytes();
        self.parked.push(parked);
        // It may have moved between the look and now.
        self.meta_moved = true;
    }

    fn run_parked(&mut self, scratch: &mut Scratch, peers: &Peers, out: &mut Outbound<'_>) {
        if self.parked.is_empty() {
            return;
        }
        self.meta_moved = false;
        let now_ns = out.now().mono_ns;
        let parked = std::mem::take(&mut self.parked);
        self.parked_bytes = 0;
        for parked in parked {
            let waited_ns = now_ns.saturating_sub(parked.since_ns);
            let waits_for_registration = parked.registered && waited_ns < REGISTERED_NS_MAX;
            if self.is_settled(parked.version, waits_for_registration) {
                self.pushes.extend(parked.pushes);
                match parked.what {
                    ParkedWhat::Frame(frame) => match decode(&frame, scratch) {
                        Ok(command) => self.on_send(parked.conn, &frame, &command, parked.since_ns, out),
                        Err(error) => tracing::error!(%error, "a parked request that decoded before does not now"),
                    },
                    ParkedWhat::Answer(bytes) => {
                        if let Some(buffer) = out.buffer(parked.conn) {
                            buffer.extend_from_slice(&bytes);
                        }
                    }
                }
            } else if waited_ns >= PARKED_NS_MAX {
                let why = self.broker.dirty.failure().unwrap_or_else(|| "the disk is slow".to_string());
                let remark = format!("the change is not on disk after {} ms: {why}", PARKED_NS_MAX / 1_000_000);
                refuse_parked(&parked, remark, out);
                self.pushes.extend(parked.pushes);
            } else {
                self.parked_bytes += parked.bytes();
                self.parked.push(parked);
            }
        }
        self.deliver_pushes(peers, out);
    }

    /// The turn's batch into the log; its answers into the outboxes; whoever waits for its queues is woken.
    fn append(&mut self, out: &mut Outbound<'_>) {
        if self.batch.is_empty() {
            return;
        }
        let now = out.now();
        let outcome = self.broker.store.append(&mut self.batch, now.wall_ms);
        self.stalled_ns = match outcome.error {
            Some(AppendError::NoFileYet { .. }) => Some(self.stalled_ns.unwrap_or(now.mono_ns)),
            _ => None,
        };
        if self.stalled_ns.is_some_and(|since_ns| now.mono_ns >= since_ns + FILE_WAIT_NS_MAX) {
            self.stalled_ns = None;
        }
        // In the order of their units.
        let answered_count = match self.stalled_ns {
            Some(_) => self.pending.partition_point(|pending| pending.units_end() <= outcome.units_placed),
            None => self.pending.len(),
        };
        let mut placed_count = 0;
        let mut touched: Vec<Arc<ConsumeQueue>> = Vec::new();
        // Of each of them, and what of it no topic had before.
        let (mut put, mut new): (Vec<Totals>, Totals) = Default::default();
        for pending in self.pending.drain(..answered_count) {
            let mut placed = self.batch.placed(pending.unit);
            if let PendingWhat::End { half, message, op } = pending.what
                && !transaction::settle(&self.broker, &self.batch, half, message, op)
            {
                placed = &[];
            }
            if let PendingWhat::Reply(pushed) = pending.what {
                let mut message_id = String::new();
                if let Some(first) = placed.first() {
                    push_message_id(&mut message_id, self.broker.store_host, first.log_offset);
                    placed_count += 1;
                    let put = Totals { count: 1, bytes: u64::from(first.record_bytes), times: 1 };
                    let topic = &*self.batch.queue(pending.unit).topic;
                    self.broker.stats.put_into([(topic, put)].into_iter(), put);
                } else {
                    tracing::warn!(error = ?outcome.error, "a reply message was not stored, its client is told all the same");
                    message_id.push('0');
                }
                let place = ReplyPlace {
                    client_id: pushed.client_id.clone(),
                    message_id,
                    queue_id: pushed.queue_id,
                    queue_offset: placed.first().map_or(0, |first| first.queue_offset as i64),
                    is_oneway: pending.is_oneway,
                };
                let channel = Channel { shard: self.index, conn: pending.conn };
                let asker = Asker { channel, reply: pending.reply, purpose: Purpose::Reply(Box::new(place)) };
                self.replies.push((asker, pushed));
                continue;
            }
            let Some(first) = placed.first() else {
                self.broker.stats.put_failed(1);
                if !pending.is_oneway
                    && let Some(buffer) = out.buffer(pending.conn)
                {
                    append_refusal(outcome.error.as_ref()).write(buffer, pending.reply);
                }
                continue;
            };
            placed_count += placed.len() as u64;
            let queue = self.batch.queue(pending.unit);
            let known = touched.iter().position(|known| Arc::ptr_eq(known, queue));
            let index = known.unwrap_or(touched.len());
            if known.is_none() {
                touched.push(Arc::clone(queue));
                put.push(Totals::default());
            }
            // What undoes a message puts none into a topic; what was sent back is new when it is due.
            if !matches!(pending.what, PendingWhat::End { message: None, .. }) {
                let bytes = placed.iter().map(|placed| u64::from(placed.record_bytes)).sum();
                let placed = Totals { count: placed.len() as u64, bytes, times: 1 };
                put[index] += placed;
                if !matches!(pending.what, PendingWhat::Back) {
                    new += placed;
                }
            }
            if pending.is_oneway {
                continue;
            }
            let stored = Stored {
                conn: pending.conn,
                reply: pending.reply,
                queue_id: match pending.what {
                    PendingWhat::Send { queue_id } => Some(queue_id),
                    PendingWhat::Back | PendingWhat::Reply(_) | PendingWhat::End { .. } => None,
                },
                queue_offset: first.queue_offset,
                log_offset: first.log_offset,
                further: placed[1..].iter().map(|placed| placed.log_offset).collect(),
            };
            if pending.is_flush_awaited {
                let last = placed.last().unwrap_or(first);
                let end = last.log_offset + u64::from(last.record_bytes);
                self.flush_waits.push(stored, end, now.mono_ns);
            } else {
                answer_stored(&self.broker, &mut self.message_id, &stored, response::SUCCESS, out);
            }
        }
        self.broker.stats.put_into(touched.iter().map(|queue| &*queue.topic).zip(put), new);
        if self.stalled_ns.is_some() {
            self.broker.stats.put(placed_count, 0);
        } else {
            self.broker.stats.put(placed_count, self.batch.bytes() as u64);
            self.batch.clear();
        }
        // Elsewhere an agent wakes when it has made the entries visible.
        if self.broker.store.is_visible_at_once() {
            self.wake_here(&touched);
            self.touched.append(&mut touched);
        }
    }

    /// Answers the sends that need not wait any longer. Called in each turn, after its appends.
    fn answer_flushed(&mut self, peers: &Peers, out: &mut Outbound<'_>) -> Option<u64> {
        if self.flush_waits.is_empty() {
            return None;
        }
        let (broker, id) = (&self.broker, &mut self.message_id);
        // The other half is in `visible_moved`.
        peers.flush_waiters.fetch_or(1 << self.index, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let failure = broker.store.flush_failure();
        // Behind the failure: what was flushed before it is durable.
        let flushed = broker.store.log_flushed();
        while let Some(stored) = self.flush_waits.pop_flushed(flushed) {
            answer_stored(broker, id, &stored, response::SUCCESS, out);
        }
        if let Some(reason) = failure {
            let refusal = Refusal::new(response::SERVICE_NOT_AVAILABLE, reason);
            while let Some(stored) = self.flush_waits.pop() {
                if let Some(buffer) = out.buffer(stored.conn) {
                    refusal.write(buffer, stored.reply);
                }
            }
        }
        let timeout_ns = broker.live.sync_flush_timeout_ns();
        while let Some(stored) = self.flush_waits.pop_late(out.now().mono_ns, timeout_ns) {
            answer_stored(broker, id, &stored, response::FLUSH_DISK_TIMEOUT, out);
        }
        if self.flush_waits.is_empty() {
            peers.flush_waiters.fetch_and(!(1 << self.index), Ordering::SeqCst);
        }
        self.flush_waits.due_ns(timeout_ns)
    }

    /// The other half of the protocol in `hold`: `max` was published by the append.
    fn wake_here(&mut self, touched: &[Arc<ConsumeQueue>]) {
        fence(Ordering::SeqCst);
        for queue in touched {
            if queue.waiters.load(Ordering::SeqCst) & (1 << self.index) != 0 {
                self.holds.arrived(queue, &mut self.woken);
            }
        }
    }

    /// A turn may append more than once.
    fn wake_others(&mut self, peers: &Peers) {
        for queue in self.touched.drain(..) {
            let mut others = queue.waiters.load(Ordering::SeqCst) & !(1 << self.index);
            while others != 0 {
                let shard = others.trailing_zeros() as usize;
                others &= others - 1;
                if let Some(mail) = peers.mails.get(shard)
                    && mail.send(Mail::Arrived(Arc::clone(&queue))).is_err()
                {
                    // Its 5 s look finds the entries.
                    tracing::warn!(shard, topic = %queue.topic, "mailbox full: a held pull wakes late");
                }
            }
        }
    }

    fn on_turn(&mut self, scratch: &mut Scratch, peers: &Peers, out: &mut Outbound<'_>) -> Option<u64> {
        let now_ns = out.now().mono_ns;
        if self.meta_moved || self.parked.first().is_some_and(|parked| is_parked_due(parked, now_ns)) {
            self.run_parked(scratch, peers, out);
        }
        self.append(out);
        let flush_ns = self.answer_flushed(peers, out);
        self.push_replies(peers, out);
        self.wake_others(peers);
        let generation = self.broker.topics.generation();
        if generation != self.generation {
            self.generation = generation;
            let store = &self.broker.store;
            let is_current = |queue: &Arc<ConsumeQueue>| {
                store.queue(&queue.topic, queue.queue_id).is_some_and(|current| Arc::ptr_eq(&current, queue))
            };
            self.holds.stale(is_current, &mut self.woken);
        }
        self.holds.due(now_ns, &mut self.woken);
        while let Some(held) = self.woken.pop() {
            self.run_held(held, scratch, out);
        }
        self.expire_forwarded(now_ns, peers, out);
        let parked_ns = self.parked.iter().map(|parked| parked_due_ns(parked, now_ns)).min();
        let forward_ns = self.forwarded.values().map(|forwarded| forwarded.deadline_ns).min();
        // Something was parked while the parked ran: its version may have become durable before.
        let again_ns = (self.meta_moved && !self.parked.is_empty()).then_some(now_ns);
        let stalled_ns = self.stalled_ns.map(|_| now_ns + STALL_LOOK_NS);
        // What a held pull has left behind the append.
        let again_ns = again_ns.or((!self.batch.is_empty() && self.stalled_ns.is_none()).then_some(now_ns));
        [self.holds.next_due_ns(), parked_ns, forward_ns, again_ns, flush_ns, stalled_ns].into_iter().flatten().min()
    }

    fn push(&mut self, conn: ConnId, what: PushWhat, out: &mut Outbound<'_>) {
        let opaque = self.broker.next_opaque();
        let Some(buffer) = out.buffer(conn) else { return };
        match what {
            PushWhat::ConsumerIdsChanged { group } => {
                FrameWriter::request(buffer, Serialize::Json, request::NOTIFY_CONSUMER_IDS_CHANGED, opaque, true)
                    .ext("consumerGroup", &group)
                    .finish();
            }
            PushWhat::ResetOffset(reset) => {
                FrameWriter::request(buffer, Serialize::Json, request::RESET_CONSUMER_CLIENT_OFFSET, opaque, true)
                    .ext("topic", &reset.topic)
                    .ext("group", &reset.group)
                    .ext_num("timestamp", reset.timestamp)
                    .ext_bool("isForce", reset.is_force)
                    .finish_body(&reset.body);
            }
            PushWhat::CheckTransaction(question) => {
                FrameWriter::request(buffer, Serialize::Json, request::CHECK_TRANSACTION_STATE, opaque, true)
                    .ext_num("tranStateTableOffset", question.half_offset as i64)
                    .ext_num("commitLogOffset", question.log_offset as i64)
                    .ext("msgId", &question.uniq_key)
                    .ext("transactionId", &question.uniq_key)
                    .ext("offsetMsgId", &question.message_id)
                    .finish_body(&question.body);
            }
        }
    }

    fn deliver_pushes(&mut self, peers: &Peers, out: &mut Outbound<'_>) {
        for push in std::mem::take(&mut self.pushes) {
            if push.to.shard == self.index {
                self.push(push.to.conn, push.what, out);
            } else {
                // A client that is not told finds out at its next rebalance, within 20 s.
                let _ = peers.mails[usize::from(push.to.shard)].send(Mail::Push(push));
            }
        }
    }

    fn push_replies(&mut self, peers: &Peers, out: &mut Outbound<'_>) {
        for (asker, pushed) in std::mem::take(&mut self.replies) {
            let PushedReply { to, ext, body, .. } = *pushed;
            match to {
                Ok(to) => {
                    let code = request::PUSH_REPLY_MESSAGE_TO_CLIENT;
                    self.forward_to(to.shard, Forward { asker, to: to.conn, code, ext, body }, peers, out);
                }
                Err(why) => {
                    if let Purpose::Reply(place) = &asker.purpose {
                        self.answer_reply(&asker, place, Err(why), peers, out);
                    }
                }
            }
        }
    }

    fn forward_to(&mut self, shard: u8, forward: Forward, peers: &Peers, out: &mut Outbound<'_>) {
        if shard == self.index {
            self.forward(forward, peers, out);
        } else if let Err(Mail::Forward(back)) = peers.mails[usize::from(shard)].send(Mail::Forward(Box::new(forward)))
        {
            let refusal = Refusal::new(response::SYSTEM_ERROR, "the client's shard is overloaded");
            self.refuse_asker(&back.asker, &refusal, peers, out);
        }
    }

    fn forward(&mut self, forward: Forward, peers: &Peers, out: &mut Outbound<'_>) {
        let Forward { asker, to, code, ext, body } = forward;
        let now: Now = out.now();
        if self.forwarded.len() >= FORWARD_COUNT_MAX {
            let remark = format!("{FORWARD_COUNT_MAX} requests to clients are on their way, the limit");
            self.refuse_asker(&asker, &Refusal::new(response::SYSTEM_ERROR, remark), peers, out);
            return;
        }
        let opaque = self.broker.next_opaque();
        let Some(buffer) = out.buffer(to) else {
            let refusal = Refusal::new(response::CONSUME_MSG_TIMEOUT, "the client's connection is gone");
            self.refuse_asker(&asker, &refusal, peers, out);
            return;
        };
        let mut writer = FrameWriter::request(buffer, Serialize::Json, code, opaque, false);
        for (key, value) in &ext {
            writer = writer.ext(key, value);
        }
        writer.finish_body(&body);
        let wait_ns = if matches!(asker.purpose, Purpose::Status(..)) { STATUS_NS_MAX } else { FORWARD_NS_MAX };
        self.forwarded.insert(opaque, Forwarded { asker, to, deadline_ns: now.mono_ns + wait_ns });
    }

    fn on_client_answer(&mut self, conn: ConnId, command: &Command<'_>, peers: &Peers, out: &mut Outbound<'_>) {
        if self.forwarded.get(&command.opaque).is_none_or(|forwarded| forwarded.to != conn) {
            return;
        }
        let Some(Forwarded { asker, .. }) = self.forwarded.remove(&command.opaque) else { return };
        match &asker.purpose {
            Purpose::Relay => {}
            Purpose::Reply(place) => return self.answer_reply(&asker, place, Ok(command.code), peers, out),
            Purpose::Status(gather, client_id) => {
                let body = (command.code == response::SUCCESS).then_some(command.body);
                return self.answer_status(&asker, gather, client_id, body, peers, out);
            }
        }
        let mut bytes = Vec::new();
        let mut writer = FrameWriter::response(&mut bytes, asker.reply, command.code);
        if let Some(remark) = command.remark {
            writer = writer.remark(remark);
        }
        for (key, value) in &command.ext.fields {
            writer = writer.ext(key, value);
        }
        writer.finish_body(command.body);
        self.to_channel(asker.channel, bytes, peers, out);
    }

    /// The answer to a reply message, once its push has come to an end.
    fn answer_reply(
        &self,
        asker: &Asker,
        place: &ReplyPlace,
        pushed: Result<i32, String>,
        peers: &Peers,
        out: &mut Outbound<'_>,
    ) {
        if place.is_oneway {
            return;
        }
        let (code, remark) = reply::outcome(place, pushed);
        let mut bytes = Vec::new();
        let mut writer = FrameWriter::response(&mut bytes, asker.reply, code);
        if let Some(remark) = &remark {
            writer = writer.remark(remark);
        }
        writer
            .ext("msgId", &place.message_id)
            .ext_num("queueId", i64::from(place.queue_id))
            .ext_num("queueOffset", place.queue_offset)
            .ext("MSG_REGION", &self.broker.config.region_id)
            .ext_bool("TRACE_ON", self.broker.live.trace_on())
            .finish();
        self.to_channel(asker.channel, bytes, peers, out);
    }

    /// One client has said how far it is, or will not; after the last one that is the answer.
    fn answer_status(
        &self,
        asker: &Asker,
        gather: &StatusGather,
        client_id: &str,
        body: Option<&[u8]>,
        peers: &Peers,
        out: &mut Outbound<'_>,
    ) {
        if let Some(body) = gather.take(client_id, body) {
            let mut bytes = Vec::new();
            FrameWriter::response(&mut bytes, asker.reply, response::SUCCESS).finish_body(&body);
            self.to_channel(asker.channel, bytes, peers, out);
        }
    }

    fn expire_forwarded(&mut self, now_ns: u64, peers: &Peers, out: &mut Outbound<'_>) {
        if self.forwarded.is_empty() {
            return;
        }
        let late: Vec<i32> = self
            .forwarded
            .iter()
            .filter(|(_, forwarded)| forwarded.deadline_ns <= now_ns)
            .map(|(opaque, _)| *opaque)
            .collect();
        for opaque in late {
            if let Some(Forwarded { asker, .. }) = self.forwarded.remove(&opaque) {
                let refusal = Refusal::new(response::CONSUME_MSG_TIMEOUT, "the client did not answer within 10000 ms");
                self.refuse_asker(&asker, &refusal, peers, out);
            }
        }
    }

    fn refuse_asker(&self, asker: &Asker, refusal: &Refusal, peers: &Peers, out: &mut Outbound<'_>) {
        match &asker.purpose {
            Purpose::Relay => {}
            Purpose::Reply(place) => {
                let why = format!("push reply message to {} fail: {}", place.client_id, refusal.remark);
                return self.answer_reply(asker, place, Err(why), peers, out);
            }
            Purpose::Status(gather, client_id) => {
                return self.answer_status(asker, gather, client_id, None, peers, out);
            }
        }
        let mut bytes = Vec::new();
        refusal.write(&mut bytes, asker.reply);
        self.to_channel(asker.channel, bytes, peers, out);
    }

    fn to_channel(&self, to: Channel, bytes: Vec<u8>, peers: &Peers, out: &mut Outbound<'_>) {
        if to.shard == self.index {
            if let Some(buffer) = out.buffer(to.conn) {
                buffer.extend_from_slice(&bytes);
            }
        } else {
            // The asker gives up by its own time-out if this is lost.
            let _ = peers.mails[usize::from(to.shard)].send(Mail::Bytes { to: to.conn, bytes });
        }
    }

    fn on_close(&mut self, conn: ConnId, peers: &Peers, out: &mut Outbound<'_>) {
        self.holds.forget(conn);
        let broker = Arc::clone(&self.broker);
        broker.on_close(Channel { shard: self.index, conn }, out.now(), &mut self.pushes);
        self.deliver_pushes(peers, out);
        let gone: Vec<i32> =
            self.forwarded.iter().filter(|(_, forwarded)| forwarded.to == conn).map(|(opaque, _)| *opaque).collect();
        for opaque in gone {
            if let Some(Forwarded { asker, .. }) = self.forwarded.remove(&opaque) {
                let refusal = Refusal::new(response::CONSUME_MSG_TIMEOUT, "the client's connection is gone");
                self.refuse_asker(&asker, &refusal, peers, out);
            }
        }
    }
}

/// The answer to a send whose message is stored. `code` says whether it is durable, too, where that was promised.
fn answer_stored(broker: &Broker, id: &mut String, stored: &Stored, code: i32, out: &mut Outbound<'_>) {
    let Some(buffer) = out.buffer(stored.conn) else { return };
    let Some(queue_id) = stored.queue_id else {
        // Stored is all that was asked for; a flush that is late does not change it.
        FrameWriter::response(buffer, stored.reply, response::SUCCESS).finish();
        return;
    };
    id.clear();
    push_message_id(id, broker.store_host, stored.log_offset);
    for log_offset in &stored.further {
        id.push(',');
        push_message_id(id, broker.store_host, *log_offset);
    }
    FrameWriter::response(buffer, stored.reply, code)
        .ext_plain("msgId", id)
        .ext_num("queueId", i64::from(queue_id))
        .ext_num("queueOffset", stored.queue_offset as i64)
        .ext("MSG_REGION", &broker.config.region_id)
        .ext_bool("TRACE_ON", broker.live.trace_on())
        .finish();
}

fn refuse_parked(parked: &Parked, remark: String, out: &mut Outbound<'_>) {
    if !parked.is_oneway
        && let Some(buffer) = out.buffer(parked.conn)
    {
        Refusal::new(response::SYSTEM_ERROR, remark).write(buffer, parked.reply);
    }
}

fn parked_due_ns(parked: &Parked, now_ns: u64) -> u64 {
    let registered_ns = parked.since_ns + REGISTERED_NS_MAX;
    if parked.registered && registered_ns > now_ns { registered_ns } else { parked.since_ns + PARKED_NS_MAX }
}

/// The oldest stands first, so one look is enough for the time-outs of all.
fn is_parked_due(parked: &Parked, now_ns: u64) -> bool {
    now_ns.saturating_sub(parked.since_ns) >= if parked.registered { REGISTERED_NS_MAX } else { PARKED_NS_MAX }
}

fn append_refusal(error: Option<&AppendError>) -> Refusal {
    match error {
        Some(error @ (AppendError::NoFile(_) | AppendError::NoFileYet { .. })) => {
            Refusal::new(response::SYSTEM_ERROR, error.to_string())
        }
        Some(error @ AppendError::Busy) => Refusal::new(response::SYSTEM_BUSY, error.to_string()),
        Some(error @ AppendError::TooLarge { .. }) => Refusal::new(response::MESSAGE_ILLEGAL, error.to_string()),
        Some(error @ AppendError::NotWritable(_)) => Refusal::new(response::SERVICE_NOT_AVAILABLE, error.to_string()),
        None => Refusal::new(response::SYSTEM_ERROR, "UNKNOWN_ERROR"),
    }
}

fn answer_pull(conn: ConnId, command: &Command<'_>, pulled: Pulled, out: &mut Outbound<'_>) {
    if command.is_oneway() {
        return;
    }
    let Some(buffer) = out.buffer(conn) else { return };
    let writer = FrameWriter::response(buffer, command.reply(), pulled.code);
    let writer = with_bounds(writer, &pulled.bounds, pulled.suggested_broker).remark(pulled.read.status.name());
    if pulled.code != response::SUCCESS {
        writer.finish();
        return;
    }
    writer.finish_body_bytes(pulled.read.bytes);
    for slice in pulled.read.slices {
        out.push(conn, slice);
    }
}
