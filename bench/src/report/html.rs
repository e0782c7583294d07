//! One page, one file: text, tables and plots, nothing from elsewhere.

use super::{Figures, Part};
use crate::environment::Environment;
use std::fmt::Display;

const STYLE: &str = "
:root { color-scheme: light dark; --grid: #8884; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
pre { overflow-x: auto; padding: .75rem; border: 1px solid var(--grid); font-size: 13px; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 14px; }
th, td { border: 1px solid var(--grid); padding: .2rem .6rem; text-align: left; }
svg { width: 100%; height: auto; margin-top: 1rem; }
svg text { font: 12px system-ui, sans-serif; fill: currentColor; }
svg .title { font-weight: 600; font-size: 14px; }
svg .y, svg .end { text-anchor: end; }
svg .x { text-anchor: middle; }
svg .grid { stroke: var(--grid); }
svg polyline { fill: none; stroke-width: 2; }
";

pub fn page<R: Display + Figures>(environment: &Environment, report: &R, is_complete: bool) -> String {
    let mut parts = report.parts();
    parts.push(Part::Heading("All figures".into()));
    parts.push(Part::Text(format!("{environment}{report}")));
    let title = environment.command.iter().skip(1).find(|word| !word.starts_with('-')).cloned().unwrap_or_default();
    let title = escaped(&format!("ringmq-bench {title}"));
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n<style>{STYLE}</style>\n\
         </head>\n<body>\n<h1>{title}</h1>\n"
    );
    if !is_complete {
        html.push_str("<p><strong>The run was not complete when this was written.</strong></p>\n");
    }
    parts.iter().for_each(|part| html.push_str(&written(part)));
    html.push_str("</body>\n</html>\n");
    html
}

fn written(part: &Part) -> String {
    match part {
        Part::Heading(text) => format!("<h2>{}</h2>\n", escaped(text)),
        Part::Text(text) => format!("<pre>{}</pre>\n", escaped(text)),
        Part::Table { head, rows } => {
            let row = |cells: &[String], tag: &str| {
                let cells = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell)));
                format!("<tr>{}</tr>\n", cells.collect::<String>())
            };
            let rows: String = rows.iter().map(|cells| row(cells, "td")).collect();
            format!("<table>\n{}{rows}</table>\n", row(head, "th"))
        }
        Part::Chart(chart) => format!("{}\n<p>{}</p>\n", chart.svg(), chart.legend()),
    }
}

pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::Latency;
    use crate::report::chart;
    use std::fmt;

    struct Sample;

    impl fmt::Display for Sample {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("rate <b> & \"more\"")
        }
    }

    impl Figures for Sample {
        fn parts(&self) -> Vec<Part> {
            let mut latency = Latency::default();
            (1..=2_000).for_each(|us| latency.record(us * 1_000));
            let summary = latency.summary();
            vec![
                Part::Chart(chart::percentiles("<ack>", &[("a & b".into(), &summary)])),
                Part::Chart(chart::bars("CPU", "µs", vec![("one".into(), 3.0), ("two".into(), 0.0)], chart::Unit::Us)),
                Part::Table { head: vec!["x".into()], rows: vec![vec!["1 < 2".into()]] },
            ]
        }
    }

    #[test]
    fn a_page_refers_to_nothing_and_escapes_its_text() {
        let html = page(&Environment::read(), &Sample, true);
        for word in ["http:", "https:", "//", "src=", "href=", "url(", "@import", "<script", "<link", "<b>"] {
            assert!(!html.contains(word), "{word}");
        }
        assert!(html.contains("rate &lt;b&gt; &amp; &quot;more&quot;") && html.contains("1 &lt; 2"), "{html}");
        assert_eq!(html.matches("<svg").count(), 2);
        assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
        assert!(!html.contains("not complete") && page(&Environment::read(), &Sample, false).contains("not complete"));
    }
}
