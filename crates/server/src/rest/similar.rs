//! Suggestions for unknown names.

const SUGGESTIONS_MAX: usize = 3;
const EDIT_DISTANCE_MAX: usize = 2;

/// Returns the existing names that are most similar to `unknown`, best first.
pub(super) fn names(unknown: &str, existing: impl Iterator<Item = String>) -> Vec<String> {
    let mut near: Vec<(usize, String)> = existing
        .filter_map(|name| {
            if name.chars().count().abs_diff(unknown.chars().count()) > EDIT_DISTANCE_MAX {
                return None;
            }
            let edits = distance(unknown, &name);
            (edits <= EDIT_DISTANCE_MAX).then_some((edits, name))
        })
        .collect();
    near.sort();
    near.truncate(SUGGESTIONS_MAX);
    near.into_iter().map(|(_, name)| name).collect()
}

/// Levenshtein distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (above, letter) in (1..).zip(a.chars()) {
        let mut diagonal = std::mem::replace(&mut row[0], above);
        for (at, other) in b.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *other);
            diagonal = row[at + 1];
            row[at + 1] = changed.min(row[at] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_are_suggested_and_others_are_not() {
        assert_eq!(
            [distance("", "abc"), distance("abc", "abd"), distance("trian", "train")],
            [3, 1, 2]
        );
        let existing =
            || ["rack:r1", "rack:r2", "rack:r20", "pool:train"].map(str::to_owned).into_iter();
        assert_eq!(names("rack:r11", existing()), ["rack:r1", "rack:r2", "rack:r20"]);
        assert_eq!(names("pool:trian", existing()), ["pool:train"]);
        assert!(names("site:moon", existing()).is_empty());
    }
}
