//! Parses JSON, and refuses text that parsers interpret differently.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Parses JSON. Refuses duplicate keys, because parsers treat them differently.
pub fn parse(bytes: &[u8]) -> Result<Value, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = Strict.deserialize(&mut reader)?;
    reader.end()?;
    Ok(value)
}

struct Strict;

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("a number is not finite"))?;
        Ok(Value::Number(number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(Self)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let (mut values, mut keys) = (Map::new(), BTreeSet::new());
        while let Some(key) = fields.next_key::<String>()? {
            if !keys.insert(key.clone()) {
                let shown: String = key.chars().take(64).collect();
                return Err(A::Error::custom(format!("duplicate key `{shown}`")));
            }
            let value = fields.next_value_seed(Self)?;
            values.insert(key, value);
        }
        Ok(Value::Object(values))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn duplicate_keys_are_refused_at_every_depth() {
        for text in [
            r#"{"a":1,"a":1}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"[{"b":{"a":null,"c":[],"a":{}}}]"#,
            r#"{"x":[[{"a":1,"b":2,"a":3}]]}"#,
        ] {
            let err = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(err.starts_with("duplicate key `a`"), "{text}: {err}");
        }
        assert!(parse(br#"{"a":{"a":1},"b":{"a":1}} x"#).is_err(), "trailing characters");
    }

    proptest! {
        #[test]
        fn json_without_duplicate_keys_parses_as_usual(text in "[\\[\\]{}:,\"a-c0-9.e-]{0,40}") {
            if let Ok(value) = parse(text.as_bytes()) {
                prop_assert_eq!(value, serde_json::from_str::<Value>(&text).unwrap());
            }
        }
    }
}
