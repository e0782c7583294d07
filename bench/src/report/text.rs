//! Tables for terminals and for Markdown.

/// Columns as wide as their widest cell.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let count = |text: &str| text.chars().count();
    let mut widths: Vec<usize> = head.iter().map(|cell| count(cell)).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(count(cell));
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let cells: Vec<String> = cells.zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let mut text = line(&mut head.iter().copied());
    let rules: Vec<String> = widths.iter().map(|width| "-".repeat(width + 2)).collect();
    text.push_str(&format!("|{}|\n", rules.join("|")));
    for row in rows {
        text.push_str(&line(&mut row.iter().map(String::as_str)));
    }
    text
}

/// Three digits or so: `87 µs`, `1.25 ms`, `2.0 s`.
pub fn duration(us: f64) -> String {
    match us {
        _ if us < 10.0 => format!("{us:.1} µs"),
        _ if us < 1e3 => format!("{us:.0} µs"),
        _ if us < 1e4 => format!("{:.2} ms", us / 1e3),
        _ if us < 1e6 => format!("{:.0} ms", us / 1e3),
        _ => format!("{:.1} s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_straight_columns() {
        let text = table(&["a", "µs"], &[vec!["longer".into(), "1".into()]]);
        assert_eq!(text, "| a      | µs |\n|--------|----|\n| longer | 1  |\n");
    }

    #[test]
    fn durations_have_the_unit_that_fits() {
        for (us, want) in [(1.25, "1.2 µs"), (87.4, "87 µs"), (1_254.0, "1.25 ms"), (21_000.0, "21 ms"), (2e6, "2.0 s")]
        {
            assert_eq!(duration(us), want);
        }
    }
}
