//! Collector for the kernel log.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use farrier_facts::node::Reading;
use farrier_fleet::health::GpuIdentity;
use farrier_hardware::kmsg::{self, KmsgSettings};
use farrier_hardware::nvml::watch;
use farrier_hardware::{Root, pci_bridges};

use super::{CollectorContext, SharedInventory};
use crate::monitor::{Collector, CollectorMessage};

/// If NVML hangs, the agent reports this at most this long after NVML's start deadline.
const GRACE: Duration = Duration::from_secs(5);

/// How often to check for a stop request.
const STOP_POLL: Duration = Duration::from_millis(500);

/// How long to wait for NVML before the first log line is read. Log lines name GPUs by PCI address.
/// They stay in the kernel's buffer until NVML has listed the GPUs, or until it is known that NVML
/// does not answer. Zero if the GPUs of this boot are already known.
fn gpus_wait(gpus: &[GpuIdentity]) -> Duration {
    if gpus.is_empty() { watch::START_DEADLINE + GRACE } else { Duration::ZERO }
}

pub(super) fn run(context: &CollectorContext, inventory: &SharedInventory) {
    let settings = KmsgSettings::below(&context.config.root, context.kernel_after);
    let stop = &context.stop;
    let last: Cell<Option<Instant>> = Cell::new(None);
    let heartbeat = || {
        let due = last.get().is_none_or(|last| last.elapsed() >= Collector::KERNEL_PERIOD);
        if due {
            last.set(Some(Instant::now()));
            let _ = context.inbox.send(CollectorMessage::Heartbeat(Collector::Kernel));
        }
    };
    let until = Instant::now() + gpus_wait(&context.gpus);
    while Instant::now() < until && !inventory.wait_settled(STOP_POLL) {
        if stop.flag.load(Ordering::Relaxed) {
            return;
        }
        heartbeat();
    }
    // Log lines also name PCIe ports. The health monitor must know which GPUs are below each port
    // before it reads such a line.
    match pci_bridges::read(&Root::unrecorded(&context.config.root)) {
        Reading::Value(bridges) => {
            let _ = context.inbox.send(CollectorMessage::Bridges(bridges));
        }
        unknown => tracing::debug!(?unknown, "the PCI bridges are unknown"),
    }
    kmsg::run_with_pulse(&settings, &stop.flag, &heartbeat, &mut |log| {
        // This call blocks while the health monitor has too many messages. The kernel buffers
        // records in the meantime, and reports how many it had to drop.
        if context.inbox.send(CollectorMessage::Kernel(log)).is_err() {
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

    /// Runs the collector on a log with one line. Returns the messages that it sends.
    fn spawn_reader(
        gpus: Vec<GpuIdentity>,
        inventory: &Arc<SharedInventory>,
    ) -> (CollectorContext, Receiver<CollectorMessage>) {
        let (inbox, messages) = sync_channel(16);
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("dev")).unwrap();
        let line = "3,1,5000,-;NVRM: Xid (PCI:0000:1b:00): 79, x\n";
        std::fs::write(root.path().join("dev/kmsg"), line).unwrap();
        let context = CollectorContext {
            inbox,
            stop: Arc::default(),
            config: Config { root: root.path().to_owned(), ..Config::default() },
            program: PathBuf::new(),
            facts: FactSet::embedded(),
            gpus,
            kernel_after: None,
            probe_pause: std::sync::Arc::default(),
        };
        let (thread_context, inventory) = (context.clone(), Arc::clone(inventory));
        std::thread::spawn(move || {
            run(&thread_context, &inventory);
            drop(root);
        });
        (context, messages)
    }

    #[test]
    fn lines_wait_until_nvml_has_answered_or_failed() {
        let inventory = Arc::new(SharedInventory::default());
        let (context, messages) = spawn_reader(Vec::new(), &inventory);
        // The reader waits for the GPUs, and sends only a heartbeat.
        let patience = Duration::from_secs(300);
        assert!(matches!(
            messages.recv_timeout(patience),
            Ok(CollectorMessage::Heartbeat(Collector::Kernel))
        ));
        assert!(messages.recv_timeout(Duration::from_millis(200)).is_err());
        inventory.update(|state| state.settled = true);
        assert!(matches!(messages.recv_timeout(patience), Ok(CollectorMessage::Kernel(_))));
        context.stop.now();
    }

    #[test]
    fn lines_do_not_wait_if_the_gpus_of_this_boot_are_known() {
        let gpu = GpuIdentity {
            uuid: GpuUuid("GPU-0".to_owned()),
            index: 0,
            minor: None,
            pci: Some("0000:1b:00.0".to_owned()),
            name: None,
        };
        let (context, messages) = spawn_reader(vec![gpu], &Arc::default());
        let is_heartbeat =
            |message: &CollectorMessage| matches!(message, CollectorMessage::Heartbeat(_));
        let first = messages.iter().find(|message| !is_heartbeat(message));
        assert!(matches!(first, Some(CollectorMessage::Kernel(_))), "{first:?}");
        context.stop.now();
    }

    #[test]
    fn the_wait_is_longer_than_the_start_deadline_of_nvml() {
        assert!(gpus_wait(&[]) > watch::START_DEADLINE);
    }
}
