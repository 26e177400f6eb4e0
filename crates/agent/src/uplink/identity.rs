//! The node's key and certificate, in one file that is replaced as a whole.
//!
//! ```text
//! node.pem   not-before: 1763164800 / not-after: 1765756800 / the key / the certificate     mode 0600
//! ca.pem     the authority
//! ```

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use farrier_wire::identity::Identity;
use farrier_wire::pem;
use farrier_wire::proof::NodeKey;
use farrier_wire::proto::Certificate;
use jiff::Timestamp;
use rustls::crypto::ring as provider;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::{ClientConfig, RootCertStore};

/// Why the node has no identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// It was never given one.
    #[error("`{}` is not there: this node has not enrolled", .0.display())]
    NotEnrolled(PathBuf),
    /// A file cannot be read or written.
    #[error("failed to use `{}`", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        err: io::Error,
    },
    /// A file is something else.
    #[error("`{}` is no {what}", path.display())]
    Foreign {
        /// Which.
        path: PathBuf,
        /// What it should be.
        what: &'static str,
    },
    /// Key and certificate do not fit.
    #[error("the key and the certificate cannot be used")]
    Rustls(#[from] rustls::Error),
}

/// Where the node's identity is kept.
#[derive(Debug, Clone)]
pub struct Keep {
    dir: PathBuf,
    ca: Option<PathBuf>,
}

/// An identity that can be used.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) identity: Identity,
    pub(crate) tls: Arc<ClientConfig>,
}

impl Keep {
    /// In a folder; the authority's certificate there too, unless `ca` names another.
    pub fn new(dir: &Path, ca: Option<&Path>) -> Self {
        Self { dir: dir.to_owned(), ca: ca.map(Path::to_owned) }
    }

    /// The file with key and certificate.
    pub fn node_path(&self) -> PathBuf {
        self.dir.join("node.pem")
    }

    fn ca_path(&self) -> PathBuf {
        self.ca.clone().unwrap_or_else(|| self.dir.join("ca.pem"))
    }

    fn make_dir(&self) -> io::Result<()> {
        if self.dir.is_dir() {
            return Ok(());
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        give_to_owner_of(self.dir.parent(), &self.dir);
        Ok(())
    }

    fn read(&self) -> Result<String, IdentityError> {
        let path = self.node_path();
        fs::read_to_string(&path).map_err(|err| match err.kind() {
            io::ErrorKind::NotFound => IdentityError::NotEnrolled(path),
            _ => IdentityError::File { path, err },
        })
    }

    /// Reads key, certificate and authority.
    pub(crate) fn open(&self) -> Result<Opened, IdentityError> {
        let text = self.read()?;
        let path = self.node_path();
        let foreign = |what| IdentityError::Foreign { path: path.clone(), what };
        let key = pem::read(pem::PRIVATE_KEY, &text).into_iter().next();
        let key = PrivatePkcs8KeyDer::from(key.ok_or_else(|| foreign("private key"))?);
        let chain: Vec<CertificateDer<'static>> =
            pem::read(pem::CERTIFICATE, &text).into_iter().map(CertificateDer::from).collect();
        let own = chain.first().ok_or_else(|| foreign("certificate"))?;
        let identity =
            Identity::of_certificate(own).map_err(|_| foreign("certificate of a node"))?;
        let path = self.ca_path();
        let authorities = fs::read_to_string(&path)
            .map_err(|err| IdentityError::File { path: path.clone(), err })?;
        let mut roots = RootCertStore::empty();
        for authority in pem::read(pem::CERTIFICATE, &authorities) {
            roots.add(authority.into())?;
        }
        if roots.is_empty() {
            return Err(IdentityError::Foreign { path, what: "certificate" });
        }
        let mut tls = ClientConfig::builder_with_provider(Arc::new(provider::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key.into())?;
        tls.alpn_protocols = vec![b"h2".to_vec()];
        tls.resumption = rustls::client::Resumption::disabled();
        Ok(Opened { identity, tls: Arc::new(tls) })
    }

    /// TLS with the node's key and certificate, for whoever has a connection of their own.
    pub fn tls(&self) -> Result<Arc<ClientConfig>, IdentityError> {
        self.open().map(|opened| opened.tls)
    }

    /// Whether there is an identity that can be used.
    pub fn check(&self) -> Result<Identity, IdentityError> {
        self.open().map(|opened| opened.identity)
    }

    /// Whether two thirds of the certificate's life are over.
    pub(crate) fn is_due(&self, now: Timestamp) -> bool {
        let Ok(text) = self.read() else { return false };
        let second = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().parse::<i64>().ok()
        };
        let (Some(from), Some(until)) = (second("not-before:"), second("not-after:")) else {
            return false;
        };
        now.as_second() > from + (until - from) / 3 * 2
    }

    /// Keeps what the server signed. `ca.pem` only where it is not there: who is trusted does not change by the way.
    pub(crate) fn store(&self, key: &NodeKey, signed: &Certificate) -> Result<(), IdentityError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |err| IdentityError::File { path, err }
        };
        self.make_dir().map_err(failed(&self.dir))?;
        let ca = self.ca_path();
        if !ca.exists() {
            write(&ca, 0o644, &pem::write(pem::CERTIFICATE, &signed.authority))
                .map_err(failed(&ca))?;
        }
        let text = format!(
            "not-before: {}\nnot-after: {}\n{}{}",
            signed.not_before_s,
            signed.not_after_s,
            pem::write(pem::PRIVATE_KEY, key.pkcs8()),
            pem::write(pem::CERTIFICATE, &signed.node),
        );
        let path = self.node_path();
        write(&path, 0o600, &text).map_err(failed(&path))
    }

    /// The key of an enrolment that was begun: with it a lost answer can be asked for again.
    pub(crate) fn key_to_enrol(&self) -> Result<NodeKey, IdentityError> {
        let path = self.dir.join("enrol.key");
        let failed = |err| IdentityError::File { path: path.clone(), err };
        let kept = fs::read_to_string(&path).ok();
        let kept = kept.and_then(|text| pem::read(pem::PRIVATE_KEY, &text).into_iter().next());
        if let Some(key) = kept.and_then(|der| NodeKey::from_pkcs8(&der).ok()) {
            return Ok(key);
        }
        self.make_dir().map_err(failed)?;
        let key = NodeKey::generate().map_err(|err| failed(io::Error::other(err)))?;
        write(&path, 0o600, &pem::write(pem::PRIVATE_KEY, key.pkcs8())).map_err(failed)?;
        Ok(key)
    }

    /// The enrolment is finished, or was refused for good.
    pub(crate) fn forget_key_to_enrol(&self) {
        let _ = fs::remove_file(self.dir.join("enrol.key"));
    }
}

/// Whole or not at all, and never readable by more than `mode` says.
fn write(path: &Path, mode: u32, text: &str) -> io::Result<()> {
    let part = path.with_extension("part");
    match fs::remove_file(&part) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
        _ => (),
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&part)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    give_to_owner_of(path.parent(), &part);
    fs::rename(&part, path)?;
    path.parent().map_or(Ok(()), |dir| fs::File::open(dir)?.sync_all())
}

/// Root enrols, and the agent may run as a user of its own: what stands in that user's folder is that user's. Whoever is
/// not root has made it as themselves, and may not give it away.
fn give_to_owner_of(folder: Option<&Path>, path: &Path) {
    if let Some(Ok(meta)) = folder.map(fs::metadata) {
        let _ = std::os::unix::fs::chown(path, Some(meta.uid()), Some(meta.gid()));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_root_keeps_is_for_the_agents_user_and_nobody_else() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        fs::create_dir(&state).unwrap();
        let given = std::os::unix::fs::chown(&state, Some(4321), Some(4321)).is_ok();
        let keep = Keep::new(&state.join("identity"), None);
        assert!(matches!(keep.check(), Err(IdentityError::NotEnrolled(_))));
        let key = keep.key_to_enrol().unwrap();
        assert_eq!(keep.key_to_enrol().unwrap().pkcs8(), key.pkcs8(), "asked again with the same");
        keep.store(&key, &Certificate::default()).unwrap();
        keep.forget_key_to_enrol();
        assert!(matches!(keep.check(), Err(IdentityError::Foreign { .. })));
        let owner = fs::metadata(&state).unwrap().uid();
        for (name, mode) in [("", 0o700), ("node.pem", 0o600), ("ca.pem", 0o644)] {
            let meta = fs::metadata(state.join("identity").join(name)).unwrap();
            assert_eq!(meta.permissions().mode() & 0o777, mode, "{name}");
            assert_eq!(meta.uid(), owner, "{name}");
        }
        assert!(!given || owner == 4321);
    }
}
