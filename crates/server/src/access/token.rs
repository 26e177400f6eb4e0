//! A token: 256 random bits, of which only a hash is kept.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::{SecureRandom, SystemRandom};
use sha2::{Digest, Sha256};

/// What a token is for. It begins with that, so that one is known by its looks (and found where it should not be).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// For nodes to join with.
    Join,
    /// A person's.
    User,
}

impl TokenKind {
    fn prefix(self) -> &'static str {
        match self {
            Self::Join => "fjoin_",
            Self::User => "fperson_",
        }
    }
}

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
    pub fn generate(kind: TokenKind) -> Option<Self> {
        let mut bytes = [0; 32];
        SystemRandom::new().fill(&mut bytes).ok()?;
        Some(Self(format!("{}{}", kind.prefix(), URL_SAFE_NO_PAD.encode(bytes))))
    }

    /// To show it to whoever asked for it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// What is kept of it.
    pub fn digest(&self) -> TokenDigest {
        TokenDigest::from_secret(&self.0)
    }
}

/// The hash of a token. A token has 256 random bits: it needs no salt, and what the time of a search for its hash tells helps
/// nobody to find it.
#[derive(Clone)]
pub struct TokenDigest(pub(super) [u8; 32]);

impl TokenDigest {
    /// Of a text that somebody says is a token.
    pub fn from_secret(text: &str) -> Self {
        let bytes = text.trim().as_bytes();
        Self(Sha256::digest(&bytes[..bytes.len().min(TEXT_BYTES_MAX)]).into())
    }
}

/// In a time that does not depend on where they differ.
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
    fn a_token_is_long_and_does_not_print() {
        let token = Secret::generate(TokenKind::Join).unwrap();
        assert_eq!(token.reveal().len(), "fjoin_".len() + 43);
        assert_eq!(format!("{token:?} {:?}", token.digest()), "Secret TokenDigest");
        assert_eq!(TokenDigest::from_secret(&format!(" {}\n", token.reveal())), token.digest());
        assert_ne!(token.digest(), Secret::generate(TokenKind::User).unwrap().digest());
    }
}
