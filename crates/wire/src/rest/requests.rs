//! Request bodies, tokens, artifacts and the caller's identity.

use farrier_facts::tune::Profiles;
use farrier_fleet::fleet::identity::Unit;
use farrier_fleet::fleet::{Domain, Location, NodeId, Pool, Role, Tenant, VerificationLevel};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::schema::{Schema, Schemas, view};
use crate::hidden::{HIDDEN_CLASS, is_hidden};

/// Text for other people, such as a reason. It has up to 1,000 visible characters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BoundedText(String);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected 1 to {} characters, without control or invisible characters", BoundedText::MAX)]
pub struct BoundedTextError;

impl BoundedText {
    /// Maximum characters.
    pub const MAX: usize = 1000;

    pub fn into_text(self) -> String {
        self.0
    }
}

impl TryFrom<String> for BoundedText {
    type Error = BoundedTextError;

    fn try_from(text: String) -> Result<Self, BoundedTextError> {
        let is_valid = (1..=Self::MAX).contains(&text.chars().count()) && !text.contains(is_hidden);
        is_valid.then_some(Self(text)).ok_or(BoundedTextError)
    }
}

impl From<BoundedText> for String {
    fn from(text: BoundedText) -> Self {
        text.0
    }
}

impl Schema for BoundedText {
    fn schema(_: &mut Schemas) -> Value {
        json!({
            "type": "string", "minLength": 1, "maxLength": Self::MAX,
            "pattern": format!("^[^{HIDDEN_CLASS}]*$"),
        })
    }
}

/// A number from `MIN` to `MAX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct RangedU32<const MIN: u32, const MAX: u32>(u32);

impl<const MIN: u32, const MAX: u32> TryFrom<u32> for RangedU32<MIN, MAX> {
    type Error = String;

    fn try_from(number: u32) -> Result<Self, String> {
        let invalid = || format!("expected a number from {MIN} to {MAX}, found {number}");
        (MIN..=MAX).contains(&number).then_some(Self(number)).ok_or_else(invalid)
    }
}

impl<const MIN: u32, const MAX: u32> From<RangedU32<MIN, MAX>> for u32 {
    fn from(number: RangedU32<MIN, MAX>) -> Self {
        number.0
    }
}

impl<const MIN: u32, const MAX: u32> Schema for RangedU32<MIN, MAX> {
    fn schema(_: &mut Schemas) -> Value {
        json!({ "type": "integer", "minimum": MIN, "maximum": MAX })
    }
}

/// Name of a built-in profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ProfileName(String);

impl ProfileName {
    pub fn into_text(self) -> String {
        self.0
    }
}

impl TryFrom<String> for ProfileName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let names: Vec<&str> =
            Profiles::embedded().iter().map(|profile| profile.name.as_str()).collect();
        let invalid = || format!("expected one of {}, found `{name}`", names.join(", "));
        names.contains(&name.as_str()).then(|| Self(name.clone())).ok_or_else(invalid)
    }
}

impl From<ProfileName> for String {
    fn from(name: ProfileName) -> Self {
        name.0
    }
}

impl Schema for ProfileName {
    fn schema(_: &mut Schemas) -> Value {
        let names: Vec<&str> =
            Profiles::embedded().iter().map(|profile| profile.name.as_str()).collect();
        json!({ "type": "string", "enum": names })
    }
}

view! { strict
    /// An empty request.
    EmptyRequest {}
}

view! { strict
    /// Keeps a node out of service.
    HoldRequest {
        reason: BoundedText,
    }
}

view! { strict
    /// Reports a manual repair. The node may then be verified.
    RepairedRequest {
        /// What was done.
        repair: BoundedText,
    }
}

view! { strict
    /// Verifies a node now.
    VerifyRequest {
        level: VerificationLevel,
    }
}

view! { strict
    /// Tests a node's GPUs under load.
    DiagRequest {
        /// Diag level.
        level: RangedU32<1, 3>,
        /// Duration of the load in level 3.
        minutes: RangedU32<1, 1440>,
    }
}

view! { strict
    /// Applies a settings profile to a node.
    TuneRequest {
        /// The profile, such as `training`.
        profile: ProfileName,
    }
}

view! { strict
    /// Removes a node from the fleet permanently.
    RetireRequest {
        reason: BoundedText,
    }
}

view! { strict
    /// The complete location and owner of a node. Omitted fields become unknown.
    LocationRequest {
        pool: Pool,
        tenant: Option<Tenant>,
        site: Option<Unit>,
        rack: Option<Unit>,
        leaf: Option<Unit>,
        nvlink: Option<Unit>,
        spine: Option<Unit>,
        row: Option<Unit>,
        pdu: Option<Unit>,
    }
}

view! { strict
    /// Stops repair and tuning orders in a domain for a time.
    FreezeRequest {
        domain: Domain,
        /// Duration in seconds. Give either this or `until`.
        duration_s: Option<RangedU32<1, 31_536_000>>,
        /// End, by the server's clock. It must be in the future and within a year. Give either this
        /// or `duration_s`.
        until: Option<Timestamp>,
        reason: BoundedText,
    }
}

view! { strict
    /// Ends a freeze.
    UnfreezeRequest {
        domain: Domain,
    }
}

view! { strict
    /// Says that the fault of a failure domain is repaired.
    DomainRepairedRequest {
        domain: Domain,
        /// What was repaired.
        repair: BoundedText,
    }
}

view! { lenient
    /// Result of a request.
    Done {
        /// False if the state was already as requested.
        changed: bool,
    }
}

view! { strict
    /// Creates a join token.
    TokenRequest {
        /// The pool that the nodes join.
        pool: Pool,
        /// The only node that may use the token, even if it enrolled before.
        node: Option<NodeId>,
        /// Tenant of the nodes. Only a caller with the whole fleet as scope may set this and the
        /// location.
        tenant: Option<Tenant>,
        /// Site of the nodes.
        site: Option<Unit>,
        /// Rack of the nodes.
        rack: Option<Unit>,
        /// Leaf switch of the nodes.
        leaf: Option<Unit>,
        /// NVLink domain of the nodes.
        nvlink: Option<Unit>,
        /// Spine switch of the nodes.
        spine: Option<Unit>,
        /// Row of the nodes.
        row: Option<Unit>,
        /// Power distribution unit of the nodes.
        pdu: Option<Unit>,
        /// How many nodes may use the token; one by default.
        uses: Option<RangedU32<1, 100_000>>,
        /// Lifetime in seconds; an hour by default, at most a year.
        expires_s: Option<RangedU32<1, 31_536_000>>,
    }
}

view! { lenient
    /// A join token. It is shown only once.
    TokenCreated {
        id: i64,
        token: String,
        /// The pool that the nodes join.
        pool: Pool,
        expires: Timestamp,
        /// How many nodes may use the token.
        uses: u32,
        /// Fingerprint of the certificate authority. Nodes verify it when they enrol.
        ca_fingerprint: String,
    }
}

view! { lenient
    /// A join token without its secret.
    TokenRow {
        id: i64,
        pool: String,
        /// Location of the nodes that join with the token; null if the token sets only the pool.
        location: Option<Location>,
        /// The only node that may use the token.
        node: Option<String>,
        expires: Timestamp,
        /// How many more times the token may be used.
        uses_left: u32,
        /// `open`, `used`, `expired` or `revoked`.
        state: String,
    }
}

view! { lenient
    /// Join tokens.
    TokenList {
        tokens: Vec<TokenRow>,
    }
}

view! { lenient
    /// A file that a node uploaded for an order.
    ArtifactRow {
        /// Generation of the order.
        generation: u64,
        /// Code of the order.
        order: String,
        /// When the server received the file.
        at: Timestamp,
        bytes: u64,
        /// SHA-256, in hexadecimal.
        sha256: String,
    }
}

view! { lenient
    /// Files that a node uploaded for orders.
    ArtifactList {
        /// The files, newest first.
        artifacts: Vec<ArtifactRow>,
    }
}

view! { lenient
    /// The caller.
    Me {
        /// Name of the user.
        name: String,
        /// Role of the user.
        role: Role,
        scope: Domain,
        /// When the token expires.
        expires: Timestamp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_bounded_and_visible() {
        let is_valid = |text: &str| serde_json::from_value::<BoundedText>(json!(text)).is_ok();
        assert!(is_valid("a cable, \u{e9}") && is_valid(&"a".repeat(1000)));
        for invalid in ["", "a\nb", "\x1b[2J", "\u{85}", &"a".repeat(1001)] {
            assert!(!is_valid(invalid), "{invalid:?}");
        }
    }
}
