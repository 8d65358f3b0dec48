//! What was measured, as lines of a plot.

use kit::plot::{Line, Point};

use super::figures::Spread;

/// One line for each name, of the rows that have it.
pub fn lines<'a, R: 'a>(
    rows: impl IntoIterator<Item = &'a R>,
    name: impl Fn(&R) -> String,
    point: impl Fn(&R) -> Option<Point>,
) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for row in rows {
        let Some(point) = point(row) else { continue };
        let name = name(row);
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(Line { name, points: vec![point] }),
        }
    }
    lines
}

/// A point at the median, with the least and the most.
pub fn spread(x: usize, y: Spread) -> Point {
    Point { x: x as f64, y: y.median, between: Some((y.least, y.most)) }
}
