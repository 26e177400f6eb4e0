//! Power limits that a comment calls the maximum of a card that has another.

use std::collections::BTreeMap;

use crate::setting::{LintVerdict, PowerClaim, SettingFacts};

/// The limits that are no maximum although the comment at them says so, with what to say.
///
/// A number alone is no mistake: to cap the power on purpose is common and good. Only the claim is.
/// Limits and comments go by line; the comments are in small letters.
pub(super) fn wrong_claims<'a>(
    facts: &'a SettingFacts,
    limits: &BTreeMap<u32, Vec<String>>,
    comments: &BTreeMap<u32, String>,
) -> Vec<(u32, String, &'a LintVerdict)> {
    // The comment on the line, and the one above it if that is not another limit's.
    let comments_at = |line: u32| {
        let above = line.checked_sub(1).filter(|above| !limits.contains_key(above));
        [Some(line), above].into_iter().flatten().filter_map(|line| comments.get(&line))
    };
    let mut wrong = Vec::new();
    for (&line, values) in limits {
        for value in values {
            let Ok(limit_w) = value.parse::<f64>() else { continue };
            let mut claims = facts.power_claim.iter();
            let claim = claims
                .find(|claim| comments_at(line).any(|comment| is_wrong(claim, comment, limit_w)));
            wrong.extend(claim.map(|claim| (line, value.clone(), &claim.verdict)));
        }
    }
    wrong
}

fn is_wrong(claim: &PowerClaim, comment: &str, limit_w: f64) -> bool {
    let has = |word: &String| comment.contains(word.as_str());
    let is_true = claim.true_of.iter().any(|real| {
        (real.limit_w - limit_w).abs() < 0.5
            && (real.forms.is_empty() || real.forms.iter().any(has))
    });
    claim.words.iter().all(has) && !is_true
}
