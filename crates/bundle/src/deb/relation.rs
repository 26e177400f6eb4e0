//! Dependencies such as `libc6 (>= 2.34), libnvidia-ml1 | libnvidia-ml.so.1 (>= 319)`.

use crate::closure::{Constraint, PackageRelation, VersionComparison};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no dependency")]
pub struct RelationError {
    text: String,
}

/// Parses a dependency field: every inner list has alternatives, of which one is needed.
pub fn dependencies(
    text: &str,
    architecture: &str,
) -> Result<Vec<Vec<PackageRelation>>, RelationError> {
    let groups = text.split(',').map(str::trim).filter(|group| !group.is_empty());
    let mut found = Vec::new();
    for group in groups {
        let mut alternatives = Vec::new();
        for text in group.split('|') {
            alternatives.extend(relation(text.trim(), architecture)?);
        }
        if !alternatives.is_empty() {
            found.push(alternatives);
        }
    }
    Ok(found)
}

/// One relation. `None` if it is about another architecture.
fn relation(text: &str, architecture: &str) -> Result<Option<PackageRelation>, RelationError> {
    let error = || RelationError { text: text.chars().take(120).collect() };
    let end = text.find([' ', '(', '[', '<']).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let rest = rest.trim();
    let (constraint, rest) = match rest.strip_prefix('(') {
        Some(rest) => {
            let (inner, rest) = rest.split_once(')').ok_or_else(error)?;
            (Some(constraint(inner).ok_or_else(error)?), rest.trim())
        }
        None => (None, rest),
    };
    // Lists of architectures and build profiles occur in source packages only.
    if !rest.is_empty() {
        return Err(error());
    }
    let (name, suffix) = name.split_once(':').map_or((name, None), |(a, b)| (a, Some(b)));
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"+._-".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_name) {
        return Err(error());
    }
    if suffix.is_some_and(|suffix| !["any", "native", "all", architecture].contains(&suffix)) {
        return Ok(None);
    }
    Ok(Some(PackageRelation { name: name.to_owned(), constraint }))
}

fn constraint(text: &str) -> Option<Constraint> {
    let text = text.trim();
    let end = text.find(|letter: char| !"<>=".contains(letter))?;
    let comparison = match &text[..end] {
        "<<" => VersionComparison::Less,
        "<=" | "<" => VersionComparison::LessOrEqual,
        "=" => VersionComparison::Equal,
        ">=" | ">" => VersionComparison::GreaterOrEqual,
        ">>" => VersionComparison::Greater,
        _ => return None,
    };
    let version = text[end..].trim();
    let is_valid = !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_graphic());
    is_valid.then(|| Constraint { comparison, version: version.to_owned() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Vec<Vec<String>> {
        let groups = dependencies(text, "amd64").unwrap();
        groups.iter().map(|group| group.iter().map(ToString::to_string).collect()).collect()
    }

    #[test]
    fn alternatives_and_versions_are_parsed() {
        let text = "libc6 (>= 2.34), a:any | b (= 1:2-3) | c(<<4), libcuda1:i386 (= 1), ";
        assert_eq!(
            parse(text),
            [vec!["libc6 (>= 2.34)"], vec!["a", "b (= 1:2-3)", "c (<< 4)"]]
                .map(|group| group.iter().map(ToString::to_string).collect::<Vec<_>>())
        );
        for wrong in ["a (1)", "a (>= )", "a b", "a (>= 1", "a [amd64]", "é"] {
            assert!(dependencies(wrong, "amd64").is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "[a-c(), |=<>:1.]{0,40}") {
            let _ = dependencies(&text, "amd64");
        }
    }
}
