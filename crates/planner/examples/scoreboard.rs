//! Prints `docs/planner_scoreboard.md`: how far estimates are from the published runs.
//!
//! ```sh
//! cargo run --release -p farrier-planner --example scoreboard
//! ```

use std::io::Write;

use farrier_facts::FactSet;
use farrier_planner::Planner;
use farrier_planner::published;
use farrier_planner::score::{page, score};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let table = published::read(FactSet::embedded(), published::embedded())?;
    let page = page::page(&score(Planner::shipped(), table));
    std::io::stdout().lock().write_all(page.as_bytes())?;
    Ok(())
}
