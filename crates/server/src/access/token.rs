//! A token: 256 random bits, of which only a hash is kept.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::{SecureRandom, SystemRandom};
use sha2::{Digest, Sha256};

/// What a join token begins with, so that one is known by its looks (and found where it should not be).
const JOIN: &str = "fjoin_";

/// Longer than any token.
const TEXT_BYTES_MAX: usize = 256;

/// A token as whoever made it sees it, once. It does not print by accident.
pub struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret")
    }
}

impl Secret {
    /// A new one; none: the system gives no random numbers.
    pub fn generate() -> Option<Self> {
        let mut bytes = [0; 32];
        SystemRandom::new().fill(&mut bytes).ok()?;
        Some(Self(format!("{JOIN}{}", URL_SAFE_NO_PAD.encode(bytes))))
    }

    /// To show it to whoever asked for it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// What is kept of it.
    pub fn digest(&self) -> TokenDigest {
        TokenDigest::of(&self.0)
    }
}

/// The hash of a token. A token has 256 random bits: it needs no salt, and what the time of a search for its hash tells helps
/// nobody to find it.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenDigest(pub(super) [u8; 32]);

impl TokenDigest {
    /// Of a text that somebody says is a token.
    pub fn of(text: &str) -> Self {
        let bytes = text.trim().as_bytes();
        Self(Sha256::digest(&bytes[..bytes.len().min(TEXT_BYTES_MAX)]).into())
    }
}

impl fmt::Debug for TokenDigest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("TokenDigest")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_long_and_does_not_print() {
        let token = Secret::generate().unwrap();
        assert_eq!(token.reveal().len(), JOIN.len() + 43);
        assert_eq!(format!("{token:?} {:?}", token.digest()), "Secret TokenDigest");
        assert_eq!(TokenDigest::of(&format!(" {}\n", token.reveal())), token.digest());
        assert_ne!(token.digest(), Secret::generate().unwrap().digest());
    }
}
