//! Secrets, which are read from their files for each delivery.

use std::io::ErrorKind;
use std::path::Path;

use farrier_fleet::notify::SecretFile;
use farrier_wire::file_mode::{self, FileKind};
use hyper::header::HeaderValue;

use crate::bounded_file;
use crate::error::{DeliveryError, SecretError};
use crate::folders::ReceiverFiles;
use crate::url::HttpUrl;

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
    let (secret, files) = (file.clone(), files.clone());
    let loaded = bounded_file::on_blocking_thread(&file.0, move || read(&secret, &files)).await;
    loaded.map_err(unreadable)?
}

/// Reads the URL of a receiver. It may be replaced, so an invalid one is an error of the secret.
pub(crate) fn read_url(file: &SecretFile, files: &ReceiverFiles) -> Result<HttpUrl, DeliveryError> {
    url(&read(file, files)?, file)
}

/// Reads the URL of a receiver without blocking the runtime.
pub(crate) async fn load_url(
    file: &SecretFile,
    files: &ReceiverFiles,
) -> Result<HttpUrl, DeliveryError> {
    url(&load(file, files).await?, file)
}

fn url(secret: &SecretText, file: &SecretFile) -> Result<HttpUrl, DeliveryError> {
    let url = HttpUrl::parse_confidential(secret.expose());
    Ok(url.map_err(|err| SecretError::NotUrl { path: file.0.clone(), err })?)
}

/// A token for the header `Authorization`. It has no `Debug`, so that it cannot reach a log.
pub(crate) struct BearerToken {
    pub(crate) secret: SecretText,
    pub(crate) header: HeaderValue,
}

impl BearerToken {
    fn new(secret: SecretText, file: &SecretFile) -> Result<Self, DeliveryError> {
        let invalid = || SecretError::NotToken { path: file.0.clone() };
        // An editor may have added a byte order mark, or a typographic quotation mark.
        if !secret.expose().is_ascii() {
            return Err(invalid().into());
        }
        let header = HeaderValue::from_str(&format!("Bearer {}", secret.expose()));
        let mut header = header.map_err(|_| invalid())?;
        header.set_sensitive(true);
        Ok(Self { secret, header })
    }
}

/// Reads a token. It may be replaced, so an invalid one is an error of the secret.
pub(crate) fn read_token(
    file: &SecretFile,
    files: &ReceiverFiles,
) -> Result<BearerToken, DeliveryError> {
    BearerToken::new(read(file, files)?, file)
}

/// Reads a token, if the receiver has one, without blocking the runtime.
pub(crate) async fn load_token(
    file: Option<&SecretFile>,
    files: &ReceiverFiles,
) -> Result<Option<BearerToken>, DeliveryError> {
    match file {
        Some(file) => Ok(Some(BearerToken::new(load(file, files).await?, file)?)),
        None => Ok(None),
    }
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
