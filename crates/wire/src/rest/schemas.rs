//! Schemas of fleet types. A test checks each against a value.

use farrier_fleet::fleet::event::{Cordon, GpuInventory, NodeInventory};
use farrier_fleet::fleet::identity::Unit;
use farrier_fleet::fleet::policy::{Autonomy, Policy, PoolPolicy};
use farrier_fleet::fleet::reconnect::HEARTBEAT_TIMEOUT_MIN_S;
use farrier_fleet::fleet::state::Symptom;
use farrier_fleet::fleet::window::Window;
use farrier_fleet::fleet::{
    Domain, Event, Location, NodeId, NodePhase, Pool, Role, Tenant, VerificationLevel,
};
use farrier_fleet::health::{Action, Finding, FindingKind, GpuUuid, Severity};
use serde_json::{Value, json};

use super::schema::{Schema, Schemas, plain};

/// The same rules as `farrier_fleet` applies to names.
macro_rules! names {
    ($($type:ty),*) => { plain! { $($type => {
        "type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$", "maxLength": 63
    },)* } };
}
names!(NodeId, Pool, Tenant, Unit);

plain! {
    Domain => {
        "type": "string",
        "description": "`fleet`, or a kind and a name, such as `rack:r1`",
        "pattern": "^(fleet|(pool|tenant|site|leaf|rack|nvlink):[A-Za-z0-9][A-Za-z0-9._-]{0,62})$",
    },
    GpuUuid => { "type": "string" },
    NodePhase => {
        "type": "string",
        "enum": ["joining", "in-service", "suspect", "quarantined", "repairing", "verifying", "held"],
    },
    Role => { "type": "string", "enum": ["viewer", "operator", "approver", "admin"] },
    VerificationLevel => { "type": "string", "enum": ["v0", "v1", "v2", "v3"] },
    Severity => { "type": "string", "enum": ["info", "warning", "critical", "fatal"] },
    Autonomy => { "type": "string", "enum": ["observe", "quarantine", "repair"] },
    Symptom => { "type": "string", "enum": ["silence", "network", "fabric", "power-or-cooling"] },
    FindingKind => { "type": "string", "enum": ["fault", "advice"] },
    Action => { "type": "string" },
    Cordon => {
        "description": "`unknown`, `none`, `ours`, or `theirs` with owner and reason",
        "type": ["string", "object"],
    },
}

impl Schema for Location {
    const NAME: Option<&'static str> = Some("Location");

    fn shape(shapes: &mut Schemas) -> Value {
        let unit = shapes.of::<Unit>();
        json!({
            "type": "object", "required": ["pool"],
            "description": "Where a node stands, and whose it is. What nobody told is left out.",
            "properties": {
                "pool": shapes.of::<Pool>(), "tenant": shapes.of::<Tenant>(),
                "site": unit, "rack": unit, "leaf": unit, "nvlink": unit,
            },
        })
    }
}

impl Schema for NodeInventory {
    const NAME: Option<&'static str> = Some("NodeInventory");

    fn shape(shapes: &mut Schemas) -> Value {
        let text = shapes.of::<Option<String>>();
        json!({
            "type": "object", "required": ["boot", "agent"],
            "description": "What a node is made of; null is not known.",
            "properties": {
                "boot": { "type": "string" }, "agent": { "type": "string" },
                "kernel": text, "driver": text, "cuda": text,
                "gpus": { "anyOf": [shapes.of::<Vec<GpuInventory>>(), { "type": "null" }] },
                "frameworks": {
                    "type": "array",
                    "items": { "type": "array", "items": { "type": "string" }, "minItems": 2, "maxItems": 2 },
                },
            },
        })
    }
}

impl Schema for GpuInventory {
    fn shape(shapes: &mut Schemas) -> Value {
        json!({
            "type": "object", "required": ["uuid"],
            "properties": {
                "uuid": { "type": "string" }, "name": shapes.of::<Option<String>>(),
                "index": shapes.of::<Option<u32>>(), "pci": shapes.of::<Option<String>>(),
            },
        })
    }
}

impl Schema for Finding {
    const NAME: Option<&'static str> = Some("Finding");

    fn shape(shapes: &mut Schemas) -> Value {
        let time = shapes.of::<jiff::Timestamp>();
        let text = json!({ "type": "string" });
        json!({
            "type": "object",
            "description": "Something that is wrong, since when, on what evidence, and what to do.",
            "required": ["id", "code", "subject", "kind", "severity", "text", "action", "evidence",
                "first_seen", "last_seen", "count", "clears"],
            "properties": {
                "id": { "type": "integer" }, "code": text, "detail": text,
                "subject": { "type": ["string", "object"] },
                "kind": shapes.of::<FindingKind>(), "severity": shapes.of::<Severity>(),
                "text": text, "action": text, "remedy": text, "rule_action": text, "action_by": text,
                "evidence": { "type": "array", "items": { "type": "object" } },
                "first_seen": time, "last_seen": time,
                "count": { "type": "integer" }, "clears": text,
                "cleared": { "type": ["object", "null"] },
            },
        })
    }
}

impl Schema for Event {
    const NAME: Option<&'static str> = Some("Event");

    fn shape(_: &mut Schemas) -> Value {
        json!({
            "type": ["object", "string"],
            "description": "An event as the log keeps it: one field with its kind and what belongs to it; `time-passed` alone.",
        })
    }
}

impl Schema for Window {
    const NAME: Option<&'static str> = Some("Window");

    fn shape(_: &mut Schemas) -> Value {
        let days = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
        json!({
            "type": "object", "additionalProperties": false, "required": ["from", "hours"],
            "description": "A time of the week at which nodes may be repaired.",
            "properties": {
                "days": { "type": "array", "items": { "type": "string", "enum": days },
                    "description": "When it opens; none: every day." },
                "from": { "type": "string", "description": "UTC, such as `22:00`.",
                    "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?$" },
                "hours": { "type": "integer", "minimum": 1, "maximum": 168 },
            },
        })
    }
}

impl Schema for PoolPolicy {
    const NAME: Option<&'static str> = Some("PoolPolicy");

    fn shape(shapes: &mut Schemas) -> Value {
        let seconds =
            |least: u32| json!({ "type": "integer", "minimum": least, "maximum": 31_536_000 });
        json!({
            "type": "object", "additionalProperties": false,
            "description": "How the nodes of a pool are treated. What is left out is as usual.",
            "properties": {
                "autonomy": shapes.of::<Autonomy>(),
                "reboot_needs_approval": { "type": "boolean" },
                "repair_windows": { "type": "array", "items": shapes.of::<Window>(), "maxItems": 50 },
                "drain_timeout_s": seconds(0), "heartbeat_timeout_s": seconds(HEARTBEAT_TIMEOUT_MIN_S),
                "suspect_timeout_s": seconds(1), "settle_s": seconds(0), "lease_s": seconds(10), "retry_backoff_s": seconds(1),
                "max_attempts": { "type": "integer", "minimum": 1, "maximum": 100 },
                "required_verifications": { "type": "array", "items": shapes.of::<VerificationLevel>(), "maxItems": 4 },
                "cordon_joining": { "type": "boolean" },
            },
        })
    }
}

impl Schema for Policy {
    const NAME: Option<&'static str> = Some("Policy");

    fn shape(shapes: &mut Schemas) -> Value {
        let share = json!({ "type": "number", "minimum": 0, "maximum": 1 });
        let pool = shapes.of::<PoolPolicy>();
        let kinds = json!(["fleet", "pool", "tenant", "site", "leaf", "rack", "nvlink"]);
        let count =
            |least: u32| json!({ "type": "integer", "minimum": least, "maximum": 1_000_000 });
        json!({
            "type": "object", "additionalProperties": false,
            "description": "What may be decided without a person, how fast, and how much at once.",
            "properties": {
                "disruption_budgets": {
                    "type": "object", "propertyNames": { "enum": kinds },
                    "additionalProperties": {
                        "type": "object", "additionalProperties": false, "required": ["share"],
                        "properties": {
                            "share": share,
                            "nodes": {
                                "anyOf": [
                                    { "type": "integer", "minimum": 0, "maximum": 4_294_967_295_u32 },
                                    { "type": "null" },
                                ],
                            },
                        },
                    },
                },
                "pools_default": pool,
                "pools": {
                    "type": "object", "additionalProperties": pool, "maxProperties": 10_000,
                    "propertyNames": { "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$" },
                },
                "common_cause": {
                    "type": "object", "additionalProperties": false,
                    "properties": {
                        "nodes": count(2), "share": share,
                        "window_s": { "type": "integer", "minimum": 1, "maximum": 31_536_000 },
                    },
                },
                "lemon": {
                    "type": "object", "additionalProperties": false,
                    "properties": {
                        "days": { "type": "integer", "minimum": 1, "maximum": 365 },
                        "quarantines": count(1),
                    },
                },
                "services": {
                    "type": "object", "maxProperties": 10_000,
                    "propertyNames": { "minLength": 1, "maxLength": 100 },
                    "additionalProperties": {
                        "type": "string",
                        "pattern": "^[A-Za-z0-9][A-Za-z0-9@._-]{0,100}\\.service$",
                    },
                },
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::*;

    /// Every value of the schema's enum parses.
    fn words_read<T: Schema + DeserializeOwned>(count: usize) {
        let shape = T::shape(&mut Schemas::default());
        let words = shape["enum"].as_array().unwrap();
        assert_eq!(words.len(), count);
        for word in words {
            assert!(serde_json::from_value::<T>(word.clone()).is_ok(), "{word}");
        }
    }

    #[test]
    fn words_are_those_of_the_fleet() {
        words_read::<NodePhase>(7);
        words_read::<Role>(Role::ALL.len());
        words_read::<VerificationLevel>(4);
        words_read::<Severity>(4);
        words_read::<Autonomy>(3);
        words_read::<Symptom>(4);
        words_read::<FindingKind>(2);
    }

    #[test]
    fn a_policy_has_the_fields_of_its_shape() {
        let fields = |value: &Value| {
            let mut names: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
            names.sort();
            names
        };
        let policy = serde_json::to_value(Policy::default()).unwrap();
        let shape = Policy::shape(&mut Schemas::default());
        assert_eq!(fields(&policy), fields(&shape["properties"]));
        for part in ["common_cause", "lemon"] {
            assert_eq!(fields(&policy[part]), fields(&shape["properties"][part]["properties"]));
        }
        let pool = PoolPolicy::shape(&mut Schemas::default());
        assert_eq!(fields(&policy["pools_default"]), fields(&pool["properties"]));
    }
}
