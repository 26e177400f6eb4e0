//! The embedded set is valid, and invalid sets are rejected.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use farrier_facts::FactSet;
use farrier_facts::set::SetError;
use serde_json::{Value, json};

fn embedded() -> Value {
    serde_json::to_value(FactSet::embedded()).unwrap()
}

/// Changes the embedded set and returns the parser's error.
fn rejection(change: impl FnOnce(&mut Value)) -> String {
    let mut set = embedded();
    change(&mut set);
    match FactSet::parse_validated(set.to_string().as_bytes()) {
        Ok(_) => panic!("the changed set was accepted"),
        Err(SetError::Form(err)) => err.to_string(),
        Err(err) => err.to_string(),
    }
}

#[test]
fn embedded_set_is_valid() {
    let set = FactSet::parse_validated(embedded().to_string().as_bytes()).unwrap();
    assert!(set.gpus.gpu.len() >= 30);
    assert!(set.drivers.branch.len() >= 24);
    assert!(set.advisories.advisory.len() >= 200);
}

#[test]
fn advisories_are_newest_first() {
    let advisories = &FactSet::embedded().advisories.advisory;
    assert!(advisories.is_sorted_by(|one, next| one.published >= next.published));
    assert!(advisories[0].published > advisories[advisories.len() - 1].published);
}

#[test]
fn rejects_unknown_keys() {
    let error = rejection(|set| set["gpus"]["gpu"][0]["colour"] = json!("green"));
    assert!(error.contains("unknown field `colour`"), "{error}");
    let error = rejection(|set| set["drivers"]["branch"][0]["origin"]["by"] = json!("hand"));
    assert!(error.contains("unknown field `by`"), "{error}");
}

#[test]
fn rejects_missing_sources() {
    let error = rejection(|set| {
        set["cuda"]["toolkit"][0].as_object_mut().unwrap().remove("origin");
    });
    assert!(error.contains("missing field `origin`"), "{error}");
    let error = rejection(|set| set["cuda"]["toolkit"][0]["origin"]["source"] = json!([]));
    assert!(error.contains("/cuda/toolkit/0: origin without a source"), "{error}");
    let error =
        rejection(|set| set["cuda"]["toolkit"][0]["origin"]["retrieved"] = json!("2999-01-01"));
    assert!(error.contains("retrieved after the date of the set"), "{error}");
}

#[test]
fn rejects_malformed_versions() {
    let error = rejection(|set| set["drivers"]["release"][0]["version"] = json!("450.x"));
    assert!(error.contains("`450.x` is not a driver version"), "{error}");
    let error = rejection(|set| set["cuda"]["toolkit"][0]["version"] = json!("13"));
    assert!(error.contains("`13` is not a CUDA toolkit version"), "{error}");
    let error = rejection(|set| set["frameworks"]["build"][0]["version"] = json!("two"));
    assert!(error.contains("`two` is not a package version"), "{error}");
}

#[test]
fn rejects_branches_without_dates() {
    let error = rejection(|set| {
        set["drivers"]["branch"][0].as_object_mut().unwrap().remove("first_release");
    });
    assert!(error.contains("missing field `first_release`"), "{error}");
    let error = rejection(|set| {
        set["drivers"]["branch"][0].as_object_mut().unwrap().remove("end_of_support");
    });
    assert!(error.contains("neither an end of support nor a reason for none"), "{error}");
    let error = rejection(|set| set["drivers"]["branch"][0]["end_of_support"] = json!("soon"));
    assert!(error.contains("`soon` is not a date"), "{error}");
}

#[test]
fn rejects_gpus_without_compute_capability() {
    let error = rejection(|set| {
        set["gpus"]["gpu"][0].as_object_mut().unwrap().remove("compute_capability");
    });
    assert!(error.contains("missing field `compute_capability`"), "{error}");
    let error = rejection(|set| set["gpus"]["gpu"][0]["compute_capability"] = json!("1.0"));
    assert!(error.contains("no target 1.0 in architecture"), "{error}");
}

#[test]
fn rejects_dangling_and_ambiguous_names() {
    let error = rejection(|set| set["gpus"]["alias"][0]["gpu"] = json!("Z9000"));
    assert!(error.contains("alias of `Z9000`: no such GPU"), "{error}");
    let error = rejection(|set| set["gpus"]["alias"][0]["names"] = json!(["H100-SXM5-80GB"]));
    assert!(error.contains("means both"), "{error}");
    let error = rejection(|set| set["gpus"]["gpu"][0]["unverified"] = json!(["memory.colour"]));
    assert!(error.contains("marks `memory.colour`, which it does not have"), "{error}");
}

#[test]
fn rejects_impossible_systems_and_devices() {
    let index = |set: &Value| {
        let gpus = set["gpus"]["gpu"].as_array().unwrap();
        gpus.iter().position(|gpu| gpu["id"] == "H100-SXM5-80GB").unwrap()
    };
    let system = |set: &mut Value, key: &str, value: Value| {
        let at = index(set);
        set["gpus"]["gpu"][at]["system"][key] = value;
    };
    let error = rejection(|set| system(set, "gpus", json!(0)));
    assert!(error.contains("gpu H100-SXM5-80GB: its system is impossible"), "{error}");
    let error = rejection(|set| system(set, "nvlink_domain", Value::Null));
    assert!(error.contains("NVLink and its domain are not both known"), "{error}");
    let error = rejection(|set| set["gpus"]["device"][0]["gpu"] = json!("Z9000"));
    assert!(error.contains("device of Z9000: there is no such GPU"), "{error}");
}

/// A set from before these tables is still read.
#[test]
fn reads_sets_without_devices_and_other_vendors() {
    let mut set = embedded();
    for (kind, key) in [
        ("gpus", "device"),
        ("gpus", "other_vendor"),
        ("settings", "flag_list"),
        ("settings", "install"),
        ("settings", "resource"),
    ] {
        set[kind].as_object_mut().unwrap().remove(key);
    }
    for gpu in set["gpus"]["gpu"].as_array_mut().unwrap() {
        for key in ["product_line", "compared"] {
            gpu.as_object_mut().unwrap().remove(key);
        }
    }
    assert!(FactSet::parse_validated(set.to_string().as_bytes()).is_ok());
}

#[test]
fn reports_schema_mismatch() {
    let error = rejection(|set| {
        set["set"]["schema"] = json!(2);
        set["set"]["new"] = json!(true);
    });
    assert_eq!(error, "fact set has schema 2, this build reads schema 1");
}

#[test]
fn the_highest_clocks_of_a_gpu_are_in_one_place() {
    let gpus = &FactSet::embedded().gpus;
    for device in &gpus.device {
        let id = device.gpu.as_deref().unwrap_or_default();
        let is_rated = gpus.clocks.iter().any(|clocks| clocks.gpu == id);
        let own = (device.max_graphics_mhz.is_some(), device.max_memory_mhz.is_some());
        assert_eq!(own, (!is_rated, !is_rated), "{id}");
        let highest = gpus.highest_clocks_mhz(id, device).unwrap();
        assert!(device.lower_memory_mhz.iter().all(|lower| *lower < highest.1), "{id}");
    }
}

#[test]
fn clocks_belong_to_one_known_gpu() {
    let gpus = &FactSet::embedded().gpus;
    let clocks = gpus.clocks_by_name("NVIDIA H100 80GB HBM3").unwrap();
    assert_eq!((clocks.boost_mhz, clocks.memory_mhz), (1980, 2619));
    assert!(gpus.clocks_by_name("H100").is_none(), "a family has no clocks of its own");
    assert!(gpus.clocks_by_name("GB10").is_none(), "no source gives them");
    let error = rejection(|set| set["gpus"]["clocks"][0]["gpu"] = json!("A101"));
    assert!(error.contains("clocks of `A101`: no such GPU"), "{error}");
    let error = rejection(|set| set["gpus"]["clocks"][0]["memory_mhz"] = json!(0));
    assert!(error.contains("a clock is zero"), "{error}");
    let mut older = embedded();
    older["gpus"].as_object_mut().unwrap().remove("clocks");
    assert!(FactSet::parse_validated(older.to_string().as_bytes()).is_ok());
}
