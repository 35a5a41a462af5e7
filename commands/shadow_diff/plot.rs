//! `--plot`: agreement by position, and the share of mismatches by margin, side by side.

use std::path::Path;

use dspark::shadow::{MARGIN_CLASSES, ShadowReport};
use plotters::prelude::*;

use crate::exit::{Code, Failure};

/// Size of the picture, pixels.
const SIZE: (u32, u32) = (900, 360);

/// Writes the picture.
pub(super) fn draw(report: &ShadowReport, path: &Path) -> Result<(), Failure> {
    let drawn = panels(report, path);
    drawn.map_err(|e| Failure::new(Code::BadInput, format!("{}: {e}", path.display())))
}

fn panels(report: &ShadowReport, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (left, right) = root.split_horizontally(SIZE.0 / 2);
    let positions = report.steady.positions.iter().map(|p| p.agreement());
    let labels: Vec<_> = (0..report.steady.positions.len()).map(|j| j.to_string()).collect();
    panel(&left, "agreement by draft position", &labels, positions.collect())?;
    let shares = report.by_margin.iter().map(|[n, m]| (*n > 0).then(|| *m as f64 / *n as f64));
    let classes = MARGIN_CLASSES.iter().map(|m| format!("≤ {m}")).chain(["above".to_owned()]);
    panel(
        &right,
        "mismatches by margin of the left side",
        &classes.collect::<Vec<_>>(),
        shares.collect(),
    )?;
    root.present()?;
    Ok(())
}

/// Bars between 0 and 1; a missing bar is a class without positions.
fn panel<DB: DrawingBackend>(
    area: &DrawingArea<DB, plotters::coord::Shift>,
    title: &str,
    labels: &[String],
    bars: Vec<Option<f64>>,
) -> Result<(), Box<dyn std::error::Error>>
where
    DB::ErrorType: 'static,
{
    let n = labels.len();
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(28)
        .y_label_area_size(40)
        .build_cartesian_2d((0..n).into_segmented(), 0.0..1.0)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(n)
        .x_label_formatter(&|at| match at {
            SegmentValue::CenterOf(i) | SegmentValue::Exact(i) => {
                labels.get(*i).cloned().unwrap_or_default()
            }
            SegmentValue::Last => String::new(),
        })
        .y_label_formatter(&|y| format!("{:.0}%", 100.0 * y))
        .draw()?;
    let rectangles = bars.into_iter().enumerate().filter_map(|(i, bar)| {
        let corners = [(SegmentValue::Exact(i), 0.0), (SegmentValue::Exact(i + 1), bar?)];
        let mut rectangle = Rectangle::new(corners, BLUE.mix(0.6).filled());
        rectangle.set_margin(0, 0, 6, 6);
        Some(rectangle)
    });
    chart.draw_series(rectangles)?;
    Ok(())
}
