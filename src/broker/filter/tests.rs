use super::*;

/// What Java 5.3.3 says of an expression and a message, one a line: expression, properties, verdict.
///
/// ```text
/// T F N   true, false, unknown        X   an exception when it is evaluated      E   refused when it is compiled
/// ```
/// Made by `tests/clients/java` (`Clients expressions`); 4.9.7 says the same but of CONTAINS, STARTSWITH and ENDSWITH,
/// which it reads as names. `tests/java_filter.rs` asks both again.
const JAVA: &str = include_str!("java.tsv");

fn unescaped(text: &str) -> String {
    text.replace("\\n", "\n").replace("\\t", "\t").replace("\\r", "\r").replace("\\f", "\x0c")
}

fn properties(text: &str) -> Vec<u8> {
    text.split(';').map(|pair| unescaped(pair).replacen('=', "\u{1}", 1) + "\u{2}").collect::<String>().into_bytes()
}

fn verdict(expression: &str, properties: &[u8]) -> &'static str {
    match Expression::compile(expression).map(|expression| expression.evaluate(properties)) {
        Err(_) => "E",
        Ok(Err(NoAnswer)) => "X",
        Ok(Ok(None)) => "N",
        Ok(Ok(Some(true))) => "T",
        Ok(Ok(Some(false))) => "F",
    }
}

#[test]
fn verdicts_are_java_s() {
    let mut wrong = Vec::new();
    for line in JAVA.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [expression, message, want] = fields[..] else { panic!("{line:?}") };
        let got = verdict(&unescaped(expression), &properties(message));
        if got != want {
            wrong.push(format!("{expression:?} of {message:?}: {got}, Java {want}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_fault_names_its_place_and_what_was_expected() {
    for (expression, want) in [
        ("", "line 1, column 1: the expression ends where a property, a number, a string"),
        ("a = ", "line 1, column 5: the expression ends where a property, a number, a string"),
        ("a ==\n 5", "line 1, column 4: '=' stands where a property, a number, a string"),
        ("a =\n  != 5", "line 2, column 3: '!' is nothing an expression can have"),
        ("(a = 1", "line 1, column 7: the expression ends where an operator or ')' is expected"),
        ("a = 'x", "line 1, column 5: the string that begins here has no closing quote"),
        ("'主题' = /* a", "line 1, column 8: the comment that begins here has no end"),
        ("a IN (1)", "line 1, column 7: '1' stands where a string in single quotes is expected"),
        ("a IN ('x' 'y')", "line 1, column 11: ''y'' stands where ',' or the ')' of IN is expected"),
        ("1 IN ('x')", "line 1, column 1: only a property can be IN a list"),
        ("a IS 5", "line 1, column 6: '5' stands where NULL or NOT NULL is expected"),
        ("a NOT 5", "line 1, column 7: '5' stands where BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH"),
        ("a BETWEEN 5 OR 6", "line 1, column 13: 'OR' stands where the AND of BETWEEN is expected"),
        ("a BETWEEN 5 AND 4", "line 1, column 11: the first bound of BETWEEN is above the second"),
        ("a = NULL", "line 1, column 5: nothing equals NULL; write IS NULL or IS NOT NULL"),
        ("a > 'x'", "line 1, column 5: a string, TRUE, FALSE and NULL are neither larger nor smaller"),
        ("(a = 1) > 2", "line 1, column 1: a condition is neither larger nor smaller"),
        ("b = 1 AND 5", "line 1, column 11: a value stands where a condition is expected"),
        ("a > 9223372036854775808", "line 1, column 5: the number is above 9223372036854775807"),
        ("a > 0.0", "line 1, column 5: the number is not from 5e-324 to 1.7976931348623157e308"),
        ("a.b = 1", "line 1, column 2: '.' is no number"),
    ] {
        let fault = Expression::compile(expression).unwrap_err().to_string();
        assert!(fault.starts_with(want), "{expression:?}: {fault}");
    }
}

/// The parser and the evaluation call themselves: nothing that a stranger sends may use up their stack.
#[test]
fn depth_is_bounded() {
    let around = |open: &str, close: &str, count: usize| open.repeat(count) + "a = 1" + &close.repeat(count);
    let chain = |step: &str, count: usize| "a".to_string() + &step.repeat(count);
    // expression, verdict of a message with a=1
    for (expression, want) in [
        (around("(", ")", 128), "T"),
        (around("(", ")", 129), "E"),
        (around("(", ")", 20_000), "E"),
        (around("NOT (", ")", 64), "T"),
        ("NOT ".repeat(20_000) + "TRUE", "E"),
        ("-".repeat(20_000) + "1 = a", "E"),
        (around("(NOT ", ")", 20_000), "E"),
        (chain(" IS NULL", 257), "F"),
        (chain(" IS NULL", 258), "E"),
        (chain(" = a", 6_000), "E"),
        (chain(" CONTAINS '1'", 3_000), "E"),
        (format!("{}a = 1", "a = 2 OR ".repeat(5_000)), "T"),
        (format!("{}a = 2", "a = 1 AND ".repeat(5_000)), "F"),
        (format!("a IN ({}'1')", "'2',".repeat(9_000)), "T"),
        (format!("a = '{}'", "x".repeat(EXPRESSION_BYTES_MAX)), "E"),
    ] {
        let shown: String = expression.chars().take(40).collect();
        assert_eq!(verdict(&expression, b"a\x011"), want, "{shown}… of {} bytes", expression.len());
    }
}

#[test]
fn properties_are_read_as_they_lie() {
    // A value goes up to the 0x02, the later of two wins, pieces without a value are none.
    for (properties, want) in [
        (&b"a\x015\x02b\x01x"[..], true),
        (b"a\x015", false),
        (b"a\x016\x02b\x01x\x02a\x015", true),
        (b"a\x015\x02b\x01x\x02a\x016", false),
        (b"a\x015\x02b\x01x\x02a\x01\x02a", true),
        (b"a\x015\x02b\x01\x01x", false),
        (b"\x01\x02\x02a\x015\x02b\x01x\x02", true),
        (b"", false),
        (b"\xff\xfe", false),
    ] {
        assert_eq!(Expression::compile("a = 5 AND b = 'x'").unwrap().matches(properties), want, "{properties:?}");
    }
    // More of them than lie on the stack.
    let names: Vec<String> = (0..40).map(|n| format!("p{n}")).collect();
    let text = names.iter().map(|name| format!("{name} = '{name}'")).collect::<Vec<_>>().join(" AND ");
    let stored: String = names.iter().map(|name| format!("{name}\u{1}{name}\u{2}")).collect();
    assert!(Expression::compile(&text).unwrap().matches(stored.as_bytes()));
    assert!(!Expression::compile(&text).unwrap().matches(&stored.as_bytes()[..stored.len() - 7]));
}

proptest::proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in "[a-c0-9()'<>=.,+\\-*/ \n$_!;eELl主]{0,40}|(NOT|AND|OR|IN|IS|NULL|TRUE|BETWEEN|a|5|'x'|=|<|\\(|\\)| ){0,20}") {
        if let Ok(expression) = Expression::compile(&text) {
            let _ = expression.evaluate(b"a\x015\x02b\x01x");
        }
    }
}
