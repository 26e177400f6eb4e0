//! Ports of network adapters for jobs: `InfiniBand`, `RoCE` and EFA.
//!
//! Reading `state` or a counter is a command to the adapter's firmware, so only files that rules
//! need are read. A counter that fails is skipped for an hour, because on some adapters each read
//! of a counter that the firmware does not expose prints `ACCESS_REG ... failed` into the kernel
//! log (leptonai/gpud#1164).

use std::collections::{BTreeMap, BTreeSet};

use farrier_facts::node::{PortHealth, ReadError, Reading};
use farrier_fleet::health::{Sample, Signal, Subject};

use super::{count, flag, push_node, required, unexpected_content};
use crate::root::Root;

const ADAPTERS: &str = "/sys/class/infiniband";

/// Number of reads after which a missing port counts as gone. Reloading a driver removes its ports
/// for a moment.
const MISSED_READS: u32 = 3;

/// Number of reads for which a failed counter is skipped: one hour at one read per ten seconds.
const SKIPPED_READS: u32 = 360;

/// Maximum ports. A node has at most some tens, but repeated renaming of an adapter must not
/// exhaust the memory.
const PORTS_MAX: usize = 512;

/// Counters of a port, with their directories and files. Linux
/// `Documentation/ABI/stable/sysfs-class-infiniband`, `drivers/infiniband/hw/mlx5/counters.c`,
/// `drivers/infiniband/hw/efa/efa_verbs.c`. The efa driver moved the command counters from the port
/// to the device in 5.14.
const COUNTERS: [(Signal, CounterDir, &str); 14] = [
    (Signal::NicLinkDowned, CounterDir::Port, "link_downed"),
    (Signal::NicLinkErrorRecovery, CounterDir::Port, "link_error_recovery"),
    (Signal::NicSymbolError, CounterDir::Port, "symbol_error"),
    (Signal::NicBufferOverrun, CounterDir::Port, "excessive_buffer_overrun_errors"),
    (Signal::NicLinkIntegrity, CounterDir::Port, "local_link_integrity_errors"),
    (Signal::NicReceiveErrors, CounterDir::Port, "port_rcv_errors"),
    (Signal::NicTransmitDiscards, CounterDir::Port, "port_xmit_discards"),
    (Signal::NicRnrNakRetry, CounterDir::Hardware, "rnr_nak_retry_err"),
    (Signal::NicRoceSlowRestart, CounterDir::Hardware, "roce_slow_restart"),
    (Signal::NicEfaReceiveDrops, CounterDir::Hardware, "rx_drops"),
    (Signal::NicEfaUnresponsiveRemote, CounterDir::Hardware, "unresponsive_remote_events"),
    (Signal::NicEfaImpairedRemote, CounterDir::Hardware, "impaired_remote_conn_events"),
    (Signal::NicEfaNoCompletion, CounterDir::Device, "no_completion_cmds"),
    (Signal::NicEfaCommandErrors, CounterDir::Device, "cmds_err"),
];

/// The directory of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CounterDir {
    /// `ports/1/counters`.
    Port,
    /// `ports/1/hw_counters`.
    Hardware,
    /// `hw_counters`, or `ports/1/hw_counters` with an older driver.
    Device,
}

/// Reads the ports once, without monitoring them.
pub(crate) fn read_once(root: &Root) -> Reading<Vec<PortHealth>> {
    let mut nics = Nics::new(None, 0, BTreeSet::new(), Vec::new());
    nics.find(root).map(|()| {
        let port = |(name, port): (&PortName, &Port)| PortHealth {
            device: name.0.clone(),
            port: name.1,
            kind: format!("{} {}", port.class.model, port.class.network).trim().to_owned(),
            up: state(root, name).and_then(|active| link_up(root, name).map(|up| active && up)),
            went_down: counter(root, name, CounterDir::Port, "link_downed")
                .map(|times| times > 0.0),
        };
        nics.ports.iter().map(port).collect()
    })
}

/// A port by device and number.
type PortName = (String, u32);

/// State of all ports.
#[derive(Debug)]
pub(super) struct Nics {
    expected: Option<u32>,
    ignored: Vec<String>,
    ports: BTreeMap<PortName, Port>,
    /// Ports that an earlier collector saw in use.
    used_before: BTreeSet<PortName>,
    most_active: u32,
}

#[derive(Debug, Default)]
struct Port {
    /// Consecutive reads in which the port was missing.
    missed: u32,
    /// Whether the physical link was up at the last read. `None` if that was unreadable.
    link_up: Option<bool>,
    active: Option<bool>,
    /// Whether the link was ever up. A port that never was up may have no cable, which is not a
    /// fault.
    used: bool,
    class: RateClass,
    counters: BTreeMap<Signal, SkippedCounter>,
    /// How many reads found the port down although the read before found it active.
    falls: u32,
    loss_source: Option<LossSource>,
}

/// What counts how often a port loses its link. A read every second misses a short loss.
#[derive(Debug)]
enum LossSource {
    /// This file of the kernel, for an Ethernet port.
    Carrier(String),
    /// The adapter's own counter.
    Adapter,
    /// The agent counts the losses that its own reads show, because there is no other counter. This
    /// applies to EFA.
    Reads,
}

/// Ports that should run at the same rate, because they are of one model on one kind of network. A
/// node may have other adapters for storage.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct RateClass {
    /// `hca_type`, such as `MT4129`. Empty for adapters of other vendors.
    model: String,
    /// `link_layer`: `InfiniBand` or `Ethernet`.
    network: String,
}

impl RateClass {
    fn read(root: &Root, name: &PortName) -> Self {
        // Unreadable values form a class of their own.
        let word = |path: String| root.trimmed(&path).value().cloned().unwrap_or_default();
        Self {
            model: word(format!("{ADAPTERS}/{}/hca_type", name.0)),
            network: word(format!("{}/link_layer", dir(name))),
        }
    }
}

/// A counter that failed, with the reading that is reported while it is skipped.
#[derive(Debug)]
struct SkippedCounter {
    reading: Reading<f64>,
    reads_left: u32,
}

impl Nics {
    /// `most` is the highest number of active ports that an earlier collector saw at once. An
    /// expected count overrides `most`.
    pub(super) fn new(
        expected: Option<u32>,
        most: u32,
        used_before: BTreeSet<PortName>,
        ignored: Vec<String>,
    ) -> Self {
        let most_active = expected.unwrap_or(most);
        Self { expected, ignored, ports: BTreeMap::new(), used_before, most_active }
    }

    /// Ports known to have been in use.
    pub(super) fn used(&self) -> BTreeSet<PortName> {
        let now = self.ports.iter().filter(|(_, port)| port.used).map(|(name, _)| name);
        self.used_before.iter().chain(now).take(PORTS_MAX).cloned().collect()
    }

    pub(super) fn most_active(&self) -> u32 {
        self.most_active
    }

    pub(super) fn ignored(&self) -> &[String] {
        &self.ignored
    }

    /// Reads only whether the known ports are active, which is one file per port.
    pub(super) fn read_states(&mut self, root: &Root, samples: &mut Vec<Sample>) {
        for (name, port) in &mut self.ports {
            let active = state(root, name).map(|active| active && port.link_up != Some(false));
            port.push_state(name, active, samples);
        }
        self.push_counts(samples);
    }

    /// Reads everything and discovers new adapters.
    pub(super) fn read(&mut self, root: &Root, samples: &mut Vec<Sample>) {
        // If the sysfs class is absent, there are no adapters, and every known port counts as
        // missing below.
        if let Reading::Unreadable(why) = self.find(root) {
            return self.push_unreadable(&why, samples);
        }
        let mut answering = Vec::new();
        for (name, port) in &mut self.ports {
            let active = state(root, name).and_then(|active| {
                let link = link_up(root, name);
                port.link_up = link.value().copied();
                link.map(|up| active && up)
            });
            // If the firmware does not answer, each further read would block again.
            let answers = matches!(active, Reading::Value(_));
            if answers && !port.used {
                // The link may have gone down before the agent started.
                let downed = counter(root, name, CounterDir::Port, "link_downed");
                port.used = downed.value().is_some_and(|times| *times > 0.0);
            }
            port.push_state(name, active, samples);
            if answers {
                answering.push(name.clone());
            }
        }
        let compared = self.compared();
        for name in answering {
            if let Some(port) = self.ports.get_mut(&name) {
                let compared = compared.as_ref() == Some(&port.class);
                port.push_rate_and_counters(root, &name, compared, samples);
            }
        }
        self.push_counts(samples);
    }

    /// The class with the most ports in use. Only its ports are compared with each other.
    fn compared(&self) -> Option<RateClass> {
        let mut counts: BTreeMap<&RateClass, u32> = BTreeMap::new();
        for port in self.ports.values().filter(|port| port.used) {
            *counts.entry(&port.class).or_default() += 1;
        }
        counts.into_iter().max_by_key(|(_, count)| *count).map(|(class, _)| class.clone())
    }

    /// Discovers ports that are not known yet.
    fn find(&mut self, root: &Root) -> Reading<()> {
        let devices = match root.list(ADAPTERS) {
            Reading::Value(devices) => devices,
            Reading::Absent => return Reading::Absent,
            Reading::Unreadable(why) => return Reading::Unreadable(why),
        };
        for device in devices.into_iter().filter(|device| !self.ignored.contains(device)) {
            let ports = match root.list(&format!("{ADAPTERS}/{device}/ports")) {
                Reading::Value(ports) => ports,
                // The adapter disappeared meanwhile.
                Reading::Absent => continue,
                Reading::Unreadable(why) => return Reading::Unreadable(why),
            };
            for port in ports.iter().filter_map(|port| port.parse().ok()) {
                let name = (device.clone(), port);
                if self.ports.len() < PORTS_MAX && !self.ports.contains_key(&name) {
                    let class = RateClass::read(root, &name);
                    let used = self.used_before.contains(&name);
                    self.ports.insert(name, Port { used, class, ..Port::default() });
                }
            }
        }
        Reading::Value(())
    }

    fn push_counts(&mut self, samples: &mut Vec<Sample>) {
        let expected = self.expected.unwrap_or(self.most_active);
        if self.ports.is_empty() && expected == 0 {
            // A node without network ports for jobs has no counts to compare.
            push_node(samples, Signal::NodeNicsActive, Reading::Absent);
            push_node(samples, Signal::NodeNicsExpected, Reading::Absent);
            return;
        }
        let active = self.ports.values().filter(|port| port.active == Some(true)).count();
        let active = u32::try_from(active).unwrap_or(u32::MAX);
        let unknown = self.ports.iter().find(|(_, port)| port.active.is_none());
        self.most_active = self.most_active.max(active);
        let reading = match unknown {
            None => Reading::Value(f64::from(active)),
            Some(((device, port), _)) => Reading::Unreadable(ReadError::unavailable(format!(
                "failed to read the state of port {port} of `{device}`"
            ))),
        };
        push_node(samples, Signal::NodeNicsActive, reading);
        let expected = f64::from(self.expected.unwrap_or(self.most_active));
        push_node(samples, Signal::NodeNicsExpected, Reading::Value(expected));
    }

    fn push_unreadable(&mut self, why: &ReadError, samples: &mut Vec<Sample>) {
        for (name, port) in &mut self.ports {
            port.active = None;
            let reading = Reading::Unreadable(why.clone());
            samples.push(sample(name, Signal::NicActive, reading));
        }
        push_node(samples, Signal::NodeNicsActive, Reading::Unreadable(why.clone()));
    }
}

impl Port {
    /// Reports presence and activity. `Absent` means that the port's directory is gone.
    fn push_state(&mut self, name: &PortName, active: Reading<bool>, samples: &mut Vec<Sample>) {
        if active == Reading::Absent {
            self.active = Some(false);
            self.missed = self.missed.saturating_add(1);
            if self.missed >= MISSED_READS {
                samples.push(sample(name, Signal::NicPresent, Reading::Value(0.0)));
                let why = ReadError::unavailable("the adapter is gone");
                samples.push(sample(name, Signal::NicActive, Reading::Unreadable(why)));
            }
            return;
        }
        self.missed = 0;
        let was_active = self.active == Some(true);
        self.active = active.value().copied();
        self.falls += u32::from(was_active && self.active == Some(false));
        self.used |= self.active == Some(true);
        samples.push(sample(name, Signal::NicPresent, Reading::Value(1.0)));
        let reading = match active {
            Reading::Value(false) if !self.used => Reading::Absent,
            other => other.map(flag),
        };
        samples.push(sample(name, Signal::NicActive, reading));
    }

    /// How often the port lost its link. `downed` is the adapter's counter. Later reads use the
    /// same source, because another source would have another count.
    fn link_losses(&mut self, root: &Root, name: &PortName, downed: Reading<f64>) -> Reading<f64> {
        if self.loss_source.is_none() {
            let interface = carrier_file(root, name).filter(|_| self.class.network == "Ethernet");
            self.loss_source = match (interface, &downed) {
                (Some(path), _) => Some(LossSource::Carrier(path)),
                (None, Reading::Value(_)) => Some(LossSource::Adapter),
                (None, Reading::Absent) => Some(LossSource::Reads),
                (None, Reading::Unreadable(_)) => None,
            };
        }
        match &self.loss_source {
            Some(LossSource::Carrier(path)) => required(value(root, path), path),
            Some(LossSource::Reads) => Reading::Value(f64::from(self.falls)),
            Some(LossSource::Adapter) | None => required(downed, "counters/link_downed"),
        }
    }

    /// `compared` says whether the port's rate is compared with the rates of other ports. The rate
    /// of a port that is down means nothing.
    fn push_rate_and_counters(
        &mut self,
        root: &Root,
        name: &PortName,
        compared: bool,
        samples: &mut Vec<Sample>,
    ) {
        let has_rate = compared && self.active == Some(true);
        let rate = if has_rate { rate(root, name) } else { Reading::Absent };
        samples.push(sample(name, Signal::NicRate, rate));
        let mut downed = Reading::Absent;
        for (signal, place, file) in COUNTERS {
            if let Some(counter) = self.counters.get_mut(&signal).filter(|left| left.reads_left > 0)
            {
                counter.reads_left -= 1;
                if signal == Signal::NicLinkDowned {
                    downed = counter.reading.clone();
                }
                samples.push(sample(name, signal, counter.reading.clone()));
                continue;
            }
            let reading = counter(root, name, place, file);
            if matches!(reading, Reading::Value(_)) {
                self.counters.remove(&signal);
            } else {
                let left = SkippedCounter { reading: reading.clone(), reads_left: SKIPPED_READS };
                self.counters.insert(signal, left);
            }
            if signal == Signal::NicLinkDowned {
                downed = reading.clone();
            }
            samples.push(sample(name, signal, reading));
        }
        let losses = self.link_losses(root, name, downed);
        samples.push(sample(name, Signal::NicLinkLosses, losses));
    }
}

fn sample((device, port): &PortName, signal: Signal, reading: Reading<f64>) -> Sample {
    let subject = Subject::Nic { device: device.clone(), port: *port };
    Sample { subject, signal, reading, note: None }
}

fn dir((device, port): &PortName) -> String {
    format!("{ADAPTERS}/{device}/ports/{port}")
}

/// The file with the carrier losses of the port's network interface (Linux
/// `Documentation/ABI/testing/sysfs-class-net`). `None` if the adapter has no or several
/// interfaces, because then it is unknown which interface belongs to the port.
fn carrier_file(root: &Root, name: &PortName) -> Option<String> {
    let dir = format!("{ADAPTERS}/{}/device/net", name.0);
    let interfaces = root.list(&dir).value().cloned()?;
    let [interface] = &interfaces[..] else { return None };
    let path = format!("{dir}/{interface}/carrier_down_count");
    value(root, &path).value().is_some().then_some(path)
}

/// Whether the state is `4: ACTIVE`.
fn state(root: &Root, name: &PortName) -> Reading<bool> {
    numbered(root, &format!("{}/state", dir(name))).map(|state| state == 4)
}

/// Whether the physical state is `5: LinkUp`.
fn link_up(root: &Root, name: &PortName) -> Reading<bool> {
    match numbered(root, &format!("{}/phys_state", dir(name))) {
        // Every driver has `state` and `phys_state`. If only one exists, the port disappeared
        // between the reads.
        Reading::Absent => {
            Reading::Unreadable(ReadError::unavailable("the port disappeared during the read"))
        }
        other => other.map(|state| state == 5),
    }
}

/// A sysfs state: a number, a colon and a word.
fn numbered(root: &Root, path: &str) -> Reading<u32> {
    root.trimmed(path).and_then(|word| {
        let number = word.split(':').next().and_then(|number| number.trim().parse().ok());
        number.map_or_else(|| unexpected_content(path), Reading::Value)
    })
}

/// The number in `400 Gb/sec (4X NDR)`.
fn rate(root: &Root, name: &PortName) -> Reading<f64> {
    let path = format!("{}/rate", dir(name));
    root.trimmed(&path).and_then(|word| {
        let rate = word.split(' ').next().and_then(|rate| rate.parse().ok());
        rate.map_or_else(|| unexpected_content(&path), Reading::Value)
    })
}

fn counter(root: &Root, name: &PortName, place: CounterDir, file: &str) -> Reading<f64> {
    let hardware = || format!("{}/hw_counters/{file}", dir(name));
    let path = match place {
        CounterDir::Port => format!("{}/counters/{file}", dir(name)),
        CounterDir::Hardware => hardware(),
        CounterDir::Device => format!("{ADAPTERS}/{}/hw_counters/{file}", name.0),
    };
    match value(root, &path) {
        Reading::Absent if place == CounterDir::Device => value(root, &hardware()),
        reading => reading,
    }
}

fn value(root: &Root, path: &str) -> Reading<f64> {
    root.trimmed(path).and_then(|word| match word.parse() {
        Ok(number) => Reading::Value(count(number)),
        // `N/A (no PMA)`: the adapter does not have this counter.
        Err(_) if word.starts_with("N/A") => Reading::Absent,
        Err(_) => unexpected_content(path),
    })
}
