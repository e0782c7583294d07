//! In a steady state the reactor's thread allocates nothing, whatever the number of frames.

mod support;

use ringmq_net::protocol::command::{self, Scratch};
use ringmq_net::protocol::frame::Serialize;
use ringmq_net::protocol::writer::FrameWriter;
use ringmq_net::reactor::{ConnId, Outbound, Port, Reactor, ReactorConfig, Service};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::thread;
use support::read_frame;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; counting touches a thread-local of plain numbers that
// needs no allocation itself.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const FRAMES_OF_WARM_UP: u64 = 40_000;
const FRAMES: u64 = 200_000;

#[derive(Default)]
struct Echo {
    scratch: Scratch,
    frames: u64,
    count_at_start: u64,
}

impl Service for Echo {
    type Mail = ();

    fn on_frame(&mut self, conn: ConnId, frame: &[u8], out: &mut Outbound<'_>) {
        self.frames += 1;
        if self.frames == FRAMES_OF_WARM_UP {
            self.count_at_start = COUNT.get();
        }
        if self.frames == FRAMES {
            let allocations = COUNT.get() - self.count_at_start;
            // A cut frame or a fuller turn than any before may still grow a buffer.
            assert!(allocations < 200, "{allocations} allocations for {} frames", FRAMES - FRAMES_OF_WARM_UP);
            out.finish(u64::MAX);
        }
        let request = command::decode(frame, &mut self.scratch).unwrap();
        FrameWriter::response(out.buffer(conn).unwrap(), request.reply(), 0).finish();
        out.push(conn, bytes::Bytes::new());
    }

    fn on_mail(&mut self, (): (), _out: &mut Outbound<'_>) {}

    fn on_close(&mut self, _conn: ConnId, _out: &mut Outbound<'_>) {}

    fn on_turn(&mut self, _out: &mut Outbound<'_>) -> Option<u64> {
        None
    }
}

#[test]
fn frames_do_not_allocate() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let mut reactor = Reactor::new(ReactorConfig::default()).unwrap();
        reactor.listen(listener, Port(0)).unwrap();
        reactor.run(&mut Echo::default()).unwrap();
    });
    let clients: Vec<_> = (0..4)
        .map(|_| {
            thread::spawn(move || {
                let mut stream = TcpStream::connect(addr).unwrap();
                let mut batch = Vec::new();
                for opaque in 0..50 {
                    FrameWriter::request(&mut batch, Serialize::Json, 310, opaque, false)
                        .ext("a", "group")
                        .ext("b", "topic")
                        .finish_body(&[1; 1000]);
                }
                for _ in 0..FRAMES / 4 / 50 {
                    stream.write_all(&batch).unwrap();
                    for _ in 0..50 {
                        read_frame(&mut stream).unwrap();
                    }
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    server.join().unwrap();
}
