//! The page and the table that `farrier bench train --merge-only` writes for made-up shards.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::run;

/// A directory of shards with made-up figures.
fn sample_shards() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let shards = folder.path().join("shards");
    fs::create_dir(&shards).unwrap();
    for (variant, step_s) in [("eager", 0.014), ("compile", 0.012), ("ours", 0.004)] {
        for repeat in 0..3_u32 {
            let spec = json!({ "steps": {
                "model": "191m", "variant": variant, "rows": 1, "length": 512, "repeat": repeat,
                "warmups": 12, "groups": 8, "steps": 10
            }});
            let step_s = step_s * (1.0 + 0.01 * f64::from(repeat));
            let outcome = if (variant, repeat) == ("compile", 1) {
                json!({ "failed": { "why": "it exited with exit status: 1", "stderr": [
                    "  File \"<string>\", line 1 & more", "RuntimeError: a < b\u{1b}[31m"
                ]}})
            } else {
                json!({ "done": steps(variant, step_s, repeat) })
            };
            write(&shards, &format!("191m_1x512_{variant}_{repeat}"), &spec, &outcome);
        }
    }
    for (variant, lost) in [("default", 17), ("ours", 0)] {
        for seed in 0..2_u32 {
            let spec = json!({ "memory": {
                "model": "1.4b", "variant": variant, "cap_gib": 30.0, "seed": seed, "steps": 60
            }});
            let lost = vec![[16, 1024]; if lost > 0 { lost + seed as usize } else { 0 }];
            let outcome = json!({ "done": {
                "gpu": "NVIDIA H200", "torch": "2.11.0+cu130", "model": "1.4b", "variant": variant,
                "farrier": "0.1.0+0123abcd", "cap_gib": 30.0, "lost": lost, "steps_asked": 60, "tokens_per_s": 40_000.0 + f64::from(seed),
                "finite": true, "peak_gib": 28.0, "reserved_gib": 29.75, "report": null
            }});
            write(&shards, &format!("memory_1.4b_30gib_{variant}_{seed}"), &spec, &outcome);
        }
    }
    folder
}

/// A shard's figures. `ours` runs as a CUDA graph in every repeat except the second.
fn steps(variant: &str, step_s: f64, repeat: u32) -> Value {
    let ours = variant == "ours";
    let is_graph = ours && repeat != 1;
    json!({
        "gpu": "NVIDIA H200", "torch": "2.11.0+cu130", "step_s": [step_s, step_s, 3.0 * step_s], "tokens": 512,
        "farrier": "0.1.0+0123abcd", "comparisons": 2 * u32::from(ours),
        "comparisons_share": if ours { json!(0.003) } else { Value::Null }, "comparisons_s": if ours { 0.16 } else { 0.0 },
        "flops_causal": 1.1e9, "flops_full": 1.2e9, "launches": if is_graph { 1 } else { 1450 },
        "launch_s": if is_graph { 2e-5 } else { 0.006 }, "busy_s": 0.0038, "allocated_bytes": 3e9,
        "reserved_bytes": 3.5e9, "ready_s": 20.0, "loss": 10.4,
        "report": match (ours, is_graph) {
            (true, true) => json!("verified 3 times, <no> difference"),
            (true, false) => json!("9 steps\neager from here on: <it> differs. What helps: this"),
            (false, _) => Value::Null,
        }
    })
}

fn write(shards: &Path, name: &str, spec: &Value, outcome: &Value) {
    let file = json!({
        "farrier_shard": 1, "spec": spec, "began": "2026-11-15T09:00:00Z", "wall_s": 30.0,
        "machine": { "driver": "580.159.04", "processor": "A Processor", "cores": 16, "boot": "89abcdef" },
        "farrier": "0.1.0", "plan": {
            "shapes": [{ "model": "191m", "rows": 1, "length": 512 }], "variants": ["eager", "compile", "ours"],
            "repeats": 3, "warmups": 12, "groups": 8, "steps": 10,
            "memory": { "model": "1.4b", "caps_gib": [30.0], "variants": ["default", "ours"], "seeds": 3, "steps": 60 }
        },
        "command": "farrier bench train --dir some/where --price-per-hour 3.50", "outcome": outcome
    });
    fs::write(shards.join(format!("{name}.json")), file.to_string()).unwrap();
}

fn merge(folder: &TempDir, args: &[&str]) -> String {
    let folder = folder.path().to_str().unwrap();
    let all = ["bench", "train", "--merge-only", "--dir", folder];
    let all: Vec<&str> = all.iter().chain(args).copied().collect();
    let output = run(&all);
    assert_eq!(output.code, 1, "a shard failed: {}", output.stderr);
    output.stdout
}

/// Checks that tags are nested correctly, and returns them.
fn tags(html: &str) -> Vec<String> {
    let (mut open, mut seen) = (Vec::new(), Vec::new());
    let body = html.strip_prefix("<!DOCTYPE html>\n").unwrap();
    let mut rest = body;
    while let Some(at) = rest.find('<') {
        let end = rest[at..].find('>').expect("a tag that does not end") + at;
        let tag = &rest[at + 1..end];
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap().to_owned();
        if tag.starts_with('/') {
            assert_eq!(open.pop().as_ref(), Some(&name), "closed in the wrong place");
        } else {
            if !tag.ends_with('/') {
                open.push(name.clone());
            }
            seen.push(name);
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty(), "still open: {open:?}");
    seen
}

#[test]
fn the_page_is_valid_and_self_contained() {
    let folder = sample_shards();
    let path = folder.path().join("page.html");
    merge(&folder, &["--price-per-hour", "3.50", "--html", path.to_str().unwrap()]);
    let html = fs::read_to_string(&path).unwrap();
    let tags = tags(&html);
    let count = |name: &str| tags.iter().filter(|tag| *tag == name).count();
    // Four charts for the shape, one for the memory cap.
    assert_eq!((count("svg"), count("html"), count("body"), count("title")), (5, 1, 1, 6));
    for tag in ["script", "link", "img", "iframe"] {
        assert_eq!(count(tag), 0, "{tag}");
    }
    for text in ["http", "url(", "@import", "\u{1b}", "NaN", "inf\""] {
        assert!(!html.contains(text), "{text}");
    }
    // Every table scrolls by itself in a narrow window.
    let wide = "<div class=\"wide\" tabindex=\"0\"><table";
    assert_eq!((count("table"), html.matches(wide).count()), (4, 4));
    for word in [
        "<dd>12 of 15 measured, 1 failed, 2 to go</dd>",
        "<dd>191m at 1 x 512: 2 to 3 of 3</dd>",
        "<dd>1.4b under 30 GiB: 2 of 3</dd>",
        "<dd>0.1.0, package 0.1.0+0123abcd</dd>",
        "<td>1 or 1,450</td>",
        "0.020 or 6.00 · 1 or 1,450",
        "<td>2 of 80.0 ms<br/><small>(later 0.30 %)</small></td>",
        "<th scope=\"col\">Tokens/s, all 80 steps</th>",
        "<tr class=\"of\"><th scope=\"rowgroup\" colspan=\"4\">191m at 1 x 512</th></tr>",
        "<p>ours, repeat 1, fell back to eager: &lt;it&gt; differs. What helps: this.</p>",
        "<h3>191m at 1 x 512, ours, repeat 2</h3>",
        "<h3>191m at 1 x 512, ours, repeat 1, ended eager</h3>",
        "<pre>farrier bench train --dir DIR --price-per-hour 3.50</pre>",
    ] {
        assert!(html.contains(word), "{word}");
    }
    for word in ["prefers-color-scheme:dark", "a &lt; b", "&lt;no&gt;", "compile (1 of 3 failed)"] {
        assert!(html.contains(word), "{word}");
    }
    let (_, shown) = html.split_once("<body>").unwrap();
    insta::assert_snapshot!("page", shown);
}

/// `docs/bench_h200.html` is generated from `bench/train_h200`. `FARRIER_BLESS=1 cargo test -p
/// farrier --test bench` rewrites it.
#[test]
fn the_page_in_the_docs_matches_the_shards() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (shards, page) = (root.join("bench/train_h200"), root.join("docs/bench_h200.html"));
    let folder = tempfile::tempdir().unwrap();
    let bless = std::env::var_os("FARRIER_BLESS").is_some();
    let created = if bless { page.clone() } else { folder.path().join("page.html") };
    let args = ["bench", "train", "--merge-only", "--price-per-hour", "3.50", "--dir"];
    let paths = [shards.to_str().unwrap(), "--html", created.to_str().unwrap()];
    let output = run(&args.iter().chain(&paths).copied().collect::<Vec<_>>());
    assert_eq!(output.code, 0, "{}", output.stderr);
    let (created, page) = (fs::read_to_string(created).unwrap(), fs::read_to_string(page).unwrap());
    assert!(
        created == page,
        "docs/bench_h200.html does not match the shards: rewrite it with FARRIER_BLESS=1"
    );
}

#[test]
fn table_output() {
    let folder = sample_shards();
    insta::assert_snapshot!("table", merge(&folder, &["--price-per-hour", "3.50"]));
}
