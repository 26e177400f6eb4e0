//! A token: 256 random bits, stored only as a hash.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::{SecureRandom, SystemRandom};
use sha2::{Digest, Sha256};

/// The kind of a token. It is also the prefix of the token's text, so that people and secret
/// scanners recognise tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessTokenKind {
    Join,
    User,
}

impl AccessTokenKind {
    fn prefix(self) -> &'static str {
        match self {
            Self::Join => "fjoin_",
            Self::User => "fperson_",
        }
    }
}

/// Longer texts are cut to this length before they are hashed.
const TEXT_BYTES_MAX: usize = 256;

/// A token in plain text. Only the creator of the token sees it, and only once. The type has no
/// `Display`, and its `Debug` does not print the token.
pub struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret")
    }
}

impl Secret {
    /// Returns `None` if the system provides no random numbers.
    pub fn generate(kind: AccessTokenKind) -> Option<Self> {
        let mut bytes = [0; 32];
        SystemRandom::new().fill(&mut bytes).ok()?;
        Some(Self(format!("{}{}", kind.prefix(), URL_SAFE_NO_PAD.encode(bytes))))
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }

    pub fn digest(&self) -> TokenDigest {
        TokenDigest::from_secret(&self.0)
    }
}

/// The hash of a token. A token has 256 random bits, so the hash needs no salt, and the timing of a
/// lookup reveals nothing useful.
#[derive(Clone)]
pub struct TokenDigest(pub(super) [u8; 32]);

impl TokenDigest {
    pub fn from_secret(text: &str) -> Self {
        let bytes = text.trim().as_bytes();
        Self(Sha256::digest(&bytes[..bytes.len().min(TEXT_BYTES_MAX)]).into())
    }
}

/// Compares in constant time.
impl PartialEq for TokenDigest {
    fn eq(&self, other: &Self) -> bool {
        let differences = self.0.iter().zip(&other.0).fold(0, |sum, (a, b)| sum | (a ^ b));
        std::hint::black_box(differences) == 0
    }
}

impl Eq for TokenDigest {}

impl fmt::Debug for TokenDigest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("TokenDigest")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_256_bits_and_is_not_printed() {
        let token = Secret::generate(AccessTokenKind::Join).unwrap();
        assert_eq!(token.reveal().len(), "fjoin_".len() + 43);
        assert_eq!(format!("{token:?} {:?}", token.digest()), "Secret TokenDigest");
        assert_eq!(TokenDigest::from_secret(&format!(" {}\n", token.reveal())), token.digest());
        assert_ne!(token.digest(), Secret::generate(AccessTokenKind::User).unwrap().digest());
    }
}
