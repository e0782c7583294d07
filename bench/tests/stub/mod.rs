//! A broker in a std thread for each connection, slow and faulty in known ways: what the load generator reports about
//! it must be what was built in.

use ringmq_bench::frame::{self, Decoded, FLAG_RESPONSE, Header, code};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

/// Every n-th send (counted over all connections from 1) meets a fault; 0 is never.
#[derive(Clone, Copy, Default)]
pub struct Faults {
    pub lost: u64,
    pub stored_twice: u64,
    pub refused: u64,
    pub unanswered: u64,
    pub answered_twice: u64,
    /// Pulled messages, by their count.
    pub delivered_twice: u64,
    /// Commits, by their count.
    pub commit_lost: u64,
    pub rollback_kept: u64,
}

#[derive(Clone, Copy, Default)]
pub struct Stub {
    /// Before each answer to a send; a connection does nothing else meanwhile.
    pub send_delay: Duration,
    /// Between storing a message and showing it to pulls.
    pub visible_delay: Duration,
    /// At this send (counted from 1) its connection stands still for so long.
    pub stall: Option<(u64, Duration)>,
    /// Sends of all connections take so long one after the other: the broker's capacity.
    pub serial_delay: Duration,
    /// A delayed message is shown so long after it was stored, whatever its level.
    pub level_delay: Duration,
    /// After each half message that nobody has ended, the broker asks back so long after it was stored.
    pub check_delay: Option<Duration>,
    pub faults: Faults,
}

type Queues = BTreeMap<(String, u32), Vec<Vec<u8>>>;

#[derive(Default)]
struct State {
    queues: Queues,
    sends: u64,
    delivered: u64,
    commits: u64,
    rollbacks: u64,
    half_count: i64,
    halves: BTreeMap<i64, Half>,
    held: Vec<Held>,
}

/// A half message that waits for its end, at its place in a log of nothing else.
struct Half {
    key: (String, u32),
    body: Vec<u8>,
}

/// A pull that found nothing.
struct Held {
    writer: Writer,
    header: Header,
    opaque: u32,
    key: (String, u32),
    offset: usize,
}

type Writer = Arc<Mutex<TcpStream>>;

#[derive(Clone)]
struct Broker {
    stub: Stub,
    state: Arc<Mutex<State>>,
    turn: Arc<Mutex<()>>,
}

impl Stub {
    /// Listens until the test process ends.
    pub fn start(self) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let broker = Broker { stub: self, state: Arc::default(), turn: Arc::default() };
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (broker, stream) = (broker.clone(), stream.unwrap());
                stream.set_nodelay(true).unwrap();
                // A client that goes away ends its thread.
                thread::spawn(move || broker.serve(stream));
            }
        });
        address
    }
}

impl Broker {
    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        let writer = Arc::new(Mutex::new(stream.try_clone()?));
        loop {
            let mut frame = vec![0; 4];
            stream.read_exact(&mut frame)?;
            let rest = u32::from_be_bytes(frame[..4].try_into().unwrap()) as usize;
            frame.resize(4 + rest, 0);
            stream.read_exact(&mut frame[4..])?;
            let header = if frame[4] == 0 { Header::Json } else { Header::Rocketmq };
            let seen = frame::Scanner::default().scan(&frame).unwrap();
            let is_one_way = seen.flag & frame::FLAG_ONE_WAY != 0;
            let request = frame::decode(&frame).unwrap();
            self.handle(&request, header, is_one_way, &writer)?;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn handle(&self, request: &Decoded<'_>, header: Header, is_one_way: bool, writer: &Writer) -> io::Result<()> {
        let answer = |code, ext: &[(&str, &str)]| reply(writer, header, code, request.opaque, ext, &[]);
        match request.code {
            code::SEND_MESSAGE_V2 | code::SEND_BATCH_MESSAGE => self.send(request, header, is_one_way, writer),
            code::PULL_MESSAGE => self.pull(request, header, writer),
            code::UPDATE_AND_CREATE_TOPIC | code::HEART_BEAT => answer(code::SUCCESS, &[]),
            code::END_TRANSACTION => {
                self.end(request);
                if is_one_way { Ok(()) } else { answer(code::SUCCESS, &[]) }
            }
            code::GET_MIN_OFFSET => answer(code::SUCCESS, &[("offset", "0")]),
            code::GET_MAX_OFFSET => {
                let key = (request.ext["topic"].clone(), request.ext["queueId"].parse().unwrap());
                let count = self.state().queues.get(&key).map_or(0, Vec::len);
                answer(code::SUCCESS, &[("offset", &count.to_string())])
            }
            _ => answer(code::REQUEST_CODE_NOT_SUPPORTED, &[]),
        }
    }

    fn send(&self, request: &Decoded<'_>, header: Header, is_one_way: bool, writer: &Writer) -> io::Result<()> {
        let Stub { send_delay, stall, faults, .. } = self.stub;
        let mut state = self.state();
        state.sends += 1;
        let number = state.sends;
        let is_hit = |every: u64| every > 0 && number.is_multiple_of(every);
        drop(state);
        thread::sleep(send_delay);
        if !self.stub.serial_delay.is_zero() {
            let _turn = self.turn.lock().unwrap();
            thread::sleep(self.stub.serial_delay);
        }
        if let Some((_, duration)) = stall.filter(|(at, _)| *at == number) {
            thread::sleep(duration);
        }
        if is_hit(faults.refused) {
            return reply(writer, header, 2, request.opaque, &[], &[]);
        }
        let key = (request.ext["b"].clone(), request.ext["e"].parse().unwrap());
        if request.ext["i"].contains("TRAN_MSG\u{1}true") {
            return self.half(request, header, key, writer);
        }
        let is_delayed = request.ext["i"].contains("DELAY\u{1}") && !self.stub.level_delay.is_zero();
        let visible_delay = if is_delayed { self.stub.level_delay } else { self.stub.visible_delay };
        let bodies = if request.ext["m"] == "true" { batch(request.body) } else { vec![request.body.to_vec()] };
        let copies = if is_hit(faults.lost) { 0 } else { 1 + usize::from(is_hit(faults.stored_twice)) };
        let ids = vec!["7F00000100002A9F0000000000000000"; bodies.len()].join(",");
        // That of a delayed message is a place in a queue nobody looks at.
        let offset = if is_delayed { 0 } else { self.store(&key, &bodies, copies) };
        if visible_delay.is_zero() {
            self.wake()?;
        } else {
            let broker = self.clone();
            thread::spawn(move || {
                thread::sleep(visible_delay);
                if is_delayed {
                    broker.store(&key, &bodies, copies);
                }
                broker.wake()
            });
        }
        if is_one_way || is_hit(faults.unanswered) {
            return Ok(());
        }
        let ext = [("msgId", ids.as_str()), ("queueId", &request.ext["e"]), ("queueOffset", &offset.to_string())];
        for _ in 0..1 + usize::from(is_hit(faults.answered_twice)) {
            reply(writer, header, code::SUCCESS, request.opaque, &ext, &[])?;
        }
        Ok(())
    }

    fn half(&self, request: &Decoded<'_>, header: Header, key: (String, u32), writer: &Writer) -> io::Result<()> {
        let mut state = self.state();
        state.half_count += 1;
        let offset = state.half_count;
        assert_eq!(request.ext["f"], "4");
        state.halves.insert(offset, Half { key, body: request.body.to_vec() });
        drop(state);
        if let Some(delay) = self.stub.check_delay {
            let (broker, writer) = (self.clone(), writer.clone());
            thread::spawn(move || {
                thread::sleep(delay);
                if !broker.state().halves.contains_key(&offset) {
                    return Ok(());
                }
                let offset = offset.to_string();
                let ext = [("commitLogOffset", offset.as_str()), ("msgId", "X"), ("tranStateTableOffset", &offset)];
                let frame =
                    frame::request_with_flag(header, code::CHECK_TRANSACTION_STATE, frame::FLAG_ONE_WAY, 7, &ext, &[]);
                writer.lock().unwrap().write_all(&frame)
            });
        }
        let id = format!("7F00000100002A9F{offset:016X}");
        let ext = [("msgId", id.as_str()), ("queueId", "0"), ("queueOffset", &offset.to_string())];
        reply(writer, header, code::SUCCESS, request.opaque, &ext, &[])
    }

    fn end(&self, request: &Decoded<'_>) {
        let Faults { commit_lost, rollback_kept, .. } = self.stub.faults;
        let is_hit = |every: u64, number: u64| every > 0 && number.is_multiple_of(every);
        let mut state = self.state();
        let offset: i64 = request.ext["commitLogOffset"].parse().unwrap();
        assert_eq!(request.ext["tranStateTableOffset"], request.ext["commitLogOffset"]);
        let end = request.ext["commitOrRollback"].as_str();
        if end == "0" {
            return;
        }
        let half = state.halves.remove(&offset).expect("a transaction is ended once");
        let is_stored = if end == "8" {
            state.commits += 1;
            !is_hit(commit_lost, state.commits)
        } else {
            assert_eq!(end, "12");
            state.rollbacks += 1;
            is_hit(rollback_kept, state.rollbacks)
        };
        drop(state);
        self.store(&half.key, &[half.body], usize::from(is_stored));
    }

    /// The queue offset of the first.
    fn store(&self, key: &(String, u32), bodies: &[Vec<u8>], copies: usize) -> usize {
        let mut state = self.state();
        let queue = state.queues.entry(key.clone()).or_default();
        let first = queue.len();
        for _ in 0..copies {
            for body in bodies {
                let offset = queue.len();
                queue.push(record(key.1, offset as u64, body));
            }
        }
        first
    }

    fn pull(&self, request: &Decoded<'_>, header: Header, writer: &Writer) -> io::Result<()> {
        let number = |name: &str| request.ext[name].parse::<usize>().unwrap();
        let key = (request.ext["topic"].clone(), number("queueId") as u32);
        let held = Held { writer: writer.clone(), header, opaque: request.opaque, key, offset: number("queueOffset") };
        let mut state = self.state();
        // With a delay even a pull that would find something waits for the next wake-up.
        let is_late = !self.stub.visible_delay.is_zero();
        if is_late || !self.deliver(&mut state, &held)? {
            state.held.push(held);
        }
        Ok(())
    }

    /// Answers the held pulls that find something now.
    fn wake(&self) -> io::Result<()> {
        let mut state = self.state();
        for held in std::mem::take(&mut state.held) {
            if !self.deliver(&mut state, &held)? {
                state.held.push(held);
            }
        }
        Ok(())
    }

    fn deliver(&self, state: &mut State, held: &Held) -> io::Result<bool> {
        let queue = state.queues.get(&held.key).map_or(&[][..], Vec::as_slice);
        let found = queue.get(held.offset..).unwrap_or_default();
        let found = &found[..found.len().min(32)];
        if found.is_empty() {
            return Ok(false);
        }
        let mut body = Vec::new();
        for message in found {
            state.delivered += 1;
            let every = self.stub.faults.delivered_twice;
            let copies = 1 + usize::from(every > 0 && state.delivered.is_multiple_of(every));
            (0..copies).for_each(|_| body.extend_from_slice(message));
        }
        let next = (held.offset + found.len()).to_string();
        reply(&held.writer, held.header, code::SUCCESS, held.opaque, &[("nextBeginOffset", &next)], &body)?;
        Ok(true)
    }
}

fn reply(writer: &Writer, header: Header, code: i32, opaque: u32, ext: &[(&str, &str)], body: &[u8]) -> io::Result<()> {
    let frame = frame::request_with_flag(header, code, FLAG_RESPONSE, opaque, ext, body);
    writer.lock().unwrap().write_all(&frame)
}

fn batch(mut body: &[u8]) -> Vec<Vec<u8>> {
    let mut bodies = Vec::new();
    while !body.is_empty() {
        let size = |at: usize| u32::from_be_bytes(body[at..at + 4].try_into().unwrap()) as usize;
        bodies.push(body[20..20 + size(16)].to_vec());
        body = &body[size(0)..];
    }
    bodies
}

/// As far as a pull is read: no topic, no properties, IPv4 hosts of zeros.
fn record(queue: u32, offset: u64, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let size = 91 + body.len() as u32;
    for word in [size, 0xDAA3_20A7, 0, queue, 0] {
        out.extend_from_slice(&word.to_be_bytes());
    }
    out.extend_from_slice(&offset.to_be_bytes());
    out.resize(84, 0);
    out.extend_from_slice(&(body.len() as u32).to_be_bytes());
    out.extend_from_slice(body);
    out.resize(size as usize, 0);
    out
}
