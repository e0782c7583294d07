//! SQL92 message filters (`enablePropertyFilter`): which messages a subscription wants, by their properties.
//!
//! ```text
//! text ─ token ─ parse ─> Expression, once for each subscription        a > 5 AND b IN ('x', 'y')
//! record ─ properties, where they lie ─ evaluate ─> wanted or not       in a pull, and when it wakes
//! ```
//! A text that cannot be parsed is refused with the place and what is wrong there. Every verdict is Java's: tables that
//! Java made are in `java.tsv`, and `tests/java_filter.rs` asks Java about random expressions.
//! Source: org.apache.rocketmq.filter (4.9.7; CONTAINS, STARTSWITH and ENDSWITH from 5.3.3).

mod evaluate;
mod number;
mod parse;
mod token;

pub use evaluate::NoAnswer;

use evaluate::Node;
use ringmq_storage::record::properties::pairs;

/// Of an expression: a heartbeat repeats it every 30 s, and every message is held against it.
pub const EXPRESSION_BYTES_MAX: usize = 64 << 10;
/// Properties whose values are gathered without an allocation.
const FEW: usize = 16;

/// Why a text is no expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {what}")]
pub struct Fault {
    pub line: usize,
    pub column: usize,
    pub what: String,
}

/// Compiled.
#[derive(Debug)]
pub struct Expression {
    root: Node,
    names: Box<[Box<str>]>,
}

impl Expression {
    /// # Errors
    /// What is wrong with it, and where.
    pub fn compile(text: &str) -> Result<Expression, Fault> {
        if text.len() > EXPRESSION_BYTES_MAX {
            let what = format!("the expression has {} bytes, limit {EXPRESSION_BYTES_MAX}", text.len());
            return Err(Fault { line: 1, column: 1, what });
        }
        let parsed = parse::parse(text)?;
        Ok(Expression { root: parsed.root, names: parsed.names.into() })
    }

    /// Whether a message is wanted. `properties` as they lie in its record.
    pub fn matches(&self, properties: &[u8]) -> bool {
        self.evaluate(properties) == Ok(Some(true))
    }

    /// `None` is SQL's unknown.
    ///
    /// # Errors
    /// A property cannot be read as the type it is compared with.
    pub fn evaluate(&self, properties: &[u8]) -> Result<Option<bool>, NoAnswer> {
        let count = self.names.len();
        let mut few = [None; FEW];
        let mut many = Vec::new();
        let values = if count <= FEW {
            &mut few[..count]
        } else {
            many.resize(count, None);
            &mut many[..]
        };
        for (name, value) in pairs(properties) {
            if let Some(index) = self.names.iter().position(|wanted| wanted.as_bytes() == name) {
                values[index] = Some(value);
            }
        }
        self.root.truth(values)
    }
}

#[cfg(test)]
mod tests;
