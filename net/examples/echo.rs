//! A bare server on the reactor: every request frame is answered with a success response and nothing else. The
//! noise floor of the bench: what network and framing cost without a broker.
//!
//! `cargo run --release --example echo -- 127.0.0.1:10911 [spin_us]`

use ringmq_net::protocol::codes::response;
use ringmq_net::protocol::command::{self, Scratch};
use ringmq_net::protocol::writer::FrameWriter;
use ringmq_net::reactor::{ConnId, Outbound, Port, Reactor, ReactorConfig, Service, probe};
use std::error::Error;
use std::net::TcpListener;

#[derive(Default)]
struct Echo {
    scratch: Scratch,
}

impl Service for Echo {
    type Mail = ();

    fn on_frame(&mut self, conn: ConnId, frame: &[u8], out: &mut Outbound<'_>) {
        match command::decode(frame, &mut self.scratch) {
            Ok(request) if request.is_response() || request.is_oneway() => {}
            Ok(request) => {
                let Some(buffer) = out.buffer(conn) else { return };
                FrameWriter::response(buffer, request.reply(), response::SUCCESS).finish();
            }
            Err(error) => {
                eprintln!("{:?}: {error}", out.peer(conn));
                out.close(conn);
            }
        }
    }

    fn on_mail(&mut self, (): (), _out: &mut Outbound<'_>) {}

    fn on_close(&mut self, _conn: ConnId, _out: &mut Outbound<'_>) {}

    fn on_turn(&mut self, _out: &mut Outbound<'_>) -> Option<u64> {
        None
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().ok_or("usage: echo ADDRESS [SPIN_US]")?;
    let spin_us = arguments.next().map_or(Ok(0), |text| text.parse())?;
    let listener = TcpListener::bind(&address)?;
    println!("{}; {}", listener.local_addr()?, probe()?);
    let mut reactor = Reactor::new(ReactorConfig { spin_us, ..ReactorConfig::default() })?;
    reactor.listen(listener, Port(0))?;
    reactor.run(&mut Echo::default())?;
    Ok(())
}
