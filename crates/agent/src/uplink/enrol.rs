//! How a node gets its first certificate: with a token, from a server whose authority has the fingerprint that it was told.

use std::sync::Arc;

use farrier_fleet::fleet::NodeId;
use farrier_wire::client::{self, ConnectError, ServerUrl};
use farrier_wire::identity::Identity;
use farrier_wire::proof::{KeyError, Purpose};
use farrier_wire::proto::{Certificate, EnrolRequest};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring as provider};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use sha2::{Digest, Sha256};
use tonic::Status;

use super::identity::{IdentityError, Keep};

/// Why a node has not enrolled.
#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    /// The fingerprint is none.
    #[error("`{0}` is no fingerprint: expected the 64 hexadecimal digits that the server shows")]
    Fingerprint(String),
    /// The server is not reached, or is another one.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Nothing could be kept.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// There is no key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The server does not want it.
    #[error("the server refused: {}", .0.message())]
    Refused(Box<Status>),
    /// The server signed something else.
    #[error("the server's certificate is not for `{0}`")]
    Other(NodeId),
    /// The system gives no threads or timers.
    #[error("failed to start")]
    Start(#[source] std::io::Error),
    /// TLS cannot be set up.
    #[error("failed to set TLS up")]
    Tls(#[from] rustls::Error),
}

/// What to enrol with.
#[derive(Debug, Clone)]
pub struct Enrolment {
    /// Where.
    pub url: ServerUrl,
    /// As whom.
    pub node: NodeId,
    /// SHA-256 of the authority's certificate.
    pub fingerprint: String,
    /// Where key and certificate are kept.
    pub keep: Keep,
}

/// Enrols, and keeps what the server signed. Asked again after an answer that was lost it gets the same.
pub fn enrol(enrolment: &Enrolment, token: &str) -> Result<Identity, EnrolError> {
    let wanted = fingerprint(&enrolment.fingerprint)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(EnrolError::Start)?;
    runtime.block_on(enrol_now(enrolment, token.trim(), wanted))
}

async fn enrol_now(
    enrolment: &Enrolment,
    token: &str,
    wanted: [u8; 32],
) -> Result<Identity, EnrolError> {
    let Enrolment { url, node, keep, .. } = enrolment;
    let key = keep.key_to_enrol()?;
    let purpose = Purpose::Enrol { node: node.as_str(), token };
    let request = EnrolRequest {
        token: token.to_owned(),
        node: node.to_string(),
        key: Some(key.prove(purpose)?),
    };
    let mut agents = client::connect(url, pinned(wanted)?).await?;
    let signed = agents.enrol(request).await;
    let signed = signed.map_err(|status| EnrolError::Refused(Box::new(status)))?.into_inner();
    let identity = checked(node, &signed, wanted)?;
    keep.store(&key, &signed)?;
    keep.forget_key_to_enrol();
    Ok(identity)
}

/// What was signed is for this node, by the authority that was asked for.
fn checked(node: &NodeId, signed: &Certificate, wanted: [u8; 32]) -> Result<Identity, EnrolError> {
    let other = || EnrolError::Other(node.clone());
    let identity = Identity::of_certificate(&signed.node).map_err(|_| other())?;
    let authority: [u8; 32] = Sha256::digest(&signed.authority).into();
    (identity.node == *node && authority == wanted).then_some(identity).ok_or_else(other)
}

/// 64 hexadecimal digits, with or without colons.
fn fingerprint(text: &str) -> Result<[u8; 32], EnrolError> {
    let wrong = || EnrolError::Fingerprint(text.chars().take(100).collect());
    let digits: Vec<u8> = text.bytes().filter(|byte| !matches!(byte, b':' | b' ')).collect();
    let mut bytes = [0; 32];
    if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err(wrong());
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        let pair = std::str::from_utf8(pair).map_err(|_| wrong())?;
        *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
    }
    Ok(bytes)
}

fn pinned(fingerprint: [u8; 32]) -> Result<Arc<ClientConfig>, rustls::Error> {
    let provider = Arc::new(provider::default_provider());
    let verifier = Arc::new(Pinned { fingerprint, provider: Arc::clone(&provider) });
    let mut tls = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(tls))
}

/// Trusts the authority with this fingerprint, which the server shows with its own certificate, and otherwise checks as usual.
#[derive(Debug)]
struct Pinned {
    fingerprint: [u8; 32],
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let is_wanted = |it: &&CertificateDer<'_>| {
            let digest: [u8; 32] = Sha256::digest(it).into();
            digest == self.fingerprint
        };
        let authority = intermediates.iter().find(is_wanted);
        let authority =
            authority.ok_or(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        let provider = Arc::clone(&self.provider);
        let usual = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        let usual = usual.map_err(|err| rustls::Error::General(err.to_string()))?;
        usual.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("only TLS 1.3 is spoken".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_64_digits() {
        assert_eq!(fingerprint(&"ab".repeat(32)).unwrap(), [0xab; 32]);
        assert_eq!(fingerprint(&["AB"; 32].join(":")).unwrap(), [0xab; 32]);
        for wrong in ["", "ab", &"zz".repeat(32), &"+1".repeat(32), &"é".repeat(32)] {
            assert!(fingerprint(wrong).is_err(), "{wrong}");
        }
    }
}
