//! How a node gets its first certificate: with a token, from a server whose authority has the fingerprint that it was told.

use farrier_fleet::fleet::NodeId;
use farrier_wire::client::{self, ConnectError, FingerprintError, ServerUrl, fingerprint};
use farrier_wire::identity::Identity;
use farrier_wire::proof::{KeyError, Purpose};
use farrier_wire::proto::{Certificate, EnrolRequest};
use sha2::{Digest, Sha256};
use tonic::Status;

use super::identity::{IdentityError, Keep};

/// Why a node has not enrolled.
#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    /// The fingerprint is none.
    #[error(transparent)]
    Fingerprint(#[from] FingerprintError),
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
    let mut agents = client::connect(url, client::pinned(wanted)?).await?;
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
