//! Xid errors.

use crate::gpu::{EVENT_XID, SimGpu};
use crate::rootfs::KernelRecord;

use super::{add, memory};

/// Records the event, and changes the GPU as the Xid implies. Returns the driver's kernel log
/// records.
pub(super) fn xid(gpu: &mut SimGpu, number: u32, message: Option<&str>) -> Vec<KernelRecord> {
    gpu.push_event(EVENT_XID, u64::from(number));
    match number {
        48 => {
            add(&mut gpu.ecc.volatile.dram_uncorrected, 1);
            add(&mut gpu.ecc.aggregate.dram_uncorrected, 1);
        }
        63 if gpu.remap.supported => {
            memory::remap_rows(&mut gpu.remap, 0, 1, true, false);
        }
        64 if gpu.remap.supported => {
            memory::remap_rows(&mut gpu.remap, 0, 0, true, true);
        }
        79 => gpu.lost = true,
        // The default message requests a GPU reset. A custom message may request another action.
        154 if message.is_none() => gpu.recovery_action = 1,
        _ => {}
    }
    let address = format!("PCI:{:04x}:{:02x}:{:02x}", gpu.pci.domain, gpu.pci.bus, gpu.pci.device);
    let mut records = vec![KernelRecord::error(format!(
        "NVRM: Xid ({address}): {number}, {}",
        message.unwrap_or_else(|| default_message(number))
    ))];
    if number == 79 {
        let text = format!("NVRM: GPU {}: GPU has fallen off the bus.", gpu.pci.address());
        records.push(KernelRecord::error(text));
    }
    records
}

/// Text that the driver prints after the Xid number. The texts come from public reports of each
/// Xid.
fn default_message(number: u32) -> &'static str {
    match number {
        13 => {
            "pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 2, TPC 1, SM 0): Out Of Range Address"
        }
        31 => {
            "pid=4242, name=python, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f2a_00000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"
        }
        32 => "pid='<unknown>', name=<unknown>, Channel ID 00000008 intr0 00040000",
        43 | 45 => "pid=4242, name=python, Ch 00000008",
        48 => {
            "pid='<unknown>', name=<unknown>, DBE (double bit error) ECC Error, subpartition 0, partition 3"
        }
        61 => "pid='<unknown>', name=<unknown>, 0d02(31c4) 00000000 00000000",
        62 => "pid='<unknown>', name=<unknown>, 0000(0000) 00000000 00000000",
        63 => {
            "pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping, reset gpu to activate."
        }
        64 => "pid='<unknown>', name=<unknown>, Row Remapper: Error while attempting to remap row.",
        74 => {
            "pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 3(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
        }
        79 => "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        92 => "pid='<unknown>', name=<unknown>, High single-bit ECC error rate",
        94 => "pid=4242, name=python, Contained: SM (0x1). RST: No, D-RST: No",
        95 => "pid=4242, name=python, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
        109 => "pid=4242, name=python, Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x3c046",
        119 => {
            "pid=4242, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL) (0x2080a097 0x0)."
        }
        120 => {
            "pid='<unknown>', name=<unknown>, GSP task exception: Load access page fault (cause:0xd) @ pc:0x1d8a4"
        }
        140 => {
            "pid='<unknown>', name=<unknown>, An uncorrectable ECC error detected (possible firmware handling failure) DRAM:-1, LTC:2, MMU:0, PCIE:0"
        }
        143 => "pid='<unknown>', name=<unknown>, GPU Initialization Failure",
        154 => {
            "pid='<unknown>', name=<unknown>, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
        }
        _ => "pid='<unknown>', name=<unknown>",
    }
}
