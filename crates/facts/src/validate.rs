//! What must hold in a set besides its form.

use crate::set::FactSet;

/// Everything that is wrong with a set; empty when it is good.
pub fn problems(set: &FactSet) -> Vec<String> {
    let mut problems = Vec::new();
    if set.gpus.gpu.is_empty() {
        problems.push("gpus: no GPU".to_owned());
    }
    problems
}
