//! `frame dump`: remoting frames, one behind the other, as a capture or a test has them.

use ringmq_net::protocol::command::{Command, Scratch, decode};
use ringmq_net::protocol::frame::{Serialize, frame_head};
use ringmq_storage::record::decode::{Checked, check};
use std::io::{self, Read, Write};

const TEXT_CHARS_MAX: usize = 400;
const HEX_BYTES_MAX: usize = 64;
/// A capture is held in memory.
const INPUT_BYTES_MAX: u64 = 1 << 30;

/// Whether all of the input was whole frames.
pub fn run(input: &mut dyn Read, out: &mut dyn Write) -> io::Result<bool> {
    let mut bytes = Vec::new();
    input.take(INPUT_BYTES_MAX).read_to_end(&mut bytes)?;
    if let Some(decoded) = from_hex(&bytes) {
        bytes = decoded;
    }
    let mut scratch = Scratch::default();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let frame_bytes = match frame_head(rest) {
            Ok(Some(head)) if head.frame_bytes <= rest.len() => head.frame_bytes,
            Ok(head) => {
                let of = head.map_or(String::new(), |head| format!(" of {}", head.frame_bytes));
                writeln!(out, "at {at}: cut off, {} bytes of a frame{of}", rest.len())?;
                return Ok(false);
            }
            Err(error) => {
                writeln!(out, "at {at}: no frame: {error}")?;
                return Ok(false);
            }
        };
        match decode(&rest[..frame_bytes], &mut scratch) {
            Ok(command) => print(&command, at, frame_bytes, out)?,
            Err(error) => {
                writeln!(out, "at {at}: frame of {frame_bytes} bytes: {error}")?;
                return Ok(false);
            }
        }
        at += frame_bytes;
    }
    Ok(true)
}

/// `None` if it is not hex text. White space, `:` and a leading `0x` are passed over.
fn from_hex(text: &[u8]) -> Option<Vec<u8>> {
    let text = text.trim_ascii();
    let text = text.strip_prefix(b"0x").unwrap_or(text);
    let digits = text.iter().filter(|byte| !byte.is_ascii_whitespace() && **byte != b':');
    let digits: Option<Vec<u8>> = digits.map(|digit| Some(char::from(*digit).to_digit(16)? as u8)).collect();
    let digits = digits.filter(|digits| !digits.is_empty() && digits.len() % 2 == 0)?;
    Some(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

fn print(command: &Command<'_>, at: usize, frame_bytes: usize, out: &mut dyn Write) -> io::Result<()> {
    let kind = match (command.is_response(), command.is_oneway()) {
        (true, _) => "response",
        (false, true) => "oneway request",
        (false, false) => "request",
    };
    let header = match command.serialize {
        Serialize::Json => "JSON",
        Serialize::Binary => "binary",
    };
    writeln!(out, "at {at}: {kind} code {}, {frame_bytes} bytes, {header} header", command.code)?;
    let language = command.language.map_or("unknown".to_string(), |language| language.to_string());
    writeln!(out, "  opaque {} flag {} version {} language {language}", command.opaque, command.flag, command.version)?;
    if let Some(remark) = command.remark {
        writeln!(out, "  remark {remark:?}")?;
    }
    for (name, value) in &command.ext.fields {
        writeln!(out, "  {name} = {value:?}")?;
    }
    writeln!(out, "  body {}", summary(command.body))
}

fn summary(body: &[u8]) -> String {
    if body.is_empty() {
        return "empty".to_string();
    }
    if let Some(records) = records(body) {
        return format!("{} bytes, {records}", body.len());
    }
    match std::str::from_utf8(body) {
        Ok(text) if !text.contains(|c: char| c.is_control() && !c.is_whitespace()) => {
            let shown: String = text.chars().take(TEXT_CHARS_MAX).collect();
            let more = if shown.len() < text.len() { " …" } else { "" };
            format!("{} bytes, text {shown:?}{more}", body.len())
        }
        _ => {
            let shown: String = body.iter().take(HEX_BYTES_MAX).map(|byte| format!("{byte:02x}")).collect();
            let more = if body.len() > HEX_BYTES_MAX { " …" } else { "" };
            format!("{} bytes, {shown}{more}", body.len())
        }
    }
}

/// The body of a pull answer: stored records, back to back.
fn records(body: &[u8]) -> Option<String> {
    let (mut at, mut count, mut first) = (0, 0, None);
    while at < body.len() {
        let Ok(Checked::Record(record)) = check(&body[at..], None, true) else { break };
        first.get_or_insert((
            record.log_offset,
            String::from_utf8_lossy(record.topic),
            record.queue_id,
            record.queue_offset,
        ));
        count += 1;
        at += record.bytes.len();
    }
    let (log_offset, topic, queue, queue_offset) = first?;
    let rest = if at < body.len() { format!(", then {} bytes that are none", body.len() - at) } else { String::new() };
    Some(format!(
        "{count} records, the first of {topic} queue {queue} offset {queue_offset} from log offset {log_offset}{rest}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_in_the_forms_it_comes_in() {
        for (text, want) in [
            ("0x0001ff", Some(vec![0, 1, 255])),
            ("00:01\n ff", Some(vec![0, 1, 255])),
            ("000", None),
            ("xyz0", None),
            ("", None),
        ] {
            assert_eq!(from_hex(text.as_bytes()), want, "{text:?}");
        }
    }
}
