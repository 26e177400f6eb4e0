//! The dashboards: their panels and queries.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

/// A query of a panel.
pub(crate) struct PanelQuery {
    /// The dashboard and the panel.
    pub(crate) panel: String,
    expression: String,
}

impl PanelQuery {
    /// The expression for a server and a node, and all pools and GPUs.
    pub(crate) fn expression(&self, server: &str, node: &str) -> String {
        let values = [("$server", server), ("$node", node), ("$pool", ".*"), ("$gpu", ".*")];
        let replace = |text: String, (name, value): (&str, &str)| text.replace(name, value);
        let expression = values.into_iter().fold(self.expression.clone(), replace);
        assert!(!expression.contains('$'), "{expression} has an unknown variable");
        expression
    }

    pub(crate) fn is_about_node(&self) -> bool {
        self.expression.contains("$node")
    }
}

fn dashboards() -> Vec<(String, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/grafana");
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut files: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|it| it == "json")).collect();
    files.sort();
    let read = |path: &Path| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        (name, serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap())
    };
    files.iter().map(|path| read(path)).collect()
}

fn panels(dashboard: &Value) -> &Vec<Value> {
    dashboard["panels"].as_array().unwrap()
}

/// All queries of all panels.
pub(crate) fn queries() -> Vec<PanelQuery> {
    let mut queries = Vec::new();
    for (name, dashboard) in dashboards() {
        for panel in panels(&dashboard) {
            let title = format!("{name}: {}", panel["title"].as_str().unwrap());
            let targets = panel["targets"].as_array().unwrap();
            assert!(!targets.is_empty(), "{title}");
            queries.extend(targets.iter().map(|target| PanelQuery {
                panel: title.clone(),
                expression: target["expr"].as_str().unwrap().to_owned(),
            }));
        }
    }
    queries
}

/// What Grafana's import needs, and what keeps the dashboards consistent.
#[test]
fn dashboards_are_complete() {
    let mut uids = BTreeSet::new();
    for (name, dashboard) in dashboards() {
        assert_eq!(dashboard["uid"], name.as_str(), "the uid is the file's name");
        assert!(uids.insert(name.clone()));
        assert_eq!(dashboard["id"], Value::Null, "{name}: an import assigns the id");
        assert!(dashboard["schemaVersion"].as_u64() >= Some(36), "{name}");
        assert_eq!(dashboard["tags"], serde_json::json!(["farrier"]), "{name}");
        let variables = dashboard["templating"]["list"].as_array().unwrap();
        let variables: BTreeSet<&str> =
            variables.iter().map(|variable| variable["name"].as_str().unwrap()).collect();
        assert!(variables.contains("datasource"), "{name}");
        let mut ids = BTreeSet::new();
        let mut cells = BTreeSet::new();
        for panel in panels(&dashboard) {
            let title = format!("{name}: {}", panel["title"]);
            assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: the id is not unique");
            assert!(!panel["description"].as_str().unwrap().is_empty(), "{title}");
            assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{title} has no unit");
            let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
            assert!(at("x") + at("w") <= 24, "{title} is wider than the grid");
            for x in at("x")..at("x") + at("w") {
                for y in at("y")..at("y") + at("h") {
                    assert!(cells.insert((x, y)), "{title} overlaps another panel");
                }
            }
            for target in panel["targets"].as_array().unwrap() {
                assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
                let expression = target["expr"].as_str().unwrap();
                for part in expression.split('$').skip(1) {
                    let end = part.find(|letter: char| !letter.is_alphanumeric());
                    let variable = &part[..end.unwrap_or(part.len())];
                    assert!(variables.contains(variable), "{title}: ${variable} is not defined");
                }
            }
        }
    }
    assert_eq!(uids.len(), 4);
}

#[test]
fn panels_have_unique_titles() {
    let mut titles = BTreeSet::new();
    for (name, dashboard) in dashboards() {
        for panel in panels(&dashboard) {
            let title = format!("{name}: {}", panel["title"]);
            assert!(titles.insert(title.clone()), "{title}");
        }
    }
}
