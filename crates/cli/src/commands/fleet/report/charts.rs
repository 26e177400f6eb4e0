//! The charts of the HTML page. Pure.

use farrier_fleet::fleet::ledger::report::{Cause, DayTime, FleetReport, GpuTime, PoolTime, ratio};

use super::sections::{cause_name, hours, percent};
use crate::charts::{Colour, StackedBar, StackedBars, escape, legend, stacked_bars};

const HOUR_MS: u64 = 3_600_000;

pub(super) fn colour(cause: Cause) -> Colour {
    match cause {
        Cause::Finding => Colour::Rose,
        Cause::IdleByCordon => Colour::Sand,
        Cause::Verification => Colour::Cyan,
        Cause::Hold => Colour::Indigo,
        Cause::Maintenance => Colour::Teal,
        Cause::Unknown => Colour::Grey,
    }
}

pub(super) fn causes_legend() -> String {
    legend(Cause::ALL.map(|cause| (colour(cause), cause_name(cause))))
}

fn segments(time: &GpuTime) -> Vec<f64> {
    Cause::ALL.map(|cause| ratio(time.lost_ms.of(cause), HOUR_MS)).to_vec()
}

fn tooltip(name: &str, time: &GpuTime) -> String {
    let parts = Cause::ALL.into_iter().filter(|cause| time.lost_ms.of(*cause) > 0);
    let parts: Vec<String> = parts
        .map(|cause| format!("{} {}", cause_name(cause), hours(time.lost_ms.of(cause))))
        .collect();
    format!("{name}: {} GPU-hours lost: {}", hours(time.lost_sum_ms()), parts.join(", "))
}

/// Lost GPU-hours of each day, by cause.
pub(super) fn days(report: &FleetReport) -> String {
    let bar = |day: &farrier_fleet::fleet::ledger::report::DayTime| StackedBar {
        label: day.day.strftime("%d").to_string(),
        segments: segments(&day.time),
        mark: None,
        text: tooltip(&day.day.strftime("%Y-%m-%d").to_string(), &day.time),
    };
    stacked_bars(&StackedBars {
        title: "Lost GPU-hours per day",
        unit: "GPU-hours",
        each: "day (UTC)",
        colours: &Cause::ALL.map(colour),
        bars: report.days.iter().map(bar).collect(),
        limit: None,
    })
}

const WIDTH: f64 = 560.0;
const ROW: f64 = 44.0;
const LABEL: f64 = 130.0;
const VALUE: f64 = 86.0;
/// Maximum number of pools in the chart.
const POOLS_MAX: usize = 24;

/// One row for each pool, with a line over the days, and the availability. All lines have the same
/// scale.
pub(super) fn pools(report: &FleetReport) -> String {
    let pools = &report.pools[..report.pools.len().min(POOLS_MAX)];
    let shares =
        pools.iter().flat_map(|pool| pool.days.iter().filter_map(|day| day.time.availability()));
    let lowest = shares.fold(1.0, f64::min);
    // The lower end is a round number below the lowest day.
    let floor =
        [0.99, 0.95, 0.9, 0.75, 0.5].into_iter().find(|floor| *floor < lowest).unwrap_or(0.0);
    let rows = f64::from(u16::try_from(pools.len()).unwrap_or(u16::MAX));
    let height = rows * ROW + 22.0;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"Availability by pool\" class=\"plot\"><title>Availability by pool</title>"
    );
    let (left, right) = (LABEL, WIDTH - VALUE);
    let mut top = 6.0;
    for pool in pools {
        let y = |share: f64| top + (ROW - 12.0) * (1.0 - (share - floor) / (1.0 - floor));
        let path = day_steps(pool, &report.days, (left, right), y);
        let value = pool.time.availability().map_or_else(|| "unknown".to_owned(), percent);
        svg.push_str(&format!(
            "<g><title>{name}: {value}</title><text x=\"0\" y=\"{middle:.1}\">{short}</text>\
             <line class=\"axis\" x1=\"{left}\" y1=\"{base:.1}\" x2=\"{right}\" y2=\"{base:.1}\"/>\
             <line class=\"axis\" x1=\"{left}\" y1=\"{full:.1}\" x2=\"{right}\" y2=\"{full:.1}\"/>\
             <path class=\"line\" d=\"{path}\"/><text class=\"strong label\" x=\"{WIDTH}\" y=\"{middle:.1}\">{value}</text></g>",
            name = escape(pool.pool.as_str()),
            short = escape(&shortened(pool.pool.as_str())),
            middle = top + ROW / 2.0 - 1.0,
            base = y(floor),
            full = y(1.0),
        ));
        top += ROW;
    }
    svg.push_str(&format!(
        "<text class=\"tick\" x=\"{left}\" y=\"{:.1}\">each line: {:.0} % to 100 % per day</text></svg>\n",
        height - 6.0,
        100.0 * floor
    ));
    svg
}

/// A line with one level step for each day. A day without an availability interrupts the line.
fn day_steps(
    pool: &PoolTime,
    days: &[DayTime],
    (left, right): (f64, f64),
    y: impl Fn(f64) -> f64,
) -> String {
    let (Some(first), Some(last)) = (days.first(), days.last()) else { return String::new() };
    let number = |day: &DayTime| {
        u16::try_from(day.day.duration_since(first.day).as_hours() / 24).unwrap_or(u16::MAX)
    };
    let slot = (right - left) / (f64::from(number(last)) + 1.0);
    let mut path = String::new();
    let mut previous = None;
    for (day, share) in pool.days.iter().filter_map(|day| Some((day, day.time.availability()?))) {
        let number = number(day);
        let follows = previous.is_some_and(|previous: u16| previous.checked_add(1) == Some(number));
        let from = left + slot * f64::from(number);
        let command = if follows { "L" } else { "M" };
        path.push_str(&format!("{command}{from:.1} {:.1}H{:.1}", y(share), from + slot));
        previous = Some(number);
    }
    path
}

/// A name that is short enough for the space next to its line.
fn shortened(name: &str) -> String {
    const LETTERS: usize = 17;
    if name.chars().count() <= LETTERS {
        return name.to_owned();
    }
    let kept: String = name.chars().take(LETTERS - 1).collect();
    format!("{kept}…")
}

/// One bar that divides the lost time by cause.
pub(super) fn causes(report: &FleetReport) -> String {
    let lost = report.time.lost_sum_ms();
    let rows = Cause::ALL.into_iter().filter(|cause| report.time.lost_ms.of(*cause) > 0);
    let mut rows: Vec<(Cause, u64)> =
        rows.map(|cause| (cause, report.time.lost_ms.of(cause))).collect();
    rows.sort_by_key(|(_, gpu_ms)| std::cmp::Reverse(*gpu_ms));
    let height = 30.0 * f64::from(u8::try_from(rows.len()).unwrap_or(u8::MAX)) + 6.0;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"Lost GPU-hours by cause\" class=\"plot\"><title>Lost GPU-hours by cause</title>"
    );
    let largest = rows.first().map_or(1, |(_, gpu_ms)| *gpu_ms);
    let scale = WIDTH - LABEL - 150.0;
    for (index, (cause, gpu_ms)) in rows.into_iter().enumerate() {
        let y = 30.0 * f64::from(u8::try_from(index).unwrap_or(u8::MAX));
        let width = (scale * ratio(gpu_ms, largest)).max(1.5);
        svg.push_str(&format!(
            "<g><text x=\"0\" y=\"{text:.1}\">{name}</text><rect class=\"{class}\" x=\"{LABEL}\" y=\"{bar:.1}\" width=\"{width:.1}\" height=\"18\" rx=\"2\"/>\
             <text x=\"{value:.1}\" y=\"{text:.1}\">{hours} ({share})</text></g>",
            text = y + 17.0,
            bar = y + 4.0,
            name = cause_name(cause),
            class = colour(cause).class(),
            value = LABEL + width + 8.0,
            hours = hours(gpu_ms),
            share = percent(ratio(gpu_ms, lost)),
        ));
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn day(number: i64, available_ms: u64) -> DayTime {
        let time = GpuTime { total_ms: available_ms, available_ms, ..GpuTime::default() };
        DayTime { day: Timestamp::from_second(number * 86_400).unwrap(), time }
    }

    #[test]
    fn a_day_without_data_interrupts_the_line() {
        let days = vec![day(0, 10), day(1, 10), day(2, 0), day(3, 10)];
        let pool = PoolTime {
            pool: "train".parse().unwrap(),
            time: GpuTime::default(),
            skus: Vec::new(),
            days: days.clone(),
        };
        let path = day_steps(&pool, &days, (0.0, 40.0), |share| share);
        assert_eq!(path, "M0.0 1.0H10.0L10.0 1.0H20.0M30.0 1.0H40.0");
    }
}
