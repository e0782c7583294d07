//! What an expression says of one message.
//!
//! ```text
//! properties text ─ one pass ─> value of each property asked for ─ nodes ─> true, false, unknown, or no answer at all
//! ```
//! Properties are texts. Against a literal a text is read as what the literal is, and one that cannot be is no answer for
//! the whole expression (Java: an exception), like a condition on the left of a text. Unknown is SQL's: false AND unknown
//! is false, true OR unknown is true. Nothing is allocated.
//! Source: ComparisonExpression.java, LogicExpression.java, UnaryExpression.java (4.9.7, 5.3.3).

use super::number::{double, int, long};
use std::cmp::Ordering;

#[derive(Clone, Debug, PartialEq)]
pub enum Literal {
    Null,
    Bool(bool),
    Int(i32),
    Long(i64),
    Double(f64),
    Text(Box<str>),
}

impl Literal {
    pub fn value(&self) -> Value<'_> {
        match self {
            Literal::Null => Value::Null,
            Literal::Bool(value) => Value::Bool(*value),
            Literal::Int(value) => Value::Int(*value),
            Literal::Long(value) => Value::Long(*value),
            Literal::Double(value) => Value::Double(*value),
            Literal::Text(text) => Value::Text(text.as_bytes()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Greater,
    GreaterEqual,
    Less,
    LessEqual,
}

/// Where in a text another one is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Start,
    Middle,
    End,
}

/// Properties by their number.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    Literal(Literal),
    Property(usize),
    /// A property as a condition: unknown or false.
    Flag(usize),
    Negate(Box<Node>),
    Not(Box<Node>),
    And(Box<[Node]>),
    Or(Box<[Node]>),
    IsNull(Box<Node>),
    Equal(Box<(Node, Node)>),
    Order(Order, Box<(Node, Node)>),
    /// Sorted.
    In {
        property: usize,
        texts: Box<[Box<str>]>,
        is_not: bool,
    },
    Has {
        of: Box<Node>,
        part: Part,
        text: Box<str>,
        is_not: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    Null,
    Bool(bool),
    Int(i32),
    Long(i64),
    Double(f64),
    Text(&'a [u8]),
}

/// The expression has no answer: Java throws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoAnswer;

type Properties<'a> = &'a [Option<&'a [u8]>];

impl Node {
    pub fn value<'a>(&'a self, properties: Properties<'a>) -> Result<Value<'a>, NoAnswer> {
        let truth = |truth: Option<bool>| truth.map_or(Value::Null, Value::Bool);
        Ok(match self {
            Node::Literal(literal) => literal.value(),
            Node::Property(property) => properties[*property].map_or(Value::Null, Value::Text),
            Node::Negate(node) => match node.value(properties)? {
                Value::Int(value) => Value::Int(value.wrapping_neg()),
                Value::Long(value) => Value::Long(value.wrapping_neg()),
                Value::Double(value) => Value::Double(-value),
                Value::Null | Value::Bool(_) | Value::Text(_) => Value::Null,
            },
            condition => truth(condition.truth(properties)?),
        })
    }

    /// `None` is unknown.
    pub fn truth(&self, properties: Properties<'_>) -> Result<Option<bool>, NoAnswer> {
        match self {
            Node::And(nodes) => all(nodes, true, properties),
            Node::Or(nodes) => all(nodes, false, properties),
            Node::Not(node) => Ok(node.truth(properties)?.map(|truth| !truth)),
            Node::Flag(property) => Ok(properties[*property].map(|_| false)),
            Node::IsNull(node) => Ok(Some(node.value(properties)? == Value::Null)),
            Node::Equal(sides) => equal(sides.0.value(properties)?, sides.1.value(properties)?),
            Node::Order(order, sides) => ordered(*order, sides.0.value(properties)?, sides.1.value(properties)?),
            Node::In { property, texts, is_not } => Ok(properties[*property].map(|value| {
                let is_in = texts.binary_search_by(|text| text.as_bytes().cmp(value)).is_ok();
                is_in != *is_not
            })),
            Node::Has { of, part, text, is_not } => Ok(Some(match of.value(properties)? {
                Value::Text(value) if !text.is_empty() => has(value, *part, text.as_bytes()) != *is_not,
                _ => false,
            })),
            Node::Literal(Literal::Bool(value)) => Ok(Some(*value)),
            Node::Literal(_) | Node::Property(_) | Node::Negate(_) => Ok(None),
        }
    }
}

/// AND, with `neutral` true, or OR. What decides it ends it; later nodes are not asked.
fn all(nodes: &[Node], neutral: bool, properties: Properties<'_>) -> Result<Option<bool>, NoAnswer> {
    let mut sum = Some(neutral);
    for node in nodes {
        match node.truth(properties)? {
            Some(truth) if truth == neutral => {}
            Some(truth) => return Ok(Some(truth)),
            None => sum = None,
        }
    }
    Ok(sum)
}

fn equal(left: Value<'_>, right: Value<'_>) -> Result<Option<bool>, NoAnswer> {
    match (left, right) {
        (Value::Null, Value::Null) => Ok(Some(true)),
        (Value::Null, _) => Ok(None),
        (_, Value::Null) => Ok(Some(false)),
        (Value::Text(left), Value::Text(right)) => Ok(Some(left == right)),
        _ => Ok(Some(compare(left, right)? == Ordering::Equal)),
    }
}

fn ordered(order: Order, left: Value<'_>, right: Value<'_>) -> Result<Option<bool>, NoAnswer> {
    if left == Value::Null || right == Value::Null {
        return Ok(None);
    }
    let ordering = match (left, right) {
        // Never by their letters.
        (Value::Text(left), Value::Text(right)) => {
            order_of(double(left).ok_or(NoAnswer)?, double(right).ok_or(NoAnswer)?)
        }
        _ => compare(left, right)?,
    };
    Ok(Some(match order {
        Order::Greater => ordering.is_gt(),
        Order::GreaterEqual => ordering.is_ge(),
        Order::Less => ordering.is_lt(),
        Order::LessEqual => ordering.is_le(),
    }))
}

/// Neither is null, not both are texts. What has no order is smaller, as in Java.
pub fn compare(left: Value<'_>, right: Value<'_>) -> Result<Ordering, NoAnswer> {
    use Value::{Bool, Double, Int, Long, Text};
    Ok(match (left, right) {
        (Bool(left), Bool(right)) => left.cmp(&right),
        (Bool(_), Text(_)) => return Err(NoAnswer),
        (Text(left), Bool(right)) => left.eq_ignore_ascii_case(b"true").cmp(&right),
        (Int(left), Int(right)) => left.cmp(&right),
        (Int(left), Long(right)) => i64::from(left).cmp(&right),
        (Int(left), Double(right)) => order_of(f64::from(left), right),
        (Int(left), Text(right)) => left.cmp(&int(right).ok_or(NoAnswer)?),
        (Long(left), Int(right)) => left.cmp(&i64::from(right)),
        (Long(left), Long(right)) => left.cmp(&right),
        (Long(left), Double(right)) => order_of(left as f64, right),
        (Long(left), Text(right)) => left.cmp(&long(right).ok_or(NoAnswer)?),
        (Double(left), Int(right)) => order_of(left, f64::from(right)),
        (Double(left), Long(right)) => order_of(left, right as f64),
        (Double(left), Double(right)) => order_of(left, right),
        (Double(left), Text(right)) => order_of(left, double(right).ok_or(NoAnswer)?),
        (Text(left), Int(right)) => int(left).ok_or(NoAnswer)?.cmp(&right),
        (Text(left), Long(right)) => long(left).ok_or(NoAnswer)?.cmp(&right),
        (Text(left), Double(right)) => order_of(double(left).ok_or(NoAnswer)?, right),
        (Bool(_) | Int(_) | Long(_) | Double(_) | Text(_) | Value::Null, _) => Ordering::Less,
    })
}

/// `Double.compareTo`: −0 is below 0, NaN equals itself and is above all.
fn order_of(left: f64, right: f64) -> Ordering {
    match (left.is_nan(), right.is_nan()) {
        (false, false) => left.total_cmp(&right),
        (left, right) => left.cmp(&right),
    }
}

fn has(value: &[u8], part: Part, text: &[u8]) -> bool {
    match part {
        Part::Start => value.starts_with(text),
        Part::End => value.ends_with(text),
        Part::Middle => value.windows(text.len()).any(|window| window == text),
    }
}
