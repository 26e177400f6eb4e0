//! What differs between two policies, and for which nodes.

use farrier_facts::FactSet;
use jiff::civil::Date;
use serde::Serialize;
use serde_json::{Map, Value};

use super::Policy;
use super::resolve::{EffectivePolicy, Sourced, resolve};
use super::rule_value::{RuleField, RuleValue};
use super::selector::PolicyNode;
use crate::fleet::identity::NodeId;

/// A value that differs. Omitted keys have their defaults, so writing a default makes no
/// difference.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PolicyDifference {
    /// The field, such as `changes.rules.train.minimum`.
    pub at: String,
    /// `None` if only the other policy has the field.
    pub before: Option<Value>,
    pub after: Option<Value>,
}

/// What the second policy changes.
pub fn differences(before: &Policy, after: &Policy) -> Vec<PolicyDifference> {
    let value = |policy: &Policy| {
        let mut value = serde_json::to_value(policy).expect("a policy has string keys only");
        // The version changes the meaning of other keys, so it is always compared.
        value["version"] = policy.version.into();
        // A pool without an entry has the default, which is what a removed entry changes to.
        for pool in before.pools.keys().chain(after.pools.keys()) {
            let own = serde_json::to_value(policy.for_pool(pool));
            value["pools"][pool.as_str()] = own.expect("a pool policy has string keys only");
        }
        value
    };
    let mut found = Vec::new();
    compare("", Some(&value(before)), Some(&value(after)), &mut found);
    found
}

fn compare(
    at: &str,
    before: Option<&Value>,
    after: Option<&Value>,
    found: &mut Vec<PolicyDifference>,
) {
    if before == after {
        return;
    }
    let fields = |value: Option<&Value>| value.and_then(Value::as_object).cloned();
    let (ours, theirs) = (fields(before), fields(after));
    let is_object = |value: Option<&Value>, fields: &Option<Map<String, Value>>| {
        value.is_none() || fields.as_ref().is_some_and(|fields| !fields.is_empty())
    };
    if !is_object(before, &ours) || !is_object(after, &theirs) {
        let (before, after) = (before.cloned(), after.cloned());
        found.push(PolicyDifference { at: at.to_owned(), before, after });
        return;
    }
    let (ours, theirs) = (ours.unwrap_or_default(), theirs.unwrap_or_default());
    let mut keys: Vec<&String> = ours.keys().chain(theirs.keys()).collect();
    keys.sort();
    keys.dedup();
    for key in keys {
        let at = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
        compare(&at, ours.get(key), theirs.get(key), found);
    }
}

/// A field whose value differs for a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct NodeValueDifference {
    pub field: String,
    /// As text; `None` if there is no value.
    pub before: Option<String>,
    pub after: Option<String>,
}

/// What differs for a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodePolicyDifference {
    pub node: NodeId,
    pub values: Vec<NodeValueDifference>,
}

/// The nodes whose effective policy differs.
pub fn node_differences(
    before: &Policy,
    after: &Policy,
    facts: &FactSet,
    nodes: &[PolicyNode],
    on: Date,
) -> Vec<NodePolicyDifference> {
    let changed = |node: &PolicyNode| {
        let name = node.node.clone()?;
        let values = values_that_differ(
            &node_values(before, facts, node, on),
            &node_values(after, facts, node, on),
        );
        (!values.is_empty()).then_some(NodePolicyDifference { node: name, values })
    };
    nodes.iter().filter_map(changed).collect()
}

/// The values of a node as text, in the order of the document.
fn node_values(
    policy: &Policy,
    facts: &FactSet,
    node: &PolicyNode,
    on: Date,
) -> Vec<(String, String)> {
    let pool = policy.for_pool(&node.location.pool);
    let pool = serde_json::to_string(pool).expect("a pool policy has string keys only");
    let mut values = vec![("pools".to_owned(), pool)];
    match resolve(policy, facts, node, on) {
        Ok(effective) => values.extend(effective.texts()),
        Err(tie) => values.push((tie.field.name().to_owned(), "conflict".to_owned())),
    }
    values
}

fn values_that_differ(
    before: &[(String, String)],
    after: &[(String, String)],
) -> Vec<NodeValueDifference> {
    let text = |values: &[(String, String)], field: &str| {
        values.iter().find(|(name, _)| name == field).map(|(_, text)| text.clone())
    };
    let mut fields: Vec<&String> = before.iter().chain(after).map(|(field, _)| field).collect();
    fields.sort();
    fields.dedup();
    let difference = |field: &String| {
        let (before, after) = (text(before, field), text(after, field));
        (before != after).then(|| NodeValueDifference { field: field.clone(), before, after })
    };
    fields.into_iter().filter_map(difference).collect()
}

impl EffectivePolicy {
    /// The values as text, without their sources.
    fn texts(&self) -> Vec<(String, String)> {
        let value = |(field, value): (&RuleField, &Sourced<RuleValue>)| {
            (field.name().to_owned(), value.value.to_string())
        };
        let mut texts: Vec<(String, String)> = self.values.iter().map(value).collect();
        let mut list = |name: &str, mut items: Vec<String>| {
            items.sort();
            items.dedup();
            if !items.is_empty() {
                texts.push((name.to_owned(), items.join(", ")));
            }
        };
        let forbidden = self.forbidden.iter();
        list("forbidden", forbidden.map(|version| version.value.to_string()).collect());
        list("waived", self.waived.iter().map(|one| one.value.name().to_owned()).collect());
        list("freezes", self.freezes.iter().map(|freeze| freeze.name.clone()).collect());
        texts
    }
}
