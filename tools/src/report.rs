//! Findings, printed as they come: a line each, with path and position.

use serde_json::json;
use std::collections::HashMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Lines of one kind for one file; the rest is counted. A lost queue would fill the screen with its messages else.
const LINES_MAX: u64 = 20;

pub struct Report<'a> {
    out: &'a mut dyn Write,
    is_json: bool,
    pub finding_count: u64,
    lines: HashMap<(PathBuf, &'static str), u64>,
}

impl<'a> Report<'a> {
    pub fn new(out: &'a mut dyn Write, is_json: bool) -> Report<'a> {
        Report { out, is_json, finding_count: 0, lines: HashMap::new() }
    }

    /// Something is wrong at `position` of the file.
    pub fn finding(&mut self, kind: &'static str, path: &Path, position: u64, text: &str) -> io::Result<()> {
        self.finding_count += 1;
        let lines = self.lines.entry((path.to_path_buf(), kind)).or_insert(0);
        *lines += 1;
        if *lines > LINES_MAX {
            return Ok(());
        }
        if self.is_json {
            let line = json!({"finding": kind, "path": path.to_string_lossy(), "position": position, "text": text});
            writeln!(self.out, "{line}")
        } else {
            writeln!(self.out, "{}:{position}: {kind}: {text}", path.display())
        }
    }

    /// Nothing wrong, but good to know.
    pub fn note(&mut self, text: &str) -> io::Result<()> {
        if self.is_json { writeln!(self.out, "{}", json!({"note": text})) } else { writeln!(self.out, "note: {text}") }
    }

    pub fn finish(&mut self, summary: &str) -> io::Result<bool> {
        let mut more: Vec<_> = std::mem::take(&mut self.lines).into_iter().filter(|(_, n)| *n > LINES_MAX).collect();
        more.sort();
        for ((path, kind), count) in more {
            let text = format!("{}: {} more findings of kind {kind}", path.display(), count - LINES_MAX);
            self.note(&text)?;
        }
        let findings = self.finding_count;
        if self.is_json {
            writeln!(self.out, "{}", json!({"summary": summary, "findings": findings}))?;
        } else {
            let verdict = if findings == 0 { "sound".to_string() } else { format!("findings: {findings}") };
            writeln!(self.out, "{summary}; {verdict}")?;
        }
        Ok(findings == 0)
    }
}
