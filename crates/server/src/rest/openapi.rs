//! The OpenAPI document, generated from the routes and their schemas.

use std::sync::LazyLock;

use farrier_fleet::fleet::Permission;
use farrier_wire::rest::{EmptyRequest, Problem, Schemas};
use hyper::Method;
use serde_json::{Map, Value, json};

use super::Call;
use super::failure::{Failure, STATUSES};
use super::reply::{self, Reply};
use super::routes::{AnswerKind, Route, TABLE, path_parameter};

static DOCUMENT: LazyLock<Vec<u8>> =
    LazyLock::new(|| serde_json::to_vec(&build_document()).unwrap_or_default());

pub(super) async fn document(_: Call) -> Result<Reply, Failure> {
    Ok(Reply::bytes(reply::JSON, DOCUMENT.as_slice()))
}

fn build_document() -> Value {
    let mut schemas = Schemas::default();
    let problem = schemas.schema_for::<Problem>();
    let mut paths: Map<String, Value> = Map::new();
    for route in TABLE {
        let operation = operation(route, &problem, &mut schemas);
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.as_str().to_lowercase()] = operation;
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Farrier", "version": env!("CARGO_PKG_VERSION"),
            "description": "The fleet: nodes, findings, decisions with their reasons, and operator requests.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "paths": paths,
        "components": {
            "schemas": schemas.finish(),
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
    })
}

fn operation(route: &Route, problem: &Value, schemas: &mut Schemas) -> Value {
    let (status, media, schema) = match route.answer {
        AnswerKind::Json(schema) => ("200", reply::JSON, schema(schemas)),
        AnswerKind::Created(schema) => ("201", reply::JSON, schema(schemas)),
        AnswerKind::Other(media) => ("200", media, json!({ "type": "string" })),
    };
    let media = media.split(';').next().unwrap_or(media);
    let mut responses = Map::new();
    let success = json!({ "description": "Success.", "content": { media: { "schema": schema } } });
    responses.insert(status.to_owned(), success);
    for (status, about) in STATUSES.into_iter().filter(|(status, _)| can_fail_with(route, *status))
    {
        let content = json!({ Problem::MEDIA_TYPE: { "schema": problem } });
        let failed = json!({ "description": about, "content": content });
        responses.insert(status.to_string(), failed);
    }
    let mut operation = json!({
        "operationId": route.name, "summary": route.about, "parameters": parameters(route),
        "responses": responses,
    });
    if let Some(body) = route.body {
        let schema = body(schemas);
        let is_empty = schema == schemas.schema_for::<EmptyRequest>();
        let content = json!({ reply::JSON: { "schema": schema } });
        operation["requestBody"] = json!({ "required": !is_empty, "content": content });
    }
    if let Some(permission) = route.permission {
        operation["security"] = json!([{ "token": [] }]);
        operation["description"] = json!(format!("{} {}", route.about, roles_allowed(permission)));
    }
    operation
}

fn parameters(route: &Route) -> Vec<Value> {
    let names = route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let mut all: Vec<Value> = names
        .map(path_parameter)
        .map(|parameter| {
            json!({ "name": parameter.name, "in": "path", "required": true,
                "description": parameter.about, "schema": parameter.schema() })
        })
        .collect();
    all.extend(route.query.iter().map(|parameter| {
        let mut described = json!({ "name": parameter.name, "in": "query",
            "description": parameter.about, "schema": parameter.schema() });
        if parameter.is_list() {
            described["style"] = json!("form");
            described["explode"] = json!(false);
        }
        described
    }));
    if route.name == "followEvents" {
        all.push(json!({
            "name": "Last-Event-ID", "in": "header", "description": "the last entry received",
            "schema": { "type": "integer", "minimum": 0, "maximum": i64::MAX },
        }));
    }
    all
}

fn roles_allowed(permission: Permission) -> &'static str {
    match permission {
        Permission::Read => "Any role.",
        Permission::Operate => "Operators and admins, in their scope.",
        Permission::Approve => "Approvers and admins, in their scope.",
        Permission::Administer => "Admins, in their scope.",
    }
}

/// Whether a request to this route can fail with this status.
fn can_fail_with(route: &Route, status: u16) -> bool {
    match status {
        401 | 403 | 429 => route.permission.is_some(),
        404 => {
            const WITH_NAMES_IN_BODY: [&str; 10] = [
                "createToken",
                "freeze",
                "unfreeze",
                "domainRepaired",
                "testReceiver",
                "retryNotifications",
                "dropNotifications",
                "acknowledgeAlerts",
                "mute",
                "unmute",
            ];
            route.path.contains('{') || WITH_NAMES_IN_BODY.contains(&route.name)
        }
        405 => false,
        409 => {
            const CONFLICTING: [&str; 5] =
                ["approveNode", "repairedNode", "verifyNode", "testNode", "tuneNode"];
            route.requests_order || CONFLICTING.contains(&route.name)
        }
        415 => route.method != Method::GET,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_route_and_schema_is_in_the_document() {
        let document = build_document();
        let mut names = BTreeSet::new();
        for route in TABLE {
            let method = route.method.as_str().to_lowercase();
            let operation = &document["paths"][route.path][method];
            assert_eq!(operation["operationId"], route.name);
            assert!(names.insert(route.name), "{} is duplicated", route.name);
            assert_eq!(
                operation["security"].is_array(),
                route.permission.is_some(),
                "{}",
                route.name
            );
            assert_eq!(operation["requestBody"].is_object(), route.body.is_some());
        }
        let count: usize = document["paths"]
            .as_object()
            .unwrap()
            .values()
            .map(|path| path.as_object().unwrap().len())
            .sum();
        assert_eq!(count, TABLE.len(), "the document has no other operation");
        let mut references = BTreeSet::new();
        collect(&document, &mut references);
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let defined: BTreeSet<String> =
            schemas.keys().map(|name| format!("#/components/schemas/{name}")).collect();
        assert_eq!(references, defined);
        assert!(
            schemas.values().all(|schema| schema["description"].is_string()),
            "each schema has a description"
        );
    }

    fn collect(value: &Value, references: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                references.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
                fields.values().for_each(|value| collect(value, references));
            }
            Value::Array(items) => items.iter().for_each(|value| collect(value, references)),
            _ => {}
        }
    }

    #[test]
    fn every_route_is_documented() {
        let docs = include_str!("../../../../docs/api.md");
        for route in TABLE {
            let line = format!("| `{} {}` |", route.method, route.path);
            assert!(docs.contains(&line), "docs/api.md lacks {line}");
        }
        let lines =
            docs.lines().filter(|line| line.starts_with("| `GET ") || line.starts_with("| `P"));
        assert_eq!(lines.count(), TABLE.len(), "docs/api.md lists no other route");
    }

    #[test]
    fn changes_require_a_body_and_more_than_read_permission() {
        for route in TABLE {
            let reads = route.method == Method::GET;
            assert_eq!(reads, route.body.is_none(), "{}", route.name);
            assert!(
                reads || route.permission.is_some_and(|permission| permission != Permission::Read),
                "{}",
                route.name
            );
        }
    }
}
