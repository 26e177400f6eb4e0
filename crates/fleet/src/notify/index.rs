//! What the router derives from incidents and groups, and what it has to store.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::condition::IncidentKey;
use super::group::{AlertGroup, GroupId, Membership};
use super::incident::Incident;
use super::router::RouterHead;

/// Derived from incidents and groups.
#[derive(Debug, Default)]
pub(super) struct GroupIndex {
    pub(super) members: BTreeMap<GroupId, BTreeSet<IncidentKey>>,
    /// Members that are not suppressed.
    pub(super) visible: BTreeMap<GroupId, BTreeSet<IncidentKey>>,
    pub(super) due: BTreeSet<(Timestamp, GroupId)>,
    due_of: BTreeMap<GroupId, Timestamp>,
}

impl GroupIndex {
    pub(super) fn membership(&self, id: &GroupId) -> Membership {
        Membership {
            fires: self.members.contains_key(id),
            is_visible: self.visible.contains_key(id),
        }
    }

    pub(super) fn set(
        map: &mut BTreeMap<GroupId, BTreeSet<IncidentKey>>,
        id: &GroupId,
        key: &IncidentKey,
        is_in: bool,
    ) {
        if is_in {
            map.entry(id.clone()).or_default().insert(key.clone());
        } else if let Some(keys) = map.get_mut(id) {
            keys.remove(key);
            if keys.is_empty() {
                map.remove(id);
            }
        }
    }

    pub(super) fn set_due(&mut self, id: &GroupId, due: Option<Timestamp>) {
        if let Some(before) = self.due_of.remove(id) {
            self.due.remove(&(before, id.clone()));
        }
        if let Some(at) = due {
            self.due_of.insert(id.clone(), at);
            self.due.insert((at, id.clone()));
        }
    }
}

/// What changed since it was last stored.
#[derive(Debug, Default)]
pub(super) struct ChangedKeys {
    pub(super) head: bool,
    pub(super) incidents: BTreeSet<IncidentKey>,
    pub(super) groups: BTreeSet<GroupId>,
}

/// What has to be stored. `None` means deleted.
#[derive(Debug, Default)]
pub struct RouterChanges {
    pub head: Option<RouterHead>,
    pub incidents: Vec<(IncidentKey, Option<Incident>)>,
    pub groups: Vec<(GroupId, Option<AlertGroup>)>,
}

impl RouterChanges {
    pub fn is_empty(&self) -> bool {
        self.head.is_none() && self.incidents.is_empty() && self.groups.is_empty()
    }
}
