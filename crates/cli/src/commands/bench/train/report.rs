//! Everything that is printed, whatever the form. Pure.

use std::collections::{BTreeMap, BTreeSet};

use farrier_facts::gpu::GpuFacts;
use serde::Serialize;

use super::numbers::{self, CapComparison, Comparison, Rates};
use super::plan::{Filter, Plan};
use super::shard::{Machine, Measured, Shard, Spec};

/// The whole measurement.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Report {
    /// The version of this form.
    pub(crate) farrier_bench_train: u32,
    /// When the first shard began, and the last.
    pub(crate) began: Option<[String; 2]>,
    /// Each distinct one among the shards; more than one makes the figures incomparable.
    pub(crate) gpus: Vec<String>,
    pub(crate) torch: Vec<String>,
    pub(crate) builds: Vec<Share>,
    pub(crate) machines: Vec<Machine>,
    /// Starts of hosts on which shards ran.
    pub(crate) hosts: Vec<Share>,
    /// Rounds of which not all ran on one host: their ratios are of two.
    pub(crate) rounds_on_several_hosts: Vec<String>,
    pub(crate) peak: Option<Peak>,
    pub(crate) price_per_hour_usd: Option<f64>,
    pub(crate) steps: Vec<Comparison>,
    pub(crate) memory: Vec<CapComparison>,
    pub(crate) failed: Vec<Failed>,
    pub(crate) shards_done: usize,
    /// Shards of all plans that led here; absent where none is known.
    pub(crate) shards_planned: Option<usize>,
    /// Shards of the plans that have not run; absent likewise.
    pub(crate) shards_left: Option<usize>,
    /// The commands that measured, whatever the folder.
    pub(crate) commands: Vec<String>,
}

/// Of how many shards something holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Share {
    pub(crate) name: String,
    pub(crate) shards: usize,
}

/// What is asked of the shards.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// What this command was to measure, if anything.
    pub(crate) plan: Option<Plan>,
    /// Which shards are wanted.
    pub(crate) filter: Filter,
    pub(crate) price_per_hour_usd: Option<f64>,
}

/// What MFU is a share of.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Peak {
    pub(crate) gpu: String,
    /// Dense, in bfloat16.
    pub(crate) tflops: f64,
    /// No source confirms it.
    pub(crate) unverified: bool,
    pub(crate) sources: Vec<String>,
}

/// A shard without a measurement.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Failed {
    pub(crate) name: String,
    pub(crate) what: String,
    pub(crate) why: String,
    pub(crate) stderr: Vec<String>,
}

impl Report {
    /// Of the shards that there are, which are all wanted.
    pub(crate) fn of(shards: &[Shard], gpus: &GpuFacts, asked: &Asked) -> Self {
        let distinct = |of: &dyn Fn(&Shard) -> Option<String>| -> Vec<String> {
            shards.iter().filter_map(of).collect::<BTreeSet<_>>().into_iter().collect()
        };
        let names = distinct(&|it| gpu_and_torch(it).0);
        let peak = match &names[..] {
            [name] => peak(gpus, name),
            _ => None,
        };
        let price_per_hour_usd = asked.price_per_hour_usd;
        let rates = Rates {
            peak_flops: peak.as_ref().map(|peak| peak.tflops * 1e12),
            price_per_hour: price_per_hour_usd,
        };
        let began = distinct(&|it| it.began.clone());
        let machines: BTreeSet<Machine> =
            shards.iter().filter_map(|it| it.machine.clone()).collect();
        let planned = planned(shards, asked);
        let ran: BTreeSet<&str> = shards.iter().map(|it| it.name.as_str()).collect();
        let left = |all: &BTreeMap<String, Spec>| {
            all.keys().filter(|name| !ran.contains(name.as_str())).count()
        };
        let mut report = Self {
            farrier_bench_train: 3,
            began: began.first().zip(began.last()).map(|(a, b)| [a.clone(), b.clone()]),
            torch: distinct(&|it| gpu_and_torch(it).1),
            builds: shared(shards.iter().filter_map(build)),
            gpus: names,
            machines: machines.into_iter().collect(),
            hosts: shared(shards.iter().filter_map(host)),
            rounds_on_several_hosts: rounds_on_several_hosts(shards),
            peak,
            price_per_hour_usd,
            steps: numbers::comparisons(shards, rates),
            memory: numbers::caps(shards),
            failed: shards.iter().filter_map(failed).collect(),
            shards_done: shards.iter().filter(|it| it.result.is_ok()).count(),
            shards_planned: planned.as_ref().map(BTreeMap::len),
            shards_left: planned.as_ref().map(left),
            commands: distinct(&|it| it.command.as_deref().map(without_folder)),
        };
        if let Some(planned) = planned {
            report.count_planned(&planned);
        }
        report
    }

    /// How many repeats and seeds there are to be.
    fn count_planned(&mut self, planned: &BTreeMap<String, Spec>) {
        for found in &mut self.steps {
            let repeat = |spec: &Spec| match spec {
                Spec::Steps(it)
                    if (&it.model, it.rows, it.length)
                        == (&found.model, found.rows, found.length) =>
                {
                    Some(it.repeat)
                }
                _ => None,
            };
            let repeats: BTreeSet<u32> = planned.values().filter_map(repeat).collect();
            found.repeats_planned = Some(repeats.len());
        }
        for found in &mut self.memory {
            let seed = |spec: &Spec| match spec {
                Spec::Memory(it)
                    if it.model == found.model && (it.cap_gib - found.cap_gib).abs() < 5e-4 =>
                {
                    Some(it.seed)
                }
                _ => None,
            };
            let seeds: BTreeSet<u32> = planned.values().filter_map(seed).collect();
            found.seeds_planned = Some(seeds.len());
        }
    }

    /// Why the figures cannot be compared with each other.
    pub(crate) fn mixed(&self) -> Option<String> {
        let of = |what: &str, names: &[String]| {
            (names.len() > 1).then(|| format!("{what} {}", names.join(" and ")))
        };
        let of_machines = |of: &dyn Fn(&Machine) -> Option<String>| -> Vec<String> {
            let all: BTreeSet<String> = self
                .machines
                .iter()
                .map(|it| of(it).unwrap_or_else(|| "unknown".to_owned()))
                .collect();
            all.into_iter().collect()
        };
        let mixed: Vec<String> = [
            of("the GPUs", &self.gpus),
            of("torch", &self.torch),
            of("the drivers", &of_machines(&|it| it.driver.clone())),
            of("the processors", &of_machines(&|it| it.processor.clone())),
            of("the builds of farrier", &self.builds.iter().map(share).collect::<Vec<_>>()),
        ]
        .into_iter()
        .flatten()
        .collect();
        (!mixed.is_empty()).then(|| {
            format!(
                "the shards do not come from one machine and build, but from {}",
                mixed.join("; ")
            )
        })
    }

    /// What to know where the shards ran on several machines of one kind.
    pub(crate) fn hosts_differ(&self) -> Option<String> {
        if self.hosts.len() < 2 {
            return None;
        }
        let hosts: Vec<String> = self.hosts.iter().map(share).collect();
        let rounds = match &self.rounds_on_several_hosts[..] {
            [] => "each round ran on one of them, so no ratio is of two".to_owned(),
            several => format!(
                "not on one of them ran {}: those ratios are of two hosts",
                several.join("; ")
            ),
        };
        Some(format!(
            "the shards come from {} starts of hosts ({}); {rounds}",
            hosts.len(),
            hosts.join(", ")
        ))
    }
}

/// The command with `DIR` in the place of its folder, which is of no meaning elsewhere.
fn without_folder(command: &str) -> String {
    let mut words: Vec<&str> = command.split(' ').collect();
    for place in 0..words.len() {
        if words[place].starts_with("--dir=") {
            words[place] = "--dir=DIR";
        } else if place > 0 && words[place - 1] == "--dir" {
            words[place] = "DIR";
        }
    }
    words.join(" ")
}

/// `0.1.0 (28 shards)`.
fn share(of: &Share) -> String {
    format!("{} ({} shard{})", of.name, of.shards, if of.shards == 1 { "" } else { "s" })
}

fn shared(names: impl Iterator<Item = String>) -> Vec<Share> {
    let mut shares: BTreeMap<String, usize> = BTreeMap::new();
    for name in names {
        *shares.entry(name).or_default() += 1;
    }
    shares.into_iter().map(|(name, shards)| Share { name, shards }).collect()
}

/// All that was to be measured, as far as it is wanted: by this command, and by those whose shards there are.
fn planned(shards: &[Shard], asked: &Asked) -> Option<BTreeMap<String, Spec>> {
    let mut plans: Vec<&Plan> = Vec::new();
    for plan in shards.iter().filter_map(|it| it.plan.as_ref()).chain(&asked.plan) {
        if !plans.contains(&plan) {
            plans.push(plan);
        }
    }
    if plans.is_empty() {
        return None;
    }
    // Shards of before plans were kept belong to it, too.
    let known = shards.iter().filter_map(|it| it.spec.clone());
    let all = plans.into_iter().flat_map(Plan::shards).chain(known);
    Some(all.filter(|it| asked.filter.keeps(it)).map(|it| (it.name(), it)).collect())
}

/// The binary that ran a shard and the package that it ran, of one that measured.
fn build(shard: &Shard) -> Option<String> {
    let package = match shard.result.as_ref().ok()? {
        Measured::Steps(it) => &it.farrier,
        Measured::Memory(it) => &it.farrier,
    };
    Some(match (&shard.farrier, package) {
        (None, None) => "unknown".to_owned(),
        (binary, package) => {
            let or_unknown =
                |it: &Option<String>| it.clone().unwrap_or_else(|| "unknown".to_owned());
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
    for shard in shards.iter().filter(|it| it.result.is_ok()) {
        if let (Some(Spec::Steps(it)), Some(host)) = (&shard.spec, host(shard)) {
            let round =
                format!("{} at {} x {}, repeat {}", it.model, it.rows, it.length, it.repeat);
            rounds.entry(round).or_default().insert(host);
        }
    }
    rounds.into_iter().filter(|(_, hosts)| hosts.len() > 1).map(|(round, _)| round).collect()
}

fn gpu_and_torch(shard: &Shard) -> (Option<String>, Option<String>) {
    match &shard.result {
        Ok(Measured::Steps(it)) => (Some(it.gpu.clone()), Some(it.torch.clone())),
        Ok(Measured::Memory(it)) => (Some(it.gpu.clone()), Some(it.torch.clone())),
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

fn failed(shard: &Shard) -> Option<Failed> {
    let failure = shard.result.as_ref().err()?;
    Some(Failed {
        name: shard.name.clone(),
        what: shard
            .spec
            .as_ref()
            .map_or_else(|| "what it is of is unknown".to_owned(), Spec::title),
        why: failure.why.clone(),
        stderr: failure.stderr.clone(),
    })
}
