//! Secure Boot: will the kernel accept the module on disk?

use crate::check::Verdict;
use crate::node::context::NodeContext;
use crate::node::item_code;
use crate::node::reading::Reading;
use crate::node::report::NodeFindings;

const SOURCE: &str = "EFI variable SecureBoot; module.sig_enforce; signature of nvidia.ko";
const SUBJECT: &str = "Secure Boot";

pub(crate) fn evaluate(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let boot = &node.observation.secure_boot;
    let enforced = boot.signatures_enforced == Reading::Value(true);
    let mut item = |verdict, code, text: String| {
        findings.item(verdict, code, SUBJECT, text, SOURCE);
    };
    let by = match (&boot.enabled, enforced) {
        (Reading::Value(true), _) => "Secure Boot is on",
        (_, true) => "the kernel enforces module signatures",
        (Reading::Value(false), false) => {
            return item(Verdict::Ok, item_code::SECURE_BOOT_OFF, "Secure Boot is off".to_owned());
        }
        (Reading::Absent, false) => {
            return item(
                Verdict::Ok,
                item_code::SECURE_BOOT_OFF,
                "the machine did not boot with EFI, so it has no Secure Boot".to_owned(),
            );
        }
        (Reading::Unreadable(why), false) => {
            return item(
                Verdict::Unknown,
                item_code::SECURE_BOOT_UNKNOWN,
                format!("cannot read whether Secure Boot is on: {why}"),
            );
        }
    };
    let info = node.running_kernel().map_or(Reading::Absent, |kernel| {
        kernel.module.as_ref().and_then(|module| module.info.as_ref())
    });
    match info {
        Reading::Value(info) if !info.signed => {
            item(
                Verdict::Blocked,
                item_code::MODULE_UNSIGNED,
                format!(
                    "{by}, but the module on disk is not signed: the kernel refuses it (`Key was rejected by service`)"
                ),
            );
            findings.remedy(
                "for Secure Boot",
                "install the distribution's signed modules, or sign the module and enrol the key; \
                 enrolment needs the console at the next boot",
                Some("mokutil --import /var/lib/shim-signed/mok/MOK.der"),
            );
        }
        // The enrolled keys cannot be read. But the kernel has already accepted this module.
        Reading::Value(info)
            if node.loaded().is_some() && info.version.as_deref() == node.loaded() =>
        {
            item(
                Verdict::Ok,
                item_code::MODULE_SIGNED,
                format!("{by}; the module is signed and loaded"),
            );
        }
        Reading::Value(_) => item(
            Verdict::Caveat,
            item_code::MODULE_SIGNED_UNPROVEN,
            format!(
                "{by}; the module on disk is signed, but only loading it shows whether its key is enrolled"
            ),
        ),
        Reading::Absent => item(
            Verdict::Unknown,
            item_code::MODULE_SIGNATURE_UNKNOWN,
            format!("{by}; there is no module on disk to check"),
        ),
        Reading::Unreadable(why) => item(
            Verdict::Unknown,
            item_code::MODULE_SIGNATURE_UNKNOWN,
            format!("{by}; the module on disk cannot be read: {why}"),
        ),
    }
}
