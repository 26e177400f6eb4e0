//! Reads files of a repository, from a folder or over HTTP.
//!
//! HTTP is not encrypted here: nothing that is read is trusted before its SHA-256, or a signature,
//! was checked.

mod http;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::HttpBase;

/// A repository from which files are read.
#[derive(Debug)]
pub enum Mirror {
    Folder(PathBuf),
    Http(HttpBase),
}

/// Why a file of a repository was not read.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error("`{text}` is no folder and no `http://` URL")]
    Url { text: String },
    #[error("`{text}` is an `https://` URL, which is not supported")]
    Https { text: String },
    #[error("`{path}` is not a path below the repository")]
    PathEscape { path: String },
    #[error("the repository has no `{what}`")]
    NotFound { what: String },
    #[error("the repository answered with status {status} to `{what}`")]
    Status { what: String, status: u16 },
    #[error("the repository does not answer at {host}")]
    Unreachable {
        host: String,
        #[source]
        err: io::Error,
    },
    #[error("the repository sent nothing of `{what}` for {} s", limit.as_secs())]
    TimedOut { what: String, limit: Duration },
    #[error("the repository ended the transfer of `{what}`")]
    Broken {
        what: String,
        #[source]
        err: hyper::Error,
    },
    #[error("`{what}` has more than {max} bytes")]
    TooLong { what: String, max: u64 },
    #[error("failed to read `{what}`")]
    Io {
        what: String,
        #[source]
        err: io::Error,
    },
}

impl Mirror {
    /// A folder, a `file://` URL or an `http://` URL.
    pub fn open(text: &str) -> Result<Self, FetchError> {
        if let Some(path) = text.strip_prefix("file://") {
            Ok(Self::Folder(PathBuf::from(path)))
        } else if text.starts_with("https://") {
            Err(FetchError::Https { text: text.to_owned() })
        } else if text.starts_with("http://") {
            let base = HttpBase::parse(text);
            base.map(Self::Http).ok_or_else(|| FetchError::Url { text: text.to_owned() })
        } else if text.contains("://") {
            Err(FetchError::Url { text: text.to_owned() })
        } else {
            Ok(Self::Folder(PathBuf::from(text)))
        }
    }

    /// Reads a whole file of at most `max` bytes.
    pub fn read(&self, path: &str, max: u64) -> Result<Vec<u8>, FetchError> {
        let mut bytes = Vec::new();
        let mut reader = self.reader(path)?;
        reader.by_ref().take(max.saturating_add(1)).read_to_end(&mut bytes).map_err(|err| {
            let what = path.to_owned();
            err.downcast::<FetchError>().unwrap_or_else(|err| FetchError::Io { what, err })
        })?;
        if bytes.len() as u64 > max {
            return Err(FetchError::TooLong { what: path.to_owned(), max });
        }
        Ok(bytes)
    }

    /// Reads a file that may be missing.
    pub fn read_if_present(&self, path: &str, max: u64) -> Result<Option<Vec<u8>>, FetchError> {
        match self.read(path, max) {
            Err(FetchError::NotFound { .. }) => Ok(None),
            read => read.map(Some),
        }
    }

    /// Opens a file. The caller limits what is read.
    pub fn reader(&self, path: &str) -> Result<Box<dyn Read>, FetchError> {
        if !is_below(path) {
            return Err(FetchError::PathEscape { path: path.to_owned() });
        }
        match self {
            Self::Folder(folder) => Ok(Box::new(open_file(folder, path)?)),
            Self::Http(base) => Ok(Box::new(base.get(path)?)),
        }
    }
}

fn open_file(folder: &Path, path: &str) -> Result<File, FetchError> {
    let what = path.to_owned();
    if !folder.is_dir() {
        let text = folder.display().to_string();
        return Err(FetchError::Url { text });
    }
    File::open(folder.join(path)).map_err(|err| match err.kind() {
        io::ErrorKind::NotFound => FetchError::NotFound { what },
        _ => FetchError::Io { what, err },
    })
}

/// Whether a path stays below its base, on disk and in a URL.
fn is_below(path: &str) -> bool {
    let is_part = |part: &str| !part.is_empty() && part != "." && part != "..";
    let is_allowed = |byte: u8| byte.is_ascii_graphic() && !b"?#\\".contains(&byte);
    path.bytes().all(is_allowed) && path.split('/').all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_below_the_repository() {
        let mirror = Mirror::open("/etc").unwrap();
        for path in ["../etc/hostname", "a/../../x", "/etc/hostname", "", "a//b", "a\\b", "a?b"] {
            let err = mirror.read(path, 10).unwrap_err();
            assert!(matches!(err, FetchError::PathEscape { .. }), "{path}: {err}");
        }
    }

    #[test]
    fn a_file_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a"), "12345").unwrap();
        let mirror = Mirror::open(&format!("file://{}/", folder.path().display())).unwrap();
        assert_eq!(mirror.read("a", 5).unwrap(), b"12345");
        assert!(matches!(mirror.read("a", 4), Err(FetchError::TooLong { max: 4, .. })));
        assert!(matches!(mirror.read("b", 4), Err(FetchError::NotFound { .. })));
        drop(folder);
        assert!(matches!(mirror.read("a", 5), Err(FetchError::Url { .. })), "the folder is gone");
    }

    #[test]
    fn other_schemes_are_refused() {
        assert!(matches!(Mirror::open("https://x/y"), Err(FetchError::Https { .. })));
        for text in ["ftp://x", "http://", "http://user@x/", "http://x:port/"] {
            assert!(matches!(Mirror::open(text), Err(FetchError::Url { .. })), "{text}");
        }
    }
}
