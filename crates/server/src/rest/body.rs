//! The body of a request: read strictly, and read on where the answer did not need it.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use serde::Serialize;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor,
};
use serde_json::{Map, Number, Value};

use super::failure::Failure;

/// How much of a body is read after the answer was given.
const DRAIN_BYTES_MAX: usize = 8 << 20;
/// And for how long.
const DRAIN_WAIT: Duration = Duration::from_secs(10);

/// Reads what is left of a body and throws it away. Over HTTP/2 a body that is dropped resets the stream, and clients that still send lose the
/// answer with it.
pub(super) async fn drain(mut body: Incoming) {
    let drained = async {
        let mut left = DRAIN_BYTES_MAX;
        while let Some(Ok(frame)) = body.frame().await {
            let Some(rest) = left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) else {
                return;
            };
            left = rest;
        }
    };
    let _ = tokio::time::timeout(DRAIN_WAIT, drained).await;
}

/// Reads a body: fields have their names, each once, and no others.
pub(super) fn body_of<T: DeserializeOwned + Serialize>(bytes: &[u8]) -> Result<T, Failure> {
    let wrong = |err| Failure::wrong(format!("the body: {err}"));
    let given = strict(bytes).map_err(wrong)?;
    let read: T = T::deserialize(&given).map_err(wrong)?;
    let meant = serde_json::to_value(&read).map_err(wrong)?;
    if !has_fields(&given, &meant) {
        return Err(Failure::wrong("the body: a list stands where fields have names"));
    }
    Ok(read)
}

/// Whether fields have their names: serde would take them from a list by their order, too.
fn has_fields(given: &Value, meant: &Value) -> bool {
    match (given, meant) {
        (Value::Array(_), Value::Object(_)) => false,
        (Value::Object(given), Value::Object(meant)) => {
            given.iter().all(|(name, it)| meant.get(name).is_none_or(|meant| has_fields(it, meant)))
        }
        _ => true,
    }
}

/// JSON in which no object has a key twice: which of the two counts is not the same everywhere.
fn strict(bytes: &[u8]) -> Result<Value, serde_json::Error> {
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
        let number = Number::from_f64(value).ok_or_else(|| E::custom("a number is none"))?;
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
        let (mut values, mut seen) = (Map::new(), BTreeSet::new());
        while let Some(key) = fields.next_key::<String>()? {
            if !seen.insert(key.clone()) {
                let shown: String = key.chars().take(64).collect();
                return Err(A::Error::custom(format!("the key `{shown}` stands there twice")));
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
    fn a_key_is_there_once_at_every_depth() {
        for twice in [
            r#"{"a":1,"a":1}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"[{"b":{"a":null,"c":[],"a":{}}}]"#,
            r#"{"x":[[{"a":1,"b":2,"a":3}]]}"#,
        ] {
            let err = strict(twice.as_bytes()).unwrap_err().to_string();
            assert!(err.starts_with("the key `a` stands there twice"), "{twice}: {err}");
        }
        assert!(strict(br#"{"a":{"a":1},"b":{"a":1}} x"#).is_err(), "something comes after it");
    }

    proptest! {
        #[test]
        fn whatever_has_each_key_once_reads_as_it_did(text in "[\\[\\]{}:,\"a-c0-9.e-]{0,40}") {
            if let Ok(value) = strict(text.as_bytes()) {
                prop_assert_eq!(value, serde_json::from_str::<Value>(&text).unwrap());
            }
        }
    }
}
