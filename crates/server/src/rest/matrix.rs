//! GPU × driver × CUDA × framework, with how long each is looked after and what it is exposed to. What nobody knows is a row too.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use farrier_facts::FactSet;
use farrier_facts::check::{NoticeCode, Query, Report, Request, Verdict, check};
use farrier_facts::version::DriverVersion;
use farrier_fleet::fleet::Node;
use farrier_wire::rest::{Exposure, Matrix, MatrixRow, Support};
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use super::failure::Failure;
use super::nodes::count;
use super::reply::Reply;
use super::{Call, walk};

/// What GPUs of a row have in common.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    gpu: Option<String>,
    driver: Option<String>,
    cuda: Option<String>,
    frameworks: Vec<String>,
}

/// One node's part; none: nobody knows its GPUs.
fn part(node: &Node) -> Option<BTreeMap<Key, u32>> {
    let makeup = node.makeup.as_ref()?;
    let mut parts: BTreeMap<Key, u32> = BTreeMap::new();
    for gpu in makeup.gpus.as_ref()? {
        let key = Key {
            gpu: gpu.name.clone(),
            driver: makeup.driver.clone(),
            cuda: makeup.cuda.clone(),
            frameworks: makeup
                .frameworks
                .iter()
                .map(|(name, it)| format!("{name}=={it}"))
                .collect(),
        };
        *parts.entry(key).or_default() += 1;
    }
    Some(parts)
}

pub(super) async fn matrix(call: Call) -> Result<Reply, Failure> {
    let visit: walk::Visit<Option<BTreeMap<Key, u32>>> =
        Arc::new(|_, _, node, found| found.push(part(node)));
    let everything = (Bound::Unbounded, Bound::Unbounded);
    let most = usize::MAX - 1;
    let parts = walk::nodes(&call.site.brain, call.caller()?, everything, most, visit).await?;
    let unknown_nodes = count(parts.iter().filter(|it| it.is_none()).count());
    let mut rows: BTreeMap<Key, (u32, u32)> = BTreeMap::new();
    for (key, gpus) in parts.into_iter().flatten().flatten() {
        let (nodes, all) = rows.entry(key).or_default();
        *nodes += 1;
        *all += gpus;
    }
    let on = TimeZone::UTC.to_datetime(Timestamp::now()).date();
    let facts = &call.site.facts;
    let mut rows: Vec<MatrixRow> =
        rows.into_iter().map(|(key, counts)| row(facts, key, counts, on)).collect();
    rows.sort_by_key(|it| std::cmp::Reverse(it.gpus));
    let facts = facts.set.name.clone();
    Reply::json(&Matrix { on: on.to_string(), rows, unknown_nodes, facts })
}

fn row(facts: &FactSet, key: Key, (nodes, gpus): (u32, u32), on: Date) -> MatrixRow {
    let reports = judge(facts, &key, on);
    let first = reports.first();
    let verdict = reports.iter().map(|it| it.verdict).max();
    let against = |report: &&Report| report.verdict > Verdict::Ok;
    let mut reasons: Vec<String> = reports
        .iter()
        .filter(against)
        .flat_map(|it| &it.reasons)
        .filter(|it| it.verdict > Verdict::Ok)
        .map(|it| it.text.clone())
        .collect();
    reasons.sort();
    reasons.dedup();
    let driver: Option<DriverVersion> = key.driver.as_deref().and_then(|it| it.parse().ok());
    MatrixRow {
        sku: first.map(|it| it.subject.gpu.clone()),
        support: driver.as_ref().and_then(|it| support(facts, it, on)),
        exposure: first.map(exposure),
        verdict: verdict.map_or("unknown", Verdict::name).to_owned(),
        reasons,
        gpu: key.gpu,
        driver: key.driver,
        cuda: key.cuda,
        frameworks: key.frameworks,
        nodes,
        gpus,
    }
}

/// GPU and driver, and with them each framework that the facts know.
fn judge(facts: &FactSet, key: &Key, on: Date) -> Vec<Report> {
    let (Some(gpu), Some(driver)) = (&key.gpu, &key.driver) else { return Vec::new() };
    let asked = |framework: Option<String>| {
        let request =
            Request { gpu: gpu.clone(), driver: driver.clone(), framework, ..Request::default() };
        Query::read(facts, &request, on).ok().map(|query| check(facts, &query))
    };
    let each = key.frameworks.iter().filter_map(|it| asked(Some(it.clone())));
    asked(None).into_iter().chain(each).collect()
}

fn support(facts: &FactSet, driver: &DriverVersion, on: Date) -> Option<Support> {
    let branch = facts.drivers.branch(driver.branch())?;
    let status = serde_json::to_value(branch.support(on)).ok()?;
    Some(Support {
        branch: branch.branch.to_string(),
        status: status.as_str()?.to_owned(),
        end: branch.end_of_support.map(|it| it.to_string()),
    })
}

fn exposure(report: &Report) -> Exposure {
    let exposed = || report.notices.iter().filter(|it| it.code == NoticeCode::Exposed);
    let score = |score: Option<f64>| score.unwrap_or_default();
    let worst = exposed().max_by(|a, b| score(a.score).total_cmp(&score(b.score)));
    let unknown = report.notices.iter().find(|it| it.code == NoticeCode::ExposureUnknown);
    Exposure {
        advisories: count(exposed().count()),
        worst: worst.and_then(|it| {
            let id = it.id.as_deref()?;
            Some(format!("{id} ({} {})", score(it.score), it.level.unwrap_or_default()))
        }),
        fixed_in: exposed().filter_map(|it| it.fixed.as_ref()).max().map(ToString::to_string),
        unknown: unknown.map(|it| it.text.clone()),
    }
}
