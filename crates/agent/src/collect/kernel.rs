//! The kernel log.

use std::time::Duration;

use farrier_hardware::kmsg::{self, KmsgSettings};

use super::{Known, Surroundings};
use crate::brain::Seen;

/// Lines name GPUs by their address. They wait in the kernel until it is known which GPU stands there; an NVML
/// that hangs must not keep them for longer than this.
const GPUS_WAIT: Duration = Duration::from_secs(15);

pub(super) fn run(surroundings: &Surroundings, known: &Known) {
    known.wait_settled(GPUS_WAIT);
    let settings = KmsgSettings::below(&surroundings.config.root, surroundings.kernel_after);
    let stop = &surroundings.stop;
    kmsg::run(&settings, &stop.flag, &mut |said| {
        // Blocks while the brain is behind: the kernel keeps what is not read, and says what it lost.
        if surroundings.inbox.send(Seen::Kernel(said)).is_err() {
            stop.now();
        }
    });
}
