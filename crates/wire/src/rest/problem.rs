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
    /// The type as text.
    pub title: String,
    pub status: u16,
    /// The cause of this problem.
    pub detail: String,
    pub hint: String,
    /// Stable code of the hint. Other clients can use it to show their own text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint_code: Option<HintCode>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HintCode {
    ListNodes,
    ListTokens,
    /// See whether a repair waits for approval.
    SeeApproval,
    /// Hold the node and drain it.
    HoldAndDrain,
    HoldOrWait,
    ListArtifacts,
    /// Wait until the requested order is done.
    WaitForOrder,
    ListDomains,
    ListMutes,
    /// See which groups of alerts and which receivers there are.
    ShowNotifications,
    EnrolAgain,
    /// See the API reference.
    ReadReference,
    /// A code from a newer server.
    #[serde(other)]
    Unknown,
}

impl HintCode {
    /// The hint for HTTP clients.
    pub fn text(self) -> &'static str {
        match self {
            Self::ListNodes => "GET /api/v1/nodes lists the nodes in your scope",
            Self::ListTokens => "GET /api/v1/tokens lists the tokens in your scope",
            Self::SeeApproval => {
                "GET the node: `waits_for_approval` is true while a repair needs approval"
            }
            Self::HoldAndDrain => {
                "hold the node first with POST `hold`, and wait until it is drained"
            }
            Self::HoldOrWait => {
                "hold the node first with POST `hold`, or wait until a finding affects its service"
            }
            Self::ListArtifacts => "GET the node's `artifacts` lists the stored artifacts",
            Self::WaitForOrder => "wait until the order is done; GET the node returns its result",
            Self::ListDomains => "GET /api/v1/domains lists the domains in your scope",
            Self::ListMutes => "GET /api/v1/mutes lists the mutes in your scope",
            Self::ShowNotifications => {
                "GET /api/v1/notifications lists groups, GET /api/v1/policy lists receivers"
            }
            Self::EnrolAgain => "enrol the node again with a join token for this node",
            Self::ReadReference => "see GET /api/v1/openapi.json for the expected request",
            Self::Unknown => "",
        }
    }
}

impl Problem {
    pub const MEDIA_TYPE: &'static str = "application/problem+json";
}

impl Schema for Problem {
    const NAME: Option<&'static str> = Some("Problem");

    fn schema(_: &mut Schemas) -> Value {
        let text = json!({ "type": "string" });
        json!({
            "type": "object", "required": ["type", "title", "status", "detail", "hint"],
            "description": "Why a request failed, with a hint.",
            "properties": {
                "type": text, "title": text, "detail": text, "hint": text, "hint_code": text,
                "status": { "type": "integer", "minimum": 400, "maximum": 599 },
            },
        })
    }
}
