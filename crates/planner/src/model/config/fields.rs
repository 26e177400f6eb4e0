//! Field access in a `config.json`: several accepted names, and range checks.

use serde_json::{Map, Value};

use super::ModelConfigError;
use super::family::ModelFamily;

pub(super) struct Fields<'a> {
    pub(super) object: &'a Map<String, Value>,
    family: &'static ModelFamily,
    pub(super) assumed: Vec<String>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(object: &'a Map<String, Value>, family: &'static ModelFamily) -> Self {
        Self { object, family, assumed: Vec::new() }
    }

    /// An integer within bounds, under the first name that is present, or else the family's
    /// default.
    pub(super) fn optional(
        &mut self,
        names: &[&'static str],
        min: u32,
        max: u32,
    ) -> Result<Option<u32>, ModelConfigError> {
        for name in names {
            if let Some(value) = present(self.object, name) {
                return integer(name, value, min, max).map(Some);
            }
        }
        let default = self.family.defaults.iter().find(|(name, _)| names.contains(name));
        Ok(default.map(|(name, number)| {
            let note = format!("`{name}` {number}, the family's default");
            if !self.assumed.contains(&note) {
                self.assumed.push(note);
            }
            *number
        }))
    }

    /// Like [`Self::optional`], but missing is an error.
    pub(super) fn required(
        &mut self,
        names: &'static [&'static str],
        min: u32,
        max: u32,
    ) -> Result<u32, ModelConfigError> {
        self.optional(names, min, max)?
            .ok_or(ModelConfigError::Missing { field: names[0], others: &names[1..] })
    }

    /// An integer of at least 1 in a nested object.
    pub(super) fn nested(
        &self,
        object: &str,
        name: &str,
        max: u32,
    ) -> Result<Option<u32>, ModelConfigError> {
        let inner = self.object.get(object).and_then(Value::as_object);
        inner
            .and_then(|inner| present(inner, name))
            .map(|value| integer(name, value, 1, max))
            .transpose()
    }

    /// A boolean in a nested object; `false` if missing.
    pub(super) fn nested_flag(&self, object: &str, name: &str) -> bool {
        let inner = self.object.get(object).and_then(|inner| inner.get(name));
        inner.and_then(Value::as_bool).unwrap_or(false)
    }

    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>, ModelConfigError> {
        let Some(value) = present(self.object, name) else { return Ok(None) };
        value
            .as_bool()
            .map(Some)
            .ok_or_else(|| invalid_field(name, value, "`true` or `false`".to_owned()))
    }

    /// Number of distinct layers in a list of layer indices.
    pub(super) fn count_listed(&self, name: &str, layers: u32) -> Result<u32, ModelConfigError> {
        let Some(value) = present(self.object, name) else { return Ok(0) };
        let expected = || format!("a list of layer indices, 0 to {}", layers - 1);
        let list = value.as_array().ok_or_else(|| invalid_field(name, value, expected()))?;
        let mut blocks = Vec::with_capacity(list.len());
        for block in list {
            let within = block.as_u64().filter(|block| *block < u64::from(layers));
            blocks.push(within.ok_or_else(|| invalid_field(name, block, expected()))?);
        }
        blocks.sort_unstable();
        blocks.dedup();
        Ok(u32::try_from(blocks.len()).unwrap_or(layers))
    }

    /// For each layer, whether it has full attention. `None` if the file does not list the layer
    /// types.
    pub(super) fn layer_types(&self, layers: u32) -> Result<Option<Vec<bool>>, ModelConfigError> {
        let Some(value) = present(self.object, "layer_types") else { return Ok(None) };
        let expected = || "a list of `full_attention` and `sliding_attention`".to_owned();
        let list =
            value.as_array().ok_or_else(|| invalid_field("layer_types", value, expected()))?;
        if list.len() != layers as usize {
            let expected = format!("one entry for each of the {layers} layers");
            let value = Value::from(format!("a list of {}", list.len()));
            return Err(invalid_field("layer_types", &value, expected));
        }
        let mut global = Vec::with_capacity(list.len());
        for kind in list {
            global.push(match kind.as_str() {
                Some("full_attention") => true,
                Some("sliding_attention" | "chunked_attention") => false,
                _ => return Err(invalid_field("layer_types", kind, expected())),
            });
        }
        Ok(Some(global))
    }
}

pub(super) fn text<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    object.get(name).and_then(Value::as_str)
}

/// Untrusted text without control characters, truncated to 100 characters.
pub(super) fn sanitized(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(100).collect()
}

fn present<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    object.get(name).filter(|value| !value.is_null())
}

fn invalid_field(field: &str, value: &Value, expected: String) -> ModelConfigError {
    let mut value = sanitized(&value.to_string());
    if value.chars().count() > 40 {
        value = value.chars().take(40).chain("...".chars()).collect();
    }
    ModelConfigError::InvalidField { field: field.to_owned(), value, expected }
}

fn integer(name: &str, value: &Value, min: u32, max: u32) -> Result<u32, ModelConfigError> {
    let number = value.as_f64().filter(|number| number.fract() == 0.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within bounds")]
    number
        .filter(|number| (f64::from(min)..=f64::from(max)).contains(number))
        .map(|number| number as u32)
        .ok_or_else(|| invalid_field(name, value, format!("an integer from {min} to {max}")))
}
