//! The name in a node's certificate: `farrier:node:NAME?GENERATION`, a URI among its alternative names.

use std::fmt;
use std::str::FromStr;

use farrier_fleet::fleet::NodeId;

const PREFIX: &str = "farrier:node:";

/// Which node a certificate speaks for, and which of its enrolments it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub node: NodeId,
    /// Counts the enrolments and revocations of the node: a certificate of an older one counts no more.
    pub generation: u64,
}

impl fmt::Display for Identity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{PREFIX}{}?{}", self.node, self.generation)
    }
}

impl Identity {
    /// The node that a certificate (DER) names, and only it. Signature and dates are for whoever took it to check.
    pub fn of_certificate(der: &[u8]) -> Result<Self, IdentityError> {
        let der = rustls_pki_types::CertificateDer::from(der);
        let certificate = webpki::EndEntityCert::try_from(&der).map_err(|_| IdentityError)?;
        let mut names = certificate.valid_uri_names();
        match (names.next(), names.next()) {
            (Some(name), None) => name.parse(),
            _ => Err(IdentityError),
        }
    }
}

/// Why a URI names no node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the certificate names no node of a fleet")]
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
        // One form only: what is compared as text elsewhere must not have two.
        (identity.to_string() == text).then_some(identity).ok_or(IdentityError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_form() {
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
