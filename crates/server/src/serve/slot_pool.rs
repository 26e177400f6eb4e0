//! Room for so many and no more: whoever comes when it is full takes the place of the one that is there longest.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Guests of one kind, the oldest first.
type Slots = BTreeMap<u64, oneshot::Sender<()>>;

/// Room for so many of each kind.
#[derive(Debug)]
pub(super) struct SlotPool<K: Ord> {
    most: usize,
    inside: Mutex<Inside<K>>,
}

#[derive(Debug)]
struct Inside<K: Ord> {
    /// Guests that there ever were.
    count: u64,
    guests: BTreeMap<K, Slots>,
}

/// Somebody who is inside, for as long as this lives and nobody takes the place.
#[derive(Debug)]
pub(super) struct Slot<K: Ord> {
    room: Arc<SlotPool<K>>,
    kind: K,
    number: u64,
    place: oneshot::Receiver<()>,
}

impl<K: Ord + Clone> SlotPool<K> {
    pub(super) fn new(most: usize) -> Arc<Self> {
        let inside = Inside { count: 0, guests: BTreeMap::new() };
        Arc::new(Self { most, inside: Mutex::new(inside) })
    }

    pub(super) fn enter(self: &Arc<Self>, kind: K) -> Slot<K> {
        let (held, place) = oneshot::channel();
        let mut inside = self.inside();
        inside.count += 1;
        let number = inside.count;
        let guests = inside.guests.entry(kind.clone()).or_default();
        while guests.len() >= self.most {
            guests.pop_first();
        }
        guests.insert(number, held);
        drop(inside);
        Slot { room: Arc::clone(self), kind, number, place }
    }
}

impl<K: Ord> SlotPool<K> {
    fn inside(&self) -> MutexGuard<'_, Inside<K>> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Ord> Slot<K> {
    /// Returns when somebody else has the place. To be asked once.
    pub(super) async fn displaced(&mut self) {
        let _ = (&mut self.place).await;
    }
}

impl<K: Ord> Drop for Slot<K> {
    fn drop(&mut self) {
        let mut inside = self.room.inside();
        if let Some(guests) = inside.guests.get_mut(&self.kind) {
            guests.remove(&self.number);
            if guests.is_empty() {
                inside.guests.remove(&self.kind);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_displaced(guest: &mut Slot<&str>) -> bool {
        matches!(guest.place.try_recv(), Err(oneshot::error::TryRecvError::Closed))
    }

    #[test]
    fn the_oldest_of_a_kind_goes_for_the_newest_and_whoever_leaves_makes_room() {
        let room = SlotPool::new(2);
        let (mut first, mut second) = (room.enter("a"), room.enter("a"));
        let mut other = room.enter("b");
        let mut third = room.enter("a");
        let all = [&mut first, &mut second, &mut third, &mut other].map(is_displaced);
        assert_eq!(all, [true, false, false, false]);
        drop(second);
        let mut fourth = room.enter("a");
        assert_eq!([&mut third, &mut fourth].map(is_displaced), [false, false]);
        drop((first, third, fourth, other));
        assert!(room.inside().guests.is_empty(), "nobody is counted on");
    }
}
