//! Plans the shards and their order. Pure.

use serde::{Deserialize, Serialize};

use super::shard::{MemorySpec, Spec, StepsSpec};

/// A model and the shape of its batch. The text form is, for example, `191m@1x512`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shape {
    pub(crate) model: String,
    pub(crate) rows: u32,
    pub(crate) length: u32,
}

/// The requested benchmark.
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

/// The part of the plan under memory caps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MemoryPlan {
    pub(crate) model: String,
    pub(crate) caps_gib: Vec<f64>,
    pub(crate) variants: Vec<String>,
    pub(crate) seeds: u32,
    pub(crate) steps: u32,
}

/// Selects shards. A field that is `None` selects all shards.
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
    /// Whether the shard is selected.
    pub(crate) fn matches(&self, spec: &Spec) -> bool {
        match spec {
            Spec::Steps(steps) => {
                let same = |shape: &Shape| {
                    (&shape.model, shape.rows, shape.length)
                        == (&steps.model, steps.rows, steps.length)
                };
                !self.no_steps
                    && self.shapes.as_ref().is_none_or(|all| all.iter().any(same))
                    && self.variants.as_ref().is_none_or(|all| all.contains(&steps.variant))
                    && self.repeats.is_none_or(|repeats| steps.repeat < repeats)
            }
            Spec::Memory(memory) => {
                let cap = |cap: &f64| (cap - memory.cap_gib).abs() < 5e-4;
                !self.no_memory
                    && self.memory_model.as_ref().is_none_or(|model| *model == memory.model)
                    && self.caps_gib.as_ref().is_none_or(|all| all.iter().any(cap))
                    && self.memory_variants.as_ref().is_none_or(|all| all.contains(&memory.variant))
                    && self.seeds.is_none_or(|seeds| memory.seed < seeds)
            }
        }
    }

    /// Describes a requested name that no existing shard has. `None` if there is no such name.
    pub(crate) fn missing(&self, existing: &[Spec]) -> Option<String> {
        let names = |all: &Option<Vec<String>>| all.clone().unwrap_or_default();
        let shapes = self.shapes.iter().flatten();
        let shapes = shapes
            .map(|shape| format!("{}@{}x{}", shape.model, shape.rows, shape.length))
            .collect();
        let caps = self.caps_gib.iter().flatten().map(f64::to_string).collect();
        let requested = [
            ("models", shapes),
            ("variants", names(&self.variants)),
            ("memory-model", self.memory_model.clone().into_iter().collect()),
            ("caps", caps),
            ("memory-variants", names(&self.memory_variants)),
        ];
        for (flag, names) in requested {
            // In the planned order, without duplicates.
            let mut available: Vec<String> = Vec::new();
            for name in existing.iter().filter_map(|spec| name_for_flag(spec, flag)) {
                if !available.contains(&name) {
                    available.push(name);
                }
            }
            let unknown = |name: &String| !available.contains(name);
            if let Some(name) = names.into_iter().find(unknown) {
                let available =
                    if available.is_empty() { "none".to_owned() } else { available.join(", ") };
                return Some(format!("--{flag} {name}; available: {available}"));
            }
        }
        (!existing.is_empty() && !existing.iter().any(|spec| self.matches(spec)))
            .then(|| "this combination of filters".to_owned())
    }
}

/// The value with which a filter flag selects this shard. `None` if the flag does not apply to the
/// shard.
fn name_for_flag(spec: &Spec, flag: &str) -> Option<String> {
    match (spec, flag) {
        (Spec::Steps(steps), "models") => {
            Some(format!("{}@{}x{}", steps.model, steps.rows, steps.length))
        }
        (Spec::Steps(steps), "variants") => Some(steps.variant.clone()),
        (Spec::Memory(memory), "memory-model") => Some(memory.model.clone()),
        (Spec::Memory(memory), "caps") => Some(memory.cap_gib.to_string()),
        (Spec::Memory(memory), "memory-variants") => Some(memory.variant.clone()),
        _ => None,
    }
}

/// Parses `191m@1x512`.
pub(crate) fn parse_shape(text: &str) -> Result<Shape, String> {
    let parse = || {
        let (model, batch) = text.split_once('@')?;
        let (rows, length) = batch.split_once('x')?;
        let size = |text: &str| text.parse().ok().filter(|&size: &u32| size > 0);
        Some(Shape { model: parse_name(model).ok()?, rows: size(rows)?, length: size(length)? })
    };
    parse().ok_or_else(|| "expected MODEL@ROWSxLENGTH such as 191m@1x512".to_owned())
}

/// Parses a name that is safe in a file name.
pub(crate) fn parse_name(text: &str) -> Result<String, String> {
    let allowed = |letter: u8| letter.is_ascii_alphanumeric() || b"-.".contains(&letter);
    if !text.is_empty() && text.bytes().all(allowed) && !text.starts_with(['.', '-']) {
        Ok(text.to_owned())
    } else {
        Err("expected a name of letters, digits, `-` and `.`".to_owned())
    }
}

impl Plan {
    /// All shards, ordered by rounds. If the machine is slow for a while, all variants are
    /// therefore affected. Each round starts with another variant, so that no variant always runs
    /// on a cool GPU.
    pub(crate) fn shards(&self) -> Vec<Spec> {
        let seeds = self.memory.as_ref().map_or(0, |memory| memory.seeds);
        let mut shards = Vec::new();
        for round in 0..self.repeats.max(seeds) {
            if round < self.repeats {
                for shape in &self.shapes {
                    shards.extend(
                        rotated(&self.variants, round)
                            .map(|variant| self.steps_shard(shape, variant, round)),
                    );
                }
            }
            if let Some(memory) = self.memory.as_ref().filter(|memory| round < memory.seeds) {
                for &cap_gib in &memory.caps_gib {
                    shards.extend(rotated(&memory.variants, round).map(|variant| {
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

/// All names, starting with another name in each round.
fn rotated(names: &[String], round: u32) -> impl Iterator<Item = &str> {
    let first = if names.is_empty() { 0 } else { round as usize % names.len() };
    names[first..].iter().chain(&names[..first]).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Plan {
            shapes: vec![parse_shape("191m@1x512").unwrap(), parse_shape("1.4b@4x2048").unwrap()],
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
    fn rounds_are_complete_and_rotate_the_variants() {
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
    fn a_filter_selects_shards() {
        let names = |filter: &Filter| -> Vec<String> {
            let shards = plan().shards();
            shards.iter().filter(|spec| filter.matches(spec)).map(Spec::name).collect()
        };
        assert_eq!(names(&Filter::default()).len(), 10, "no filter selects all");
        let filter = Filter {
            no_memory: true,
            shapes: Some(vec![parse_shape("191m@1x512").unwrap()]),
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
        for empty in [
            Filter { no_steps: true, caps_gib: Some(vec![26.0]), ..Filter::default() },
            Filter { no_steps: true, memory_model: Some("7b".to_owned()), ..Filter::default() },
        ] {
            assert!(names(&empty).is_empty(), "{empty:?}");
        }
    }

    #[test]
    fn a_name_without_a_match_lists_the_available_ones() {
        let existing = plan().shards();
        let missing = |filter: Filter| filter.missing(&existing);
        let list = |names: &[&str]| Some(names.iter().map(|&name| name.to_owned()).collect());
        assert_eq!(missing(Filter::default()), None);
        assert_eq!(missing(Filter { variants: list(&["ours"]), ..Filter::default() }), None);
        assert_eq!(
            missing(Filter { variants: list(&["ours", "ourz"]), ..Filter::default() }).unwrap(),
            "--variants ourz; available: eager, ours"
        );
        let shapes = Some(vec![parse_shape("191m@1x51").unwrap()]);
        assert_eq!(
            missing(Filter { shapes, ..Filter::default() }).unwrap(),
            "--models 191m@1x51; available: 191m@1x512, 1.4b@4x2048"
        );
        assert_eq!(
            missing(Filter { caps_gib: Some(vec![26.0]), ..Filter::default() }).unwrap(),
            "--caps 26; available: 30"
        );
        let both = Filter { no_steps: true, no_memory: true, ..Filter::default() };
        assert_eq!(missing(both).unwrap(), "this combination of filters");
        let none = Filter { variants: list(&["ours"]), ..Filter::default() };
        assert_eq!(none.missing(&[]).unwrap(), "--variants ours; available: none");
    }

    #[test]
    fn invalid_shapes_are_rejected() {
        for text in
            ["", "191m", "191m@", "191m@1", "191m@0x512", "a/b@1x2", "..@1x2", "@1x2", "m@1x-2"]
        {
            assert!(parse_shape(text).is_err(), "{text}");
        }
        let shape = parse_shape("7b-lora@1x2048").unwrap();
        assert_eq!((shape.model.as_str(), shape.rows, shape.length), ("7b-lora", 1, 2048));
    }
}
