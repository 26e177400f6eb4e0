//! TLS 1.3 with the fleet's own certificate authority. The server requests client certificates but
//! does not require them, because a node has no certificate before its enrolment.

use std::io;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use farrier_wire::identity::Identity;
use jiff::Timestamp;
use rustls::crypto::ring as provider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::{
    Acceptor, ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::{StartHandshake, TlsStream};
use webpki::{EndEntityCert, KeyUsage};

use super::{NodePeer, Peer};
use crate::access::{Authority, AuthorityError};

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("failed to issue the server's certificate")]
    Certificate(#[from] AuthorityError),
    #[error("failed to configure TLS")]
    Rustls(#[from] rustls::Error),
    #[error("the authority's certificate is unusable")]
    Authority(#[from] rustls::server::VerifierBuilderError),
}

pub(crate) struct Tls {
    config: Arc<ServerConfig>,
    own: Arc<CurrentCertificate>,
    authority: Arc<Authority>,
    names: Vec<String>,
}

/// The server's own certificate. It is replaced while the server runs.
#[derive(Debug)]
struct CurrentCertificate(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for CurrentCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl Tls {
    pub(crate) fn new(authority: Arc<Authority>, names: Vec<String>) -> Result<Self, TlsError> {
        let provider = Arc::new(provider::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(authority.certificate().clone())?;
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                .allow_unauthenticated()
                .build()?;
        let own = Arc::new(CurrentCertificate(RwLock::new(certificate(&authority, &names)?)));
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(clients)
            .with_cert_resolver(Arc::clone(&own) as Arc<dyn ResolvesServerCert>);
        // Agents use only HTTP/2, but some REST clients use HTTP/1.1.
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // Session resumption is off. With it, the check whether a certificate has expired would be
        // skipped.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self { config: Arc::new(config), own, authority, names })
    }

    /// Replaces the server's own certificate.
    pub(crate) fn renew(&self) -> Result<(), TlsError> {
        let new = certificate(&self.authority, &self.names)?;
        *self.own.0.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// Reads the ClientHello. This needs no cryptography.
    pub(super) async fn hello(socket: TcpStream) -> io::Result<StartHandshake<TcpStream>> {
        LazyConfigAcceptor::new(Acceptor::default(), socket).await
    }

    /// Completes the handshake and identifies the peer.
    pub(super) async fn handshake(
        &self,
        hello: StartHandshake<TcpStream>,
    ) -> io::Result<(TlsStream<TcpStream>, Peer)> {
        let stream = hello.into_stream(Arc::clone(&self.config)).await?;
        let certificates = stream.get_ref().1.peer_certificates();
        let peer = certificates
            .and_then(|all| all.first())
            .map_or(Peer::Unauthenticated, peer_from_certificate);
        Ok((stream, peer))
    }
}

/// Issues a certificate for the server. The chain includes the authority's certificate, because a
/// node that enrols knows only the authority's fingerprint.
fn certificate(authority: &Authority, names: &[String]) -> Result<Arc<CertifiedKey>, TlsError> {
    let (own, key) = authority.certify_server(names, Timestamp::now())?;
    let key = provider::sign::any_ecdsa_type(&key.into())?;
    Ok(Arc::new(CertifiedKey::new(vec![own, authority.certificate().clone()], key)))
}

/// Returns the node that a certificate names. The handshake has already verified the signature and
/// the dates.
fn peer_from_certificate(certificate: &CertificateDer<'_>) -> Peer {
    match (Identity::from_certificate(certificate), not_after(certificate)) {
        (Ok(identity), Some(until)) => Peer::Node(NodePeer { identity, until }),
        _ => Peer::UnknownCertificate,
    }
}

/// The expiry date. To avoid parsing ASN.1 here, this verifies the certificate at a time far in the
/// future: the error contains the expiry date.
fn not_after(certificate: &CertificateDer<'_>) -> Option<Timestamp> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    let far_future = UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX));
    let usage = KeyUsage::client_auth();
    let result = certificate.verify_for_usage(&[], &[], &[], far_future, usage, None, None);
    let Err(webpki::Error::CertExpired { not_after, .. }) = result else { return None };
    Timestamp::from_second(i64::try_from(not_after.as_secs()).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use farrier_wire::proof::{NodeKey, Purpose};
    use jiff::SignedDuration;

    use super::*;

    #[test]
    fn the_expiry_is_read_from_the_certificate() {
        let folder = tempfile::tempdir().unwrap();
        let now = Timestamp::now();
        let authority = Authority::open(folder.path(), now).unwrap();
        let identity: Identity = "farrier:node:a?3".parse().unwrap();
        let point = NodeKey::generate().unwrap().prove(Purpose::Renew).unwrap().point;
        // X.509 encodes dates from 2050 on differently.
        for years in [0, 1, 60] {
            let life = SignedDuration::from_hours(years * 366 * 24 + 1);
            let issued = authority.certify(&identity, &point, life, now).unwrap();
            let until = Timestamp::from_second(issued.not_after.as_second()).unwrap();
            let peer = NodePeer { identity: identity.clone(), until };
            assert_eq!(peer_from_certificate(&issued.certificate), Peer::Node(peer));
        }
        assert_eq!(
            peer_from_certificate(authority.certificate()),
            Peer::UnknownCertificate,
            "the certificate of the authority names no node"
        );
        assert_eq!(
            peer_from_certificate(&CertificateDer::from(&b"nothing"[..])),
            Peer::UnknownCertificate
        );
    }
}
