//! The fleet's certificate authority: signs the certificates of the server and of nodes.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use farrier_wire::identity::Identity;
use farrier_wire::pem;
use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType, SerialNumber,
    SignatureAlgorithm,
};
use ring::rand::{SecureRandom, SystemRandom};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use webpki::EndEntityCert;

use crate::clock::WallClock;
use crate::log::Hash;
use crate::run::log_path;

/// An agent gets its certificate together with a start of validity. That start is this long before
/// the time of issue.
const BACKDATED: SignedDuration = SignedDuration::from_hours(6);
/// 2026-01-01T00:00:00Z. Certificates of the authority and of nodes are valid from this time, and
/// not from the time of issue. They therefore stay valid even if the clock was ahead when they were
/// issued. A clock that shows an earlier time than this is wrong, because no version of this
/// program is that old.
const VALID_FROM: Timestamp = Timestamp::constant(1_767_225_600, 0);
/// Default validity of a node's certificate. A node renews its certificate after two thirds of this
/// time. A node that was off until its certificate expired has to enrol again.
pub const NODE_LIFE: SignedDuration = SignedDuration::from_hours(30 * 24);
/// The server's certificate is valid for this long before and after its issue, so that clients with
/// clock skew accept it. The server issues itself a new certificate at each start, each week, and
/// after a clock step. Some clients, such as Apple's, refuse a validity of more than 825 days.
const SERVER_LIFE: SignedDuration = SignedDuration::from_hours(365 * 24);
/// Validity of the authority. When the authority is replaced, every node has to enrol again.
const AUTHORITY_LIFE: SignedDuration = SignedDuration::from_hours(10 * 365 * 24);

/// An authority needs both files.
const FILES: [&str; 2] = ["ca.key", "ca.pem"];

#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error("failed to use `{}`", path.display())]
    File {
        path: PathBuf,
        #[source]
        err: io::Error,
    },
    #[error("`{}` is not a {what}", path.display())]
    InvalidFile {
        path: PathBuf,
        /// The expected content.
        what: &'static str,
    },
    /// The key and the certificate belong to two different authorities.
    #[error("`{}` is not the key of `{}`", key.display(), certificate.display())]
    KeyMismatch { key: PathBuf, certificate: PathBuf },
    /// The authority is lost. The server does not create a new authority, because no node or user
    /// would trust it.
    #[error("`{}` has the log of a fleet, but lacks `ca.key` or `ca.pem`", .0.display())]
    Missing(PathBuf),
    /// With another authority, no node or user would trust the server.
    #[error("`ca.pem` has the fingerprint {found}, but the authority of this server has {had}")]
    Replaced { had: String, found: String },
    #[error("failed to issue a certificate")]
    Certificate(#[from] rcgen::Error),
    #[error("`{0}` is not a valid host name or address for a certificate")]
    Name(String),
    #[error("the system provides no random numbers")]
    Random,
}

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    clock: WallClock,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Authority")
    }
}

#[derive(Debug, Clone)]
pub struct Issued {
    pub certificate: CertificateDer<'static>,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
}

struct Point<'p>(&'p [u8]);

impl PublicKeyData for Point<'_> {
    fn der_bytes(&self) -> &[u8] {
        self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl Authority {
    /// Opens the authority in the data directory, or creates it under a lock. A fleet gets its
    /// authority before its first log entry. If there is a log but no authority, the authority was
    /// lost, and this function fails. Only [`Self::open_or_replace`] replaces the authority.
    pub fn open(dir: &Path, now: Timestamp) -> Result<Self, AuthorityError> {
        let is_whole = FILES.iter().all(|name| dir.join(name).exists());
        if log_path(dir).exists() && !is_whole {
            return Err(AuthorityError::Missing(dir.to_owned()));
        }
        Self::open_or_create(dir, now)
    }

    /// Like [`Self::open`], but replaces a lost authority. Every node then has to enrol again, and
    /// every user has to log in again. If only one file of the old authority is left, the suffix
    /// `.lost` is added to its name.
    pub fn open_or_replace(dir: &Path, now: Timestamp) -> Result<Self, AuthorityError> {
        if FILES.iter().any(|name| !dir.join(name).exists()) {
            for name in FILES.iter().filter(|name| dir.join(name).exists()) {
                let path = dir.join(name);
                let aside = dir.join(format!("{name}.lost"));
                fs::rename(&path, aside).map_err(|err| AuthorityError::File { path, err })?;
            }
        }
        Self::open_or_create(dir, now)
    }

    fn open_or_create(dir: &Path, now: Timestamp) -> Result<Self, AuthorityError> {
        let (key_path, path) = (dir.join("ca.key"), dir.join("ca.pem"));
        if let Some(authority) = Self::read(&key_path, &path)? {
            return Ok(authority);
        }
        let lock_path = dir.join("ca.lock");
        let mut lock = OpenOptions::new();
        lock.write(true).create(true).truncate(false).mode(0o600);
        let lock = lock.open(&lock_path).and_then(|lock| lock.lock().map(|()| lock));
        let _lock = lock.map_err(|err| AuthorityError::File { path: lock_path, err })?;
        // Another process may have created the authority before this process had the lock.
        match Self::read(&key_path, &path)? {
            Some(authority) => Ok(authority),
            None => Self::create(&key_path, &path, now),
        }
    }

    /// Reads the files. If the certificate exists, its key exists too, because the certificate is
    /// written last and read first.
    fn read(key_path: &Path, path: &Path) -> Result<Option<Self>, AuthorityError> {
        let text = |path: &Path| {
            fs::read_to_string(path)
                .map_err(|err| AuthorityError::File { path: path.to_owned(), err })
        };
        let certificate = match text(path) {
            // There is no certificate. If there is a key, a crash interrupted the creation, and the
            // key was never used.
            Err(AuthorityError::File { err, .. }) if err.kind() == io::ErrorKind::NotFound => {
                return Ok(None);
            }
            read => read?,
        };
        let key = text(key_path)?;
        let invalid =
            |path: &Path, what| AuthorityError::InvalidFile { path: path.to_owned(), what };
        let key = pem::read(pem::PRIVATE_KEY, &key).into_iter().next();
        let key = key.ok_or_else(|| invalid(key_path, "private key"))?;
        let key = parse_key(&key).map_err(|_| invalid(key_path, "private key"))?;
        let certificate = pem::read(pem::CERTIFICATE, &certificate).into_iter().next();
        let certificate = certificate.ok_or_else(|| invalid(path, "certificate"))?;
        let certificate = CertificateDer::from(certificate);
        let read = EndEntityCert::try_from(&certificate);
        let point = read.map_err(|_| invalid(path, "certificate"))?.subject_public_key_info();
        if *point != *key.subject_public_key_info() {
            let (key, certificate) = (key_path.to_owned(), path.to_owned());
            return Err(AuthorityError::KeyMismatch { key, certificate });
        }
        let issuer = Issuer::new(params(&key), key);
        Ok(Some(Self { issuer, certificate, clock: WallClock::default() }))
    }

    fn create(key_path: &Path, path: &Path, now: Timestamp) -> Result<Self, AuthorityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = params(&key);
        set_validity(&mut params, VALID_FROM, now.max(VALID_FROM) + AUTHORITY_LIFE)?;
        let certificate = params.self_signed(&key)?.der().clone();
        write(key_path, 0o600, &pem::write(pem::PRIVATE_KEY, &key.serialize_der()))?;
        write(path, 0o644, &pem::write(pem::CERTIFICATE, &certificate))?;
        Ok(Self { issuer: Issuer::new(params, key), certificate, clock: WallClock::default() })
    }

    pub(crate) fn with_clock(self, clock: WallClock) -> Self {
        Self { clock, ..self }
    }

    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// SHA-256 of the certificate, for comparison by people.
    pub fn fingerprint(&self) -> String {
        Hash::digest(&self.certificate).to_string()
    }

    /// Issues a node certificate for a public key. The node has proven that it has the private key.
    pub fn certify(
        &self,
        identity: &Identity,
        point: &[u8],
        life: SignedDuration,
        now: Timestamp,
    ) -> Result<Issued, AuthorityError> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, format!("node:{}", identity.node));
        let uri = identity.to_string();
        params.subject_alt_names =
            vec![SanType::URI(uri.clone().try_into().map_err(|_| AuthorityError::Name(uri))?)];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        // Agents of earlier versions compute the time of renewal from the `not_before` that the
        // server sends them. That value is therefore close to the time of issue. The certificate
        // itself is valid from an earlier time.
        let (not_before, not_after) = (now - BACKDATED, now + life);
        set_validity(&mut params, not_before.min(VALID_FROM), not_after)?;
        let certificate = params.signed_by(&Point(point), &self.issuer)?.der().clone();
        Ok(Issued { certificate, not_before, not_after })
    }

    /// Issues a server certificate with a new key that is never stored.
    pub fn certify_server(
        &self,
        names: &[String],
        now: Timestamp,
    ) -> Result<(CertificateDer<'static>, PrivatePkcs8KeyDer<'static>), AuthorityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "farrier server");
        for name in names {
            let wrong = |_| AuthorityError::Name(name.clone());
            params.subject_alt_names.push(match name.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(name.clone().try_into().map_err(wrong)?),
            });
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let now = self.clock.wall_now(now);
        set_validity(&mut params, now - SERVER_LIFE, now + SERVER_LIFE)?;
        let certificate = params.signed_by(&key, &self.issuer)?.der().clone();
        Ok((certificate, PrivatePkcs8KeyDer::from(key.serialize_der())))
    }
}

fn parse_key(pkcs8: &[u8]) -> Result<KeyPair, rcgen::Error> {
    KeyPair::from_pkcs8_der_and_sign_algo(&PrivatePkcs8KeyDer::from(pkcs8), &PKCS_ECDSA_P256_SHA256)
}

/// Certificate parameters of the authority, derived from its key.
fn params(key: &KeyPair) -> CertificateParams {
    let digest = Hash::digest(key.public_key_raw()).to_string();
    let short = &digest[..8];
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, format!("farrier fleet {short}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

/// Sets the validity and a random serial number.
fn set_validity(
    params: &mut CertificateParams,
    from: Timestamp,
    until: Timestamp,
) -> Result<(), AuthorityError> {
    let at = |time: Timestamp| {
        let seconds = u64::try_from(time.as_second()).unwrap_or_default();
        rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds)
    };
    params.not_before = at(from);
    params.not_after = at(until);
    let mut serial = [0; 16];
    SystemRandom::new().fill(&mut serial).map_err(|_| AuthorityError::Random)?;
    // Makes the serial a positive number of 16 bytes.
    serial[0] = serial[0] & 0x7f | 0x40;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    Ok(())
}

/// Writes a file atomically. The file has mode `mode` from the start.
fn write(path: &Path, mode: u32, text: &str) -> Result<(), AuthorityError> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let written = || {
        match fs::remove_file(&part) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
            _ => (),
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&part)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&part, path)?;
        path.parent().map_or(Ok(()), |dir| fs::File::open(dir)?.sync_all())
    };
    written().map_err(|err| AuthorityError::File { path: path.to_owned(), err })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Whether a node certificate that was issued at `made` is valid at `at`.
    fn is_valid(made: Timestamp, at: Timestamp) -> bool {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::open(folder.path(), made).unwrap();
        let identity: Identity = "farrier:node:a?3".parse().unwrap();
        let key = farrier_wire::proof::NodeKey::generate().unwrap();
        let purpose = farrier_wire::proof::Purpose::Renew;
        let point = key.prove(purpose).unwrap().point;
        let issued = authority.certify(&identity, &point, NODE_LIFE, made).unwrap();
        assert_eq!(Identity::from_certificate(&issued.certificate), Ok(identity));
        assert_eq!(issued.not_before, made - BACKDATED);
        let certificate = EndEntityCert::try_from(&issued.certificate).unwrap();
        let roots = [webpki::anchor_from_trusted_cert(authority.certificate()).unwrap()];
        let at = Duration::from_secs(u64::try_from(at.as_second()).unwrap());
        let at = rustls::pki_types::UnixTime::since_unix_epoch(at);
        let (algorithms, usage) =
            (&[webpki::ring::ECDSA_P256_SHA256], webpki::KeyUsage::client_auth());
        certificate.verify_for_usage(algorithms, &roots, &[], at, usage, None, None).is_ok()
    }

    #[test]
    fn a_certificate_is_valid_with_clock_skew_at_issue_and_at_use() {
        let now: Timestamp = "2026-11-15T00:00:00Z".parse().unwrap();
        for (hours, is_good) in
            [(-24 * 300, true), (-1, true), (0, true), (1, true), (24 * 31, false)]
        {
            assert_eq!(
                is_valid(now, now + SignedDuration::from_hours(hours)),
                is_good,
                "{hours} h"
            );
        }
        // The certificate was issued when the clock was a day ahead, or 29 days behind, which is
        // less than the validity.
        for hours in [24, -24 * 29] {
            assert!(is_valid(now + SignedDuration::from_hours(hours), now), "{hours} h");
        }
    }

    #[test]
    fn an_authority_is_valid_whatever_the_clock_showed_at_its_creation() {
        for (made, until) in [
            ("2026-11-15T00:00:00Z", &b"361112000000Z"[..]),
            ("2027-11-15T00:00:00Z", b"371112000000Z"),
            ("1970-01-02T00:00:00Z", b"351230000000Z"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let authority = Authority::open(folder.path(), made.parse().unwrap()).unwrap();
            let dates = [b"260101000000Z", until];
            for date in dates {
                let is_there =
                    authority.certificate().windows(date.len()).any(|window| window == date);
                assert!(is_there, "{made}: {}", String::from_utf8_lossy(date));
            }
        }
    }

    #[test]
    fn an_authority_persists_and_its_key_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let now = Timestamp::now();
        let first = Authority::open(folder.path(), now).unwrap();
        let again = Authority::open(folder.path(), now).unwrap();
        assert_eq!(first.fingerprint(), again.fingerprint());
        assert_eq!(first.fingerprint().len(), 64);
        let mode = fs::metadata(folder.path().join("ca.key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::write(folder.path().join("ca.key"), "nothing").unwrap();
        assert!(matches!(
            Authority::open(folder.path(), now),
            Err(AuthorityError::InvalidFile { what: "private key", .. })
        ));
        fs::remove_file(folder.path().join("ca.key")).unwrap();
        // A certificate without its key is not replaced silently, because every node would then
        // have to enrol again.
        assert!(matches!(Authority::open(folder.path(), now), Err(AuthorityError::File { .. })));
    }
    #[test]
    fn concurrent_opens_create_one_authority() {
        for _ in 0..20 {
            let folder = tempfile::tempdir().unwrap();
            let start = std::sync::Barrier::new(8);
            let open = || {
                start.wait();
                Authority::open(folder.path(), Timestamp::now()).unwrap().fingerprint()
            };
            let mut fingerprints: Vec<String> = std::thread::scope(|scope| {
                let all: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
                all.into_iter().map(|handle| handle.join().unwrap()).collect()
            });
            fingerprints
                .push(Authority::open(folder.path(), Timestamp::now()).unwrap().fingerprint());
            fingerprints.dedup();
            assert_eq!(fingerprints.len(), 1, "one authority: {fingerprints:?}");
        }
    }

    #[test]
    fn a_lost_authority_is_replaced_only_on_request() {
        let folder = tempfile::tempdir().unwrap();
        let now = Timestamp::now();
        let first = Authority::open(folder.path(), now).unwrap().fingerprint();
        fs::write(log_path(folder.path()), "").unwrap();
        assert_eq!(Authority::open(folder.path(), now).unwrap().fingerprint(), first);
        assert_eq!(Authority::open_or_replace(folder.path(), now).unwrap().fingerprint(), first);
        let mut last = first;
        for lost in FILES {
            fs::remove_file(folder.path().join(lost)).unwrap();
            let opened = Authority::open(folder.path(), now);
            assert!(matches!(opened, Err(AuthorityError::Missing(_))), "{opened:?}");
            let other = Authority::open_or_replace(folder.path(), now).unwrap().fingerprint();
            assert_ne!(other, last);
            assert_eq!(Authority::open(folder.path(), now).unwrap().fingerprint(), other);
            last = other;
        }
        assert!(folder.path().join("ca.pem.lost").exists());
    }

    #[test]
    fn a_key_of_another_authority_is_refused() {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let now = Timestamp::now();
        Authority::open(folder.path(), now).unwrap();
        Authority::open(other.path(), now).unwrap();
        fs::copy(other.path().join("ca.key"), folder.path().join("ca.key")).unwrap();
        assert!(matches!(
            Authority::open(folder.path(), now),
            Err(AuthorityError::KeyMismatch { .. })
        ));
    }
}
