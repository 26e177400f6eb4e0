//! A repair closes the findings that waited for it, wherever its order was executed.

use super::*;

/// A GPU that was lost twice, and a repair of its node.
struct GpuLostTwice {
    node: TestNode,
    seq: u64,
}

impl GpuLostTwice {
    fn new(orders_elsewhere: bool) -> Self {
        let mut node = TestNode::new();
        node.config.state_dir = node.folder.path().join("state");
        node.orders_elsewhere = orders_elsewhere;
        let mut lost = Self { node, seq: 0 };
        lost.restart();
        assert_eq!(lost.lose(), None);
        assert_eq!(lost.lose(), Some(1));
        lost
    }

    fn restart(&mut self) {
        self.node.kill();
        self.node.start();
    }

    fn lose(&mut self) -> Option<u64> {
        self.seq += 1;
        self.node.line(self.seq, "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.");
        self.node.clock.pass(600_000);
        self.node.tick();
        self.count()
    }

    fn count(&self) -> Option<u64> {
        self.node.count("gpu.bus-loss-repeated")
    }

    /// Writes the note to disk.
    fn note(&self) -> RepairNote {
        let note = RepairNote { at: self.node.clock.now().wall, repair: "a new riser".to_owned() };
        repair_note::write(&self.node.config.state_dir, &note).unwrap();
        note
    }

    fn assert_repaired(mut self) {
        assert_eq!(self.count(), None);
        let sunk = self.node.sunk();
        let cleared = sunk.iter().filter(|line| line.contains("manually repaired: a new riser"));
        assert_eq!(cleared.count(), 1);
        // The earlier occurrences are in the journal, but no longer count.
        self.restart();
        self.node.tick();
        assert_eq!(self.lose(), None, "the first since the repair");
        assert_eq!(self.lose(), Some(1), "the second");
        self.restart();
        self.node.tick();
        assert_eq!(self.count(), Some(1), "the second loss came after the repair");
    }
}

#[test]
fn a_repair_executed_by_this_process_arrives_as_a_message() {
    let mut lost = GpuLostTwice::new(false);
    let note = lost.note();
    lost.node.tick();
    assert_eq!(lost.count(), Some(1), "the file is not read");
    // The note is applied in the turn in which it arrives, and only once.
    lost.node.turn(vec![CollectorMessage::Repaired(note.clone())], false);
    lost.node.turn(vec![CollectorMessage::Repaired(note)], false);
    lost.assert_repaired();
}

#[test]
fn a_repair_note_of_another_process_is_read_at_the_next_tick() {
    let mut lost = GpuLostTwice::new(true);
    lost.note();
    lost.node.tick();
    lost.assert_repaired();
}

#[test]
fn a_repair_note_written_before_a_kill_is_applied_at_startup() {
    let mut lost = GpuLostTwice::new(false);
    lost.note();
    lost.restart();
    lost.node.tick();
    lost.assert_repaired();
}
