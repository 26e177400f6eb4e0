//! What one look shows of the faults around the GPUs: ports that are down, Xids of this boot.

use farrier_facts::node::{HostHealth, PortHealth, Reading};

use crate::host::nics;
use crate::kmsg;
use crate::root::Root;

/// Reads it all.
pub(crate) fn read(root: &Root) -> HostHealth {
    HostHealth { ports: ports(root), xid_lines: xid_lines(root) }
}

fn ports(root: &Root) -> Reading<Vec<PortHealth>> {
    nics::look(root)
}

/// Lines that name an Xid; what else the kernel prints may be private and is not kept.
fn xid_lines(root: &Root) -> Reading<Vec<String>> {
    root.extract_log("/dev/kmsg", |log| {
        kmsg::lines(&log, |line| memchr::memmem::find(line, b"Xid").is_some())
    })
}
