//! Problem details of failed requests (RFC 9457), with a hint.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::schema::{Schema, Schemas};

/// A problem, served as `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Type URI: `urn:farrier:problem:` and a word.
    #[serde(rename = "type")]
    pub kind: String,
    /// The type in words.
    pub title: String,
    pub status: u16,
    /// What is wrong in this case.
    pub detail: String,
    pub hint: String,
    /// Stable code of the hint, so that another client can use its own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint_code: Option<HintCode>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HintCode {
    ListNodes,
    ListTokens,
    /// See what the node waits for.
    SeeApproval,
    /// Hold the node, and drain it.
    HoldAndDrain,
    HoldOrWait,
    ListArtifacts,
    /// Wait until the requested order is done.
    WaitForOrder,
    ListDomains,
    EnrolAgain,
    /// See the API reference.
    ReadReference,
    /// A code of a newer server.
    #[serde(other)]
    Unknown,
}

impl HintCode {
    /// Text for HTTP clients.
    pub fn text(self) -> &'static str {
        match self {
            Self::ListNodes => "GET /api/v1/nodes lists those that you see",
            Self::ListTokens => "GET /api/v1/tokens lists those that you see",
            Self::SeeApproval => "GET the node: `waits_for_approval` says when there is something",
            Self::HoldAndDrain => "hold it first: POST `hold`, and let what runs there end",
            Self::HoldOrWait => {
                "hold it first: POST `hold`, or wait until something speaks against it"
            }
            Self::ListArtifacts => "GET the node's `artifacts` lists those that are there",
            Self::WaitForOrder => "wait until it is; GET the node says what came of it",
            Self::ListDomains => "GET /api/v1/domains lists those that you see",
            Self::EnrolAgain => "enrol it again, with a token for that node",
            Self::ReadReference => "GET /api/v1/openapi.json says what is expected",
            Self::Unknown => "",
        }
    }
}

impl Problem {
    pub const MEDIA_TYPE: &'static str = "application/problem+json";
}

impl Schema for Problem {
    const NAME: Option<&'static str> = Some("Problem");

    fn shape(_: &mut Schemas) -> Value {
        let text = json!({ "type": "string" });
        json!({
            "type": "object", "required": ["type", "title", "status", "detail", "hint"],
            "description": "Rationale something was not answered or not done, and what to do about it.",
            "properties": {
                "type": text, "title": text, "detail": text, "hint": text, "hint_code": text,
                "status": { "type": "integer", "minimum": 400, "maximum": 599 },
            },
        })
    }
}
