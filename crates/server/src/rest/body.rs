//! Request bodies. Parses bodies strictly, and drains bodies that were not read.

use std::time::Duration;

use farrier_wire::strict_json;
use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::failure::Failure;

const DRAIN_BYTES_MAX: usize = 8 << 20;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads and discards the rest of a body. Dropping the body would reset an HTTP/2 stream, and a
/// client that is still sending would lose the answer.
pub(super) async fn drain(mut body: Incoming) {
    let drained = async {
        let mut remaining = DRAIN_BYTES_MAX;
        while let Some(Ok(frame)) = body.frame().await {
            let Some(rest) = remaining.checked_sub(frame.data_ref().map_or(0, Bytes::len)) else {
                return;
            };
            remaining = rest;
        }
    };
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, drained).await;
}

/// Parses a body strictly: structs have to be objects, and each field may appear only once. Unknown
/// fields are an error.
pub(super) fn parse_body<T: DeserializeOwned + Serialize>(bytes: &[u8]) -> Result<T, Failure> {
    let wrong = |err| Failure::bad_request(format!("the body: {err}"));
    let input = strict_json::parse(bytes).map_err(wrong)?;
    let read: T = T::deserialize(&input).map_err(wrong)?;
    let canonical = serde_json::to_value(&read).map_err(wrong)?;
    if !has_fields(&input, &canonical) {
        return Err(Failure::bad_request("the body: expected an object, found a list"));
    }
    Ok(read)
}

/// Whether structs are given as objects. serde would also accept arrays that have the values in the
/// order of the fields.
fn has_fields(input: &Value, canonical: &Value) -> bool {
    match (input, canonical) {
        (Value::Array(_), Value::Object(_)) => false,
        (Value::Object(input), Value::Object(canonical)) => input.iter().all(|(name, value)| {
            canonical.get(name).is_none_or(|canonical| has_fields(value, canonical))
        }),
        _ => true,
    }
}
