//! `frame dump` on bytes and on hex text.

use std::io::Write;
use std::process::{Command, Stdio};

fn dump(input: &[u8]) -> (i32, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_ringmq-tools"))
        .args(["frame", "dump"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("runs");
    child.stdin.take().expect("piped").write_all(input).expect("written");
    let output = child.wait_with_output().expect("ends");
    (output.status.code().expect("not killed"), String::from_utf8(output.stdout).expect("UTF-8"))
}

fn frame(header: &str, body: &[u8]) -> Vec<u8> {
    let mut frame = ((4 + header.len() + body.len()) as u32).to_be_bytes().to_vec();
    frame.extend((header.len() as u32).to_be_bytes());
    frame.extend(header.as_bytes());
    frame.extend(body);
    frame
}

const REQUEST: &str = r#"{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":401}"#;

#[test]
fn header_fields_and_body() {
    let mut bytes = frame(REQUEST, b"");
    bytes.extend(frame(r#"{"code":17,"flag":1,"opaque":7,"remark":"no route"}"#, b"{\"a\":1}"));
    bytes.extend(frame(r#"{"code":34,"flag":2,"opaque":8}"#, &[0xFF, 0]));
    let want = "request code 105,";
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let (code, text) = dump(&bytes);
    assert_eq!(code, 0, "{text}");
    for want in [
        want,
        "topic = \"T\"",
        "opaque 7 flag 0 version 401",
        "response code 17,",
        "remark \"no route\"",
        r#"7 bytes, text "{\"a\":1}""#,
        "oneway request code 34,",
        "2 bytes, ff00",
    ] {
        assert!(text.contains(want), "{want}: {text}");
    }
    assert_eq!(dump(hex.as_bytes()), (0, text));
}

#[test]
fn what_is_no_whole_frame_is_told() {
    let bytes = frame(REQUEST, b"body");
    for (input, want) in [
        (&bytes[..bytes.len() - 1], "cut off"),
        (&bytes[..5], "cut off, 5 bytes"),
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP"),
        (&frame("{\"code\"", b""), "frame of 15 bytes"),
    ] {
        let (code, text) = dump(input);
        assert_eq!(code, 1, "{text}");
        assert!(text.contains(want), "{want}: {text}");
    }
}

/// The record of TopicDirect in the 4.9.7 store, as a pull answers it.
#[test]
fn records_of_a_pull_are_counted() {
    let record = "00000066daa320a7000000000000000100000007\
        0000000000000000000000000002d820\
        00000000000001a22a26829b7f00000100009c40\
        000001a22a26829b7f00000100002a9f\
        00000000000000000000000000000000\
        0b546f7069634469726563740000";
    let header = r#"{"code":0,"flag":1,"opaque":7}"#;
    let head: String = frame(header, &[0; 204])[..8 + header.len()].iter().map(|byte| format!("{byte:02x}")).collect();
    let (code, text) = dump(format!("{head}{record}{record}").as_bytes());
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("2 records, the first of TopicDirect queue 1 offset 0 from log offset 186400"), "{text}");
}
