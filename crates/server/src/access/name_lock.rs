//! One enrolment or retirement of a name at a time: whether a name is taken is asked of the fleet and the store, and answered for
//! both.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use farrier_fleet::fleet::NodeId;
use tokio::sync::{Mutex, MutexGuard};

/// More than enrol at a time, so that two names seldom share a lock.
const LOCKS: usize = 64;

/// Locks for all names.
#[derive(Debug)]
pub(crate) struct NameLocks([Mutex<()>; LOCKS]);

impl Default for NameLocks {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }
}

impl NameLocks {
    /// Waits until nobody else enrols or retires that name.
    pub(crate) async fn lock(&self, name: &NodeId) -> MutexGuard<'_, ()> {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(name);
        let index = usize::try_from(hash % LOCKS as u64).unwrap_or_default();
        self.0[index].lock().await
    }
}
