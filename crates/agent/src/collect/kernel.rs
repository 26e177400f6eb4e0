//! Collector for the kernel log.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use farrier_fleet::health::GpuIdentity;
use farrier_hardware::kmsg::{self, KmsgSettings};
use farrier_hardware::nvml::watch;

use super::{CollectorContext, Known};
use crate::monitor::{Collector, CollectorMessage};

/// Margin after NVML's deadline in which the agent detects a hang.
const GRACE: Duration = Duration::from_secs(5);

/// How long a stop request may go unnoticed.
const STOP_SEEN: Duration = Duration::from_millis(500);

/// Log lines name GPUs by PCI address. Leave them in the kernel's buffer until NVML has listed the
/// GPUs, or is known not to answer. If this boot's GPUs are already known, do not wait.
fn gpus_wait(known: &[GpuIdentity]) -> Duration {
    if known.is_empty() { watch::START_DEADLINE + GRACE } else { Duration::ZERO }
}

pub(super) fn run(surroundings: &CollectorContext, known: &Known) {
    let settings = KmsgSettings::below(&surroundings.config.root, surroundings.kernel_after);
    let stop = &surroundings.stop;
    let last: Cell<Option<Instant>> = Cell::new(None);
    let pulse = || {
        let due = last.get().is_none_or(|last| last.elapsed() >= Collector::KERNEL_PERIOD);
        if due {
            last.set(Some(Instant::now()));
            let _ = surroundings.inbox.send(CollectorMessage::Alive(Collector::Kernel));
        }
    };
    let until = Instant::now() + gpus_wait(&surroundings.gpus);
    while Instant::now() < until && !known.wait_settled(STOP_SEEN) {
        if stop.flag.load(Ordering::Relaxed) {
            return;
        }
        pulse();
    }
    kmsg::run_with_pulse(&settings, &stop.flag, &pulse, &mut |said| {
        // Blocks while the health monitor is behind: the kernel buffers unread records and reports
        // lost ones.
        if surroundings.inbox.send(CollectorMessage::Kernel(said)).is_err() {
            stop.now();
        }
    });
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, sync_channel};

    use farrier_facts::FactSet;
    use farrier_fleet::health::GpuUuid;

    use super::*;
    use crate::config::Config;

    /// Reads a log of one line, then ends. Returns the messages.
    fn reads(
        gpus: Vec<GpuIdentity>,
        known: &Arc<Known>,
    ) -> (CollectorContext, Receiver<CollectorMessage>) {
        let (inbox, said) = sync_channel(16);
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("dev")).unwrap();
        let line = "3,1,5000,-;NVRM: Xid (PCI:0000:1b:00): 79, x\n";
        std::fs::write(root.path().join("dev/kmsg"), line).unwrap();
        let surroundings = CollectorContext {
            inbox,
            stop: Arc::default(),
            config: Config { root: root.path().to_owned(), ..Config::default() },
            program: PathBuf::new(),
            facts: FactSet::embedded(),
            gpus,
            kernel_after: None,
            hold: std::sync::Arc::default(),
        };
        let (of_thread, known) = (surroundings.clone(), Arc::clone(known));
        std::thread::spawn(move || {
            run(&of_thread, &known);
            drop(root);
        });
        (surroundings, said)
    }

    #[test]
    fn lines_wait_until_the_gpus_are_known_or_known_not_to_be() {
        let known = Arc::new(Known::default());
        let (surroundings, said) = reads(Vec::new(), &known);
        // Only a heartbeat.
        let patience = Duration::from_secs(300);
        assert!(matches!(
            said.recv_timeout(patience),
            Ok(CollectorMessage::Alive(Collector::Kernel))
        ));
        assert!(said.recv_timeout(Duration::from_millis(200)).is_err());
        known.change(|known| known.settled = true);
        assert!(matches!(said.recv_timeout(patience), Ok(CollectorMessage::Kernel(_))));
        surroundings.stop.now();
    }

    #[test]
    fn in_a_boot_that_has_shown_its_gpus_nothing_is_waited_for() {
        let gpu = GpuIdentity {
            uuid: GpuUuid("GPU-0".to_owned()),
            index: 0,
            minor: None,
            pci: Some("0000:1b:00.0".to_owned()),
            name: None,
        };
        let (surroundings, said) = reads(vec![gpu], &Arc::default());
        let first = said.iter().find(|seen| !matches!(seen, CollectorMessage::Alive(_)));
        assert!(matches!(first, Some(CollectorMessage::Kernel(_))), "{first:?}");
        surroundings.stop.now();
    }

    #[test]
    fn nvml_is_known_to_hang_before_the_wait_is_over() {
        assert!(gpus_wait(&[]) > watch::START_DEADLINE);
    }
}
