//! `farrier fleet report`: the loss ledger, reliability, repairs, drivers and shadow mode.

mod charts;
mod compliance;
mod html;
mod prices;
mod sections;
mod support;

use std::path::PathBuf;

use anyhow::Context;
use farrier_facts::FactSet;
use farrier_fleet::fleet::Domain;
use farrier_fleet::fleet::ledger::LedgerSpec;
use farrier_fleet::fleet::ledger::report::FleetReport;
use farrier_server::log::sqlite::SqliteLog;
use farrier_server::log::{Log, check_joined};
use farrier_server::report::{ReportError, report};
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::export::read_lines;
use super::session::{FleetSession, Path};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::commands::agent::absolute;
use crate::commands::server::{open_log, span};
use crate::failure::Hinted;
use crate::printer::Printer;
use prices::{GpuHourPrice, Prices};
use sections::ReportView;

/// Version of the keys of `--output json`.
const JSON_VERSION: u32 = 1;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Instead: TPM, Secure Boot, encryption of data volumes and image policy of each node
    #[arg(long, conflicts_with_all = ["from", "to", "html", "log", "price", "window"])]
    compliance: bool,
    /// Begin of the period: a date, a time, or an age such as 7d [default: the begin of the log]
    #[arg(long, value_name = "TIME", value_parser = moment)]
    from: Option<Moment>,
    /// End of the period: a date, a time, or an age such as 1d [default: now]
    #[arg(long, value_name = "TIME", value_parser = moment)]
    to: Option<Moment>,
    /// Also write the report as one HTML page without scripts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Price of a GPU-hour; `train/H100=2.1` for one pool; repeat for each
    #[arg(long, value_name = "[POOL/]GPU=PRICE")]
    price: Vec<GpuHourPrice>,
    /// Shadow mode: hours within which a decision and an operator's action agree
    #[arg(long, value_name = "HOURS", default_value_t = LedgerSpec::SHADOW_WINDOW_H,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(LedgerSpec::SHADOW_WINDOW_H_MAX)))]
    window: u32,
    /// Read the log in this data directory or backup, without a server
    #[arg(long, value_name = "DIR", value_parser = absolute)]
    log: Option<PathBuf>,
    /// Archive made by `farrier server archive`; repeat for each file
    #[arg(long, value_name = "FILE", value_parser = absolute, requires = "log")]
    archive: Vec<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

/// A point in time, given as a time or as a duration before now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    At(Timestamp),
    Ago(SignedDuration),
}

fn moment(text: &str) -> Result<Moment, String> {
    if let Ok(at) = text.parse::<Timestamp>() {
        return Ok(Moment::At(at));
    }
    if let Ok(date) = text.parse::<Date>() {
        let midnight = date.to_zoned(TimeZone::UTC).map_err(|err| err.to_string())?;
        return Ok(Moment::At(midnight.timestamp()));
    }
    let wrong = "expected a date such as 2026-11-01, a time such as 2026-11-01T12:00:00Z, or an age of up to 365d such as 7d";
    span(text).map(Moment::Ago).map_err(|_| wrong.to_owned())
}

impl Moment {
    fn timestamp(self, now: Timestamp) -> anyhow::Result<Timestamp> {
        match self {
            Self::At(at) => Ok(at),
            Self::Ago(ago) => now.checked_sub(ago).context("the time is too long ago"),
        }
    }
}

/// Whether something can have happened between these times.
fn is_period(from: Option<Timestamp>, to: Option<Timestamp>, now: Timestamp) -> bool {
    from.is_none_or(|from| from < now && from < to.unwrap_or(now))
}

impl Args {
    /// Whether the report needs no server.
    pub(super) fn is_offline(&self) -> bool {
        self.log.is_some()
    }

    fn period(&self, now: Timestamp) -> anyhow::Result<(Option<Timestamp>, Option<Timestamp>)> {
        let from = self.from.map(|moment| moment.timestamp(now)).transpose()?;
        let to = self.to.map(|moment| moment.timestamp(now)).transpose()?;
        if !is_period(from, to, now) {
            return Err(Hinted::error(
                "the period ends before it begins, or begins in the future".to_owned(),
                "`--from` must be before `--to`, and not in the future",
            ));
        }
        Ok((from, to))
    }
}

pub(super) fn run(
    session: &mut FleetSession,
    args: &Args,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    if args.compliance {
        return compliance::run(session, args.output, printer);
    }
    let (from, to) = args.period(Timestamp::now())?;
    let path = Path::new("/api/v1/report")
        .with("from", from)
        .with("to", to)
        .with("window_h", Some(args.window));
    let mut found: Option<FleetReport> = None;
    read_lines(session, &path, |line| {
        found = Some(serde_json::from_value(line)?);
        Ok(())
    })?;
    let report = found.context("the server sent no report")?;
    print(report, args, printer)
}

/// Makes the report from a log on this machine.
pub(super) fn run_offline(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let (from, to) = args.period(Timestamp::now())?;
    let mut logs = args.archive.iter().map(|path| open_log(path)).collect::<Result<Vec<_>, _>>()?;
    logs.extend(args.log.as_deref().map(open_log).transpose()?);
    let mut by_start: Vec<(u64, &SqliteLog)> = Vec::with_capacity(logs.len());
    for log in &logs {
        by_start.push((log.anchor()?.seq, log));
    }
    by_start.sort_by_key(|(seq, _)| *seq);
    let logs: Vec<&dyn Log> = by_start.into_iter().map(|(_, log)| log as &dyn Log).collect();
    if let Err(flaw) = check_joined(&logs)? {
        return Err(Hinted::error(
            format!("the archives and the log do not follow each other: {flaw}"),
            "name every archive with `--archive`; `farrier server verify-log` checks them",
        ));
    }
    let spec =
        LedgerSpec { from, to, scope: Domain::Fleet, visible: None, shadow_window_h: args.window };
    let report = report(&logs, spec, None, || false).map_err(|err| match err {
        ReportError::Missing(seq) => Hinted::error(
            format!("entry {seq} is missing between the archives and the log"),
            "name every archive with `--archive`",
        ),
        err => err.into(),
    })?;
    print(report, args, printer)
}

fn print(report: FleetReport, args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let view = ReportView::new(report, Prices(args.price.clone()), FactSet::embedded());
    if let Some(path) = &args.html {
        std::fs::write(path, html::page(&view))
            .with_context(|| format!("failed to write `{}`", path.display()))?;
    }
    if args.output == Output::Json {
        printer.json(&json!({
            "version": JSON_VERSION, "report": view.report, "costs": view.costs(),
            "support": view.support,
        }))?;
        return Ok(Outcome::Fine);
    }
    for line in view.preamble() {
        printer.paragraph("", 0, &line)?;
    }
    for section in view.sections(sections::ReportDetail::Terminal) {
        printer.line("")?;
        printer.line(&section.title)?;
        for note in &section.notes {
            printer.paragraph(" ", 2, note)?;
        }
        if !section.rows.is_empty() {
            printer.table(&section.headings, &section.rows)?;
        }
    }
    Ok(Outcome::Fine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_date_a_time_or_an_age() {
        let at = Timestamp::from_second(1_793_491_200).unwrap();
        assert_eq!(moment("2026-11-01"), Ok(Moment::At(at)));
        assert_eq!(moment("2026-11-01T00:00:00Z"), Ok(Moment::At(at)));
        assert_eq!(moment("7d"), Ok(Moment::Ago(SignedDuration::from_hours(168))));
        assert!(moment("yesterday").unwrap_err().contains("2026-11-01"));
    }

    #[test]
    fn a_period_begins_in_the_past_and_before_its_end() {
        let at = |second| Some(Timestamp::from_second(second).unwrap());
        let now = Timestamp::from_second(100).unwrap();
        assert!(is_period(None, None, now) && is_period(at(99), None, now));
        assert!(is_period(at(10), at(11), now) && is_period(at(10), at(900), now));
        for (from, to) in [(at(100), None), (at(200), at(300)), (at(20), at(10)), (at(9), at(9))] {
            assert!(!is_period(from, to, now), "{from:?} {to:?}");
        }
    }
}
