//! Compatibility cases from vendor tables, and rejected input.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use farrier_facts::FactSet;
use farrier_facts::check::{
    CheckReport, CheckRequest, Feature, Field, InputError, Module, Query, Usage, check,
};
use jiff::civil::{Date, date};
use serde::Deserialize;

const TODAY: Date = date(2026, 11, 15);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cases {
    case: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    gpu: String,
    driver: String,
    cuda: Option<String>,
    framework: Option<String>,
    module: Option<Module>,
    r#use: Option<String>,
    #[serde(default)]
    ptx_only: bool,
    forward_compat: Option<String>,
    fabric_manager: Option<String>,
    feature: Option<String>,
    on: Option<Date>,
    #[serde(default)]
    strict: bool,
    verdict: String,
    code: String,
    /// Verdict of that reason, if different from the overall verdict.
    reason: Option<String>,
    #[serde(default)]
    says: Vec<String>,
    remedy: Option<String>,
    source: String,
}

fn check_case(case: &Case) -> CheckReport {
    let request = CheckRequest {
        gpu: case.gpu.clone(),
        driver: case.driver.clone(),
        cuda: case.cuda.clone(),
        framework: case.framework.clone(),
        module: case.module,
        usage: match case.r#use.as_deref() {
            Some("compile") => Usage::Compile,
            _ => Usage::Run,
        },
        ptx_only: case.ptx_only,
        forward_compat: case.forward_compat.clone(),
        fabric_manager: case.fabric_manager.clone(),
        feature: case.feature.as_deref().map(|feature| match feature {
            "cdmm" => Feature::Cdmm,
            "mig" => Feature::Mig,
            other => panic!("feature {other}"),
        }),
        strict: case.strict,
    };
    let set = FactSet::embedded();
    let query = Query::parse(set, &request, case.on.unwrap_or(TODAY)).unwrap();
    check(set, &query)
}

#[test]
fn follows_vendor_tables() {
    let cases: Cases = toml::from_str(include_str!("check/cases.toml")).unwrap();
    assert!(cases.case.len() >= 40);
    let mut failures = Vec::new();
    for case in &cases.case {
        let report = check_case(case);
        let mut fail = |what: String| {
            failures.push(format!("{} [{}]: {what}\n{report:#?}", case.name, case.source));
        };
        assert!(!case.source.is_empty());
        if report.verdict.name() != case.verdict {
            fail(format!("verdict {} instead of {}", report.verdict.name(), case.verdict));
        }
        let reasons: Vec<_> =
            report.reasons.iter().filter(|reason| reason.code == case.code).collect();
        if reasons.is_empty() {
            fail(format!("no reason {}", case.code));
        } else if reasons[0].verdict.name() != case.reason.as_ref().unwrap_or(&case.verdict) {
            fail(format!("{} is {}", case.code, reasons[0].verdict.name()));
        } else if !reasons
            .iter()
            .any(|reason| case.says.iter().all(|words| reason.text.contains(words)))
        {
            fail(format!("{} does not say {:?}", case.code, case.says));
        }
        let remedied = |words: &String| {
            report.remedies.iter().any(|remedy| {
                let in_command = |command: &String| command.contains(words);
                remedy.text.contains(words) || remedy.command.as_ref().is_some_and(in_command)
            })
        };
        if case.remedy.as_ref().is_some_and(|words| !remedied(words)) {
            fail(format!("no remedy with {:?}", case.remedy));
        }
        for reason in &report.reasons {
            assert!(!reason.source.is_empty(), "{}: {} has no source", case.name, reason.code);
        }
    }
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
}

fn refusal(change: impl FnOnce(&mut CheckRequest)) -> InputError {
    let mut request = CheckRequest {
        gpu: "H100".to_owned(),
        driver: "580.65.06".to_owned(),
        ..CheckRequest::default()
    };
    change(&mut request);
    Query::parse(FactSet::embedded(), &request, TODAY).unwrap_err()
}

#[test]
fn rejects_invalid_fields() {
    let owned = |text: &str| Some(text.to_owned());
    let cases: Vec<(InputError, Field, &str, &str)> = vec![
        (refusal(|r| r.driver = "550.abc".into()), Field::Driver, "550.abc", "580.65.06"),
        (refusal(|r| r.driver = String::new()), Field::Driver, "no version", "580.65.06"),
        (refusal(|r| r.driver = "580.65.06.1".into()), Field::Driver, "580.65.06.1", "580.65.06"),
        (refusal(|r| r.driver = "551.23".into()), Field::Driver, "551", "550 and 555"),
        (refusal(|r| r.driver = "12.8".into()), Field::Driver, "swapped", "580.65.06"),
        (refusal(|r| r.driver = "58095".into()), Field::Driver, "58095", "580.65.06"),
        (refusal(|r| r.driver = "+580".into()), Field::Driver, "+580", "580.65.06"),
        (refusal(|r| r.cuda = owned("10.2")), Field::Cuda, "not in the data", "11.0 to 13.4"),
        (refusal(|r| r.ptx_only = true), Field::PtxOnly, "has no effect", "--cuda"),
        (refusal(|r| r.usage = Usage::Compile), Field::Use, "has no effect", "--cuda"),
        (
            refusal(|r| r.framework = owned("torch==")),
            Field::Framework,
            "no version",
            "torch==2.11.0",
        ),
        (refusal(|r| r.cuda = owned("550.54.15")), Field::Cuda, "swapped", "12.8"),
        (refusal(|r| r.cuda = owned("12.7")), Field::Cuda, "no CUDA 12.7", "12.6, 12.8"),
        (refusal(|r| r.cuda = owned("12.8.7")), Field::Cuda, "no CUDA 12.8.7", "12.8.0, 12.8.1"),
        (refusal(|r| r.cuda = owned("")), Field::Cuda, "no version", "12.8"),
        (refusal(|r| r.cuda = owned("twelve")), Field::Cuda, "twelve", "12.8"),
        (refusal(|r| r.cuda = owned("12.x")), Field::Cuda, "12.x", "12.8"),
        (refusal(|r| r.gpu = "Z9000".into()), Field::Gpu, "Z9000", "farrier facts gpu"),
        (refusal(|r| r.gpu = "H10O".into()), Field::Gpu, "H10O", "`H100`"),
        (refusal(|r| r.gpu = "MI300X".into()), Field::Gpu, "of AMD", "NVIDIA GPUs only"),
        (refusal(|r| r.gpu = "AMD Instinct MI355X".into()), Field::Gpu, "of AMD", "NVIDIA"),
        (refusal(|r| r.gpu = "1002:74a1".into()), Field::Gpu, "of AMD", "NVIDIA GPUs only"),
        (refusal(|r| r.gpu = "Gaudi 3".into()), Field::Gpu, "of Intel", "NVIDIA GPUs only"),
        (refusal(|r| r.gpu = "Intel Max 1550".into()), Field::Gpu, "of Intel", "NVIDIA"),
        (refusal(|r| r.gpu = "TPU v5e".into()), Field::Gpu, "of Google", "NVIDIA GPUs only"),
        (refusal(|r| r.gpu = String::new()), Field::Gpu, "no name", "H100"),
        (refusal(|r| r.gpu = "550.54.15".into()), Field::Gpu, "is a version", "H100"),
        (refusal(|r| r.framework = owned("torch==2.99")), Field::Framework, "2.99", "2.15.0"),
        (refusal(|r| r.framework = owned("toch==2.9.0")), Field::Framework, "toch", "`torch`"),
        (refusal(|r| r.framework = owned("torch")), Field::Framework, "==version", "torch==2.11.0"),
        (refusal(|r| r.framework = owned("torch==x")), Field::Framework, "`x`", "torch==2.11.0"),
        (
            refusal(|r| r.framework = owned("torch==2.11.0+cu999")),
            Field::Framework,
            "cu999",
            "cu128",
        ),
        (refusal(|r| r.forward_compat = owned("13")), Field::ForwardCompat, "`13`", "13.0"),
        (refusal(|r| r.forward_compat = owned("12.7")), Field::ForwardCompat, "12.7", "12.8"),
        (
            refusal(|r| r.fabric_manager = owned("latest")),
            Field::FabricManager,
            "latest",
            "580.65.06",
        ),
    ];
    for (error, field, problem, expected) in cases {
        assert_eq!(error.field, field, "{error}");
        assert!(error.problem.contains(problem), "{error}: no {problem:?}");
        assert!(
            error.expected.contains(expected),
            "{error}: {} has no {expected:?}",
            error.expected
        );
    }
}

#[test]
fn resolves_all_names_of_a_gpu() {
    let set = FactSet::embedded();
    let same = [
        "H100-SXM5-80GB",
        "H100-SXM-80GB",
        "h100_sxm",
        "NVIDIA H100 80GB HBM3",
        "NVIDIA-H100-80GB-HBM3",
        "nvidia_h100_80gb_hbm3",
        "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb",
        "NVIDIA-H100-80GB-HBM3-SHARED",
        "0x2330",
        "2330",
        "10de:2330",
        "10DE:2330",
        "0x233010DE",
    ];
    for name in same {
        let found = set.gpus.by_name(name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(found.gpu.id, "H100-SXM5-80GB", "{name}");
        assert!(!found.assumed, "{name}");
    }
    assert!(set.gpus.by_name("H100").unwrap().assumed);
    // Most A100 have 80 GB, so the family name means that model.
    let family = set.gpus.by_name("A100").unwrap();
    assert!(family.assumed && family.gpu.id == "A100-SXM4-80GB", "{}", family.gpu.id);
    assert_eq!(set.gpus.by_name("NVIDIA H100 PCIe").unwrap().gpu.id, "H100-PCIe-80GB");
    assert_eq!(set.gpus.by_name("tesla t4").unwrap().gpu.id, "T4");
    assert!(set.gpus.by_name("H1000").is_none());
}

proptest::proptest! {
    /// Any input is either checked or rejected with a complete error.
    #[test]
    fn any_text_is_checked_or_rejected(
        gpu in "[ -~]{0,12}|H100|B200|V100",
        driver in "[ -~]{0,12}|[0-9]{1,4}(\\.[0-9]{1,3}){0,3}",
        cuda in proptest::option::of("[ -~]{0,8}|[0-9]{1,3}(\\.[0-9]{1,2}){0,3}"),
        framework in proptest::option::of("[ -~]{0,16}|torch==[0-9.+cu]{0,12}"),
        forward_compat in proptest::option::of("[0-9.]{0,6}"),
        strict in proptest::bool::ANY,
    ) {
        let set = FactSet::embedded();
        let request = CheckRequest {
            gpu, driver, cuda, framework, forward_compat, strict, ..CheckRequest::default()
        };
        match Query::parse(set, &request, TODAY) {
            Ok(query) => {
                let report = check(set, &query);
                assert!(!report.reasons.is_empty());
                assert_eq!(report.verdict, report.reasons[0].verdict);
            }
            Err(error) => {
                assert!(!error.problem.is_empty() && !error.expected.is_empty());
            }
        }
    }
}
