//! Injected faults and concurrent edits as seen through nvidia-ml-py.

use std::fs;
use std::io::{BufRead, BufReader};
use std::time::Duration;

use crate::test_node::{TestNode, python, wait_with_timeout};

/// A client that keeps a handle and polls until a call with this handle returns the expected code.
const HOLD_HANDLE: &str = "
handle = gpu(0)
print('ready')
def until(expected):
    start = time.monotonic()
    while code(nvmlDeviceGetPowerUsage, handle) != expected and time.monotonic() - start < 300:
        time.sleep(0.01)
    print(code(nvmlDeviceGetPowerUsage, handle))
";

#[test]
fn event_wait_returns_an_xid() {
    let Some(python) = python() else { return };
    let node = TestNode::eight_h100();
    node.inject(&["xid", "31", "--gpu", "4"]);
    let mut child = node.spawn(
        &python,
        "
events = nvmlEventSetCreate()
for index in range(8):
    nvmlDeviceRegisterEvents(gpu(index), nvmlEventTypeXidCriticalError, events)
print('ready')
for _ in range(2):
    data = nvmlEventSetWait_v2(events, 300000)
    print(nvmlDeviceGetIndex(data.device) if data.eventData != 79 else 'lost', data.eventType, data.eventData)
print(code(nvmlEventSetWait_v2, events, 50))
nvmlEventSetFree(events)
",
    );
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut line = || lines.next().unwrap().unwrap();
    assert_eq!(line(), "ready", "earlier events are not delivered");
    node.inject(&["xid", "94", "--gpu", "2"]);
    assert_eq!(line(), "2 8 94");
    node.inject(&["xid", "79", "--gpu", "5"]);
    assert_eq!(line(), "lost 8 79");
    assert_eq!(line(), "10", "then the wait times out");
    assert!(child.wait().unwrap().success());
}

#[test]
fn injected_counters_are_visible_in_nvml() {
    let Some(python) = python() else { return };
    let node = TestNode::eight_h100();
    node.inject(&["ecc", "--corrected", "17", "--uncorrected", "2", "--gpu", "1"]);
    node.inject(&["remap", "--uncorrected", "3", "--pending", "--gpu", "1"]);
    node.inject(&["nvlink-down", "7", "--gpu", "1"]);
    node.inject(&["nvlink-errors", "6", "--crc", "9", "--gpu", "1"]);
    node.inject(&["recovery-action", "1", "--gpu", "1"]);
    node.inject(&["pcie", "--width", "8", "--replays", "40", "--gpu", "1"]);
    node.inject(&["throttle", "hw-thermal", "--gpu", "1"]);
    node.inject(&["power", "650", "--gpu", "1"]);
    let output = node.python(
        &python,
        "
one = gpu(1)
time.sleep(0.2)
fields = nvmlDeviceGetFieldValues(one, [230, 144, 270, 94])
print(json.dumps([
    nvmlDeviceGetTotalEccErrors(one, 0, 0), nvmlDeviceGetMemoryErrorCounter(one, 1, 1, 2),
    list(nvmlDeviceGetRemappedRows(one)), nvmlDeviceGetRowRemapperHistogram(one).high,
    [nvmlDeviceGetNvLinkState(one, link) for link in (6, 7)], nvmlDeviceGetNvLinkErrorCounter(one, 6, NVML_NVLINK_ERROR_DL_CRC_DATA),
    [fields[0].value.uiVal, fields[1].value.ullVal, fields[2].value.ullVal > 100_000_000, fields[3].value.uiVal],
    nvmlDeviceGetCurrPcieLinkWidth(one), nvmlDeviceGetCurrentClocksEventReasons(one), nvmlDeviceGetPowerUsage(one),
    nvmlDeviceGetTotalEccErrors(gpu(0), 0, 0),
]))
",
    );
    let expected = "[17, 2, [0, 3, 1, 0], 3, [1, 0], 9, [1, 1, true, 40], 8, 72, 650000, 0]";
    assert_eq!(output.trim(), expected);
}

#[test]
fn lost_gpu_failing_call_and_hanging_call() {
    let Some(python) = python() else { return };
    let node = TestNode::eight_h100();
    node.inject(&["lost", "--gpu", "6"]);
    node.inject(&["error", "nvmlDeviceGetTemperature", "RESET_REQUIRED", "--gpu", "2"]);
    node.inject(&["hang", "nvmlDeviceGetPowerUsage", "0.7", "--gpu", "3"]);
    let output = node.python(
        &python,
        "
start = time.monotonic()
nvmlDeviceGetPowerUsage(gpu(3))
hung = time.monotonic() - start
print(json.dumps([code(nvmlDeviceGetHandleByIndex, 6), code(nvmlDeviceGetTemperature, gpu(2), 0), code(nvmlDeviceGetTemperature, gpu(1), 0), 0.6 < hung]))
",
    );
    assert_eq!(output.trim(), "[15, 16, 0, true]");

    // A client that already has a handle sees the fault begin and end.
    let mut child = node.spawn(&python, &format!("{HOLD_HANDLE}until(15)\nuntil(0)\n"));
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut line = || lines.next().unwrap().unwrap();
    assert_eq!(line(), "ready");
    node.inject(&["lost"]);
    assert_eq!(line(), "15");
    node.inject(&["clear"]);
    assert_eq!(line(), "0");
    assert!(child.wait().unwrap().success());

    node.inject(&["hang", "nvmlInit", "forever"]);
    node.inject(&["hang", "nvmlInitWithFlags", "forever"]);
    let mut stuck = node.spawn(&python, "print('initialised')");
    assert!(
        wait_with_timeout(&mut stuck, Duration::from_secs(2)).is_none(),
        "the client hangs in nvmlInit"
    );
    stuck.kill().unwrap();
    stuck.wait().unwrap();
    node.inject(&["clear"]);
    assert_eq!(node.python(&python, "print(nvmlDeviceGetCount())").trim(), "8");
}

#[test]
fn settings_persist_and_need_permission() {
    let Some(python) = python() else { return };
    let node = TestNode::eight_h100();
    node.edit("node.json", |node| node["as_root"] = false.into());
    let set = "print(code(nvmlDeviceSetPowerManagementLimit, gpu(0), 500000))";
    assert_eq!(node.python(&python, set).trim(), "4", "setters need permission");
    node.edit("node.json", |node| node["as_root"] = true.into());
    let output = node.python(
        &python,
        "
one = gpu(0)
print(json.dumps([
    code(nvmlDeviceSetPowerManagementLimit, one, 100000), code(nvmlDeviceSetPowerManagementLimit, one, 500000),
    code(nvmlDeviceSetComputeMode, one, 1), code(nvmlDeviceSetComputeMode, one, 3), code(nvmlDeviceSetPersistenceMode, one, 0),
    code(nvmlDeviceSetEccMode, one, 0), code(nvmlDeviceSetGpuLockedClocks, one, 1200, 1200), code(nvmlDeviceSetApplicationsClocks, one, 2619, 1500),
    nvmlDeviceSetMigMode(one, 1), nvmlDeviceGetPowerManagementLimit(one),
]))
",
    );
    assert_eq!(output.trim(), "[2, 0, 2, 0, 0, 0, 0, 0, 0, 500000]");
    let again = node.python(
        &python,
        "
one = gpu(0)
print(json.dumps([nvmlDeviceGetEnforcedPowerLimit(one), nvmlDeviceGetComputeMode(one), nvmlDeviceGetPersistenceMode(one),
    nvmlDeviceGetEccMode(one), nvmlDeviceGetClockInfo(one, 1), nvmlDeviceGetApplicationsClock(one, 0), nvmlDeviceGetMigMode(one),
    code(nvmlDeviceGetUtilizationRates, one)]))
",
    );
    assert_eq!(
        again.trim(),
        "[500000, 3, 0, [1, 0], 1200, 1500, [1, 1], 3]",
        "settings are visible to other processes"
    );
}

/// Polls as fast as it can and collects inconsistent readings.
const POLLER: &str = "
handles = [gpu(index) for index in range(8)]
print('ready')
reads, errors = 0, []
end = time.monotonic() + 60
while not os.path.exists(os.environ['STOP']) and time.monotonic() < end:
    for handle in handles:
        try:
            reading = (nvmlDeviceGetTemperature(handle, 0), nvmlDeviceGetMemoryInfo(handle).total, nvmlDeviceGetName(handle))
            if not (30 <= reading[0] <= 95 and reading[1] == 81559 << 20 and reading[2] == 'NVIDIA H100 80GB HBM3'):
                errors.append(reading)
        except NVMLError as err:
            errors.append(err.value)
        reads += 1
print(json.dumps([reads > 50, errors[:5]]))
";

#[test]
fn clients_survive_concurrent_edits() {
    let Some(python) = python() else { return };
    let node = TestNode::eight_h100();
    let stop = node.path().join("stop");
    let mut children: Vec<_> = (0..2)
        .map(|_| {
            let source =
                POLLER.replace("os.environ['STOP']", &format!("{:?}", stop.to_str().unwrap()));
            node.spawn(&python, &source)
        })
        .collect();
    let mut outputs: Vec<_> = children
        .iter_mut()
        .map(|child| BufReader::new(child.stdout.take().unwrap()).lines())
        .collect();
    for output in &mut outputs {
        assert_eq!(output.next().unwrap().unwrap(), "ready");
    }
    let path = node.path().join("gpus/3.json");
    for round in 0_usize..20 {
        node.inject(&["temperature", &(35 + round).to_string(), "--gpu", "all"]);
        // Act as an editor that writes the file in place and is interrupted.
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() * round / 20]).unwrap();
        std::thread::sleep(Duration::from_millis(5));
        fs::write(&path, &whole).unwrap();
    }
    fs::write(&stop, "").unwrap();
    for (child, output) in children.iter_mut().zip(&mut outputs) {
        assert_eq!(output.next().unwrap().unwrap(), "[true, []]");
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn memory_link_and_setting_faults_are_visible_in_nvml() {
    let Some(python) = python() else { return };
    let node = TestNode::new("B200-SXM6-180GB", 2, "580.95.05");
    for args in [
        vec![
            "nvlink-errors",
            "5",
            "--receive",
            "3",
            "--malformed",
            "4",
            "--overrun",
            "5",
            "--integrity",
            "6",
        ],
        vec![
            "nvlink-errors",
            "5",
            "--recovery",
            "2",
            "--recovery-failed",
            "1",
            "--effective-ber",
            "2e-12",
        ],
        vec![
            "nvlink-errors",
            "5",
            "--symbol",
            "9",
            "--symbol-ber",
            "15e-200",
            "--retry-blocks",
            "11",
            "--speed",
            "26000",
        ],
        vec!["remap", "--banks-low", "7", "--banks-none", "2"],
        vec!["fabric", "--health-mask", "0x1a9", "--state", "2"],
        vec!["inforom", "--invalid"],
        vec!["unrepairable-memory"],
        vec!["memory", "--used-bytes", "1073741824"],
        vec!["clocks", "--sm-mhz", "1200", "--memory-mhz", "2000"],
        vec!["power-limit", "--watts", "700"],
        vec!["settings", "--persistence", "off", "--compute-mode", "3"],
        vec!["repair-pending", "--channel"],
        vec!["xid", "154"],
    ] {
        node.inject(&args);
    }
    let source = "
one = gpu(0)
fields = nvmlDeviceGetFieldValues(one, [(number, 5) for number in (206, 207, 208, 211, 214, 215, 220, 221, 222, 295)])
fabric = c_nvmlGpuFabricInfo_v2_t()
nvmlDeviceGetGpuFabricInfoV(one, byref(fabric))
histogram = nvmlDeviceGetRowRemapperHistogram(one)
print(json.dumps([
    [field.value.ullVal for field in fields], nvmlDeviceGetFieldValues(one, [(164, 5), (164, 4)])[0].value.uiVal,
    [histogram.low, histogram.none], [fabric.state, fabric.healthMask], code(nvmlDeviceValidateInforom, one),
    nvmlDeviceGetMemoryInfo(one, nvmlMemory_v2).used, nvmlDeviceGetClockInfo(one, 1), nvmlDeviceGetClockInfo(one, 2),
    nvmlDeviceGetCurrentClocksEventReasons(one), nvmlDeviceGetPowerManagementLimit(one),
    nvmlDeviceGetPersistenceMode(one), nvmlDeviceGetComputeMode(one), nvmlDeviceGetRepairStatus(one),
    nvmlDeviceGetFieldValues(one, [230])[0].value.uiVal,
]))
";
    let output = node.python(&python, source);
    let expected = "[[4, 5, 3, 6, 1, 3, 524, 9, 4040, 11], 26000, [7, 2], [2, 425], 14, 1073741824, 1200, 2000, 1, 700000, 0, 3, [1, 0], 1]";
    assert_eq!(output.trim(), expected);
}

#[test]
fn retired_pages_are_visible_in_nvml() {
    let Some(python) = python() else { return };
    let node = TestNode::new("T4", 1, "580.95.05");
    node.inject(&["retired", "--single", "3", "--double", "2", "--pending"]);
    let output = node.python(
        &python,
        "print(len(nvmlDeviceGetRetiredPages(gpu(0), 0)), len(nvmlDeviceGetRetiredPages(gpu(0), 1)), nvmlDeviceGetRetiredPagesPendingStatus(gpu(0)))",
    );
    assert_eq!(output.trim(), "3 2 1");
}

#[test]
fn unloaded_and_replaced_driver() {
    let Some(python) = python() else { return };
    let node = TestNode::eight_h100();
    let then = "until(9)\nuntil(0)\nnvmlInit()\nprint('again')\n";
    let mut child = node.spawn(&python, &format!("{HOLD_HANDLE}{then}"));
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut line = || lines.next().unwrap().unwrap();
    assert_eq!(line(), "ready");
    node.inject(&["driver-unloaded"]);
    assert_eq!(line(), "9");
    let init = "from pynvml import *\ntry: nvmlInit()\nexcept NVMLError as err: print(err.value)";
    let started = || {
        let output = node.client(&python, &["-c", init]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(started(), "9");
    node.inject(&["module-on-disk", "580.105.08"]);
    node.inject(&["clear"]);
    node.inject(&["module-on-disk", "580.105.08"]);
    assert_eq!(line(), "0", "a process with the old library continues");
    assert_eq!(line(), "again");
    assert_eq!(started(), "18", "a new process loads the new library");
    assert!(child.wait().unwrap().success());
}
