//! What people ask for, and who they are.

use farrier_facts::tune::Profiles;
use farrier_fleet::fleet::identity::Unit;
use farrier_fleet::fleet::{Domain, Location, NodeId, Pool, Role, Tenant, VerificationLevel};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::schema::{Schema, Schemas, view};
use crate::hidden::{HIDDEN_CLASS, is_hidden};

/// Some words for other people, such as a reason: up to 1,000 characters, all of which show.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BoundedText(String);

/// Why a text is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected 1 to {} characters, none of them a control character or one that does not show",
    BoundedText::MAX
)]
pub struct BoundedTextError;

impl BoundedText {
    /// The most characters.
    pub const MAX: usize = 1000;

    pub fn into_text(self) -> String {
        self.0
    }
}

impl TryFrom<String> for BoundedText {
    type Error = BoundedTextError;

    fn try_from(text: String) -> Result<Self, BoundedTextError> {
        let is_good = (1..=Self::MAX).contains(&text.chars().count()) && !text.contains(is_hidden);
        is_good.then_some(Self(text)).ok_or(BoundedTextError)
    }
}

impl From<BoundedText> for String {
    fn from(words: BoundedText) -> Self {
        words.0
    }
}

impl Schema for BoundedText {
    fn shape(_: &mut Schemas) -> Value {
        json!({
            "type": "string", "minLength": 1, "maxLength": Self::MAX,
            "pattern": format!("^[^{HIDDEN_CLASS}]*$"),
        })
    }
}

/// A number from `LEAST` to `MOST`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct RangedU32<const LEAST: u32, const MOST: u32>(u32);

impl<const LEAST: u32, const MOST: u32> TryFrom<u32> for RangedU32<LEAST, MOST> {
    type Error = String;

    fn try_from(number: u32) -> Result<Self, String> {
        let wrong = || format!("expected a number from {LEAST} to {MOST}, found {number}");
        (LEAST..=MOST).contains(&number).then_some(Self(number)).ok_or_else(wrong)
    }
}

impl<const LEAST: u32, const MOST: u32> From<RangedU32<LEAST, MOST>> for u32 {
    fn from(number: RangedU32<LEAST, MOST>) -> Self {
        number.0
    }
}

impl<const LEAST: u32, const MOST: u32> Schema for RangedU32<LEAST, MOST> {
    fn shape(_: &mut Schemas) -> Value {
        json!({ "type": "integer", "minimum": LEAST, "maximum": MOST })
    }
}

/// The name of a profile that comes with farrier.
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
        let known: Vec<&str> = Profiles::embedded().iter().map(|it| it.name.as_str()).collect();
        let wrong = || format!("expected one of {}, found `{name}`", known.join(", "));
        known.contains(&name.as_str()).then(|| Self(name.clone())).ok_or_else(wrong)
    }
}

impl From<ProfileName> for String {
    fn from(name: ProfileName) -> Self {
        name.0
    }
}

impl Schema for ProfileName {
    fn shape(_: &mut Schemas) -> Value {
        let known: Vec<&str> = Profiles::embedded().iter().map(|it| it.name.as_str()).collect();
        json!({ "type": "string", "enum": known })
    }
}

view! { strict
    /// Nothing has to be said.
    EmptyRequest {}
}

view! { strict
    /// Hold a node out of service.
    HoldRequest {
        reason: BoundedText,
    }
}

view! { strict
    /// A node was repaired by hand, and may be proven.
    RepairedRequest {
        /// What was done.
        repair: BoundedText,
    }
}

view! { strict
    /// Prove a node now.
    VerifyRequest {
        level: VerificationLevel,
    }
}

view! { strict
    /// Test a node's GPUs with work.
    DiagRequest {
        /// How thorough.
        level: RangedU32<1, 3>,
        /// How long the load of level 3 lasts.
        minutes: RangedU32<1, 1440>,
    }
}

view! { strict
    /// Make a node right for its work.
    TuneRequest {
        /// The profile, such as `training`.
        profile: ProfileName,
    }
}

view! { strict
    /// A node is gone for good.
    RetireRequest {
        reason: BoundedText,
    }
}

view! { strict
    /// Where a node stands, and whose it is: all of it. What is left out is not known from here on.
    LocationRequest {
        pool: Pool,
        tenant: Option<Tenant>,
        site: Option<Unit>,
        rack: Option<Unit>,
        leaf: Option<Unit>,
        nvlink: Option<Unit>,
    }
}

view! { strict
    /// No repair that changes anything, for a while.
    FreezeRequest {
        domain: Domain,
        /// For how many seconds from now, by the server's clock. Either this or `until`.
        for_s: Option<RangedU32<1, 31_536_000>>,
        /// Until when: a time to come by the server's clock, within a year. Either this or `for_s`.
        until: Option<Timestamp>,
        reason: BoundedText,
    }
}

view! { strict
    /// A freeze is over.
    UnfreezeRequest {
        domain: Domain,
    }
}

view! { lenient
    /// What became of what was asked.
    Done {
        /// Whether it is in the log now; false: it was so already.
        changed: bool,
    }
}

view! { strict
    /// A token for nodes to join with.
    TokenRequest {
        /// The pool that they join.
        pool: Pool,
        /// The only node that may, also where it has enrolled before.
        node: Option<NodeId>,
        /// Whose they are. This and where they stand is told by whoever has the whole fleet.
        tenant: Option<Tenant>,
        /// Their site.
        site: Option<Unit>,
        /// Their rack.
        rack: Option<Unit>,
        /// Their leaf switch.
        leaf: Option<Unit>,
        /// Their NVLink domain.
        nvlink: Option<Unit>,
        /// How many nodes may; one where nothing is said.
        uses: Option<RangedU32<1, 100_000>>,
        /// For how long; an hour where nothing is said, up to a year.
        expires_s: Option<RangedU32<1, 31_536_000>>,
    }
}

view! { lenient
    /// A token, shown this once.
    TokenCreated {
        id: i64,
        token: String,
        /// The pool that nodes join with it.
        pool: Pool,
        expires: Timestamp,
        /// How many nodes may use it.
        uses: u32,
        /// What nodes compare when they enrol.
        ca_fingerprint: String,
    }
}

view! { lenient
    /// A token to join with, without what only its owner knows.
    TokenRow {
        id: i64,
        pool: String,
        /// Where nodes stand that join with it, where it tells more than the pool.
        location: Option<Location>,
        /// The only node.
        node: Option<String>,
        expires: Timestamp,
        /// How often it can still be used.
        uses_left: u32,
        /// `open`, `used`, `expired` or `revoked`.
        state: String,
    }
}

view! { lenient
    /// Tokens to join with.
    TokenList {
        tokens: Vec<TokenRow>,
    }
}

view! { lenient
    /// A file that a node has sent for an order.
    ArtifactRow {
        /// The number of the order on its node.
        generation: u64,
        /// The code of the order.
        order: String,
        /// When it was received.
        at: Timestamp,
        bytes: u64,
        /// SHA-256 of it, in hexadecimal.
        sha256: String,
    }
}

view! { lenient
    /// Files that a node has sent for orders.
    ArtifactList {
        /// The newest first.
        artifacts: Vec<ArtifactRow>,
    }
}

view! { lenient
    Me {
        /// Their name.
        name: String,
        /// What they may do.
        role: Role,
        scope: Domain,
        /// Until when their token holds.
        expires: Timestamp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_bounded_and_harmless() {
        let read = |text: &str| serde_json::from_value::<BoundedText>(json!(text)).is_ok();
        assert!(read("a cable, \u{e9}") && read(&"a".repeat(1000)));
        for wrong in ["", "a\nb", "\x1b[2J", "\u{85}", &"a".repeat(1001)] {
            assert!(!read(wrong), "{wrong:?}");
        }
    }
}
