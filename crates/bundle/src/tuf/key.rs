//! Signing keys in files, which only their owner may read. They stay on the machines of the people
//! who sign, never on a server.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde::{Deserialize, Serialize};

use super::metadata::{KeyId, MetadataSignature, PublicKey};
use crate::canonical::CanonicalError;
use crate::digest::{hex, unhex};

const VERSION: u32 = 1;
const FILE_BYTES_MAX: u64 = 4096;

#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    #[error("failed to read the key file `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        err: io::Error,
    },
    #[error("failed to write the key file `{}`", path.display())]
    Write {
        path: PathBuf,
        #[source]
        err: io::Error,
    },
    #[error("the key file `{}` exists", path.display())]
    Exists { path: PathBuf },
    #[error("the key file `{}` has mode {mode:04o}: others may read it", path.display())]
    LooseMode { path: PathBuf, mode: u32 },
    #[error("`{}` is no key file", path.display())]
    Form { path: PathBuf },
    #[error("the system has no random numbers")]
    Random,
    #[error("the key has no canonical encoding")]
    Encoding(#[source] CanonicalError),
}

/// The file of a key.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    v: u32,
    keytype: String,
    /// Seed of the private key, hexadecimal.
    private: String,
    /// Hexadecimal.
    public: String,
}

/// An ed25519 key.
pub struct SigningKey {
    pair: Ed25519KeyPair,
    public: PublicKey,
    id: KeyId,
}

/// The private part is not shown.
impl std::fmt::Debug for SigningKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("SigningKey").field("id", &self.id).finish_non_exhaustive()
    }
}

impl SigningKey {
    /// Makes a key and writes it to a new file with mode 0600.
    pub fn generate(path: &Path) -> Result<Self, KeyFileError> {
        let mut seed = [0; 32];
        SystemRandom::new().fill(&mut seed).map_err(|_| KeyFileError::Random)?;
        let key = Self::from_seed(&seed).ok_or(KeyFileError::Random)??;
        let file = KeyFile {
            v: VERSION,
            keytype: "ed25519".to_owned(),
            private: hex(&seed),
            public: key.public.keyval.public.clone(),
        };
        let write = || -> io::Result<()> {
            let text = serde_json::to_vec(&file)?;
            let mut file =
                OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
            file.write_all(&text)?;
            file.sync_all()
        };
        write().map_err(|err| match err.kind() {
            io::ErrorKind::AlreadyExists => KeyFileError::Exists { path: path.to_owned() },
            _ => KeyFileError::Write { path: path.to_owned(), err },
        })?;
        Ok(key)
    }

    /// Reads a key file that only its owner may access.
    pub fn read(path: &Path) -> Result<Self, KeyFileError> {
        let error = |err| KeyFileError::Read { path: path.to_owned(), err };
        let file = File::open(path).map_err(error)?;
        let mode = file.metadata().map_err(error)?.permissions().mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(KeyFileError::LooseMode { path: path.to_owned(), mode });
        }
        let mut text = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut text).map_err(error)?;
        let form = || KeyFileError::Form { path: path.to_owned() };
        let file: KeyFile = serde_json::from_slice(&text).map_err(|_| form())?;
        let seed: [u8; 32] =
            unhex(&file.private).and_then(|seed| seed.try_into().ok()).ok_or_else(form)?;
        let key = Self::from_seed(&seed).ok_or_else(form)??;
        let is_valid = file.v == VERSION
            && file.keytype == "ed25519"
            && key.public.keyval.public == file.public;
        if is_valid { Ok(key) } else { Err(form()) }
    }

    pub(super) fn from_seed(seed: &[u8; 32]) -> Option<Result<Self, KeyFileError>> {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).ok()?;
        let public = PublicKey::ed25519(pair.public_key().as_ref());
        let id = public.id().map_err(KeyFileError::Encoding);
        Some(id.map(|id| Self { pair, public, id }))
    }

    pub fn id(&self) -> KeyId {
        self.id
    }

    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    pub fn sign(&self, message: &[u8]) -> MetadataSignature {
        let sig = hex(self.pair.sign(message).as_ref());
        MetadataSignature { keyid: self.id.to_string(), sig }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_key_file_is_private_and_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("root.key");
        let key = SigningKey::generate(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(SigningKey::read(&path).unwrap().id(), key.id());
        assert!(matches!(SigningKey::generate(&path), Err(KeyFileError::Exists { .. })));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let err = SigningKey::read(&path).unwrap_err();
        assert!(matches!(err, KeyFileError::LooseMode { mode: 0o640, .. }));
        let text = fs::read_to_string(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, text.replacen("\"v\":1", "\"v\":2", 1)).unwrap();
        assert!(matches!(SigningKey::read(&path), Err(KeyFileError::Form { .. })));
        assert!(!format!("{key:?}").contains(&text[40..60]));
    }
}
