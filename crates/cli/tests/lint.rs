//! `farrier lint`: output, exit codes and errors.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "these tests need the output as bytes")]
mod support;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

const SCRIPT: &str = "\
import os
import torch

os.environ[\"H100_ASYNC_MEM_POOL\"] = \"1\"
cuda = torch.version.cuda
if float(cuda) < 12.8:
    raise SystemExit(\"CUDA is too old\")

model = torch.compile(model, options={\"cuda_graph_capture\": True})
for batch in loader:
    try:
        model(batch).loss.backward()
        optimizer.step()
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        continue
";

/// Runs in `folder`, with only `variables` in the environment and no installed fact set.
fn command(folder: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = support::farrier(arguments);
    command
        .current_dir(folder)
        .env_clear()
        .env("FARRIER_FACTS_DIR", "/nonexistent")
        .envs(variables.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn farrier(folder: &Path, arguments: &[&str], variables: &[(&str, &str)], input: &str) -> Output {
    let mut child = command(folder, arguments, variables).spawn().unwrap();
    // A command that does not read its input may have exited already.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The exit code and stderr.
fn failure(arguments: &[&str], input: &str) -> (i32, String) {
    let folder = TempDir::new().unwrap();
    let output = farrier(folder.path(), arguments, &[], input);
    assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
    (output.status.code().unwrap(), text(&output.stderr).to_owned())
}

#[test]
fn four_findings_are_shown_with_replacements() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("train.py"), SCRIPT).unwrap();
    let output = farrier(folder.path(), &["lint", "train.py"], &[], "");
    assert_eq!(output.status.code(), Some(1));
    insta::assert_snapshot!(text(&output.stdout), @r#"
    train.py:4 env-unknown (fake)
              No software reads `H100_ASYNC_MEM_POOL`.
        use:  `PYTORCH_ALLOC_CONF=backend:cudaMallocAsync` in PyTorch, `TF_GPU_ALLOCATOR=cuda_malloc_async` in TensorFlow
        from: search of public code: nothing reads it; pytorch/pytorch c10/cuda/CUDAAllocatorConfig.h; TensorFlow's own
              out-of-memory message
    train.py:6 version-as-float (harm)
              A version is not a number: as floats 12.10 < 12.8 and 2.10 < 2.9, and a third part such as 570.124.06 does not
              parse at all.
        use:  `packaging.version.Version(a) < Version(b)` or tuples of ints in Python; `sort -V` or `dpkg
              --compare-versions` in a shell
        from: Python documentation, float(); PyPA version specifiers (PEP 440)
    train.py:9 torch-compile-option-unknown (raises)
              `torch.compile` has no option `cuda_graph_capture` and raises `RuntimeError: Unexpected optimization option`.
        use:  `options={"triton.cudagraphs": True}` or `mode="reduce-overhead"` for CUDA graphs;
              `torch._inductor.list_options()` names all options
        from: torch 2.15.0, torch/__init__.py lines 2910-2924 and 3158-3188
    train.py:16 oom-drops-batch (harm)
              The batch that ran out of memory is lost. The model then never learns from the longest samples. Gradient
              accumulation and the order of the data change, and with several ranks the other ranks hang in their next
              collective.
        use:  `farrier.torch.guard(loss_fn, model=model)`, which runs such a batch as micro-batches with the same gradients;
              or split the batch into micro-batches and run it again with gradient accumulation, outside of the `except`
              block so that the failed tensors are freed; with several ranks, first let them agree (all_reduce of a flag)
        from: PyTorch documentation, Frequently Asked Questions: My out of memory exception handler can't allocate memory;
              PyTorch documentation, DistributedDataParallel: every rank must take part in every collective

    4 findings in 1 file

    data: farrier-2026.11.18 of 2026-11-18
    "#);
}

#[test]
fn json_is_one_document_with_the_fact_set() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("train.py"), SCRIPT).unwrap();
    let output = farrier(folder.path(), &["lint", "train.py", "--output", "json"], &[], "");
    assert_eq!(output.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let codes: Vec<_> = findings.iter().map(|finding| finding["code"].as_str().unwrap()).collect();
    assert_eq!(
        codes,
        ["env-unknown", "version-as-float", "torch-compile-option-unknown", "oom-drops-batch"]
    );
    assert_eq!(findings[0]["file"], "train.py");
    assert_eq!(findings[0]["line"], 4);
    assert_eq!(findings[0]["class"], "fake");
    assert!(findings.iter().all(|finding| finding["replacement"].is_string()));
    assert!(report["data"]["set"].as_str().unwrap().starts_with("farrier-"));
    assert!(report["data"]["date"].is_string());
}

#[test]
fn a_clean_file_has_no_findings_and_a_note_does_not_count() {
    let folder = TempDir::new().unwrap();
    let clean = "export NCCL_DEBUG=WARN\n";
    let output = farrier(folder.path(), &["lint", "-", "--language", "shell"], &[], clean);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).starts_with("no findings in 1 file\n"));

    let note = "export CUDA_MODULE_LOADING=LAZY\n";
    let output = farrier(folder.path(), &["lint", "-"], &[], note);
    assert_eq!(output.status.code(), Some(0));
    let stdout = text(&output.stdout);
    assert!(stdout.starts_with("-:1 env-redundant (redundant, note)\n"), "{stdout}");
    assert!(stdout.contains("\n0 findings, 1 note in 1 file\n"), "{stdout}");
}

#[test]
fn the_environment_is_linted_without_line_numbers() {
    let folder = TempDir::new().unwrap();
    let variables = [("H100_ASYNC_MEM_POOL", "1"), ("NCCL_DEBUG", "WARN")];
    let output = farrier(folder.path(), &["lint", "--env", "--output", "json"], &variables, "");
    assert_eq!(output.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["findings"].as_array().unwrap().len(), 1);
    assert_eq!(report["findings"][0]["file"], "environment");
    assert!(report["findings"][0]["line"].is_null());
    let output = farrier(folder.path(), &["lint", "--env"], &[("NCCL_DEBUG", "WARN")], "");
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).starts_with("no findings in the environment\n"));
    let output = farrier(folder.path(), &["lint", "--env", "-"], &[], "#!/bin/sh\n");
    let stdout = text(&output.stdout);
    assert!(stdout.starts_with("no findings in 1 file and the environment\n"), "{stdout}");
}

#[test]
fn a_directory_is_searched_in_order() {
    let folder = TempDir::new().unwrap();
    let bad = "export H100_ASYNC_MEM_POOL=1\n";
    let at = |path: &str| folder.path().join(path);
    for path in ["b", "a/deep", ".git", "node_modules/x", "venv"] {
        fs::create_dir_all(at(path)).unwrap();
    }
    let files = [
        "b/run.sh",
        "a/deep/run.sh",
        ".git/run.sh",
        "node_modules/x/run.sh",
        "venv/run.sh",
        "notes.txt",
    ];
    for path in files {
        fs::write(at(path), bad).unwrap();
    }
    fs::write(at("launch"), format!("#!/bin/sh\n{bad}")).unwrap();
    fs::write(at("picture"), [0_u8, 159, 146, 150]).unwrap();
    let output = farrier(folder.path(), &["lint", ".", "--output", "json"], &[], "");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let files: Vec<_> = findings.iter().map(|finding| finding["file"].as_str().unwrap()).collect();
    assert_eq!(files, ["./a/deep/run.sh", "./b/run.sh", "./launch"]);
    assert_eq!(report["files_read"], 3, "directories and skipped files do not count");
}

#[test]
fn errors_have_hints() {
    assert_eq!(
        failure(&["lint"], ""),
        (2, "error: nothing to lint\nhint: name files or directories, or pass --env\n".to_owned())
    );
    let (code, message) = failure(&["lint", "missing.py"], "");
    assert_eq!(code, 2);
    assert!(message.starts_with("error: failed to read `missing.py`: No such file"), "{message}");
    let (code, message) = failure(&["lint", "."], "");
    assert_eq!(code, 2);
    assert!(message.starts_with("error: no file in `.` that lint can read\nhint: "), "{message}");
    let (code, message) = failure(&["lint", "-"], "Dear all,\n");
    assert_eq!(code, 2);
    assert!(message.contains("cannot detect the language of `-`"), "{message}");
    assert!(message.contains("hint: set --language to one of python, shell"), "{message}");
    let (code, message) = failure(&["lint", "-"], "\0\0\0");
    assert_eq!(code, 2);
    assert!(message.contains("`-` is a binary file"), "{message}");
    let (code, message) = failure(&["lint", "-", "--language", "notebook"], "import os");
    assert_eq!(code, 2);
    assert!(message.contains("`-` is not a notebook"), "{message}");
    let (code, message) = failure(&["lint", "-", "--language", "cobol"], "");
    assert_eq!(code, 2);
    assert!(message.contains("`cobol` is not a language"), "{message}");
}

#[test]
fn only_regular_files_up_to_a_size_are_read() {
    let folder = TempDir::new().unwrap();
    let pipe = folder.path().join("pipe.sh");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // Sparse: the file takes no disk space.
    let large = fs::File::create(folder.path().join("large.sh")).unwrap();
    large.set_len((16 << 20) + 1).unwrap();
    for (file, expected) in [
        ("pipe.sh", "error: `pipe.sh` is not a regular file\nhint: "),
        ("/dev/zero", "error: `/dev/zero` is not a regular file\nhint: "),
        ("large.sh", "error: `large.sh` is larger than 16 MiB\nhint: "),
    ] {
        let output = farrier(folder.path(), &["lint", file, "--language", "shell"], &[], "");
        assert_eq!(output.status.code(), Some(2), "{file}");
        let stderr = text(&output.stderr);
        assert!(stderr.starts_with(expected), "{stderr}");
    }
    let input = "#".repeat((16 << 20) + 1);
    let output = farrier(folder.path(), &["lint", "-", "--language", "env"], &[], &input);
    assert_eq!(output.status.code(), Some(2));
    let stderr = text(&output.stderr);
    assert!(stderr.starts_with("error: `-` is larger than 16 MiB\nhint: "), "{stderr}");
}

#[test]
fn an_unreadable_file_fails_after_the_findings_are_printed() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("good.sh"), "export H100_ASYNC_MEM_POOL=1\n").unwrap();
    fs::write(folder.path().join("binary.sh"), [0_u8; 16]).unwrap();
    // A comment in Latin-1 does not make a script unreadable.
    fs::write(folder.path().join("latin.sh"), b"# caf\xe9\nexport NCCL_DEBUG=TRACE\n").unwrap();
    let output = farrier(folder.path(), &["lint", ".", "gone.py", "--output", "json"], &[], "");
    assert_eq!(output.status.code(), Some(2));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["findings"].as_array().unwrap().len(), 2);
    assert_eq!(report["unread"], serde_json::json!(["./binary.sh", "gone.py"]));
    assert_eq!(report["files_read"], 2);
    let stderr = text(&output.stderr);
    assert!(stderr.starts_with("warning: failed to read `gone.py`"), "{stderr}");
    assert!(stderr.contains("error: `./binary.sh` is a binary file"), "{stderr}");
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let folder = TempDir::new().unwrap();
    let script = "export H100_ASYNC_MEM_POOL=1\n".repeat(5000);
    fs::write(folder.path().join("run.sh"), script).unwrap();
    let mut child = command(folder.path(), &["lint", "run.sh"], &[]).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_file_that_does_not_parse_is_unknown_and_not_clean() {
    let folder = TempDir::new().unwrap();
    fs::write(
        folder.path().join("half.py"),
        "import os\nos.environ[\"H100_ASYNC_MEM_POOL\"] = \"1\"\ndef f(:\n",
    )
    .unwrap();
    fs::write(folder.path().join("good.py"), "import os\n").unwrap();
    let output = farrier(folder.path(), &["lint", "half.py", "good.py"], &[], "");
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stdout).contains("half.py:2 env-unknown"),
        "findings before the error are shown"
    );
    assert!(text(&output.stdout).contains("1 finding in 1 file\n"), "{}", text(&output.stdout));
    let stderr = text(&output.stderr);
    assert!(
        stderr.contains("`half.py` does not parse as python: line 3: `(` is not closed"),
        "{stderr}"
    );
    assert!(stderr.contains("hint:"), "{stderr}");

    let output = farrier(folder.path(), &["lint", "half.py", "--output", "json"], &[], "");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["files_read"], &report["unread"][0]), (&0.into(), &"half.py".into()));
    assert_eq!(failure(&["lint", "-", "--language", "python"], "These are words.\n").0, 2);
}
