use std::collections::BTreeSet;

use serde_json::Value;

use super::*;

/// The code in the JSON of a value.
fn code_in(value: &Value) -> &str {
    value["code"].as_str().unwrap()
}

#[test]
fn every_reason_has_a_sample_and_its_code_matches_its_json() {
    let mut codes = BTreeSet::new();
    for reason in samples::reasons() {
        let json = serde_json::to_value(&reason).unwrap();
        assert_eq!(serde_json::from_value::<Reason>(json.clone()).unwrap(), reason);
        match &reason {
            Reason::Withheld { .. } | Reason::Rendered { .. } => continue,
            _ => assert_eq!(code_in(&json), reason.code()),
        }
        codes.insert(reason.code().to_owned());
    }
    assert_eq!(codes, Reason::CODES.map(str::to_owned).into());
    let mut codes = BTreeSet::new();
    for unblocked_by in samples::unblocked_by() {
        let json = serde_json::to_value(&unblocked_by).unwrap();
        assert_eq!(serde_json::from_value::<UnblockedBy>(json.clone()).unwrap(), unblocked_by);
        assert_eq!(code_in(&json), unblocked_by.code());
        codes.insert(unblocked_by.code());
    }
    assert_eq!(codes, UnblockedBy::CODES.into());
}

#[test]
fn every_reason_reads_as_a_sentence_and_not_as_its_code() {
    for reason in samples::reasons() {
        let text = reason.to_string();
        assert!(text.contains(' ') && text != reason.code(), "{reason:?}: {text}");
    }
    for unblocked_by in samples::unblocked_by() {
        assert!(unblocked_by.to_string().contains(' '), "{unblocked_by:?}");
    }
}

/// Everything that a caller with this scope sees of the rationale, as text.
fn redacted_text(rationale: &Rationale, scope: &Domain) -> String {
    let redacted = rationale.redacted(scope);
    let json = serde_json::to_string(&redacted).unwrap();
    format!("{json} {} {}", redacted.reason, redacted.unblocked_by)
}

#[test]
fn a_caller_of_one_pool_sees_no_counts_and_no_nodes_of_others() {
    let pool: Domain = "pool:train".parse().unwrap();
    for reason in samples::reasons() {
        for unblocked_by in samples::unblocked_by() {
            let rationale = Rationale::new(reason.clone(), unblocked_by);
            let text = redacted_text(&rationale, &pool);
            for count in samples::FOREIGN_COUNTS {
                assert!(!text.contains(&count.to_string()), "{reason:?} shows {count}: {text}");
            }
            assert!(!text.contains(samples::FOREIGN_NODE), "{reason:?} shows {text}");
            assert_eq!(rationale.redacted(&Domain::Fleet), rationale);
        }
        assert_eq!(reason.redacted(&pool).code(), reason.code(), "the code is always shown");
    }
}

#[test]
fn a_caller_of_one_pool_sees_no_names_of_others() {
    let [scope, other]: [Domain; 2] =
        ["pool:train", "pool:zz-secret"].map(|domain| domain.parse().unwrap());
    let (pool, node) = ("zz-secret".parse().ok(), "zz-node".parse().ok());
    for reason in samples::reasons_naming(&other, pool.clone()) {
        for unblocked_by in samples::unblocked_by_naming(&other, pool.clone(), node.clone()) {
            let rationale = Rationale::new(reason.clone(), unblocked_by);
            let text = redacted_text(&rationale, &scope);
            assert!(!text.contains("zz-"), "{rationale:?} shows {text}");
            let redacted = rationale.redacted(&scope).unblocked_by;
            assert_eq!(redacted.changes_at(), rationale.unblocked_by.changes_at());
            assert_eq!(redacted.is_approvable(), rationale.unblocked_by.is_approvable());
        }
        assert_eq!(reason.redacted(&scope).code(), reason.code(), "the code is always shown");
    }
}

#[test]
fn a_caller_of_one_pool_sees_its_own_counts() {
    let counts = Some(BudgetCounts { out: 1, members: 2, limit: 1 });
    let domain: Domain = "pool:train".parse().unwrap();
    let used_by = NodeNames::new(["gpu-1".parse().unwrap()].into_iter(), 1);
    let reason = Reason::DisruptionBudget { domain: domain.clone(), counts, used_by };
    assert_eq!(reason.redacted(&domain), reason);
    let for_tenant = reason.redacted(&"tenant:train".parse().unwrap());
    let used_by = NodeNames::default();
    assert_eq!(for_tenant, Reason::DisruptionBudget { domain, counts: None, used_by });
    let for_other = reason.redacted(&"pool:training".parse().unwrap());
    assert_eq!(for_other, Reason::Withheld { original_code: "disruption-budget".to_owned() });
}

/// A log stores no sentences, so the wording can change and every log can still be replayed.
#[test]
fn no_sentence_is_stored() {
    for reason in samples::reasons() {
        let stores_text = matches!(reason, Reason::Rendered { .. } | Reason::Legacy { .. });
        let json = serde_json::to_string(&reason).unwrap();
        assert!(stores_text || !json.contains(&reason.to_string()), "{json}");
    }
    for unblocked_by in samples::unblocked_by() {
        let stores_text = matches!(unblocked_by, UnblockedBy::Legacy { .. });
        let json = serde_json::to_string(&unblocked_by).unwrap();
        assert!(stores_text || !json.contains(&unblocked_by.to_string()), "{json}");
    }
}

#[test]
fn long_texts_are_cut_at_a_character() {
    assert_eq!(bounded("short"), "short");
    let cut = bounded(&"ä".repeat(400));
    assert!(cut.len() < 520 && cut.ends_with("ä…"), "{cut}");
}
