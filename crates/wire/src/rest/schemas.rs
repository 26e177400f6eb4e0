//! JSON schemas of types from `farrier_fleet`. Tests compare the schemas of enums and of the policy
//! with the serialised types.

use farrier_fleet::fleet::event::{Cordon, GpuInventory, NodeCompliance, NodeInventory};
use farrier_fleet::fleet::identity::Unit;
use farrier_fleet::fleet::policy::Autonomy;
use farrier_fleet::fleet::state::Symptom;
use farrier_fleet::fleet::window::Window;
use farrier_fleet::fleet::{
    Domain, Event, Location, NodeId, NodePhase, Pool, Role, Tenant, VerificationLevel,
};
use farrier_fleet::health::{Action, Finding, FindingKind, GpuUuid, Severity};
use farrier_fleet::notify::{GroupLabel, NotificationPolicy};
use serde_json::{Value, json};

use super::schema::{Schema, Schemas, plain};

/// Schemas of names. The types in `farrier_fleet` accept exactly the names that match this pattern.
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
        "pattern": "^(fleet|(pool|tenant|site|leaf|rack|nvlink|spine|row|pdu):[A-Za-z0-9][A-Za-z0-9._-]{0,62})$",
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
    Symptom => { "type": "string", "enum": ["heartbeat-lost", "network", "fabric", "power-or-cooling"] },
    FindingKind => { "type": "string", "enum": ["fault", "advice"] },
    Action => { "type": "string" },
    Cordon => {
        "description": "`unknown`, `none`, `by-farrier`, or `external` with owner and reason",
        "type": ["string", "object"],
    },
}

impl Schema for Location {
    const NAME: Option<&'static str> = Some("Location");

    fn schema(schemas: &mut Schemas) -> Value {
        let unit = schemas.schema_for::<Unit>();
        json!({
            "type": "object", "required": ["pool"],
            "description": "Location and owner of a node. Unknown fields are omitted.",
            "properties": {
                "pool": schemas.schema_for::<Pool>(), "tenant": schemas.schema_for::<Tenant>(),
                "site": unit, "rack": unit, "leaf": unit, "nvlink": unit,
                "spine": unit, "row": unit, "pdu": unit,
            },
        })
    }
}

impl Schema for NodeInventory {
    const NAME: Option<&'static str> = Some("NodeInventory");

    fn schema(schemas: &mut Schemas) -> Value {
        let text = schemas.schema_for::<Option<String>>();
        json!({
            "type": "object", "required": ["boot", "agent"],
            "description": "Software and GPUs of a node; null if unknown.",
            "properties": {
                "boot": { "type": "string" }, "agent": { "type": "string" },
                "kernel": text, "driver": text, "cuda": text,
                "gpus": { "anyOf": [schemas.schema_for::<Vec<GpuInventory>>(), { "type": "null" }] },
                "frameworks": {
                    "type": "array",
                    "items": { "type": "array", "items": { "type": "string" }, "minItems": 2, "maxItems": 2 },
                },
                "compliance": schemas.schema_for::<Option<NodeCompliance>>(),
            },
        })
    }
}

impl Schema for NodeCompliance {
    const NAME: Option<&'static str> = Some("NodeCompliance");

    fn schema(schemas: &mut Schemas) -> Value {
        let flag = schemas.schema_for::<Option<bool>>();
        json!({
            "type": "object",
            "description": "Security features of a node; null if unknown.",
            "properties": {
                "tpm": flag, "secure_boot": flag, "volumes_encrypted": flag,
                "image_policy": schemas.schema_for::<Option<String>>(),
            },
        })
    }
}

impl Schema for GpuInventory {
    fn schema(schemas: &mut Schemas) -> Value {
        json!({
            "type": "object", "required": ["uuid"],
            "properties": {
                "uuid": { "type": "string" }, "name": schemas.schema_for::<Option<String>>(),
                "index": schemas.schema_for::<Option<u32>>(), "pci": schemas.schema_for::<Option<String>>(),
                "serial": schemas.schema_for::<Option<String>>(),
            },
        })
    }
}

impl Schema for Finding {
    const NAME: Option<&'static str> = Some("Finding");

    fn schema(schemas: &mut Schemas) -> Value {
        let time = schemas.schema_for::<jiff::Timestamp>();
        let text = json!({ "type": "string" });
        json!({
            "type": "object",
            "description": "Something that is wrong: since when, the evidence, and the recommended action.",
            "required": ["id", "code", "subject", "kind", "severity", "text", "action", "evidence",
                "first_seen", "last_seen", "count", "clears"],
            "properties": {
                "id": { "type": "integer" }, "code": text, "detail": text,
                "subject": { "type": ["string", "object"] },
                "kind": schemas.schema_for::<FindingKind>(), "severity": schemas.schema_for::<Severity>(),
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

    fn schema(_: &mut Schemas) -> Value {
        json!({
            "type": ["object", "string"],
            "description": "An event as stored in the log: an object with one field, named for its kind; `tick` is a plain string.",
        })
    }
}

impl Schema for Window {
    const NAME: Option<&'static str> = Some("Window");

    fn schema(_: &mut Schemas) -> Value {
        let days = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
        json!({
            "type": "object", "additionalProperties": false, "required": ["from", "hours"],
            "description": "A weekly window.",
            "properties": {
                "days": { "type": "array", "items": { "type": "string", "enum": days },
                    "description": "Days on which it opens; every day if empty." },
                "from": { "type": "string", "description": "Opening time, such as `22:00`.",
                    "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?$" },
                "hours": { "type": "integer", "minimum": 1, "maximum": 168 },
                "tz": {
                    "anyOf": [
                        { "type": "string", "pattern": "^[A-Za-z0-9/_+-]{1,64}$" },
                        { "type": "null" },
                    ],
                    "description": "Time zone of the IANA database; UTC if null.",
                },
            },
        })
    }
}

impl Schema for NotificationPolicy {
    const NAME: Option<&'static str> = Some("NotificationPolicy");

    fn schema(schemas: &mut Schemas) -> Value {
        let name = "^[A-Za-z0-9._-]{1,63}$";
        let names = json!({
            "type": "array", "minItems": 1, "items": { "type": "string", "pattern": name },
        });
        let seconds =
            |min: u32| json!({ "type": "integer", "minimum": min, "maximum": 7 * 86_400 });
        let labels: Vec<&str> = GroupLabel::ALL.into_iter().map(GroupLabel::as_str).collect();
        let list = |items: Value| json!({ "type": "array", "items": items });
        let text = json!({ "type": "string", "minLength": 1 });
        let kinds =
            ["finding", "heartbeat-lost", "node-phase", "deferred", "domain-fault", "order-failed"];
        let matches = json!({
            "type": "object", "additionalProperties": false,
            "properties": {
                "min_severity": schemas.schema_for::<Severity>(),
                "pools": schemas.schema_for::<Vec<Pool>>(),
                "sites": schemas.schema_for::<Vec<Unit>>(),
                "tenants": schemas.schema_for::<Vec<Tenant>>(),
                "kinds": list(json!({ "type": "string", "enum": kinds })),
                "codes": list(text.clone()),
            },
        });
        let route = json!({
            "type": "object", "additionalProperties": false, "required": ["name", "receivers"],
            "properties": {
                "name": { "type": "string", "pattern": name },
                "match": matches, "receivers": names,
                "group_by": list(json!({ "type": "string", "enum": labels })),
                "group_wait_s": seconds(0), "group_interval_s": seconds(1),
                "repeat_interval_s": seconds(60),
                "escalate": {
                    "anyOf": [
                        {
                            "type": "object", "additionalProperties": false,
                            "required": ["after_s", "receivers"],
                            "properties": { "after_s": seconds(1), "receivers": names },
                        },
                        { "type": "null" },
                    ],
                },
                "continue": { "type": "boolean" },
            },
        });
        json!({
            "type": "object", "additionalProperties": false,
            "description": "Who is notified of what. See docs/notifications.md.",
            "properties": {
                "receivers": {
                    "type": "object", "propertyNames": { "pattern": name }, "maxProperties": 200,
                    "additionalProperties": {
                        "description": "One of the keys below, with the settings of that receiver.",
                        "type": "object", "minProperties": 1, "maxProperties": 1,
                        "propertyNames": {
                            "enum": ["alertmanager", "webhook", "slack", "pagerduty", "email", "command"],
                        },
                        "additionalProperties": { "type": "object" },
                    },
                },
                "routes": { "type": "array", "maxItems": 200, "items": route },
                "runbook_base_url": {
                    "anyOf": [
                        { "type": "string", "pattern": "^https?://[^\\s]+$" },
                        { "type": "null" },
                    ],
                },
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use serde::Serialize;
    use serde::de::DeserializeOwned;

    use super::*;

    /// Checks that every value of the schema's enum is the serialised name of a variant.
    fn check_enum<T: Schema + Serialize + DeserializeOwned>(count: usize) {
        let schema = T::schema(&mut Schemas::default());
        let names = schema["enum"].as_array().unwrap();
        assert_eq!(names.len(), count);
        for name in names {
            let value: T = serde_json::from_value(name.clone()).unwrap();
            assert_eq!(serde_json::to_value(value).unwrap(), *name);
        }
    }

    #[test]
    fn enums_have_the_serialised_names_of_the_fleet() {
        check_enum::<NodePhase>(7);
        check_enum::<Role>(Role::ALL.len());
        check_enum::<VerificationLevel>(4);
        check_enum::<Severity>(4);
        check_enum::<Autonomy>(3);
        check_enum::<Symptom>(4);
        check_enum::<FindingKind>(2);
    }
}
