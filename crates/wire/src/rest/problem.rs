//! Why something was not answered or not done, after RFC 9457, with what to do about it.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::shape::{Shape, Shapes};

/// A problem. Served as `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Its kind: `urn:farrier:problem:` and a word.
    #[serde(rename = "type")]
    pub kind: String,
    /// The kind in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What is wrong here.
    pub detail: String,
    /// What to do.
    pub hint: String,
}

impl Problem {
    /// Its media type.
    pub const MEDIA_TYPE: &'static str = "application/problem+json";
}

impl Shape for Problem {
    const NAME: Option<&'static str> = Some("Problem");

    fn shape(_: &mut Shapes) -> Value {
        let text = json!({ "type": "string" });
        json!({
            "type": "object", "required": ["type", "title", "status", "detail", "hint"],
            "description": "Why something was not answered or not done, and what to do about it.",
            "properties": {
                "type": text, "title": text, "detail": text, "hint": text,
                "status": { "type": "integer", "minimum": 400, "maximum": 599 },
            },
        })
    }
}
