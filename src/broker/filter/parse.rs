//! Precedence, lowest first. Each level is one function and takes what the level below it makes.
//!
//! ```text
//! or        and ( OR and )*
//! and       equality ( AND equality )*
//! equality  comparison ( = comparison | <> comparison | IS [NOT] NULL )*
//! comparison unary ( > unary | >= unary | < unary | <= unary
//!                 | [NOT] BETWEEN unary AND unary | [NOT] IN ( text, … )
//!                 | [NOT] CONTAINS text | [NOT] STARTSWITH text | [NOT] ENDSWITH text )*
//! unary     + unary | - unary | NOT unary | primary
//! primary   TRUE | FALSE | NULL | whole | point | text | name | ( or )
//! ```
//! NOT binds to the next unary only: `NOT a = 'x'` is `(NOT a) = 'x'`, as in Java. What follows a whole expression is
//! ignored, as in Java, if its first word is one at all. What can never be evaluated is refused here.
//! Source: SelectorParser.jj, ComparisonExpression.java, LogicExpression.java (4.9.7; the CONTAINS family 5.3.3).

use super::Fault;
use super::evaluate::{Literal, Node, Order, Part, compare};
use super::token::{Kind, Token, Tokens};
use std::cmp::Ordering;

/// Parentheses and signs inside each other: the parser calls itself for each.
const NESTING_MAX: usize = 128;
/// Operators of one level in a row, but AND and OR: each is a step deeper when the expression is evaluated.
const CHAIN_MAX: usize = 256;

pub struct Parsed {
    pub root: Node,
    /// Properties, by their number in the nodes.
    pub names: Vec<Box<str>>,
}

pub fn parse(text: &str) -> Result<Parsed, Fault> {
    let mut tokens = Tokens::new(text);
    let next = tokens.next()?;
    let mut parser = Parser { tokens, next, names: Vec::new(), nesting: 0, chained: 0 };
    let root = parser.or()?;
    let root = parser.as_condition(root, 0)?;
    Ok(Parsed { root, names: parser.names })
}

struct Parser<'a> {
    tokens: Tokens<'a>,
    next: Token<'a>,
    names: Vec<Box<str>>,
    nesting: usize,
    chained: usize,
}

impl<'a> Parser<'a> {
    fn take(&mut self) -> Result<Token<'a>, Fault> {
        let next = self.tokens.next()?;
        Ok(std::mem::replace(&mut self.next, next))
    }

    fn expect(&mut self, kind: Kind, what: &str) -> Result<Token<'a>, Fault> {
        if self.next.kind == kind { self.take() } else { Err(self.unexpected(what)) }
    }

    fn unexpected(&self, wanted: &str) -> Fault {
        let Token { kind, text, position } = self.next;
        let found: String = text.chars().take(32).collect();
        let found = if kind == Kind::End { "the expression ends".to_string() } else { format!("'{found}' stands") };
        self.tokens.fault(position, format!("{found} where {wanted} is expected"))
    }

    fn fault(&self, position: usize, what: impl Into<String>) -> Fault {
        self.tokens.fault(position, what)
    }

    fn chain(&mut self, index: usize) -> Result<(), Fault> {
        self.chained += usize::from(index > 0);
        if self.chained > CHAIN_MAX {
            let what = format!("more than {CHAIN_MAX} operators follow each other without AND or OR");
            return Err(self.fault(self.next.position, what));
        }
        Ok(())
    }

    fn or(&mut self) -> Result<Node, Fault> {
        self.joined(Kind::Or, Parser::and, Node::Or)
    }

    fn and(&mut self) -> Result<Node, Fault> {
        self.joined(Kind::And, Parser::equality, Node::And)
    }

    fn joined(
        &mut self,
        kind: Kind,
        below: impl Fn(&mut Self) -> Result<Node, Fault>,
        join: fn(Box<[Node]>) -> Node,
    ) -> Result<Node, Fault> {
        let mut position = self.next.position;
        let first = below(self)?;
        if self.next.kind != kind {
            return Ok(first);
        }
        let mut nodes = vec![self.as_condition(first, position)?];
        while self.next.kind == kind {
            self.take()?;
            position = self.next.position;
            let node = below(self)?;
            nodes.push(self.as_condition(node, position)?);
        }
        Ok(join(nodes.into()))
    }

    fn equality(&mut self) -> Result<Node, Fault> {
        let position = self.next.position;
        let mut left = self.comparison()?;
        for index in 0.. {
            let kind = self.next.kind;
            if !matches!(kind, Kind::Equal | Kind::NotEqual | Kind::Is) {
                break;
            }
            self.chain(index)?;
            self.take()?;
            left = if kind == Kind::Is {
                let is_not = self.next.kind == Kind::Not;
                if is_not {
                    self.take()?;
                }
                self.expect(Kind::Null, if is_not { "NULL" } else { "NULL or NOT NULL" })?;
                negated(Node::IsNull(left.into()), is_not)
            } else {
                let right_position = self.next.position;
                let right = self.comparison()?;
                self.check_equal(&left, position)?;
                self.check_equal(&right, right_position)?;
                if let (Node::Literal(Literal::Bool(_)), Node::Literal(other)) = (&left, &right)
                    && !matches!(other, Literal::Bool(_))
                {
                    return Err(self.fault(right_position, "TRUE and FALSE are compared with conditions only"));
                }
                negated(Node::Equal(Box::new((left, right))), kind == Kind::NotEqual)
            };
        }
        Ok(left)
    }

    fn check_equal(&self, node: &Node, position: usize) -> Result<(), Fault> {
        match node {
            Node::Literal(Literal::Null) => {
                Err(self.fault(position, "nothing equals NULL; write IS NULL or IS NOT NULL"))
            }
            _ => Ok(()),
        }
    }

    fn comparison(&mut self) -> Result<Node, Fault> {
        let position = self.next.position;
        let mut left = self.unary()?;
        for index in 0.. {
            let order = match self.next.kind {
                Kind::Greater => Some(Order::Greater),
                Kind::GreaterEqual => Some(Order::GreaterEqual),
                Kind::Less => Some(Order::Less),
                Kind::LessEqual => Some(Order::LessEqual),
                Kind::Not | Kind::Between | Kind::In | Kind::Contains | Kind::StartsWith | Kind::EndsWith => None,
                _ => break,
            };
            self.chain(index)?;
            if let Some(order) = order {
                self.take()?;
                let right_position = self.next.position;
                let right = self.unary()?;
                self.check_order(&left, position)?;
                self.check_order(&right, right_position)?;
                left = Node::Order(order, Box::new((left, right)));
                continue;
            }
            let is_not = self.next.kind == Kind::Not;
            if is_not {
                self.take()?;
            }
            left = match self.next.kind {
                Kind::Between => self.between(left, position, is_not)?,
                Kind::In => self.within(left, position, is_not)?,
                Kind::Contains => self.part(left, Part::Middle, is_not)?,
                Kind::StartsWith => self.part(left, Part::Start, is_not)?,
                Kind::EndsWith => self.part(left, Part::End, is_not)?,
                _ => return Err(self.unexpected("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH")),
            };
        }
        Ok(left)
    }

    /// Only numbers have an order, and properties that may be some.
    fn check_order(&self, node: &Node, position: usize) -> Result<(), Fault> {
        match node {
            Node::Literal(Literal::Int(_) | Literal::Long(_) | Literal::Double(_)) => Ok(()),
            Node::Property(_) | Node::Negate(_) => Ok(()),
            Node::Literal(_) => {
                Err(self.fault(position, "a string, TRUE, FALSE and NULL are neither larger nor smaller"))
            }
            _ => Err(self.fault(position, "a condition is neither larger nor smaller")),
        }
    }

    fn between(&mut self, value: Node, position: usize, is_not: bool) -> Result<Node, Fault> {
        self.take()?;
        let low_position = self.next.position;
        let low = self.unary()?;
        self.expect(Kind::And, "the AND of BETWEEN")?;
        let high_position = self.next.position;
        let high = self.unary()?;
        self.check_order(&value, position)?;
        self.check_order(&low, low_position)?;
        self.check_order(&high, high_position)?;
        if let (false, Node::Literal(low), Node::Literal(high)) = (is_not, &low, &high)
            && compare(low.value(), high.value()) == Ok(Ordering::Greater)
        {
            return Err(self.fault(low_position, "the first bound of BETWEEN is above the second"));
        }
        let (below, above) =
            if is_not { (Order::Less, Order::Greater) } else { (Order::GreaterEqual, Order::LessEqual) };
        let sides = [Node::Order(below, Box::new((value.clone(), low))), Node::Order(above, Box::new((value, high)))];
        Ok(if is_not { Node::Or(sides.into()) } else { Node::And(sides.into()) })
    }

    fn within(&mut self, left: Node, position: usize, is_not: bool) -> Result<Node, Fault> {
        self.take()?;
        let Node::Property(property) = left else {
            return Err(self.fault(position, "only a property can be IN a list"));
        };
        self.expect(Kind::Open, "the list of IN, '('")?;
        let mut texts = vec![self.text()?];
        while self.next.kind == Kind::Comma {
            self.take()?;
            texts.push(self.text()?);
        }
        self.expect(Kind::Close, "',' or the ')' of IN")?;
        texts.sort_unstable();
        texts.dedup();
        Ok(Node::In { property, texts: texts.into(), is_not })
    }

    fn part(&mut self, left: Node, part: Part, is_not: bool) -> Result<Node, Fault> {
        self.take()?;
        let text = self.text()?;
        Ok(Node::Has { of: left.into(), part, text, is_not })
    }

    fn text(&mut self) -> Result<Box<str>, Fault> {
        Ok(unquoted(self.expect(Kind::Text, "a string in single quotes")?.text))
    }

    fn unary(&mut self) -> Result<Node, Fault> {
        let kind = self.next.kind;
        if !matches!(kind, Kind::Plus | Kind::Minus | Kind::Not) {
            return self.primary();
        }
        self.take()?;
        let position = self.next.position;
        self.nest()?;
        let node = self.unary()?;
        self.nesting -= 1;
        Ok(match kind {
            Kind::Not => Node::Not(self.as_condition(node, position)?.into()),
            Kind::Minus => Node::Negate(node.into()),
            _ => node,
        })
    }

    fn nest(&mut self) -> Result<(), Fault> {
        self.nesting += 1;
        if self.nesting > NESTING_MAX {
            let what = format!("more than {NESTING_MAX} parentheses and signs inside each other");
            return Err(self.fault(self.next.position, what));
        }
        Ok(())
    }

    fn primary(&mut self) -> Result<Node, Fault> {
        let Token { kind, text, position } = self.next;
        let literal = match kind {
            Kind::True => Literal::Bool(true),
            Kind::False => Literal::Bool(false),
            Kind::Null => Literal::Null,
            Kind::Whole => self.whole(text, position)?,
            Kind::Point => self.point(text, position)?,
            Kind::Text => Literal::Text(unquoted(text)),
            Kind::Name => {
                self.take()?;
                return Ok(Node::Property(self.property(text)));
            }
            Kind::Open => {
                self.take()?;
                self.nest()?;
                let node = self.or()?;
                self.nesting -= 1;
                self.expect(Kind::Close, "an operator or ')'")?;
                return Ok(node);
            }
            _ => return Err(self.unexpected("a property, a number, a string, TRUE, FALSE, NULL, NOT, a sign or '('")),
        };
        self.take()?;
        Ok(Node::Literal(literal))
    }

    fn property(&mut self, name: &str) -> usize {
        match self.names.iter().position(|known| **known == *name) {
            Some(index) => index,
            None => {
                self.names.push(name.into());
                self.names.len() - 1
            }
        }
    }

    fn whole(&self, text: &str, position: usize) -> Result<Literal, Fault> {
        match text.trim_end_matches(['l', 'L']).parse::<i64>() {
            Ok(value) => Ok(i32::try_from(value).map_or(Literal::Long(value), Literal::Int)),
            Err(_) => Err(self.fault(position, format!("the number is above {}", i64::MAX))),
        }
    }

    fn point(&self, text: &str, position: usize) -> Result<Literal, Fault> {
        match text.parse::<f64>() {
            Ok(value) if value > 0.0 && value.is_finite() => Ok(Literal::Double(value)),
            _ => Err(self.fault(position, format!("the number is not from {:e} to {:e}", f64::from_bits(1), f64::MAX))),
        }
    }

    /// What AND, OR, NOT and the whole want. A lone property is one that is never true.
    fn as_condition(&self, node: Node, position: usize) -> Result<Node, Fault> {
        match node {
            Node::Property(property) => Ok(Node::Flag(property)),
            Node::Literal(Literal::Bool(_) | Literal::Null) => Ok(node),
            Node::Literal(_) | Node::Negate(_) => {
                Err(self.fault(position, "a value stands where a condition is expected"))
            }
            condition => Ok(condition),
        }
    }
}

fn negated(node: Node, is_not: bool) -> Node {
    if is_not { Node::Not(node.into()) } else { node }
}

/// Without the quotes around; doubled ones inside are one.
fn unquoted(text: &str) -> Box<str> {
    text[1..text.len() - 1].replace("''", "'").into()
}
