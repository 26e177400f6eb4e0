//! The kernel log.

use std::cell::Cell;
use std::time::{Duration, Instant};

use farrier_hardware::kmsg::{self, KmsgSettings};

use super::{Known, Surroundings};
use crate::brain::{Collector, Seen};

/// Lines name GPUs by their address. They wait in the kernel until it is known which GPU stands there; an NVML
/// that hangs must not keep them for longer than this.
const GPUS_WAIT: Duration = Duration::from_secs(15);

pub(super) fn run(surroundings: &Surroundings, known: &Known) {
    known.wait_settled(GPUS_WAIT);
    let settings = KmsgSettings::below(&surroundings.config.root, surroundings.kernel_after);
    let stop = &surroundings.stop;
    let last: Cell<Option<Instant>> = Cell::new(None);
    let pulse = || {
        let due = last.get().is_none_or(|last| last.elapsed() >= Collector::KERNEL_PERIOD);
        if due {
            last.set(Some(Instant::now()));
            let _ = surroundings.inbox.send(Seen::Alive(Collector::Kernel));
        }
    };
    kmsg::run_with_pulse(&settings, &stop.flag, &pulse, &mut |said| {
        // Blocks while the brain is behind: the kernel keeps what is not read, and says what it lost.
        if surroundings.inbox.send(Seen::Kernel(said)).is_err() {
            stop.now();
        }
    });
}
