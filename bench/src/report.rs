//! How a result leaves this program: text on the terminal, every figure as JSON, and a page with plots that needs nothing
//! but a browser.

pub mod chart;
mod figures;
mod html;
mod json;
pub mod text;

pub use html::page;
pub use json::{Document, document};

use crate::environment::Environment;
use chart::Chart;
use serde::Serialize;
use std::fmt::Display;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A piece of a page.
#[derive(Clone, Debug)]
pub enum Part {
    Heading(String),
    /// As it is, in the letters of a terminal.
    Text(String),
    Table {
        head: Vec<String>,
        rows: Vec<Vec<String>>,
    },
    Chart(Chart),
}

/// What a page shows of a report beside its text.
pub trait Figures {
    fn parts(&self) -> Vec<Part>;
}

#[derive(Clone, Debug, Default, clap::Args)]
pub struct Output {
    /// Write the report as JSON to this file too; - prints it instead of the text
    #[arg(long, global = true, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a page with plots to this file, too; it needs nothing from elsewhere
    #[arg(long, global = true, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

impl Output {
    fn is_json_alone(&self) -> bool {
        self.json.as_deref() == Some(Path::new("-"))
    }

    /// Gives `is_good` back.
    pub fn write<R: Display + Serialize + Figures>(&self, report: &R, is_good: bool) -> io::Result<bool> {
        let environment = Environment::read();
        self.write_files(&environment, report, is_good, true)?;
        if self.is_json_alone() {
            println!("{}", document(&environment, report, is_good, true));
        } else {
            print!("{environment}{report}");
        }
        Ok(is_good)
    }

    /// What is there so far, for a run that may not come to its end.
    pub fn write_partial<R: Display + Serialize + Figures>(&self, report: &R) -> io::Result<()> {
        self.write_files(&Environment::read(), report, false, false)
    }

    fn write_files<R: Display + Serialize + Figures>(
        &self,
        environment: &Environment,
        report: &R,
        is_good: bool,
        is_complete: bool,
    ) -> io::Result<()> {
        if let Some(path) = self.json.as_deref().filter(|_| !self.is_json_alone()) {
            replace(path, &document(environment, report, is_good, is_complete))?;
        }
        match &self.html {
            Some(path) => replace(path, &page(environment, report, is_complete)),
            None => Ok(()),
        }
    }
}

/// A reader finds the old text or the new one, never half of it.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut name = path.file_name().ok_or_else(|| io::Error::other("the file has no name"))?.to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    let told = |error| crate::workload::told(&path.display().to_string(), error);
    fs::write(&new, text).map_err(told)?;
    fs::rename(&new, path).map_err(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        for text in ["one", "two"] {
            replace(&path, text).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(dir.path().read_dir().unwrap().count(), 1);
    }
}
