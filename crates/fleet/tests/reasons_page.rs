//! `docs/reasons.md` has a row for every reason code of a decision.

use farrier_fleet::fleet::{Reason, UnblockedBy};

const PAGE: &str = include_str!("../../../docs/reasons.md");

#[test]
fn every_code_has_a_row() {
    let (reasons, unblocked_by) = PAGE.split_once("## Unblocked by").unwrap();
    for (codes, section) in [(&Reason::CODES[..], reasons), (&UnblockedBy::CODES[..], unblocked_by)]
    {
        for code in codes {
            assert!(section.contains(&format!("\n| `{code}` | ")), "`{code}` has no row");
        }
    }
}
