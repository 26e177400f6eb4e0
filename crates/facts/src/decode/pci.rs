//! PCI addresses, in every spelling found in logs.

use std::fmt;
use std::str::FromStr;

/// A PCI address, with the function if the text had one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: Option<u8>,
}

/// The text is not a PCI address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a PCI address such as `0000:17:00.0`")]
pub struct PciAddressError(String);

impl PciAddress {
    /// Placeholder for an unknown device.
    pub(super) const ZERO: Self = Self { domain: 0, bus: 0, device: 0, function: None };

    /// The address without its function, which identifies a GPU.
    #[must_use]
    pub fn without_function(self) -> Self {
        Self { function: None, ..self }
    }

    pub fn domain(self) -> u32 {
        self.domain
    }

    pub fn bus(self) -> u8 {
        self.bus
    }

    /// Whether both addresses denote the same device, ignoring the function.
    pub fn is_same_device(self, other: Self) -> bool {
        self.without_function() == other.without_function()
    }

    /// The first address with a domain in a text. Times of day do not match.
    pub(crate) fn find(text: &str) -> Option<Self> {
        text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != ':' && letter != '.')
            .filter(|word| word.len() >= "0000:17:00".len())
            .find_map(|word| {
                let word = word.trim_matches([':', '.']);
                let word = word.strip_prefix("PCI:").unwrap_or(word);
                let domain = word.split(':').next()?;
                if domain.len() < 4 || word.matches(':').count() != 2 {
                    return None;
                }
                word.parse().ok()
            })
    }
}

/// Parses one to `longest` hexadecimal digits.
fn hex(text: &str, longest: usize) -> Option<u32> {
    let digits =
        (1..=longest).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if digits { u32::from_str_radix(text, 16).ok() } else { None }
}

impl FromStr for PciAddress {
    type Err = PciAddressError;

    /// Parses `0000:17:00.0`, `PCI:0000:17:00`, `17:00`, and `0001:00` (bus and device) from old
    /// drivers.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || PciAddressError(text.to_owned());
        let bare = text.strip_prefix("PCI:").unwrap_or(text);
        let (location, function) = match bare.split_once('.') {
            Some((location, function)) => (location, Some(hex(function, 1).ok_or_else(error)?)),
            None => (bare, None),
        };
        let parts: Vec<&str> = location.split(':').collect();
        let (domain, bus, device) = match parts[..] {
            [domain, bus, device] => (hex(domain, 8).ok_or_else(error)?, hex(bus, 2), device),
            [bus, device] => (0, hex(bus, 4), device),
            _ => return Err(error()),
        };
        let narrow = |number: Option<u32>, most: u8| {
            number.and_then(|number| u8::try_from(number).ok()).filter(|number| *number <= most)
        };
        Ok(Self {
            domain,
            bus: narrow(bus, 0xff).ok_or_else(error)?,
            device: narrow(hex(device, 2), 0x1f).ok_or_else(error)?,
            function: function
                .map(|function| narrow(Some(function), 7).ok_or_else(error))
                .transpose()?,
        })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:04x}:{:02x}:{:02x}", self.domain, self.bus, self.device)?;
        match self.function {
            Some(function) => write!(formatter, ".{function:x}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_every_spelling() {
        for (text, expected) in [
            ("PCI:0000:17:00", "0000:17:00"),
            ("0000:17:00.0", "0000:17:00.0"),
            ("17:00", "0000:17:00"),
            ("0003:00", "0000:03:00"),
            ("PCI:0018:01:00", "0018:01:00"),
            ("00000000:C1:00.0", "0000:c1:00.0"),
            ("PCI:10000:E1:00.0", "10000:e1:00.0"),
        ] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), expected, "{text}");
        }
        for text in
            ["", "PCI:", "17", "0000:17:20", "0000:17:00.8", "0123:00", "x:17:00", "1:2:3:4"]
        {
            assert!(text.parse::<PciAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn function_does_not_distinguish_devices() {
        let parse = |text: &str| text.parse::<PciAddress>().unwrap();
        assert!(parse("0000:17:00.0").is_same_device(parse("PCI:0000:17:00")));
        assert!(!parse("0000:17:00.0").is_same_device(parse("0001:17:00.0")));
    }

    #[test]
    fn finds_addresses_but_not_times() {
        let find = |text: &str| PciAddress::find(text).map(|address| address.to_string());
        assert_eq!(
            find("12:34:56 host nvidia 0000:17:00.0: AER: x").as_deref(),
            Some("0000:17:00.0")
        );
        assert_eq!(find("BAR1 is 0M @ 0x0 (PCI:0000:14:00.0)").as_deref(), Some("0000:14:00.0"));
        assert_eq!(find("GPU at PCI:0000:9b:00: GPU-5096").as_deref(), Some("0000:9b:00"));
        assert_eq!(find("2025-11-15T02:25:28.1 device [10de:2330] 12:34:56"), None);
    }
}
