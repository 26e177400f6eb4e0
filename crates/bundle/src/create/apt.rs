//! Packages of an apt repository: `Release` names the indexes, an index names the packages.

use std::collections::BTreeMap;
use std::str::FromStr;

use super::CreateError;
use crate::Sha256Digest;
use crate::closure::{PackageCandidate, PackageFile};
use crate::compression::{Compression, decompress};
use crate::deb::{self, Paragraph, paragraphs};
use crate::fetch::Mirror;

const RELEASE_BYTES_MAX: u64 = 16 << 20;
/// Debian's largest index has 50 MB.
const INDEX_BYTES_MAX: u64 = 512 << 20;

/// Forms in which an index is published, best compression first.
const SUFFIXES: [&str; 4] = [".xz", ".zst", ".gz", ""];

/// A repository, as in `sources.list`: `URI SUITE COMPONENT...`, or `URI ./` without components.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AptSource {
    pub uri: String,
    /// Ends with `/` if the repository has no components.
    pub suite: String,
    pub components: Vec<String>,
}

impl FromStr for AptSource {
    type Err = CreateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || CreateError::SourceForm { text: text.to_owned() };
        let mut words = text.split_whitespace().map(str::to_owned);
        let uri = words.next().ok_or_else(error)?;
        let suite = words.next().ok_or_else(error)?;
        let components: Vec<String> = words.collect();
        if suite.ends_with('/') == components.is_empty() {
            Ok(Self { uri, suite, components })
        } else {
            Err(error())
        }
    }
}

impl AptSource {
    /// The folder of `Release`, relative to the repository, with a slash at its end unless empty.
    fn release_folder(&self) -> String {
        if self.components.is_empty() {
            let folder = self.suite.trim_start_matches("./").trim_matches('/');
            if folder.is_empty() { String::new() } else { format!("{folder}/") }
        } else {
            format!("dists/{}/", self.suite)
        }
    }

    /// The indexes, relative to `Release` and without a suffix.
    fn indexes(&self, architecture: &str) -> Vec<String> {
        if self.components.is_empty() {
            return vec!["Packages".to_owned()];
        }
        let path = |component: &String| format!("{component}/binary-{architecture}/Packages");
        self.components.iter().map(path).collect()
    }
}

pub(super) fn candidates(
    mirror: &Mirror,
    source: &AptSource,
    architecture: &str,
    repository: usize,
) -> Result<Vec<PackageCandidate>, CreateError> {
    let folder = source.release_folder();
    let release = mirror.read_if_present(&format!("{folder}Release"), RELEASE_BYTES_MAX)?;
    let release = release.ok_or_else(|| CreateError::NoRelease { suite: source.suite.clone() })?;
    let listed = listed_files(&text_of("Release", release)?)?;
    let mut found = Vec::new();
    for index in source.indexes(architecture) {
        let suffix =
            SUFFIXES.iter().find(|suffix| listed.contains_key(&format!("{index}{suffix}")));
        let Some(suffix) = suffix else {
            let (suite, path) = (source.suite.clone(), index);
            return Err(CreateError::NoIndex { suite, path });
        };
        let name = format!("{index}{suffix}");
        let path = format!("{folder}{name}");
        let bytes = mirror.read(&path, INDEX_BYTES_MAX)?;
        let (expected, actual) = (listed[&name], Sha256Digest::of(&bytes));
        if expected != actual {
            return Err(CreateError::IndexHash { path, expected, found: actual });
        }
        let text = decompress(Compression::of_name(&name), &bytes, INDEX_BYTES_MAX)
            .map_err(|err| CreateError::Decompress { path: path.clone(), err })?;
        let text = text_of(&path, text)?;
        // Paths are relative to the repository; a flat one may say so.
        for paragraph in parse(&path, &text)? {
            found.push(entry(&path, &paragraph, repository)?);
        }
    }
    Ok(found)
}

fn text_of(path: &str, bytes: Vec<u8>) -> Result<String, CreateError> {
    String::from_utf8(bytes).map_err(|_| CreateError::NotUtf8 { path: path.to_owned() })
}

fn parse(path: &str, text: &str) -> Result<Vec<Paragraph>, CreateError> {
    paragraphs(text).map_err(|err| CreateError::Index { path: path.to_owned(), err })
}

/// The files with their SHA-256 that a `Release` file lists.
fn listed_files(release: &str) -> Result<BTreeMap<String, Sha256Digest>, CreateError> {
    let paragraphs = parse("Release", release)?;
    let list = paragraphs.first().map(|paragraph| paragraph.text("SHA256")).unwrap_or_default();
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let sha256 = words.next()?.parse().ok()?;
        Some((words.nth(1)?.to_owned(), sha256))
    };
    Ok(list.lines().filter_map(line).collect())
}

fn entry(
    path: &str,
    paragraph: &Paragraph,
    repository: usize,
) -> Result<PackageCandidate, CreateError> {
    let missing = |field| CreateError::IndexEntry { path: path.to_owned(), field };
    let location = paragraph.get("Filename").ok_or_else(|| missing("Filename"))?;
    let file = PackageFile {
        repository,
        path: location.trim_start_matches("./").to_owned(),
        bytes: paragraph.text("Size").parse().map_err(|_| missing("Size"))?,
        sha256: paragraph.text("SHA256").parse().map_err(|_| missing("SHA256"))?,
    };
    deb::candidate(paragraph, file)
        .map_err(|err| CreateError::Fields { file: path.to_owned(), err: Box::new(err) })
}
