//! `farrier bench train` with a shell script in place of Python. The script succeeds, fails, hangs,
//! or prints garbage.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use tempfile::TempDir;

use crate::launch::driver;
use crate::support::wait::wait_until;
use crate::support::{CommandOutput, farrier};

/// The fake Python interpreter. A test appends the commands that print the result of a shard.
const SCRIPT: &str = r#"#!/bin/sh
here=$(dirname "$0")
if [ "$1" = -c ]; then
    [ -e "$here/missing" ] || exit 0
    cat "$here/missing" >&2
    exit 1
fi
of() { printf '%s' "$2" | sed "s/.*\"$1\":\"\{0,1\}\([^,\"}]*\).*/\1/"; }
shard=$3
variant=$(of variant "$shard")
echo "$variant $(of repeat "$shard")$(of seed "$shard") $2" | sed 's/{.*} / /;s/{.*//' >> "$here/log"
echo "$variant $TORCHINDUCTOR_CACHE_DIR" >> "$here/caches"
rows=$(of rows "$shard"); length=$(of length "$shard")
steps() {
    echo "a library says hello"
    echo "{\"gpu\":\"NVIDIA H200\",\"torch\":\"2.11.0+cu130\",\"step_s\":[$1],\"tokens\":$((rows * length)),\
\"flops_causal\":1e9,\"flops_full\":1.1e9,\"launches\":$2,\"launch_s\":0.002,\"busy_s\":0.004,\
\"allocated_bytes\":1073741824,\"reserved_bytes\":2147483648,\"ready_s\":9.5,\"loss\":10.4,\"report\":null}"
}
memory() {
    echo "{\"gpu\":\"NVIDIA H200\",\"torch\":\"2.11.0+cu130\",\"model\":\"$(of model "$shard")\",\
\"variant\":\"$variant\",\"cap_gib\":$(of cap_gib "$shard"),\"lost\":$1,\"steps_asked\":$(of steps "$shard"),\
\"tokens_per_s\":5e4,\"finite\":true,\"peak_gib\":25.5,\"reserved_gib\":29.5}"
}
"#;

/// Everything succeeds: `ours` takes a quarter of eager's time and loses nothing.
const SUCCESS: &str = r#"
case "$2 $variant" in
    *train\ eager) steps 0.008,0.009,0.008 1000 ;;
    *train\ ours) steps 0.002 1 ;;
    *train*) steps 0.004 500 ;;
    *memory\ ours) memory '[]' ;;
    *memory*) memory '[[16,1024],[4,4096],[8,2048]]' ;;
esac
"#;

/// A directory with a fake Python and the shards.
struct FakeBench {
    folder: TempDir,
}

impl FakeBench {
    fn new(cases: &str) -> Self {
        let bench = Self { folder: tempfile::tempdir().unwrap() };
        let python = bench.path("python");
        fs::write(&python, format!("{SCRIPT}{cases}")).unwrap();
        fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn args(&self, args: &[&str]) -> Vec<String> {
        let text = |path: PathBuf| path.into_os_string().into_string().unwrap();
        let mut all: Vec<String> = ["bench", "train", "--dir"].map(str::to_owned).into();
        all.push(text(self.path("out")));
        all.extend(["--python".to_owned(), text(self.path("python"))]);
        all.extend(args.iter().map(|&word| word.to_owned()));
        all
    }

    fn run(&self, args: &[&str]) -> CommandOutput {
        let args = self.args(args);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        farrier(&args).output().unwrap().into()
    }

    /// Runs and parses the report.
    fn report(&self, args: &[&str]) -> (CommandOutput, Value) {
        let all: Vec<&str> = args.iter().chain(&["--output", "json"]).copied().collect();
        let ran = self.run(&all);
        let report = serde_json::from_str(&ran.stdout)
            .unwrap_or_else(|err| panic!("{err}: {} {}", ran.stdout, ran.stderr));
        (ran, report)
    }

    /// Merges and parses the report.
    fn merge(&self) -> (CommandOutput, Value) {
        let out = self.path("out");
        let args = ["bench", "train", "--merge-only", "--output", "json", "--dir"];
        let args: Vec<&str> = args.iter().copied().chain([out.to_str().unwrap()]).collect();
        let ran: CommandOutput = farrier(&args).output().unwrap().into();
        let report = serde_json::from_str(&ran.stdout).unwrap();
        (ran, report)
    }

    /// The shards that ran, in order.
    fn log(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("log")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn shard(&self, name: &str) -> PathBuf {
        self.path("out").join("shards").join(format!("{name}.json"))
    }
}

const ONE_SHAPE: [&str; 4] = ["--parts", "steps", "--models", "191m@1x512"];

fn with<'a>(args: &[&'a str]) -> Vec<&'a str> {
    ONE_SHAPE.iter().chain(args).copied().collect()
}

/// The row of a variant in the first shape.
fn variant<'a>(report: &'a Value, name: &str) -> &'a Value {
    let rows = report["steps"][0]["variants"].as_array().unwrap();
    rows.iter().find(|row| row["variant"] == name).unwrap()
}

#[test]
fn finished_shards_are_not_run_again() {
    let bench = FakeBench::new(SUCCESS);
    let args = ["--models", "191m@1x512,1.4b@4x2048", "--repeats", "2", "--seeds", "1"];
    let args: Vec<&str> = args.iter().chain(&["--price-per-hour", "3.60"]).copied().collect();
    let (ran, report) = bench.report(&args);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    // 2 shapes x 4 variants x 2 repeats, and 2 caps x 4 allocators x 1 seed.
    assert_eq!((bench.log().len(), &report["shards_done"]), (24, &24.into()));
    assert_eq!(report["shards_left"], 0);
    let ours = variant(&report, "ours");
    let median = |row: &Value, key: &str| row[key]["median"].as_f64().unwrap();
    assert!((median(ours, "to_eager") - 4.0).abs() < 1e-9, "{ours}");
    assert!((median(ours, "tokens_per_s") - 256_000.0).abs() < 1e-6);
    // The H200's dense peak of 989 TFLOP/s comes from the facts.
    assert!((median(ours, "mfu_causal") - 256_000.0 * 1e9 / 989e12).abs() < 1e-9);
    assert!((median(ours, "mfu_full") - 256_000.0 * 1.1e9 / 989e12).abs() < 1e-9);
    assert!((median(ours, "usd_per_million_tokens") - 3.6 / 3600.0 / 256_000.0 * 1e6).abs() < 1e-9);
    assert!((median(variant(&report, "compile"), "to_best") - 0.5).abs() < 1e-9);
    assert_eq!(report["memory"][0]["cap_gib"], 30.0);
    let rate = |place: usize| report["memory"][0]["variants"][place]["oom_rate"].as_f64().unwrap();
    assert!((rate(0) - 0.05).abs() < 1e-9 && rate(3).abs() < 1e-9);

    let again = bench.run(&args);
    assert_eq!((again.code, bench.log().len()), (0, 24), "{}", again.stderr);
    for word in ["191m at 1 x 512", "4.00×", "5.0 % (3 of 60 steps)", "989 TFLOP/s", "3.6 USD"] {
        assert!(again.stdout.contains(word), "{word}: {}", again.stdout);
    }
}

#[test]
fn variants_are_interleaved() {
    let bench = FakeBench::new(SUCCESS);
    let ran = bench.run(&with(&["--repeats", "2", "--variants", "eager,compile,ours"]));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let order: Vec<String> =
        bench.log().iter().map(|line| line.replace(" farrier.bench.train", "")).collect();
    assert_eq!(order, ["eager 0", "compile 0", "ours 0", "compile 1", "ours 1", "eager 1"]);
}

#[test]
fn each_variant_has_its_own_compile_cache() {
    let bench = FakeBench::new(SUCCESS);
    bench.run(&with(&["--repeats", "2", "--variants", "compile,ours"]));
    let text = fs::read_to_string(bench.path("caches")).unwrap();
    let mut caches: Vec<(&str, &str)> =
        text.lines().map(|line| line.split_once(' ').unwrap()).collect();
    caches.sort_unstable();
    caches.dedup();
    let named: Vec<&str> = caches.iter().map(|(variant, _)| *variant).collect();
    assert_eq!(named, ["compile", "ours"], "one cache each, for all repeats: {caches:?}");
    assert!(
        caches.iter().all(|(variant, cache)| cache.starts_with('/') && cache.ends_with(variant))
    );
}

#[test]
fn without_a_price_there_is_no_cost() {
    let bench = FakeBench::new(SUCCESS);
    let ran = bench.run(&with(&["--repeats", "1"]));
    assert!(ran.stdout.contains("no price given"), "{}", ran.stdout);
    assert!(!ran.stdout.contains("USD per GPU-hour"), "{}", ran.stdout);
}

#[test]
fn failures_are_stored_and_shown() {
    let bench = FakeBench::new(
        r#"
case "$variant" in
    eager) steps 0.008 1000 ;;
    compile) echo "Traceback" >&2; echo "torch.OutOfMemoryError: CUDA out of memory" >&2; exit 3 ;;
    reduce-overhead) echo '{"half a line' ;;
    ours) exec sleep 600 ;;
    odd) echo '{"gpu": "NVIDIA H200"}' ;;
    silent) ;;
esac
"#,
    );
    let variants = "eager,compile,reduce-overhead,ours,odd,silent";
    let args = with(&["--repeats", "1", "--deadline", "1", "--variants", variants]);
    let (ran, report) = bench.report(&args);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert_eq!(bench.log().len(), 6, "the other shards still ran");
    let failed = report["failed"].as_array().unwrap();
    let failure_reason = |name: &str| {
        let name = format!("191m_1x512_{name}_0");
        let shard = failed.iter().find(|shard| shard["name"] == name.as_str());
        shard.unwrap_or_else(|| panic!("{name}: {failed:?}"))["why"].as_str().unwrap().to_owned()
    };
    assert_eq!(failure_reason("compile"), "it exited with exit status: 3");
    assert!(failure_reason("reduce-overhead").starts_with("its last line is not JSON"));
    assert_eq!(failure_reason("ours"), "timed out after 1 s");
    assert!(failure_reason("odd").contains("missing field `torch`"), "{}", failure_reason("odd"));
    assert_eq!(failure_reason("silent"), "it printed nothing");
    let compile = failed.iter().find(|shard| shard["name"] == "191m_1x512_compile_0").unwrap();
    assert_eq!(compile["stderr"][1], "torch.OutOfMemoryError: CUDA out of memory");
    let row = variant(&report, "compile");
    assert_eq!((&row["done"], &row["failed"]), (&0.into(), &1.into()));
    assert!(row["tokens_per_s"].is_null() && row["mfu_causal"].is_null(), "{row}");

    // The failures are stored, so nothing runs again. The table shows `failed`, not 0.
    let again = bench.run(&args);
    assert_eq!((again.code, bench.log().len()), (1, 6));
    let row = again.stdout.lines().find(|line| line.contains("ours (1 of 1")).unwrap();
    assert!(row.matches("failed").count() >= 5 && !row.contains(" 0"), "{row}");

    // `--retry-failed` runs only failed shards again.
    let only = with(&["--repeats", "1", "--variants", "eager,compile", "--retry-failed"]);
    assert_eq!((bench.run(&only).code, bench.log().len()), (1, 7));
}

#[test]
fn a_stopped_run_resumes() {
    let bench = FakeBench::new(
        r#"
[ "$variant" = eager ] || [ -e "$here/fast" ] || exec sleep 600
steps 0.008 1000
"#,
    );
    let args = with(&["--repeats", "1", "--stop-after", "2"]);
    let (ran, report) = bench.report(&args);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("stopped with 3 shards to go"), "{}", ran.stderr);
    assert_eq!((&report["shards_done"], &report["shards_left"]), (&1.into(), &3.into()));
    assert_eq!(report["shards_planned"], 4);
    assert!(ran.stderr.contains("3 shards to go"), "{}", ran.stderr);
    let (_, merged) = bench.merge();
    assert_eq!((&merged["shards_planned"], &merged["shards_left"]), (&4.into(), &3.into()));
    assert_eq!(merged["steps"][0]["repeats_planned"], 1);
    assert!(bench.shard("191m_1x512_eager_0").exists());
    assert!(
        !bench.shard("191m_1x512_compile_0").exists(),
        "an interrupted shard is not stored as failed"
    );

    fs::write(bench.path("fast"), "").unwrap();
    let (ran, report) = bench.report(&with(&["--repeats", "1"]));
    assert_eq!((ran.code, &report["shards_left"]), (0, &0.into()), "{}", ran.stderr);
    let log = bench.log();
    let count = |name: &str| log.iter().filter(|line| line.starts_with(name)).count();
    assert_eq!((count("eager"), count("compile"), count("ours")), (1, 2, 1));
}

#[test]
fn a_shard_that_would_exceed_stop_after_is_not_started() {
    let bench = FakeBench::new("steps 0.008 1000");
    let args = with(&["--repeats", "1", "--variants", "eager"]);
    assert_eq!(bench.run(&args).code, 0);
    // Pretend that the first repeat took an hour.
    let path = bench.shard("191m_1x512_eager_0");
    let mut file: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    file["wall_s"] = 3600.0.into();
    fs::write(&path, file.to_string()).unwrap();
    let args = with(&["--repeats", "2", "--variants", "eager", "--stop-after", "600"]);
    let (ran, report) = bench.report(&args);
    assert_eq!((ran.code, &report["shards_left"]), (0, &1.into()), "{}", ran.stderr);
    assert_eq!(bench.log().len(), 1);
}

#[test]
fn an_unsuitable_python_is_an_error_with_a_hint() {
    let bench = FakeBench::new(SUCCESS);
    fs::write(bench.path("missing"), "module farrier.bench.train\n").unwrap();
    let ran = bench.run(&with(&[]));
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
    assert!(ran.stderr.contains("no module `farrier.bench.train`"), "{}", ran.stderr);
    assert!(ran.stderr.contains("hint: install the package"), "{}", ran.stderr);
    assert!(bench.log().is_empty() && !bench.path("out").exists());

    for output in ["", "Segmentation fault\n"] {
        fs::write(bench.path("missing"), output).unwrap();
        let ran = bench.run(&with(&[]));
        assert!(ran.stderr.contains("failed the preflight check"), "{}", ran.stderr);
    }

    fs::remove_file(bench.path("python")).unwrap();
    let ran = bench.run(&with(&[]));
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("failed to run") && ran.stderr.contains("hint:"), "{}", ran.stderr);
}

#[test]
fn the_preflight_runs_in_a_real_python() {
    let bench = FakeBench::new(SUCCESS);
    // In isolated mode, Python finds only the standard library.
    let python = bench.path("python");
    fs::write(&python, "#!/bin/sh\nexec python3 -I -S \"$@\"\n").unwrap();
    let ran = bench.run(&with(&[]));
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("no module `farrier.bench.train`"), "{}", ran.stderr);
    assert!(ran.stderr.contains("no module `torch`"), "both modules are reported: {}", ran.stderr);
}

#[test]
fn without_a_gpu_no_shard_is_run() {
    let bench = FakeBench::new(SUCCESS);
    let modules = bench.path("modules");
    fs::create_dir_all(modules.join("farrier/bench")).unwrap();
    for name in
        ["farrier/__init__.py", "farrier/bench/__init__.py", "farrier/bench/train.py", "torch.py"]
    {
        fs::write(modules.join(name), "").unwrap();
    }
    fs::write(modules.join("version.py"), "cuda = None\nhip = None\n").unwrap();
    let python = bench.path("python");
    fs::write(&python, "#!/bin/sh\nexec python3 -S \"$@\"\n").unwrap();
    let driver = driver(&["-DCOUNT=0"]);
    fs::rename(driver.path().join("libcuda.so"), driver.path().join("libcuda.so.1")).unwrap();
    let args = bench.args(&with(&[]));
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut command = farrier(&args);
    let ran: CommandOutput = command
        .env("PYTHONPATH", modules)
        .env("LD_LIBRARY_PATH", driver.path())
        .output()
        .unwrap()
        .into();
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{}", ran.stderr);
    let expected = "its torch is built without CUDA; no GPU: cuInit gives 100";
    assert!(ran.stderr.contains(expected), "{}", ran.stderr);
    assert!(ran.stderr.contains("hint: install a torch for CUDA"), "{}", ran.stderr);
    assert!(ran.stderr.contains("NVIDIA GPU and its driver"), "{}", ran.stderr);
    assert!(!bench.path("out").exists(), "nothing is left behind");
}

#[test]
fn merge_only_filters_existing_shards() {
    let bench = FakeBench::new(SUCCESS);
    let args = ["--models", "191m@1x512,1.4b@4x2048", "--repeats", "2", "--seeds", "1"];
    assert_eq!(bench.run(&args).code, 0);
    let merge = |args: &[&str]| {
        let args: Vec<&str> = ["--merge-only"].iter().chain(args).copied().collect();
        let args: Vec<&str> = args.iter().chain(&["--output", "json"]).copied().collect();
        // `--python` is not needed, because nothing runs.
        let dir = bench.path("out");
        let all = ["bench", "train", "--dir", dir.to_str().unwrap()];
        let all: Vec<&str> = all.iter().chain(&args).copied().collect();
        let ran: CommandOutput = farrier(&all).output().unwrap().into();
        (ran.code, serde_json::from_str::<Value>(&ran.stdout).unwrap_or_default(), ran.stderr)
    };
    let (_, all, _) = merge(&[]);
    assert_eq!((&all["shards_done"], &all["shards_planned"]), (&24.into(), &24.into()));
    let (code, one, _) = merge(&["--models", "1.4b@4x2048", "--parts", "steps"]);
    assert_eq!((code, &one["shards_done"], &one["shards_planned"]), (0, &8.into(), &8.into()));
    assert_eq!(one["steps"].as_array().unwrap().len(), 1);
    assert_eq!(one["steps"][0]["model"], "1.4b");
    let (_, few, _) = merge(&["--variants", "eager,ours", "--repeats", "1", "--caps", "26"]);
    assert_eq!(few["steps"][0]["variants"].as_array().unwrap().len(), 2);
    assert_eq!(
        (&few["steps"][0]["variants"][0]["done"], &few["shards_done"]),
        (&1.into(), &8.into())
    );
    assert_eq!(few["memory"].as_array().unwrap().len(), 1);
    for refused in
        [&["--steps", "4"][..], &["--retry-failed"], &["--python", "x"], &["--stop-after", "1"]]
    {
        let (code, _, stderr) = merge(refused);
        assert_eq!(code, 2);
        assert!(stderr.contains("cannot be used with"), "{stderr}");
    }
    for (args, expected) in [
        (
            &["--variants", "ourz"][..],
            "with --variants ourz; available: eager, compile, reduce-overhead, ours",
        ),
        (&["--models", "191m@1x51"], "with --models 191m@1x51; available: 191m@1x512, 1.4b@4x2048"),
        (&["--memory-variants", "eager"], "with --memory-variants eager; available: default"),
        (&["--caps", "27"], "with --caps 27; available: 30, 26"),
    ] {
        let (code, _, stderr) = merge(args);
        assert_eq!(code, 2, "{stderr}");
        assert!(stderr.contains(expected) && stderr.contains("hint:"), "{stderr}");
    }
    // The report of a run is filtered, too.
    let (_, report) = bench.report(&with(&["--repeats", "2", "--variants", "ours"]));
    assert_eq!((&report["shards_done"], bench.log().len()), (&2.into(), 24));
}

#[test]
fn shards_of_another_measurement_are_rejected() {
    let bench = FakeBench::new(SUCCESS);
    assert_eq!(bench.run(&with(&["--repeats", "1"])).code, 0);
    let ran = bench.run(&with(&["--repeats", "1", "--steps", "99"]));
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("`191m_1x512_eager_0` of another measurement"), "{}", ran.stderr);
    assert_eq!(bench.log().len(), 4);
}

#[test]
fn an_unreadable_shard_is_an_error() {
    let bench = FakeBench::new(SUCCESS);
    assert_eq!(bench.run(&with(&["--repeats", "1"])).code, 0);
    fs::write(bench.shard("191m_1x512_ours_0"), "{\"farrier_shard\": 1").unwrap();
    let ran = bench.run(&with(&["--repeats", "1"]));
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("hint: remove its file"), "{}", ran.stderr);
    let (merged, report) = bench.merge();
    assert_eq!((merged.code, report["failed"].as_array().unwrap().len()), (1, 1));
    let why = report["failed"][0]["why"].as_str().unwrap();
    assert!(why.starts_with("its file does not parse"), "{why}");
}

/// Whether the process runs. A zombie does not run.
fn is_running(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

#[test]
fn concurrent_runs_are_refused_and_a_killed_one_leaves_no_child() {
    let bench = FakeBench::new(
        "echo $$ > \"$here/pid.part\"; mv \"$here/pid.part\" \"$here/pid\"; exec sleep 600",
    );
    let args = bench.args(&with(&["--repeats", "1"]));
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut first = farrier(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until(|| "a child starts".to_owned(), || bench.path("pid").exists());
    let pid = fs::read_to_string(bench.path("pid")).unwrap();
    let second = bench.run(&with(&["--repeats", "1"]));
    assert!(is_running(pid.trim()));
    first.kill().unwrap();
    first.wait().unwrap();
    assert_eq!(second.code, 2);
    assert!(
        second.stderr.contains("another `farrier bench train` is running"),
        "{}",
        second.stderr
    );
    let explain = || "the shard outlives its parent".to_owned();
    wait_until(explain, || !is_running(pid.trim()));
}

#[test]
fn different_gpus_are_not_comparable() {
    let bench = FakeBench::new(
        r#"
steps 0.008 1000 | sed "s/NVIDIA H200/NVIDIA H$([ "$variant" = ours ] && echo 200 || echo 100)/"
"#,
    );
    let (_, report) = bench.report(&with(&["--repeats", "1"]));
    assert_eq!(report["gpus"].as_array().unwrap().len(), 2);
    assert!(report["peak"].is_null(), "the peak is ambiguous");
    let table = bench.run(&with(&["--repeats", "1"])).stdout;
    assert!(table.contains("Not comparable"), "{table}");
}

#[test]
fn different_builds_and_hosts_are_reported() {
    let bench = FakeBench::new(
        r#"
steps 0.008 1000 | sed "s/\"torch\"/\"farrier\":\"0.1.0+$([ "$variant" = ours ] && echo aaaa || echo bbbb)\",\"torch\"/"
"#,
    );
    let args = with(&["--repeats", "2"]);
    let (_, report) = bench.report(&args);
    let builds = report["builds"].as_array().unwrap();
    assert_eq!(builds.iter().map(|build| &build["shards"]).collect::<Vec<_>>(), [2, 6]);
    let table = bench.run(&args).stdout.replace('\n', " ");
    assert!(table.contains("Not comparable") && table.contains("0.1.0+aaaa (2 shards)"), "{table}");
    assert!(!table.contains("Several hosts"), "{table}");

    let path = bench.shard("191m_1x512_eager_1");
    let mut file: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    file["machine"]["boot"] = "00000000".into();
    fs::write(&path, file.to_string()).unwrap();
    let (_, report) = bench.report(&args);
    assert_eq!(report["hosts"].as_array().unwrap().len(), 2);
    let round = "191m at 1 x 512, repeat 1";
    assert_eq!(report["rounds_on_several_hosts"], serde_json::json!([round]));
    let table = bench.run(&args).stdout;
    assert!(table.contains("Several hosts") && table.contains(round), "{table}");
}

#[test]
fn invalid_arguments_are_rejected() {
    let bench = FakeBench::new(SUCCESS);
    for args in [
        &["--models", "191m"][..],
        &["--models", "../x@1x2"],
        &["--variants", "a/b"],
        &["--price-per-hour", "0"],
        &["--price-per-hour", "NaN"],
        &["--caps", "-1"],
        &["--repeats", "0"],
    ] {
        assert_eq!(bench.run(args).code, 2, "{args:?}");
    }
    assert!(!Path::exists(&bench.path("out")));
    let out = bench.path("out");
    let merge = ["bench", "train", "--merge-only", "--dir", out.to_str().unwrap()];
    let none: CommandOutput = farrier(&merge).output().unwrap().into();
    assert_eq!(none.code, 2);
    assert!(none.stderr.contains("no directory"), "{}", none.stderr);
}
