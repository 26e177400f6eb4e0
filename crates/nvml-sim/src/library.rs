//! Library state: initialisation, the cached node and its injected faults.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fs;
use std::ops::Deref;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use farrier_sim::fault::{CallEffect, CallFault, FIELD_PREFIX};
use farrier_sim::{NodeDir, SharedNodeState, SimGpu, StoreError};

use crate::abi::DeviceHandle;
use crate::error_code::{ErrorCode, NvmlResult};
use crate::locate;

/// Maximum number of devices.
const DEVICES_MAX: usize = 64;

/// Device handles are addresses in this array. They are compared, never dereferenced.
static HANDLES: [u64; DEVICES_MAX] = [0; DEVICES_MAX];

/// A file that was modified this recently is always read again. It may change once more without a
/// new modification time, because the file system's clock is coarse.
const MTIME_SETTLE_TIME: Duration = Duration::from_millis(100);

static LIBRARY: Mutex<Library> = Mutex::new(Library { references: 0, session: None });

struct Library {
    /// Number of initialisations minus number of shutdowns.
    references: u32,
    /// The session stays after a shutdown, because it holds the last valid state.
    session: Option<Arc<Session>>,
}

/// The node found at initialisation.
pub(crate) struct Session {
    directory: NodeDir,
    node: CachedFile<SharedNodeState>,
    /// GPUs with the numbers of their files. The position in the list is the NVML index.
    gpus: Vec<(u32, CachedFile<SimGpu>)>,
}

/// A parsed file that is read again when it changes.
struct CachedFile<T> {
    path: PathBuf,
    state: Mutex<CachedFileState<T>>,
}

struct CachedFileState<T> {
    stamp: Option<FileStamp>,
    value: Option<Arc<T>>,
    missing: bool,
}

/// File metadata that shows whether the file has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileStamp {
    inode: u64,
    size: u64,
    modified_ns: i128,
}

impl FileStamp {
    fn read(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        let modified_ns =
            i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
        Some(Self { inode: metadata.ino(), size: metadata.size(), modified_ns })
    }

    fn is_settled(self) -> bool {
        let now_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos());
        i128::try_from(now_ns).unwrap_or(i128::MAX) - self.modified_ns
            > MTIME_SETTLE_TIME.as_nanos().cast_signed()
    }
}

/// Locks a mutex. Ignores poison, because a panic never leaves the guarded values half-updated.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> CachedFile<T> {
    fn new(path: PathBuf) -> Self {
        Self {
            path,
            state: Mutex::new(CachedFileState { stamp: None, value: None, missing: false }),
        }
    }

    /// The last valid value. Reads the file again if it has changed.
    fn get(&self, read: impl FnOnce() -> Result<T, StoreError>) -> Option<Arc<T>> {
        let mut state = lock(&self.state);
        let stamp = FileStamp::read(&self.path);
        state.missing = stamp.is_none();
        let same =
            stamp.is_some() && stamp == state.stamp && stamp.is_some_and(FileStamp::is_settled);
        if !same && stamp.is_some() {
            if let Ok(value) = read() {
                state.value = Some(Arc::new(value));
            }
            state.stamp = stamp;
        }
        state.value.clone()
    }

    fn is_missing(&self) -> bool {
        lock(&self.state).missing
    }
}

impl Session {
    fn open(directory: PathBuf) -> Result<Self, ErrorCode> {
        let directory = NodeDir::new(directory);
        if !directory.node_path().exists() {
            return Err(ErrorCode::DRIVER_NOT_LOADED);
        }
        let numbers = directory.gpu_numbers().map_err(|_| ErrorCode::UNKNOWN)?;
        let gpus = numbers
            .into_iter()
            .take(DEVICES_MAX)
            .map(|number| (number, CachedFile::new(directory.gpu_path(number))))
            .collect();
        let node = CachedFile::new(directory.node_path());
        Ok(Self { directory, node, gpus })
    }

    pub(crate) fn node(&self) -> Result<Arc<SharedNodeState>, ErrorCode> {
        self.node.get(|| self.directory.node()).ok_or(ErrorCode::UNKNOWN)
    }

    pub(crate) fn count(&self) -> usize {
        self.gpus.len()
    }

    /// The GPU at an index, even if it is lost or faulty.
    pub(crate) fn gpu(&self, index: usize) -> Result<Arc<SimGpu>, ErrorCode> {
        let (number, cached) = self.gpus.get(index).ok_or(ErrorCode::INVALID_ARGUMENT)?;
        let gpu = cached.get(|| self.directory.gpu(*number));
        // If its file is missing, the GPU is lost.
        if cached.is_missing() {
            Err(ErrorCode::GPU_IS_LOST)
        } else {
            gpu.ok_or(ErrorCode::UNKNOWN)
        }
    }

    /// All readable GPUs with their indices.
    pub(crate) fn gpus(&self) -> Vec<(usize, Arc<SimGpu>)> {
        (0..self.count()).filter_map(|index| Some((index, self.gpu(index).ok()?))).collect()
    }

    /// Checks that the caller has permission to change settings.
    pub(crate) fn may_write(&self) -> NvmlResult {
        let allowed = self.node()?.as_root.unwrap_or_else(locate::is_root);
        if allowed { Ok(()) } else { Err(ErrorCode::NO_PERMISSION) }
    }

    /// Changes the file of a GPU.
    pub(crate) fn edit(
        &self,
        index: usize,
        change: impl FnOnce(&mut SimGpu) -> NvmlResult,
    ) -> NvmlResult {
        let (number, _) = self.gpus.get(index).ok_or(ErrorCode::INVALID_ARGUMENT)?;
        self.directory
            .edit_gpu(*number, |gpu| change(gpu).map_err(EditError))
            .map_err(|EditError(code)| code)
    }

    /// The device index of a handle.
    pub(crate) fn index_of(&self, device: DeviceHandle) -> Result<usize, ErrorCode> {
        let place = (device.0 as usize).wrapping_sub(HANDLES.as_ptr() as usize);
        let index = place / size_of::<u64>();
        if place.is_multiple_of(size_of::<u64>()) && index < self.count() {
            Ok(index)
        } else {
            Err(ErrorCode::INVALID_ARGUMENT)
        }
    }
}

struct EditError(ErrorCode);

impl From<StoreError> for EditError {
    fn from(_: StoreError) -> Self {
        Self(ErrorCode::UNKNOWN)
    }
}

/// The handle of a device index.
pub(crate) fn handle_for(index: usize) -> DeviceHandle {
    DeviceHandle(std::ptr::from_ref(&HANDLES[index.min(DEVICES_MAX - 1)]).cast())
}

/// A GPU as seen by one call.
pub(crate) struct GpuView {
    pub(crate) session: Arc<Session>,
    pub(crate) node: Arc<SharedNodeState>,
    pub(crate) index: usize,
    gpu: Arc<SimGpu>,
}

impl Deref for GpuView {
    type Target = SimGpu;

    fn deref(&self) -> &SimGpu {
        &self.gpu
    }
}

impl GpuView {
    /// Changes the GPU's file, if the caller has permission.
    pub(crate) fn set(&self, change: impl FnOnce(&mut SimGpu) -> NvmlResult) -> NvmlResult {
        self.session.may_write()?;
        self.session.edit(self.index, change)
    }

    /// The error injected for a field, if any.
    pub(crate) fn injected_field_error(&self, field: u32) -> Option<ErrorCode> {
        let name = format!("{FIELD_PREFIX}{field}");
        self.gpu.faults.iter().find(|fault| fault.call == name).and_then(|fault| {
            match fault.effect {
                CallEffect::Error(code) => Some(ErrorCode(code)),
                CallEffect::HangMs(_) | CallEffect::HangForever => None,
            }
        })
    }

    /// The node's clock, which may be frozen, in Unix milliseconds.
    pub(crate) fn now_unix_ms(&self) -> u64 {
        self.now_unix_us() / 1000
    }

    /// The node's clock in Unix microseconds.
    pub(crate) fn now_unix_us(&self) -> u64 {
        let fixed = self.node.clock_unix_ms.map(|now| now.saturating_mul(1000));
        fixed.unwrap_or_else(real_unix_us)
    }

    /// Another GPU of the same node.
    pub(crate) fn other(&self, device: DeviceHandle) -> Result<(usize, Arc<SimGpu>), ErrorCode> {
        let index = self.session.index_of(device)?;
        Ok((index, self.session.gpu(index)?))
    }
}

/// The real clock in Unix microseconds.
fn real_unix_us() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |now| u64::try_from(now.as_micros()).unwrap_or(u64::MAX))
}

/// Runs the body of an exported function and turns a panic into an error code.
pub(crate) fn catch_panics(body: impl FnOnce() -> NvmlResult) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => ErrorCode::SUCCESS,
        Ok(Err(code)) => code.number(),
        Err(_) => ErrorCode::UNKNOWN.number(),
    }
}

/// Runs a call that concerns no device.
pub(crate) fn on_node(name: &str, body: impl FnOnce(&Arc<Session>) -> NvmlResult) -> c_int {
    catch_panics(|| {
        let session = session()?;
        let node = session.node()?;
        apply_call_faults(&node.faults, name)?;
        require_driver(&node)?;
        body(&session)
    })
}

/// Runs a call about a device.
pub(crate) fn on_device(
    name: &str,
    device: DeviceHandle,
    body: impl FnOnce(&GpuView) -> NvmlResult,
) -> c_int {
    catch_panics(|| {
        let session = session()?;
        let node = session.node()?;
        apply_call_faults(&node.faults, name)?;
        require_driver(&node)?;
        let index = session.index_of(device)?;
        let gpu = session.gpu(index)?;
        apply_call_faults(&gpu.faults, name)?;
        if gpu.lost {
            return Err(ErrorCode::GPU_IS_LOST);
        }
        if gpu.unsupported.iter().any(|call| call == name) {
            return Err(ErrorCode::NOT_SUPPORTED);
        }
        body(&GpuView { session, node, index, gpu })
    })
}

/// Fails if the driver is not loaded.
fn require_driver(node: &SharedNodeState) -> NvmlResult {
    if node.driver_loaded { Ok(()) } else { Err(ErrorCode::DRIVER_NOT_LOADED) }
}

/// Returns the handle of a device, unless it is lost.
pub(crate) fn open_device(
    session: &Session,
    name: &str,
    index: usize,
) -> Result<DeviceHandle, ErrorCode> {
    let gpu = session.gpu(index)?;
    apply_call_faults(&gpu.faults, name)?;
    if gpu.lost { Err(ErrorCode::GPU_IS_LOST) } else { Ok(handle_for(index)) }
}

/// Hangs or fails if a fault for this call is injected. Holds no lock.
fn apply_call_faults(faults: &[CallFault], name: &str) -> NvmlResult {
    for fault in faults.iter().filter(|fault| fault.matches_call(name)) {
        match fault.effect {
            CallEffect::HangMs(milliseconds) => {
                std::thread::sleep(Duration::from_millis(milliseconds));
            }
            CallEffect::HangForever => loop {
                std::thread::sleep(Duration::from_secs(3600));
            },
            CallEffect::Error(code) => return Err(ErrorCode(code)),
        }
    }
    Ok(())
}

fn session() -> Result<Arc<Session>, ErrorCode> {
    let library = lock(&LIBRARY);
    if library.references == 0 {
        return Err(ErrorCode::UNINITIALISED);
    }
    library.session.clone().ok_or(ErrorCode::UNINITIALISED)
}

pub(crate) fn initialise(name: &str) -> c_int {
    catch_panics(|| {
        initialise_at(name, locate::node_directory().ok_or(ErrorCode::DRIVER_NOT_LOADED)?)
    })
}

/// `nvmlInit` for a given node directory.
pub(crate) fn initialise_at(name: &str, directory: PathBuf) -> NvmlResult {
    let mut session = Arc::new(Session::open(directory)?);
    let mut is_first = true;
    {
        let library = lock(&LIBRARY);
        if let Some(before) = &library.session {
            is_first = false;
            let same = before.directory.path() == session.directory.path();
            // The GPUs are the same as before, so keep the cached state.
            if same && before.gpus.iter().map(|gpu| gpu.0).eq(session.gpus.iter().map(|gpu| gpu.0))
            {
                session = Arc::clone(before);
            }
        }
    }
    let node = session.node()?;
    apply_call_faults(&node.faults, name)?;
    require_driver(&node)?;
    // A driver upgrade has replaced the library while the old driver stays loaded. A process that
    // has initialised NVML before the upgrade has the old library in memory and continues to use
    // it.
    if is_first && node.replaced_by.is_some() {
        return Err(ErrorCode::LIB_RM_VERSION_MISMATCH);
    }
    let mut library = lock(&LIBRARY);
    library.references = library.references.saturating_add(1);
    library.session = Some(session);
    Ok(())
}

pub(crate) fn shut_down() -> c_int {
    catch_panics(|| {
        let mut library = lock(&LIBRARY);
        library.references = library.references.checked_sub(1).ok_or(ErrorCode::UNINITIALISED)?;
        Ok(())
    })
}

/// Objects that clients refer to by handle.
pub(crate) struct Registry<T> {
    entries: Mutex<BTreeMap<usize, T>>,
}

impl<T> Registry<T> {
    pub(crate) const fn new() -> Self {
        Self { entries: Mutex::new(BTreeMap::new()) }
    }

    /// Stores an entry. The handle looks like an aligned, non-null pointer.
    pub(crate) fn add(&self, entry: T) -> crate::abi::OpaqueHandle {
        let mut entries = lock(&self.entries);
        let number = entries.last_key_value().map_or(1, |(last, _)| last.wrapping_add(1)).max(1);
        entries.insert(number, entry);
        crate::abi::OpaqueHandle(std::ptr::without_provenance(number << 4))
    }

    /// Calls `update` with the entry of a handle.
    pub(crate) fn with<R>(
        &self,
        token: crate::abi::OpaqueHandle,
        update: impl FnOnce(&mut T) -> R,
    ) -> Result<R, ErrorCode> {
        let number = token.0 as usize >> 4;
        lock(&self.entries).get_mut(&number).map(update).ok_or(ErrorCode::INVALID_ARGUMENT)
    }

    pub(crate) fn remove(&self, token: crate::abi::OpaqueHandle) -> NvmlResult {
        let number = token.0 as usize >> 4;
        lock(&self.entries).remove(&number).map(drop).ok_or(ErrorCode::INVALID_ARGUMENT)
    }
}
