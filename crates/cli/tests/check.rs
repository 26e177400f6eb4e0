//! `farrier check` of given versions: exit codes, JSON, messages.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use serde_json::Value;
use support::run;

fn json(args: &[&str]) -> (i32, Value) {
    let mut full_args = vec!["check", "--output", "json", "--on", "2026-11-15"];
    full_args.extend(args);
    let output = run(&full_args);
    (output.code, serde_json::from_str(&output.stdout).unwrap())
}

#[test]
fn exit_codes_follow_the_verdict() {
    let cases = [
        (["--gpu", "H100", "--driver", "580.95.05"], "ok", 0),
        (["--gpu", "H100", "--driver", "550.54.15"], "caveat", 0),
        (["--gpu", "P100", "--driver", "590.48.01"], "blocked", 1),
        (["--gpu", "B100", "--driver", "418.226.00"], "blocked", 1),
        (["--gpu", "V100", "--driver", "418.226.00"], "unknown", 1),
    ];
    for (args, verdict, code) in cases {
        let (exit, report) = json(&args);
        assert_eq!(report["verdict"], verdict, "{args:?}");
        assert_eq!(exit, code, "{args:?}");
    }
    let unknown = ["--gpu", "H100", "--driver", "580.95.05", "--framework", "jax==0.4.20"];
    let (exit, report) = json(&unknown);
    assert_eq!((exit, &report["verdict"]), (1, &Value::from("unknown")));
}

#[test]
fn json_has_the_documented_keys() {
    let args = ["--gpu", "H100", "--driver", "550.54.15", "--framework", "torch==2.11.0"];
    let (_, report) = json(&args);
    let keys: Vec<&String> = report.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["verdict", "reasons", "remedies", "notices", "data", "subject"]);
    for reason in report["reasons"].as_array().unwrap() {
        let keys: Vec<&String> = reason.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["code", "verdict", "text", "source"]);
    }
    for remedy in report["remedies"].as_array().unwrap() {
        let keys: Vec<&String> = remedy.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["text", "command"]);
    }
    assert!(!report["notices"].as_array().unwrap().is_empty());
    assert_eq!(report["data"]["set"], "farrier-2026.11.18");
    assert_eq!(report["data"]["date"], "2026-11-18");
}

#[test]
fn strict_lets_notices_decide() {
    let args = ["--gpu", "H100", "--driver", "580.95.05"];
    assert_eq!(json(&args).1["verdict"], "ok");
    let strict = ["--gpu", "H100", "--driver", "580.95.05", "--strict"];
    assert_eq!(json(&strict).1["verdict"], "blocked");
}

#[test]
fn invalid_input_is_refused_with_the_field_and_a_valid_value() {
    let cases: [(&[&str], &str, &str); 10] = [
        (&["--gpu", "H100", "--driver", "550.abc"], "--driver: `550.abc`", "580.65.06"),
        (&["--gpu", "H100", "--driver", ""], "--driver: no version given", "580.65.06"),
        (&["--gpu", "Z9000", "--driver", "580"], "--gpu: `Z9000`", "farrier facts gpu"),
        (&["--gpu", "H100", "--driver", "580", "--cuda", "12.7"], "no CUDA 12.7", "12.6, 12.8"),
        (&["--gpu", "H100", "--driver", "12.8", "--cuda", "550.54.15"], "swapped", "12.8"),
        (
            &["--gpu", "H100", "--driver", "580", "--framework", "torch==2.99"],
            "torch 2.99",
            "2.15.0",
        ),
        (&["--gpu", "H100", "--driver", "580", "--framework", "toch==2.9"], "`toch`", "`torch`"),
        (&["--gpu", "H100", "--driver", "580", "--use", "play"], "'play'", "compile"),
        (&["--gpu", "H100", "--driver", "580", "--on", "soon"], "'soon'", "2026-11-15"),
        (&["--driver", "580"], "--gpu", "--help"),
    ];
    for (args, problem, expected) in cases {
        let mut full_args = vec!["check"];
        full_args.extend(args);
        let output = run(&full_args);
        assert_eq!(output.code, 2, "{args:?}");
        assert_eq!(output.stdout, "", "{args:?}");
        assert!(output.stderr.contains(problem), "{args:?}: {}", output.stderr);
        assert!(output.stderr.contains(expected), "{args:?}: {}", output.stderr);
    }
}

#[test]
fn inexact_input_gives_a_caveat_that_states_the_assumption() {
    let cases: [(&[&str], &str); 3] = [
        (&["--gpu", "H100", "--driver", "550"], "550.163.01, is assumed"),
        (&["--gpu", "H100", "--driver", "580.95.05", "--cuda", "13"], "without its minor"),
        (&["--gpu", "H100", "--driver", "999.1"], "newer than the newest branch in the data"),
    ];
    for (args, assumption) in cases {
        let (exit, report) = json(args);
        assert_eq!((exit, &report["verdict"]), (0, &Value::from("caveat")), "{args:?}");
        let reasons = report["reasons"].as_array().unwrap();
        let states_assumption =
            |reason: &Value| reason["text"].as_str().unwrap().contains(assumption);
        assert!(reasons.iter().any(states_assumption), "{args:?}: {reasons:?}");
    }
}

#[test]
fn the_table_is_for_people() {
    let args =
        ["check", "--gpu", "V100", "--driver", "580.95.05", "--cuda", "13", "--on", "2026-11-15"];
    insta::assert_snapshot!(run(&args).stdout);
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let mut child = support::farrier(&["facts", "export"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
