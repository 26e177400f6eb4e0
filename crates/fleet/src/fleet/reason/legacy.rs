//! Reasons of format 1 were sentences. They are stored as text and never compared.

use serde_json::{Map, Value, json};

/// Turns a sentence into a reason.
fn reason(text: &Value, findings: Option<Value>) -> Value {
    let mut params = Map::from_iter([("text".to_owned(), text.clone())]);
    params.extend(findings.map(|findings| ("findings".to_owned(), findings)));
    json!({ "code": "legacy", "params": params })
}

/// Upgrades a `why` of format 1. It has the fields `text`, `until`, `findings`, `changes_at` and
/// `approvable`.
fn upgrade_why(why: &mut Value) {
    let Some(old) = why.as_object_mut() else { return };
    let mut take = |name: &str| old.remove(name);
    let (text, until) = (take("text").unwrap_or_default(), take("until").unwrap_or_default());
    let findings = take("findings");
    let mut params = Map::from_iter([("text".to_owned(), until)]);
    for name in ["changes_at", "approvable"] {
        params.extend(take(name).map(|value| (name.to_owned(), value)));
    }
    *why = json!({
        "reason": reason(&text, findings),
        "unblocked_by": { "code": "legacy", "params": params },
    });
}

fn upgrade_text(text: &mut Value) {
    if text.is_string() {
        *text = reason(text, None);
    }
}

/// Upgrades an event from format 1 to format 2.
pub(crate) fn upgrade_event(event: &mut Value) {
    let Some((kind, fields)) = event.as_object_mut().and_then(|object| object.iter_mut().next())
    else {
        return;
    };
    match kind.as_str() {
        "moved" | "held-back" | "blamed" | "absolved" => {
            fields.get_mut("why").into_iter().for_each(upgrade_why);
        }
        "withdrawn" => fields.get_mut("why").into_iter().for_each(upgrade_text),
        _ => {}
    }
}

/// Upgrades a state from format 1 to format 2.
pub(crate) fn upgrade_state(state: &mut Value) {
    let each = |value: Option<&mut Value>, upgrade: fn(&mut Value)| {
        let values = value.and_then(Value::as_object_mut);
        values.into_iter().flat_map(Map::values_mut).for_each(upgrade);
    };
    each(state.get_mut("nodes"), upgrade_node);
    each(state.get_mut("blamed"), |fault| {
        fault.get_mut("why").into_iter().for_each(upgrade_why);
    });
}

fn upgrade_node(node: &mut Value) {
    for name in ["why", "held_back"] {
        node.get_mut(name).into_iter().for_each(upgrade_why);
    }
    // `failed` is a pair: the time and the reason of the failure.
    if let Some(why) = node.pointer_mut("/failed/1") {
        *why = json!({ "reported": why });
    }
}
