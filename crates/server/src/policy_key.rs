//! Keys that sign policies: ed25519, in the PEM files that `openssl genpkey -algorithm ed25519` and
//! `openssl pkey -pubout` write.

use std::io;
use std::path::{Path, PathBuf};

use farrier_fleet::fleet::Policy;
use farrier_fleet::fleet::policy::PolicySignature;
use farrier_wire::file_mode::{self, FileKind};
use farrier_wire::hex::hex;
use farrier_wire::pem;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use sha2::{Digest, Sha256};

/// What precedes the 32 bytes of an ed25519 public key in a PEM file: the object identifier of the
/// algorithm, and lengths (RFC 8410).
const SPKI_PREFIX: [u8; 12] =
    [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// Why a key could not be read.
#[derive(Debug, thiserror::Error)]
pub enum PolicyKeyError {
    #[error("failed to read the key `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        err: io::Error,
    },
    #[error("`{}` is not an ed25519 {what} key in PEM", path.display())]
    Form { path: PathBuf, what: &'static str },
    #[error("the private key is not secret: {0}")]
    Loose(file_mode::LooseModes),
}

/// Why a policy is not signed by a trusted key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicySignatureError {
    #[error("the policy has no signature")]
    Unsigned,
    #[error("no trusted key signed the policy: it has signatures of {}", keys.join(", "))]
    UnknownKey { keys: Vec<String> },
    #[error(
        "the signature of key {key} does not fit the policy: it was changed after it was signed"
    )]
    Invalid { key: String },
}

/// A public key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyKey([u8; 32]);

impl PolicyKey {
    pub fn read(path: &Path) -> Result<Self, PolicyKeyError> {
        let text = read(path)?;
        let form = || PolicyKeyError::Form { path: path.to_owned(), what: "public" };
        let blocks = pem::read(pem::PUBLIC_KEY, &text);
        let [block] = blocks.as_slice() else { return Err(form()) };
        let key = block.strip_prefix(&SPKI_PREFIX).and_then(|key| key.try_into().ok());
        key.map(Self).ok_or_else(form)
    }

    /// SHA-256 of the key, in hexadecimal digits.
    pub fn id(&self) -> String {
        hex(&Sha256::digest(self.0))
    }
}

/// A private key.
#[derive(Debug)]
pub struct PolicySigningKey(Ed25519KeyPair);

impl PolicySigningKey {
    pub fn read(path: &Path) -> Result<Self, PolicyKeyError> {
        let text = read(path)?;
        let loose = file_mode::check([(path, FileKind::Secret)]);
        if let Err(loose) =
            loose.map_err(|err| PolicyKeyError::Read { path: path.to_owned(), err })?
        {
            return Err(PolicyKeyError::Loose(loose));
        }
        let blocks = pem::read(pem::PRIVATE_KEY, &text);
        let key = blocks.first().filter(|_| blocks.len() == 1);
        // Keys of openssl have no public part.
        let pair = key.and_then(|key| Ed25519KeyPair::from_pkcs8_maybe_unchecked(key).ok());
        let form = || PolicyKeyError::Form { path: path.to_owned(), what: "private" };
        pair.map(Self).ok_or_else(form)
    }

    pub fn sign(&self, policy: &Policy) -> PolicySignature {
        let public = self.0.public_key().as_ref();
        let signature = hex(self.0.sign(&policy.signed_bytes()).as_ref());
        PolicySignature { key: hex(&Sha256::digest(public)), signature }
    }
}

fn read(path: &Path) -> Result<String, PolicyKeyError> {
    std::fs::read_to_string(path).map_err(|err| PolicyKeyError::Read { path: path.to_owned(), err })
}

/// Checks that one of the keys signed the policy. Signatures of other keys do not matter.
pub fn verify(policy: &Policy, keys: &[PolicyKey]) -> Result<(), PolicySignatureError> {
    let bytes = policy.signed_bytes();
    let mut invalid = None;
    for signature in &policy.signatures {
        let Some(PolicyKey(key)) = keys.iter().find(|key| key.id() == signature.key) else {
            continue;
        };
        let signed = unhex(&signature.signature).unwrap_or_default();
        if UnparsedPublicKey::new(&ED25519, key).verify(&bytes, &signed).is_ok() {
            return Ok(());
        }
        invalid = Some(signature.key.clone());
    }
    Err(match (invalid, policy.signatures.is_empty()) {
        (Some(key), _) => PolicySignatureError::Invalid { key },
        (None, true) => PolicySignatureError::Unsigned,
        (None, false) => {
            let keys = policy.signatures.iter().map(|signature| signature.key.clone()).collect();
            PolicySignatureError::UnknownKey { keys }
        }
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text
        .chars()
        .map(|letter| letter.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
        .collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Keys that openssl wrote, and the signature of the default policy by the first one.
    const KEYS: [(&str, &str); 2] = [
        (
            "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f\n-----END PRIVATE KEY-----\n",
            "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAA6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=\n-----END PUBLIC KEY-----\n",
        ),
        (
            "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIP/+/fz7+vn49/b19PPy8fDv7u3s6+rp6Ofm5eTj4uHg\n-----END PRIVATE KEY-----\n",
            "",
        ),
    ];

    struct Files(tempfile::TempDir);

    impl Files {
        fn file(&self, name: &str, text: &str, mode: u32) -> PathBuf {
            let path = self.0.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path
        }
    }

    #[test]
    fn a_signature_fits_one_policy_and_one_key() {
        let files = Files(tempfile::tempdir().unwrap());
        let signing = PolicySigningKey::read(&files.file("a.key", KEYS[0].0, 0o600)).unwrap();
        let public = PolicyKey::read(&files.file("a.pub", KEYS[0].1, 0o644)).unwrap();
        let keys = [public.clone()];
        let other = PolicySigningKey::read(&files.file("b.key", KEYS[1].0, 0o600)).unwrap();
        let mut policy = Policy { version: 2, ..Policy::default() };
        assert_eq!(verify(&policy, &keys), Err(PolicySignatureError::Unsigned));
        policy.signatures = vec![other.sign(&policy)];
        let signers = vec![policy.signatures[0].key.clone()];
        assert_eq!(verify(&policy, &keys), Err(PolicySignatureError::UnknownKey { keys: signers }));
        policy.signatures.push(signing.sign(&policy));
        assert_eq!(verify(&policy, &keys), Ok(()));
        policy.lemon.days = 7;
        let key = public.id();
        assert_eq!(verify(&policy, &keys), Err(PolicySignatureError::Invalid { key }));
        policy.lemon.days = 28;
        policy.signatures[1].signature.truncate(127);
        assert!(matches!(verify(&policy, &[public]), Err(PolicySignatureError::Invalid { .. })));
    }

    #[test]
    fn a_site_may_change_its_overlay_under_the_same_signature() {
        let files = Files(tempfile::tempdir().unwrap());
        let signing = PolicySigningKey::read(&files.file("a.key", KEYS[0].0, 0o600)).unwrap();
        let public = PolicyKey::read(&files.file("a.pub", KEYS[0].1, 0o644)).unwrap();
        let mut policy = Policy { version: 2, ..Policy::default() };
        policy.signatures = vec![signing.sign(&policy)];
        policy.changes.overlays.entry("a".parse().unwrap()).or_default();
        assert_eq!(verify(&policy, &[public]), Ok(()));
    }

    #[test]
    fn keys_of_other_forms_and_readable_private_keys_are_refused() {
        let files = Files(tempfile::tempdir().unwrap());
        let loose = files.file("loose.key", KEYS[0].0, 0o644);
        assert!(matches!(PolicySigningKey::read(&loose), Err(PolicyKeyError::Loose(_))));
        let public = files.file("a.pub", KEYS[0].1, 0o600);
        assert!(matches!(PolicySigningKey::read(&public), Err(PolicyKeyError::Form { .. })));
        let private = files.file("a.key", KEYS[0].0, 0o600);
        assert!(matches!(PolicyKey::read(&private), Err(PolicyKeyError::Form { .. })));
        let missing = files.0.path().join("none");
        assert!(matches!(PolicyKey::read(&missing), Err(PolicyKeyError::Read { .. })));
        assert_eq!((unhex("0aFF"), unhex("0"), unhex("zz")), (Some(vec![10, 255]), None, None));
    }
}
