//! Canonical JSON (OLPC), the encoding that TUF signs: keys in order, no white space, no floats,
//! and in strings only `"` and `\` escaped.
//!
//! Equal values have equal bytes, so that a hash of the bytes identifies the value.

use serde::Serialize;
use serde_json::Value;

/// The value has no canonical encoding.
#[derive(Debug, thiserror::Error)]
pub enum CanonicalError {
    #[error("failed to convert the value to JSON")]
    Json(#[source] serde_json::Error),
    #[error("canonical JSON has no number `{0}`; expected an integer")]
    NotAnInteger(serde_json::Number),
}

/// Encodes a value.
pub fn to_vec(value: &impl Serialize) -> Result<Vec<u8>, CanonicalError> {
    encode(&serde_json::to_value(value).map_err(CanonicalError::Json)?)
}

/// Encodes a JSON value.
pub fn encode(value: &Value) -> Result<Vec<u8>, CanonicalError> {
    let mut out = Vec::new();
    write(value, &mut out)?;
    Ok(out)
}

fn write(value: &Value, out: &mut Vec<u8>) -> Result<(), CanonicalError> {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(number) if number.is_f64() => {
            return Err(CanonicalError::NotAnInteger(number.clone()));
        }
        Value::Number(number) => out.extend_from_slice(number.to_string().as_bytes()),
        Value::String(text) => write_text(text, out),
        Value::Array(values) => {
            out.push(b'[');
            for (index, value) in values.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write(value, out)?;
            }
            out.push(b']');
        }
        Value::Object(fields) => {
            let mut fields: Vec<(&String, &Value)> = fields.iter().collect();
            fields.sort_unstable_by_key(|(key, _)| *key);
            out.push(b'{');
            for (index, (key, value)) in fields.into_iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_text(key, out);
                out.push(b':');
                write(value, out)?;
            }
            out.push(b'}');
        }
    }
    Ok(())
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    for byte in text.bytes() {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(byte);
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn text(value: &Value) -> String {
        String::from_utf8(encode(value).unwrap()).unwrap()
    }

    #[test]
    fn keys_are_sorted_and_strings_escape_two_characters() {
        let value = json!({"b": [1, -2, true, null], "a": "q\"\\\n\u{e9}", "A": {}});
        assert_eq!(text(&value), "{\"A\":{},\"a\":\"q\\\"\\\\\n\u{e9}\",\"b\":[1,-2,true,null]}");
        assert_eq!(text(&json!(u64::MAX)), "18446744073709551615");
    }

    #[test]
    fn floats_have_no_encoding() {
        let err = encode(&json!({"a": 1.5})).unwrap_err();
        assert!(matches!(err, CanonicalError::NotAnInteger(_)));
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            // Without control characters, canonical JSON is JSON.
            "[ -~\u{e9}\u{1f600}]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-z\"\\\\]{0,3}", inner, 0..4)
                    .prop_map(|map| map.into_iter().rev().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn canonical_json_is_json_and_encodes_to_itself(value in any_value()) {
            let bytes = encode(&value).unwrap();
            let parsed: Value = serde_json::from_slice(&bytes).unwrap();
            prop_assert_eq!(&parsed, &value);
            prop_assert_eq!(encode(&parsed).unwrap(), bytes);
        }
    }
}
