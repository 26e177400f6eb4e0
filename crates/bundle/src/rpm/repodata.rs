//! The indexes of a repository: `repomd.xml` names `primary.xml`, which lists the packages.

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use super::package::full_version;
use crate::Sha256Digest;
use crate::closure::{
    Constraint, PackageCandidate, PackageFile, PackageRelation, Provide, VersionComparison,
};

#[derive(Debug, thiserror::Error)]
pub enum RepodataError {
    #[error("the index cannot be parsed as XML")]
    Xml(#[source] quick_xml::Error),
    #[error("the index ends inside of `{element}`")]
    Incomplete { element: &'static str },
    #[error("`repomd.xml` names no primary index with a SHA-256")]
    NoPrimary,
    #[error("package `{package}` has no `{field}` in the index")]
    Missing { package: String, field: &'static str },
    #[error("package `{package}` has a checksum of type `{kind}`, expected sha256")]
    ChecksumType { package: String, kind: String },
}

/// A file of the repository's metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexFile {
    /// Relative to the repository.
    pub path: String,
    pub sha256: Sha256Digest,
}

/// The primary index that `repomd.xml` names.
pub fn index_file(repomd: &[u8]) -> Result<IndexFile, RepodataError> {
    let mut reader = Reader::from_reader(repomd);
    let (mut is_primary, mut is_checksum) = (false, false);
    let (mut path, mut sha256, mut text) = (None, None, String::new());
    let mut buffer = Vec::new();
    loop {
        match reader.read_event_into(&mut buffer).map_err(RepodataError::Xml)? {
            Event::Eof => break,
            Event::Start(tag) | Event::Empty(tag) => match tag.local_name().as_ref() {
                b"data" => is_primary = attribute(&tag, "type") == Some("primary".to_owned()),
                b"location" if is_primary => path = attribute(&tag, "href"),
                b"checksum" if is_primary => {
                    is_checksum = attribute(&tag, "type") == Some("sha256".to_owned());
                    text.clear();
                }
                _ => {}
            },
            Event::Text(part) if is_checksum => text.push_str(&String::from_utf8_lossy(&part)),
            Event::End(tag) => match tag.local_name().as_ref() {
                b"checksum" if is_checksum => {
                    sha256 = text.trim().parse().ok();
                    is_checksum = false;
                }
                b"data" => is_primary = false,
                _ => {}
            },
            _ => {}
        }
        buffer.clear();
    }
    match (path, sha256) {
        (Some(path), Some(sha256)) => Ok(IndexFile { path, sha256 }),
        _ => Err(RepodataError::NoPrimary),
    }
}

/// What is known of a package before its element ends.
#[derive(Default)]
struct Entry {
    name: String,
    architecture: String,
    version: Option<String>,
    checksum_kind: String,
    checksum: String,
    path: Option<String>,
    bytes: Option<u64>,
    provides: Vec<PackageRelation>,
    requires: Vec<PackageRelation>,
    conflicts: Vec<PackageRelation>,
}

/// The packages in `primary.xml`, without source packages.
pub fn packages(primary: &[u8], repository: usize) -> Result<Vec<PackageCandidate>, RepodataError> {
    let mut reader = Reader::from_reader(primary);
    let (mut found, mut entry, mut text) = (Vec::new(), None::<Entry>, String::new());
    // The list that `rpm:entry` elements belong to.
    let mut list: Option<fn(&mut Entry) -> &mut Vec<PackageRelation>> = None;
    let mut buffer = Vec::new();
    loop {
        match reader.read_event_into(&mut buffer).map_err(RepodataError::Xml)? {
            Event::Eof if entry.is_some() => {
                return Err(RepodataError::Incomplete { element: "package" });
            }
            Event::Eof => return Ok(found),
            Event::Start(tag) | Event::Empty(tag) => {
                text.clear();
                match (tag.local_name().as_ref(), &mut entry) {
                    (b"package", entry) => *entry = Some(Entry::default()),
                    (b"provides", Some(_)) => list = Some(|entry| &mut entry.provides),
                    (b"requires", Some(_)) => list = Some(|entry| &mut entry.requires),
                    (b"conflicts", Some(_)) => list = Some(|entry| &mut entry.conflicts),
                    (b"entry", Some(entry)) => {
                        if let (Some(list), Some(relation)) = (list, relation(&tag)) {
                            list(entry).push(relation);
                        }
                    }
                    (name, Some(entry)) => entry.read_attributes(name, &tag),
                    (_, None) => {}
                }
            }
            Event::Text(part) => text.push_str(&String::from_utf8_lossy(&part)),
            Event::End(tag) => match (tag.local_name().as_ref(), &mut entry) {
                (b"package", _) => {
                    if let Some(entry) = entry.take() {
                        found.extend(entry.finish(repository)?);
                    }
                }
                (b"name", Some(entry)) => text.trim().clone_into(&mut entry.name),
                (b"arch", Some(entry)) => text.trim().clone_into(&mut entry.architecture),
                (b"checksum", Some(entry)) => text.trim().clone_into(&mut entry.checksum),
                (b"provides" | b"requires" | b"conflicts", Some(_)) => list = None,
                _ => {}
            },
            _ => {}
        }
        buffer.clear();
    }
}

impl Entry {
    fn read_attributes(&mut self, name: &[u8], tag: &BytesStart<'_>) {
        match name {
            b"version" => {
                let epoch = attribute(tag, "epoch").and_then(|epoch| epoch.parse().ok());
                let version = attribute(tag, "ver").zip(attribute(tag, "rel"));
                self.version = version
                    .map(|(version, release)| full_version(epoch.unwrap_or(0), &version, &release));
            }
            b"checksum" => self.checksum_kind = attribute(tag, "type").unwrap_or_default(),
            b"location" => self.path = attribute(tag, "href"),
            b"size" => {
                self.bytes = attribute(tag, "package").and_then(|bytes| bytes.parse().ok());
            }
            _ => {}
        }
    }

    fn finish(self, repository: usize) -> Result<Option<PackageCandidate>, RepodataError> {
        if self.architecture == "src" || self.architecture == "nosrc" {
            return Ok(None);
        }
        let package = self.name.clone();
        let missing =
            |field: &'static str| RepodataError::Missing { package: package.clone(), field };
        if self.checksum_kind != "sha256" {
            return Err(RepodataError::ChecksumType { package, kind: self.checksum_kind });
        }
        let sha256 = self.checksum.parse().map_err(|_| missing("checksum"))?;
        let provides = self.provides.into_iter().map(|relation| Provide {
            name: relation.name,
            version: relation.constraint.map(|constraint| constraint.version),
        });
        Ok(Some(PackageCandidate {
            version: self.version.ok_or_else(|| missing("version"))?,
            provides: provides.collect(),
            depends: self.requires.into_iter().map(|relation| vec![relation]).collect(),
            conflicts: self.conflicts,
            file: PackageFile {
                repository,
                path: self.path.ok_or_else(|| missing("location"))?,
                bytes: self.bytes.ok_or_else(|| missing("size"))?,
                sha256,
            },
            architecture: self.architecture,
            name: self.name,
        }))
    }
}

/// An `rpm:entry`. `None` for a feature of rpm itself.
fn relation(tag: &BytesStart<'_>) -> Option<PackageRelation> {
    let name = attribute(tag, "name")?;
    if name.starts_with("rpmlib(") {
        return None;
    }
    let comparison = attribute(tag, "flags").and_then(|flags| match flags.as_str() {
        "LT" => Some(VersionComparison::Less),
        "LE" => Some(VersionComparison::LessOrEqual),
        "EQ" => Some(VersionComparison::Equal),
        "GE" => Some(VersionComparison::GreaterOrEqual),
        "GT" => Some(VersionComparison::Greater),
        _ => None,
    });
    let version = attribute(tag, "ver").map(|version| {
        let epoch = attribute(tag, "epoch").filter(|epoch| epoch != "0");
        let epoch = epoch.map(|epoch| format!("{epoch}:")).unwrap_or_default();
        let release = attribute(tag, "rel").map(|release| format!("-{release}"));
        format!("{epoch}{version}{}", release.unwrap_or_default())
    });
    let constraint = comparison.zip(version);
    let constraint = constraint.map(|(comparison, version)| Constraint { comparison, version });
    Some(PackageRelation { name, constraint })
}

fn attribute(tag: &BytesStart<'_>, name: &str) -> Option<String> {
    let attribute = tag.try_get_attribute(name).ok()??;
    attribute.unescape_value().ok().map(std::borrow::Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PRIMARY: &str = r#"<?xml version="1.0"?><metadata xmlns:rpm="x" packages="2">
<package type="rpm"><name>nvidia-driver-cuda</name><arch>x86_64</arch>
<version epoch="3" ver="580.95.05" rel="1.el9"/>
<checksum type="sha256" pkgid="YES">e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855</checksum>
<size package="123" installed="9"/><location href="nvidia-driver-cuda.rpm"/>
<format><rpm:provides><rpm:entry name="cuda-drivers" flags="EQ" epoch="0" ver="580.95.05"/></rpm:provides>
<rpm:requires><rpm:entry name="nvidia-kmod" flags="GE" epoch="3" ver="580.95.05"/>
<rpm:entry name="rpmlib(X)"/><rpm:entry name="/bin/sh"/></rpm:requires></format></package>
<package type="rpm"><name>s</name><arch>src</arch></package></metadata>"#;

    #[test]
    fn the_primary_index_lists_packages() {
        let found = packages(PRIMARY.as_bytes(), 2).unwrap();
        assert_eq!(found.len(), 1);
        let package = &found[0];
        assert_eq!(package.version, "3:580.95.05-1.el9");
        assert_eq!((package.file.bytes, package.file.repository), (123, 2));
        let depends: Vec<String> =
            package.depends.iter().flatten().map(ToString::to_string).collect();
        assert_eq!(depends, ["nvidia-kmod (>= 3:580.95.05)", "/bin/sh"]);
        assert_eq!(package.provides[0].version.as_deref(), Some("580.95.05"));
    }

    #[test]
    fn what_the_index_lacks_is_named() {
        let without = PRIMARY.replace(r#"<location href="nvidia-driver-cuda.rpm"/>"#, "");
        assert!(matches!(
            packages(without.as_bytes(), 0),
            Err(RepodataError::Missing { field: "location", .. })
        ));
        let md5 = PRIMARY.replace(r#"type="sha256""#, r#"type="md5""#);
        assert!(matches!(packages(md5.as_bytes(), 0), Err(RepodataError::ChecksumType { .. })));
        let cut = &PRIMARY[..400];
        assert!(packages(cut.as_bytes(), 0).is_err());
    }

    #[test]
    fn repomd_names_the_primary_index() {
        let digest = Sha256Digest::of(b"");
        let text = format!(
            r#"<repomd><data type="filelists"><location href="no"/></data><data type="primary">
<checksum type="sha256">{digest}</checksum><open-checksum type="sha256">0</open-checksum>
<location href="repodata/p.xml.gz"/></data></repomd>"#
        );
        let path = "repodata/p.xml.gz".to_owned();
        assert_eq!(index_file(text.as_bytes()).unwrap(), IndexFile { path, sha256: digest });
        let none = text.replace("primary", "other");
        assert!(matches!(index_file(none.as_bytes()), Err(RepodataError::NoPrimary)));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(at in 0_usize..900, bytes in "[<>/a-z\"= &;]{0,20}") {
            let mut text = PRIMARY.as_bytes().to_vec();
            let at = at.min(text.len());
            let end = (at + bytes.len()).min(text.len());
            text.splice(at..end, bytes.bytes());
            let _ = packages(&text, 0);
            let _ = index_file(&text);
        }
    }
}
