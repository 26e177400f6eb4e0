//! Policies about changes: what applies to a node, conflicts, overlays and reports.

use farrier_facts::FactSet;
use farrier_fleet::fleet::policy::{
    BranchChoice, ChangePurpose, EffectivePolicy, POLICY_VERSION, PolicyConflict, PolicyContext,
    PolicyNode, PolicyReport, PolicySource, RuleField, differences, node_differences,
    policy_report, resolve,
};
use farrier_fleet::fleet::{Event, Location, Policy};
use jiff::civil::{Date, date};
use serde_json::{Value, json};

const ON: Date = date(2026, 11, 19);
const EXAMPLE: &str = include_str!("../../../../examples/policy.toml");

pub(crate) fn example() -> Policy {
    let value: Value = toml::from_str(EXAMPLE).unwrap();
    serde_json::from_value(value).unwrap()
}

#[expect(clippy::needless_pass_by_value, reason = "callers pass `json!` values")]
fn policy(changes: Value) -> Policy {
    let policy = json!({ "version": 2, "disruption_budgets": {}, "changes": changes });
    let policy: Policy = serde_json::from_value(policy).unwrap();
    assert_eq!(policy.check(), Ok(()));
    policy
}

#[expect(clippy::needless_pass_by_value, reason = "callers pass `json!` values")]
fn rules(rules: Value) -> Policy {
    policy(json!({ "rules": rules }))
}

fn conflicts_with(policy: &Policy, nodes: &[PolicyNode]) -> Vec<PolicyConflict> {
    policy.conflicts(&PolicyContext { facts: FactSet::embedded(), on: ON, nodes })
}

/// The conflicts as text.
fn conflicts(policy: &Policy) -> Vec<String> {
    conflicts_with(policy, &[]).iter().map(|one| format!("{}: {one}", one.code())).collect()
}

fn node(name: &str, pool: &str, site: &str, gpu: &str, driver: &str) -> PolicyNode {
    let mut location = Location::in_pool(pool.parse().unwrap());
    location.site = site.parse().ok();
    PolicyNode {
        node: name.parse().ok(),
        location,
        gpus: Some(vec![gpu.to_owned()]),
        driver: driver.parse().ok(),
    }
}

fn owned_by(mut node: PolicyNode, tenant: &str) -> PolicyNode {
    node.location.tenant = tenant.parse().ok();
    node
}

fn h200(name: &str, site: &str, driver: &str) -> PolicyNode {
    node(name, "train", site, "H200-SXM5-141GB", driver)
}

fn effective(policy: &Policy, node: &PolicyNode) -> EffectivePolicy {
    resolve(policy, FactSet::embedded(), node, ON).unwrap()
}

#[test]
fn the_example_is_valid_and_explains_every_value() {
    let policy = example();
    assert_eq!(policy.check(), Ok(()));
    assert_eq!(conflicts(&policy), [""; 0]);
    let found = effective(&policy, &h200("gpu-1", "b", "580.95.05"));
    let shown: Vec<String> = found
        .values
        .iter()
        .map(|(field, value)| format!("{field} = {} ({})", value.value, value.source))
        .collect();
    assert_eq!(
        shown,
        [
            "owner = team-train (rule train-h200)",
            "track = long-term (rule fleet)",
            "minimum = 580.95.05 (rule fleet)",
            "flavour = open (rule train-h200)",
            "age_gate = 120 days, unless it fixes an advisory scored 9 or more (rule all of site b)",
            "security_deadline_days = 7 days (rule train-h200)",
            "max_skew = 240 days, 2 versions (rule fleet)",
            "windows = Wed at 22:00 Europe/Berlin for 6 h (rule all of site b)",
            "change_minutes = 45 minutes (rule fleet)",
            "approvals = plan 1, wide 1, not by the author (rule fleet)",
        ]
        .map(str::to_owned)
        .into_iter()
        .enumerate()
        .flat_map(|(at, line)| {
            let cadence = (at == 5).then(|| "cadence_days = 28 days (rule fleet)".to_owned());
            cadence.into_iter().chain([line])
        })
        .collect::<Vec<_>>()
    );
    let acme = effective(&policy, &owned_by(h200("gpu-2", "a", "580.95.05"), "acme"));
    assert_eq!(acme.pinned().unwrap().source.to_string(), "pin 0 of tenant acme");
    let excepted = effective(&policy, &h200("h200-a-17", "a", "535.261.03"));
    let pinned = excepted.pinned().unwrap();
    assert_eq!(pinned.value.to_string(), "535.261.03");
    assert_eq!(pinned.source.to_string(), "exception vendor-case-123 until 2027-01-31");
    assert_eq!(excepted.security_deadline_days(), None, "waived");
    let on_exception = h200("h200-a-17", "a", "535.261.03");
    let refusals = excepted.refusals(&pinned.value, &on_exception, FactSet::embedded(), ON);
    assert_eq!(refusals, [], "an exception may pin an old driver past its end of support");
    let after = resolve(
        &policy,
        FactSet::embedded(),
        &h200("h200-a-17", "a", "535.261.03"),
        date(2027, 2, 1),
    );
    assert_eq!(after.unwrap().pinned(), None, "the exception has expired");
}

#[test]
fn a_policy_without_changes_says_nothing_and_reads_as_before() {
    let policy: Policy = serde_json::from_str("{}").unwrap();
    assert_eq!(policy, Policy::default());
    let found = effective(&policy, &h200("gpu-1", "a", "580.95.05"));
    assert!(found.values.is_empty() && found.forbidden.is_empty());
    let json = serde_json::to_value(&policy).unwrap();
    for key in ["version", "changes", "signatures"] {
        assert_eq!(json.get(key), None, "{key}");
    }
    let old: Policy = serde_json::from_value(json!({ "changes": { "budgets": {} } })).unwrap();
    assert_eq!(old.check(), Ok(()), "an empty part says nothing");
    let old = json!({ "changes": { "rules": { "x": { "cadence_days": 1 } } } });
    let old: Policy = serde_json::from_value(old).unwrap();
    assert_eq!(
        old.check().unwrap_err().to_string(),
        "changes: expected `\"version\": 2` in a policy with this part"
    );
    let newer: Policy = serde_json::from_value(json!({ "version": 3 })).unwrap();
    assert_eq!(newer.check().unwrap_err().to_string(), "version: expected 1 to 2, found 3");
}

#[test]
fn a_document_round_trips_and_refuses_unknown_keys() {
    let policy = example();
    let bytes = serde_json::to_vec(&policy).unwrap();
    assert_eq!(serde_json::from_slice::<Policy>(&bytes).unwrap(), policy);
    let event = Event::PolicySet { policy: Box::new(policy) };
    let json = serde_json::to_string(&event).unwrap();
    assert_eq!(serde_json::from_str::<Event>(&json).unwrap(), event);
    for unknown in [
        json!({ "changes": { "rule": {} } }),
        json!({ "changes": { "rules": { "x": { "pin": "580.95.05" } } } }),
        json!({ "changes": { "rules": { "x": { "select": { "sku": ["H200"] } } } } }),
        json!({ "changes": { "exceptions": { "x": {
            "select": { "node": ["n"] }, "pinned": "580.95.05", "reason": "r", "owner": "o" } } } }),
    ] {
        assert!(serde_json::from_value::<Policy>(unknown.clone()).is_err(), "{unknown}");
    }
}

#[test]
fn equally_specific_selectors_that_disagree_are_a_conflict() {
    let tied = rules(json!({
        "h200": { "select": { "gpu": ["H200*"] }, "track": "long-term" },
        "site-a": { "select": { "site": ["a"] }, "track": "production" },
    }));
    assert_eq!(
        conflicts(&tied),
        [
            "tie: rule h200 (long-term) and rule site-a (production) are equally specific and give track two values for the same nodes"
        ]
    );
    let node = h200("gpu-1", "a", "580.95.05");
    assert!(resolve(&tied, FactSet::embedded(), &node, ON).is_err());
    // A more specific rule decides.
    let decided = rules(json!({
        "h200": { "select": { "gpu": ["H200*"] }, "track": "long-term" },
        "site-a": { "select": { "site": ["a"] }, "track": "production" },
        "both": { "select": { "site": ["a"], "gpu": ["H*"] }, "track": "long-term" },
    }));
    assert_eq!(conflicts(&decided), [""; 0]);
    let track = effective(&decided, &node).track().unwrap();
    assert_eq!(track.source, PolicySource::Rule("both".to_owned()));
    // The same value, or no node in common.
    for other in [
        json!({ "select": { "site": ["a"] }, "track": "long-term" }),
        json!({ "select": { "gpu": ["L4"] }, "track": "production" }),
        json!({ "select": { "site": ["a"] }, "minimum": "580.95.05" }),
    ] {
        let h200 = json!({ "select": { "gpu": ["H200*"] }, "track": "long-term" });
        assert_eq!(conflicts(&rules(json!({ "h200": h200, "other": other }))), [""; 0]);
    }
}

#[test]
fn pins_of_tenants_contradict_each_other() {
    let tenants = policy(json!({ "tenants": { "acme": [
        { "select": { "pool": ["train"] }, "pinned": "580.126.20" },
        { "select": { "site": ["a"] }, "pinned": "580.95.05" },
    ] } }));
    assert_eq!(
        conflicts(&tenants),
        [
            "tenant-pins: pin 0 of tenant acme (580.126.20) and pin 1 of tenant acme (580.95.05) are equally specific and give pinned two values for the same nodes"
        ]
    );
    let one_version = json!({ "train": {
        "select": { "pool": ["train"] }, "max_skew": { "versions": 1 } } });
    let sharing = |select: Value| {
        policy(json!({ "rules": one_version, "tenants": {
            "acme": [{ "select": select, "pinned": "580.126.20" }],
            "umbrella": [{ "select": select, "pinned": "580.95.05" }],
        } }))
    };
    let text = "tenant-versions: tenants pin different drivers in pool train (acme 580.126.20, umbrella 580.95.05), rule train allows 1";
    assert_eq!(conflicts(&sharing(json!({ "pool": ["train"] }))), [text]);
    // If the pins do not name the pool, only the nodes of the fleet tell that they share it.
    let anywhere = sharing(json!({}));
    assert_eq!(conflicts(&anywhere), [""; 0]);
    let nodes = [
        owned_by(h200("n1", "a", "580.95.05"), "acme"),
        owned_by(h200("n2", "a", "580.95.05"), "umbrella"),
    ];
    let found = conflicts_with(&anywhere, &nodes);
    assert_eq!(found.iter().map(PolicyConflict::code).collect::<Vec<_>>(), ["tenant-versions"]);
    assert_eq!(conflicts_with(&anywhere, &nodes[..1]), []);
}

#[test]
fn pins_contradict_minimum_forbidden_and_end_of_support() {
    let pinned = |rule: Value, exceptions: Value| {
        policy(json!({
            "rules": { "all": rule },
            "tenants": { "acme": [{ "pinned": "570.211.01" }] },
            "exceptions": exceptions,
        }))
    };
    let waived = |select: Value| {
        json!({ "old": { "select": select, "waive": ["end-of-support"], "reason": "r",
            "owner": "o", "expires": "2027-01-31" } })
    };
    let ended = "pin-past-support: pin 0 of tenant acme pins 570.211.01, whose branch ended on 2026-02-28: an exception has to waive end-of-support";
    assert_eq!(conflicts(&pinned(json!({}), json!({}))), [ended]);
    let acme = waived(json!({ "tenant": ["acme"] }));
    assert_eq!(conflicts(&pinned(json!({}), acme.clone())), [""; 0]);
    assert_eq!(conflicts(&pinned(json!({}), waived(json!({ "site": ["a"] })))), [ended]);
    assert_eq!(
        conflicts(&pinned(json!({ "minimum": "580.95.05" }), acme.clone())),
        [
            "pin-below-minimum: pin 0 of tenant acme pins 570.211.01, rule all requires at least 580.95.05"
        ]
    );
    assert_eq!(
        conflicts(&pinned(json!({ "forbidden": ["570.211.01"] }), acme)),
        ["pin-forbidden: pin 0 of tenant acme pins 570.211.01, rule all forbids it"]
    );
}

#[test]
fn windows_that_never_occur_or_are_too_short_are_conflicts() {
    let window = json!([{ "days": ["sat"], "from": "22:00", "hours": 2 }]);
    let frozen = |to: &str, allow: &str, scope: &str| {
        policy(json!({
            "rules": { "lab": { "select": { "pool": ["lab"] }, "windows": window } },
            "freezes": { "long": { "scope": scope, "from": "2026-11-01T00:00:00Z", "to": to,
                "reason": "r", "owner": "o", "allow": allow } },
        }))
    };
    let never = "window-never-occurs: freezes cover every window of rule lab in the next 366 days";
    for scope in ["fleet", "pool:lab"] {
        assert_eq!(conflicts(&frozen("2028-01-01T00:00:00Z", "none", scope)), [never]);
    }
    assert_eq!(conflicts(&frozen("2028-01-01T00:00:00Z", "none", "pool:other")), [""; 0]);
    assert_eq!(conflicts(&frozen("2028-01-01T00:00:00Z", "security", "fleet")), [""; 0]);
    assert_eq!(conflicts(&frozen("2027-10-01T00:00:00Z", "none", "fleet")), [""; 0]);
    let short = rules(json!({
        "lab": { "windows": window },
        "slow": { "select": { "gpu": ["GB300"] }, "change_minutes": 121 },
    }));
    assert_eq!(
        conflicts(&short),
        [
            "window-too-short: a change takes up to 121 minutes, and the longest window of rule lab is open for 120"
        ]
    );
}

#[test]
fn a_security_deadline_before_the_age_gate_needs_a_waiver() {
    let deadline = |gate: Value, exceptions: Value| {
        policy(json!({
            "rules": {
                "all": { "age_gate": gate },
                "h200": { "select": { "gpu": ["H200*"] }, "security_deadline_days": 7 },
            },
            "exceptions": exceptions,
        }))
    };
    let conflict = "deadline-before-age-gate: rule h200 requires security fixes within 7 days, and rule all makes every release wait for 90 days: set unless_advisory_score, or waive one of them in an exception";
    assert_eq!(conflicts(&deadline(json!({ "days": 90 }), json!({}))), [conflict]);
    let scored = json!({ "days": 90, "unless_advisory_score": 8 });
    assert_eq!(conflicts(&deadline(scored, json!({}))), [""; 0]);
    assert_eq!(conflicts(&deadline(json!({ "days": 7 }), json!({}))), [""; 0]);
    let waived = json!({ "x": { "select": { "gpu": ["H*"] }, "waive": ["age-gate"],
        "reason": "r", "owner": "o", "expires": "2027-01-31" } });
    assert_eq!(conflicts(&deadline(json!({ "days": 90 }), waived)), [""; 0]);
}

#[test]
fn a_share_that_rounds_to_no_node_needs_allow_min_one() {
    let budget = |version: u32, budget: Value| -> Policy {
        let policy = json!({ "version": version, "disruption_budgets": { "rack": budget } });
        serde_json::from_value(policy).unwrap()
    };
    let mut small = h200("n1", "a", "580.95.05");
    small.location.rack = "r1".parse().ok();
    let nodes = [small];
    let texts = |policy: &Policy| {
        conflicts_with(policy, &nodes).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(
        texts(&budget(2, json!({ "share": 0.5 }))),
        [
            "disruption_budgets.rack: a share of 0.5 of the 1 nodes of rack r1 is no node: set allow_min_one to allow one"
        ]
    );
    let none = budget(2, json!({ "share": 0.0 }));
    assert_eq!(
        conflicts(&none),
        [
            "rounds-to-none: disruption_budgets.rack: a share of 0 of any number of nodes is no node: set allow_min_one to allow one"
        ]
    );
    let allowed = budget(2, json!({ "share": 0.5, "allow_min_one": true }));
    assert_eq!(texts(&allowed), [""; 0]);
    assert_eq!(texts(&budget(2, json!({ "share": 0.5, "nodes": 0 }))), [""; 0], "none is meant");
    // Documents of version 1 keep their meaning.
    let first = budget(1, json!({ "share": 0.5 }));
    assert_eq!(texts(&first), [""; 0]);
    let rack = nodes[0].location.domains().last().unwrap().kind();
    let limit = |policy: &Policy| policy.disruption_limit(rack, 1);
    assert_eq!((limit(&first), limit(&allowed), limit(&none)), (Some(1), Some(1), Some(0)));
}

#[test]
fn an_overlay_may_only_tighten() {
    let overlay = |rule: Value| {
        policy(json!({
            "rules": { "all": { "minimum": "580.95.05", "approvals": { "stages": { "wide": 2 } } } },
            "overlays": { "b": { "rules": { "own": rule } } },
        }))
    };
    let tighter = overlay(json!({ "minimum": "580.126.20", "forbidden": ["580.126.09"] }));
    assert_eq!(conflicts(&tighter), [""; 0]);
    let at = |site| effective(&tighter, &h200("n1", site, "580.126.20"));
    assert_eq!(at("b").minimum().unwrap().value.to_string(), "580.126.20");
    assert_eq!(at("b").forbidden.len(), 1);
    assert_eq!(at("a").minimum().unwrap().value.to_string(), "580.95.05");
    assert_eq!(at("a").forbidden, []);
    let looser = overlay(json!({ "minimum": "580.65.06" }));
    assert_eq!(
        conflicts(&looser),
        [
            "overlay-loosens: the overlay of site b loosens minimum: rule all sets 580.95.05, rule own of site b sets 580.65.06"
        ]
    );
    // An overlay from an old log never loosens anything.
    let kept = effective(&looser, &h200("n1", "b", "580.126.20")).minimum().unwrap();
    assert_eq!(kept.source, PolicySource::Rule("all".to_owned()));
    let fewer = overlay(json!({ "approvals": { "stages": { "wide": 1 } } }));
    assert_eq!(
        conflicts(&fewer),
        [
            "overlay-loosens: the overlay of site b loosens approvals: rule all sets wide 2, not by the author, rule own of site b sets wide 1, not by the author"
        ]
    );
    let owner = json!({ "version": 2, "changes": { "overlays": { "b": { "rules": {
        "own": { "owner": "me" } } } } } });
    let owner: Policy = serde_json::from_value(owner).unwrap();
    assert_eq!(owner.check().unwrap_err().at, "changes.overlays.b.rules.own.owner");
}

#[test]
fn exceptions_always_expire_and_never_select_every_node() {
    let exception = |value: Value| -> Policy {
        let mut one = json!({ "select": { "node": ["n1"] }, "pinned": "580.95.05", "reason": "r",
            "owner": "o", "expires": "2026-11-18" });
        one.as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
        let changes = json!({ "exceptions": { "x": one } });
        serde_json::from_value(json!({ "version": 2, "changes": changes })).unwrap()
    };
    assert_eq!(
        conflicts(&exception(json!({})))[..1],
        ["exception-expired: exception x expired on 2026-11-18"]
    );
    let at = |value: Value| exception(value).check().unwrap_err().at;
    assert_eq!(at(json!({ "select": {} })), "changes.exceptions.x.select");
    assert_eq!(at(json!({ "pinned": null })), "changes.exceptions.x");
    assert_eq!(at(json!({ "owner": " " })), "changes.exceptions.x.owner");
    assert_eq!(at(json!({ "select": { "site": [] } })), "changes.exceptions.x.select.site");
}

#[test]
fn bad_values_are_refused_by_name() {
    for (at, rule) in [
        (
            "windows[0].tz",
            json!({ "windows": [{ "from": "22:00", "hours": 1, "tz": "Mars/Base" }] }),
        ),
        ("windows[0].hours", json!({ "windows": [{ "from": "22:00", "hours": 0 }] })),
        (
            "age_gate.unless_advisory_score",
            json!({ "age_gate": { "days": 1, "unless_advisory_score": 11 } }),
        ),
        ("cadence_days", json!({ "cadence_days": 0 })),
        ("max_skew.versions", json!({ "max_skew": { "versions": 0 } })),
        ("approvals.stages.wide", json!({ "approvals": { "stages": { "wide": 99 } } })),
    ] {
        let policy = json!({ "version": 2, "changes": { "rules": { "x": rule } } });
        let policy: Policy = serde_json::from_value(policy).unwrap();
        assert_eq!(policy.check().unwrap_err().at, format!("changes.rules.x.{at}"));
    }
    let freeze = json!({ "scope": "fleet", "from": "2026-12-01T00:00:00Z",
        "to": "2026-12-01T00:00:00Z", "reason": "r", "owner": "o" });
    let policy = json!({ "version": 2, "changes": { "freezes": { "x": freeze } } });
    let policy: Policy = serde_json::from_value(policy).unwrap();
    assert_eq!(policy.check().unwrap_err().at, "changes.freezes.x.to");
}

#[test]
fn rules_about_unread_values_stay_undetermined() {
    let policy = example();
    let mut unread = h200("gpu-1", "a", "580.95.05");
    unread.gpus = None;
    let found = effective(&policy, &unread);
    let sources: Vec<String> =
        found.undetermined.iter().map(|rule| rule.source.to_string()).collect();
    assert_eq!(sources, ["rule train-h200", "rule volta"]);
    assert_eq!(found.branch(&unread, FactSet::embedded(), ON), BranchChoice::UnknownGpus);
    let (newest, _) = found.newest_allowed(&unread, FactSet::embedded(), ON);
    assert_eq!(newest, None, "nothing may be installed on a node that could not be read");
    assert!(effective(&policy, &h200("gpu-1", "a", "580.95.05")).undetermined.is_empty());
}

#[test]
fn freezes_let_pass_what_they_allow() {
    let policy = example();
    let found = effective(&policy, &h200("gpu-1", "a", "580.95.05"));
    let during = "2026-12-20T00:00:00Z".parse().unwrap();
    let stops = |purpose, at| found.freeze_at(purpose, at).is_some();
    assert!(stops(ChangePurpose::Routine, during));
    assert!(!stops(ChangePurpose::Security, during));
    assert!(!stops(ChangePurpose::Rollback, during));
    assert!(!stops(ChangePurpose::Routine, "2027-01-04T00:00:00Z".parse().unwrap()));
}

#[test]
fn the_newest_allowed_driver_obeys_track_minimum_age_and_architecture() {
    let facts = FactSet::embedded();
    let newest = |policy: &Policy, node: &PolicyNode| {
        let (driver, refused) = effective(policy, node).newest_allowed(node, facts, ON);
        (driver.map(|driver| driver.to_string()), refused)
    };
    let h200_node = h200("n1", "a", "580.95.05");
    let v100 = node("n2", "old", "a", "V100-SXM2-32GB", "580.95.05");
    let track = |track: &str| rules(json!({ "all": { "track": track } }));
    assert_eq!(
        effective(&track("long-term"), &h200_node).branch(&h200_node, facts, ON),
        BranchChoice::Branch(farrier_facts::version::Branch(580))
    );
    let production = newest(&track("production"), &h200_node);
    assert!(production.0.unwrap().starts_with("595."));
    // Volta ends at R580, which is the newest branch of every track for it.
    assert!(newest(&track("production"), &v100).0.unwrap().starts_with("580."));
    assert!(newest(&track("new-feature"), &v100).0.unwrap().starts_with("580."));
    let old = rules(json!({ "all": { "track": "long-term", "age_gate": { "days": 3650 } } }));
    let (driver, refused) = newest(&old, &h200_node);
    assert_eq!(driver, None);
    let latest = &facts.drivers.branch(farrier_facts::version::Branch(580)).unwrap().latest;
    let reasons = &refused.iter().find(|(driver, _)| driver == latest).unwrap().1;
    assert!(
        reasons.iter().any(|reason| reason.to_string().contains("allowed from")),
        "{reasons:?}"
    );
    // A release that fixes an advisory need not wait.
    let scored = json!({ "days": 3650, "unless_advisory_score": 7.0 });
    let urgent = rules(json!({ "all": { "track": "long-term", "age_gate": scored } }));
    assert!(newest(&urgent, &h200_node).0.is_some());
}

#[test]
fn differences_are_by_meaning_and_name_the_nodes() {
    let before = example();
    let mut after = example();
    after.changes.rules.get_mut("train-h200").unwrap().security_deadline_days = Some(5);
    let found = differences(&before, &after);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].at, "changes.rules.train-h200.security_deadline_days");
    let nodes = [h200("n1", "a", "580.95.05"), h200("n2", "c", "580.95.05")];
    let changed = node_differences(&before, &after, FactSet::embedded(), &nodes, ON);
    assert_eq!(changed.len(), 1);
    assert_eq!(changed[0].node.as_str(), "n1");
    assert_eq!(changed[0].values[0].field, RuleField::SecurityDeadlineDays.name());
    // A new rule differs by value, and a pool without an entry has the default.
    let mut after = example();
    let rule = json!({ "select": { "site": ["c"] }, "cadence_days": 7 });
    after.changes.rules.insert("c".to_owned(), serde_json::from_value(rule).unwrap());
    after.pools.clear();
    let found = differences(&before, &after);
    let at: Vec<&str> = found.iter().map(|one| one.at.as_str()).collect();
    assert_eq!(
        at,
        ["changes.rules.c.cadence_days", "changes.rules.c.select.site", "pools.lab.autonomy"]
    );
    // Writing a default is no difference.
    let spelled: Policy = serde_json::from_value(serde_json::to_value(&before).unwrap()).unwrap();
    assert_eq!(differences(&before, &spelled), []);
    // The version changes what an omitted `allow_min_one` means.
    let newer = Policy { version: POLICY_VERSION, ..Policy::default() };
    assert_eq!(differences(&Policy::default(), &newer)[0].at, "version");
}

fn report(policy: &Policy, nodes: &[PolicyNode]) -> PolicyReport {
    policy_report(policy, FactSet::embedded(), nodes, ON)
}

#[test]
fn the_report_lists_support_exposure_skew_endings_pins_and_deviations() {
    let mut policy = example();
    policy.changes.tenants = serde_json::from_value(json!({
        "acme": [{ "pinned": "580.126.20" }], "umbrella": [{ "pinned": "580.95.05" }],
    }))
    .unwrap();
    let mut unread = h200("n9", "a", "580.95.05");
    unread.driver = None;
    let nodes = [
        owned_by(h200("n1", "a", "580.95.05"), "acme"),
        owned_by(h200("n2", "a", "580.95.05"), "umbrella"),
        h200("n3", "a", "570.124.06"),
        h200("n4", "a", "580.126.20"),
        node("n5", "old", "a", "V100-SXM2-32GB", "580.95.05"),
        unread,
    ];
    let report = report(&policy, &nodes);
    assert!(report.needs_action());
    let [ended] = &report.support[..] else { panic!("{:?}", report.support) };
    assert_eq!((ended.driver.to_string(), ended.days_left), ("570.124.06".to_owned(), Some(-264)));
    let old = report.exposure.iter().find(|row| row.driver.to_string() == "570.124.06").unwrap();
    assert!(old.overdue && old.exposed_days > 30 && old.lacking > 0, "{old:?}");
    let [skew] = &report.skew[..] else { panic!("{:?}", report.skew) };
    assert_eq!((skew.drivers.len(), skew.exceeded), (3, true));
    let [ending] = &report.ending[..] else { panic!("{:?}", report.ending) };
    assert_eq!(
        (ending.last_branch.0, ending.gpus.as_slice()),
        (580, &["V100-SXM2-32GB".to_owned()][..])
    );
    let [pins] = &report.tenant_pins[..] else { panic!("{:?}", report.tenant_pins) };
    assert_eq!((pins.pins.len(), pins.limit), (2, Some(2)));
    let deviating: Vec<String> =
        report.deviations.iter().map(|row| format!("{} {}", row.driver, row.refusals[0])).collect();
    assert_eq!(
        deviating,
        ["570.124.06 the minimum is 580.95.05", "580.95.05 580.126.20 is pinned"]
    );
    assert_eq!(report.unknown, ["n9".parse().unwrap()]);
    let [exception] = &report.exceptions[..] else { panic!("{:?}", report.exceptions) };
    assert_eq!((exception.days_left, exception.nodes), (73, 0));
}
