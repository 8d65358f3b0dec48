//! Lines in a plane, as SVG.

use std::fmt::Write as _;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 28.0;
const TOP: f64 = 70.0;
const BOTTOM: f64 = 56.0;
/// About as many numbers stand at an axis.
const TICKS: f64 = 6.0;
/// They can be told apart by those who see no red or no green; and by the dashes where there is no color at all.
const STYLES: [(&str, &str); 4] =
    [("#0072b2", "none"), ("#d55e00", "7 4"), ("#009e73", "2 3"), ("#cc79a7", "9 3 2 3")];

pub struct Plot {
    /// Its name without an ending.
    pub file: &'static str,
    pub title: String,
    pub x_label: &'static str,
    /// Whether the x axis grows by factors.
    pub is_log: bool,
    pub y_label: &'static str,
    pub lines: Vec<Line>,
}

pub struct Line {
    pub name: String,
    pub points: Vec<Point>,
}

pub struct Point {
    pub x: f64,
    pub y: f64,
    /// The least and the most, where it was measured more than once.
    pub between: Option<(f64, f64)>,
}

/// Where things are in the picture.
struct Frame {
    x: (f64, f64),
    is_log: bool,
    y_most: f64,
}

impl Plot {
    pub fn to_svg(&self) -> String {
        let frame = Frame::around(self);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n\
             <title>{title}</title>\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n",
            title = escaped(&self.title),
        );
        let middle = (LEFT + WIDTH - RIGHT) / 2.0;
        text(&mut svg, (middle, 24.0), "middle", "font-size=\"16\" font-weight=\"bold\"", &self.title);
        text(&mut svg, (middle, HEIGHT - 12.0), "middle", "", self.x_label);
        let at = (HEIGHT + TOP - BOTTOM) / 2.0;
        let turned = format!("transform=\"rotate(-90 18 {at})\"");
        text(&mut svg, (18.0, at), "middle", &turned, self.y_label);
        frame.draw_axes(&mut svg);
        for (number, (line, style)) in self.lines.iter().zip(STYLES.iter().cycle()).enumerate() {
            frame.draw_line(&mut svg, line, *style);
            let x = LEFT + number as f64 * (WIDTH - LEFT - RIGHT) / self.lines.len() as f64;
            let (color, dashes) = style;
            writeln!(
                svg,
                "<path d=\"M{x:.1} 48h28\" stroke=\"{color}\" stroke-width=\"2.5\" stroke-dasharray=\"{dashes}\"/>"
            )
            .unwrap();
            text(&mut svg, (x + 34.0, 52.0), "start", "", &line.name);
        }
        svg + "</svg>\n"
    }
}

impl Frame {
    fn around(plot: &Plot) -> Self {
        let points = plot.lines.iter().flat_map(|line| &line.points);
        let xs: Vec<f64> = points.clone().map(|point| point.x).collect();
        let most = points.map(|point| point.between.map_or(point.y, |(_, most)| most)).fold(0.0, f64::max);
        let (least_x, most_x) =
            (xs.iter().copied().fold(f64::MAX, f64::min), xs.into_iter().fold(f64::MIN, f64::max));
        // All begin at 0: what is twice as high is twice as much.
        let y_most = if most > 0.0 { most * 1.08 } else { 1.0 };
        let x = if most_x > least_x { (least_x, most_x) } else { (most_x * 0.5, most_x.mul_add(1.5, 1.0)) };
        Self { x, is_log: plot.is_log, y_most }
    }

    fn x(&self, value: f64) -> f64 {
        let (from, to) = self.x;
        let part = if self.is_log {
            (value / from).log10() / (to / from).log10()
        } else {
            (value - from) / (to - from)
        };
        LEFT + part * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - value / self.y_most * (HEIGHT - TOP - BOTTOM)
    }

    fn draw_axes(&self, svg: &mut String) {
        let (left, right, bottom) = (LEFT, WIDTH - RIGHT, HEIGHT - BOTTOM);
        for value in ticks(0.0, self.y_most) {
            let y = self.y(value);
            writeln!(svg, "<path d=\"M{left} {y:.1}H{right}\" stroke=\"#ddd\"/>").unwrap();
            text(svg, (left - 8.0, y + 4.0), "end", "", &number(value));
        }
        let (from, to) = self.x;
        for value in if self.is_log { decades(from, to) } else { ticks(from, to) } {
            let x = self.x(value);
            writeln!(svg, "<path d=\"M{x:.1} {TOP}V{bottom}\" stroke=\"#eee\"/>").unwrap();
            text(svg, (x, bottom + 18.0), "middle", "", &number(value));
        }
        writeln!(svg, "<path d=\"M{left} {TOP}V{bottom}H{right}\" fill=\"none\" stroke=\"#444\"/>").unwrap();
    }

    fn draw_line(&self, svg: &mut String, line: &Line, (color, dashes): (&str, &str)) {
        let path: Vec<_> = line
            .points
            .iter()
            .map(|point| format!("{:.1} {:.1}", self.x(point.x), self.y(point.y)))
            .collect();
        writeln!(
            svg,
            "<path d=\"M{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2.5\" stroke-dasharray=\"{dashes}\"/>",
            path.join("L")
        )
        .unwrap();
        for point in &line.points {
            let (x, y) = (self.x(point.x), self.y(point.y));
            if let Some((least, most)) = point.between {
                let (least, most) = (self.y(least), self.y(most));
                writeln!(svg, "<path d=\"M{x:.1} {least:.1}V{most:.1}\" stroke=\"{color}\"/>").unwrap();
            }
            writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{color}\"/>").unwrap();
        }
    }
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, more: &str, text: &str) {
    writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {more}>{}</text>", escaped(text))
        .unwrap();
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Round numbers between two, both included.
fn ticks(from: f64, to: f64) -> Vec<f64> {
    let rough = (to - from) / TICKS;
    let magnitude = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * magnitude).into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(rough);
    let first = (from / step).ceil();
    (0..)
        .map(|count| (first + f64::from(count)) * step)
        .take_while(|value| *value <= to * (1.0 + 1e-9))
        .collect()
}

fn decades(from: f64, to: f64) -> Vec<f64> {
    let first = from.log10().ceil();
    (0..)
        .map(|count| 10_f64.powf(first + f64::from(count)))
        .take_while(|value| *value <= to * (1.0 + 1e-9))
        .collect()
}

/// A number as short as it can be said.
fn number(value: f64) -> String {
    let short = |value: f64| {
        let text = format!("{value:.2}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    match value.abs() {
        size if size >= 1e6 => format!("{} M", short(value / 1e6)),
        size if size >= 1e4 => format!("{} k", short(value / 1e3)),
        _ => short(value),
    }
}
