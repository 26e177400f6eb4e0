//! Tests of the rules on samples, and on the repository.

use super::*;

fn matches_in(sources: &[(&str, &str)]) -> Vec<String> {
    let sources = sources.iter().map(|(path, text)| ((*path).to_owned(), lexer::tokens(text)));
    find_matches(sources.collect()).into_iter().map(|text_match| text_match.what).collect()
}

fn matches_in_source(source: &str) -> Vec<String> {
    matches_in(&[("crates/facts/src/a.rs", source)])
}

#[test]
fn no_code_parses_our_own_messages() {
    let problems = problems(&crate::shell::root()).unwrap();
    assert!(
        problems.is_empty(),
        "use a typed value, or list the source of the text in xtask/src/own_text/allowed.txt:\n{}",
        problems.join("\n")
    );
}

/// Samples from the history of this repository.
#[test]
fn known_bad_samples_are_reported() {
    let samples = [
        // Tenant isolation depended on the wording of a message.
        r#"let (count, rest) = text.split_once(" of ")?;"#,
        r#"let rest = rest.strip_suffix(" are out of service")?;"#,
        // The state of a node was parsed from its reason.
        r#"let silent = why.text.contains("nothing was heard");"#,
        r#"node.why.text.contains("enrolled")"#,
        // NVML return codes were formatted and parsed again.
        r#"Reading::Unreadable(why) if why.ends_with("INVALID_ARGUMENT") => return None,"#,
        r#"Reading::Unreadable(why) if why.starts_with("NVML") => {}"#,
        r#"Self::Refused(why) => why.ends_with("NO_PERMISSION"),"#,
        r#"NvmlReading::Refused { error } if error.ends_with("NO_PERMISSION") => {}"#,
        r#"match error { "NVML_ERROR_GPU_IS_LOST" => {} }"#,
        r#"const NVML: &str = "watched apart"; fn f() { !item.text.contains(NVML) }"#,
        r#"const OF_GPU: &str = " of GPU "; fn f() { during.rsplit_once(OF_GPU)? }"#,
        r#"const BY: &str = ", told by NVML"; fn f() { line.ends_with(BY) }"#,
        // Part of a message was taken as the cause.
        r#"let first = item.text.split_once(". ");"#,
        r#"let cause = why.split_once(": ").map_or(why, |(_, cause)| cause);"#,
        r#"news.sort_by_key(|(id, it)| (!it.reason.contains("Xid "), *id));"#,
        r#"names.any(|name| name.contains("megatron-bridge, weights shared"))"#,
        // An error's Display was searched.
        r#"Err(err) if err.to_string().contains("not found") => {}"#,
        r#"const NOT_ASKED: &str = "not asked"; fn f() { gpu.trouble == Some(NOT_ASKED) }"#,
        "assert(err.to_string() == other)",
        "first.text != first.action.asks()",
        r#"if said == "it is not asked" {}"#,
        r#"match said { "it is not asked" => {} _ => {} }"#,
        r#"match said { Some("it is asked" | "asked") => {} _ => {} }"#,
        r#"matches!(said.as_str(), "it is not asked")"#,
        // A message about one node was rewritten for several.
        r#"text.replacen(": it ", ": each ", 1)"#,
        // Errors were strings.
        "fn f() -> Result<Option<u32>, String> {}",
        "type Known = Box<dyn Fn() -> Result<(u8, Vec<u8>), String> + Send>;",
    ];
    for sample in samples {
        assert_eq!(matches_in_source(sample).len(), 1, "{sample}: {:?}", matches_in_source(sample));
    }
}

#[test]
fn names_paths_tests_and_typed_errors_are_ignored() {
    for sample in [
        r#"name.starts_with("linux-image-"); text.split(' '); words.join(" ");"#,
        r#"// why.contains("a b")"#,
        r#"match code { "not-asked" => "it is not asked", _ => "it is asked" }"#,
        r#"assert!(is, "it is not asked"); f("it is asked") || g(); matches!(it, Some("x"))"#,
        r#"why.replace('\n', "; ")"#,
        r#"let why = "why.contains(\"a b\")";"#,
        "fn f() -> Result<Vec<String>, ReadError> {}",
        "fn f(at: BTreeMap<u8, String>) -> io::Result<String> {}",
        r#"#[cfg(test)] mod tests { fn f() { why.contains("a b") } }"#,
        r#"#[cfg(test)] #[expect(x)] fn f() -> Result<(), String> { why.contains("a b") }"#,
        "why.map(str::len); err.kind() == other; self.text(1) == other; *why == lost; id.to_string() == name",
    ] {
        assert_eq!(matches_in_source(sample), [""; 0], "{sample}");
    }
    let in_a_file = r#"fn f() { why.contains("a b") }"#;
    let below = |path| {
        matches_in(&[("crates/x/src/lib.rs", "#[cfg(test)]\nmod live;"), (path, in_a_file)]).len()
    };
    assert_eq!(below("crates/x/src/live.rs"), 0);
    assert_eq!(below("crates/x/src/live/deep.rs"), 0);
    assert_eq!(below("crates/x/src/other.rs"), 1);
}

#[test]
fn string_errors_are_allowed_in_the_binary() {
    let parser = "fn parse(text: &str) -> Result<u8, String> {}";
    assert_eq!(matches_in(&[("crates/cli/src/a.rs", parser)]), [""; 0]);
    assert_eq!(matches_in(&[("crates/wire/src/a.rs", parser)]), ["Result<_, String>"]);
}

#[test]
fn exceptions_need_a_reason_and_match_exactly() {
    assert!(allowed("crates/a.rs | contains(\"a b\")").is_err());
    assert!(allowed("crates/a.rs | contains(\"a b\") | ").is_err());
    let text =
        "# a comment\ncrates/a.rs | contains(\"a b\") | x\ncrates/d/ | * | the kernel's log\n";
    let allowed = allowed(text).unwrap();
    let covered = |path: &str, what: &str| {
        let text_match = TextMatch { path: path.to_owned(), line: 1, what: what.to_owned() };
        allowed.iter().any(|exception| exception.covers(&text_match))
    };
    assert!(covered("crates/a.rs", "contains(\"a b\")"));
    assert!(!covered("crates/a.rs", "contains(\"b c\")") && !covered("crates/ab.rs", "x"));
    assert!(covered("crates/d/e.rs", "why.contains") && !covered("crates/de.rs", "why.contains"));
}
