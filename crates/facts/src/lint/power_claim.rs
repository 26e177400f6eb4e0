//! Power limits that a comment wrongly calls the maximum of a card.

use std::collections::BTreeMap;

use crate::setting::{LintVerdict, PowerClaim, SettingFacts};

/// Limits wrongly called the maximum in a comment, with the verdict.
///
/// A power cap alone is fine and common; only the claim is wrong. Both maps are keyed by line, and
/// comments are in lower case.
pub(super) fn wrong_claims<'a>(
    facts: &'a SettingFacts,
    limits: &BTreeMap<u32, Vec<String>>,
    comments: &BTreeMap<u32, String>,
) -> Vec<(u32, String, &'a LintVerdict)> {
    // The comment on the line, and that on the line above unless that line sets a limit itself.
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
