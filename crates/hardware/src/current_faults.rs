//! One reading of the current faults around the GPUs: network ports that are down, and Xids of this
//! boot.

use farrier_facts::node::{HostHealth, PortHealth, Reading};

use crate::host::{acs, nics};
use crate::kmsg;
use crate::root::Root;

pub(crate) fn read(root: &Root) -> HostHealth {
    HostHealth { ports: ports(root), xid_lines: xid_lines(root), acs_bridges: acs::read_once(root) }
}

fn ports(root: &Root) -> Reading<Vec<PortHealth>> {
    nics::read_once(root)
}

/// Lines that name an Xid. Other kernel messages may be private and are not captured.
fn xid_lines(root: &Root) -> Reading<Vec<String>> {
    root.extract_log("/dev/kmsg", |log| {
        kmsg::lines(&log, |line| memchr::memmem::find(line, b"Xid").is_some())
    })
}
