//! Reads what `farrier check` reads from NVML, so that the agent judges the same values.
//!
//! It costs about 5 ms per GPU (H200, driver 580.159.04), so the slow tier includes it. The InfoROM
//! is not read here: the slow tier validates the InfoROM of one GPU at a time.

use farrier_facts::node::{Nvml, ReadError, Reading};

use crate::nvml::snapshot::unopened;

use super::devices::is_down;
use super::{AVOIDED, ProbeSession};

impl ProbeSession<'_> {
    /// The node's values, without the GPUs that are skipped after a hang.
    pub(super) fn node_check(&mut self) -> Nvml {
        let mut nvml = self.caller.system();
        for position in 0..self.gpus.len() {
            let gpu = &self.gpus[position];
            let (index, handle) = (gpu.identity.index, gpu.handle);
            // A new client could not open a lost GPU.
            let lost = gpu.failure.iter().flatten().copied().find(|code| is_down(*code));
            self.current_gpu.set(Some(index));
            match (handle, lost) {
                (Err(AVOIDED), _) => {}
                (Ok(device), None) => nvml.devices.push(self.caller.opened(index, device)),
                (Err(code), _) | (Ok(_), Some(code)) => {
                    nvml.devices.push(unopened(index, Reading::Unreadable(ReadError::nvml(code))));
                }
            }
        }
        self.current_gpu.set(None);
        for (index, code) in self.unidentified.iter().filter(|(_, code)| *code != AVOIDED) {
            nvml.devices.push(unopened(*index, Reading::Unreadable(ReadError::nvml(*code))));
        }
        nvml.devices.sort_by_key(|device| device.index);
        nvml
    }
}
