//! What a frame costs before the broker looks at it, and what an answer costs: numbers of the ledger in
//! docs/benchmarks.md. The frames are those of the load generator, as an official client sends them.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ringmq_bench::frame::{self, Header, OPAQUE_BASE, code};
use ringmq_bench::template::{self, SendShape, SendTemplate};
use ringmq_net::protocol::body::route::{BrokerData, QueueData, TopicRouteData};
use ringmq_net::protocol::codes::response;
use ringmq_net::protocol::command::{self, Scratch};
use ringmq_net::protocol::frame::{Serialize, frame_head};
use ringmq_net::protocol::headers::send::SendHeader;
use ringmq_net::protocol::writer::{FrameWriter, Reply};
use std::hint::black_box;
use std::rc::Rc;

const HEADERS: [(Header, Serialize, &str); 2] =
    [(Header::Json, Serialize::Json, "json"), (Header::Rocketmq, Serialize::Binary, "rocketmq")];

fn shape(header: Header, body: Rc<[u8]>) -> SendShape<'static> {
    let (is_one_way, properties, sys_flag) = (false, &[][..], 0);
    SendShape {
        header,
        group: "bench_producer",
        messages: 1,
        tags: 8,
        is_one_way,
        properties,
        sys_flag,
        run_id: 1,
        body,
    }
}

fn send_frame(header: Header) -> Vec<u8> {
    let body = template::body(1024, 1);
    let mut out = Vec::new();
    let template = SendTemplate::new(&shape(header, body), "BenchmarkTopic", 3);
    template.append(&mut out, OPAQUE_BASE, 1, 1_796_003_496_363, 1024);
    out
}

fn pull_frame(header: Header) -> Vec<u8> {
    let ext = [
        ("commitOffset", "0"),
        ("consumerGroup", "bench_consumer"),
        ("expressionType", "TAG"),
        ("maxMsgNums", "32"),
        ("queueId", "3"),
        ("queueOffset", "1234567"),
        ("subVersion", "1796003496363"),
        ("subscription", "*"),
        ("suspendTimeoutMillis", "15000"),
        ("sysFlag", "6"),
        ("topic", "BenchmarkTopic"),
    ];
    frame::request(header, code::PULL_MESSAGE, OPAQUE_BASE, &ext, &[])
}

fn decode(c: &mut Criterion) {
    let mut group = c.benchmark_group("decode");
    for (header, _, name) in HEADERS {
        for (kind, frame) in [("send_1k", send_frame(header)), ("pull", pull_frame(header))] {
            group.throughput(Throughput::Bytes(frame.len() as u64));
            let mut scratch = Scratch::default();
            group.bench_function(BenchmarkId::new(kind, name), |b| {
                b.iter(|| {
                    let command = command::decode(black_box(&frame), &mut scratch).expect("a good frame");
                    black_box(command.ext.fields.len())
                });
            });
        }
    }
    let frame = send_frame(Header::Json);
    group.bench_function("head", |b| b.iter(|| frame_head(black_box(&frame)).expect("a good frame")));
    group.finish();
}

fn header_view(c: &mut Criterion) {
    let mut group = c.benchmark_group("header_view");
    for (header, _, name) in HEADERS {
        let frame = send_frame(header);
        let mut scratch = Scratch::default();
        let command = command::decode(&frame, &mut scratch).expect("a good frame");
        group.bench_function(BenchmarkId::new("send_v2", name), |b| {
            b.iter(|| {
                let view = SendHeader::v2(black_box(&command.ext)).expect("a good header");
                black_box((view.queue_id, view.topic.len()))
            });
        });
    }
    group.finish();
}

fn answer(c: &mut Criterion) {
    let mut group = c.benchmark_group("answer");
    for (_, serialize, name) in HEADERS {
        let mut out = Vec::with_capacity(1 << 16);
        let reply = Reply { opaque: 77, serialize };
        group.bench_function(BenchmarkId::new("send", name), |b| {
            b.iter(|| {
                out.clear();
                FrameWriter::response(&mut out, black_box(reply), response::SUCCESS)
                    .ext("msgId", "7F00000100002A9F0000000012345678")
                    .ext_num("queueId", 3)
                    .ext_num("queueOffset", 1_234_567)
                    .finish();
                black_box(out.len())
            });
        });
    }
    group.finish();
}

/// A topic on so many broker pairs: what a client asks for every 30 s.
fn route(brokers: usize) -> TopicRouteData {
    let name = |number: usize| format!("broker-{number}");
    let address = |number: usize, id: i64| (id, format!("10.0.{number}.{id}:10911"));
    let brokers = 0..brokers;
    TopicRouteData {
        broker_datas: brokers
            .clone()
            .map(|number| BrokerData {
                broker_addrs: [address(number, 0), address(number, 1)].into(),
                broker_name: name(number),
                cluster: "DefaultCluster".into(),
                ..BrokerData::default()
            })
            .collect(),
        queue_datas: brokers
            .map(|number| QueueData {
                broker_name: name(number),
                perm: 6,
                read_queue_nums: 8,
                topic_sys_flag: 0,
                write_queue_nums: 8,
            })
            .collect(),
        ..TopicRouteData::default()
    }
}

fn route_answer(c: &mut Criterion) {
    let mut group = c.benchmark_group("route_answer");
    for brokers in [1, 16] {
        let route = route(brokers);
        let mut out = Vec::with_capacity(1 << 16);
        group.bench_function(BenchmarkId::from_parameter(brokers), |b| {
            b.iter(|| {
                out.clear();
                let body = black_box(&route).to_json();
                let reply = Reply { opaque: 77, serialize: Serialize::Json };
                FrameWriter::response(&mut out, reply, response::SUCCESS).finish_body(&body);
                black_box(out.len())
            });
        });
    }
    group.finish();
}

/// The client's own cost of a message, to be taken off what it measures.
fn load_generator(c: &mut Criterion) {
    let mut group = c.benchmark_group("load_generator");
    let body = template::body(1024, 1);
    for (header, _, name) in HEADERS {
        let template = SendTemplate::new(&shape(header, body.clone()), "BenchmarkTopic", 3);
        let mut out = Vec::with_capacity(1 << 16);
        group.bench_function(BenchmarkId::new("patch_1k", name), |b| {
            b.iter(|| {
                out.clear();
                template.append(&mut out, OPAQUE_BASE, black_box(7), 1_796_003_496_363, 1024).len()
            });
        });
        let ext = [("msgId", "7F00000100002A9F0000000012345678"), ("queueId", "3"), ("queueOffset", "1234567")];
        let answer = frame::request_with_flag(header, 0, frame::FLAG_RESPONSE, OPAQUE_BASE, &ext, &[]);
        let mut scanner = frame::Scanner::default();
        group.bench_function(BenchmarkId::new("scan_answer", name), |b| {
            b.iter(|| scanner.scan(black_box(&answer)).expect("a good answer").opaque);
        });
    }
    group.finish();
}

criterion_group!(benches, decode, header_view, answer, route_answer, load_generator);
criterion_main!(benches);
