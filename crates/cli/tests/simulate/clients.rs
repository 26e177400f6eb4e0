//! Third-party NVML clients, and the struct layout of the C interface.

use std::path::Path;

use crate::test_node::{TestNode, python};

#[test]
fn gpustat_lists_eight_gpus() {
    let Some(python) = python() else { return };
    let node = TestNode::eight_h100();
    node.inject(&["utilisation", "87", "--gpu", "3"]);
    node.inject(&["temperature", "61", "--gpu", "3"]);
    let output =
        node.client(&python, &["-m", "gpustat", "--no-color", "--no-header"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let cards: Vec<&str> =
        text.lines().filter(|line| line.contains("NVIDIA H100 80GB HBM3")).collect();
    assert_eq!(cards.len(), 8, "{text}");
    assert!(
        cards[3].contains("61") && cards[3].contains("87 %") && cards[3].contains("81559 MB"),
        "{text}"
    );
}

#[test]
fn nvitop_lists_eight_gpus() {
    let Some(python) = python() else { return };
    let node = TestNode::eight_h100();
    node.inject(&[
        "process",
        &std::process::id().to_string(),
        "--memory-mib",
        "4096",
        "--gpu",
        "5",
    ]);
    let output =
        node.client(&python, &["-m", "nvitop", "--once", "--no-unicode"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text.lines().filter(|line| line.contains("H100 80GB HBM3")).count(), 8, "{text}");
    assert!(
        text.contains("Driver Version: 580.95.05") && text.contains("CUDA Driver Version: 13.0"),
        "{text}"
    );
    assert!(text.contains("4096MiB") || text.contains("4.00GiB"), "the process is listed: {text}");
}

/// Compares the struct sizes of the library with nvidia-ml-py. Calls with versioned structs check
/// the size themselves, so their success shows that the sizes are equal. For the other calls, the
/// test checks which bytes they write.
const LAYOUT: &str = r#"
from ctypes import *
device = gpu(0)
wrong = []
def versioned(call, struct, number, *before, **members):
    value = struct()
    value.version = sizeof(struct) | number << 24
    for name, member in members.items():
        setattr(value, name, member)
    ret = getattr(pynvml.nvmlLib, call)(*before, byref(value))
    if ret not in (0, NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_INSUFFICIENT_SIZE):
        wrong.append((call, ret))
    value.version = sizeof(struct) | 77 << 24
    ret = getattr(pynvml.nvmlLib, call)(*before, byref(value))
    if ret not in (NVML_ERROR_ARGUMENT_VERSION_MISMATCH, NVML_ERROR_FUNCTION_NOT_FOUND):
        wrong.append((call, "a wrong version", ret))
import pynvml
versioned("nvmlDeviceGetMemoryInfo_v2", c_nvmlMemory_v2_t, 2, device)
versioned("nvmlDeviceGetPciInfoExt", nvmlPciInfoExt_v1_t, 1, device)
versioned("nvmlDeviceGetMarginTemperature", c_nvmlMarginTemperature_v1_t, 1, device)
versioned("nvmlDeviceGetTemperatureV", c_nvmlTemperature_v1_t, 1, device)
versioned("nvmlDeviceGetSramEccErrorStatus", c_nvmlEccSramErrorStatus_v1_t, 1, device)
versioned("nvmlDeviceGetRepairStatus", c_nvmlRepairStatus_t, 1, device)
versioned("nvmlDeviceGetPdi", c_nvmlPdi_t, 1, device)
versioned("nvmlDeviceGetAddressingMode", c_nvmlDeviceAddressingMode_t, 1, device)
versioned("nvmlDeviceGetCapabilities", c_nvmlDeviceCapabilities_v1_t, 1, device)
versioned("nvmlDeviceGetGpuFabricInfoV", c_nvmlGpuFabricInfo_v2_t, 2, device)
versioned("nvmlDeviceGetGpuFabricInfoV", c_nvmlGpuFabricInfo_v3_t, 3, device)
versioned("nvmlDeviceGetRunningProcessDetailList", c_nvmlProcessDetailList_v1_t, 1, device)
versioned("nvmlDeviceGetProcessesUtilizationInfo", c_nvmlProcessesUtilizationInfo_v1_t, 1, device)
versioned("nvmlDeviceGetClockOffsets", c_nvmlClockOffset_t, 1, device)
versioned("nvmlDeviceGetPerformanceModes", c_nvmlDevicePerfModes_v1_t, 1, device)
versioned("nvmlDeviceGetCurrentClockFreqs", c_nvmlDeviceCurrentClockFreqs_v1_t, 1, device)
versioned("nvmlSystemGetConfComputeSettings", c_nvmlSystemConfComputeSettings_v1_t, 1)
versioned("nvmlSystemGetConfComputeKeyRotationThresholdInfo", c_nvmlConfComputeGetKeyRotationThresholdInfo_t, 1)

# Unversioned structs: a call must write the last member, and must not write behind the struct.
def exact(call, struct, *before):
    raw = (c_ubyte * (sizeof(struct) + 16))(*([0xAA] * (sizeof(struct) + 16)))
    ret = getattr(pynvml.nvmlLib, call)(*before, byref(raw))
    if ret != 0:
        wrong.append((call, ret))
    if bytes(raw[sizeof(struct):]) != b"\xaa" * 16:
        wrong.append((call, "writes behind the struct"))
    last, kind = struct._fields_[-1][0], struct._fields_[-1][1]
    place = getattr(struct, last)
    if bytes(raw[place.offset:place.offset + place.size]) == b"\xaa" * place.size:
        wrong.append((call, "does not write", last))
exact("nvmlDeviceGetPciInfo_v3", nvmlPciInfo_t, device)
exact("nvmlDeviceGetPciInfo_v2", nvmlPciInfo_v2_t, device)
exact("nvmlDeviceGetMemoryInfo", c_nvmlMemory_t, device)
exact("nvmlDeviceGetBAR1MemoryInfo", c_nvmlBAR1Memory_t, device)
exact("nvmlDeviceGetUtilizationRates", c_nvmlUtilization_t, device)
exact("nvmlDeviceGetDetailedEccErrors", c_nvmlEccErrorCounts_t, device, 0, 0)
exact("nvmlDeviceGetViolationStatus", c_nvmlViolationTime_t, device, 0)
exact("nvmlDeviceGetRowRemapperHistogram", c_nvmlRowRemapperHistogramValues, device)
exact("nvmlDeviceGetRemappedRows_v2", c_nvmlRemappedRowsInfo_v2_t, device)
exact("nvmlDeviceGetThermalSettings", c_nvmlGpuThermalSettings_t, device, 0)
exact("nvmlDeviceGetDynamicPstatesInfo", c_nvmlGpuDynamicPstatesInfo_t, device)
exact("nvmlDeviceGetGpuFabricInfo", c_nvmlGpuFabricInfo_t, device)
exact("nvmlDeviceGetFBCStats", c_nvmlFBCStats_t, device)
exact("nvmlDeviceGetConfComputeMemSizeInfo", c_nvmlConfComputeMemSizeInfo_t, device)
exact("nvmlDeviceGetGpuInstanceProfileInfo", c_nvmlGpuInstanceProfileInfo_t, device, 0)
exact("nvmlSystemGetConfComputeState", c_nvmlConfComputeSystemState_t)
print(json.dumps(wrong))
"#;

#[test]
fn struct_layout_matches_nvidia_ml_py() {
    let Some(python) = python() else { return };
    let node = TestNode::eight_h100();
    assert_eq!(node.python(&python, LAYOUT).trim(), "[]");
}

/// Calls by their Python names, as used in scripts.
const INVENTORY: &str = r#"
handles = [gpu(index) for index in range(nvmlDeviceGetCount())]
one = handles[0]
print(json.dumps({
    "count": len(handles),
    "driver": nvmlSystemGetDriverVersion(),
    "cuda": nvmlSystemGetCudaDriverVersion(),
    "names": sorted({nvmlDeviceGetName(handle) for handle in handles}),
    "uuids": len({nvmlDeviceGetUUID(handle) for handle in handles}),
    "by_uuid": nvmlDeviceGetIndex(nvmlDeviceGetHandleByUUID(nvmlDeviceGetUUID(handles[6]))),
    "by_bus": nvmlDeviceGetIndex(nvmlDeviceGetHandleByPciBusId(nvmlDeviceGetPciInfo(handles[5]).busId)),
    "capability": nvmlDeviceGetCudaComputeCapability(one),
    "limits": nvmlDeviceGetPowerManagementLimitConstraints(one),
    "links": sum(nvmlDeviceGetNvLinkState(one, link) for link in range(18)),
    "link_version": nvmlDeviceGetNvLinkVersion(one, 0),
    "p2p": nvmlDeviceGetP2PStatus(one, handles[7], NVML_P2P_CAPS_INDEX_NVLINK),
    "near": nvmlDeviceGetTopologyCommonAncestor(one, handles[1]),
    "far": nvmlDeviceGetTopologyCommonAncestor(one, handles[7]),
    "nearest": len(nvmlDeviceGetTopologyNearestGpus(one, NVML_TOPOLOGY_NODE)),
    "clocks": len(nvmlDeviceGetSupportedGraphicsClocks(one, nvmlDeviceGetSupportedMemoryClocks(one)[0])),
    "mig": nvmlDeviceGetMigMode(one),
    "fan": code(nvmlDeviceGetFanSpeed, one),
    "retired": code(nvmlDeviceGetRetiredPages, one, 0),
    "fields": [[value.fieldId, value.nvmlReturn, value.value.uiVal] for value in nvmlDeviceGetFieldValues(one, [91, 90, 230, (165, 3)])],
    "energy_grows": (lambda first: (time.sleep(0.3), nvmlDeviceGetTotalEnergyConsumption(one))[1] > first)(nvmlDeviceGetTotalEnergyConsumption(one)),
}))
"#;

#[test]
fn nvidia_ml_py_reads_the_inventory() {
    let Some(python) = python() else { return };
    let output = inventory(&TestNode::eight_h100(), &python);
    let expected = serde_json::json!({
        "count": 8, "driver": "580.95.05", "cuda": 13000, "names": ["NVIDIA H100 80GB HBM3"], "uuids": 8, "by_uuid": 6,
        "by_bus": 5, "capability": [9, 0], "limits": [200_000, 700_000], "links": 18, "link_version": 6, "p2p": 0, "near": 40,
        "far": 50, "nearest": 3, "clocks": 110, "mig": [0, 0], "fan": 3, "retired": 3,
        "fields": [[91, 0, 18], [90, 0, 26562], [230, 0, 0], [165, 0, 1]], "energy_grows": true,
    });
    assert_eq!(output, expected);
}

fn inventory(node: &TestNode, python: &Path) -> serde_json::Value {
    serde_json::from_str(&node.python(python, INVENTORY)).unwrap()
}
