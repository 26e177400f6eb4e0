//! Which shards there are, and in what order. Pure.

use serde::{Deserialize, Serialize};

use super::shard::{MemorySpec, Spec, StepsSpec};

/// A model and the shape of its batch, as `191m@1x512`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shape {
    pub(crate) model: String,
    pub(crate) rows: u32,
    pub(crate) length: u32,
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plan {
    pub(crate) shapes: Vec<Shape>,
    pub(crate) variants: Vec<String>,
    pub(crate) repeats: u32,
    pub(crate) warmups: u32,
    pub(crate) groups: u32,
    pub(crate) steps: u32,
    pub(crate) memory: Option<MemoryPlan>,
}

/// The part of the plan under a cap of memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MemoryPlan {
    pub(crate) model: String,
    pub(crate) caps_gib: Vec<f64>,
    pub(crate) variants: Vec<String>,
    pub(crate) seeds: u32,
    pub(crate) steps: u32,
}

/// Of which shards figures are wanted; what is absent was not asked for, and all of it is.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Filter {
    pub(crate) no_steps: bool,
    pub(crate) no_memory: bool,
    pub(crate) shapes: Option<Vec<Shape>>,
    pub(crate) variants: Option<Vec<String>>,
    pub(crate) repeats: Option<u32>,
    pub(crate) memory_model: Option<String>,
    pub(crate) caps_gib: Option<Vec<f64>>,
    pub(crate) memory_variants: Option<Vec<String>>,
    pub(crate) seeds: Option<u32>,
}

impl Filter {
    /// Whether the shard is wanted.
    pub(crate) fn keeps(&self, spec: &Spec) -> bool {
        match spec {
            Spec::Steps(it) => {
                let of = |shape: &Shape| {
                    (&shape.model, shape.rows, shape.length) == (&it.model, it.rows, it.length)
                };
                !self.no_steps
                    && self.shapes.as_ref().is_none_or(|all| all.iter().any(of))
                    && self.variants.as_ref().is_none_or(|all| all.contains(&it.variant))
                    && self.repeats.is_none_or(|repeats| it.repeat < repeats)
            }
            Spec::Memory(it) => {
                let cap = |cap: &f64| (cap - it.cap_gib).abs() < 5e-4;
                !self.no_memory
                    && self.memory_model.as_ref().is_none_or(|model| *model == it.model)
                    && self.caps_gib.as_ref().is_none_or(|all| all.iter().any(cap))
                    && self.memory_variants.as_ref().is_none_or(|all| all.contains(&it.variant))
                    && self.seeds.is_none_or(|seeds| it.seed < seeds)
            }
        }
    }

    /// What was asked for by name and is not among what there is, in words; none where there is some of everything.
    pub(crate) fn missing(&self, held: &[Spec]) -> Option<String> {
        let names = |all: &Option<Vec<String>>| all.clone().unwrap_or_default();
        let shapes = self.shapes.iter().flatten();
        let shapes = shapes.map(|it| format!("{}@{}x{}", it.model, it.rows, it.length)).collect();
        let caps = self.caps_gib.iter().flatten().map(f64::to_string).collect();
        let asked = [
            ("models", shapes),
            ("variants", names(&self.variants)),
            ("memory-model", self.memory_model.clone().into_iter().collect()),
            ("caps", caps),
            ("memory-variants", names(&self.memory_variants)),
        ];
        for (flag, asked) in asked {
            // In the order in which they were planned, each once.
            let mut there: Vec<String> = Vec::new();
            for name in held.iter().filter_map(|it| name_under(it, flag)) {
                if !there.contains(&name) {
                    there.push(name);
                }
            }
            let unknown = |name: &String| !there.contains(name);
            if let Some(name) = asked.into_iter().find(unknown) {
                let there =
                    if there.is_empty() { "nothing like it".to_owned() } else { there.join(", ") };
                return Some(format!("--{flag} {name}, but of {there}"));
            }
        }
        (!held.is_empty() && !held.iter().any(|it| self.keeps(it)))
            .then(|| "all that is asked for at once".to_owned())
    }
}

/// What a shard is called by a flag that names some; none where the flag is not of such shards.
fn name_under(spec: &Spec, flag: &str) -> Option<String> {
    match (spec, flag) {
        (Spec::Steps(it), "models") => Some(format!("{}@{}x{}", it.model, it.rows, it.length)),
        (Spec::Steps(it), "variants") => Some(it.variant.clone()),
        (Spec::Memory(it), "memory-model") => Some(it.model.clone()),
        (Spec::Memory(it), "caps") => Some(it.cap_gib.to_string()),
        (Spec::Memory(it), "memory-variants") => Some(it.variant.clone()),
        _ => None,
    }
}

/// Reads `191m@1x512`.
pub(crate) fn shape(text: &str) -> Result<Shape, String> {
    let read = || {
        let (model, batch) = text.split_once('@')?;
        let (rows, length) = batch.split_once('x')?;
        let size = |text: &str| text.parse().ok().filter(|&size: &u32| size > 0);
        Some(Shape { model: word(model).ok()?, rows: size(rows)?, length: size(length)? })
    };
    read().ok_or_else(|| "expected MODEL@ROWSxLENGTH such as 191m@1x512".to_owned())
}

/// Reads a name that can be part of a file's.
pub(crate) fn word(text: &str) -> Result<String, String> {
    let fine = |letter: u8| letter.is_ascii_alphanumeric() || b"-.".contains(&letter);
    if !text.is_empty() && text.bytes().all(fine) && !text.starts_with(['.', '-']) {
        Ok(text.to_owned())
    } else {
        Err("expected a name of letters, digits, `-` and `.`".to_owned())
    }
}

impl Plan {
    /// Every shard, a whole round before the next: a slow spell of the machine meets all variants. Each round begins
    /// with another variant, so that none always has the cool GPU.
    pub(crate) fn shards(&self) -> Vec<Spec> {
        let seeds = self.memory.as_ref().map_or(0, |memory| memory.seeds);
        let mut shards = Vec::new();
        for round in 0..self.repeats.max(seeds) {
            if round < self.repeats {
                for shape in &self.shapes {
                    shards.extend(
                        turned(&self.variants, round).map(|it| self.steps_shard(shape, it, round)),
                    );
                }
            }
            if let Some(memory) = self.memory.as_ref().filter(|memory| round < memory.seeds) {
                for &cap_gib in &memory.caps_gib {
                    shards.extend(turned(&memory.variants, round).map(|variant| {
                        Spec::Memory(MemorySpec {
                            model: memory.model.clone(),
                            variant: variant.to_owned(),
                            cap_gib,
                            seed: round,
                            steps: memory.steps,
                        })
                    }));
                }
            }
        }
        shards
    }

    fn steps_shard(&self, shape: &Shape, variant: &str, repeat: u32) -> Spec {
        Spec::Steps(StepsSpec {
            model: shape.model.clone(),
            variant: variant.to_owned(),
            rows: shape.rows,
            length: shape.length,
            repeat,
            warmups: self.warmups,
            groups: self.groups,
            steps: self.steps,
        })
    }
}

/// The names, beginning with another one each round.
fn turned(names: &[String], round: u32) -> impl Iterator<Item = &str> {
    let first = if names.is_empty() { 0 } else { round as usize % names.len() };
    names[first..].iter().chain(&names[..first]).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        let names = |names: &[&str]| names.iter().map(|&it| it.to_owned()).collect();
        Plan {
            shapes: vec![shape("191m@1x512").unwrap(), shape("1.4b@4x2048").unwrap()],
            variants: names(&["eager", "ours"]),
            repeats: 2,
            warmups: 1,
            groups: 1,
            steps: 1,
            memory: Some(MemoryPlan {
                model: "1.4b".to_owned(),
                caps_gib: vec![30.0],
                variants: names(&["default", "ours"]),
                seeds: 1,
                steps: 60,
            }),
        }
    }

    #[test]
    fn rounds_are_whole_and_begin_in_turn() {
        let names: Vec<String> = plan().shards().iter().map(Spec::name).collect();
        assert_eq!(
            names,
            [
                "191m_1x512_eager_0",
                "191m_1x512_ours_0",
                "1.4b_4x2048_eager_0",
                "1.4b_4x2048_ours_0",
                "memory_1.4b_30gib_default_0",
                "memory_1.4b_30gib_ours_0",
                "191m_1x512_ours_1",
                "191m_1x512_eager_1",
                "1.4b_4x2048_ours_1",
                "1.4b_4x2048_eager_1",
            ]
        );
    }

    #[test]
    fn a_filter_keeps_what_it_names() {
        let names = |filter: &Filter| -> Vec<String> {
            let shards = plan().shards();
            shards.iter().filter(|it| filter.keeps(it)).map(Spec::name).collect()
        };
        assert_eq!(names(&Filter::default()).len(), 10, "nothing was asked for: all of it");
        let filter = Filter {
            no_memory: true,
            shapes: Some(vec![shape("191m@1x512").unwrap()]),
            repeats: Some(1),
            ..Filter::default()
        };
        assert_eq!(names(&filter), ["191m_1x512_eager_0", "191m_1x512_ours_0"]);
        let ours = Some(vec!["ours".to_owned()]);
        let filter = Filter {
            variants: ours.clone(),
            memory_variants: ours,
            caps_gib: Some(vec![30.0]),
            seeds: Some(1),
            ..Filter::default()
        };
        assert_eq!(names(&filter).len(), 5, "ours: two shapes of two repeats, one seed");
        for none in [
            Filter { no_steps: true, caps_gib: Some(vec![26.0]), ..Filter::default() },
            Filter { no_steps: true, memory_model: Some("7b".to_owned()), ..Filter::default() },
        ] {
            assert!(names(&none).is_empty(), "{none:?}");
        }
    }

    #[test]
    fn a_name_that_is_of_nothing_is_told_with_what_there_is() {
        let held = plan().shards();
        let missing = |filter: Filter| filter.missing(&held);
        let words = |names: &[&str]| Some(names.iter().map(|&it| it.to_owned()).collect());
        assert_eq!(missing(Filter::default()), None);
        assert_eq!(missing(Filter { variants: words(&["ours"]), ..Filter::default() }), None);
        assert_eq!(
            missing(Filter { variants: words(&["ours", "ourz"]), ..Filter::default() }).unwrap(),
            "--variants ourz, but of eager, ours"
        );
        let shapes = Some(vec![shape("191m@1x51").unwrap()]);
        assert_eq!(
            missing(Filter { shapes, ..Filter::default() }).unwrap(),
            "--models 191m@1x51, but of 191m@1x512, 1.4b@4x2048"
        );
        assert_eq!(
            missing(Filter { caps_gib: Some(vec![26.0]), ..Filter::default() }).unwrap(),
            "--caps 26, but of 30"
        );
        let both = Filter { no_steps: true, no_memory: true, ..Filter::default() };
        assert_eq!(missing(both).unwrap(), "all that is asked for at once");
        let none = Filter { variants: words(&["ours"]), ..Filter::default() };
        assert_eq!(none.missing(&[]).unwrap(), "--variants ours, but of nothing like it");
    }

    #[test]
    fn shapes_that_are_none_are_refused() {
        for text in
            ["", "191m", "191m@", "191m@1", "191m@0x512", "a/b@1x2", "..@1x2", "@1x2", "m@1x-2"]
        {
            assert!(shape(text).is_err(), "{text}");
        }
        let shape = shape("7b-lora@1x2048").unwrap();
        assert_eq!((shape.model.as_str(), shape.rows, shape.length), ("7b-lora", 1, 2048));
    }
}
