//! Plots as SVG, drawn here: no script, no font, no library, so a page is one file for good.
//!
//! ```text
//! ┌ title ─────────────────────────────┐
//! │ y ticks │ grid, lines or bars      │  names of the lines below, points say their values when pointed at
//! │         └ x ticks ─────────────────│
//! └────────────────────────────────────┘
//! ```

use super::html::escaped;
use super::text;
use crate::latency::{CURVE_ONE_IN, Second, Summary};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 46.0;
/// Told apart by most people, on light and dark ground.
const COLOURS: [&str; 8] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#9467bd"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// From 0 on.
    Linear,
    Log,
    /// One in so many is beyond: the axis of a percentile curve.
    Percentile,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Us,
    Count,
}

#[derive(Clone, Debug)]
pub struct Axis {
    pub label: &'static str,
    pub scale: Scale,
    pub unit: Unit,
}

#[derive(Clone, Debug)]
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

#[derive(Clone, Debug)]
pub struct Chart {
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    pub lines: Vec<Line>,
    /// One bar for each line, of the y of its only point.
    pub is_bars: bool,
}

pub fn percentiles(title: &str, summaries: &[(String, &Summary)]) -> Chart {
    let line = |(name, summary): &(String, &Summary)| {
        // Beyond what was measured a curve would only repeat its end.
        let known =
            CURVE_ONE_IN.iter().zip(summary.curve_us).take_while(|(one_in, _)| **one_in <= summary.count.max(2) as f64);
        let points = known.map(|(one_in, us)| (*one_in, us)).collect();
        Line { name: name.clone(), points }
    };
    Chart {
        title: title.into(),
        x: Axis { label: "percentile", scale: Scale::Percentile, unit: Unit::Count },
        y: Axis { label: "latency", scale: Scale::Log, unit: Unit::Us },
        lines: summaries.iter().map(line).collect(),
        is_bars: false,
    }
}

/// What a line shows of each second.
pub type SecondFigure = fn(&Second) -> f64;

pub fn seconds(title: &str, seconds: &[Second], figures: &[(&str, SecondFigure)], unit: Unit) -> Chart {
    let line = |(name, figure): &(&str, SecondFigure)| Line {
        name: (*name).to_owned(),
        points: seconds.iter().map(|second| (second.at_s as f64, figure(second))).collect(),
    };
    let scale = if unit == Unit::Us { Scale::Log } else { Scale::Linear };
    Chart {
        title: title.into(),
        x: Axis { label: "seconds", scale: Scale::Linear, unit: Unit::Count },
        y: Axis { label: if unit == Unit::Us { "latency" } else { "messages a second" }, scale, unit },
        lines: figures.iter().map(line).collect(),
        is_bars: false,
    }
}

pub fn bars(title: &str, label: &'static str, values: Vec<(String, f64)>, unit: Unit) -> Chart {
    Chart {
        title: title.into(),
        x: Axis { label: "", scale: Scale::Linear, unit: Unit::Count },
        y: Axis { label, scale: Scale::Linear, unit },
        lines: values.into_iter().map(|(name, value)| Line { name, points: vec![(0.0, value)] }).collect(),
        is_bars: true,
    }
}

/// 1, 2, 5, 10, 20 … from the decade of `value` on.
fn round_steps(value: f64) -> impl Iterator<Item = f64> {
    let decade = value.log10().floor() as i32;
    (decade..decade + 3).flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10_f64.powi(power)))
}

/// Where values are drawn.
struct Ruler {
    scale: Scale,
    min: f64,
    max: f64,
    from: f64,
    to: f64,
}

impl Ruler {
    fn new(scale: Scale, values: &[f64], from: f64, to: f64) -> Self {
        let positive = values.iter().copied().filter(|value| *value > 0.0);
        let least = positive.clone().fold(f64::INFINITY, f64::min);
        let most = positive.fold(0.0, f64::max);
        let (min, max) = match scale {
            _ if most == 0.0 => (if scale == Scale::Linear { 0.0 } else { 1.0 }, 10.0),
            Scale::Linear => (0.0, most * 1.05),
            Scale::Log => {
                let above = round_steps(most).find(|step| *step > most);
                let below = round_steps(least).take_while(|step| *step <= least).last();
                (below.unwrap_or(least), above.unwrap_or(most * 10.0))
            }
            Scale::Percentile => (1.0, most.max(100.0)),
        };
        Self { scale, min, max, from, to }
    }

    fn at(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (value - self.min) / (self.max - self.min),
            Scale::Log | Scale::Percentile => {
                (value.max(self.min).log10() - self.min.log10()) / (self.max.log10() - self.min.log10())
            }
        };
        self.from + share * (self.to - self.from)
    }

    fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                let rough = (self.max - self.min) / 5.0;
                let power = 10_f64.powf(rough.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].iter().map(|factor| factor * power).find(|step| *step >= rough);
                let step = step.unwrap_or(power * 10.0);
                (0..).map(|count| self.min + f64::from(count) * step).take_while(|tick| *tick <= self.max).collect()
            }
            Scale::Log => {
                let is_narrow = self.max / self.min <= 300.0;
                let inside = |step: &f64| *step >= self.min * 0.999 && *step <= self.max * 1.001;
                let is_shown = |index: usize| is_narrow || index.is_multiple_of(3);
                let mut steps: Vec<f64> = Vec::new();
                let mut from = self.min;
                while from <= self.max {
                    let decade = round_steps(from).take(3).enumerate().filter(|(index, _)| is_shown(*index));
                    steps.extend(decade.map(|(_, step)| step).filter(inside));
                    from *= 10.0;
                }
                steps
            }
            Scale::Percentile => {
                [1.0, 2.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6].into_iter().filter(|tick| *tick <= self.max).collect()
            }
        }
    }
}

fn label(scale: Scale, unit: Unit, value: f64) -> String {
    match (scale, unit) {
        (Scale::Percentile, _) => {
            let percent = 100.0 * (1.0 - 1.0 / value);
            if value <= 1.0 { "min".into() } else { format!("p{}", (percent * 1e6).round() / 1e6) }
        }
        (_, Unit::Us) => text::duration(value),
        (_, Unit::Count) if value >= 1e6 => format!("{} M", (value / 1e4).round() / 100.0),
        (_, Unit::Count) if value >= 1e4 => format!("{} k", (value / 100.0).round() / 10.0),
        (_, Unit::Count) => format!("{}", (value * 100.0).round() / 100.0),
    }
}

impl Chart {
    pub fn svg(&self) -> String {
        let of = |pick: fn(&(f64, f64)) -> f64| -> Vec<f64> {
            self.lines.iter().flat_map(|line| line.points.iter().map(pick)).collect()
        };
        let x = Ruler::new(self.x.scale, &of(|point| point.0), LEFT, WIDTH - RIGHT);
        let y = Ruler::new(self.y.scale, &of(|point| point.1), HEIGHT - BOTTOM, TOP);
        let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">");
        svg.push_str(&format!("<text class=\"title\" x=\"{LEFT}\" y=\"18\">{}</text>", escaped(&self.title)));
        for tick in y.ticks() {
            let at = y.at(tick);
            let text = label(self.y.scale, self.y.unit, tick);
            svg.push_str(&format!(
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text class=\"y\" x=\"{}\" y=\"{:.1}\">{text}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                at + 4.0
            ));
        }
        if self.is_bars {
            self.draw_bars(&mut svg, &y);
        } else {
            for tick in x.ticks() {
                let at = x.at(tick);
                let text = label(self.x.scale, self.x.unit, tick);
                svg.push_str(&format!(
                    "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{}\"/>\
                     <text class=\"x\" x=\"{at:.1}\" y=\"{}\">{text}</text>",
                    HEIGHT - BOTTOM,
                    HEIGHT - BOTTOM + 16.0
                ));
            }
            self.draw_lines(&mut svg, &x, &y);
        }
        svg.push_str(&format!(
            "<text class=\"x\" x=\"{}\" y=\"{}\">{}</text><text class=\"end\" x=\"{}\" y=\"18\">{}</text></svg>",
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 8.0,
            self.x.label,
            WIDTH - RIGHT,
            self.y.label
        ));
        svg
    }

    fn draw_lines(&self, svg: &mut String, x: &Ruler, y: &Ruler) {
        for (line, colour) in self.lines.iter().zip(COLOURS.iter().cycle()) {
            let points: Vec<String> =
                line.points.iter().map(|point| format!("{:.1},{:.1}", x.at(point.0), y.at(point.1))).collect();
            svg.push_str(&format!("<polyline stroke=\"{colour}\" points=\"{}\"/>", points.join(" ")));
            for point in &line.points {
                svg.push_str(&format!(
                    "<circle fill=\"{colour}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\"><title>{}: {} at {}</title></circle>",
                    x.at(point.0),
                    y.at(point.1),
                    escaped(&line.name),
                    label(self.y.scale, self.y.unit, point.1),
                    label(self.x.scale, self.x.unit, point.0)
                ));
            }
        }
    }

    fn draw_bars(&self, svg: &mut String, y: &Ruler) {
        let step = (WIDTH - LEFT - RIGHT) / self.lines.len().max(1) as f64;
        for (index, line) in self.lines.iter().enumerate() {
            let value = line.points.first().map_or(0.0, |point| point.1);
            let (at, top) = (LEFT + step * (index as f64 + 0.15), y.at(value));
            svg.push_str(&format!(
                "<rect fill=\"{}\" x=\"{at:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{}</title></rect>\
                 <text class=\"x\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\
                 <text class=\"x\" x=\"{:.1}\" y=\"{}\">{}</text>",
                COLOURS[index % COLOURS.len()],
                step * 0.7,
                HEIGHT - BOTTOM - top,
                escaped(&line.name),
                at + step * 0.35,
                top - 4.0,
                label(self.y.scale, self.y.unit, value),
                at + step * 0.35,
                HEIGHT - BOTTOM + 16.0,
                escaped(&line.name)
            ));
        }
    }

    /// Which colour is which line.
    pub fn legend(&self) -> String {
        if self.is_bars {
            return String::new();
        }
        let names = self.lines.iter().zip(COLOURS.iter().cycle());
        let names =
            names.map(|(line, colour)| format!("<span style=\"color:{colour}\">■</span> {}", escaped(&line.name)));
        names.collect::<Vec<_>>().join(" &nbsp; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        for (scale, values, want) in [
            (Scale::Linear, &[0.0, 43.0][..], vec![0.0, 10.0, 20.0, 30.0, 40.0]),
            (Scale::Log, &[30.0, 4_000.0][..], vec![20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0]),
            (Scale::Log, &[10.0, 40_000.0][..], vec![10.0, 100.0, 1_000.0, 10_000.0]),
            (Scale::Percentile, &[1.0, 1_000.0][..], vec![1.0, 2.0, 10.0, 100.0, 1_000.0]),
            (Scale::Log, &[][..], vec![1.0, 2.0, 5.0, 10.0]),
        ] {
            let ruler = Ruler::new(scale, values, 0.0, 100.0);
            assert_eq!(ruler.ticks(), want, "{scale:?}");
            assert!(values.iter().all(|value| (-0.01..=100.01).contains(&ruler.at(*value))), "{scale:?}");
        }
    }

    #[test]
    fn percentiles_are_named_as_people_do() {
        for (value, want) in [(1.0, "min"), (2.0, "p50"), (100.0, "p99"), (1e3, "p99.9"), (1e6, "p99.9999")] {
            assert_eq!(label(Scale::Percentile, Unit::Count, value), want);
        }
    }

    #[test]
    fn a_curve_ends_where_the_figures_do() {
        let summary = Summary { count: 1_000, ..Default::default() };
        let chart = percentiles("x", &[("ack".into(), &summary)]);
        assert_eq!(chart.lines[0].points.last().unwrap().0, 1_000.0);
    }
}
