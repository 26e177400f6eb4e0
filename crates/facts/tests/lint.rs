//! Lint fixtures: expected findings and clean files.
//!
//! A fixture marks an expected finding with `#~ code` at the end of the line, or with `#~v code` on
//! the line before. Several codes are separated by blanks.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use farrier_facts::FactSet;
use farrier_facts::lint::{Language, LintFinding, lint, lint_environment};
use farrier_facts::setting::{LintClass, LintLevel, SettingFacts};
use proptest::prelude::*;

fn settings() -> &'static SettingFacts {
    &FactSet::embedded().settings
}

fn files(folder: &str) -> Vec<(PathBuf, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lint").join(folder);
    let mut files: Vec<PathBuf> =
        folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    #[expect(clippy::disallowed_methods, reason = "a test reads its fixtures")]
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        (path, text)
    };
    files.into_iter().map(read).collect()
}

fn language(path: &Path, text: &str) -> Language {
    let name = path.to_str().unwrap();
    Language::detect(name, text.as_bytes()).unwrap_or_else(|| panic!("{name}: no language"))
}

/// The expected findings of a fixture, as `line code`.
fn marked(text: &str) -> Vec<String> {
    let mut marks = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let Some((_, mark)) = text.split_once("#~") else { continue };
        let (line, codes) = match mark.strip_prefix('v') {
            Some(codes) => (line + 1, codes),
            None => (line, mark),
        };
        marks.extend(codes.split_whitespace().map(|code| format!("{line} {code}")));
    }
    marks.sort();
    marks
}

fn places(findings: &[LintFinding]) -> Vec<String> {
    let mut places: Vec<String> = findings
        .iter()
        .map(|finding| format!("{} {}", finding.line.unwrap(), finding.code))
        .collect();
    places.sort();
    places
}

fn found(language: Language, text: &str) -> Vec<String> {
    places(&lint(settings(), language, text))
}

#[test]
fn bad_fixtures_give_marked_findings() {
    let settings = settings();
    let mut wrong = Vec::new();
    for (path, text) in files("bad") {
        let found = places(&lint(settings, language(&path, &text), &text));
        let marked = marked(&text);
        assert!(!marked.is_empty(), "{} marks nothing", path.display());
        for place in found.iter().filter(|place| !marked.contains(place)) {
            wrong.push(format!("{}: unexpected {place}", path.display()));
        }
        for place in marked.iter().filter(|place| !found.contains(place)) {
            wrong.push(format!("{}: missing {place}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn good_fixtures_give_no_findings() {
    let settings = settings();
    for (path, text) in files("good") {
        let found = lint(settings, language(&path, &text), &text);
        assert!(found.is_empty(), "{}: {found:#?}", path.display());
    }
}

#[test]
fn every_code_has_a_fixture() {
    let settings = settings();
    let mut found: Vec<String> = Vec::new();
    for (path, text) in files("bad") {
        let findings = lint(settings, language(&path, &text), &text);
        found.extend(findings.into_iter().map(|finding| finding.code));
    }
    let missing: Vec<_> = settings
        .codes()
        .into_iter()
        .filter(|code| !found.iter().any(|known| known == code))
        .collect();
    assert!(missing.is_empty(), "no fixture for {missing:?}");
}

#[test]
fn four_claims_in_a_script_give_four_findings_with_replacements() {
    let script = "\
import os
import torch

os.environ[\"H100_ASYNC_MEM_POOL\"] = \"1\"
cuda = torch.version.cuda
if float(cuda) < 12.8:
    raise SystemExit(\"CUDA is too old\")

model = torch.compile(model, options={\"cuda_graph_capture\": True})
for batch in loader:
    try:
        loss = model(batch).loss
        loss.backward()
        optimizer.step()
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        continue
";
    let findings = lint(settings(), Language::Python, script);
    assert_eq!(
        places(&findings),
        [
            "17 oom-drops-batch",
            "4 env-unknown",
            "6 version-as-float",
            "9 torch-compile-option-unknown"
        ]
    );
    for finding in &findings {
        assert!(finding.replacement.as_ref().is_some_and(|text| !text.is_empty()), "{finding:?}");
        assert!(!finding.source.is_empty(), "{finding:?}");
    }
}

#[test]
fn environment_findings_have_no_line() {
    let variables = [
        ("PATH", "/bin"),
        ("NCCL_SOCKET_IFNAMES", "eth0"),
        ("H100_ASYNC_MEM_POOL", "1"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
    ];
    let findings = lint_environment(settings(), variables);
    let codes: Vec<_> = findings.iter().map(|finding| finding.code.as_str()).collect();
    assert_eq!(codes, ["env-unknown", "env-misspelt"]);
    assert!(findings.iter().all(|finding| finding.line.is_none()));
    assert!(findings[1].replacement.as_ref().unwrap().contains("NCCL_SOCKET_IFNAME`"));
}

#[test]
fn allow_comment_suppresses_its_line_and_the_next() {
    let bad = "export NCCL_P2P_DISABLE=1";
    let allow = "# farrier-lint: allow env-debug-left-on these cards have no peer access";
    assert_eq!(found(Language::Shell, &format!("{bad}\n")), ["1 env-debug-left-on"]);
    assert!(found(Language::Shell, &format!("{bad} {allow}\n")).is_empty());
    assert!(found(Language::Shell, &format!("{allow}\n{bad}\n")).is_empty());
    assert_eq!(found(Language::Shell, &format!("{allow}\n\n{bad}\n")), ["3 env-debug-left-on"]);
    let other = "# farrier-lint: allow env-unknown not this one";
    assert_eq!(found(Language::Shell, &format!("{bad} {other}\n")), ["1 env-debug-left-on"]);
    let silent = "# farrier-lint: allow env-debug-left-on";
    assert_eq!(
        found(Language::Shell, &format!("{bad} {silent}\n")),
        ["1 allow-malformed", "1 env-debug-left-on"]
    );
}

#[test]
fn redundant_settings_are_notes() {
    let findings = lint(settings(), Language::Shell, "export CUDA_MODULE_LOADING=LAZY\n");
    assert_eq!(findings[0].class, LintClass::Redundant);
    assert_eq!(findings[0].level, LintLevel::Note);
}

#[test]
fn nccl_info_in_manifest_is_a_note() {
    let manifest = "env:\n  - name: NCCL_DEBUG\n    value: INFO\n";
    let findings = lint(settings(), Language::Yaml, manifest);
    assert_eq!(findings.len(), 1);
    assert_eq!((findings[0].class, findings[0].level), (LintClass::Harm, LintLevel::Note));
    let findings = lint(settings(), Language::Yaml, &manifest.replace("INFO", "TRACE"));
    assert_eq!(findings[0].level, LintLevel::Finding);
}

/// If one option of a call is unverified, the findings about its other options have no such note.
#[test]
fn unverified_note_belongs_to_its_finding() {
    let code = "torch.compile(m, options={\n\"cuda_graph_capture\": 1,\n\"static_graph\": 1})\n";
    let findings = lint(settings(), Language::Python, code);
    let has_note: Vec<_> =
        findings.iter().map(|finding| (finding.line, finding.unverified.is_some())).collect();
    assert_eq!(has_note, [(Some(2), false), (Some(3), true)]);
}

#[test]
fn notebook_findings_name_the_cell() {
    let notebook = r#"{"cells": [
        {"cell_type": "markdown", "source": ["os.environ['H100_ASYNC_MEM_POOL']"]},
        {"cell_type": "code", "source": ["import os\n", "%env H100_ASYNC_MEM_POOL=1\n", "!nvidia-smi --format=json\n"]},
        {"cell_type": "code", "source": "x = 1\nos.environ['H100_ASYNC_MEM_POOL'] = '1'"},
        {"cell_type": "code", "source": "%%bash\nexport NCCL_DEBUG=TRACE\n"}
    ], "metadata": {}}"#;
    let findings = lint(settings(), Language::Notebook, notebook);
    let places: Vec<_> = findings
        .iter()
        .map(|finding| (finding.cell.unwrap(), finding.line.unwrap(), finding.code.as_str()))
        .collect();
    assert_eq!(
        places,
        [
            (1, 2, "env-unknown"),
            (1, 3, "smi-format-unknown"),
            (2, 2, "env-unknown"),
            (3, 2, "env-debug-left-on"),
        ]
    );
    assert!(lint(settings(), Language::Notebook, "no notebook").is_empty());
}

/// Unclosed brackets and deeply nested blocks must not overflow the stack. That they take linear
/// time is tested in `src/lint/step_count.rs`.
#[test]
fn deep_nesting_does_not_overflow_the_stack() {
    for piece in ["(", "[{(", "$(", "<(", "x=$(", "`", "\"$(", "f'{", "ONBUILD ", "[", "- - "] {
        let text = piece.repeat((1 << 18) / piece.len());
        for language in Language::ALL {
            let _ = lint(settings(), language, &text);
        }
    }
    // Each line opens a block inside the block of the line before.
    let mut handler = "for b in loader:\n try:\n  step()\n except RuntimeError:\n".to_owned();
    for depth in 2..1000 {
        handler.push_str(&" ".repeat(depth));
        handler.push_str("if \"out of memory\" in str(e):\n");
    }
    let _ = lint(settings(), Language::Python, &handler);
}

/// Text that resembles code: meaningful fragments in any order.
fn code() -> impl Strategy<Value = String> {
    let pieces = prop::sample::select(vec![
        "os.environ[",
        "\"X\"",
        "'",
        "\"",
        "\"\"\"",
        "= ",
        "{",
        "}",
        "(",
        ")",
        "[",
        "]",
        "\n",
        "    ",
        "\t",
        "#",
        "\\",
        "$(",
        "${",
        "`",
        "<<EOF\n",
        "EOF\n",
        "|",
        ">",
        "<",
        "- ",
        "name: ",
        "value: ",
        "env:",
        ": ",
        "NCCL_DEBUG=",
        "é",
        "f\"{",
        "torch.compile(",
        "options=",
        "import ",
        "from ",
        " as ",
        "float(",
        "version",
        "except ",
        "try:",
        "for ",
        "continue",
        "ENV ",
        "RUN ",
        "awk ",
        "bc",
        "[[ ",
        "12.8",
        "nvidia-smi ",
        "--format=",
        ",",
        ";",
        "&&",
        "\r\n",
        "%",
        "farrier-lint: allow ",
        "\u{feff}",
        "\0",
    ]);
    prop::collection::vec(pieces, 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_text_in_any_language_is_scanned(text in ".{0,300}", code in code()) {
        let settings = settings();
        for language in Language::ALL {
            for text in [&text, &code] {
                let findings = lint(settings, language, text);
                let lines = u32::try_from(text.lines().count()).unwrap().max(1);
                for finding in findings {
                    prop_assert!(finding.line.is_some_and(|line| line >= 1 && line <= lines), "{finding:?}");
                }
            }
        }
        let _ = Language::detect("x", text.as_bytes());
    }
}
