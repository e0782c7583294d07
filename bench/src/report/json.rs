//! Every figure of a report, with what it is worth nothing without.

use crate::environment::Environment;
use serde::Serialize;

#[derive(Serialize)]
pub struct Document<'a, R> {
    pub environment: &'a Environment,
    pub is_good: bool,
    /// False of what was written while the run still went on.
    pub is_complete: bool,
    pub report: &'a R,
}

pub fn document<R: Serialize>(environment: &Environment, report: &R, is_good: bool, is_complete: bool) -> String {
    let document = Document { environment, is_good, is_complete, report };
    serde_json::to_string_pretty(&document).expect("a report is plain numbers and text")
}
