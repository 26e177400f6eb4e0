//! The node's key and certificate, in one file that is replaced atomically.
//!
//! ```text
//! node.pem   issued, not-before and not-after, in seconds / the key / the certificate    mode 0600
//! ca.pem     the CA certificate
//! ```

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use farrier_wire::file_mode::{self, FileKind, LooseModes};
use farrier_wire::identity::Identity;
use farrier_wire::pem;
use farrier_wire::proof::NodeKey;
use farrier_wire::proto::Certificate;
use jiff::{SignedDuration, Timestamp};
use rustls::crypto::ring as provider;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::{ClientConfig, RootCertStore};
use sha2::{Digest, Sha256};

/// Longest interval between two checks whether renewal is due. It applies if the certificate is
/// valid for weeks.
const RENEWAL_CHECK_MAX: Duration = Duration::from_secs(600);

/// Why the node has no usable identity.
#[derive(Debug, thiserror::Error)]
pub enum NodeIdentityError {
    #[error("`{}` does not exist: this node has not enrolled", .0.display())]
    NotEnrolled(PathBuf),
    #[error("failed to use `{}`", path.display())]
    File {
        path: PathBuf,
        #[source]
        err: io::Error,
    },
    /// A file does not have the expected content.
    #[error("`{}` contains no {what}", path.display())]
    UnexpectedContent {
        path: PathBuf,
        /// The expected content.
        what: &'static str,
    },
    /// Other users may read the key.
    #[error(transparent)]
    Modes(#[from] LooseModes),
    /// The key and certificate do not match.
    #[error("the key and the certificate are unusable")]
    Rustls(#[from] rustls::Error),
}

/// Directory with the node's identity, and path of the CA certificate.
#[derive(Debug, Clone)]
pub struct IdentityStore {
    dir: PathBuf,
    ca: Option<PathBuf>,
}

/// An identity that was read from its files, with the TLS configuration for it.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) identity: Identity,
    pub(crate) tls: Arc<ClientConfig>,
    /// Identifies this enrolment by its CA and subject. A renewal does not change it.
    pub(crate) enrolment: String,
    /// Validity of the certificate. `None` if it is unknown. The certificate is then not renewed.
    pub(crate) validity: Option<Validity>,
}

impl IdentityStore {
    /// Uses `ca.pem` in `dir` unless `ca` names another file.
    pub fn new(dir: &Path, ca: Option<&Path>) -> Self {
        Self { dir: dir.to_owned(), ca: ca.map(Path::to_owned) }
    }

    pub fn node_path(&self) -> PathBuf {
        self.dir.join("node.pem")
    }

    fn ca_path(&self) -> PathBuf {
        self.ca.clone().unwrap_or_else(|| self.dir.join("ca.pem"))
    }

    fn create_dir(&self) -> io::Result<()> {
        if self.dir.is_dir() {
            return Ok(());
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        chown_like(self.dir.parent(), &self.dir);
        Ok(())
    }

    /// Rejects a key that other users may read, because another user may have copied it.
    fn check_modes(&self) -> Result<(), NodeIdentityError> {
        let keys = [self.node_path(), self.dir.join("enrol.key")];
        let keys = keys.iter().map(|path| (path.as_path(), FileKind::Secret));
        let folder = [(self.dir.as_path(), FileKind::SecretFolder)];
        let result = file_mode::check(folder.into_iter().chain(keys));
        Ok(result.map_err(|err| NodeIdentityError::File { path: self.dir.clone(), err })??)
    }

    fn read(&self) -> Result<String, NodeIdentityError> {
        self.check_modes()?;
        let path = self.node_path();
        fs::read_to_string(&path).map_err(|err| match err.kind() {
            io::ErrorKind::NotFound => NodeIdentityError::NotEnrolled(path),
            _ => NodeIdentityError::File { path, err },
        })
    }

    /// Reads the key, certificate and CA.
    pub(crate) fn open(&self) -> Result<Opened, NodeIdentityError> {
        let text = self.read()?;
        let path = self.node_path();
        let unexpected = |what| NodeIdentityError::UnexpectedContent { path: path.clone(), what };
        let key = pem::read(pem::PRIVATE_KEY, &text).into_iter().next();
        let key = PrivatePkcs8KeyDer::from(key.ok_or_else(|| unexpected("private key"))?);
        let chain: Vec<CertificateDer<'static>> =
            pem::read(pem::CERTIFICATE, &text).into_iter().map(CertificateDer::from).collect();
        let leaf = chain.first().ok_or_else(|| unexpected("certificate"))?;
        let identity =
            Identity::from_certificate(leaf).map_err(|_| unexpected("certificate of a node"))?;
        let path = self.ca_path();
        let authorities = fs::read_to_string(&path)
            .map_err(|err| NodeIdentityError::File { path: path.clone(), err })?;
        let mut roots = RootCertStore::empty();
        let mut enrolment = Sha256::new();
        for authority in pem::read(pem::CERTIFICATE, &authorities) {
            enrolment.update(&authority);
            roots.add(authority.into())?;
        }
        let enrolment = enrolment.chain_update(identity.to_string()).finalize();
        let mut short = [0; 16];
        short.copy_from_slice(&enrolment[..16]);
        let enrolment = format!("{:032x}", u128::from_be_bytes(short));
        if roots.is_empty() {
            return Err(NodeIdentityError::UnexpectedContent { path, what: "certificate" });
        }
        let mut tls = ClientConfig::builder_with_provider(Arc::new(provider::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key.into())?;
        tls.alpn_protocols = vec![b"h2".to_vec()];
        tls.resumption = rustls::client::Resumption::disabled();
        Ok(Opened { identity, tls: Arc::new(tls), enrolment, validity: Validity::parse(&text) })
    }

    /// TLS configuration with the node's key and certificate, for callers that open their own
    /// connection.
    pub fn tls(&self) -> Result<Arc<ClientConfig>, NodeIdentityError> {
        self.open().map(|opened| opened.tls)
    }

    /// Returns the identity if it is usable.
    pub fn check(&self) -> Result<Identity, NodeIdentityError> {
        self.open().map(|opened| opened.identity)
    }

    /// Stores the key and the certificate. The CA certificate is written only if it is missing,
    /// because a renewal must not change which CA the node trusts.
    pub(crate) fn store(
        &self,
        key: &NodeKey,
        signed: &Certificate,
    ) -> Result<(), NodeIdentityError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |err| NodeIdentityError::File { path, err }
        };
        self.create_dir().map_err(failed(&self.dir))?;
        let ca = self.ca_path();
        if !ca.exists() {
            write(&ca, 0o644, &pem::write(pem::CERTIFICATE, &signed.authority))
                .map_err(failed(&ca))?;
        }
        let text = format!(
            "issued: {}\nnot-before: {}\nnot-after: {}\n{}{}",
            signed.server_time_ms / 1000,
            signed.not_before_s,
            signed.not_after_s,
            pem::write(pem::PRIVATE_KEY, key.pkcs8()),
            pem::write(pem::CERTIFICATE, &signed.node),
        );
        let path = self.node_path();
        write(&path, 0o600, &text).map_err(failed(&path))
    }

    /// The key of an enrolment in progress. If there is none, it is created. If the response of the
    /// server was lost, another attempt with the same key gets the response again.
    pub(crate) fn enrolment_key(&self) -> Result<NodeKey, NodeIdentityError> {
        self.check_modes()?;
        let path = self.dir.join("enrol.key");
        let failed = |err| NodeIdentityError::File { path: path.clone(), err };
        let pem_text = fs::read_to_string(&path).ok();
        let stored =
            pem_text.and_then(|text| pem::read(pem::PRIVATE_KEY, &text).into_iter().next());
        if let Some(key) = stored.and_then(|der| NodeKey::from_pkcs8(&der).ok()) {
            return Ok(key);
        }
        self.create_dir().map_err(failed)?;
        let key = NodeKey::generate().map_err(|err| failed(io::Error::other(err)))?;
        write(&path, 0o600, &pem::write(pem::PRIVATE_KEY, key.pkcs8())).map_err(failed)?;
        Ok(key)
    }

    /// Removes the key of an enrolment in progress, because the enrolment has completed.
    pub(crate) fn remove_enrolment_key(&self) {
        let _ = fs::remove_file(self.dir.join("enrol.key"));
    }
}

/// Validity period of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Validity {
    from: Timestamp,
    pub(crate) until: Timestamp,
}

impl Validity {
    /// Parses the header of `node.pem`. The validity starts at `issued`. The value of `not-before`
    /// is hours earlier.
    fn parse(text: &str) -> Option<Self> {
        let time = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            Timestamp::from_second(line.trim().parse().ok()?).ok()
        };
        // Older agents wrote only `not-before`.
        let from = time("issued:").or_else(|| time("not-before:"))?;
        Some(Self { from, until: time("not-after:")? })
    }

    fn length(self) -> SignedDuration {
        self.until.duration_since(self.from)
    }

    /// `true` once two thirds of the validity have passed.
    pub(crate) fn is_renewal_due(self, now: Timestamp) -> bool {
        now.duration_since(self.from) > self.length() / 3 * 2
    }

    /// How often to check whether renewal is due, and how often to retry a failed renewal. There
    /// are several checks in the last third of the validity.
    pub(crate) fn renewal_check_interval(self) -> Duration {
        let interval = Duration::try_from(self.length() / 20).unwrap_or_default();
        interval.clamp(Duration::from_secs(1), RENEWAL_CHECK_MAX)
    }
}

/// Writes a file atomically. Its permissions are never wider than `mode`.
fn write(path: &Path, mode: u32, text: &str) -> io::Result<()> {
    let part = path.with_extension("part");
    match fs::remove_file(&part) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
        _ => (),
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&part)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    chown_like(path.parent(), &part);
    fs::rename(&part, path)?;
    path.parent().map_or(Ok(()), |dir| fs::File::open(dir)?.sync_all())
}

/// Gives `path` the same owner as `folder`. Enrolment runs as root, but the agent may run as
/// another user. That user must own the files in the agent's directory. If this process is not
/// root, the call fails, but the file then already has the right owner.
fn chown_like(folder: Option<&Path>, path: &Path) {
    if let Some(Ok(meta)) = folder.map(fs::metadata) {
        let _ = std::os::unix::fs::chown(path, Some(meta.uid()), Some(meta.gid()));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_certificate_is_renewed_after_two_thirds_of_its_validity() {
        let issued = 1_763_164_800;
        let at = |second: i64| Timestamp::from_second(issued + second).unwrap();
        for (life_s, every_s) in [(30 * 86_400, 600), (3600, 180), (10, 1)] {
            let until = issued + life_s;
            // `not-before` is hours earlier, because clocks of nodes may be slow.
            let text =
                format!("issued: {issued}\nnot-before: {}\nnot-after: {until}\n", issued - 21_600);
            let validity = Validity::parse(&text).unwrap();
            assert_eq!(validity.until, at(life_s));
            assert!(
                !validity.is_renewal_due(at(life_s / 3 * 2 - 1))
                    && validity.is_renewal_due(at(life_s / 3 * 2 + 1))
            );
            assert_eq!(validity.renewal_check_interval().as_secs(), every_s);
        }
        // Older agents wrote this header.
        let validity = Validity::parse("not-before: 0\nnot-after: 300\n").unwrap();
        assert!(validity.is_renewal_due(Timestamp::from_second(201).unwrap()));
        assert_eq!(Validity::parse("not-after: 300\n"), None);
    }

    #[test]
    fn files_written_by_root_belong_to_the_agents_user() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        fs::create_dir(&state).unwrap();
        let is_root = std::os::unix::fs::chown(&state, Some(4321), Some(4321)).is_ok();
        let identity_store = IdentityStore::new(&state.join("identity"), None);
        assert!(matches!(identity_store.check(), Err(NodeIdentityError::NotEnrolled(_))));
        let key = identity_store.enrolment_key().unwrap();
        assert_eq!(
            identity_store.enrolment_key().unwrap().pkcs8(),
            key.pkcs8(),
            "a retry uses the same key"
        );
        identity_store.store(&key, &Certificate::default()).unwrap();
        identity_store.remove_enrolment_key();
        assert!(matches!(identity_store.check(), Err(NodeIdentityError::UnexpectedContent { .. })));
        let owner = fs::metadata(&state).unwrap().uid();
        for (name, mode) in [("", 0o700), ("node.pem", 0o600), ("ca.pem", 0o644)] {
            let meta = fs::metadata(state.join("identity").join(name)).unwrap();
            assert_eq!(meta.permissions().mode() & 0o777, mode, "{name}");
            assert_eq!(meta.uid(), owner, "{name}");
        }
        assert!(!is_root || owner == 4321);
    }

    #[test]
    fn a_key_readable_by_others_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("identity");
        let identity_store = IdentityStore::new(&dir, None);
        let key = identity_store.enrolment_key().unwrap();
        identity_store.store(&key, &Certificate::default()).unwrap();
        for (path, mode, original_mode) in [
            (identity_store.node_path(), 0o640, 0o600),
            (identity_store.node_path(), 0o604, 0o600),
            (dir.join("enrol.key"), 0o644, 0o600),
            (dir.clone(), 0o775, 0o700),
        ] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            for result in
                [identity_store.check().map(drop), identity_store.enrolment_key().map(drop)]
            {
                let text = result.as_ref().map_err(ToString::to_string);
                let is_rejected = matches!(&result, Err(NodeIdentityError::Modes(_)));
                assert!(is_rejected, "{mode:o}: {text:?}");
            }
            fs::set_permissions(&path, fs::Permissions::from_mode(original_mode)).unwrap();
        }
        assert!(!matches!(identity_store.check(), Err(NodeIdentityError::Modes(_))));
    }
}
