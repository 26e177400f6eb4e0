//! Everything that is printed, whatever the form. Pure.

use std::collections::BTreeSet;

use farrier_facts::gpu::GpuFacts;
use serde::Serialize;

use super::numbers::{self, CapComparison, Comparison, Rates};
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
    pub(crate) machines: Vec<Machine>,
    pub(crate) peak: Option<Peak>,
    pub(crate) price_per_hour_usd: Option<f64>,
    pub(crate) steps: Vec<Comparison>,
    pub(crate) memory: Vec<CapComparison>,
    pub(crate) failed: Vec<Failed>,
    pub(crate) shards_done: usize,
    /// Shards of the plan that have not run; absent where there was no plan.
    pub(crate) shards_left: Option<usize>,
    /// The commands that measured.
    pub(crate) commands: Vec<String>,
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
    /// Of the shards that there are.
    pub(crate) fn of(
        shards: &[Shard],
        gpus: &GpuFacts,
        price_per_hour_usd: Option<f64>,
        shards_left: Option<usize>,
    ) -> Self {
        let distinct = |of: &dyn Fn(&Shard) -> Option<String>| -> Vec<String> {
            shards.iter().filter_map(of).collect::<BTreeSet<_>>().into_iter().collect()
        };
        let names = distinct(&|it| gpu_and_torch(it).0);
        let peak = match &names[..] {
            [name] => peak(gpus, name),
            _ => None,
        };
        let rates = Rates {
            peak_flops: peak.as_ref().map(|peak| peak.tflops * 1e12),
            price_per_hour: price_per_hour_usd,
        };
        let began = distinct(&|it| it.began.clone());
        let machines: BTreeSet<Machine> =
            shards.iter().filter_map(|it| it.machine.clone()).collect();
        Self {
            farrier_bench_train: 1,
            began: began.first().zip(began.last()).map(|(a, b)| [a.clone(), b.clone()]),
            torch: distinct(&|it| gpu_and_torch(it).1),
            gpus: names,
            machines: machines.into_iter().collect(),
            peak,
            price_per_hour_usd,
            steps: numbers::comparisons(shards, rates),
            memory: numbers::caps(shards),
            failed: shards.iter().filter_map(failed).collect(),
            shards_done: shards.iter().filter(|it| it.result.is_ok()).count(),
            shards_left,
            commands: distinct(&|it| it.command.clone()),
        }
    }

    /// Why the figures cannot be compared with each other.
    pub(crate) fn mixed(&self) -> Option<String> {
        let of = |what: &str, names: &[String]| {
            (names.len() > 1).then(|| format!("{what} {}", names.join(" and ")))
        };
        let drivers: BTreeSet<String> = self
            .machines
            .iter()
            .map(|it| it.driver.clone().unwrap_or_else(|| "unknown".to_owned()))
            .collect();
        let drivers: Vec<String> = drivers.into_iter().collect();
        let processors: BTreeSet<String> =
            self.machines.iter().filter_map(|it| it.processor.clone()).collect();
        let processors: Vec<String> = processors.into_iter().collect();
        let mixed: Vec<String> = [
            of("the GPUs", &self.gpus),
            of("torch", &self.torch),
            of("the drivers", &drivers),
            of("the processors", &processors),
        ]
        .into_iter()
        .flatten()
        .collect();
        (!mixed.is_empty()).then(|| {
            format!("the shards do not come from one machine, but from {}", mixed.join("; "))
        })
    }
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
