//! The reactor over real sockets: framing, limits, closing, mails, and what happens when descriptors run out.

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use ringmq_net::protocol::frame::FRAME_BYTES_MAX;
use ringmq_net::reactor::{Port, Reactor, ReactorConfig, probe};
use support::{Mail, Server, TestService, frame, read_frame, small};

#[test]
fn this_kernel_will_do() {
    let text = probe().unwrap();
    assert!(text.contains("io_uring") && !text.contains('\n'), "{text}");
}

#[test]
fn a_frame_may_be_cut_at_every_byte() {
    let server = Server::start(small());
    let mut stream = server.connect();
    let frames = [frame(b"abcdefgh"), frame(b""), frame(b"0123456789")];
    let bytes = frames.concat();
    for cut in 1..bytes.len() {
        stream.write_all(&bytes[..cut]).unwrap();
        // Without a pause both parts may come in one receive.
        thread::sleep(Duration::from_micros(300));
        stream.write_all(&bytes[cut..]).unwrap();
        for frame in &frames {
            assert_eq!(&read_frame(&mut stream).unwrap(), frame, "cut at {cut}");
        }
    }
}

#[test]
fn many_frames_in_few_receives() {
    let server = Server::start(ReactorConfig::default());
    let mut stream = server.connect();
    let frames: Vec<_> = (0..20_000_u32).map(|index| frame(&index.to_be_bytes().repeat(index as usize % 60))).collect();
    let bytes = frames.concat();
    let mut writer = stream.try_clone().unwrap();
    let writing = thread::spawn(move || writer.write_all(&bytes).unwrap());
    for frame in &frames {
        assert_eq!(&read_frame(&mut stream).unwrap(), frame);
    }
    writing.join().unwrap();
}

#[test]
fn the_largest_frame_goes_both_ways() {
    for config in [ReactorConfig::default(), small()] {
        let server = Server::start(ReactorConfig { out_bytes_max: 40 << 20, ..config });
        let mut stream = server.connect();
        let body: Vec<u8> = (0..FRAME_BYTES_MAX - 8).map(|index| (index / 7) as u8).collect();
        let large = frame(&body);
        assert_eq!(large.len(), FRAME_BYTES_MAX);
        for _ in 0..2 {
            stream.write_all(&large).unwrap();
            assert!(read_frame(&mut stream).unwrap() == large);
            stream.write_all(&frame(b"small")).unwrap();
            assert_eq!(read_frame(&mut stream).unwrap(), frame(b"small"));
        }
    }
}

#[test]
fn what_is_no_frame_closes_at_once() {
    let server = Server::start(ReactorConfig::default());
    let mut neighbour = server.connect();
    for bytes in [
        &b"GET / HTTP/1.1\r\n"[..],
        b"PRI * HTTP/2.0",
        &[0xff, 0xff, 0xff, 0xff],
        &[0, 0, 0, 3],
        &[1, 0, 0, 0],
        &[0, 0, 0, 64, 1, 0, 0, 61],
        &[0, 0, 0, 64, 9, 0, 0, 4],
    ] {
        let mut stream = server.connect();
        stream.write_all(&frame(b"first")).unwrap();
        stream.write_all(bytes).unwrap();
        let start = Instant::now();
        let mut rest = Vec::new();
        // The answer to the good frame may be lost with the close.
        let _ = stream.read_to_end(&mut rest);
        assert!(start.elapsed() < Duration::from_millis(500), "{bytes:?}");
        assert!(rest.is_empty() || rest == frame(b"first"));
    }
    neighbour.write_all(&frame(b"still here")).unwrap();
    assert_eq!(read_frame(&mut neighbour).unwrap(), frame(b"still here"));
    server.wait_for_count(1);
    assert_eq!(server.counts.closed.load(Ordering::SeqCst), 7);
}

/// Fault 1: memory follows the bytes that came, not the length that was promised.
#[test]
fn half_frames_are_limited_over_all_connections() {
    let server = Server::start(ReactorConfig { partial_bytes_max: 4 << 20, ..ReactorConfig::default() });
    let promise = frame(&vec![7; 8 << 20]);
    let mut streams: Vec<_> = (0..8).map(|_| server.connect()).collect();
    for stream in &mut streams {
        // More than 4 MiB in all: some are closed.
        let _ = stream.write_all(&promise[..1 << 20]);
    }
    server.wait_until("closed", |counts| counts.closed.load(Ordering::SeqCst) >= 4);
    assert!(server.counts.closed.load(Ordering::SeqCst) < 8);
    drop(streams);
    server.wait_for_count(0);
    // All of the budget is back.
    let mut stream = server.connect();
    let fits = frame(&vec![7; 3 << 20]);
    stream.write_all(&fits).unwrap();
    assert!(read_frame(&mut stream).unwrap() == fits);
}

#[test]
fn a_slow_reader_stops_its_own_requests() {
    let server = Server::start(ReactorConfig { out_bytes_max: 1 << 20, ..ReactorConfig::default() });
    let mut slow = server.connect();
    let mut writer = slow.try_clone().unwrap();
    // Each asks for 64 KiB: 256 MiB in all.
    let count = 4096;
    let writing = thread::spawn(move || {
        for _ in 0..count {
            writer.write_all(&frame(b"many 65536")).unwrap();
        }
    });
    thread::sleep(Duration::from_millis(300));
    let frames = server.counts.frames.load(Ordering::SeqCst);
    assert!(frames < 300, "{frames} of {count} requests were read");
    let mut other = server.connect();
    other.write_all(&frame(b"quick")).unwrap();
    assert_eq!(read_frame(&mut other).unwrap(), frame(b"quick"));
    for index in 0..count {
        let answer = read_frame(&mut slow).unwrap();
        assert_eq!(answer.len(), 8 + 65536, "{index}");
    }
    writing.join().unwrap();
    assert_eq!(server.counts.frames.load(Ordering::SeqCst), count + 1);
}

#[test]
fn after_a_half_close_the_rest_is_sent() {
    let server = Server::start(ReactorConfig { out_bytes_max: 100_000, ..small() });
    for _ in 0..20 {
        let mut stream = server.connect();
        for _ in 0..50 {
            stream.write_all(&frame(b"many 30000")).unwrap();
        }
        stream.shutdown(Shutdown::Write).unwrap();
        thread::sleep(Duration::from_millis(2));
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len(), 50 * 30_008);
    }
    server.wait_for_count(0);
    assert_eq!(server.counts.opened.load(Ordering::SeqCst), 20);
    assert_eq!(server.counts.closed.load(Ordering::SeqCst), 20);
}

#[test]
fn close_sends_what_is_queued() {
    let server = Server::start(ReactorConfig::default());
    let mut stream = server.connect();
    stream.write_all(&frame(b"many 3000000")).unwrap();
    stream.write_all(&frame(b"close")).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len(), 3_000_008 + frame(b"close").len());
    server.wait_for_count(0);
}

/// Bytes that came after the close must not turn it into a reset, which would take the answers away.
#[test]
fn close_waits_for_the_peer_but_not_long() {
    let server = Server::start(ReactorConfig::default());
    for _ in 0..20 {
        let mut stream = server.connect();
        let mut bytes = [frame(b"many 300000"), frame(b"close")].concat();
        bytes.extend(frame(&[7; 100_000]));
        stream.write_all(&bytes).unwrap();
        thread::sleep(Duration::from_millis(5));
        let _ = stream.write_all(&frame(b"late"));
        let mut answers = Vec::new();
        stream.read_to_end(&mut answers).unwrap();
        assert_eq!(answers.len(), 300_008 + frame(b"close").len());
    }
    server.wait_for_count(0);
    // A peer that goes on for ever meets a reset in the end.
    let mut stream = server.connect();
    stream.write_all(&frame(b"close")).unwrap();
    let start = Instant::now();
    while stream.write_all(&frame(b"more")).is_ok() {
        assert!(start.elapsed() < Duration::from_secs(5));
        thread::sleep(Duration::from_millis(10));
    }
    assert!(start.elapsed() > Duration::from_millis(500), "{:?}", start.elapsed());
    assert_eq!(server.counts.frames.load(Ordering::SeqCst), 20 * 2 + 1);
}

#[test]
fn a_reset_in_mid_send_closes_once() {
    let server = Server::start(ReactorConfig::default());
    for round in 0..30 {
        let mut stream = server.connect();
        for _ in 0..20 {
            stream.write_all(&frame(b"many 1000000")).unwrap();
        }
        thread::sleep(Duration::from_millis(round % 4));
        // Unread bytes make it a reset.
        drop(stream);
    }
    server.wait_for_count(0);
    assert_eq!(server.counts.opened.load(Ordering::SeqCst), 30);
    assert_eq!(server.counts.closed.load(Ordering::SeqCst), 30);
    let mut stream = server.connect();
    stream.write_all(&frame(b"alive")).unwrap();
    assert_eq!(read_frame(&mut stream).unwrap(), frame(b"alive"));
}

#[test]
fn idle_connections_are_closed_and_busy_ones_are_not() {
    let server = Server::start(ReactorConfig { idle_ms: 200, ..ReactorConfig::default() });
    let mut busy = server.connect();
    let mut idle = server.connect();
    let mut half = server.connect();
    half.write_all(&frame(b"never whole")[..10]).unwrap();
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(600) {
        busy.write_all(&frame(b"beat")).unwrap();
        assert_eq!(read_frame(&mut busy).unwrap(), frame(b"beat"));
        thread::sleep(Duration::from_millis(20));
    }
    for stream in [&mut idle, &mut half] {
        assert_eq!(stream.read(&mut [0; 10]).unwrap_or(0), 0);
    }
    server.wait_for_count(1);
}

#[test]
fn a_sleeping_reactor_takes_no_turns() {
    let server = Server::start(ReactorConfig::default());
    let mut stream = server.connect();
    stream.write_all(&frame(b"beat")).unwrap();
    read_frame(&mut stream).unwrap();
    thread::sleep(Duration::from_millis(50));
    let turns = server.counts.turns.load(Ordering::SeqCst);
    thread::sleep(Duration::from_millis(1500));
    assert!(server.counts.turns.load(Ordering::SeqCst) <= turns + 1);
}

#[test]
fn no_mail_is_slept_over() {
    for spin_us in [0, 20] {
        let server = Server::start(ReactorConfig { mail_count_max: 64, spin_us, ..ReactorConfig::default() });
        let senders: Vec<_> = (0..4)
            .map(|_| {
                let sender = server.sender.clone();
                thread::spawn(move || {
                    for index in 0..25_000_u32 {
                        let mut mail = Mail::Count;
                        while let Err(back) = sender.send(mail) {
                            mail = back;
                            thread::yield_now();
                        }
                        // Lets the reactor fall asleep again and again.
                        if index % 64 == 0 {
                            thread::sleep(Duration::from_micros(60));
                        }
                    }
                })
            })
            .collect();
        senders.into_iter().for_each(|thread| thread.join().unwrap());
        server.wait_until("mails", |counts| counts.mails.load(Ordering::SeqCst) == 100_000);
    }
}

/// One mail at a time, each to a reactor that has just answered: the race between posting and falling asleep.
#[test]
fn a_mail_meets_the_reactor_falling_asleep() {
    let server = Server::start(ReactorConfig::default());
    for index in 1..=20_000 {
        assert!(server.sender.send(Mail::Count).is_ok());
        let start = Instant::now();
        while server.counts.mails.load(Ordering::SeqCst) < index {
            assert!(start.elapsed() < Duration::from_secs(2), "mail {index} was slept over");
            std::hint::spin_loop();
        }
    }
}

#[test]
fn a_mail_may_bring_a_connection() {
    let server = Server::start(ReactorConfig::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    for adopt in [Mail::Adopt, Mail::AdoptLate] {
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, peer) = listener.accept().unwrap();
        accepted.set_nonblocking(true).unwrap();
        // Already there when it is adopted: the frame must still come after `on_open`.
        stream.write_all(&frame(b"through a mail")).unwrap();
        assert!(server.sender.send(adopt(accepted.into(), peer)).is_ok());
        assert_eq!(read_frame(&mut stream).unwrap(), frame(b"through a mail"));
    }
}

#[test]
fn finish_sends_everything_first() {
    let mut server = Server::start(ReactorConfig { out_bytes_max: 100 << 20, ..ReactorConfig::default() });
    let mut stream = server.connect();
    stream.write_all(&frame(b"many 20000000")).unwrap();
    server.wait_until("frames", |counts| counts.frames.load(Ordering::SeqCst) == 1);
    assert!(server.sender.send(Mail::Finish(10_000)).is_ok());
    thread::sleep(Duration::from_millis(50));
    assert!(!server.is_finished());
    assert_eq!(read_frame(&mut stream).unwrap().len(), 20_000_008);
    server.join();
    assert!(server.sender.send(Mail::Count).is_err());
    assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
}

#[test]
fn finish_ends_at_its_deadline() {
    let mut server = Server::start(ReactorConfig { out_bytes_max: 100 << 20, ..ReactorConfig::default() });
    let mut stream = server.connect();
    stream.write_all(&frame(b"many 50000000")).unwrap();
    server.wait_until("frames", |counts| counts.frames.load(Ordering::SeqCst) == 1);
    let start = Instant::now();
    assert!(server.sender.send(Mail::Finish(150)).is_ok());
    server.join();
    let elapsed = start.elapsed();
    assert!(elapsed >= Duration::from_millis(145) && elapsed < Duration::from_secs(2), "{elapsed:?}");
}

#[test]
fn stop_accepting_closes_the_listeners_only() {
    let server = Server::start(ReactorConfig::default());
    let mut stream = server.connect();
    stream.write_all(&frame(b"one")).unwrap();
    read_frame(&mut stream).unwrap();
    assert!(server.sender.send(Mail::StopAccepting).is_ok());
    let start = Instant::now();
    while TcpStream::connect(server.addr).is_ok() {
        assert!(start.elapsed() < Duration::from_secs(2));
        thread::sleep(Duration::from_millis(5));
    }
    stream.write_all(&frame(b"two")).unwrap();
    assert_eq!(read_frame(&mut stream).unwrap(), frame(b"two"));
    // The port is free.
    TcpListener::bind(server.addr).unwrap();
}

#[test]
fn a_thousand_connections_and_few_buffers() {
    let server = Server::start(ReactorConfig { sq_entries: 64, ..small() });
    let mut streams: Vec<_> = (0..1000).map(|_| server.connect()).collect();
    for round in 0..3_u32 {
        for (index, stream) in streams.iter_mut().enumerate() {
            let body = [index as u8; 700];
            stream.write_all(&[frame(&body[..index % 700]), frame(&round.to_be_bytes())].concat()).unwrap();
        }
        for (index, stream) in streams.iter_mut().enumerate() {
            assert_eq!(read_frame(stream).unwrap(), frame(&[index as u8; 700][..index % 700]));
            assert_eq!(read_frame(stream).unwrap(), frame(&round.to_be_bytes()));
        }
    }
    drop(streams);
    server.wait_for_count(0);
    assert_eq!(server.counts.closed.load(Ordering::SeqCst), 1000);
}

#[test]
fn sends_of_many_segments_keep_their_order() {
    let server = Server::start(ReactorConfig { out_bytes_max: 100 << 20, ..ReactorConfig::default() });
    let mut stream = server.connect();
    // One frame, its body in 3000 pushed pieces with own bytes between them.
    stream.write_all(&frame(b"pieces 3000")).unwrap();
    let answer = read_frame(&mut stream).unwrap();
    let want: Vec<u8> =
        (0..3000_u32).flat_map(|index| [index.to_be_bytes(), (!index).to_be_bytes()].concat()).collect();
    assert_eq!(answer[8..], want);
}

#[test]
fn a_deadline_is_met() {
    let server = Server::start(ReactorConfig::default());
    assert!(server.sender.send(Mail::Deadline(20)).is_ok());
    server.wait_until("deadline", |counts| counts.late_us.load(Ordering::SeqCst) != u64::MAX);
    let late_us = server.counts.late_us.load(Ordering::SeqCst);
    assert!(late_us < 20_000, "{late_us} us late");
}

#[test]
fn dropping_a_busy_reactor_closes_all() {
    let config = ReactorConfig { out_bytes_max: 100 << 20, ..ReactorConfig::default() };
    let mut server = Server::start(config);
    let mut stream = server.connect();
    let mut half = server.connect();
    half.write_all(&frame(b"half")[..9]).unwrap();
    stream.write_all(&frame(b"many 50000000")).unwrap();
    server.wait_until("frames", |counts| counts.frames.load(Ordering::SeqCst) == 1);
    assert!(server.sender.send(Mail::Finish(0)).is_ok());
    let start = Instant::now();
    server.join();
    assert!(start.elapsed() < Duration::from_millis(900), "the drain ran into its limit");
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    assert!(bytes.len() < 50_000_000);
    assert_eq!(half.read(&mut [0]).unwrap_or(0), 0);
}

#[test]
fn a_reactor_that_never_ran_can_be_dropped() {
    let mut service = TestService::default();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut reactor = Reactor::new(ReactorConfig::default()).unwrap();
    reactor.listen(listener, Port(0)).unwrap();
    let sender = reactor.mail_sender();
    let id = reactor.adopt(stream, Port(255), &mut service);
    assert_eq!(service.counts.opened.load(Ordering::SeqCst), 1);
    assert_eq!(id.slot, 0);
    drop(reactor);
    assert!(sender.send(Mail::Count).is_err());
}
