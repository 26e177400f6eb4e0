//! The hash chain: the hash of each entry also covers all entries before it.

use std::fmt;

use sha2::{Digest, Sha256};

/// A hash over an entry and all entries before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// The hash before the first entry.
    pub fn genesis() -> Self {
        Self(Sha256::digest(b"farrier log, version 1").into())
    }

    /// The hash after entry `seq` with these bytes.
    #[must_use]
    pub fn then(&self, seq: u64, bytes: &[u8]) -> Self {
        let hasher = Sha256::new().chain_update(self.0).chain_update(seq.to_be_bytes());
        Self(hasher.chain_update(bytes).finalize().into())
    }

    /// Parses hexadecimal text.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let digits = std::str::from_utf8(text).ok().filter(|digits| digits.len() == 64)?;
        let mut hash = [0; 32];
        for (at, byte) in hash.iter_mut().enumerate() {
            *byte = u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok()?;
        }
        Some(Self(hash))
    }

    /// A digest of bytes that are not part of the chain.
    pub fn digest(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}
