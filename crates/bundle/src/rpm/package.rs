//! A package as the resolver reads it, from a header.

use super::header::{RpmError, RpmHeader};
use crate::closure::{
    Constraint, PackageCandidate, PackageFile, PackageRelation, Provide, VersionComparison,
};

const NAME: u32 = 1000;
const VERSION: u32 = 1001;
const RELEASE: u32 = 1002;
const EPOCH: u32 = 1003;
const ARCHITECTURE: u32 = 1022;
const SOURCE_RPM: u32 = 1044;
const PROVIDES: [u32; 3] = [1047, 1112, 1113];
const REQUIRES: [u32; 3] = [1049, 1048, 1050];
const CONFLICTS: [u32; 3] = [1054, 1053, 1055];

const LESS: u32 = 1 << 1;
const GREATER: u32 = 1 << 2;
const EQUAL: u32 = 1 << 3;
/// A feature that rpm itself has to have.
const RPMLIB: u32 = 1 << 24;

/// Reads a header. `file` says where the bytes of the package are.
pub fn candidate(header: &RpmHeader, file: PackageFile) -> Result<PackageCandidate, RpmError> {
    // Source packages have no tag with the name of their source package.
    if header.texts(SOURCE_RPM).is_empty() {
        return Err(RpmError::Missing { tag: SOURCE_RPM });
    }
    let epoch = header.numbers(EPOCH).first().copied().unwrap_or(0);
    let version = full_version(epoch, header.text(VERSION)?, header.text(RELEASE)?);
    let provides = relations(header, PROVIDES).into_iter().map(|relation| Provide {
        name: relation.name,
        version: relation.constraint.map(|constraint| constraint.version),
    });
    Ok(PackageCandidate {
        name: header.text(NAME)?.to_owned(),
        version,
        architecture: header.text(ARCHITECTURE)?.to_owned(),
        provides: provides.collect(),
        depends: relations(header, REQUIRES).into_iter().map(|relation| vec![relation]).collect(),
        conflicts: relations(header, CONFLICTS),
        file,
    })
}

/// A version as rpm prints it: without an epoch of 0.
pub(super) fn full_version(epoch: u32, version: &str, release: &str) -> String {
    match epoch {
        0 => format!("{version}-{release}"),
        _ => format!("{epoch}:{version}-{release}"),
    }
}

fn relations(header: &RpmHeader, [names, flags, versions]: [u32; 3]) -> Vec<PackageRelation> {
    let (flags, versions) = (header.numbers(flags), header.texts(versions));
    let all = header.texts(names).iter().enumerate();
    let all = all.filter(|(at, _)| flags.get(*at).is_none_or(|flags| flags & RPMLIB == 0));
    all.map(|(at, name)| {
        let version = versions.get(at).filter(|version| !version.is_empty());
        let comparison = flags.get(at).and_then(|flags| comparison(*flags));
        let constraint = comparison
            .zip(version)
            .map(|(comparison, version)| Constraint { comparison, version: version.clone() });
        PackageRelation { name: name.clone(), constraint }
    })
    .collect()
}

fn comparison(flags: u32) -> Option<VersionComparison> {
    match flags & (LESS | GREATER | EQUAL) {
        LESS => Some(VersionComparison::Less),
        GREATER => Some(VersionComparison::Greater),
        EQUAL => Some(VersionComparison::Equal),
        both if both == LESS | EQUAL => Some(VersionComparison::LessOrEqual),
        both if both == GREATER | EQUAL => Some(VersionComparison::GreaterOrEqual),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::header::tests::{Tag, rpm};
    use super::super::read_header;
    use super::*;
    use crate::Sha256Digest;

    fn file() -> PackageFile {
        let sha256 = Sha256Digest::of(b"");
        PackageFile { repository: 0, path: "a.rpm".to_owned(), bytes: 1, sha256 }
    }

    #[test]
    fn a_package_has_its_full_version_and_relations() {
        let package = rpm(&[
            (1000, Tag::Texts(&["nvidia-driver-cuda"])),
            (1001, Tag::Texts(&["580.95.05"])),
            (1002, Tag::Texts(&["1.el9"])),
            (1003, Tag::Numbers(&[3])),
            (1022, Tag::Texts(&["x86_64"])),
            (1044, Tag::Texts(&["nvidia-driver.src.rpm"])),
            (1048, Tag::Numbers(&[12, 0x0100_0008, 0])),
            (1049, Tag::Texts(&["nvidia-kmod", "rpmlib(FileDigests)", "/bin/sh"])),
            (1050, Tag::Texts(&["3:580.95.05", "4.6.0-1", ""])),
        ]);
        let found = candidate(&read_header(package.as_slice()).unwrap(), file()).unwrap();
        assert_eq!(found.version, "3:580.95.05-1.el9");
        let depends: Vec<String> =
            found.depends.iter().flatten().map(ToString::to_string).collect();
        assert_eq!(depends, ["nvidia-kmod (>= 3:580.95.05)", "/bin/sh"]);
    }

    #[test]
    fn a_source_package_is_refused() {
        let package = rpm(&[(1000, Tag::Texts(&["nvidia-driver"]))]);
        let found = candidate(&read_header(package.as_slice()).unwrap(), file());
        assert!(matches!(found, Err(RpmError::Missing { tag: 1044 })));
    }
}
