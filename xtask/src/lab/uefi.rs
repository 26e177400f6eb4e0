//! Enrolls a key in the UEFI variables of a machine, as `mokutil --import` and a person at the
//! console would. The formats are those of the UEFI specification (signature lists) and of EDK II
//! (authenticated variable store).

use anyhow::{Context, bail};

/// Where the header of a firmware volume has its own length.
const VOLUME_HEADER_LENGTH: usize = 48;
const STORE_HEADER: usize = 28;
const VARIABLE_HEADER: usize = 60;
/// `gEfiAuthenticatedVariableGuid`.
const STORE_GUID: [u8; 16] = guid(0xaaf3_2c78, 0x947b, 0x439a, 0xa180_2e14_4ec3_7792);
/// The vendor of shim's variables.
const SHIM_GUID: [u8; 16] = guid(0x605d_ab50, 0xe046, 0x4300, 0xabb6_3dd8_10dd_8b23);
/// `EFI_CERT_X509_GUID`.
const X509_GUID: [u8; 16] = guid(0xa5c0_59a1, 0x94e4, 0x4aa7, 0x87b5_ab15_5c2b_f072);
const START_ID: u16 = 0x55aa;
const STATE_ADDED: u8 = 0x3f;
/// Kept in flash, and readable only before the kernel starts: shim ignores other lists of keys.
const NON_VOLATILE_BOOT_ONLY: u32 = 3;
const LIST: &str = "MokList";

/// The variables with this X.509 certificate (DER) as the only machine owner key.
pub(crate) fn with_machine_owner_key(flash: &[u8], certificate: &[u8]) -> anyhow::Result<Vec<u8>> {
    let store = usize::from(u16_at(flash, VOLUME_HEADER_LENGTH)?);
    if flash.get(store..store + 16) != Some(&STORE_GUID) {
        bail!("the flash has no authenticated variable store");
    }
    let end = store + usize::try_from(u32_at(flash, store + 16)?)?;
    let mut next = store + STORE_HEADER;
    while u16_at(flash, next)? == START_ID {
        let name = usize::try_from(u32_at(flash, next + 36)?)?;
        let data = usize::try_from(u32_at(flash, next + 40)?)?;
        next += (VARIABLE_HEADER + name + data).next_multiple_of(4);
    }
    let variable = variable(LIST, &signature_list(certificate)?)?;
    let place = flash.get(next..next + variable.len()).filter(|_| next + variable.len() <= end);
    if place.is_none_or(|place| place.iter().any(|&byte| byte != 0xff)) {
        bail!("the variable store has no room for {} bytes", variable.len());
    }
    let mut changed = flash.to_owned();
    changed[next..next + variable.len()].copy_from_slice(&variable);
    Ok(changed)
}

fn signature_list(certificate: &[u8]) -> anyhow::Result<Vec<u8>> {
    let signature = u32::try_from(16 + certificate.len())?;
    let mut list = X509_GUID.to_vec();
    for number in [28 + signature, 0, signature] {
        list.extend_from_slice(&number.to_le_bytes());
    }
    list.extend_from_slice(&SHIM_GUID);
    list.extend_from_slice(certificate);
    Ok(list)
}

fn variable(name: &str, data: &[u8]) -> anyhow::Result<Vec<u8>> {
    let name: Vec<u8> = name.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect();
    let mut variable = START_ID.to_le_bytes().to_vec();
    variable.extend_from_slice(&[STATE_ADDED, 0]);
    variable.extend_from_slice(&NON_VOLATILE_BOOT_ONLY.to_le_bytes());
    // Monotonic count, time stamp and index of the public key: only of authenticated variables.
    variable.extend_from_slice(&[0; 8 + 16 + 4]);
    variable.extend_from_slice(&u32::try_from(name.len())?.to_le_bytes());
    variable.extend_from_slice(&u32::try_from(data.len())?.to_le_bytes());
    variable.extend_from_slice(&SHIM_GUID);
    variable.extend_from_slice(&name);
    variable.extend_from_slice(data);
    Ok(variable)
}

/// The bytes of a GUID: the first three fields are little-endian, the rest is big-endian.
const fn guid(first: u32, second: u16, third: u16, rest: u64) -> [u8; 16] {
    let (a, b, c, d) =
        (first.to_le_bytes(), second.to_le_bytes(), third.to_le_bytes(), rest.to_be_bytes());
    [a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]]
}

fn u16_at(bytes: &[u8], at: usize) -> anyhow::Result<u16> {
    let field = bytes.get(at..at + 2).context("the flash is too short")?;
    Ok(u16::from_le_bytes(field.try_into()?))
}

fn u32_at(bytes: &[u8], at: usize) -> anyhow::Result<u32> {
    let field = bytes.get(at..at + 4).context("the flash is too short")?;
    Ok(u32::from_le_bytes(field.try_into()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A flash with one other variable and `room` free bytes.
    fn flash(room: usize) -> Vec<u8> {
        let mut other = variable("Boot0000", b"abc").unwrap();
        other.resize(other.len().next_multiple_of(4), 0xff);
        let mut flash = vec![0; 72];
        flash[VOLUME_HEADER_LENGTH] = 72;
        flash.extend_from_slice(&STORE_GUID);
        let size = u32::try_from(STORE_HEADER + other.len() + room).unwrap();
        flash.extend_from_slice(&size.to_le_bytes());
        flash.extend_from_slice(&[0; 8]);
        flash.extend_from_slice(&other);
        flash.resize(flash.len() + room, 0xff);
        flash
    }

    #[test]
    fn the_key_follows_the_other_variables() {
        let before = flash(200);
        let after = with_machine_owner_key(&before, b"certificate").unwrap();
        assert_eq!(after.len(), before.len());
        let added = before.len() - 200;
        assert_eq!(after[..added], before[..added]);
        assert_eq!(u16_at(&after, added).unwrap(), START_ID);
        assert!(after[added..].windows(11).any(|window| window == b"certificate"));
    }

    #[test]
    fn a_full_or_unknown_store_is_an_error() {
        with_machine_owner_key(&flash(20), b"certificate").unwrap_err();
        with_machine_owner_key(&[0; 500], b"certificate").unwrap_err();
        with_machine_owner_key(b"short", b"certificate").unwrap_err();
    }
}
