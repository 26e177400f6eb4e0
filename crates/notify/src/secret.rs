//! Secrets, which are read from their files for each delivery.

use std::io::ErrorKind;
use std::path::Path;

use farrier_fleet::notify::SecretFile;
use farrier_wire::file_mode::{self, FileKind};

use crate::bounded_file;
use crate::error::{DeliveryError, SecretError};
use crate::folders::ReceiverFiles;

/// Tokens and webhook URLs are far smaller.
const SECRET_BYTES_MAX: u64 = 8 << 10;

/// A secret. It has no `Debug`, `Display` or `Clone`, so that it cannot reach a log.
pub(crate) struct SecretText(String);

impl SecretText {
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

/// Reads a secret. Refuses a file that every user may read, or that a group may change.
pub(crate) fn read(file: &SecretFile, files: &ReceiverFiles) -> Result<SecretText, DeliveryError> {
    let path: &Path = &file.0;
    if !path.is_absolute() {
        return Err(SecretError::NotAbsolute.into());
    }
    let found = files.secret(path);
    let found = found.map_err(|err| SecretError::Unreadable { path: path.to_owned(), err })??;
    Ok(read_from(&found, path)?)
}

/// Reads the secret in `found`. Errors name `path`, by which the receiver knows it.
fn read_from(found: &Path, path: &Path) -> Result<SecretText, SecretError> {
    let unreadable = |err| SecretError::Unreadable { path: path.to_owned(), err };
    let text = bounded_file::read(found, SECRET_BYTES_MAX).map_err(unreadable)?;
    // A group may read it: a daemon often gets its secrets through one, and the files that systemd
    // passes to a service with an access list look like that.
    file_mode::check([(found, FileKind::Store)])
        .map_err(unreadable)?
        .map_err(|err| SecretError::NotPrivate { path: path.to_owned(), err })?;
    let text =
        text.ok_or_else(|| SecretError::TooLarge { path: path.to_owned(), max: SECRET_BYTES_MAX })?;
    let text = String::from_utf8(text)
        .map_err(|_| unreadable(std::io::Error::new(ErrorKind::InvalidData, "it is not text")))?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    if text.is_empty() {
        return Err(SecretError::Empty { path: path.to_owned() });
    }
    if text.chars().any(char::is_control) {
        return Err(SecretError::SeveralLines { path: path.to_owned() });
    }
    Ok(SecretText(text.to_owned()))
}

/// Reads a secret without blocking the runtime.
pub(crate) async fn load(
    file: &SecretFile,
    files: &ReceiverFiles,
) -> Result<SecretText, DeliveryError> {
    let unreadable = |err| SecretError::Unreadable { path: file.0.clone(), err };
    let (file, files) = (file.clone(), files.clone());
    bounded_file::on_blocking_thread(move || read(&file, &files)).await.map_err(unreadable)?
}

/// Reads a secret if the receiver has one.
pub(crate) async fn load_any(
    file: Option<&SecretFile>,
    files: &ReceiverFiles,
) -> Result<Option<SecretText>, DeliveryError> {
    match file {
        Some(file) => load(file, files).await.map(Some),
        None => Ok(None),
    }
}
