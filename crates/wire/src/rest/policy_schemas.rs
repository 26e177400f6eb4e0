//! Schemas of the policy.

use farrier_fleet::fleet::policy::{
    Autonomy, ChangePolicy, ChangeRule, NodeSelector, POLICY_VERSION, Policy, PoolPolicy,
    SelectorKey, Waiver,
};
use farrier_fleet::fleet::reconnect::HEARTBEAT_TIMEOUT_MIN_S;
use farrier_fleet::fleet::window::Window;
use farrier_fleet::fleet::{Domain, VerificationLevel};
use farrier_fleet::notify::NotificationPolicy;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::schema::{Schema, Schemas};

impl Schema for PoolPolicy {
    const NAME: Option<&'static str> = Some("PoolPolicy");

    fn schema(schemas: &mut Schemas) -> Value {
        let seconds =
            |min: u32| json!({ "type": "integer", "minimum": min, "maximum": 31_536_000 });
        json!({
            "type": "object", "additionalProperties": false,
            "description": "Policy for the nodes of a pool. Omitted fields get their defaults.",
            "properties": {
                "autonomy": schemas.schema_for::<Autonomy>(),
                "reboot_needs_approval": { "type": "boolean" },
                "repair_windows": { "type": "array", "items": schemas.schema_for::<Window>(), "maxItems": 50 },
                "drain_timeout_s": seconds(0), "heartbeat_timeout_s": seconds(HEARTBEAT_TIMEOUT_MIN_S),
                "suspect_timeout_s": seconds(1),
                "coverage_gap_timeout_s": { "anyOf": [seconds(1), { "type": "null" }] },
                "coverage_gap_quarantines": { "type": "boolean" },
                "settle_s": seconds(0), "lease_s": seconds(10), "retry_backoff_s": seconds(1),
                "max_attempts": { "type": "integer", "minimum": 1, "maximum": 100 },
                "required_verifications": { "type": "array", "items": schemas.schema_for::<VerificationLevel>(), "maxItems": 4 },
                "cordon_joining": { "type": "boolean" },
            },
        })
    }
}

impl Schema for Policy {
    const NAME: Option<&'static str> = Some("Policy");

    fn schema(schemas: &mut Schemas) -> Value {
        let share = json!({ "type": "number", "minimum": 0, "maximum": 1 });
        let pool = schemas.schema_for::<PoolPolicy>();
        let kinds = domain_kinds();
        let count = |min: u32| json!({ "type": "integer", "minimum": min, "maximum": 1_000_000 });
        let budgets = budget_schema(&share);
        json!({
            "type": "object", "additionalProperties": false,
            "description": "Limits of automatic decisions: autonomy, timeouts and disruption budgets.",
            "properties": {
                "version": { "type": "integer", "minimum": 1, "maximum": POLICY_VERSION },
                "disruption_budgets": budgets,
                "capacity_floors": {
                    "type": "object", "propertyNames": { "enum": kinds },
                    "additionalProperties": share,
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
                "notifications": schemas.schema_for::<NotificationPolicy>(),
                "changes": schemas.schema_for::<ChangePolicy>(),
                "signatures": {
                    "type": "array", "maxItems": 20,
                    "items": {
                        "type": "object", "additionalProperties": false,
                        "required": ["key", "signature"],
                        "properties": {
                            "key": { "type": "string" }, "signature": { "type": "string" },
                        },
                    },
                },
            },
        })
    }
}

fn domain_kinds() -> Value {
    json!(["fleet", "pool", "tenant", "site", "leaf", "rack", "nvlink", "spine", "row", "pdu"])
}

fn budget_schema(share: &Value) -> Value {
    json!({
        "type": "object", "propertyNames": { "enum": domain_kinds() },
        "additionalProperties": {
            "type": "object", "additionalProperties": false, "required": ["share"],
            "properties": {
                "share": share,
                "nodes": nullable(
                    &json!({ "type": "integer", "minimum": 0, "maximum": 4_294_967_295_u32 }),
                ),
                "allow_min_one": nullable(&json!({ "type": "boolean" })),
            },
        },
    })
}

fn nullable(schema: &Value) -> Value {
    json!({ "anyOf": [schema, { "type": "null" }] })
}

impl Schema for NodeSelector {
    const NAME: Option<&'static str> = Some("NodeSelector");

    fn schema(_: &mut Schemas) -> Value {
        let pattern = json!({ "type": "string", "pattern": "^[A-Za-z0-9._*-]{1,65}$" });
        json!({
            "type": "object",
            "description": "Selects nodes that match a pattern of every key. `*` stands for any letters.",
            "propertyNames": { "enum": SelectorKey::ALL.map(SelectorKey::name) },
            "additionalProperties": {
                "type": "array", "minItems": 1, "maxItems": 200, "items": pattern,
            },
        })
    }
}

impl Schema for ChangeRule {
    const NAME: Option<&'static str> = Some("ChangeRule");

    fn schema(schemas: &mut Schemas) -> Value {
        let number = |min: u32| json!({ "type": "integer", "minimum": min, "maximum": 3650 });
        let optional = |min: u32| nullable(&number(min));
        let track = json!({ "anyOf": [
            { "type": "string", "enum": ["long-term", "production", "new-feature"] },
            {
                "type": "object", "additionalProperties": false, "required": ["branch"],
                "properties": { "branch": { "type": "integer", "minimum": 1, "maximum": 99_999 } },
            },
            { "type": "null" },
        ] });
        let age_gate = json!({
            "type": "object", "additionalProperties": false, "required": ["days"],
            "properties": {
                "days": number(0),
                "unless_advisory_score":
                    nullable(&json!({ "type": "number", "minimum": 0, "maximum": 10 })),
            },
        });
        let max_skew = json!({
            "type": "object", "additionalProperties": false,
            "properties": { "days": optional(0), "versions": optional(1) },
        });
        let approvals = json!({
            "type": "object", "additionalProperties": false,
            "properties": {
                "stages": {
                    "type": "object", "propertyNames": { "pattern": NAME_PATTERN },
                    "additionalProperties": { "type": "integer", "minimum": 0, "maximum": 20 },
                },
                "distinct_from_author": { "type": "boolean" },
            },
        });
        let windows =
            json!({ "type": "array", "items": schemas.schema_for::<Window>(), "maxItems": 50 });
        json!({
            "type": "object", "additionalProperties": false,
            "description": "Values for the nodes that a selector selects. See docs/policy.md.",
            "properties": {
                "select": schemas.schema_for::<NodeSelector>(),
                "owner": nullable(&text_schema()),
                "track": track,
                "minimum": nullable(&driver_schema()),
                "forbidden": { "type": "array", "items": driver_schema(), "maxItems": 200 },
                "pinned": nullable(&driver_schema()),
                "flavour": { "enum": ["open", "proprietary", null] },
                "age_gate": nullable(&age_gate),
                "cadence_days": optional(1),
                "security_deadline_days": optional(1),
                "max_skew": nullable(&max_skew),
                "windows": nullable(&windows),
                "change_minutes": optional(1),
                "approvals": nullable(&approvals),
            },
        })
    }
}

const NAME_PATTERN: &str = "^[A-Za-z0-9._-]{1,63}$";

fn text_schema() -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": 500 })
}

fn driver_schema() -> Value {
    json!({ "type": "string", "pattern": "^[0-9]{1,6}\\.[0-9]{1,6}(\\.[0-9]{1,6})?$" })
}

fn named(schema: &Value) -> Value {
    json!({
        "type": "object", "propertyNames": { "pattern": NAME_PATTERN }, "maxProperties": 200,
        "additionalProperties": schema,
    })
}

impl Schema for ChangePolicy {
    const NAME: Option<&'static str> = Some("ChangePolicy");

    fn schema(schemas: &mut Schemas) -> Value {
        let share = json!({ "type": "number", "minimum": 0, "maximum": 1 });
        let (rule, selector) =
            (schemas.schema_for::<ChangeRule>(), schemas.schema_for::<NodeSelector>());
        let forbidden = json!({ "type": "array", "items": driver_schema(), "maxItems": 200 });
        let pin = json!({
            "type": "object", "additionalProperties": false,
            "properties": {
                "select": selector, "minimum": nullable(&driver_schema()),
                "forbidden": forbidden, "pinned": nullable(&driver_schema()),
            },
        });
        let freeze = json!({
            "type": "object", "additionalProperties": false,
            "required": ["scope", "from", "to", "reason", "owner"],
            "properties": {
                "scope": schemas.schema_for::<Domain>(),
                "from": schemas.schema_for::<Timestamp>(), "to": schemas.schema_for::<Timestamp>(),
                "reason": text_schema(), "owner": text_schema(),
                "allow": { "type": "string", "enum": ["none", "rollback", "security"] },
            },
        });
        let waivers = Waiver::ALL.map(Waiver::name);
        let exception = json!({
            "type": "object", "additionalProperties": false,
            "required": ["select", "reason", "owner", "expires"],
            "properties": {
                "select": selector, "pinned": nullable(&driver_schema()),
                "waive": { "type": "array", "items": { "type": "string", "enum": waivers } },
                "reason": text_schema(), "owner": text_schema(),
                "expires": { "type": "string", "format": "date" },
            },
        });
        let overlay = json!({
            "type": "object", "additionalProperties": false,
            "properties": { "rules": named(&rule), "freezes": named(&freeze) },
        });
        json!({
            "type": "object", "additionalProperties": false,
            "description": "Which drivers nodes should run, and when they may change. See docs/policy.md.",
            "properties": {
                "rules": named(&rule),
                "tenants": named(&json!({ "type": "array", "items": pin })),
                "freezes": named(&freeze),
                "exceptions": named(&exception),
                "budgets": budget_schema(&share),
                "overlays": named(&overlay),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use farrier_fleet::fleet::policy::RuleField;

    use super::*;

    #[test]
    fn policy_schemas_list_every_field() {
        let fields = |value: &Value| {
            let mut names: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
            names.sort();
            names
        };
        let mut policy = serde_json::to_value(Policy::default()).unwrap();
        assert_eq!(policy.get("notifications"), None, "older logs have none");
        for part in ["version", "notifications", "changes", "signatures"] {
            policy[part] = json!({});
        }
        let schema = Policy::schema(&mut Schemas::default());
        assert_eq!(fields(&policy), fields(&schema["properties"]));
        for section in ["common_cause", "lemon"] {
            assert_eq!(
                fields(&policy[section]),
                fields(&schema["properties"][section]["properties"])
            );
        }
        let rule = ChangeRule::schema(&mut Schemas::default());
        let mut expected: Vec<String> = RuleField::ALL.map(|field| field.name().to_owned()).into();
        expected.extend(["select".to_owned(), "forbidden".to_owned()]);
        expected.sort();
        assert_eq!(fields(&rule["properties"]), expected);
        let pool = PoolPolicy::schema(&mut Schemas::default());
        assert_eq!(fields(&policy["pools_default"]), fields(&pool["properties"]));
    }
}
