//! Charts of lines: as SVG for a file and as characters for a terminal. It knows nothing of what is drawn, and no
//! colours of terminals.

mod svg;
mod text;

/// Most series of one chart: as many as can be told apart.
pub const SERIES_MAX: usize = 8;

/// One chart.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Chart {
    /// Above it.
    pub title: String,
    /// Below the horizontal axis, with its unit.
    pub x_label: String,
    /// Beside the vertical axis, with its unit.
    pub y_label: String,
    /// Lines; those beyond [`SERIES_MAX`] are not drawn.
    pub series: Vec<Series>,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Series {
    /// In the legend.
    pub name: String,
    /// Points from left to right; those that are not finite are left out.
    pub points: Vec<(f64, f64)>,
}

impl Chart {
    /// Whether there is a line to see: some series has two points.
    #[must_use]
    pub fn has_line(&self) -> bool {
        self.drawn().any(|(_, points)| points.len() > 1)
    }

    /// What is drawn: names with their finite points.
    fn drawn(&self) -> impl Iterator<Item = (&str, Vec<(f64, f64)>)> {
        self.series.iter().take(SERIES_MAX).map(|series| {
            let finite = series.points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite());
            (series.name.as_str(), finite.collect())
        })
    }

    /// The axes: horizontal over the points, vertical from zero if nothing is below.
    fn axes(&self) -> (Axis, Axis) {
        let points: Vec<(f64, f64)> = self.drawn().flat_map(|(_, points)| points).collect();
        let range = |of: fn(&(f64, f64)) -> f64| {
            let least = points.iter().map(of).fold(f64::INFINITY, f64::min);
            let most = points.iter().map(of).fold(f64::NEG_INFINITY, f64::max);
            if least > most { (0.0, 1.0) } else { (least, most) }
        };
        let (x, y) = (range(|point| point.0), range(|point| point.1));
        (Axis::new(x.0, x.1), Axis::new(y.0.min(0.0), y.1))
    }
}

/// An axis from a round number to a round number.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Axis {
    from: f64,
    to: f64,
    step: f64,
}

/// About so many steps of an axis.
const STEPS: f64 = 6.0;

impl Axis {
    fn new(least: f64, most: f64) -> Self {
        let width = if most > least { most - least } else { most.abs().max(1.0) };
        let rough = width / STEPS;
        let unit = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|of| of * unit).find(|step| *step >= rough * 0.999);
        let step = step.unwrap_or(unit * 10.0);
        let (from, to) = ((least / step).floor() * step, (most / step).ceil() * step);
        Self { from, to: if to > from { to } else { from + step }, step }
    }

    /// Where a value lies, 0 to 1.
    fn place(&self, value: f64) -> f64 {
        ((value - self.from) / (self.to - self.from)).clamp(0.0, 1.0)
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        let count = ((self.to - self.from) / self.step).round() as u32;
        let (from, step) = (self.from, self.step);
        (0..=count).map(move |at| from + f64::from(at) * step)
    }

    /// A value of this axis in as many digits as its steps need.
    fn label(&self, value: f64) -> String {
        if self.step >= 1e15 || self.step < 1e-6 {
            return format!("{value:e}");
        }
        let digits = (-self.step.log10().floor()).max(0.0) as usize;
        // Without the sign of a zero.
        format!("{:.digits$}", value + 0.0)
    }
}

#[cfg(test)]
mod tests;
