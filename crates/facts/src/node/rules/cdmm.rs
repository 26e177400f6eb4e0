//! CDMM: whether the driver or the kernel manages GPU memory on coherent platforms.

use crate::check::Verdict;
use crate::node::context::NodeContext;
use crate::node::item_code;
use crate::node::reading::Reading;
use crate::node::report::NodeFindings;

const PARAMETER: &str = "CoherentGPUMemoryMode";
const SOURCE: &str = "/proc/driver/nvidia/params, CoherentGPUMemoryMode";

pub(crate) fn evaluate(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let models = node.models();
    let Some(gpu) = models.iter().filter_map(|model| model.gpu).find(|gpu| gpu.coherent) else {
        return;
    };
    let facts = &node.set.drivers.cdmm;
    let mut item = |verdict, code, text: String| {
        findings.item(
            verdict,
            code,
            "GPU memory",
            text,
            format!("{SOURCE}; {}", facts.origin.line()),
        );
    };
    let mode = node
        .observation
        .driver
        .parameters
        .as_ref()
        .map(|all| all.get(PARAMETER).map(String::as_str));
    match mode {
        Reading::Value(Some("driver")) => item(
            Verdict::Ok,
            item_code::CDMM_ON,
            format!("{}: the driver manages the GPU's memory (CDMM)", gpu.id),
        ),
        Reading::Value(Some("numa" | "")) => {
            item(
                Verdict::Caveat,
                item_code::CDMM_OFF,
                format!(
                    "{}: the GPU's memory is a NUMA node of the kernel (CDMM is off), so the kernel \
                     may put other programs' pages there",
                    gpu.id
                ),
            );
            findings.remedy(
                "for GPU memory that only GPU programs use",
                &format!("set the module option `{}` and reboot", facts.enable),
                Some(&facts.verify),
            );
        }
        Reading::Value(Some(other)) => {
            item(
                Verdict::Unknown,
                item_code::CDMM_UNKNOWN,
                format!("{PARAMETER} has the unknown value `{other}`"),
            );
        }
        Reading::Value(None) => item(
            Verdict::Caveat,
            item_code::CDMM_UNSUPPORTED,
            format!("this driver has no {PARAMETER}; CDMM starts with {}", facts.first_driver),
        ),
        Reading::Absent => item(
            Verdict::Unknown,
            item_code::CDMM_UNKNOWN,
            "the driver's parameters are missing, so the memory mode is unknown".to_owned(),
        ),
        Reading::Unreadable(why) => item(
            Verdict::Unknown,
            item_code::CDMM_UNKNOWN,
            format!("the driver's parameters cannot be read: {why}"),
        ),
    }
}
