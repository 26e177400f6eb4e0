//! Packages of a dnf repository: `repomd.xml` names the primary index.

use super::CreateError;
use crate::Sha256Digest;
use crate::closure::PackageCandidate;
use crate::compression::{Compression, decompress};
use crate::fetch::Mirror;
use crate::rpm::{index_file, packages};

const REPOMD: &str = "repodata/repomd.xml";
const REPOMD_BYTES_MAX: u64 = 4 << 20;
const INDEX_BYTES_MAX: u64 = 1 << 30;

pub(super) fn candidates(
    mirror: &Mirror,
    repository: usize,
) -> Result<Vec<PackageCandidate>, CreateError> {
    let repomd = mirror.read(REPOMD, REPOMD_BYTES_MAX)?;
    let index = index_file(&repomd)
        .map_err(|err| CreateError::Repodata { path: REPOMD.to_owned(), err })?;
    let bytes = mirror.read(&index.path, INDEX_BYTES_MAX)?;
    let (path, expected, found) = (index.path, index.sha256, Sha256Digest::of(&bytes));
    if expected != found {
        return Err(CreateError::IndexHash { path, expected, found });
    }
    let xml = decompress(Compression::of_name(&path), &bytes, INDEX_BYTES_MAX)
        .map_err(|err| CreateError::Decompress { path: path.clone(), err })?;
    packages(&xml, repository).map_err(|err| CreateError::Repodata { path, err })
}
