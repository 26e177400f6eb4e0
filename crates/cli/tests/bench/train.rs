//! `farrier bench train` with a Python that is a shell script: it measures nothing, fails, hangs, babbles.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use tempfile::TempDir;

use crate::launch::driver;
use crate::support::wait::wait_until;
use crate::support::{Ran, farrier};

/// What the script does before the shard at hand is looked at.
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

/// All is well: ours takes a quarter of eager's time and loses nothing.
const WELL: &str = r#"
case "$2 $variant" in
    *train\ eager) steps 0.008,0.009,0.008 1000 ;;
    *train\ ours) steps 0.002 1 ;;
    *train*) steps 0.004 500 ;;
    *memory\ ours) memory '[]' ;;
    *memory*) memory '[[16,1024],[4,4096],[8,2048]]' ;;
esac
"#;

/// A folder with a Python and a place for shards.
struct World {
    folder: TempDir,
}

impl World {
    fn new(cases: &str) -> Self {
        let world = Self { folder: tempfile::tempdir().unwrap() };
        let python = world.path("python");
        fs::write(&python, format!("{SCRIPT}{cases}")).unwrap();
        fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn words(&self, words: &[&str]) -> Vec<String> {
        let text = |path: PathBuf| path.into_os_string().into_string().unwrap();
        let mut all: Vec<String> = ["bench", "train", "--dir"].map(str::to_owned).into();
        all.push(text(self.path("out")));
        all.extend(["--python".to_owned(), text(self.path("python"))]);
        all.extend(words.iter().map(|&word| word.to_owned()));
        all
    }

    fn run(&self, words: &[&str]) -> Ran {
        let words = self.words(words);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        farrier(&words).output().unwrap().into()
    }

    /// Runs and reads the report.
    fn report(&self, words: &[&str]) -> (Ran, Value) {
        let all: Vec<&str> = words.iter().chain(&["--output", "json"]).copied().collect();
        let ran = self.run(&all);
        let report = serde_json::from_str(&ran.stdout)
            .unwrap_or_else(|err| panic!("{err}: {} {}", ran.stdout, ran.stderr));
        (ran, report)
    }

    /// Reads the report of what is there.
    fn merged(&self) -> (Ran, Value) {
        let out = self.path("out");
        let words = ["bench", "train", "--merge-only", "--output", "json", "--dir"];
        let words: Vec<&str> = words.iter().copied().chain([out.to_str().unwrap()]).collect();
        let ran: Ran = farrier(&words).output().unwrap().into();
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

fn with<'a>(words: &[&'a str]) -> Vec<&'a str> {
    ONE_SHAPE.iter().chain(words).copied().collect()
}

/// The row of a variant in the first shape.
fn variant<'a>(report: &'a Value, name: &str) -> &'a Value {
    let rows = report["steps"][0]["variants"].as_array().unwrap();
    rows.iter().find(|row| row["variant"] == name).unwrap()
}

#[test]
fn a_measurement_is_whole_and_is_not_made_twice() {
    let world = World::new(WELL);
    let words = ["--models", "191m@1x512,1.4b@4x2048", "--repeats", "2", "--seeds", "1"];
    let words: Vec<&str> = words.iter().chain(&["--price-per-hour", "3.60"]).copied().collect();
    let (ran, report) = world.report(&words);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    // 2 shapes x 4 variants x 2 repeats, and 2 caps x 4 allocators x 1 seed.
    assert_eq!((world.log().len(), &report["shards_done"]), (24, &24.into()));
    assert_eq!(report["shards_left"], 0);
    let ours = variant(&report, "ours");
    let median = |row: &Value, key: &str| row[key]["median"].as_f64().unwrap();
    assert!((median(ours, "to_eager") - 4.0).abs() < 1e-9, "{ours}");
    assert!((median(ours, "tokens_per_s") - 256_000.0).abs() < 1e-6);
    // The peak of an H200 comes from the facts: 989 TFLOP/s dense.
    assert!((median(ours, "mfu_causal") - 256_000.0 * 1e9 / 989e12).abs() < 1e-9);
    assert!((median(ours, "mfu_full") - 256_000.0 * 1.1e9 / 989e12).abs() < 1e-9);
    assert!((median(ours, "usd_per_million_tokens") - 3.6 / 3600.0 / 256_000.0 * 1e6).abs() < 1e-9);
    assert!((median(variant(&report, "compile"), "to_best") - 0.5).abs() < 1e-9);
    assert_eq!(report["memory"][0]["cap_gib"], 30.0);
    let rate = |place: usize| report["memory"][0]["variants"][place]["oom_rate"].as_f64().unwrap();
    assert!((rate(0) - 0.05).abs() < 1e-9 && rate(3).abs() < 1e-9);

    let again = world.run(&words);
    assert_eq!((again.code, world.log().len()), (0, 24), "{}", again.stderr);
    for word in ["191m at 1 x 512", "4.00×", "5.0 % (3 of 60 steps)", "989 TFLOP/s", "3.6 USD"] {
        assert!(again.stdout.contains(word), "{word}: {}", again.stdout);
    }
}

#[test]
fn variants_take_turns_round_by_round() {
    let world = World::new(WELL);
    let ran = world.run(&with(&["--repeats", "2", "--variants", "eager,compile,ours"]));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let order: Vec<String> =
        world.log().iter().map(|line| line.replace(" farrier.bench.train", "")).collect();
    assert_eq!(order, ["eager 0", "compile 0", "ours 0", "compile 1", "ours 1", "eager 1"]);
}

#[test]
fn no_variant_starts_from_what_another_has_compiled() {
    let world = World::new(WELL);
    world.run(&with(&["--repeats", "2", "--variants", "compile,ours"]));
    let text = fs::read_to_string(world.path("caches")).unwrap();
    let mut caches: Vec<(&str, &str)> =
        text.lines().map(|line| line.split_once(' ').unwrap()).collect();
    caches.sort_unstable();
    caches.dedup();
    let named: Vec<&str> = caches.iter().map(|(variant, _)| *variant).collect();
    assert_eq!(named, ["compile", "ours"], "one each, for all repeats: {caches:?}");
    assert!(
        caches.iter().all(|(variant, cache)| cache.starts_with('/') && cache.ends_with(variant))
    );
}

#[test]
fn without_a_price_the_column_says_so() {
    let world = World::new(WELL);
    let ran = world.run(&with(&["--repeats", "1"]));
    assert!(ran.stdout.contains("no price stated"), "{}", ran.stdout);
    assert!(!ran.stdout.contains("USD for a GPU hour"), "{}", ran.stdout);
}

#[test]
fn what_fails_hangs_or_babbles_is_kept_as_failed_and_shown_as_such() {
    let world = World::new(
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
    let words = with(&["--repeats", "1", "--deadline", "1", "--variants", variants]);
    let (ran, report) = world.report(&words);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert_eq!(world.log().len(), 6, "the others ran all the same");
    let failed = report["failed"].as_array().unwrap();
    let why = |name: &str| {
        let name = format!("191m_1x512_{name}_0");
        let found = failed.iter().find(|it| it["name"] == name.as_str());
        found.unwrap_or_else(|| panic!("{name}: {failed:?}"))["why"].as_str().unwrap().to_owned()
    };
    assert_eq!(why("compile"), "it ended with exit status: 3");
    assert!(why("reduce-overhead").starts_with("its last line is no JSON"));
    assert_eq!(why("ours"), "it had not ended after 1 s");
    assert!(why("odd").contains("missing field `torch`"), "{}", why("odd"));
    assert_eq!(why("silent"), "it printed nothing");
    let compile = failed.iter().find(|it| it["name"] == "191m_1x512_compile_0").unwrap();
    assert_eq!(compile["stderr"][1], "torch.OutOfMemoryError: CUDA out of memory");
    let row = variant(&report, "compile");
    assert_eq!((&row["done"], &row["failed"]), (&0.into(), &1.into()));
    assert!(row["tokens_per_s"].is_null() && row["mfu_causal"].is_null(), "{row}");

    // Kept: nothing is run again, and the table says failed and not 0.
    let again = world.run(&words);
    assert_eq!((again.code, world.log().len()), (1, 6));
    let row = again.stdout.lines().find(|line| line.contains("ours (1 of 1")).unwrap();
    assert!(row.matches("failed").count() >= 5 && !row.contains(" 0"), "{row}");

    // Run again on request, and only those.
    let only = with(&["--repeats", "1", "--variants", "eager,compile", "--retry-failed"]);
    assert_eq!((world.run(&only).code, world.log().len()), (1, 7));
}

#[test]
fn a_run_stops_and_goes_on() {
    let world = World::new(
        r#"
[ "$variant" = eager ] || [ -e "$here/fast" ] || exec sleep 600
steps 0.008 1000
"#,
    );
    let words = with(&["--repeats", "1", "--stop-after", "2"]);
    let (ran, report) = world.report(&words);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("stopped with 3 shards to go"), "{}", ran.stderr);
    assert_eq!((&report["shards_done"], &report["shards_left"]), (&1.into(), &3.into()));
    assert_eq!(report["shards_planned"], 4);
    assert!(ran.stderr.contains("3 shards to go"), "{}", ran.stderr);
    let (_, merged) = world.merged();
    assert_eq!((&merged["shards_planned"], &merged["shards_left"]), (&4.into(), &3.into()));
    assert_eq!(merged["steps"][0]["repeats_planned"], 1);
    assert!(world.shard("191m_1x512_eager_0").exists());
    assert!(!world.shard("191m_1x512_compile_0").exists(), "it was dropped, not failed");

    fs::write(world.path("fast"), "").unwrap();
    let (ran, report) = world.report(&with(&["--repeats", "1"]));
    assert_eq!((ran.code, &report["shards_left"]), (0, &0.into()), "{}", ran.stderr);
    let log = world.log();
    let count = |name: &str| log.iter().filter(|line| line.starts_with(name)).count();
    assert_eq!((count("eager"), count("compile"), count("ours")), (1, 2, 1));
}

#[test]
fn no_shard_is_begun_that_is_known_not_to_fit() {
    let world = World::new("steps 0.008 1000");
    let words = with(&["--repeats", "1", "--variants", "eager"]);
    assert_eq!(world.run(&words).code, 0);
    // The first repeat took an hour, as far as its file says.
    let path = world.shard("191m_1x512_eager_0");
    let mut file: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    file["wall_s"] = 3600.0.into();
    fs::write(&path, file.to_string()).unwrap();
    let words = with(&["--repeats", "2", "--variants", "eager", "--stop-after", "600"]);
    let (ran, report) = world.report(&words);
    assert_eq!((ran.code, &report["shards_left"]), (0, &1.into()), "{}", ran.stderr);
    assert_eq!(world.log().len(), 1);
}

#[test]
fn a_python_that_cannot_do_it_is_an_error_with_advice() {
    let world = World::new(WELL);
    fs::write(world.path("missing"), "module farrier.bench.train\n").unwrap();
    let ran = world.run(&with(&[]));
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
    assert!(ran.stderr.contains("there is no module `farrier.bench.train`"), "{}", ran.stderr);
    assert!(ran.stderr.contains("hint: install the package"), "{}", ran.stderr);
    assert!(world.log().is_empty() && !world.path("out").exists());

    for said in ["", "Segmentation fault\n"] {
        fs::write(world.path("missing"), said).unwrap();
        let ran = world.run(&with(&[]));
        assert!(ran.stderr.contains("does not say what it has"), "{}", ran.stderr);
    }

    fs::remove_file(world.path("python")).unwrap();
    let ran = world.run(&with(&[]));
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("failed to run") && ran.stderr.contains("hint:"), "{}", ran.stderr);
}

#[test]
fn the_question_is_one_that_python_understands() {
    let world = World::new(WELL);
    // Without packages of any kind it has its own library and nothing else.
    let python = world.path("python");
    fs::write(&python, "#!/bin/sh\nexec python3 -I -S \"$@\"\n").unwrap();
    let ran = world.run(&with(&[]));
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("there is no module `farrier.bench.train`"), "{}", ran.stderr);
    assert!(ran.stderr.contains("there is no module `torch`"), "all of it: {}", ran.stderr);
}

#[test]
fn without_a_gpu_no_shard_is_spent() {
    let world = World::new(WELL);
    let modules = world.path("modules");
    fs::create_dir_all(modules.join("farrier/bench")).unwrap();
    for name in
        ["farrier/__init__.py", "farrier/bench/__init__.py", "farrier/bench/train.py", "torch.py"]
    {
        fs::write(modules.join(name), "").unwrap();
    }
    fs::write(modules.join("version.py"), "cuda = None\nhip = None\n").unwrap();
    let python = world.path("python");
    fs::write(&python, "#!/bin/sh\nexec python3 -S \"$@\"\n").unwrap();
    let driver = driver(&["-DCOUNT=0"]);
    fs::rename(driver.path().join("libcuda.so"), driver.path().join("libcuda.so.1")).unwrap();
    let words = world.words(&with(&[]));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut command = farrier(&words);
    let ran: Ran = command
        .env("PYTHONPATH", modules)
        .env("LD_LIBRARY_PATH", driver.path())
        .output()
        .unwrap()
        .into();
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{}", ran.stderr);
    let said = "its torch is built without CUDA; there is no GPU: cuInit gives 100";
    assert!(ran.stderr.contains(said), "{}", ran.stderr);
    assert!(ran.stderr.contains("hint: install a torch for CUDA"), "{}", ran.stderr);
    assert!(ran.stderr.contains("NVIDIA GPU and its driver"), "{}", ran.stderr);
    assert!(!world.path("out").exists(), "nothing is left behind");
}

#[test]
fn what_was_measured_before_is_printed_of_what_is_named() {
    let world = World::new(WELL);
    let words = ["--models", "191m@1x512,1.4b@4x2048", "--repeats", "2", "--seeds", "1"];
    assert_eq!(world.run(&words).code, 0);
    let merged = |words: &[&str]| {
        let words: Vec<&str> = ["--merge-only"].iter().chain(words).copied().collect();
        let words: Vec<&str> = words.iter().chain(&["--output", "json"]).copied().collect();
        // No `--python`: nothing is run.
        let dir = world.path("out");
        let all = ["bench", "train", "--dir", dir.to_str().unwrap()];
        let all: Vec<&str> = all.iter().chain(&words).copied().collect();
        let ran: Ran = farrier(&all).output().unwrap().into();
        (ran.code, serde_json::from_str::<Value>(&ran.stdout).unwrap_or_default(), ran.stderr)
    };
    let (_, all, _) = merged(&[]);
    assert_eq!((&all["shards_done"], &all["shards_planned"]), (&24.into(), &24.into()));
    let (code, one, _) = merged(&["--models", "1.4b@4x2048", "--parts", "steps"]);
    assert_eq!((code, &one["shards_done"], &one["shards_planned"]), (0, &8.into(), &8.into()));
    assert_eq!(one["steps"].as_array().unwrap().len(), 1);
    assert_eq!(one["steps"][0]["model"], "1.4b");
    let (_, few, _) = merged(&["--variants", "eager,ours", "--repeats", "1", "--caps", "26"]);
    assert_eq!(few["steps"][0]["variants"].as_array().unwrap().len(), 2);
    assert_eq!(
        (&few["steps"][0]["variants"][0]["done"], &few["shards_done"]),
        (&1.into(), &8.into())
    );
    assert_eq!(few["memory"].as_array().unwrap().len(), 1);
    for refused in
        [&["--steps", "4"][..], &["--retry-failed"], &["--python", "x"], &["--stop-after", "1"]]
    {
        let (code, _, stderr) = merged(refused);
        assert_eq!(code, 2);
        assert!(stderr.contains("cannot be used with"), "{stderr}");
    }
    for (asked, said) in [
        (
            &["--variants", "ourz"][..],
            "of --variants ourz, but of eager, compile, reduce-overhead, ours",
        ),
        (&["--models", "191m@1x51"], "of --models 191m@1x51, but of 191m@1x512, 1.4b@4x2048"),
        (&["--memory-variants", "eager"], "of --memory-variants eager, but of default"),
        (&["--caps", "27"], "of --caps 27, but of 30, 26"),
    ] {
        let (code, _, stderr) = merged(asked);
        assert_eq!(code, 2, "{stderr}");
        assert!(stderr.contains(said) && stderr.contains("hint:"), "{stderr}");
    }
    // A run, too, prints what it was asked for.
    let (_, report) = world.report(&with(&["--repeats", "2", "--variants", "ours"]));
    assert_eq!((&report["shards_done"], world.log().len()), (&2.into(), 24));
}

#[test]
fn shards_of_another_measurement_are_not_mixed_in() {
    let world = World::new(WELL);
    assert_eq!(world.run(&with(&["--repeats", "1"])).code, 0);
    let ran = world.run(&with(&["--repeats", "1", "--steps", "99"]));
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("`191m_1x512_eager_0` of another measurement"), "{}", ran.stderr);
    assert_eq!(world.log().len(), 4);
}

#[test]
fn a_file_that_does_not_read_is_not_passed_over() {
    let world = World::new(WELL);
    assert_eq!(world.run(&with(&["--repeats", "1"])).code, 0);
    fs::write(world.shard("191m_1x512_ours_0"), "{\"farrier_shard\": 1").unwrap();
    let ran = world.run(&with(&["--repeats", "1"]));
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("hint: remove its file"), "{}", ran.stderr);
    let (merged, report) = world.merged();
    assert_eq!((merged.code, report["failed"].as_array().unwrap().len()), (1, 1));
    let why = report["failed"][0]["why"].as_str().unwrap();
    assert!(why.starts_with("its file does not read"), "{why}");
}

/// Whether a process of that number is at work: one that nobody has collected yet is not.
fn is_running(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

#[test]
fn two_at_once_are_refused_and_a_killed_one_leaves_nobody_behind() {
    let world = World::new(
        "echo $$ > \"$here/pid.part\"; mv \"$here/pid.part\" \"$here/pid\"; exec sleep 600",
    );
    let words = world.words(&with(&["--repeats", "1"]));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut first = farrier(&words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until(|| "a child starts".to_owned(), || world.path("pid").exists());
    let pid = fs::read_to_string(world.path("pid")).unwrap();
    let second = world.run(&with(&["--repeats", "1"]));
    assert!(is_running(pid.trim()));
    first.kill().unwrap();
    first.wait().unwrap();
    assert_eq!(second.code, 2);
    assert!(
        second.stderr.contains("another `farrier bench train` is at work"),
        "{}",
        second.stderr
    );
    let explain = || "the shard goes on without anybody to keep it".to_owned();
    wait_until(explain, || !is_running(pid.trim()));
}

#[test]
fn figures_of_two_machines_are_called_what_they_are() {
    let world = World::new(
        r#"
steps 0.008 1000 | sed "s/NVIDIA H200/NVIDIA H$([ "$variant" = ours ] && echo 200 || echo 100)/"
"#,
    );
    let (_, report) = world.report(&with(&["--repeats", "1"]));
    assert_eq!(report["gpus"].as_array().unwrap().len(), 2);
    assert!(report["peak"].is_null(), "a share of which peak?");
    let table = world.run(&with(&["--repeats", "1"])).stdout;
    assert!(table.contains("Not comparable"), "{table}");
}

#[test]
fn figures_of_two_builds_and_hosts_are_called_what_they_are() {
    let world = World::new(
        r#"
steps 0.008 1000 | sed "s/\"torch\"/\"farrier\":\"0.1.0+$([ "$variant" = ours ] && echo aaaa || echo bbbb)\",\"torch\"/"
"#,
    );
    let words = with(&["--repeats", "2"]);
    let (_, report) = world.report(&words);
    let builds = report["builds"].as_array().unwrap();
    assert_eq!(builds.iter().map(|it| &it["shards"]).collect::<Vec<_>>(), [2, 6]);
    let table = world.run(&words).stdout.replace('\n', " ");
    assert!(table.contains("Not comparable") && table.contains("0.1.0+aaaa (2 shards)"), "{table}");
    assert!(!table.contains("Several hosts"), "{table}");

    let path = world.shard("191m_1x512_eager_1");
    let mut file: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    file["machine"]["boot"] = "00000000".into();
    fs::write(&path, file.to_string()).unwrap();
    let (_, report) = world.report(&words);
    assert_eq!(report["hosts"].as_array().unwrap().len(), 2);
    let round = "191m at 1 x 512, repeat 1";
    assert_eq!(report["rounds_on_several_hosts"], serde_json::json!([round]));
    let table = world.run(&words).stdout;
    assert!(table.contains("Several hosts") && table.contains(round), "{table}");
}

#[test]
fn wrong_words_are_refused_at_once() {
    let world = World::new(WELL);
    for words in [
        &["--models", "191m"][..],
        &["--models", "../x@1x2"],
        &["--variants", "a/b"],
        &["--price-per-hour", "0"],
        &["--price-per-hour", "NaN"],
        &["--caps", "-1"],
        &["--repeats", "0"],
    ] {
        assert_eq!(world.run(words).code, 2, "{words:?}");
    }
    assert!(!Path::exists(&world.path("out")));
    let out = world.path("out");
    let merge = ["bench", "train", "--merge-only", "--dir", out.to_str().unwrap()];
    let none: Ran = farrier(&merge).output().unwrap().into();
    assert_eq!(none.code, 2);
    assert!(none.stderr.contains("there is no folder"), "{}", none.stderr);
}
