//! `docs/planner_scoreboard.md` says what the rows and the fit say.
//! `FARRIER_BLESS=1 cargo test -p farrier-planner --test scoreboard` writes it anew.
#![expect(clippy::disallowed_methods, reason = "a test may read files; the crate may not")]

use std::path::Path;

use farrier_facts::FactSet;
use farrier_planner::Planner;
use farrier_planner::published;
use farrier_planner::score::{page, score};

#[test]
fn the_scoreboard_says_what_the_rows_say() {
    let table = published::read(FactSet::embedded(), published::embedded()).unwrap();
    let wanted = page::page(&score(Planner::shipped(), table));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/planner_scoreboard.md");
    if std::env::var_os("FARRIER_BLESS").is_some() {
        std::fs::write(&path, &wanted).unwrap();
        return;
    }
    let kept = std::fs::read_to_string(&path).unwrap();
    assert!(
        kept == wanted,
        "docs/planner_scoreboard.md is not of these rows and coefficients: write it with FARRIER_BLESS=1"
    );
}
