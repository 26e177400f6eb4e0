//! That whoever asks for a certificate has the key: a signature over what is asked for.
//!
//! This is what a certificate signing request would prove, without a reader of ASN.1 from strangers on the server.

use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair,
    UnparsedPublicKey,
};

use crate::proto::PublicKey;

/// A point of P-256, uncompressed.
const POINT_BYTES: usize = 65;

/// Why there is no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The system gives no random numbers, or the bytes are no key.
    #[error("failed to make or read a key")]
    Unusable,
    /// Whoever sent it does not have the other half, or signed for something else.
    #[error("the request is not signed with the key that it names")]
    Unproven,
}

/// A node's private key.
pub struct NodeKey {
    pkcs8: Vec<u8>,
    pair: EcdsaKeyPair,
}

impl std::fmt::Debug for NodeKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("NodeKey")
    }
}

impl NodeKey {
    /// A new one.
    pub fn generate() -> Result<Self, KeyError> {
        let random = SystemRandom::new();
        let made = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random);
        Self::from_pkcs8(made.map_err(|_| KeyError::Unusable)?.as_ref())
    }

    /// One that was kept.
    pub fn from_pkcs8(pkcs8: &[u8]) -> Result<Self, KeyError> {
        let random = SystemRandom::new();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8, &random);
        Ok(Self { pkcs8: pkcs8.to_vec(), pair: pair.map_err(|_| KeyError::Unusable)? })
    }

    /// To keep it.
    pub fn pkcs8(&self) -> &[u8] {
        &self.pkcs8
    }

    /// The public half, with the proof that this is the other one.
    pub fn prove(&self, purpose: Purpose<'_>) -> Result<PublicKey, KeyError> {
        let point = self.pair.public_key().as_ref();
        let signed = self.pair.sign(&SystemRandom::new(), &statement(purpose, point));
        let signature = signed.map_err(|_| KeyError::Unusable)?.as_ref().to_vec();
        Ok(PublicKey { point: point.to_vec().into(), signature: signature.into() })
    }
}

/// What a key is for. A signature for one purpose is none for another.
#[derive(Debug, Clone, Copy)]
pub enum Purpose<'a> {
    /// To enrol under a name, for a token.
    Enrol {
        /// The name, as it was sent.
        node: &'a str,
        token: &'a str,
    },
    /// To replace the key of the certificate that the connection has.
    Renew,
}

/// The point of a key whose owner has proven to have it.
pub fn proven(key: &PublicKey, purpose: Purpose<'_>) -> Result<[u8; POINT_BYTES], KeyError> {
    let point: [u8; POINT_BYTES] = key.point.as_ref().try_into().map_err(|_| KeyError::Unusable)?;
    UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &point)
        .verify(&statement(purpose, &point), &key.signature)
        .map_err(|_| KeyError::Unproven)?;
    Ok(point)
}

/// Each part with its length, so that no two purposes have the same bytes.
fn statement(purpose: Purpose<'_>, point: &[u8]) -> Vec<u8> {
    let parts: [&[u8]; 4] = match purpose {
        Purpose::Enrol { node, token } => {
            [b"farrier enrol 1", node.as_bytes(), token.as_bytes(), point]
        }
        Purpose::Renew => [b"farrier renew 1", b"", b"", point],
    };
    let mut bytes = Vec::new();
    for part in parts {
        bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
        bytes.extend_from_slice(part);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_proven_for_its_purpose_only() {
        let key = NodeKey::from_pkcs8(NodeKey::generate().unwrap().pkcs8()).unwrap();
        let purpose = Purpose::Enrol { node: "a", token: "bc" };
        let shown = key.prove(purpose).unwrap();
        assert!(proven(&shown, purpose).is_ok());
        for other in [
            Purpose::Renew,
            Purpose::Enrol { node: "ab", token: "c" },
            Purpose::Enrol { node: "a", token: "bd" },
        ] {
            assert_eq!(proven(&shown, other), Err(KeyError::Unproven));
        }
        let stolen = PublicKey {
            point: NodeKey::generate().unwrap().prove(purpose).unwrap().point,
            signature: shown.signature,
        };
        assert_eq!(proven(&stolen, purpose), Err(KeyError::Unproven));
        assert_eq!(proven(&PublicKey::default(), purpose), Err(KeyError::Unusable));
        assert!(NodeKey::from_pkcs8(b"nothing").is_err());
    }
}
