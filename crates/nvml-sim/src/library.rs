//! What stands behind the calls: whether NVML is initialised, the node as it was last read, and its faults.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fs;
use std::ops::Deref;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use farrier_sim::fault::{CallFault, Effect, FIELD};
use farrier_sim::{Gpu, Node, NodeDir, StoreError};

use crate::abi::Device;
use crate::code::{Answer, Code};
use crate::place;

/// The most GPUs that handles are given out for.
const DEVICES_MAX: usize = 64;

/// Handles are addresses in here: they are never followed, only compared.
static HANDLES: [u64; DEVICES_MAX] = [0; DEVICES_MAX];

/// A file that changed so lately may change again within the same tick of the file system's clock.
const UNSETTLED: Duration = Duration::from_millis(100);

static LIBRARY: Mutex<Library> = Mutex::new(Library { references: 0, session: None });

struct Library {
    /// Inits less shutdowns.
    references: u32,
    /// Kept over a shutdown, for the last good state in it.
    session: Option<Arc<Session>>,
}

/// The node that was found at initialisation.
pub(crate) struct Session {
    directory: NodeDir,
    node: Cached<Node>,
    /// By the number in the file's name; an index of NVML's is a place in here.
    gpus: Vec<(u32, Cached<Gpu>)>,
}

/// What a file last said.
struct Cached<T> {
    path: PathBuf,
    state: Mutex<CachedState<T>>,
}

struct CachedState<T> {
    stamp: Option<Stamp>,
    value: Option<Arc<T>>,
    missing: bool,
}

/// Enough of a file's metadata to see that it changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    modified_ns: i128,
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        let modified_ns =
            i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
        Some(Self { inode: metadata.ino(), size: metadata.size(), modified_ns })
    }

    fn is_settled(self) -> bool {
        let now_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos());
        i128::try_from(now_ns).unwrap_or(i128::MAX) - self.modified_ns
            > UNSETTLED.as_nanos().cast_signed()
    }
}

/// A lock whose holder panicked: what it guards is a whole value at any time, so go on with it.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Cached<T> {
    fn of(path: PathBuf) -> Self {
        Self { path, state: Mutex::new(CachedState { stamp: None, value: None, missing: false }) }
    }

    /// The last good value; read anew when the file changed.
    fn get(&self, read: impl FnOnce() -> Result<T, StoreError>) -> Option<Arc<T>> {
        let mut state = locked(&self.state);
        let stamp = Stamp::of(&self.path);
        state.missing = stamp.is_none();
        let same = stamp.is_some() && stamp == state.stamp && stamp.is_some_and(Stamp::is_settled);
        if !same && stamp.is_some() {
            if let Ok(value) = read() {
                state.value = Some(Arc::new(value));
            }
            state.stamp = stamp;
        }
        state.value.clone()
    }

    fn is_missing(&self) -> bool {
        locked(&self.state).missing
    }
}

impl Session {
    fn open(directory: PathBuf) -> Result<Self, Code> {
        let directory = NodeDir::at(directory);
        if !directory.node_path().exists() {
            return Err(Code::DRIVER_NOT_LOADED);
        }
        let numbers = directory.gpu_numbers().map_err(|_| Code::UNKNOWN)?;
        let gpus = numbers
            .into_iter()
            .take(DEVICES_MAX)
            .map(|number| (number, Cached::of(directory.gpu_path(number))))
            .collect();
        let node = Cached::of(directory.node_path());
        Ok(Self { directory, node, gpus })
    }

    pub(crate) fn node(&self) -> Result<Arc<Node>, Code> {
        self.node.get(|| self.directory.node()).ok_or(Code::UNKNOWN)
    }

    pub(crate) fn count(&self) -> usize {
        self.gpus.len()
    }

    /// The GPU at an index, whatever is wrong with it.
    pub(crate) fn gpu(&self, index: usize) -> Result<Arc<Gpu>, Code> {
        let (number, cached) = self.gpus.get(index).ok_or(Code::INVALID_ARGUMENT)?;
        let gpu = cached.get(|| self.directory.gpu(*number));
        // A file that is gone is a GPU that is gone.
        if cached.is_missing() { Err(Code::GPU_IS_LOST) } else { gpu.ok_or(Code::UNKNOWN) }
    }

    /// All GPUs that can be read, with their index.
    pub(crate) fn gpus(&self) -> Vec<(usize, Arc<Gpu>)> {
        (0..self.count()).filter_map(|index| Some((index, self.gpu(index).ok()?))).collect()
    }

    /// Whether the caller may change settings.
    pub(crate) fn may_write(&self) -> Answer {
        let allowed = self.node()?.as_root.unwrap_or_else(place::is_root);
        if allowed { Ok(()) } else { Err(Code::NO_PERMISSION) }
    }

    /// Changes a GPU in its file.
    pub(crate) fn edit(&self, index: usize, change: impl FnOnce(&mut Gpu) -> Answer) -> Answer {
        let (number, _) = self.gpus.get(index).ok_or(Code::INVALID_ARGUMENT)?;
        self.directory
            .edit_gpu(*number, |gpu| change(gpu).map_err(EditError))
            .map_err(|EditError(code)| code)
    }

    /// The index of a handle.
    pub(crate) fn index_of(&self, device: Device) -> Result<usize, Code> {
        let place = (device.0 as usize).wrapping_sub(HANDLES.as_ptr() as usize);
        let index = place / size_of::<u64>();
        if place.is_multiple_of(size_of::<u64>()) && index < self.count() {
            Ok(index)
        } else {
            Err(Code::INVALID_ARGUMENT)
        }
    }
}

struct EditError(Code);

impl From<StoreError> for EditError {
    fn from(_: StoreError) -> Self {
        Self(Code::UNKNOWN)
    }
}

/// The handle of an index.
pub(crate) fn handle_of(index: usize) -> Device {
    Device(std::ptr::from_ref(&HANDLES[index.min(DEVICES_MAX - 1)]).cast())
}

/// A GPU as one call sees it.
pub(crate) struct View {
    pub(crate) session: Arc<Session>,
    pub(crate) node: Arc<Node>,
    pub(crate) index: usize,
    gpu: Arc<Gpu>,
}

impl Deref for View {
    type Target = Gpu;

    fn deref(&self) -> &Gpu {
        &self.gpu
    }
}

impl View {
    /// Changes the GPU for good, if the caller may.
    pub(crate) fn set(&self, change: impl FnOnce(&mut Gpu) -> Answer) -> Answer {
        self.session.may_write()?;
        self.session.edit(self.index, change)
    }

    /// The error that a field gives instead of its value, where somebody asked for one.
    pub(crate) fn error_of_field(&self, field: u32) -> Option<Code> {
        let name = format!("{FIELD}{field}");
        self.gpu.faults.iter().find(|fault| fault.call == name).and_then(|fault| {
            match fault.effect {
                Effect::Error(code) => Some(Code(code)),
                Effect::HangMs(_) | Effect::HangForever => None,
            }
        })
    }

    /// Milliseconds of the node's Unix clock, which may stand still.
    pub(crate) fn now_unix_ms(&self) -> u64 {
        self.now_unix_us() / 1000
    }

    /// Microseconds of the same clock.
    pub(crate) fn now_unix_us(&self) -> u64 {
        let fixed = self.node.clock_unix_ms.map(|now| now.saturating_mul(1000));
        fixed.unwrap_or_else(real_unix_us)
    }

    /// Another GPU of the same node.
    pub(crate) fn other(&self, device: Device) -> Result<(usize, Arc<Gpu>), Code> {
        let index = self.session.index_of(device)?;
        Ok((index, self.session.gpu(index)?))
    }
}

/// Microseconds of the machine's Unix clock.
fn real_unix_us() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |now| u64::try_from(now.as_micros()).unwrap_or(u64::MAX))
}

/// Runs the body of an exported function: a panic becomes an error code.
pub(crate) fn guarded(body: impl FnOnce() -> Answer) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Code::SUCCESS,
        Ok(Err(code)) => code.number(),
        Err(_) => Code::UNKNOWN.number(),
    }
}

/// A call that needs no device.
pub(crate) fn on_node(name: &str, body: impl FnOnce(&Arc<Session>) -> Answer) -> c_int {
    guarded(|| {
        let session = session()?;
        let node = session.node()?;
        suffer(&node.faults, name)?;
        loaded(&node)?;
        body(&session)
    })
}

/// A call about a device.
pub(crate) fn on_device(name: &str, device: Device, body: impl FnOnce(&View) -> Answer) -> c_int {
    guarded(|| {
        let session = session()?;
        let node = session.node()?;
        suffer(&node.faults, name)?;
        loaded(&node)?;
        let index = session.index_of(device)?;
        let gpu = session.gpu(index)?;
        suffer(&gpu.faults, name)?;
        if gpu.lost {
            return Err(Code::GPU_IS_LOST);
        }
        if gpu.unsupported.iter().any(|call| call == name) {
            return Err(Code::NOT_SUPPORTED);
        }
        body(&View { session, node, index, gpu })
    })
}

/// Whether there is a driver to ask.
fn loaded(node: &Node) -> Answer {
    if node.driver_loaded { Ok(()) } else { Err(Code::DRIVER_NOT_LOADED) }
}

/// Whether a device can be opened.
pub(crate) fn open(session: &Session, name: &str, index: usize) -> Result<Device, Code> {
    let gpu = session.gpu(index)?;
    suffer(&gpu.faults, name)?;
    if gpu.lost { Err(Code::GPU_IS_LOST) } else { Ok(handle_of(index)) }
}

/// Hangs or fails as the faults say. No lock is held.
fn suffer(faults: &[CallFault], name: &str) -> Answer {
    for fault in faults.iter().filter(|fault| fault.is_about(name)) {
        match fault.effect {
            Effect::HangMs(milliseconds) => std::thread::sleep(Duration::from_millis(milliseconds)),
            Effect::HangForever => loop {
                std::thread::sleep(Duration::from_secs(3600));
            },
            Effect::Error(code) => return Err(Code(code)),
        }
    }
    Ok(())
}

fn session() -> Result<Arc<Session>, Code> {
    let library = locked(&LIBRARY);
    if library.references == 0 {
        return Err(Code::UNINITIALISED);
    }
    library.session.clone().ok_or(Code::UNINITIALISED)
}

/// `nvmlInit`.
pub(crate) fn initialise(name: &str) -> c_int {
    guarded(|| initialise_at(name, place::node_directory().ok_or(Code::DRIVER_NOT_LOADED)?))
}

/// `nvmlInit` for a node that is known.
pub(crate) fn initialise_at(name: &str, directory: PathBuf) -> Answer {
    let mut session = Arc::new(Session::open(directory)?);
    let mut is_first = true;
    {
        let library = locked(&LIBRARY);
        if let Some(before) = &library.session {
            is_first = false;
            let same = before.directory.path() == session.directory.path();
            // The same GPUs as before: keep what is known of them.
            if same && before.gpus.iter().map(|gpu| gpu.0).eq(session.gpus.iter().map(|gpu| gpu.0))
            {
                session = Arc::clone(before);
            }
        }
    }
    let node = session.node()?;
    suffer(&node.faults, name)?;
    loaded(&node)?;
    // An upgrade replaced the library under the loaded driver. Who has the old one in memory goes on with it.
    if is_first && node.replaced_by.is_some() {
        return Err(Code::LIB_RM_VERSION_MISMATCH);
    }
    let mut library = locked(&LIBRARY);
    library.references = library.references.saturating_add(1);
    library.session = Some(session);
    Ok(())
}

/// `nvmlShutdown`.
pub(crate) fn shut_down() -> c_int {
    guarded(|| {
        let mut library = locked(&LIBRARY);
        library.references = library.references.checked_sub(1).ok_or(Code::UNINITIALISED)?;
        Ok(())
    })
}

/// Things that clients hold by a token.
pub(crate) struct Registry<T> {
    things: Mutex<BTreeMap<usize, T>>,
}

impl<T> Registry<T> {
    pub(crate) const fn new() -> Self {
        Self { things: Mutex::new(BTreeMap::new()) }
    }

    /// Keeps the thing; the token looks like an aligned pointer and is not null.
    pub(crate) fn add(&self, thing: T) -> crate::abi::Token {
        let mut things = locked(&self.things);
        let number = things.last_key_value().map_or(1, |(last, _)| last.wrapping_add(1)).max(1);
        things.insert(number, thing);
        crate::abi::Token(std::ptr::without_provenance(number << 4))
    }

    /// Looks at the thing.
    pub(crate) fn with<R>(
        &self,
        token: crate::abi::Token,
        look: impl FnOnce(&mut T) -> R,
    ) -> Result<R, Code> {
        let number = token.0 as usize >> 4;
        locked(&self.things).get_mut(&number).map(look).ok_or(Code::INVALID_ARGUMENT)
    }

    /// Forgets the thing.
    pub(crate) fn remove(&self, token: crate::abi::Token) -> Answer {
        let number = token.0 as usize >> 4;
        locked(&self.things).remove(&number).map(drop).ok_or(Code::INVALID_ARGUMENT)
    }
}
