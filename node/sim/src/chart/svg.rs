//! The chart as an SVG document of its own: no scripts, no fonts, nothing fetched.

use super::{Axis, Chart};
use std::fmt::Write;

/// Size of the picture, and of its frame of labels, in pixels.
const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 480.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 48.0;
const BOTTOM: f64 = 60.0;
/// Height of a line of the legend.
const LEGEND: f64 = 18.0;
/// With at most so many points, each is marked.
const MARKED_MAX: usize = 24;
/// Colours that stay apart for those who see few of them (Okabe and Ito).
const COLOURS: [&str; super::SERIES_MAX] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#7f7f7f"];

impl Chart {
    /// As an SVG document.
    #[must_use]
    pub fn svg(&self) -> String {
        let (x, y) = self.axes();
        let mut out = String::new();
        let style = "font-family=\"sans-serif\" font-size=\"13\"";
        line(
            &mut out,
            &format!(
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" {style}>"
            ),
        );
        line(&mut out, &format!("<title>{}</title>", escaped(&self.title)));
        line(&mut out, &format!("<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>"));
        label(&mut out, (WIDTH / 2.0, TOP / 2.0), "middle", "font-size=\"16\"", &self.title);
        axes(&mut out, &x, &y);
        let (across, down) = ((LEFT + WIDTH - RIGHT) / 2.0, (TOP + HEIGHT - BOTTOM) / 2.0);
        label(&mut out, (across, HEIGHT - 14.0), "middle", "", &self.x_label);
        let turned = format!("transform=\"rotate(-90 18 {down})\"");
        label(&mut out, (18.0, down), "middle", &turned, &self.y_label);
        for (at, (name, points)) in self.drawn().enumerate() {
            series(&mut out, COLOURS[at], &x, &y, &points);
            let height = TOP + 16.0 + at as f64 * LEGEND;
            let colour = COLOURS[at];
            line(
                &mut out,
                &format!(
                    "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"{colour}\" stroke-width=\"3\"/>",
                    LEFT + 12.0,
                    height - 4.0,
                    LEFT + 36.0,
                    height - 4.0
                ),
            );
            label(&mut out, (LEFT + 42.0, height), "start", "", name);
        }
        line(&mut out, "</svg>");
        out
    }
}

fn axes(out: &mut String, x: &Axis, y: &Axis) {
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    for value in x.ticks() {
        let at = across(x, value);
        line(
            out,
            &format!("<line x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{bottom}\" stroke=\"#e5e5e5\"/>"),
        );
        label(out, (at, bottom + 18.0), "middle", "", &x.label(value));
    }
    for value in y.ticks() {
        let at = up(y, value);
        line(
            out,
            &format!("<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"#e5e5e5\"/>"),
        );
        label(out, (LEFT - 8.0, at + 4.0), "end", "", &y.label(value));
    }
    line(out, &format!("<path d=\"M{LEFT} {TOP}V{bottom}H{right}\" fill=\"none\" stroke=\"#333333\"/>"));
}

fn series(out: &mut String, colour: &str, x: &Axis, y: &Axis, points: &[(f64, f64)]) {
    let places: Vec<(f64, f64)> = points.iter().map(|(a, b)| (across(x, *a), up(y, *b))).collect();
    let path: Vec<String> = places.iter().map(|(a, b)| format!("{a:.1},{b:.1}")).collect();
    if path.len() > 1 {
        let path = path.join(" ");
        line(
            out,
            &format!("<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"),
        );
    }
    if places.len() <= MARKED_MAX {
        for (a, b) in places {
            line(out, &format!("<circle cx=\"{a:.1}\" cy=\"{b:.1}\" r=\"3.5\" fill=\"{colour}\"/>"));
        }
    }
}

fn across(axis: &Axis, value: f64) -> f64 {
    LEFT + axis.place(value) * (WIDTH - LEFT - RIGHT)
}

fn up(axis: &Axis, value: f64) -> f64 {
    HEIGHT - BOTTOM - axis.place(value) * (HEIGHT - TOP - BOTTOM)
}

fn label(out: &mut String, (x, y): (f64, f64), anchor: &str, more: &str, text: &str) {
    let text = escaped(text);
    let gap = if more.is_empty() { "" } else { " " };
    line(out, &format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{gap}{more}>{text}</text>"));
}

fn line(out: &mut String, text: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{text}");
}

/// As XML allows it: the five signs as entities, and control characters, which XML 1.0 has no way to write, as the
/// replacement character.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
