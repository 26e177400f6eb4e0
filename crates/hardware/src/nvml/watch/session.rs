//! NVML, initialised: its GPUs, events, and what is kept between two requests.

use std::cell::Cell;
use std::ffi::{CString, c_uint};
use std::ptr;

use farrier_facts::node::Reading;
use farrier_fleet::health::observation::{GpuIdentity, GpuUuid};
use farrier_fleet::health::signal::Signal;

use crate::nvml::caller::{Caller, TEXT_BYTES, call, length, outcome, text_of};
use crate::nvml::ffi::{self, Device, EventSet, GpmMetricsGet, ProcessInfo, Return};
use crate::nvml::library::DEVICES_MAX;

use super::fields::HeldFields;
use super::reader::{Called, Gpu, Reader, Trouble};
use super::tiers::Medium;
use super::wire::{Answer, GpuValues, Inventory, Refusal, Values};
use super::{GpuProcess, Tier, gpm};

/// The times that cost half a millisecond each are read with every third medium request: every thirty seconds.
const DEAR_EVERY: u32 = 3;
/// How many slow requests go by between two that ask for the energy.
const ENERGY_EVERY: u32 = 5;

/// Events that are taken in one request: more come with the next one.
const EVENTS_MAX: usize = 64;

/// No code of NVML's: the GPU is left alone.
const AVOIDED: Return = Return::MAX;

/// A library that works.
pub(super) struct Session<'a> {
    caller: Caller<'a>,
    /// The GPU that a call is about, for its name in case it hangs.
    about: &'a Cell<Option<u32>>,
    gpus: Vec<Gpu>,
    /// Numbers of GPUs to leave alone.
    avoided: Vec<u32>,
    count: Reading<u32>,
    driver: Reading<String>,
    events: EventSet,
    mediums: u32,
    slows: u32,
    /// Slow requests for which a GPU has been lost.
    lost_for: u32,
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
            Ok(code) => return Err(Refusal::Refused(ffi::error_name(code))),
            Err(why) => return Err(Refusal::NoLibrary(why.to_owned())),
        }
        let mut session = Self {
            caller,
            about,
            gpus: Vec::new(),
            avoided: inventory.avoided,
            count: Reading::Absent,
            driver: Reading::Absent,
            events: ptr::null_mut(),
            mediums: 0,
            slows: 0,
            lost_for: 0,
            gpm: gpm::request(),
            room: Vec::new(),
        };
        session.open(&inventory.known)?;
        Ok(session)
    }

    /// What is known of the GPUs.
    pub(super) fn inventory(&self, answer: &mut Answer) {
        answer.driver = self.driver.value().cloned();
        answer.count = Some(self.count.clone());
        answer.inventory = Some(self.gpus.iter().map(|gpu| gpu.identity.clone()).collect());
    }

    /// Reads a tier.
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
            let read = self.read(place, tier, answer.processes.as_mut());
            answer.gpus.push(read.map_err(|code| Refusal::Refused(ffi::error_name(code)))?);
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

    /// Reads a tier of one GPU; an error is the library's.
    fn read(
        &mut self,
        place: usize,
        tier: Tier,
        processes: Option<&mut Vec<GpuProcess>>,
    ) -> Result<GpuValues, Return> {
        let held = HeldFields::of_driver(self.driver.value().map_or("", String::as_str));
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
                        with_dear: self.mediums.is_multiple_of(DEAR_EVERY),
                        gpm: &mut self.gpm,
                        room: &mut self.room,
                        processes,
                    }),
                    Tier::Slow => reader.slow(self.slows.is_multiple_of(ENERGY_EVERY)),
                    Tier::Rare => reader.rare(),
                };
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
            // What was read before the GPU fell silent is half a picture.
            (own, links) = (Values::default(), Vec::new());
            processes.truncate(from);
        }
        if tier == Tier::Fast || trouble.is_some() {
            let mut put = |signal, holds: fn(Return) -> bool| {
                let any = gpu.trouble.iter().flatten().any(|code| holds(*code));
                own.put(signal, Reading::Value(f64::from(u8::from(any))));
            };
            put(Signal::GpuLost, is_lost);
            put(Signal::GpuResetRequired, |code| code == ffi::RESET_REQUIRED);
        }
        let trouble = trouble.map(|code| match code {
            AVOIDED => "it is not asked: a call about it did not return".to_owned(),
            code => ffi::error_name(code),
        });
        Ok(GpuValues { gpu: uuid, own, links, trouble })
    }

    /// Xids since the last look.
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

    /// Counts the GPUs and opens them all.
    fn open(&mut self, known: &[GpuIdentity]) -> Result<(), Refusal> {
        self.driver = self.caller.system_text("nvmlSystemGetDriverVersion");
        self.count = self.ask_count()?;
        let count = self.count.value().copied().unwrap_or(0).min(DEVICES_MAX);
        let mut gpus: Vec<Gpu> = Vec::new();
        for index in 0..count {
            self.about.set(Some(index));
            if let Some(gpu) = self.open_one(index, known)? {
                // NVML lists no GPU twice; a known one whose number went to another is that other.
                if gpus.iter().all(|other| other.identity.uuid != gpu.identity.uuid) {
                    gpus.push(gpu);
                }
            }
        }
        self.about.set(None);
        for gpu in &mut gpus {
            let before = self.gpus.iter().find(|it| it.identity.uuid == gpu.identity.uuid);
            gpu.links_wired = before.map_or(0, |before| before.links_wired);
        }
        self.gpus = gpus;
        self.watch_events();
        Ok(())
    }

    fn ask_count(&mut self) -> Result<Reading<u32>, Refusal> {
        let mut count: c_uint = 0;
        let called = call!(self.caller, ffi::Count, "nvmlDeviceGetCount_v2", &raw mut count);
        if let Ok(code) = called
            && let Some(Trouble::Library(code)) = Trouble::of(code)
        {
            return Err(Refusal::Refused(ffi::error_name(code)));
        }
        Ok(outcome(called, || count))
    }

    /// Opens a GPU by its number. One that cannot be opened and was not known before has no name to be called by.
    fn open_one(&mut self, index: u32, known: &[GpuIdentity]) -> Result<Option<Gpu>, Refusal> {
        let remembered = |code| {
            let known = known.iter().find(|identity| identity.index == index);
            known.map(|identity| Gpu::of(identity.clone(), Err(code)))
        };
        if self.avoided.contains(&index) {
            return Ok(remembered(AVOIDED));
        }
        let mut device: Device = ptr::null_mut();
        let out = &raw mut device;
        let called =
            call!(self.caller, ffi::HandleByIndex, "nvmlDeviceGetHandleByIndex_v2", index, out);
        let identified = match called {
            Ok(ffi::SUCCESS) => self.identify(index, device),
            other => Err(other),
        };
        match identified {
            Ok(identity) => Ok(Some(Gpu::of(identity, Ok(device)))),
            Err(Err(why)) => Err(Refusal::NoLibrary(why.to_owned())),
            Err(Ok(code)) => {
                if let Some(Trouble::Library(code)) = Trouble::of(code) {
                    return Err(Refusal::Refused(ffi::error_name(code)));
                }
                Ok(remembered(code))
            }
        }
    }

    fn identify(&mut self, index: u32, device: Device) -> Result<GpuIdentity, Called> {
        let uuid = self.uuid(device)?;
        let pci = self.caller.pci(device).value().map(|pci| {
            // The kernel's form; NVML's has eight digits of the domain, and capitals.
            format!("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device)
        });
        Ok(GpuIdentity {
            uuid,
            index,
            minor: self.caller.number(device, "nvmlDeviceGetMinorNumber").value().copied(),
            pci: pci.unwrap_or_default(),
            name: self
                .caller
                .device_text(device, "nvmlDeviceGetName")
                .value()
                .cloned()
                .unwrap_or_default(),
        })
    }

    fn uuid(&mut self, device: Device) -> Result<GpuUuid, Called> {
        let mut text = [0; TEXT_BYTES];
        let room = length(&text);
        let out = text.as_mut_ptr();
        match call!(self.caller, ffi::DeviceText, "nvmlDeviceGetUUID", device, out, room) {
            Ok(ffi::SUCCESS) => Ok(GpuUuid(text_of(&text))),
            other => Err(other),
        }
    }

    /// Makes a set of events with all GPUs in it. Without one the kernel log still tells of every Xid.
    fn watch_events(&mut self) {
        let mut set: EventSet = ptr::null_mut();
        let called = call!(self.caller, ffi::EventsCreate, "nvmlEventSetCreate", &raw mut set);
        if called != Ok(ffi::SUCCESS) {
            return;
        }
        self.events = set;
        for gpu in &self.gpus {
            if let Ok(device) = gpu.handle {
                let _ = register(&mut self.caller, device, set);
            }
        }
    }

    /// Tries GPUs that do not answer again.
    fn reopen(&mut self) {
        for gpu in &mut self.gpus {
            let is_well = gpu.handle.is_ok() && gpu.trouble.iter().all(Option::is_none);
            if is_well || gpu.handle == Err(AVOIDED) {
                continue;
            }
            self.about.set(Some(gpu.identity.index));
            let Ok(uuid) = CString::new(gpu.identity.uuid.0.as_str()) else { continue };
            let mut device: Device = ptr::null_mut();
            let out = &raw mut device;
            let name = uuid.as_ptr();
            match call!(self.caller, ffi::HandleByUuid, "nvmlDeviceGetHandleByUUID", name, out) {
                Ok(ffi::SUCCESS) if gpu.handle != Ok(device) => {
                    gpu.gpm.free(&mut self.caller);
                    gpu.forget();
                    gpu.handle = Ok(device);
                    let _ = register(&mut self.caller, device, self.events);
                }
                Ok(code) if code != ffi::SUCCESS && gpu.handle.is_err() => gpu.handle = Err(code),
                _ => {}
            }
        }
        self.about.set(None);
    }

    /// Counts the GPUs anew, and starts anew where they are others than before.
    ///
    /// A GPU that was reset stays lost for a client that had it open, so one that is lost is a reason to start anew
    /// too, though less and less often: each attempt at a broken GPU leaves lines in the kernel log.
    fn recount(&mut self) -> Result<(), Refusal> {
        let before = self.count.clone();
        self.count = self.ask_count()?;
        let is_lost = self.gpus.iter().any(|gpu| {
            let opened = gpu.handle.is_ok() || gpu.handle == Err(AVOIDED);
            !opened || gpu.trouble.iter().flatten().any(|code| is_lost(*code))
        });
        self.lost_for = if is_lost { self.lost_for.saturating_add(1) } else { 0 };
        let again = self.lost_for.is_power_of_two()
            || self.lost_for != 0 && self.lost_for.is_multiple_of(64);
        if self.count == before && !again && self.uuids_hold() {
            return Ok(());
        }
        let known: Vec<GpuIdentity> = self.gpus.iter().map(|gpu| gpu.identity.clone()).collect();
        self.shut_down();
        match call!(self.caller, ffi::Init, "nvmlInit_v2") {
            Ok(ffi::SUCCESS) => self.open(&known),
            Ok(code) => Err(Refusal::Refused(ffi::error_name(code))),
            Err(why) => Err(Refusal::NoLibrary(why.to_owned())),
        }
    }

    /// Whether each number still belongs to the GPU that had it.
    fn uuids_hold(&mut self) -> bool {
        (0..self.gpus.len()).all(|place| {
            let gpu = &self.gpus[place];
            let (index, handle) = (gpu.identity.index, gpu.handle);
            self.about.set(Some(index));
            let Ok(device) = handle else { return true };
            match self.uuid(device) {
                Ok(uuid) => uuid == self.gpus[place].identity.uuid,
                // What cannot be read is no other GPU.
                Err(_) => true,
            }
        })
    }

    fn shut_down(&mut self) {
        self.about.set(None);
        for gpu in &mut self.gpus {
            gpu.gpm.free(&mut self.caller);
        }
        if !self.events.is_null() {
            let _ = call!(self.caller, ffi::EventsFree, "nvmlEventSetFree", self.events);
            self.events = ptr::null_mut();
        }
        let _ = call!(self.caller, ffi::Init, "nvmlShutdown");
    }
}

fn is_lost(code: Return) -> bool {
    matches!(code, ffi::GPU_IS_LOST | ffi::GPU_NOT_FOUND)
}

fn register(nvml: &mut Caller<'_>, device: Device, set: EventSet) -> Called {
    if set.is_null() {
        return Ok(ffi::NOT_SUPPORTED);
    }
    call!(nvml, ffi::EventsRegister, "nvmlDeviceRegisterEvents", device, ffi::EVENT_XID, set)
}
