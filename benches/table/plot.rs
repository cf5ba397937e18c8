//! Latency against rate, as an SVG: p50 thin, p99 thick, both axes logarithmic. Draws what it is given.

use std::fmt::Write;

/// One server under rising rates.
pub struct Curve {
    pub name: String,
    /// Rate, p50 and p99 in ms.
    pub points: Vec<(f64, f64, f64)>,
}

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 520.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 230.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 60.0;

/// Told apart by people who don't see red or green, too.
const COLORS: [&str; 4] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"];

/// A logarithmic axis from one power of ten to another.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64> + Clone, from: f64, to: f64) -> Self {
        let low = values.clone().fold(f64::INFINITY, f64::min).log10().floor();
        let high = values.fold(0.0, f64::max).log10().ceil().max(low + 1.0);
        Self { low, high, from, to }
    }

    fn place(&self, value: f64) -> f64 {
        self.from + (value.log10() - self.low) / (self.high - self.low) * (self.to - self.from)
    }

    /// 1, 2, 5, 10, …
    fn marks(&self) -> impl Iterator<Item = f64> {
        let powers = (self.low as i32..self.high as i32)
            .flat_map(|power| [1.0, 2.0, 5.0].map(|n| n * 10f64.powi(power)));
        powers.chain([10f64.powf(self.high)])
    }
}

pub fn svg(title: &str, curves: &[Curve]) -> String {
    let points = || curves.iter().flat_map(|curve| curve.points.iter().copied());
    let x = Axis::over(points().map(|(rate, ..)| rate), LEFT, WIDTH - RIGHT);
    let y = Axis::over(points().flat_map(|(_, p50, p99)| [p50, p99]), HEIGHT - BOTTOM, TOP);
    let mut out = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' font-family='sans-serif' font-size='12'>\n\
         <rect width='{WIDTH}' height='{HEIGHT}' fill='white'/>\n<text x='{LEFT}' y='28' font-size='16'>{title}</text>\n"
    );
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    for mark in x.marks() {
        let at = x.place(mark);
        let label = if mark >= 1000.0 { format!("{}k", mark / 1000.0) } else { format!("{mark}") };
        writeln!(out, "<path d='M{at:.1} {TOP}V{bottom}' stroke='#e4e4e4'/><text x='{at:.1}' y='{:.1}' text-anchor='middle'>{label}</text>", bottom + 18.0).unwrap();
    }
    for mark in y.marks() {
        let at = y.place(mark);
        writeln!(out, "<path d='M{LEFT} {at:.1}H{right}' stroke='#e4e4e4'/><text x='{:.1}' y='{:.1}' text-anchor='end'>{mark}</text>", LEFT - 8.0, at + 4.0).unwrap();
    }
    writeln!(
        out,
        "<text x='{:.1}' y='{:.1}' text-anchor='middle'>requests a second (open loop)</text>",
        (LEFT + right) / 2.0,
        HEIGHT - 16.0
    )
    .unwrap();
    writeln!(out, "<text x='18' y='{:.1}' transform='rotate(-90 18 {0:.1})' text-anchor='middle'>ms from the due time</text>", (TOP + bottom) / 2.0).unwrap();
    for (n, (curve, color)) in curves.iter().zip(COLORS.iter().cycle()).enumerate() {
        for (name, thickness, dash, pick) in [("p50", 1.5, "4 3", 0), ("p99", 2.5, "none", 1)] {
            let value = |&(rate, p50, p99): &(f64, f64, f64)| {
                (x.place(rate), y.place(if pick == 0 { p50 } else { p99 }))
            };
            let path: Vec<String> =
                curve.points.iter().map(value).map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
            writeln!(out, "<path d='M{}' fill='none' stroke='{color}' stroke-width='{thickness}' stroke-dasharray='{dash}'/>", path.join("L")).unwrap();
            let at = TOP + 20.0 + 44.0 * n as f64 + 18.0 * f64::from(pick);
            writeln!(out, "<path d='M{:.1} {at:.1}h24' stroke='{color}' stroke-width='{thickness}' stroke-dasharray='{dash}'/><text x='{:.1}' y='{:.1}'>{} {name}</text>", right + 14.0, right + 44.0, at + 4.0, curve.name).unwrap();
        }
    }
    out + "</svg>\n"
}
