//! Reads whether the NVIDIA kernel module is loaded, without calling into the module.

use farrier_facts::node::Reading;
use farrier_fleet::health::{Sample, Signal};

use super::{flag, push_node, required};
use crate::root::Root;

const MODULES: &str = "/sys/module";

pub(super) fn read(root: &Root, samples: &mut Vec<Sample>) {
    let loaded = match root.trimmed("/sys/module/nvidia/initstate") {
        // A module in state `coming` or `going` is not usable.
        Reading::Value(state) => Reading::Value(state == "live"),
        Reading::Absent => required(root.list(MODULES), MODULES).map(|_| false),
        Reading::Unreadable(why) => Reading::Unreadable(why),
    };
    push_node(samples, Signal::NodeDriverLoaded, loaded.map(flag));
}
