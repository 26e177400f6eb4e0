//! Losses, reliability, repairs and drivers.

use farrier_fleet::fleet::ledger::UNVERIFIED;
use farrier_fleet::fleet::ledger::report::{Cause, FindingRecord, GpuRecord, Reliability};
use farrier_fleet::health::Action;

use super::{
    ReportDetail, ReportSection, ReportView, cause_name, grouped, hours, minute, money, omitted,
    or_unknown, share, with_detail,
};
use crate::commands::fleet::report::support::BranchSupport;
use crate::commands::status::evidence_text;

/// An end of support within this number of days requires planning.
const SUPPORT_AHEAD_DAYS: i32 = 180;
/// Maximum number of observations per GPU in the list of GPUs to replace.
const EVIDENCE_MAX: usize = 2;

impl ReportView {
    pub(super) fn causes(&self) -> ReportSection {
        let time = &self.report.time;
        let row = |name: &str, gpu_ms: u64, cost: Option<String>| {
            let mut row = vec![name.to_owned(), hours(gpu_ms), share(gpu_ms, time.total_ms)];
            row.extend(cost);
            row
        };
        let priced =
            |causes: &[Cause]| (!self.prices.is_empty()).then(|| money(self.cost_of(causes)));
        let empty = || (!self.prices.is_empty()).then(String::new);
        let mut rows = vec![
            row("all GPUs", time.total_ms, empty()),
            row("available", time.available_ms, empty()),
        ];
        let each = Cause::ALL.into_iter();
        rows.extend(
            each.map(|cause| row(cause_name(cause), time.lost_ms.of(cause), priced(&[cause]))),
        );
        rows.push(row("lost", time.lost_sum_ms(), priced(&Cause::ALL)));
        let mut headings = vec!["Time", "GPU-hours", "Share"];
        headings.extend((!self.prices.is_empty()).then_some("Cost"));
        let mut notes = Vec::new();
        let unpriced_ms = self.prices.unpriced_ms(&self.report);
        if !self.prices.is_empty() && unpriced_ms > 0 {
            notes.push(format!("{} lost GPU-hours have no price.", hours(unpriced_ms)));
        }
        ReportSection { title: "GPU-hours by cause".to_owned(), notes, headings, rows }
    }

    pub(super) fn pools(&self) -> ReportSection {
        let row = |pool: &farrier_fleet::fleet::ledger::report::PoolTime| {
            let time = &pool.time;
            let mut row = vec![pool.pool.to_string(), hours(time.total_ms)];
            row.push(share(time.available_ms, time.total_ms));
            row.extend(Cause::ALL.map(|cause| share(time.lost_ms.of(cause), time.total_ms)));
            if !self.prices.is_empty() {
                row.push(money(self.prices.lost(&pool.pool, &pool.skus, &Cause::ALL)));
            }
            row
        };
        let mut headings = vec![
            "Pool",
            "GPU-hours",
            "Available",
            "Finding",
            "Idle",
            "Verif.",
            "Hold",
            "Maint.",
            "Unknown",
        ];
        headings.extend((!self.prices.is_empty()).then_some("Cost"));
        let rows = self.report.pools.iter().map(row).collect();
        ReportSection {
            title: "Availability by pool".to_owned(),
            notes: Vec::new(),
            headings,
            rows,
        }
    }

    pub(super) fn losses(&self, detail: ReportDetail) -> ReportSection {
        let losses = &self.report.losses;
        let rows: Vec<Vec<String>> = losses
            .iter()
            .take(detail.rows())
            .map(|line| {
                let gpu = line.gpu.as_ref().map(|gpu| gpu.0.clone());
                let mut row = vec![
                    hours(line.gpu_ms),
                    cause_name(line.cause).to_owned(),
                    line.node.to_string(),
                    with_detail(&line.code, &line.detail),
                    gpu.unwrap_or_default(),
                    line.serial.clone().unwrap_or_default(),
                    or_unknown(line.driver.as_ref()),
                ];
                if !self.prices.is_empty() {
                    let sku = line.sku.as_deref();
                    row.push(money(self.prices.cost(&line.pool, sku, line.gpu_ms)));
                }
                row
            })
            .collect();
        let mut notes: Vec<String> = omitted(losses.len(), rows.len()).into_iter().collect();
        let rest = self.report.losses_omitted;
        if rest.lines > 0 {
            let lines = grouped(rest.lines);
            notes.push(format!(
                "{lines} small losses of {} GPU-hours are left out.",
                hours(rest.gpu_ms)
            ));
        }
        let mut headings = vec![
            "GPU-hours",
            "Cause",
            "Node",
            "Fault or reason",
            "GPU at fault",
            "Serial",
            "Driver",
        ];
        headings.extend((!self.prices.is_empty()).then_some("Cost"));
        ReportSection { title: "Largest losses".to_owned(), notes, headings, rows }
    }

    pub(super) fn exposure(&self, detail: ReportDetail) -> ReportSection {
        let lines = &self.report.exposure;
        let rows: Vec<Vec<String>> = lines
            .iter()
            .take(detail.rows())
            .map(|line| {
                let fault = with_detail(&line.code, &line.detail);
                vec![hours(line.gpu_ms), fault, line.pool.to_string(), grouped(line.nodes)]
            })
            .collect();
        let mut notes = vec![
            "Open faults of GPUs whose node took work. This time is available, not lost."
                .to_owned(),
        ];
        if rows.is_empty() {
            notes = vec!["No fault was open while its node took work.".to_owned()];
        }
        if lines.iter().any(|line| line.code == UNVERIFIED) {
            let meaning = "`unverified`: time in which a node that had joined, but was not verified yet, could take work. No fault was known.";
            notes.push(meaning.to_owned());
        }
        notes.extend(omitted(lines.len(), rows.len()));
        let headings = vec!["GPU-hours", "Fault", "Pool", "Nodes"];
        ReportSection { title: "Exposure".to_owned(), notes, headings, rows }
    }

    pub(super) fn reliability(&self) -> ReportSection {
        let row = |line: &Reliability| {
            let (mtbf, interval) = match (line.mtbf_h, line.mtbf_low_h, line.mtbf_high_h) {
                (Some(mtbf), Some(low), Some(high)) => {
                    (whole(mtbf), format!("{} to {}", whole(low), whole(high)))
                }
                (None, Some(low), _) => {
                    ("no fault seen".to_owned(), format!("at least {}", whole(low)))
                }
                _ => ("unknown".to_owned(), "unknown".to_owned()),
            };
            let sku = or_unknown(line.sku.as_ref());
            let faults = grouped(line.faults);
            vec![line.pool.to_string(), sku, hours(line.operating_ms), faults, mtbf, interval]
        };
        ReportSection {
            title: "Mean time between faults".to_owned(),
            notes: vec![
                "In GPU-hours of operation. A fault is a finding that opened and made its node unfit. The 95 % interval assumes independent faults; a switch that takes down ten nodes counts ten times.".to_owned(),
            ],
            headings: vec!["Pool", "GPU", "GPU-hours", "Faults", "MTBF (h)", "95 % interval"],
            rows: self.report.reliability.iter().map(row).collect(),
        }
    }

    pub(super) fn offenders(&self, detail: ReportDetail) -> ReportSection {
        let gpus = &self.report.offenders;
        let row = |gpu: &GpuRecord| {
            let nodes: Vec<String> = gpu.nodes.iter().map(ToString::to_string).collect();
            vec![
                or_unknown(gpu.serial.as_ref()),
                gpu.uuid.0.clone(),
                grouped(gpu.faults),
                hours(gpu.lost_ms),
                nodes.join(" → "),
            ]
        };
        let rows: Vec<Vec<String>> = gpus.iter().take(detail.rows()).map(row).collect();
        let mut notes = Vec::new();
        if rows.is_empty() {
            notes.push("No GPU had more than one fault.".to_owned());
        }
        notes.extend(omitted(gpus.len(), rows.len()));
        let headings = vec!["Serial", "UUID", "Faults", "GPU-hours lost", "Node"];
        ReportSection { title: "Repeat offenders".to_owned(), notes, headings, rows }
    }

    pub(super) fn repairs(&self) -> ReportSection {
        let rows: Vec<Vec<String>> = self
            .report
            .repairs
            .iter()
            .map(|tally| {
                let counts =
                    [tally.started, tally.returned, tally.did_not_help, tally.failed, tally.open];
                let mut row = vec![tally.repair.clone()];
                row.extend(counts.map(grouped));
                row
            })
            .collect();
        let none = "No repair was made.".to_owned();
        let notes = if rows.is_empty() { vec![none] } else { Vec::new() };
        let headings =
            vec!["Repair", "Started", "Back in service", "Did not help", "Not done", "Open"];
        ReportSection { title: "Repairs and their outcome".to_owned(), notes, headings, rows }
    }

    pub(super) fn rma(&self, detail: ReportDetail) -> ReportSection {
        let gpus = &self.report.rma;
        let rows: Vec<Vec<String>> = gpus.iter().take(detail.rows()).map(rma_row).collect();
        let mut notes = Vec::new();
        if rows.is_empty() {
            notes.push("No finding says that a GPU has to be replaced.".to_owned());
        }
        notes.extend(omitted(gpus.len(), rows.len()));
        let headings = vec!["Serial", "UUID", "Node", "Evidence"];
        ReportSection { title: "GPUs to replace (RMA)".to_owned(), notes, headings, rows }
    }

    pub(super) fn drivers(&self) -> ReportSection {
        let row = |used: &farrier_fleet::fleet::ledger::report::DriverUse| {
            let of_pool = self.report.drivers.iter().filter(|other| other.pool == used.pool);
            let nodes: u64 = of_pool.map(|other| other.nodes).sum();
            let driver = or_unknown(used.driver.as_ref());
            let (in_pool, gpus) = (share(used.nodes, nodes), grouped(used.gpus));
            vec![used.pool.to_string(), driver, grouped(used.nodes), in_pool, gpus]
        };
        ReportSection {
            title: "Drivers at the end of the period".to_owned(),
            notes: Vec::new(),
            headings: vec!["Pool", "Driver", "Nodes", "Of the pool", "GPUs"],
            rows: self.report.drivers.iter().map(row).collect(),
        }
    }

    pub(super) fn support(&self) -> ReportSection {
        ReportSection {
            title: "End of support".to_owned(),
            notes: Vec::new(),
            headings: vec!["Driver branch", "Nodes", "Fixes until", "Status"],
            rows: self.support.iter().map(support_row).collect(),
        }
    }
}

fn support_row(branch: &BranchSupport) -> Vec<String> {
    let ends = branch.ends.map_or_else(|| "no date published".to_owned(), |ends| ends.to_string());
    let status = match branch.days_left {
        Some(days) if days < 0 => "ended".to_owned(),
        Some(days) if days <= SUPPORT_AHEAD_DAYS => format!("ends in {days} days"),
        Some(_) | None => branch.status.name().to_owned(),
    };
    let name = branch.branch.map_or_else(|| "unknown".to_owned(), |number| number.to_string());
    vec![name, grouped(branch.nodes), ends, status]
}

fn rma_row(gpu: &GpuRecord) -> Vec<String> {
    let is_for_replacement = |finding: &&FindingRecord| finding.action == Action::DrainAndReplace;
    let mut evidence: Vec<String> = Vec::new();
    for finding in gpu.findings.iter().filter(is_for_replacement) {
        let name = with_detail(&finding.code, &finding.detail);
        let state = if finding.open { "open" } else { "cleared" };
        let (first, last) = (minute(finding.first_seen), minute(finding.last_seen));
        let times = match finding.count {
            0 | 1 => format!("at {last}"),
            count => format!("{} times from {first} to {last}", grouped(count)),
        };
        evidence.push(format!("{name}, {state}, {times}: {}", finding.text));
        let shown = finding.evidence.len().saturating_sub(EVIDENCE_MAX);
        let observations = finding.evidence.iter().skip(shown);
        evidence.extend(observations.map(|seen| evidence_text(seen, &finding.text)));
    }
    if let Some(test) = gpu.failed_tests.last() {
        let (level, at) = (test.level, minute(test.at));
        evidence.push(format!("{} failed {level} at {at}: {}", test.node, test.evidence));
    }
    let node = gpu.nodes.last().map(ToString::to_string).unwrap_or_default();
    vec![or_unknown(gpu.serial.as_ref()), gpu.uuid.0.clone(), node, evidence.join("; ")]
}

/// Hours without decimals.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "hours are positive")]
fn whole(number: f64) -> String {
    grouped(number.round() as u64)
}
