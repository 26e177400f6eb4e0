//! Serialises enrolment and retirement of each name, because whether a name is taken depends on
//! both the fleet and the store.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use farrier_fleet::fleet::NodeId;
use tokio::sync::{Mutex, MutexGuard};

/// More than the number of concurrent enrolments, so that two names rarely share a lock.
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
