//! An initialised NVML session: GPUs, events, and state between two requests.

mod devices;
mod node_check;

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;

use farrier_facts::node::{NvmlStatus, ReadError, Reading};
use farrier_fleet::health::observation::GpuUuid;
use farrier_fleet::health::signal::Signal;

use crate::nvml::caller::{NvmlCaller, call};
use crate::nvml::ffi::{self, EventSet, GpmMetricsGet, ProcessInfo, Return};

use super::fields::ThrottleFields;
use super::reader::{ReadFailure, Reader, WatchedGpu};
use super::tiers::{MediumRequest, SlowRequest};
use super::wire::{GpuValues, InventoryRequest, WatchResponse, WireUnavailable, WireValues};
use super::{DetailedSample, NvmlProcess, Tier, gpm};

/// Two throttle times and the activity are costly, so they are read with every third medium request
/// (30 s).
const EXPENSIVE_EVERY: u32 = 3;
/// In interactive mode, activity is sampled with every second medium request.
const INTERACTIVE_EVERY: u32 = 2;

/// Number of medium requests from one sample of the activity to the next.
pub(super) fn medium_requests_per_activity(is_interactive: bool) -> u32 {
    if is_interactive { INTERACTIVE_EVERY } else { EXPENSIVE_EVERY }
}

/// The energy counter is read with every fifth slow request.
const ENERGY_EVERY: u32 = 5;

/// Maximum events read per request. The rest follows with the next request.
const EVENTS_MAX: usize = 64;

/// Return code that stands for a skipped GPU. NVML does not use this code.
const AVOIDED: Return = Return::MAX;

pub(super) struct ProbeSession<'a> {
    caller: NvmlCaller<'a>,
    /// The GPU of the current call, recorded in case the call hangs.
    current_gpu: &'a Cell<Option<u32>>,
    gpus: Vec<WatchedGpu>,
    /// Indices of GPUs that did not open and whose identity is unknown, with the error.
    unidentified: Vec<(u32, Return)>,
    /// Indices of GPUs to skip.
    avoided: Vec<u32>,
    interactive: bool,
    count: u32,
    driver: Reading<String>,
    events: EventSet,
    medium_count: u32,
    slow_count: u32,
    /// Consecutive slow requests with a lost GPU.
    lost_rounds: u32,
    /// In interactive mode, `true` until the first recount after the start. That recount does not
    /// reinitialise NVML for a lost GPU: a GPU that did not open a moment ago will not open now,
    /// and a program that prints only once needs the measurements that reinitialising would
    /// discard.
    is_fresh: bool,
    gpm: Box<GpmMetricsGet>,
    process_buffer: Vec<ProcessInfo>,
}

impl<'a> ProbeSession<'a> {
    /// Initialises the library and opens its GPUs.
    pub(super) fn start(
        caller: NvmlCaller<'a>,
        current_gpu: &'a Cell<Option<u32>>,
        inventory: InventoryRequest,
    ) -> Result<Self, WireUnavailable> {
        match call!(caller, ffi::Init, "nvmlInit_v2") {
            Ok(ffi::SUCCESS) => {}
            Ok(code) => return Err(WireUnavailable::Refused(NvmlStatus(code))),
            Err(why) => return Err(WireUnavailable::NoLibrary(why.to_string())),
        }
        let mut session = Self {
            caller,
            current_gpu,
            gpus: Vec::new(),
            unidentified: Vec::new(),
            avoided: inventory.avoided,
            interactive: inventory.interactive,
            count: 0,
            driver: Reading::Absent,
            events: ptr::null_mut(),
            medium_count: 0,
            slow_count: 0,
            lost_rounds: 0,
            is_fresh: inventory.interactive,
            gpm: gpm::request(),
            process_buffer: Vec::new(),
        };
        session.open(&inventory.known)?;
        Ok(session)
    }

    pub(super) fn inventory(&mut self, response: &mut WatchResponse) {
        response.driver = self.driver.value().cloned();
        response.cuda = if self.interactive { self.cuda() } else { None };
        (response.count, response.unopened) = self.count_opened();
        response.inventory = Some(self.gpus.iter().map(|gpu| gpu.identity.clone()).collect());
    }

    /// The number of GPUs that NVML lists and can open, and a description of those that it cannot
    /// open.
    fn count_opened(&self) -> (Option<Reading<u32>>, Option<String>) {
        let gpus: Vec<(u32, NvmlStatus)> =
            self.unopened().map(|(index, code)| (index, NvmlStatus(code))).collect();
        if gpus.is_empty() {
            return (Some(Reading::Value(self.count)), None);
        }
        let is_denied = gpus.iter().any(|(_, status)| *status == NvmlStatus::NO_PERMISSION);
        let unopened = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
        let why = ReadError::GpusNotOpened { gpus };
        // If this user may not open a GPU, it is unknown whether the GPU would open.
        if is_denied {
            return (Some(Reading::Unreadable(why)), None);
        }
        (Some(Reading::Value(self.count.saturating_sub(unopened))), Some(why.to_string()))
    }

    pub(super) fn values(
        &mut self,
        tier: Tier,
        response: &mut WatchResponse,
    ) -> Result<(), WireUnavailable> {
        match tier {
            Tier::Fast => response.xids = self.xids(),
            Tier::Medium => {
                self.reopen();
                response.processes = Some(Vec::new());
            }
            Tier::Slow => {
                self.recount()?;
                self.inventory(response);
            }
            Tier::Rare => self.gpus.iter_mut().for_each(WatchedGpu::reset_capabilities),
        }
        for index in 0..self.gpus.len() {
            let read = self.read(index, tier, response.processes.as_mut(), &mut response.detailed);
            response.gpus.push(read.map_err(|code| WireUnavailable::Refused(NvmlStatus(code)))?);
        }
        self.current_gpu.set(None);
        if tier == Tier::Medium {
            self.medium_count = self.medium_count.wrapping_add(1);
        }
        if tier == Tier::Slow && !self.interactive {
            response.node_check = Some(Box::new(self.node_check()));
        }
        if tier == Tier::Slow {
            self.slow_count = self.slow_count.wrapping_add(1);
        }
        Ok(())
    }

    /// Reads one tier of one GPU. `Err` means that the whole library failed.
    fn read(
        &mut self,
        index: usize,
        tier: Tier,
        processes: Option<&mut Vec<NvmlProcess>>,
        detailed: &mut Vec<DetailedSample>,
    ) -> Result<GpuValues, Return> {
        let throttle = ThrottleFields::for_driver(self.driver.value().map_or("", String::as_str));
        let every = medium_requests_per_activity(self.interactive);
        let with_activity = self.medium_count.is_multiple_of(every);
        let with_inforom = !self.interactive && self.slow_count as usize % self.gpus.len() == index;
        let gpu = &mut self.gpus[index];
        self.current_gpu.set(Some(gpu.identity.index));
        let uuid = gpu.identity.uuid.clone();
        let mut discarded = Vec::new();
        let processes = processes.unwrap_or(&mut discarded);
        let from = processes.len();
        let (mut own, mut links) = (WireValues::default(), Vec::new());
        let read = match gpu.handle {
            Err(code) => Err(ReadFailure::Gpu(code)),
            Ok(device) => {
                let mut reader = Reader { caller: &mut self.caller, device, gpu, own, links };
                let outcome = match tier {
                    Tier::Fast => reader.fast(),
                    Tier::Medium => reader.medium(&mut MediumRequest {
                        throttle,
                        with_expensive: !self.interactive
                            && self.medium_count.is_multiple_of(EXPENSIVE_EVERY),
                        with_activity,
                        gpm: &mut self.gpm,
                        buffer: &mut self.process_buffer,
                        processes,
                    }),
                    Tier::Slow => reader.slow(&SlowRequest {
                        with_energy: self.slow_count.is_multiple_of(ENERGY_EVERY),
                        with_inforom,
                    }),
                    Tier::Rare => reader.rare(!self.interactive),
                };
                if self.interactive && tier == Tier::Medium && outcome.is_ok() {
                    detailed.push(reader.detailed_sample());
                }
                (own, links) = (reader.own, reader.links);
                outcome
            }
        };
        let gpu = &mut self.gpus[index];
        gpu.failure[tier as usize] = match read {
            Ok(()) => None,
            Err(ReadFailure::Gpu(code)) => Some(code),
            Err(ReadFailure::Library(code)) => return Err(code),
        };
        let failure = gpu.failure[tier as usize];
        if failure.is_some() {
            // Drop the values that were read before the GPU failed, because they are incomplete.
            (own, links) = (WireValues::default(), Vec::new());
            processes.truncate(from);
        }
        if tier == Tier::Fast || failure.is_some() {
            let first_code = |matches: fn(Return) -> bool| {
                gpu.failure.iter().flatten().copied().find(|code| matches(*code))
            };
            let flag = |code: Option<Return>| Reading::Value(f64::from(u8::from(code.is_some())));
            let (lost, reset) =
                (first_code(is_lost), first_code(|code| code == ffi::RESET_REQUIRED));
            own.put(Signal::GpuLost, flag(lost));
            own.put(
                Signal::GpuResetRequired,
                match (lost, reset) {
                    // NVML does not say whether a reset would recover a lost GPU.
                    (Some(code), None) => Reading::Unreadable(ReadError::nvml(code)),
                    (_, reset) => flag(reset),
                },
            );
        }
        let failure = failure.map(|code| match code {
            AVOIDED => ReadError::CallStuck { avoid_s: None },
            code => ReadError::nvml(code),
        });
        Ok(GpuValues { gpu: uuid, own, links, failure })
    }

    /// The newest CUDA version that the driver supports, in NVML's encoding.
    fn cuda(&mut self) -> Option<u32> {
        let mut version: c_int = 0;
        let name =
            call!(self.caller, ffi::Signed, "nvmlSystemGetCudaDriverVersion_v2", &raw mut version);
        u32::try_from(version).ok().filter(|_| name == Ok(ffi::SUCCESS))
    }

    /// Xids since the last request.
    fn xids(&mut self) -> Vec<(GpuUuid, u64)> {
        let mut xids = Vec::new();
        if self.events.is_null() {
            return xids;
        }
        while xids.len() < EVENTS_MAX {
            let mut event = ffi::EventData {
                device: ptr::null_mut(),
                kind: 0,
                data: 0,
                gpu_instance: 0,
                compute_instance: 0,
            };
            let set = self.events;
            let called =
                call!(self.caller, ffi::EventsWait, "nvmlEventSetWait_v2", set, &raw mut event, 0);
            if called != Ok(ffi::SUCCESS) {
                break;
            }
            let gpu = self.gpus.iter_mut().find(|gpu| gpu.handle == Ok(event.device));
            if let Some(gpu) = gpu.filter(|_| event.kind & ffi::EVENT_XID != 0) {
                gpu.had_xid = true;
                xids.push((gpu.identity.uuid.clone(), event.data));
            }
        }
        xids
    }
}

fn is_lost(code: Return) -> bool {
    matches!(code, ffi::GPU_IS_LOST | ffi::GPU_NOT_FOUND)
}
