//! `excludepkgs` in dnf's INI files.

const MARK: &str = "# Added by farrier change to the next line:";
/// Both names mean the same. The second is the old one.
const KEYS: [&str; 2] = ["excludepkgs", "exclude"];

/// The names that a change added.
pub(super) fn added(text: &str) -> &str {
    let names = text.lines().find_map(|line| line.strip_prefix(MARK));
    names.unwrap_or_default().trim()
}

/// Excludes exactly `names` besides those that the file excludes without a change.
pub(super) fn with_excludes(text: &str, section: &str, names: &str) -> String {
    let mut text = without_excludes(text);
    if names.is_empty() {
        return text;
    }
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    let mark = format!("{MARK} {names}");
    let mut lines: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
    let header = format!("[{section}]");
    let Some(start) = lines.iter().position(|line| line.trim() == header) else {
        return format!("{text}{header}\n{mark}\nexcludepkgs={names}\n");
    };
    let in_section = lines[start + 1..].iter().take_while(|line| !line.starts_with('['));
    let key = in_section.enumerate().find(|(_, line)| {
        line.split_once('=').is_some_and(|(key, _)| KEYS.contains(&key.trim_end()))
    });
    match key.map(|(at, _)| start + 1 + at) {
        Some(at) => {
            let line = lines[at].trim_end_matches('\n');
            lines[at] = format!("{mark}\n{line} {names}\n");
        }
        None => lines.insert(start + 1, format!("{mark}\nexcludepkgs={names}\n")),
    }
    lines.concat()
}

/// The file as it was before [`with_excludes`].
fn without_excludes(text: &str) -> String {
    let names = added(text);
    if names.is_empty() {
        return text.to_owned();
    }
    let mut lines = text.split_inclusive('\n');
    let mut rest = String::new();
    while let Some(line) = lines.next() {
        if !line.starts_with(MARK) {
            rest.push_str(line);
            continue;
        }
        let Some(next) = lines.next() else { break };
        let value = next.trim_end_matches('\n');
        if value == format!("excludepkgs={names}") {
            continue;
        }
        match value.strip_suffix(&format!(" {names}")) {
            Some(value) => rest.push_str(&format!("{value}\n")),
            // A person edited the line. It stays as it is.
            None => rest.push_str(next),
        }
    }
    rest
}

/// Whether the file of a plugin enables it. dnf's default is yes.
pub(super) fn is_enabled(text: &str) -> bool {
    let value = text.lines().filter_map(|line| line.split_once('=')).find_map(|(key, value)| {
        (key.trim() == "enabled").then(|| value.trim().to_ascii_lowercase())
    });
    !matches!(value.as_deref(), Some("0" | "no" | "false" | "off"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excludes_are_added_and_taken_back() {
        for text in [
            "[main]\ngpgcheck=1\nbest=True\n",
            "# comment\n[main]\nexclude = foo, bar\n  baz\nbest=True\n[repo]\nexcludepkgs=x\n",
            "[main]\nexcludepkgs=\n",
            "[main]",
        ] {
            let held = with_excludes(text, "main", "nvidia-driver libx");
            assert_eq!(added(&held), "nvidia-driver libx", "{held}");
            assert_eq!(with_excludes(&held, "main", "nvidia-driver libx"), held, "again");
            let other = with_excludes(&held, "main", "other");
            assert_eq!(added(&other), "other");
            assert!(!other.contains("libx"), "{other}");
            assert_eq!(with_excludes(&other, "main", "").trim_end(), text.trim_end());
        }
        let held = with_excludes("[main]\nexclude=foo\n  bar\n", "main", "lib");
        assert!(held.ends_with("\nexclude=foo lib\n  bar\n"), "{held}");
        assert!(
            with_excludes("", "main", "a").ends_with(
                "[main]\n# Added by farrier change to the next line: a\nexcludepkgs=a\n"
            )
        );
    }

    #[test]
    fn a_line_that_a_person_edited_is_kept() {
        let held = with_excludes("[main]\n", "main", "lib").replace("=lib", "=lib foo");
        assert_eq!(with_excludes(&held, "main", ""), "[main]\nexcludepkgs=lib foo\n");
    }

    #[test]
    fn plugins_are_enabled_unless_the_file_says_no() {
        assert!(is_enabled("[main]\nenabled = 1\n"));
        assert!(is_enabled("[main]\n"));
        assert!(!is_enabled("[main]\nenabled=0\n"));
    }
}
