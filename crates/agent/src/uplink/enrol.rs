//! Enrolment: the node uses a join token to get its first certificate. The CA of the server has to
//! match a fingerprint.

use farrier_fleet::fleet::NodeId;
use farrier_wire::client::{self, ConnectError, FingerprintError, ServerUrl, fingerprint};
use farrier_wire::identity::Identity;
use farrier_wire::proof::{KeyError, Purpose};
use farrier_wire::proto::{Certificate, EnrolRequest};
use sha2::{Digest, Sha256};
use tonic::Status;

use super::identity::{IdentityStore, NodeIdentityError};

/// Why enrolment failed.
#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    /// The fingerprint does not parse.
    #[error(transparent)]
    Fingerprint(#[from] FingerprintError),
    /// The server is unreachable, or has another CA.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The identity could not be stored.
    #[error(transparent)]
    Identity(#[from] NodeIdentityError),
    /// The key could not be created.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The server refused the request.
    #[error("the server refused: {}", .0.message())]
    Refused(Box<Status>),
    /// The certificate that the server signed is for another node or from another CA.
    #[error("the certificate from the server is not for `{0}`, or not from the expected CA")]
    Other(NodeId),
    /// The system could not create a thread or timer.
    #[error("failed to start the async runtime")]
    Start(#[source] std::io::Error),
    #[error("failed to set up TLS")]
    Tls(#[from] rustls::Error),
}

#[derive(Debug, Clone)]
pub struct Enrolment {
    pub url: ServerUrl,
    pub node: NodeId,
    /// SHA-256 of the CA certificate.
    pub fingerprint: String,
    /// Where to store the key and certificate.
    pub identity_store: IdentityStore,
}

/// Enrols and stores the certificate. Idempotent: if the response was lost, another attempt gets
/// the same certificate.
pub fn enrol(enrolment: &Enrolment, token: &str) -> Result<Identity, EnrolError> {
    let expected_ca = fingerprint(&enrolment.fingerprint)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(EnrolError::Start)?;
    runtime.block_on(enrol_now(enrolment, token.trim(), expected_ca))
}

async fn enrol_now(
    enrolment: &Enrolment,
    token: &str,
    expected_ca: [u8; 32],
) -> Result<Identity, EnrolError> {
    let Enrolment { url, node, identity_store, .. } = enrolment;
    let key = identity_store.enrolment_key()?;
    let purpose = Purpose::Enrol { node: node.as_str(), token };
    let request = EnrolRequest {
        token: token.to_owned(),
        node: node.to_string(),
        key: Some(key.prove(purpose)?),
    };
    let mut agents = client::connect(url, client::pinned(expected_ca)?).await?;
    let signed = agents.enrol(request).await;
    let signed = signed.map_err(|status| EnrolError::Refused(Box::new(status)))?.into_inner();
    let identity = check_certificate(node, &signed, expected_ca)?;
    identity_store.store(&key, &signed)?;
    identity_store.remove_enrolment_key();
    Ok(identity)
}

/// Checks that the certificate is for this node, and that the CA with this fingerprint signed it.
fn check_certificate(
    node: &NodeId,
    signed: &Certificate,
    expected_ca: [u8; 32],
) -> Result<Identity, EnrolError> {
    let other = || EnrolError::Other(node.clone());
    let identity = Identity::from_certificate(&signed.node).map_err(|_| other())?;
    let authority: [u8; 32] = Sha256::digest(&signed.authority).into();
    (identity.node == *node && authority == expected_ca).then_some(identity).ok_or_else(other)
}
