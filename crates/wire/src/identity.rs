//! The identity in the certificate of a node: `farrier:node:NAME?GENERATION`, as a URI in the
//! subject alternative name.

use std::fmt;
use std::str::FromStr;

use farrier_fleet::fleet::NodeId;

const PREFIX: &str = "farrier:node:";

/// The node that a certificate identifies, and the enrolment that the certificate comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub node: NodeId,
    /// Counts the enrolments and revocations of the node. Certificates of an older generation are
    /// invalid.
    pub generation: u64,
}

impl fmt::Display for Identity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{PREFIX}{}?{}", self.node, self.generation)
    }
}

impl Identity {
    /// Returns the single node that a certificate (DER) names. The caller must have verified the
    /// signature and the validity.
    pub fn from_certificate(der: &[u8]) -> Result<Self, IdentityError> {
        let der = rustls_pki_types::CertificateDer::from(der);
        let certificate = webpki::EndEntityCert::try_from(&der).map_err(|_| IdentityError)?;
        let mut names = certificate.valid_uri_names();
        match (names.next(), names.next()) {
            (Some(name), None) => name.parse(),
            _ => Err(IdentityError),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the certificate does not name a node")]
pub struct IdentityError;

impl FromStr for Identity {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let rest = text.strip_prefix(PREFIX).ok_or(IdentityError)?;
        let (node, generation) = rest.split_once('?').ok_or(IdentityError)?;
        let identity = Self {
            node: node.parse().map_err(|_| IdentityError)?,
            generation: generation.parse().map_err(|_| IdentityError)?,
        };
        // Only the canonical form is accepted, because other code compares it as text.
        (identity.to_string() == text).then_some(identity).ok_or(IdentityError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_canonical_form_parses() {
        let identity: Identity = "farrier:node:gpu-01.r2?7".parse().unwrap();
        assert_eq!((identity.node.as_str(), identity.generation), ("gpu-01.r2", 7));
        for wrong in [
            "",
            "farrier:node:a",
            "farrier:node:?1",
            "farrier:node:A?1",
            "farrier:node:a?01",
            "farrier:node:a?+1",
            "farrier:node:a?-1",
            "farrier:person:a?1",
            "farrier:node:a?1?1",
        ] {
            assert_eq!(wrong.parse::<Identity>(), Err(IdentityError), "{wrong}");
        }
    }
}
