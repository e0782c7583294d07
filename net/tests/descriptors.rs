//! Accepting without descriptors. Alone in its process, whose limit it lowers.

mod support;

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use nix::sys::time::TimeValLike;
use std::io::Write;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;
use support::{Server, frame, read_frame};

#[test]
fn without_descriptors_accepting_rests_and_goes_on() {
    let server = Server::start(Default::default());
    let mut streams = vec![server.connect()];
    streams[0].write_all(&frame(b"warm")).unwrap();
    read_frame(&mut streams[0]).unwrap();
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let used = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    setrlimit(Resource::RLIMIT_NOFILE, used + 20, hard).unwrap();
    // Client and server share the limit: the last ones stay in the backlog.
    while let Ok(stream) = std::net::TcpStream::connect(server.addr) {
        streams.push(stream);
    }
    thread::sleep(Duration::from_millis(150));
    let turns = server.counts.turns.load(Ordering::SeqCst);
    let cpu_ms = || {
        let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
        (usage.user_time() + usage.system_time()).num_milliseconds()
    };
    let before_ms = cpu_ms();
    thread::sleep(Duration::from_millis(1000));
    let spent_ms = cpu_ms() - before_ms;
    let turned = server.counts.turns.load(Ordering::SeqCst) - turns;
    assert!(turned <= 25, "{turned} turns in a second without descriptors");
    assert!(spent_ms < 200, "{spent_ms} ms of CPU");
    // Those that are served still are.
    streams[0].write_all(&frame(b"served")).unwrap();
    assert_eq!(read_frame(&mut streams[0]).unwrap(), frame(b"served"));
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    for stream in &mut streams {
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        stream.write_all(&frame(b"now")).unwrap();
        assert_eq!(read_frame(stream).unwrap(), frame(b"now"));
    }
    let stream_count = streams.len();
    assert_eq!(server.counts.opened.load(Ordering::SeqCst), stream_count);
}
