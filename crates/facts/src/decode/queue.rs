//! Events in line order. An event that waits for more lines holds back the events after it, so that
//! the hosts of one log do not mix.

use std::collections::VecDeque;

use super::event::DecodedEvent;
use super::pending::{Continuation, PendingEvent};

/// Maximum events held back. Real messages are a few lines apart; a forged log must not exhaust
/// memory.
const LENGTH: usize = 64;

#[derive(Debug)]
enum QueueSlot {
    Complete(Box<DecodedEvent>),
    Pending(Box<PendingEvent>),
}

/// Events that are not emitted yet.
#[derive(Debug, Default)]
pub(super) struct EventQueue {
    slots: VecDeque<QueueSlot>,
}

impl EventQueue {
    /// First line of the first message that waits.
    pub(super) fn pending_since_line(&self) -> Option<u64> {
        self.slots.iter().find_map(|slot| match slot {
            QueueSlot::Pending(pending) => Some(pending.line()),
            QueueSlot::Complete(_) => None,
        })
    }

    /// Passes a line to the waiting event of the same host. Returns whether the line belongs to it.
    pub(super) fn step(&mut self, number: u64, host: Option<&str>, line: &str) -> bool {
        for index in (0..self.slots.len()).rev() {
            let is_due = match &self.slots[index] {
                QueueSlot::Pending(pending) => pending.host() == host || pending.is_expired(number),
                QueueSlot::Complete(_) => false,
            };
            if !is_due {
                continue;
            }
            let Some(QueueSlot::Pending(pending)) = self.slots.remove(index) else { continue };
            let is_own = pending.host() == host;
            let continuation = if is_own { pending.step(number, line) } else { pending.end() };
            let belongs =
                matches!(continuation, Continuation::Incomplete(_) | Continuation::Complete(_));
            self.insert(index, continuation);
            if is_own && belongs {
                return true;
            }
        }
        false
    }

    pub(super) fn push(&mut self, continuation: Continuation) {
        self.insert(self.slots.len(), continuation);
    }

    fn insert(&mut self, index: usize, continuation: Continuation) {
        let slot = match continuation {
            Continuation::Incomplete(pending) => QueueSlot::Pending(Box::new(pending)),
            Continuation::Complete(event) | Continuation::Unrelated(event) => {
                QueueSlot::Complete(Box::new(event))
            }
            Continuation::Superseded => return,
        };
        self.slots.insert(index, slot);
    }

    /// Emits the events before the first one that waits.
    pub(super) fn emit_complete(&mut self, mut emit: impl FnMut(DecodedEvent)) {
        while let Some(slot) = self.slots.pop_front() {
            match slot {
                QueueSlot::Complete(event) => emit(*event),
                QueueSlot::Pending(pending) if self.slots.len() < LENGTH => {
                    self.slots.push_front(QueueSlot::Pending(pending));
                    return;
                }
                QueueSlot::Pending(pending) => pending.into_event().into_iter().for_each(&mut emit),
            }
        }
    }

    /// Emits all events, complete or not.
    pub(super) fn emit_all(&mut self, mut emit: impl FnMut(DecodedEvent)) {
        for slot in self.slots.drain(..) {
            match slot {
                QueueSlot::Complete(event) => emit(*event),
                QueueSlot::Pending(pending) => pending.into_event().into_iter().for_each(&mut emit),
            }
        }
    }
}
