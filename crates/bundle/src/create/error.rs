use std::io;
use std::path::PathBuf;

use crate::BundleError;
use crate::Sha256Digest;
use crate::closure::ClosureError;
use crate::compose::ComposeError;
use crate::compression::DecompressError;
use crate::deb::{ControlFileError, DebError, PackageFieldError};
use crate::fetch::FetchError;
use crate::rpm::{RepodataError, RpmError};
use crate::store::BundleStoreError;

/// Why no bundle was created.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error(transparent)]
    Store(#[from] BundleStoreError),
    #[error(transparent)]
    Closure(ClosureError),
    #[error(transparent)]
    Compose(ComposeError),
    #[error(transparent)]
    Bundle(BundleError),
    #[error("`{text}` is no apt source; expected `URI SUITE COMPONENT...`, or `URI ./`")]
    SourceForm { text: String },
    #[error("the repository has no `Release` file for `{suite}`")]
    NoRelease { suite: String },
    #[error("the `Release` file for `{suite}` lists no `{path}`")]
    NoIndex { suite: String, path: String },
    #[error(
        "`{path}` has SHA-256 {found}, and the repository's index names {expected}; if the repository was being updated, try again"
    )]
    IndexHash { path: String, expected: Sha256Digest, found: Sha256Digest },
    #[error("`{path}` cannot be decompressed")]
    Decompress {
        path: String,
        #[source]
        err: DecompressError,
    },
    #[error("`{path}` cannot be parsed")]
    Index {
        path: String,
        #[source]
        err: ControlFileError,
    },
    #[error("`{path}` cannot be parsed")]
    Repodata {
        path: String,
        #[source]
        err: RepodataError,
    },
    #[error("`{path}` is not UTF-8")]
    NotUtf8 { path: String },
    #[error("an entry of `{path}` has no usable `{field}`")]
    IndexEntry { path: String, field: &'static str },
    #[error("failed to read `{file}`")]
    Deb {
        file: String,
        #[source]
        err: DebError,
    },
    #[error("failed to read `{file}`")]
    Rpm {
        file: String,
        #[source]
        err: RpmError,
    },
    #[error("`{file}` cannot be used")]
    Fields {
        file: String,
        #[source]
        err: Box<PackageFieldError>,
    },
    #[error("`{file}` is package `{found}`, and the index says `{expected}`")]
    OtherPackage { file: String, expected: String, found: String },
    #[error("the folder has package `{package}` in versions {} and {}", versions[0], versions[1])]
    SeveralVersions { package: String, versions: [String; 2] },
    #[error("`{}` has no .{extension} files", folder.display())]
    EmptyFolder { folder: PathBuf, extension: &'static str },
    #[error("failed to read `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        err: io::Error,
    },
}
