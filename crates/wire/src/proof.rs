//! Proof of possession: a request for a certificate is signed with the private key that the
//! certificate is for.
//!
//! A certificate signing request would prove the same, but the server would then have to parse an
//! X.509 request from an unauthenticated peer.

use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair,
    UnparsedPublicKey,
};

use crate::proto::PublicKey;

/// Length of an uncompressed P-256 point.
const POINT_BYTES: usize = 65;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The system provides no random numbers, or the bytes are not a key.
    #[error("failed to generate or load a key")]
    Unusable,
    /// The sender does not have the private key, or the signature is for another purpose.
    #[error("the request is not signed with the key that it names")]
    Unproven,
}

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
    pub fn generate() -> Result<Self, KeyError> {
        let random = SystemRandom::new();
        let generated = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random);
        Self::from_pkcs8(generated.map_err(|_| KeyError::Unusable)?.as_ref())
    }

    /// Loads a stored key.
    pub fn from_pkcs8(pkcs8: &[u8]) -> Result<Self, KeyError> {
        let random = SystemRandom::new();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8, &random);
        Ok(Self { pkcs8: pkcs8.to_vec(), pair: pair.map_err(|_| KeyError::Unusable)? })
    }

    /// PKCS #8 encoding, for storage.
    pub fn pkcs8(&self) -> &[u8] {
        &self.pkcs8
    }

    /// Returns the public key, with a signature that proves possession of the private key.
    pub fn prove(&self, purpose: Purpose<'_>) -> Result<PublicKey, KeyError> {
        let point = self.pair.public_key().as_ref();
        let signed = self.pair.sign(&SystemRandom::new(), &statement(purpose, point));
        let signature = signed.map_err(|_| KeyError::Unusable)?.as_ref().to_vec();
        Ok(PublicKey { point: point.to_vec().into(), signature: signature.into() })
    }
}

/// Purpose of a signature. A signature for one purpose is invalid for another.
#[derive(Debug, Clone, Copy)]
pub enum Purpose<'a> {
    /// Enrol under a name, with a token.
    Enrol {
        /// The name of the node, exactly as it is in the request.
        node: &'a str,
        token: &'a str,
    },
    /// Replace the certificate of the connection with a certificate for another key.
    Renew,
}

/// Verifies the proof of possession. Returns the public key as a point.
pub fn verify(key: &PublicKey, purpose: Purpose<'_>) -> Result<[u8; POINT_BYTES], KeyError> {
    let point: [u8; POINT_BYTES] = key.point.as_ref().try_into().map_err(|_| KeyError::Unusable)?;
    UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &point)
        .verify(&statement(purpose, &point), &key.signature)
        .map_err(|_| KeyError::Unproven)?;
    Ok(point)
}

/// The bytes to sign. Each part has a length prefix, so that no two purposes give the same bytes.
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
    fn a_proof_is_valid_only_for_its_purpose() {
        let key = NodeKey::from_pkcs8(NodeKey::generate().unwrap().pkcs8()).unwrap();
        let purpose = Purpose::Enrol { node: "a", token: "bc" };
        let public = key.prove(purpose).unwrap();
        assert!(verify(&public, purpose).is_ok());
        for other in [
            Purpose::Renew,
            Purpose::Enrol { node: "ab", token: "c" },
            Purpose::Enrol { node: "a", token: "bd" },
        ] {
            assert_eq!(verify(&public, other), Err(KeyError::Unproven));
        }
        let stolen = PublicKey {
            point: NodeKey::generate().unwrap().prove(purpose).unwrap().point,
            signature: public.signature,
        };
        assert_eq!(verify(&stolen, purpose), Err(KeyError::Unproven));
        assert_eq!(verify(&PublicKey::default(), purpose), Err(KeyError::Unusable));
        assert!(NodeKey::from_pkcs8(b"nothing").is_err());
    }
}
