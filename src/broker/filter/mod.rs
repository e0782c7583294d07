//! Which messages a subscription wants: by the hash of their tag, or by their properties (SQL92, `enablePropertyFilter`).
//!
//! ```text
//! entry of the queue ─ tags code ─> wanted or not                       the log is not touched
//! text ─ token ─ parse ─> Expression, once for each subscription        a > 5 AND b IN ('x', 'y')
//! record ─ properties, where they lie ─ evaluate ─> wanted or not       in a pull, and before a held one wakes
//! ```
//! A text that cannot be parsed is refused with the place and what is wrong there. Every verdict is Java's: tables that
//! Java made are in `java.tsv`, and `tests/java_filter.rs` asks Java about random expressions.
//! Source: org.apache.rocketmq.filter (4.9.7; CONTAINS, STARTSWITH and ENDSWITH from 5.3.3), ExpressionMessageFilter.java,
//! ExpressionForRetryMessageFilter.java.

mod bloom;
mod evaluate;
mod filters;
mod number;
mod parse;
mod token;

pub use evaluate::NoAnswer;
pub use filters::{Filters, Registered};

use evaluate::Node;
use ringmq_storage::consume_queue::Entry;
use ringmq_storage::record::decode::Record;
use ringmq_storage::record::properties::{RETRY_TOPIC, get, pairs};
use ringmq_storage::store::Store;
use std::sync::Arc;

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

/// The tags of a subscription as the broker tests them: by the low 32 bits of the code. Collisions pass, the client
/// compares texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TagFilter {
    All,
    /// Sorted.
    Codes(Arc<[i32]>),
}

impl TagFilter {
    pub fn accepts(&self, tags_code: i64) -> bool {
        match self {
            TagFilter::All => true,
            TagFilter::Codes(codes) => codes.binary_search(&(tags_code as i32)).is_ok(),
        }
    }
}

/// What a pull wants.
#[derive(Clone)]
pub enum Filter {
    Tags(TagFilter),
    Sql(Arc<Expression>),
    /// Messages that were sent back, each by what its group wants of the topic it came from (`filterSupportRetry`).
    Retried {
        tags: TagFilter,
        group: Arc<str>,
        filters: Arc<Filters>,
    },
}

impl Filter {
    pub fn is_all(&self) -> bool {
        matches!(self, Filter::Tags(TagFilter::All))
    }

    /// By the entry and, where that is not enough, the record. One that is gone counts: a pull says what became of it.
    pub fn accepts(&self, entry: &Entry, store: &Store) -> bool {
        self.accepts_entry(entry.tags_code)
            && (!self.asks_records() || store.entry_record(entry).is_none_or(|record| self.accepts_record(&record)))
    }

    pub fn accepts_entry(&self, tags_code: i64) -> bool {
        match self {
            Filter::Tags(tags) | Filter::Retried { tags, .. } => tags.accepts(tags_code),
            Filter::Sql(_) => true,
        }
    }

    /// Whether the tags code is not enough to know.
    pub fn asks_records(&self) -> bool {
        !matches!(self, Filter::Tags(_))
    }

    /// A record that cannot be read has no properties that anybody could want.
    pub fn accepts_record(&self, record: &[u8]) -> bool {
        if let Filter::Tags(_) = self {
            return true;
        }
        let Ok(Record { properties, .. }) = Record::parse(record) else { return false };
        match self {
            Filter::Tags(_) => true,
            Filter::Sql(expression) => expression.matches(properties),
            Filter::Retried { group, filters, .. } => {
                let topic = get(properties, RETRY_TOPIC).and_then(|topic| str::from_utf8(topic).ok());
                let registered = topic.and_then(|topic| filters.get(topic, group));
                registered.is_none_or(|registered| registered.expression.matches(properties))
            }
        }
    }
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
