//! The report, independent of the output format. Pure.

use std::collections::{BTreeMap, BTreeSet};

use farrier_facts::gpu::GpuFacts;
use serde::Serialize;

use super::aggregate::{self, CapComparison, Rates, VariantComparison};
use super::plan::{Filter, Plan};
use super::shard::{Machine, Shard, ShardResult, Spec};

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct BenchReport {
    /// Version of the JSON document.
    pub(crate) farrier_bench_train: u32,
    /// Start of the first and the last shard.
    pub(crate) began: Option<[String; 2]>,
    /// The distinct values that the shards have. The same applies to the next three fields. If
    /// there is more than one GPU, torch, build, driver or processor, the figures cannot be
    /// compared.
    pub(crate) gpus: Vec<String>,
    pub(crate) torch: Vec<String>,
    pub(crate) builds: Vec<ShardCount>,
    pub(crate) machines: Vec<Machine>,
    /// Boot ids of the hosts on which shards ran.
    pub(crate) hosts: Vec<ShardCount>,
    /// Rounds whose variants did not all run on the same host. Their ratios compare different
    /// hosts.
    pub(crate) rounds_on_several_hosts: Vec<String>,
    pub(crate) peak: Option<Peak>,
    pub(crate) price_per_hour_usd: Option<f64>,
    pub(crate) steps: Vec<VariantComparison>,
    pub(crate) memory: Vec<CapComparison>,
    pub(crate) failed: Vec<FailedShard>,
    pub(crate) shards_done: usize,
    /// Number of shards in all known plans. `None` without a plan.
    pub(crate) shards_planned: Option<usize>,
    /// Number of planned shards that have not run. `None` without a plan.
    pub(crate) shards_left: Option<usize>,
    /// The commands that ran the shards, without their directory.
    pub(crate) commands: Vec<String>,
}

/// A value, and the number of shards that have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct ShardCount {
    pub(crate) name: String,
    pub(crate) shards: usize,
}

#[derive(Debug, Default)]
pub(crate) struct ReportOptions {
    /// The plan of this command; `None` with `--merge-only`.
    pub(crate) plan: Option<Plan>,
    pub(crate) filter: Filter,
    pub(crate) price_per_hour_usd: Option<f64>,
}

/// The peak that MFU is relative to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Peak {
    pub(crate) gpu: String,
    /// Dense, in bfloat16.
    pub(crate) tflops: f64,
    /// Whether no source confirms the value.
    pub(crate) unverified: bool,
    pub(crate) sources: Vec<String>,
}

/// A shard without a result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct FailedShard {
    pub(crate) name: String,
    pub(crate) what: String,
    pub(crate) why: String,
    pub(crate) stderr: Vec<String>,
}

impl BenchReport {
    /// Creates the report from `shards`, which the caller has filtered.
    pub(crate) fn from_shards(shards: &[Shard], gpus: &GpuFacts, options: &ReportOptions) -> Self {
        let distinct = |field: &dyn Fn(&Shard) -> Option<String>| -> Vec<String> {
            shards.iter().filter_map(field).collect::<BTreeSet<_>>().into_iter().collect()
        };
        let names = distinct(&|shard| gpu_and_torch(shard).0);
        let peak = match &names[..] {
            [name] => peak(gpus, name),
            _ => None,
        };
        let price_per_hour_usd = options.price_per_hour_usd;
        let rates = Rates {
            peak_flops: peak.as_ref().map(|peak| peak.tflops * 1e12),
            price_per_hour: price_per_hour_usd,
        };
        let began = distinct(&|shard| shard.began.clone());
        let machines: BTreeSet<Machine> =
            shards.iter().filter_map(|shard| shard.machine.clone()).collect();
        let planned = planned(shards, options);
        let ran: BTreeSet<&str> = shards.iter().map(|shard| shard.name.as_str()).collect();
        let left = |all: &BTreeMap<String, Spec>| {
            all.keys().filter(|name| !ran.contains(name.as_str())).count()
        };
        let mut report = Self {
            farrier_bench_train: 3,
            began: began.first().zip(began.last()).map(|(a, b)| [a.clone(), b.clone()]),
            torch: distinct(&|shard| gpu_and_torch(shard).1),
            builds: shard_counts(shards.iter().filter_map(build)),
            gpus: names,
            machines: machines.into_iter().collect(),
            hosts: shard_counts(shards.iter().filter_map(host)),
            rounds_on_several_hosts: rounds_on_several_hosts(shards),
            peak,
            price_per_hour_usd,
            steps: aggregate::comparisons(shards, rates),
            memory: aggregate::caps(shards),
            failed: shards.iter().filter_map(failed_shard).collect(),
            shards_done: shards.iter().filter(|shard| shard.result.is_ok()).count(),
            shards_planned: planned.as_ref().map(BTreeMap::len),
            shards_left: planned.as_ref().map(left),
            commands: distinct(&|shard| shard.command.as_deref().map(without_directory)),
        };
        if let Some(planned) = planned {
            report.count_planned(&planned);
        }
        report
    }

    /// Sets the planned number of repeats and seeds.
    fn count_planned(&mut self, planned: &BTreeMap<String, Spec>) {
        for comparison in &mut self.steps {
            let repeat = |spec: &Spec| match spec {
                Spec::Steps(steps)
                    if (&steps.model, steps.rows, steps.length)
                        == (&comparison.model, comparison.rows, comparison.length) =>
                {
                    Some(steps.repeat)
                }
                _ => None,
            };
            let repeats: BTreeSet<u32> = planned.values().filter_map(repeat).collect();
            comparison.repeats_planned = Some(repeats.len());
        }
        for comparison in &mut self.memory {
            let seed = |spec: &Spec| match spec {
                Spec::Memory(memory)
                    if memory.model == comparison.model
                        && (memory.cap_gib - comparison.cap_gib).abs() < 5e-4 =>
                {
                    Some(memory.seed)
                }
                _ => None,
            };
            let seeds: BTreeSet<u32> = planned.values().filter_map(seed).collect();
            comparison.seeds_planned = Some(seeds.len());
        }
    }

    /// Why the figures cannot be compared with each other.
    pub(crate) fn incomparable(&self) -> Option<String> {
        let several = |what: &str, names: &[String]| {
            (names.len() > 1).then(|| format!("{what} {}", names.join(" and ")))
        };
        let distinct = |field: &dyn Fn(&Machine) -> Option<String>| -> Vec<String> {
            let all: BTreeSet<String> = self
                .machines
                .iter()
                .map(|machine| field(machine).unwrap_or_else(|| "unknown".to_owned()))
                .collect();
            all.into_iter().collect()
        };
        let differences: Vec<String> = [
            several("GPUs", &self.gpus),
            several("torch", &self.torch),
            several("drivers", &distinct(&|machine| machine.driver.clone())),
            several("processors", &distinct(&|machine| machine.processor.clone())),
            several("farrier builds", &self.builds.iter().map(describe_count).collect::<Vec<_>>()),
        ]
        .into_iter()
        .flatten()
        .collect();
        (!differences.is_empty())
            .then(|| format!("the shards differ in {}", differences.join("; ")))
    }

    /// A warning if the shards ran on several hosts.
    pub(crate) fn hosts_differ(&self) -> Option<String> {
        if self.hosts.len() < 2 {
            return None;
        }
        let hosts: Vec<String> = self.hosts.iter().map(describe_count).collect();
        let rounds = match &self.rounds_on_several_hosts[..] {
            [] => "each round ran in one boot, so no ratio compares two boots".to_owned(),
            several => {
                format!("the ratios of these rounds compare two boots: {}", several.join("; "))
            }
        };
        Some(format!(
            "the shards ran in {} boots of one or more hosts ({}); {rounds}",
            hosts.len(),
            hosts.join(", ")
        ))
    }
}

/// Replaces the directory in the command line by `DIR`, because the path has no meaning on another
/// machine.
fn without_directory(command: &str) -> String {
    let mut args: Vec<&str> = command.split(' ').collect();
    for index in 0..args.len() {
        if args[index].starts_with("--dir=") {
            args[index] = "--dir=DIR";
        } else if index > 0 && args[index - 1] == "--dir" {
            args[index] = "DIR";
        }
    }
    args.join(" ")
}

/// `0.1.0 (28 shards)`.
fn describe_count(count: &ShardCount) -> String {
    format!("{} ({} shard{})", count.name, count.shards, if count.shards == 1 { "" } else { "s" })
}

fn shard_counts(names: impl Iterator<Item = String>) -> Vec<ShardCount> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for name in names {
        *counts.entry(name).or_default() += 1;
    }
    counts.into_iter().map(|(name, shards)| ShardCount { name, shards }).collect()
}

/// All selected shards that are in a plan: the plan of this command, or the plan of a command that
/// ran some of the shards.
fn planned(shards: &[Shard], options: &ReportOptions) -> Option<BTreeMap<String, Spec>> {
    let mut plans: Vec<&Plan> = Vec::new();
    for plan in shards.iter().filter_map(|shard| shard.plan.as_ref()).chain(&options.plan) {
        if !plans.contains(&plan) {
            plans.push(plan);
        }
    }
    if plans.is_empty() {
        return None;
    }
    // Files from before plans were stored have only a spec. Their shards count as planned.
    let known = shards.iter().filter_map(|shard| shard.spec.clone());
    let all = plans.into_iter().flat_map(Plan::shards).chain(known);
    let selected = all.filter(|spec| options.filter.matches(spec));
    Some(selected.map(|spec| (spec.name(), spec)).collect())
}

/// The binary and the Python package with which a successful shard ran.
fn build(shard: &Shard) -> Option<String> {
    let package = match shard.result.as_ref().ok()? {
        ShardResult::Steps(steps) => &steps.farrier,
        ShardResult::Memory(memory) => &memory.farrier,
    };
    Some(match (&shard.farrier, package) {
        (None, None) => "unknown".to_owned(),
        (binary, package) => {
            let or_unknown =
                |version: &Option<String>| version.clone().unwrap_or_else(|| "unknown".to_owned());
            format!("{}, package {}", or_unknown(binary), or_unknown(package))
        }
    })
}

fn host(shard: &Shard) -> Option<String> {
    let machine = shard.machine.as_ref()?;
    Some(machine.boot.clone().unwrap_or_else(|| "unknown".to_owned()))
}

fn rounds_on_several_hosts(shards: &[Shard]) -> Vec<String> {
    let mut rounds: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for shard in shards.iter().filter(|shard| shard.result.is_ok()) {
        if let (Some(Spec::Steps(steps)), Some(host)) = (&shard.spec, host(shard)) {
            let round = format!(
                "{} at {} x {}, repeat {}",
                steps.model, steps.rows, steps.length, steps.repeat
            );
            rounds.entry(round).or_default().insert(host);
        }
    }
    rounds.into_iter().filter(|(_, hosts)| hosts.len() > 1).map(|(round, _)| round).collect()
}

fn gpu_and_torch(shard: &Shard) -> (Option<String>, Option<String>) {
    match &shard.result {
        Ok(ShardResult::Steps(steps)) => (Some(steps.gpu.clone()), Some(steps.torch.clone())),
        Ok(ShardResult::Memory(memory)) => (Some(memory.gpu.clone()), Some(memory.torch.clone())),
        Err(_) => (None, None),
    }
}

fn peak(gpus: &GpuFacts, name: &str) -> Option<Peak> {
    let gpu = gpus.by_name(name)?.gpu;
    let compute = gpu.compute.as_ref()?;
    Some(Peak {
        gpu: gpu.id.clone(),
        tflops: compute.fp16_tflops?,
        unverified: gpu.unverified.iter().any(|field| field == "compute.fp16_tflops"),
        sources: compute.origin.source.clone(),
    })
}

fn failed_shard(shard: &Shard) -> Option<FailedShard> {
    let failure = shard.result.as_ref().err()?;
    Some(FailedShard {
        name: shard.name.clone(),
        what: shard.spec.as_ref().map_or_else(|| "unknown measurement".to_owned(), Spec::title),
        why: failure.why.clone(),
        stderr: failure.stderr.clone(),
    })
}
