//! Prints `docs/planner_scoreboard.md`: accuracy of estimates on published runs.
//!
//! ```sh
//! cargo run --release -p farrier-planner --example scoreboard
//! ```

use std::io::Write;

use farrier_facts::FactSet;
use farrier_planner::Planner;
use farrier_planner::published;
use farrier_planner::score::{score, scoreboard};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let table = published::read(FactSet::embedded(), published::embedded())?;
    let scoreboard = scoreboard::render(&score(Planner::shipped(), table));
    std::io::stdout().lock().write_all(scoreboard.as_bytes())?;
    Ok(())
}
