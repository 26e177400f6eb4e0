//! Compares the simulated H200 with a real H200. The test runs `tests/fixtures/nvml/capture.py`
//! against the simulation and compares the result, call by call, with the transcript of a real GPU.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::test_node::{TestNode, python};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/nvml")
}

/// Calls whose return code may differ, with the reason.
const OTHER_CODE: &[(&str, &str)] = &[
    ("nvmlDeviceGetHandleByPciBusId", "the capture passed wide characters"),
    ("nvmlDeviceGetHandleByPciBusId_v2", "the capture passed wide characters"),
];

/// Calls whose values may differ, with the reason. The values of all other calls must match.
const OTHER_VALUE: &[(&str, &str)] = &[
    ("nvmlDeviceGetUUID", "specific to the GPU"),
    ("nvmlDeviceGetSerial", "specific to the GPU"),
    ("nvmlDeviceGetPdi", "specific to the GPU"),
    ("nvmlDeviceGetIrqNum", "specific to the machine"),
    ("nvmlSystemGetProcessName", "name of the capture process"),
    ("nvmlSystemGetDriverBranch", "the branch name is not derivable from the version"),
    ("nvmlDeviceGetPowerUsage", "a measurement"),
    ("nvmlDeviceGetTotalEnergyConsumption", "a measurement"),
    ("nvmlDeviceGetTemperature", "a measurement"),
    ("nvmlDeviceGetTemperatureV", "a measurement"),
    ("nvmlDeviceGetMarginTemperature", "a measurement"),
    ("nvmlDeviceGetThermalSettings", "a measurement"),
    ("nvmlDeviceGetPcieThroughput", "a measurement"),
    ("nvmlDeviceGetSamples", "measurements"),
    ("nvmlDeviceGetViolationStatus", "contains a timestamp"),
    ("nvmlDeviceGetHandleByPciBusId", "the capture passed wide characters"),
    ("nvmlDeviceGetHandleByPciBusId_v2", "the capture passed wide characters"),
];

/// Fields whose values may differ, with the reason. Their codes and types must match.
const OTHER_FIELD: &[(u64, &str)] = &[
    (78, "time below full load"),
    (80, "time below application clocks"),
    (81, "time below base clocks"),
    (83, "a measurement"),
    (169, "a link counter"),
    (175, "a link counter"),
    (176, "a link counter"),
    (177, "a link counter"),
    (183, "a link counter"),
    (185, "a measurement"),
    (186, "a measurement"),
    (191, "a measurement"),
    (197, "a link counter"),
    (198, "a link counter"),
];

fn is_exempt<K: PartialEq>(list: &[(K, &str)], key: &K) -> bool {
    list.iter().any(|(exempt, _)| exempt == key)
}

fn calls(transcript: &Value, group: &str) -> Vec<Value> {
    let records = transcript["groups"][group].as_array().unwrap();
    records.iter().filter(|record| record.get("call").is_some()).cloned().collect()
}

#[test]
fn simulated_h200_matches_the_recorded_transcript() {
    let Some(python) = python() else { return };
    let real: Value = serde_json::from_slice(
        &fs::read(fixtures().join("h200_580.159.04_transcript.json")).unwrap(),
    )
    .unwrap();
    let node = TestNode::new("H200-SXM5-141GB", 1, "580.159.04");
    let simulated = capture(&node, &python);

    assert_eq!(
        simulated["library"]["exported"], real["library"]["exported"],
        "exported functions differ"
    );
    let mut wrong = Vec::new();
    let mut compared = 0;
    for group in real["groups"].as_object().unwrap().keys() {
        let (real, simulated) = (calls(&real, group), calls(&simulated, group));
        assert!(simulated.len() >= real.len(), "{group} ended early");
        for (real, simulated) in real.iter().zip(&simulated) {
            assert_eq!(real["call"], simulated["call"]);
            compared += 1;
            compare(real, simulated, &mut wrong);
        }
    }
    assert!(compared > 1400, "only {compared} calls were compared");
    assert!(wrong.is_empty(), "{} of {compared} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// Runs the capture script against the node.
fn capture(node: &TestNode, python: &Path) -> Value {
    let (out, library) =
        (node.path().join("capture.json"), node.path().join("lib/libnvidia-ml.so.1"));
    let folder = node.python(python, "import pynvml; print(os.path.dirname(pynvml.__file__))");
    let script = fixtures().join("capture.py");
    let args = [
        script.to_str().unwrap(),
        "--library",
        library.to_str().unwrap(),
        "--pynvml",
        folder.trim(),
        out.to_str().unwrap(),
    ];
    let output = node.client(python, &args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&fs::read(out).unwrap()).unwrap()
}

fn compare(real: &Value, simulated: &Value, wrong: &mut Vec<String>) {
    let call = real["call"].as_str().unwrap();
    let mut differ = |what: &str, real_value: &Value, simulated_value: &Value| {
        if real_value != simulated_value {
            let shown = |value: &Value| value.to_string().chars().take(300).collect::<String>();
            wrong.push(format!(
                "{call}{} {what}:\n  real      {}\n  simulated {}",
                real["in"],
                shown(real_value),
                shown(simulated_value)
            ));
        }
    };
    for key in ["missing", "failed", "text"] {
        differ(key, &real[key], &simulated[key]);
    }
    if !is_exempt(OTHER_CODE, &call) {
        differ("code", &real["rc"], &simulated["rc"]);
    }
    // A failed call writes no outputs. Exception: with code 7 (insufficient size), a call that has
    // a count as in-out argument writes the required count.
    let answered = matches!(real["rc"].as_i64(), Some(0 | 7));
    if answered && real.get("out").is_some() && !is_exempt(OTHER_VALUE, &call) {
        differ("values", &real["out"], &simulated["out"]);
    } else if answered && real.get("out").is_some() {
        differ("shape", &shape(&real["out"]), &shape(&simulated["out"]));
    }
    for list in ["values", "metrics"] {
        let empty = Vec::new();
        let entries = |record: &Value| record[list].as_array().unwrap_or(&empty).clone();
        for (real, simulated) in entries(real).iter().zip(&entries(simulated)) {
            let (real, simulated) = (stable(real), stable(simulated));
            differ(list, &real, &simulated);
        }
    }
}

/// The members of a field or metric that do not depend on time.
fn stable(entry: &Value) -> Value {
    let mut fields = BTreeMap::new();
    for key in ["field", "scope", "rc", "type", "metric", "shortName", "longName", "unit"] {
        fields.insert(key, entry[key].clone());
    }
    if let Some(field) = entry["field"].as_u64().filter(|field| !is_exempt(OTHER_FIELD, field)) {
        fields.insert("raw", entry["raw"].clone());
        assert!(field < 1000);
    }
    serde_json::to_value(fields).unwrap()
}

/// The shape of a value: its type, and the names and number of its members.
fn shape(value: &Value) -> Value {
    match value {
        Value::Number(_) => "number".into(),
        Value::String(_) => "text".into(),
        // The length of a sample ring depends on the caller's buffer.
        Value::Array(parts) => parts.first().map_or(Value::Null, |first| match first {
            Value::Object(_) | Value::Array(_) => shape(first),
            _ => parts.iter().map(shape).collect(),
        }),
        Value::Object(parts) => {
            parts.iter().map(|(name, part)| (name.clone(), shape(part))).collect()
        }
        other => other.clone(),
    }
}
