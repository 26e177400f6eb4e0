//! In-process tests. They run one at a time, because the process has only one library state.

use std::ffi::c_char;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use farrier_facts::FactSet;
use farrier_sim::NodeDir;
use farrier_sim::builder::{self, NodeSpec};
use proptest::prelude::*;

use crate::abi::{DeviceHandle, OpaqueHandle, OutArray, OutPtr, TextArg, TextBuffer};
use crate::calls::*;
use crate::library::{initialise_at, shut_down};
use crate::structs::{EventData, FieldValue, Memory, ProcessInfo, Utilization};

static LIBRARY_LOCK: Mutex<()> = Mutex::new(());

/// An initialised library for a node in a temporary directory.
struct OpenLibrary {
    folder: tempfile::TempDir,
    _lock: MutexGuard<'static, ()>,
}

impl OpenLibrary {
    fn new(sku: &str, gpus: u32, driver: &str) -> Self {
        let lock = LIBRARY_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().unwrap();
        let spec = NodeSpec { driver: driver.to_owned(), ..NodeSpec::new(sku, gpus) };
        let (node, gpus) = builder::build_node(FactSet::embedded(), &spec).unwrap();
        // Write only the files that the library reads, because the property tests create about a
        // hundred nodes.
        let directory = NodeDir::new(folder.path());
        fs::create_dir(folder.path().join("gpus")).unwrap();
        for (number, gpu) in (0..).zip(&gpus) {
            fs::write(directory.gpu_path(number), serde_json::to_vec_pretty(gpu).unwrap()).unwrap();
        }
        fs::write(directory.node_path(), serde_json::to_vec_pretty(&node).unwrap()).unwrap();
        initialise_at("nvmlInit_v2", folder.path().to_owned()).unwrap();
        Self { folder, _lock: lock }
    }

    fn gpu_path(&self) -> std::path::PathBuf {
        self.folder.path().join("gpus/0.json")
    }
}

impl Drop for OpenLibrary {
    fn drop(&mut self) {
        shut_down();
    }
}

fn device(index: u32) -> DeviceHandle {
    let mut device = DeviceHandle(std::ptr::null());
    assert_eq!(nvmlDeviceGetHandleByIndex_v2(index, OutPtr::to(&mut device)), 0);
    device
}

fn text(call: impl Fn(TextBuffer, u32) -> i32) -> (i32, String) {
    let mut room: [c_char; 96] = [0; 96];
    let code = call(TextBuffer::to(&mut room), 96);
    let bytes =
        room.iter().take_while(|byte| **byte != 0).map(|byte| byte.cast_unsigned()).collect();
    (code, String::from_utf8(bytes).unwrap())
}

#[test]
fn uninitialised_calls_and_unknown_handles_fail() {
    let library = OpenLibrary::new("H100-SXM5-80GB", 2, "580.95.05");
    let mut count = 0;
    assert_eq!(nvmlDeviceGetCount_v2(OutPtr::to(&mut count)), 0);
    assert_eq!(count, 2);
    let unknown: u64 = 0;
    for handle in
        [DeviceHandle(std::ptr::null()), DeviceHandle(std::ptr::from_ref(&unknown).cast())]
    {
        assert_eq!(text(|name, length| nvmlDeviceGetName(handle, name, length)).0, 2);
    }
    assert_eq!(nvmlEventSetFree(OpaqueHandle(std::ptr::without_provenance(4096))), 2);
    assert_eq!(shut_down(), 0);
    assert_eq!(nvmlDeviceGetCount_v2(OutPtr::to(&mut count)), 1, "uninitialised");
    initialise_at("nvmlInit_v2", library.folder.path().to_owned()).unwrap();
}

#[test]
fn gpu_with_a_missing_file_is_lost() {
    let library = OpenLibrary::new("H100-SXM5-80GB", 2, "580.95.05");
    let device_handle = device(0);
    fs::remove_file(library.gpu_path()).unwrap();
    assert_eq!(text(|name, length| nvmlDeviceGetName(device_handle, name, length)).0, 15);
}

#[test]
fn text_larger_than_the_buffer_is_not_written() {
    let _library = OpenLibrary::new("T4", 1, "535.183.01");
    let mut room: [c_char; 4] = [7; 4];
    assert_eq!(nvmlDeviceGetName(device(0), TextBuffer::to(&mut room), 4), 7);
    assert_eq!(room, [7; 4]);
    assert_eq!(text(|version, length| nvmlSystemGetDriverVersion(version, length)).1, "535.183.01");
}

/// Driver 580.82 renumbered the clock event counters.
#[test]
fn field_numbers_match_the_driver_version() {
    let field = |driver: &str, number: u32| {
        let _library = OpenLibrary::new("H100-SXM5-80GB", 1, driver);
        let mut value = FieldValue {
            field: number,
            scope: 0,
            timestamp_us: 0,
            latency_us: 0,
            kind: 9,
            code: 9,
            value: 9,
        };
        assert_eq!(
            nvmlDeviceGetFieldValues(device(0), 1, OutArray::to(std::slice::from_mut(&mut value))),
            0
        );
        value.code
    };
    assert_eq!((field("580.65.06", 252), field("580.65.06", 270)), (0, 3));
    assert_eq!((field("580.95.05", 252), field("580.95.05", 270)), (3, 0));
    assert_eq!((field("580.65.06", 230), field("580.95.05", 230)), (0, 0));
}

#[test]
fn counters_follow_a_frozen_clock() {
    let library = OpenLibrary::new("H100-SXM5-80GB", 1, "580.95.05");
    let directory = NodeDir::new(library.folder.path());
    let energy = |now: u64| {
        directory.set_clock(0, |_| Some(now)).unwrap();
        let mut value = FieldValue {
            field: 83,
            scope: 0,
            timestamp_us: 0,
            latency_us: 0,
            kind: 9,
            code: 9,
            value: 9,
        };
        let values = OutArray::to(std::slice::from_mut(&mut value));
        assert_eq!(nvmlDeviceGetFieldValues(device(0), 1, values), 0);
        (value.timestamp_us, value.value)
    };
    // An idle H100 draws 77.777 W.
    assert_eq!(energy(10_000), (10_000_000, 777_770));
    assert_eq!(energy(20_000), (20_000_000, 1_555_540));
    assert_eq!(energy(10_000), (10_000_000, 777_770), "the clock may move backwards");
}

#[test]
fn unloaded_driver_fails_every_call() {
    let library = OpenLibrary::new("H100-SXM5-80GB", 1, "580.95.05");
    let directory = NodeDir::new(library.folder.path());
    let load = |loaded: bool| {
        let mut node = directory.node().unwrap();
        node.driver_loaded = loaded;
        replace(&directory.node_path(), &serde_json::to_vec_pretty(&node).unwrap());
    };
    let mut count = 0;
    load(false);
    assert_eq!(nvmlDeviceGetCount_v2(OutPtr::to(&mut count)), 9);
    load(true);
    assert_eq!(nvmlDeviceGetCount_v2(OutPtr::to(&mut count)), 0);
}

/// Makes the calls of a typical poller. Every call must return, whatever the file contains.
fn poll(device: DeviceHandle) -> i32 {
    let (mut word, mut long) = (0_u32, 0_u64);
    let mut memory = Memory { total: 0, free: 0, used: 0 };
    let mut rates = Utilization { gpu: 0, memory: 0 };
    let code = text(|name, length| nvmlDeviceGetName(device, name, length)).0;
    nvmlDeviceGetUUID(device, TextBuffer::to(&mut [0; 96]), 96);
    nvmlDeviceGetTemperature(device, 0, OutPtr::to(&mut word));
    nvmlDeviceGetMemoryInfo(device, OutPtr::to(&mut memory));
    nvmlDeviceGetUtilizationRates(device, OutPtr::to(&mut rates));
    nvmlDeviceGetTotalEccErrors(device, 0, 0, OutPtr::to(&mut long));
    nvmlDeviceGetNvLinkState(device, 17, OutPtr::to(&mut word));
    nvmlDeviceGetPowerManagementLimit(device, OutPtr::to(&mut word));
    word = 0;
    nvmlDeviceGetSupportedGraphicsClocks(device, 2619, OutPtr::to(&mut word), OutArray::null());
    word = 0;
    nvmlDeviceGetComputeRunningProcesses_v3(
        device,
        OutPtr::to(&mut word),
        OutArray::<ProcessInfo>::null(),
    );
    let mut values: Vec<FieldValue> = (0..310)
        .map(|field| FieldValue {
            field,
            scope: 0,
            timestamp_us: 0,
            latency_us: 0,
            kind: 0,
            code: 0,
            value: 0,
        })
        .collect();
    nvmlDeviceGetFieldValues(device, 310, OutArray::to(&mut values));
    code
}

fn replace(path: &Path, bytes: &[u8]) {
    // Create a new file, so that its new inode shows the change at once.
    fs::remove_file(path).unwrap();
    fs::write(path, bytes).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// If a GPU's file contains arbitrary bytes, the last valid state stays in use.
    #[test]
    fn arbitrary_bytes_never_crash(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let library = OpenLibrary::new("H100-SXM5-80GB", 1, "580.95.05");
        let device_handle = device(0);
        prop_assert_eq!(poll(device_handle), 0);
        replace(&library.gpu_path(), &bytes);
        prop_assert_eq!(poll(device_handle), 0);
    }

    /// If one number of a valid file is replaced, every call still returns.
    #[test]
    fn arbitrary_numbers_never_crash(line in any::<prop::sample::Index>(), number in prop_oneof![any::<u64>().prop_map(|n| n.to_string()), any::<i32>().prop_map(|n| n.to_string())]) {
        let library = OpenLibrary::new("H100-SXM5-80GB", 1, "580.95.05");
        let device_handle = device(0);
        let good = fs::read_to_string(library.gpu_path()).unwrap();
        let lines: Vec<&str> = good.lines().collect();
        let numbers: Vec<usize> = (0..lines.len()).filter(|line| lines[*line].trim_end_matches(',').ends_with(|last: char| last.is_ascii_digit())).collect();
        let chosen = numbers[line.index(numbers.len())];
        let changed: Vec<String> = lines.iter().enumerate().map(|(line, text)| {
            if line != chosen {
                return (*text).to_owned();
            }
            let comma = if text.ends_with(',') { "," } else { "" };
            match text.rsplit_once(": ") {
                Some((key, _)) => format!("{key}: {number}{comma}"),
                None => format!("{number}{comma}"),
            }
        }).collect();
        replace(&library.gpu_path(), changed.join("\n").as_bytes());
        prop_assert_ne!(poll(device_handle), 999);
    }
}

#[test]
fn each_event_set_receives_an_event_once() {
    let library = OpenLibrary::new("H100-SXM5-80GB", 1, "580.95.05");
    let device_handle = device(0);
    let sets = [(); 2].map(|()| {
        let mut set = OpaqueHandle(std::ptr::null());
        assert_eq!(nvmlEventSetCreate(OutPtr::to(&mut set)), 0);
        assert_eq!(nvmlDeviceRegisterEvents(device_handle, 8, set), 0);
        set
    });
    let directory = NodeDir::new(library.folder.path());
    let pushed: Result<(), farrier_sim::StoreError> = directory.edit_gpu(0, |gpu| {
        gpu.push_event(8, 31);
        gpu.push_event(0x10, 7);
        Ok(())
    });
    pushed.unwrap();
    let mut data =
        EventData { device: device_handle, kind: 0, data: 0, gpu_instance: 0, compute_instance: 0 };
    for set in sets {
        assert_eq!(nvmlEventSetWait_v2(set, OutPtr::to(&mut data), 1000), 0);
        assert_eq!((data.kind, data.data), (8, 31));
        assert_eq!(
            nvmlEventSetWait_v2(set, OutPtr::to(&mut data), 0),
            10,
            "other event types are not delivered"
        );
        assert_eq!(nvmlEventSetFree(set), 0);
    }
    assert_eq!(
        nvmlDeviceSetPowerManagementLimit(device_handle, 1),
        if crate::locate::is_root() { 2 } else { 4 }
    );
    let mut found = device_handle;
    assert_eq!(nvmlDeviceGetHandleByUUID(TextArg::new(c"GPU-nothing"), OutPtr::to(&mut found)), 6);
}
