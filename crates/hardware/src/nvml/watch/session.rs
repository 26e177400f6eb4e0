//! An initialised NVML session: GPUs, events, and state between two requests.

mod opening;

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;

use farrier_facts::node::{NvmlStatus, ReadError, Reading};
use farrier_fleet::health::observation::GpuUuid;
use farrier_fleet::health::signal::Signal;

use crate::nvml::caller::{Caller, call};
use crate::nvml::ffi::{self, EventSet, GpmMetricsGet, ProcessInfo, Return};

use super::fields::HeldFields;
use super::reader::{Gpu, Reader, Trouble};
use super::tiers::Medium;
use super::wire::{Answer, GpuValues, Inventory, Refusal, Values};
use super::{CloseLook, GpuProcess, Tier, gpm};

/// Throttle times cost half a millisecond each; read them with every third medium request (30 s).
const DEAR_EVERY: u32 = 3;
/// In interactive mode, activity is sampled with every second medium request.
const CLOSE_EVERY: u32 = 2;
/// The energy counter is read with every fifth slow request.
const ENERGY_EVERY: u32 = 5;

/// Events drained per request; the rest follows with the next one.
const EVENTS_MAX: usize = 64;

/// Not an NVML code: the GPU is skipped.
const AVOIDED: Return = Return::MAX;

pub(super) struct Session<'a> {
    caller: Caller<'a>,
    /// The GPU of the current call, recorded in case it hangs.
    about: &'a Cell<Option<u32>>,
    gpus: Vec<Gpu>,
    /// Indices of GPUs that did not open and whose identity is unknown, with the error.
    nameless: Vec<(u32, Return)>,
    /// Indices of GPUs to skip.
    avoided: Vec<u32>,
    closely: bool,
    count: u32,
    driver: Reading<String>,
    events: EventSet,
    mediums: u32,
    slows: u32,
    /// Consecutive slow requests with a lost GPU.
    lost_for: u32,
    /// Interactive mode, with no recount since the start. What did not open a moment ago will not
    /// open now, and a one-shot view needs the measurements made since.
    is_fresh: bool,
    gpm: Box<GpmMetricsGet>,
    room: Vec<ProcessInfo>,
}

impl<'a> Session<'a> {
    /// Initialises the library and opens its GPUs.
    pub(super) fn start(
        caller: Caller<'a>,
        about: &'a Cell<Option<u32>>,
        inventory: Inventory,
    ) -> Result<Self, Refusal> {
        match call!(caller, ffi::Init, "nvmlInit_v2") {
            Ok(ffi::SUCCESS) => {}
            Ok(code) => return Err(Refusal::Refused(NvmlStatus(code))),
            Err(why) => return Err(Refusal::NoLibrary(why.to_string())),
        }
        let mut session = Self {
            caller,
            about,
            gpus: Vec::new(),
            nameless: Vec::new(),
            avoided: inventory.avoided,
            closely: inventory.closely,
            count: 0,
            driver: Reading::Absent,
            events: ptr::null_mut(),
            mediums: 0,
            slows: 0,
            lost_for: 0,
            is_fresh: inventory.closely,
            gpm: gpm::request(),
            room: Vec::new(),
        };
        session.open(&inventory.known)?;
        Ok(session)
    }

    pub(super) fn inventory(&mut self, answer: &mut Answer) {
        answer.driver = self.driver.value().cloned();
        answer.cuda = if self.closely { self.cuda() } else { None };
        (answer.count, answer.shut) = self.counted();
        answer.inventory = Some(self.gpus.iter().map(|gpu| gpu.identity.clone()).collect());
    }

    /// How many GPUs NVML lists and opens, and which ones do not open.
    fn counted(&self) -> (Option<Reading<u32>>, Option<String>) {
        let gpus: Vec<(u32, NvmlStatus)> =
            self.shut().map(|(index, code)| (index, NvmlStatus(code))).collect();
        if gpus.is_empty() {
            return (Some(Reading::Value(self.count)), None);
        }
        let may_not = gpus.iter().any(|(_, status)| *status == NvmlStatus::NO_PERMISSION);
        let shut = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
        let why = ReadError::GpusNotOpened { gpus };
        // Without permission to open a GPU, whether it would open is unknown.
        if may_not {
            return (Some(Reading::Unreadable(why)), None);
        }
        (Some(Reading::Value(self.count.saturating_sub(shut))), Some(why.to_string()))
    }

    pub(super) fn values(&mut self, tier: Tier, answer: &mut Answer) -> Result<(), Refusal> {
        match tier {
            Tier::Fast => answer.xids = self.xids(),
            Tier::Medium => {
                self.reopen();
                answer.processes = Some(Vec::new());
            }
            Tier::Slow => {
                self.recount()?;
                self.inventory(answer);
            }
            Tier::Rare => self.gpus.iter_mut().for_each(Gpu::forget),
        }
        for place in 0..self.gpus.len() {
            let read = self.read(place, tier, answer.processes.as_mut(), &mut answer.close);
            answer.gpus.push(read.map_err(|code| Refusal::Refused(NvmlStatus(code)))?);
        }
        self.about.set(None);
        if tier == Tier::Medium {
            self.mediums = self.mediums.wrapping_add(1);
        }
        if tier == Tier::Slow {
            self.slows = self.slows.wrapping_add(1);
        }
        Ok(())
    }

    /// Reads one tier of one GPU. `Err` is a failure of the whole library.
    fn read(
        &mut self,
        place: usize,
        tier: Tier,
        processes: Option<&mut Vec<GpuProcess>>,
        close: &mut Vec<CloseLook>,
    ) -> Result<GpuValues, Return> {
        let held = HeldFields::of_driver(self.driver.value().map_or("", String::as_str));
        let every = if self.closely { CLOSE_EVERY } else { DEAR_EVERY };
        let with_activity = self.mediums.is_multiple_of(every);
        let gpu = &mut self.gpus[place];
        self.about.set(Some(gpu.identity.index));
        let uuid = gpu.identity.uuid.clone();
        let mut nothing = Vec::new();
        let processes = processes.unwrap_or(&mut nothing);
        let from = processes.len();
        let (mut own, mut links) = (Values::default(), Vec::new());
        let read = match gpu.handle {
            Err(code) => Err(Trouble::Gpu(code)),
            Ok(device) => {
                let mut reader = Reader { caller: &mut self.caller, device, gpu, own, links };
                let outcome = match tier {
                    Tier::Fast => reader.fast(),
                    Tier::Medium => reader.medium(&mut Medium {
                        held,
                        with_dear: !self.closely && self.mediums.is_multiple_of(DEAR_EVERY),
                        with_activity,
                        gpm: &mut self.gpm,
                        room: &mut self.room,
                        processes,
                    }),
                    Tier::Slow => reader.slow(self.slows.is_multiple_of(ENERGY_EVERY)),
                    Tier::Rare => reader.rare(!self.closely),
                };
                if self.closely && tier == Tier::Medium && outcome.is_ok() {
                    close.push(reader.close_look());
                }
                (own, links) = (reader.own, reader.links);
                outcome
            }
        };
        let gpu = &mut self.gpus[place];
        gpu.trouble[tier as usize] = match read {
            Ok(()) => None,
            Err(Trouble::Gpu(code)) => Some(code),
            Err(Trouble::Library(code)) => return Err(code),
        };
        let trouble = gpu.trouble[tier as usize];
        if trouble.is_some() {
            // Values read before the GPU failed are incomplete; drop them.
            (own, links) = (Values::default(), Vec::new());
            processes.truncate(from);
        }
        if tier == Tier::Fast || trouble.is_some() {
            let found = |holds: fn(Return) -> bool| {
                gpu.trouble.iter().flatten().copied().find(|code| holds(*code))
            };
            let flag = |found: Option<Return>| Reading::Value(f64::from(u8::from(found.is_some())));
            let (lost, reset) = (found(is_lost), found(|code| code == ffi::RESET_REQUIRED));
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
        let trouble = trouble.map(|code| match code {
            AVOIDED => ReadError::CallStuck { avoid_s: None },
            code => ReadError::nvml(code),
        });
        Ok(GpuValues { gpu: uuid, own, links, trouble })
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
