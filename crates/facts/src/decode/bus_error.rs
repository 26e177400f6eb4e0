//! PCIe errors: device and class.

use super::pci::PciAddress;
use crate::xid::{BusDevice, BusErrorClass};

/// A line of the kernel's AER driver that reports a device error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BusErrorLine {
    pub(super) reporter: Reporter,
    pub(super) address: PciAddress,
    pub(super) class: BusErrorClass,
}

/// Which driver printed the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reporter {
    /// The device's own driver.
    Driver(BusDevice),
    /// The port above a device. The port does not know what kind of device it is.
    UpstreamPort,
    /// The driver of a device that is no GPU, NIC or port.
    OtherDriver,
}

/// The code of an event. Errors of ports have several sources besides AER.
pub(super) fn event_code(device: BusDevice, class: BusErrorClass) -> String {
    match device {
        BusDevice::Port => format!("pcie.port.{class}"),
        BusDevice::Gpu | BusDevice::Nic => format!("aer.{device}.{class}"),
    }
}

/// Parses `nvidia 0000:17:00.0: PCIe Bus Error: severity=...`,
/// `pcieport 0000:16:01.0: AER: Uncorrected (Fatal) error received: 0000:17:00.0`,
/// `pcieport 0000:16:01.0: DPC: containment event, ...` and
/// `pcieport 0000:16:01.0: pciehp: Slot(0): Link Down`. `None` for detail lines and for corrected
/// errors of ports.
pub(super) fn bus_error_line(line: &str) -> Option<BusErrorLine> {
    let class = class(line)?;
    let mut words = line.split_whitespace();
    let mut driver = words.next()?;
    let (driver, address) = loop {
        let word = words.next()?;
        let address = word.strip_suffix(':').filter(|word| word.contains('.'));
        match address.and_then(PciAddress::find) {
            Some(address) => break (driver, address),
            None => driver = word,
        }
    };
    let driver = driver.rsplit([';', ']', '"']).next()?;
    let reporter = match driver {
        "nvidia" | "nvidia-nvswitch" => Reporter::Driver(BusDevice::Gpu),
        "mlx5_core" => Reporter::Driver(BusDevice::Nic),
        "pcieport" => return port_error(line, address, class),
        // A port without its driver.
        "pci" if class == BusErrorClass::Contained => return port_error(line, address, class),
        _ if class == BusErrorClass::Corrected => return None,
        _ => Reporter::OtherDriver,
    };
    Some(BusErrorLine { reporter, address, class })
}

/// An error that a port reports: of a device below it, or of its own link.
fn port_error(line: &str, port: PciAddress, class: BusErrorClass) -> Option<BusErrorLine> {
    let is_message = line.contains("error received") || line.contains("error message received");
    if !is_message {
        let reporter = Reporter::Driver(BusDevice::Port);
        let is_uncorrected = class != BusErrorClass::Corrected;
        return is_uncorrected.then_some(BusErrorLine { reporter, address: port, class });
    }
    let (_, source) = line.split_once("received: ").or_else(|| line.split_once(" from "))?;
    let address = PciAddress::find(source)?;
    // Details of the port's own error follow on the next line.
    let reporter = Reporter::UpstreamPort;
    (address != port).then_some(BusErrorLine { reporter, address, class })
}

fn class(line: &str) -> Option<BusErrorClass> {
    if line.contains("DPC: containment event") {
        return Some(BusErrorClass::Contained);
    }
    if line.contains("pciehp: ") {
        return line.trim_end().ends_with(": Link Down").then_some(BusErrorClass::LinkDown);
    }
    if !line.contains("AER: ") && !line.contains("PCIe Bus Error") {
        return None;
    }
    let is_report = line.contains("severity=")
        || line.contains("error received")
        || line.contains("error message received");
    // Kernels differ in the first letter.
    let is_unrecovered = ["can't recover", "Can't recover", "evice recovery failed"]
        .iter()
        .any(|text| line.contains(text));
    if is_unrecovered {
        Some(BusErrorClass::Unrecovered)
    } else if !is_report {
        None
    } else if line.contains("(Fatal)") {
        Some(BusErrorClass::Fatal)
    } else if line.contains("(Non-Fatal)") || line.contains("Uncorrect") {
        Some(BusErrorClass::NonFatal)
    } else {
        Some(BusErrorClass::Corrected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Option<(Reporter, String, BusErrorClass)> {
        bus_error_line(line).map(|line| (line.reporter, line.address.to_string(), line.class))
    }

    #[test]
    fn attributes_errors_to_the_named_device() {
        let gpu = Reporter::Driver(BusDevice::Gpu);
        let nic = Reporter::Driver(BusDevice::Nic);
        for (line, reporter, address, class) in [
            (
                "[1.0] nvidia 0000:17:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
                gpu,
                "0000:17:00.0",
                BusErrorClass::Fatal,
            ),
            (
                "6,1,2,-;nvidia 0000:17:00.0: AER: PCIe Bus Error: severity=Corrected, type=Physical Layer",
                gpu,
                "0000:17:00.0",
                BusErrorClass::Corrected,
            ),
            (
                "nvidia 0000:17:00.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=x",
                gpu,
                "0000:17:00.0",
                BusErrorClass::NonFatal,
            ),
            (
                "x kernel: nvidia 0000:03:00.0: AER: can't recover (no error_detected callback)",
                gpu,
                "0000:03:00.0",
                BusErrorClass::Unrecovered,
            ),
            (
                "mlx5_core 0000:5c:00.0: PCIe Bus Error: severity=Correctable, type=x",
                nic,
                "0000:5c:00.0",
                BusErrorClass::Corrected,
            ),
            (
                "pcieport 0000:16:01.0: AER: Multiple Uncorrected (Fatal) error received: 0000:17:00.0",
                Reporter::UpstreamPort,
                "0000:17:00.0",
                BusErrorClass::Fatal,
            ),
            (
                "pcieport 0000:16:01.0: AER: Correctable error message received from 0000:17:00.0",
                Reporter::UpstreamPort,
                "0000:17:00.0",
                BusErrorClass::Corrected,
            ),
            (
                "nvme 0000:27:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=x",
                Reporter::OtherDriver,
                "0000:27:00.0",
                BusErrorClass::Fatal,
            ),
        ] {
            assert_eq!(read(line), Some((reporter, address.to_owned(), class)), "{line}");
        }
    }

    #[test]
    fn attributes_errors_of_a_port_to_the_port() {
        for (message, class) in [
            ("PCIe Bus Error: severity=Uncorrected (Fatal), type=x", BusErrorClass::Fatal),
            ("AER: PCIe Bus Error: severity=Uncorrected (Non-Fatal), x", BusErrorClass::NonFatal),
            ("AER: device recovery failed", BusErrorClass::Unrecovered),
            ("AER: Device recovery failed", BusErrorClass::Unrecovered),
            ("DPC: containment event, status:0x1f01 source:0x0000", BusErrorClass::Contained),
            (
                "DPC: containment event, status:0x000d, ERR_FATAL received from 0000:02:00.0",
                BusErrorClass::Contained,
            ),
            ("pciehp: Slot(0-1): Link Down", BusErrorClass::LinkDown),
        ] {
            let line = format!("pcieport 0000:16:01.0: {message}");
            let expected = (Reporter::Driver(BusDevice::Port), "0000:16:01.0".to_owned(), class);
            assert_eq!(read(&line), Some(expected), "{line}");
        }
    }

    #[test]
    fn ignores_other_devices_and_detail_lines() {
        for line in [
            "nvme 0000:03:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
            "pcieport 0000:00:1d.0: PCIe Bus Error: severity=Corrected, type=Physical Layer",
            "pcieport 0000:00:1d.0: AER: Corrected error received: id=00e8",
            "nvidia 0000:17:00.0:   device [10de:2330] error status/mask=00000001/0000e000",
            "nvidia 0000:17:00.0: AER: Error of this Agent is reported first",
            "pcieport 0000:00:03.0: AER: device recovery successful",
            "pcieport 0000:00:03.0: AER: Uncorrected (Fatal) error received: 0000:00:03.0",
            "pcieport 0000:00:01.0: AER: enabled with IRQ 24",
            "pcieport 0000:00:01.0: DPC: error containment capabilities: Int Msg #0",
            "pcieport 0000:00:01.0: DPC: unmasked uncorrectable error detected",
            "pcieport 0000:00:01.0: pciehp: Slot(21): Link Down/Up ignored (recovered by DPC)",
            "pcieport 0000:00:01.0: pciehp: Slot(21): Link Up",
            "pcieport 0000:00:01.0: pciehp: Slot(21): Card not present",
            "",
        ] {
            assert_eq!(read(line), None, "{line}");
        }
    }
}
