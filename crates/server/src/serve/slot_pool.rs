//! A pool with a limited number of slots per key. At the limit, a new slot evicts the oldest slot.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// The slots of one key, oldest first.
type Slots = BTreeMap<u64, oneshot::Sender<()>>;

#[derive(Debug)]
pub(super) struct SlotPool<K: Ord> {
    capacity: usize,
    state: Mutex<PoolState<K>>,
}

#[derive(Debug)]
struct PoolState<K: Ord> {
    /// How many slots were ever taken.
    count: u64,
    slots: BTreeMap<K, Slots>,
}

/// A slot. It is held until it is dropped or evicted.
#[derive(Debug)]
pub(super) struct Slot<K: Ord> {
    pool: Arc<SlotPool<K>>,
    key: K,
    number: u64,
    evicted: oneshot::Receiver<()>,
}

impl<K: Ord + Clone> SlotPool<K> {
    pub(super) fn new(capacity: usize) -> Arc<Self> {
        let state = PoolState { count: 0, slots: BTreeMap::new() };
        Arc::new(Self { capacity, state: Mutex::new(state) })
    }

    pub(super) fn acquire(self: &Arc<Self>, key: K) -> Slot<K> {
        let (sender, evicted) = oneshot::channel();
        let mut state = self.state();
        state.count += 1;
        let number = state.count;
        let slots = state.slots.entry(key.clone()).or_default();
        while slots.len() >= self.capacity {
            slots.pop_first();
        }
        slots.insert(number, sender);
        drop(state);
        Slot { pool: Arc::clone(self), key, number, evicted }
    }
}

impl<K: Ord> SlotPool<K> {
    fn state(&self) -> MutexGuard<'_, PoolState<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Ord> Slot<K> {
    /// Waits until the slot is evicted. May be awaited only once.
    pub(super) async fn evicted(&mut self) {
        let _ = (&mut self.evicted).await;
    }
}

impl<K: Ord> Drop for Slot<K> {
    fn drop(&mut self) {
        let mut state = self.pool.state();
        if let Some(slots) = state.slots.get_mut(&self.key) {
            slots.remove(&self.number);
            if slots.is_empty() {
                state.slots.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_evicted(slot: &mut Slot<&str>) -> bool {
        matches!(slot.evicted.try_recv(), Err(oneshot::error::TryRecvError::Closed))
    }

    #[test]
    fn a_new_slot_evicts_the_oldest_of_its_key_and_dropping_one_frees_it() {
        let pool = SlotPool::new(2);
        let (mut first, mut second) = (pool.acquire("a"), pool.acquire("a"));
        let mut other = pool.acquire("b");
        let mut third = pool.acquire("a");
        let all = [&mut first, &mut second, &mut third, &mut other].map(is_evicted);
        assert_eq!(all, [true, false, false, false]);
        drop(second);
        let mut fourth = pool.acquire("a");
        assert_eq!([&mut third, &mut fourth].map(is_evicted), [false, false]);
        drop((first, third, fourth, other));
        assert!(pool.state().slots.is_empty(), "no slot is left behind");
    }
}
