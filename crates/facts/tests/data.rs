//! The embedded set is good, and a set that is not is refused.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use farrier_facts::FactSet;
use farrier_facts::set::SetError;
use serde_json::{Value, json};

fn embedded() -> Value {
    serde_json::to_value(FactSet::embedded()).unwrap()
}

/// Changes the embedded set and says how the reader refuses the result.
fn refused(change: impl FnOnce(&mut Value)) -> String {
    let mut set = embedded();
    change(&mut set);
    match FactSet::parse_validated(set.to_string().as_bytes()) {
        Ok(_) => panic!("the changed set was taken"),
        Err(SetError::Form(err)) => err.to_string(),
        Err(err) => err.to_string(),
    }
}

#[test]
fn the_embedded_set_is_good() {
    let set = FactSet::parse_validated(embedded().to_string().as_bytes()).unwrap();
    assert!(set.gpus.gpu.len() >= 30);
    assert!(set.drivers.branch.len() >= 24);
    assert!(set.advisories.advisory.len() >= 200);
}

#[test]
fn unknown_keys_are_refused() {
    let error = refused(|set| set["gpus"]["gpu"][0]["colour"] = json!("green"));
    assert!(error.contains("unknown field `colour`"), "{error}");
    let error = refused(|set| set["drivers"]["branch"][0]["origin"]["by"] = json!("hand"));
    assert!(error.contains("unknown field `by`"), "{error}");
}

#[test]
fn missing_sources_are_refused() {
    let error = refused(|set| {
        set["cuda"]["toolkit"][0].as_object_mut().unwrap().remove("origin");
    });
    assert!(error.contains("missing field `origin`"), "{error}");
    let error = refused(|set| set["cuda"]["toolkit"][0]["origin"]["source"] = json!([]));
    assert!(error.contains("/cuda/toolkit/0: origin without a source"), "{error}");
    let error =
        refused(|set| set["cuda"]["toolkit"][0]["origin"]["retrieved"] = json!("2999-01-01"));
    assert!(error.contains("retrieved after the date of the set"), "{error}");
}

#[test]
fn versions_that_do_not_parse_are_refused() {
    let error = refused(|set| set["drivers"]["release"][0]["version"] = json!("450.x"));
    assert!(error.contains("`450.x` is not a driver version"), "{error}");
    let error = refused(|set| set["cuda"]["toolkit"][0]["version"] = json!("13"));
    assert!(error.contains("`13` is not a CUDA toolkit version"), "{error}");
    let error = refused(|set| set["frameworks"]["build"][0]["version"] = json!("two"));
    assert!(error.contains("`two` is not a package version"), "{error}");
}

#[test]
fn branches_without_dates_are_refused() {
    let error = refused(|set| {
        set["drivers"]["branch"][0].as_object_mut().unwrap().remove("first_release");
    });
    assert!(error.contains("missing field `first_release`"), "{error}");
    let error = refused(|set| {
        set["drivers"]["branch"][0].as_object_mut().unwrap().remove("end_of_support");
    });
    assert!(error.contains("neither an end of support nor a reason for none"), "{error}");
    let error = refused(|set| set["drivers"]["branch"][0]["end_of_support"] = json!("soon"));
    assert!(error.contains("`soon` is not a date"), "{error}");
}

#[test]
fn gpus_without_compute_capability_are_refused() {
    let error = refused(|set| {
        set["gpus"]["gpu"][0].as_object_mut().unwrap().remove("compute_capability");
    });
    assert!(error.contains("missing field `compute_capability`"), "{error}");
    let error = refused(|set| set["gpus"]["gpu"][0]["compute_capability"] = json!("1.0"));
    assert!(error.contains("no target 1.0 in architecture"), "{error}");
}

#[test]
fn names_that_point_nowhere_or_twice_are_refused() {
    let error = refused(|set| set["gpus"]["alias"][0]["gpu"] = json!("Z9000"));
    assert!(error.contains("alias of `Z9000`: no such GPU"), "{error}");
    let error = refused(|set| set["gpus"]["alias"][0]["names"] = json!(["H100-SXM5-80GB"]));
    assert!(error.contains("means both"), "{error}");
    let error = refused(|set| set["gpus"]["gpu"][0]["unverified"] = json!(["memory.colour"]));
    assert!(error.contains("marks `memory.colour`, which it does not have"), "{error}");
}

#[test]
fn a_set_of_another_schema_says_so() {
    let error = refused(|set| {
        set["set"]["schema"] = json!(2);
        set["set"]["new"] = json!(true);
    });
    assert_eq!(error, "fact set has schema 2, this build reads schema 1");
}
