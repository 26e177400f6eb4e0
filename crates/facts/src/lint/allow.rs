//! Comments that suppress a finding: `farrier-lint: allow CODE reason`.

use std::collections::BTreeSet;

/// Prefix of directive comments.
const MARK: &str = "farrier-lint:";

/// A directive in a comment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Directive {
    /// Suppresses findings with this code on this line and the next.
    Allow(String),
    /// Malformed, with the reason.
    Malformed(String),
}

/// Parses a directive; `None` for any other comment.
pub(super) fn directive(comment: &str, codes: &BTreeSet<&str>) -> Option<Directive> {
    let comment = comment.trim_start_matches('#').trim();
    let mut words = comment.strip_prefix(MARK)?.split_whitespace();
    let malformed = |why: String| Some(Directive::Malformed(why));
    match (words.next(), words.next(), words.next()) {
        (Some("allow"), Some(code), _) if !codes.contains(code) => {
            malformed(format!("there is no code `{code}`"))
        }
        (Some("allow"), Some(_), None) => malformed("it gives no reason".to_owned()),
        (Some("allow"), Some(code), Some(_)) => Some(Directive::Allow(code.to_owned())),
        (Some("allow"), None, _) => malformed("it names no code".to_owned()),
        _ => malformed("a directive can only begin with `allow`".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requires_a_code_and_a_reason() {
        let codes = BTreeSet::from(["env-unknown"]);
        let read = |comment| directive(comment, &codes);
        assert_eq!(
            read("# farrier-lint: allow env-unknown read by our launcher"),
            Some(Directive::Allow("env-unknown".to_owned()))
        );
        assert!(matches!(read("# farrier-lint: allow env-unknown"), Some(Directive::Malformed(_))));
        assert!(matches!(
            read("# farrier-lint: allow nonsense because"),
            Some(Directive::Malformed(_))
        ));
        assert!(matches!(read("# farrier-lint: off"), Some(Directive::Malformed(_))));
        assert_eq!(read("# see farrier lint"), None);
    }
}
