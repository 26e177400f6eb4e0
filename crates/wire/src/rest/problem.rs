//! Why something was not answered or not done, after RFC 9457, with what to do about it.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::schema::{Schema, Schemas};

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
    /// What to do, by a stable code: another client says it in its own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint_code: Option<HintCode>,
}

/// What to do about a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HintCode {
    /// List the nodes.
    ListNodes,
    /// List the tokens.
    ListTokens,
    /// Look at what the node waits for.
    SeeApproval,
    /// Hold the node, and let its work end.
    HoldAndDrain,
    /// Hold the node, or wait for a finding.
    HoldOrWait,
    /// List what the node has sent.
    ListArtifacts,
    /// Wait until what was asked for is done.
    WaitForOrder,
    /// List the domains.
    ListDomains,
    /// Enrol the node again.
    EnrolAgain,
    /// Read what is expected.
    ReadReference,
    /// A code of a newer server.
    #[serde(other)]
    Unknown,
}

impl HintCode {
    /// For those who speak HTTP.
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
    /// Its media type.
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
