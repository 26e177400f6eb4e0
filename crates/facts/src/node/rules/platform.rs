//! Applies the compatibility rules to GPU, driver, modules, end of support and advisories.

use crate::check::{self, Verdict};
use crate::node::context::NodeContext;
use crate::node::item_code;
use crate::node::report::NodeFindings;

pub(crate) fn evaluate(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let Some(loaded) = node.loaded() else { return };
    for model in node.models().iter().filter(|model| model.gpu.is_some()) {
        match node.query(model, None) {
            Some(Ok(query)) => {
                let subject = format!("{} with driver {loaded}", query.gpu.id);
                findings.merge_check(&subject, |findings| {
                    check::evaluate_platform(node.set, &query, findings);
                    check::evaluate_environment(node.set, &query, findings);
                });
            }
            Some(Err(err)) => findings.item(
                Verdict::Unknown,
                item_code::DRIVER_NOT_IN_DATA,
                "driver",
                format!("driver {loaded} cannot be judged: {}", err.problem),
                "/sys/module/nvidia/version",
            ),
            None => {}
        }
    }
    if node.flavour().is_none() {
        let why = node.observation.driver.nvrm_line.why_unreadable();
        let why = why.map_or("the file is missing".to_owned(), ToString::to_string);
        findings.item(
            Verdict::Unknown,
            item_code::MODULE_FLAVOUR_UNKNOWN,
            "driver",
            format!("cannot read whether the open or the proprietary modules are loaded: {why}"),
            "/proc/driver/nvidia/version",
        );
    }
}
