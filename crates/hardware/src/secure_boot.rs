//! Reads whether the kernel rejects unsigned modules.

use farrier_facts::node::{ReadError, Reading, SecureBootObservation};

use crate::root::Root;

/// The `SecureBoot` variable in the EFI global namespace (UEFI specification, section 3.3).
const VARIABLE: &str = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";

pub(crate) fn read(root: &Root) -> SecureBootObservation {
    SecureBootObservation {
        enabled: enabled(root),
        signatures_enforced: root
            .trimmed("/sys/module/module/parameters/sig_enforce")
            .map(|word| word == "Y" || word == "1"),
    }
}

fn enabled(root: &Root) -> Reading<bool> {
    match root.exists("/sys/firmware") {
        Reading::Value(true) => {}
        Reading::Value(false) | Reading::Absent => {
            return Reading::Unreadable(ReadError::unavailable("/sys/firmware does not exist"));
        }
        Reading::Unreadable(why) => return Reading::Unreadable(why),
    }
    match root.exists("/sys/firmware/efi") {
        Reading::Value(true) => {}
        Reading::Value(false) | Reading::Absent => return Reading::Absent,
        Reading::Unreadable(why) => return Reading::Unreadable(why),
    }
    match root.bytes(VARIABLE) {
        // The value follows four bytes of attributes.
        Reading::Value(bytes) => match bytes.as_slice() {
            [_, _, _, _, value] => Reading::Value(*value == 1),
            other => Reading::Unreadable(ReadError::malformed(format!(
                "the variable has {} bytes, expected 5",
                other.len()
            ))),
        },
        Reading::Absent => Reading::Unreadable(ReadError::unavailable(
            "efivarfs is not mounted or has no SecureBoot variable",
        )),
        Reading::Unreadable(why) => Reading::Unreadable(why),
    }
}
