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
    /// The upstream port, which does not know the kind of device.
    Port,
}

/// Parses `nvidia 0000:17:00.0: PCIe Bus Error: severity=...` and
/// `pcieport 0000:16:01.0: AER: Uncorrected (Fatal) error received: 0000:17:00.0`. `None` for
/// other drivers, and for lines that only add details.
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
    // The name may follow a timestamp without a space, or `-;` in kmsg.
    let driver = driver.rsplit([';', ']', '"']).next()?;
    let reporter = match driver {
        "nvidia" | "nvidia-nvswitch" => Reporter::Driver(BusDevice::Gpu),
        "mlx5_core" => Reporter::Driver(BusDevice::Nic),
        "pcieport" => {
            let (_, source) =
                line.split_once("received: ").or_else(|| line.split_once(" from "))?;
            let address = PciAddress::find(source)?;
            return Some(BusErrorLine { reporter: Reporter::Port, address, class });
        }
        _ => return None,
    };
    Some(BusErrorLine { reporter, address, class })
}

fn class(line: &str) -> Option<BusErrorClass> {
    let is_report = line.contains("severity=")
        || line.contains("error received")
        || line.contains("error message received");
    if line.contains("AER: can't recover") {
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
                Reporter::Port,
                "0000:17:00.0",
                BusErrorClass::Fatal,
            ),
            (
                "pcieport 0000:16:01.0: AER: Correctable error message received from 0000:17:00.0",
                Reporter::Port,
                "0000:17:00.0",
                BusErrorClass::Corrected,
            ),
        ] {
            assert_eq!(read(line), Some((reporter, address.to_owned(), class)), "{line}");
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
            "pcieport 0000:00:03.0: AER: device recovery failed",
            "pcieport 0000:00:01.0: AER: enabled with IRQ 24",
            "",
        ] {
            assert_eq!(read(line), None, "{line}");
        }
    }
}
