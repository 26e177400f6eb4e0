//! docs/reasons.md has a row for every code that a decision may have.

use farrier_fleet::fleet::{Reason, UnblockedBy};

const PAGE: &str = include_str!("../../../docs/reasons.md");

#[test]
fn every_code_has_a_row() {
    let (why, unblocked_by) = PAGE.split_once("## Unblocked by").unwrap();
    for (codes, part) in [(&Reason::CODES[..], why), (&UnblockedBy::CODES[..], unblocked_by)] {
        for code in codes {
            assert!(part.contains(&format!("\n| `{code}` | ")), "`{code}` has no row");
        }
    }
}
