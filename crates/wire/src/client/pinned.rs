//! Trusts a server by the fingerprint of its certificate authority.

use std::sync::Arc;

use ring::digest;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring as provider};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, OtherError, RootCertStore,
    SignatureScheme,
};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a fingerprint: expected the 64 hexadecimal digits that the server prints")]
pub struct FingerprintError(String);

/// Parses 64 hexadecimal digits. Ignores colons and spaces between the digits.
pub fn fingerprint(text: &str) -> Result<[u8; 32], FingerprintError> {
    let invalid = || FingerprintError(text.chars().take(100).collect());
    let digits: Vec<u8> = text.bytes().filter(|byte| !matches!(byte, b':' | b' ')).collect();
    let mut bytes = [0; 32];
    if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err(invalid());
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        let pair = std::str::from_utf8(pair).map_err(|_| invalid())?;
        *byte = u8::from_str_radix(pair, 16).map_err(|_| invalid())?;
    }
    Ok(bytes)
}

/// Returns a TLS configuration that trusts the certificate authority with this fingerprint. The
/// configuration has no client certificate.
pub fn pinned(fingerprint: [u8; 32]) -> Result<Arc<ClientConfig>, rustls::Error> {
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

/// The server's certificate authority does not have the expected fingerprint.
#[derive(Debug, thiserror::Error)]
#[error(
    "{}, expected the fingerprint {expected}",
    actual.as_ref().map_or_else(
        || "the server sent no certificate of its authority".to_owned(),
        |actual| format!("the server's authority has the fingerprint {actual}")
    )
)]
struct UnexpectedAuthority {
    /// `None` if the server sent no certificate of an authority.
    actual: Option<String>,
    expected: String,
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// Verifies that the server's certificate comes from the authority with this fingerprint. The
/// server sends the authority's certificate along with its own. All other checks are the standard
/// checks of TLS.
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
        let is_pinned = |certificate: &&CertificateDer<'_>| {
            digest::digest(&digest::SHA256, certificate).as_ref() == self.fingerprint
        };
        let authority = intermediates.iter().find(is_pinned);
        let authority = authority.ok_or_else(|| {
            let sent = intermediates.last();
            let actual = sent.map(|certificate| digest::digest(&digest::SHA256, certificate));
            let actual = actual.map(|digest| hexadecimal(digest.as_ref()));
            let expected = hexadecimal(&self.fingerprint);
            let err = OtherError(Arc::new(UnexpectedAuthority { actual, expected }));
            rustls::Error::InvalidCertificate(CertificateError::Other(err))
        })?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        let provider = Arc::clone(&self.provider);
        let standard =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        let standard = standard.map_err(|err| rustls::Error::General(err.to_string()))?;
        standard.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("only TLS 1.3 is supported".to_owned()))
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
        assert_eq!(fingerprint(&"ab".repeat(32)), Ok([0xab; 32]));
        assert_eq!(fingerprint(&["AB"; 32].join(":")), Ok([0xab; 32]));
        for invalid in ["", "ab", &"zz".repeat(32), &"+1".repeat(32), &"é".repeat(32)] {
            assert!(fingerprint(invalid).is_err(), "{invalid}");
        }
    }
}
