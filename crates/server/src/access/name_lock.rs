//! Locks for node names: enrolments and retirements of the same name run one after the other,
//! because both the fleet and the store decide whether a name is taken.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use farrier_fleet::fleet::NodeId;
use tokio::sync::{Mutex, MutexGuard};

/// This is more than the number of concurrent enrolments, so two names rarely share a lock.
const LOCKS: usize = 64;

#[derive(Debug)]
pub(crate) struct NameLocks([Mutex<()>; LOCKS]);

impl Default for NameLocks {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }
}

impl NameLocks {
    pub(crate) async fn lock(&self, name: &NodeId) -> MutexGuard<'_, ()> {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(name);
        let index = usize::try_from(hash % LOCKS as u64).unwrap_or_default();
        self.0[index].lock().await
    }
}
