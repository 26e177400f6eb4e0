//! TLS to receivers: the machine's root certificates, and those in the receiver's file.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring as provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use crate::bounded_file;
use crate::error::{DeliveryError, RootsError};

/// A bundle with all public authorities is a quarter of this.
const CA_BYTES_MAX: u64 = 1 << 20;

/// The certificates of a PEM file that rustls accepts as roots.
pub(crate) fn read_ca(path: &Path) -> Result<Vec<CertificateDer<'static>>, RootsError> {
    let unreadable = |err| RootsError::Unreadable { path: path.to_owned(), err };
    if !path.is_absolute() {
        let why = "expected an absolute path";
        return Err(unreadable(std::io::Error::new(std::io::ErrorKind::InvalidInput, why)));
    }
    let text = bounded_file::read(path, CA_BYTES_MAX).map_err(unreadable)?;
    let text = text.ok_or_else(|| unreadable(std::io::ErrorKind::FileTooLarge.into()))?;
    let invalid = || RootsError::NoCertificate { path: path.to_owned() };
    let certificates = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|_| invalid())?;
    let is_valid = |certificate: &CertificateDer<'static>| {
        RootCertStore::empty().add(certificate.clone()).is_ok()
    };
    if certificates.is_empty() || !certificates.iter().all(is_valid) {
        return Err(invalid());
    }
    Ok(certificates)
}

/// All root certificates for a receiver. They are read for each delivery, because a daemon runs
/// longer than its machine's certificates last.
pub(crate) fn roots(ca: Option<&Path>) -> Result<Vec<CertificateDer<'static>>, RootsError> {
    let mut roots = rustls_native_certs::load_native_certs().certs;
    roots.retain(|certificate| RootCertStore::empty().add(certificate.clone()).is_ok());
    if let Some(path) = ca {
        roots.extend(read_ca(path)?);
    }
    if roots.is_empty() { Err(RootsError::NoneInstalled) } else { Ok(roots) }
}

/// A client configuration with these roots. TLS 1.2 is allowed, because receivers are not ours.
pub(crate) fn client_config(
    roots: Vec<CertificateDer<'static>>,
) -> Result<Arc<ClientConfig>, DeliveryError> {
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(roots);
    let builder = ClientConfig::builder_with_provider(Arc::new(provider::default_provider()));
    let builder = builder
        .with_protocol_versions(rustls::ALL_VERSIONS)
        .map_err(|_| DeliveryError::Invalid { what: "the TLS configuration" })?;
    Ok(Arc::new(builder.with_root_certificates(store).with_no_client_auth()))
}

/// Reads the roots without blocking the runtime.
pub(crate) async fn load_roots(
    ca: Option<&Path>,
) -> Result<Vec<CertificateDer<'static>>, DeliveryError> {
    // Without a file, these are the roots of the machine.
    let path = ca.unwrap_or(Path::new(""));
    let ca = ca.map(Path::to_owned);
    let loaded = bounded_file::on_blocking_thread(path, move || roots(ca.as_deref())).await;
    let unreadable = |err| RootsError::Unreadable { path: path.to_owned(), err };
    Ok(loaded.map_err(unreadable)??)
}
