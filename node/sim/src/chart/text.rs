//! The chart as characters: one mark for each series, the later one above the earlier.

use super::{Axis, Chart};

/// Columns and rows of the plot itself.
const COLUMNS: usize = 64;
const ROWS: usize = 16;
/// One for each series.
const MARKS: [char; super::SERIES_MAX] = ['*', '+', 'o', 'x', '#', '@', '%', '='];

impl Chart {
    /// As lines of characters, at most 80 columns wide but for long names.
    #[must_use]
    pub fn text(&self) -> String {
        let (x, y) = self.axes();
        let mut grid = vec![vec![' '; COLUMNS]; ROWS];
        for ((_, points), mark) in self.drawn().zip(MARKS) {
            for (column, row) in cells(&x, &y, &points) {
                grid[row][column] = mark;
            }
        }
        let labels: Vec<String> = (0..ROWS).map(|row| row_label(&y, row)).collect();
        let width = labels.iter().map(String::len).max().unwrap_or(0);
        let mut lines = vec![format!("{}  ({})", plain(&self.title), plain(&self.y_label))];
        for (label, row) in labels.iter().zip(grid) {
            let row: String = row.into_iter().collect();
            lines.push(format!("{label:>width$} |{}", row.trim_end()));
        }
        lines.push(format!("{:>width$} +{}", "", "-".repeat(COLUMNS)));
        let (from, to) = (x.label(x.from), x.label(x.to));
        let between = COLUMNS.saturating_sub(from.len() + to.len());
        lines.push(format!("{:>width$}  {from}{:^between$}{to}", "", plain(&self.x_label)));
        let legend: Vec<String> =
            self.drawn().zip(MARKS).map(|((name, _), mark)| format!("{mark} {}", plain(name))).collect();
        lines.push(format!("{:>width$}  {}", "", legend.join("   ")));
        lines.join("\n") + "\n"
    }
}

/// The cells of a line: one for each column between its first and last point, and those of its points.
fn cells(x: &Axis, y: &Axis, points: &[(f64, f64)]) -> Vec<(usize, usize)> {
    let place = |axis: &Axis, value: f64, count: usize| axis.place(value) * (count - 1) as f64;
    let places: Vec<(f64, f64)> =
        points.iter().map(|(a, b)| (place(x, *a, COLUMNS), (ROWS - 1) as f64 - place(y, *b, ROWS))).collect();
    let mut cells: Vec<(usize, usize)> =
        places.iter().map(|(a, b)| (a.round() as usize, b.round() as usize)).collect();
    for pair in places.windows(2) {
        let ((a, b), (to_a, to_b)) = (pair[0], pair[1]);
        for column in a.ceil() as usize..=to_a.floor().max(0.0) as usize {
            if to_a > a {
                let share = (column as f64 - a) / (to_a - a);
                cells.push((column, (b + share * (to_b - b)).round() as usize));
            }
        }
    }
    cells.retain(|(column, row)| *column < COLUMNS && *row < ROWS);
    cells
}

/// The label of a row that a tick falls on.
fn row_label(y: &Axis, row: usize) -> String {
    let height = (ROWS - 1 - row) as f64;
    let tick = y.ticks().find(|tick| (y.place(*tick) * (ROWS - 1) as f64).round() == height);
    tick.map(|tick| y.label(tick)).unwrap_or_default()
}

/// Nothing that steers a terminal.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
