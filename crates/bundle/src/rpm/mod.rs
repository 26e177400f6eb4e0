//! RPM packages: headers, versions, and the indexes of a repository.

mod header;
mod package;
mod repodata;
mod version;

pub use header::{RpmError, RpmHeader, read_header};
pub use package::candidate;
pub use repodata::{IndexFile, RepodataError, index_file, packages};
pub use version::compare;
