//! Fields of a `config.json`: found under one of several names, and within bounds.

use serde_json::{Map, Value};

use super::ConfigError;
use super::family::Family;

/// The fields of one model.
pub(super) struct Fields<'a> {
    pub(super) object: &'a Map<String, Value>,
    family: &'static Family,
    pub(super) assumed: Vec<String>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(object: &'a Map<String, Value>, family: &'static Family) -> Self {
        Self { object, family, assumed: Vec::new() }
    }

    /// A whole number within bounds, under the first of the names that is there; else what the
    /// family takes for it.
    pub(super) fn optional(
        &mut self,
        names: &[&'static str],
        least: u32,
        most: u32,
    ) -> Result<Option<u32>, ConfigError> {
        for name in names {
            if let Some(value) = present(self.object, name) {
                return whole(name, value, least, most).map(Some);
            }
        }
        let default = self.family.defaults.iter().find(|(name, _)| names.contains(name));
        Ok(default.map(|(name, number)| {
            let note = format!("`{name}` {number}, as the family has it");
            if !self.assumed.contains(&note) {
                self.assumed.push(note);
            }
            *number
        }))
    }

    /// Likewise, where nothing can be done without it.
    pub(super) fn required(
        &mut self,
        names: &'static [&'static str],
        least: u32,
        most: u32,
    ) -> Result<u32, ConfigError> {
        self.optional(names, least, most)?
            .ok_or(ConfigError::Missing { field: names[0], others: &names[1..] })
    }

    /// A whole number, at least 1, of an object within.
    pub(super) fn within(
        &self,
        object: &str,
        name: &str,
        most: u32,
    ) -> Result<Option<u32>, ConfigError> {
        let inner = self.object.get(object).and_then(Value::as_object);
        inner
            .and_then(|inner| present(inner, name))
            .map(|value| whole(name, value, 1, most))
            .transpose()
    }

    /// Whether an object within says yes.
    pub(super) fn flag_within(&self, object: &str, name: &str) -> bool {
        let inner = self.object.get(object).and_then(|inner| inner.get(name));
        inner.and_then(Value::as_bool).unwrap_or(false)
    }

    /// A yes or no.
    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>, ConfigError> {
        let Some(value) = present(self.object, name) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| unfit(name, value, "`true` or `false`".to_owned()))
    }

    /// How many different blocks a list names.
    pub(super) fn listed(&self, name: &str, layers: u32) -> Result<u32, ConfigError> {
        let Some(value) = present(self.object, name) else { return Ok(0) };
        let possible = || format!("a list of blocks, 0 to {}", layers - 1);
        let list = value.as_array().ok_or_else(|| unfit(name, value, possible()))?;
        let mut blocks = Vec::with_capacity(list.len());
        for block in list {
            let within = block.as_u64().filter(|block| *block < u64::from(layers));
            blocks.push(within.ok_or_else(|| unfit(name, block, possible()))?);
        }
        blocks.sort_unstable();
        blocks.dedup();
        Ok(u32::try_from(blocks.len()).unwrap_or(layers))
    }

    /// Of each block whether it sees all, where the file lists them.
    pub(super) fn layer_types(&self, layers: u32) -> Result<Option<Vec<bool>>, ConfigError> {
        let Some(value) = present(self.object, "layer_types") else { return Ok(None) };
        let possible = || "a list of `full_attention` and `sliding_attention`".to_owned();
        let list = value.as_array().ok_or_else(|| unfit("layer_types", value, possible()))?;
        if list.len() != layers as usize {
            let possible = format!("one of each of the {layers} blocks");
            let value = Value::from(format!("a list of {}", list.len()));
            return Err(unfit("layer_types", &value, possible));
        }
        let mut global = Vec::with_capacity(list.len());
        for kind in list {
            global.push(match kind.as_str() {
                Some("full_attention") => true,
                Some("sliding_attention" | "chunked_attention") => false,
                _ => return Err(unfit("layer_types", kind, possible())),
            });
        }
        Ok(Some(global))
    }
}

/// A text, if there is one.
pub(super) fn text<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    object.get(name).and_then(Value::as_str)
}

/// A foreign text, fit to be shown.
pub(super) fn shown(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(100).collect()
}

fn present<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    object.get(name).filter(|value| !value.is_null())
}

fn unfit(field: &str, value: &Value, possible: String) -> ConfigError {
    let mut written = shown(&value.to_string());
    if written.chars().count() > 40 {
        written = written.chars().take(40).chain("...".chars()).collect();
    }
    ConfigError::Unfit { field: field.to_owned(), value: written, possible }
}

fn whole(name: &str, value: &Value, least: u32, most: u32) -> Result<u32, ConfigError> {
    let number = value.as_f64().filter(|number| number.fract() == 0.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within bounds")]
    number
        .filter(|number| (f64::from(least)..=f64::from(most)).contains(number))
        .map(|number| number as u32)
        .ok_or_else(|| unfit(name, value, format!("a whole number from {least} to {most}")))
}
