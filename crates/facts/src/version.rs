//! Version types, parsed from their usual spelling and compared numerically.
//!
//! Versions are not numbers: driver `550.54.15` is older than `550.100`, and CUDA `12.10` would be
//! newer than `12.9`. Each kind has its own type, and nothing converts to a float.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The text is not a version of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct VersionError {
    text: String,
    expected: &'static str,
}

impl VersionError {
    fn new(text: &str, expected: &'static str) -> Self {
        Self { text: text.to_owned(), expected }
    }
}

/// Parses a text of one to six ASCII digits.
pub(crate) fn number(text: &str) -> Option<u32> {
    let digits = (1..=6).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

/// Serialises a version type as a string.
macro_rules! as_text {
    ($type:ty) => {
        impl Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

/// A driver branch: the number before the first dot, `580` of `580.65.06`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Branch(pub u32);

impl fmt::Display for Branch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "R{}", self.0)
    }
}

/// A driver release such as `550.54.15` or `570.26`. Compared by its numbers.
#[derive(Debug, Clone)]
pub struct DriverVersion {
    branch: Branch,
    update: u32,
    patch: Option<u32>,
    /// NVIDIA's spelling, since `06` and `6` parse to the same number.
    text: Box<str>,
}

impl DriverVersion {
    fn numbers(&self) -> (Branch, u32, Option<u32>) {
        (self.branch, self.update, self.patch)
    }

    /// The branch that this release belongs to.
    pub fn branch(&self) -> Branch {
        self.branch
    }

    /// Whether `self` is `other` without its last number (`550.54` and `550.54.15`).
    pub fn is_prefix_of(&self, other: &Self) -> bool {
        self.patch.is_none()
            && other.patch.is_some()
            && (self.branch, self.update) == (other.branch, other.update)
    }
}

impl PartialEq for DriverVersion {
    fn eq(&self, other: &Self) -> bool {
        self.numbers() == other.numbers()
    }
}

impl Eq for DriverVersion {}

impl Ord for DriverVersion {
    fn cmp(&self, other: &Self) -> Ordering {
        self.numbers().cmp(&other.numbers())
    }
}

impl PartialOrd for DriverVersion {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl FromStr for DriverVersion {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || VersionError::new(text, "a driver version such as `580.65.06`");
        let mut parts = text.split('.');
        let mut part = || parts.next().map(|part| number(part).ok_or_else(error)).transpose();
        let branch = Branch(part()?.ok_or_else(error)?);
        let update = part()?.ok_or_else(error)?;
        let patch = part()?;
        if parts.next().is_some() {
            return Err(error());
        }
        Ok(Self { branch, update, patch, text: text.into() })
    }
}

impl fmt::Display for DriverVersion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&self.text)
    }
}

as_text!(DriverVersion);

/// A CUDA release without its patch: `12.8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CudaVersion {
    /// The compatibility family: `12` of `12.8`.
    pub major: u32,
    /// `8` of `12.8`.
    pub minor: u32,
}

impl FromStr for CudaVersion {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || VersionError::new(text, "a CUDA version such as `12.8`");
        let (major, minor) = text.split_once('.').ok_or_else(error)?;
        Ok(Self {
            major: number(major).ok_or_else(error)?,
            minor: number(minor).ok_or_else(error)?,
        })
    }
}

impl fmt::Display for CudaVersion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.major, self.minor)
    }
}

as_text!(CudaVersion);

/// A CUDA toolkit release with its patch: `12.8.1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ToolkitVersion {
    /// `12.8` of `12.8.1`.
    pub cuda: CudaVersion,
    /// `1` of `12.8.1`.
    pub patch: u32,
}

impl FromStr for ToolkitVersion {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || VersionError::new(text, "a CUDA toolkit version such as `12.8.1`");
        let (cuda, patch) = text.rsplit_once('.').ok_or_else(error)?;
        Ok(Self {
            cuda: cuda.parse().map_err(|_| error())?,
            patch: number(patch).ok_or_else(error)?,
        })
    }
}

impl fmt::Display for ToolkitVersion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.cuda, self.patch)
    }
}

as_text!(ToolkitVersion);

/// A GPU's compute capability: `9.0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComputeCapability {
    /// The generation. Machine code of one generation does not run on another.
    pub major: u32,
    /// The revision inside the generation.
    pub minor: u32,
}

impl ComputeCapability {
    /// Whether machine code (a cubin) built for `target` runs on this GPU: the same generation, and
    /// a revision that is not newer. (CUDA Programming Guide, Binary Compatibility.)
    pub fn runs_cubin_of(self, target: Self) -> bool {
        self.major == target.major && self.minor >= target.minor
    }

    /// The compiler's name, such as `sm_90`.
    pub fn sm(self) -> String {
        format!("sm_{}{}", self.major, self.minor)
    }
}

impl FromStr for ComputeCapability {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || VersionError::new(text, "a compute capability such as `9.0`");
        let (major, minor) = text.split_once('.').ok_or_else(error)?;
        Ok(Self {
            major: number(major).ok_or_else(error)?,
            minor: number(minor).ok_or_else(error)?,
        })
    }
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.major, self.minor)
    }
}

as_text!(ComputeCapability);

/// A Python package version, the subset of PEP 440 that framework wheels use: `2.11.0`,
/// `0.8.5.post1`, `1.2.0rc6`. Local parts (`+cu128`) are excluded: they name a build, not a
/// version.
///
/// Compared as in PEP 440: `2.11` equals `2.11.0`.
#[derive(Debug, Clone)]
pub struct PackageVersion {
    release: Vec<u32>,
    /// Pre-release (`a`, `b`, `rc`), final or post-release.
    stage: Stage,
    text: Box<str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Stage {
    Alpha(u32),
    Beta(u32),
    Candidate(u32),
    Final,
    Post(u32),
}

impl PackageVersion {
    /// The first two parts, `2.11` of `2.11.0`.
    pub fn minor(&self) -> (u32, u32) {
        (self.release[0], self.release.get(1).copied().unwrap_or(0))
    }

    /// Number of parts written: `2.11` has two.
    pub fn parts(&self) -> usize {
        self.release.len()
    }

    /// Whether `self` is a prefix of `other`: `2.11` covers `2.11.0`.
    pub fn covers(&self, other: &Self) -> bool {
        self.stage == Stage::Final && other.release.starts_with(&self.release)
    }
}

impl PartialEq for PackageVersion {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for PackageVersion {}

impl Ord for PackageVersion {
    fn cmp(&self, other: &Self) -> Ordering {
        let longest = self.release.len().max(other.release.len());
        let part = |version: &'_ Self, at: usize| version.release.get(at).copied().unwrap_or(0);
        for at in 0..longest {
            let order = part(self, at).cmp(&part(other, at));
            if order.is_ne() {
                return order;
            }
        }
        self.stage.cmp(&other.stage)
    }
}

impl PartialOrd for PackageVersion {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl FromStr for PackageVersion {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || VersionError::new(text, "a package version such as `2.11.0`");
        let end = text.find(|letter: char| letter.is_ascii_alphabetic()).unwrap_or(text.len());
        let (release, suffix) = text.split_at(end);
        let release: Vec<u32> = release
            .strip_suffix('.')
            .filter(|_| !suffix.is_empty())
            .unwrap_or(release)
            .split('.')
            .map(|part| number(part).ok_or_else(error))
            .collect::<Result<_, _>>()?;
        let stage = match suffix {
            "" => Stage::Final,
            suffix => {
                let digits =
                    suffix.find(|letter: char| letter.is_ascii_digit()).ok_or_else(error)?;
                let (name, count) = suffix.split_at(digits);
                let count = number(count).ok_or_else(error)?;
                match name {
                    "a" => Stage::Alpha(count),
                    "b" => Stage::Beta(count),
                    "rc" => Stage::Candidate(count),
                    "post" => Stage::Post(count),
                    _ => return Err(error()),
                }
            }
        };
        Ok(Self { release, stage, text: text.into() })
    }
}

impl fmt::Display for PackageVersion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&self.text)
    }
}

as_text!(PackageVersion);

#[cfg(test)]
mod tests {
    use super::*;

    fn driver(text: &str) -> DriverVersion {
        text.parse().unwrap()
    }

    #[test]
    fn driver_versions_compare_part_by_part() {
        assert!(driver("550.54.15") < driver("550.100"));
        assert!(driver("550.90.07") < driver("550.90.12"));
        assert!(driver("570.26") < driver("570.124.06"));
        assert!(driver("550.54") < driver("550.54.14"));
        assert!(driver("550.54").is_prefix_of(&driver("550.54.14")));
        assert!(!driver("550.54").is_prefix_of(&driver("550.67")));
        assert_eq!(driver("570.124.06").to_string(), "570.124.06");
        assert_eq!(driver("580.95.5"), driver("580.95.05"));
    }

    #[test]
    fn rejects_malformed_driver_versions() {
        for text in ["", "550", "550.", "550.abc", "550.54.15.1", "550,54", " 550.54", "550.-1"] {
            let error = DriverVersion::from_str(text).unwrap_err().to_string();
            assert_eq!(error, format!("`{text}` is not a driver version such as `580.65.06`"));
        }
    }

    #[test]
    fn cuda_minor_is_an_integer_not_a_decimal() {
        let parse = |text: &str| text.parse::<CudaVersion>().unwrap();
        assert!(parse("12.9") < parse("12.10"));
        assert!("12".parse::<CudaVersion>().is_err());
        assert!("12.8.1".parse::<CudaVersion>().is_err());
        assert_eq!("12.8.1".parse::<ToolkitVersion>().unwrap().cuda, parse("12.8"));
    }

    #[test]
    fn cubins_run_inside_their_generation_only() {
        let cc = |text: &str| text.parse::<ComputeCapability>().unwrap();
        assert!(cc("8.9").runs_cubin_of(cc("8.6")));
        assert!(!cc("8.6").runs_cubin_of(cc("8.9")));
        assert!(!cc("9.0").runs_cubin_of(cc("8.0")));
        assert!(cc("10.3").runs_cubin_of(cc("10.0")));
        assert_eq!(cc("10.3").sm(), "sm_103");
    }

    #[test]
    fn package_versions_follow_pep_440_order() {
        let parse = |text: &str| text.parse::<PackageVersion>().unwrap();
        assert!(parse("2.9.1") < parse("2.10.0"));
        assert!(parse("0.8.5") < parse("0.8.5.post1"));
        assert!(parse("1.2.0rc6") < parse("1.2.0"));
        assert_eq!(parse("2.11"), parse("2.11.0"));
        assert!(parse("2.11").covers(&parse("2.11.0")));
        assert!(!parse("2.1").covers(&parse("2.11.0")));
        for text in ["", "2.", "two", "2.11.0+cu128", "2..1", "2..post1", "2.0dev1"] {
            assert!(text.parse::<PackageVersion>().is_err(), "{text}");
        }
    }
}
