//! `docs/planner_scoreboard.md` must match the published runs and the fit.
//! `FARRIER_BLESS=1 cargo test -p farrier-planner --test scoreboard` regenerates it.
#![expect(clippy::disallowed_methods, reason = "a test may read files; the crate may not")]

use std::path::Path;

use farrier_facts::FactSet;
use farrier_planner::Planner;
use farrier_planner::published;
use farrier_planner::score::{score, scoreboard};

#[test]
fn scoreboard_is_up_to_date() {
    let table = published::read(FactSet::embedded(), published::embedded()).unwrap();
    let expected = scoreboard::render(&score(Planner::shipped(), table));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/planner_scoreboard.md");
    if std::env::var_os("FARRIER_BLESS").is_some() {
        std::fs::write(&path, &expected).unwrap();
        return;
    }
    let committed = std::fs::read_to_string(&path).unwrap();
    assert!(
        committed == expected,
        "docs/planner_scoreboard.md does not match the rows and coefficients: regenerate it with FARRIER_BLESS=1"
    );
}
