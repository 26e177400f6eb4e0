//! Packages and installers that do not belong into a container image.

use serde::{Deserialize, Serialize};

use super::verdict::LintVerdict;

/// A rule on what a Dockerfile installs. In patterns, `*` stands for any text.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstallRule {
    /// Package managers whose `install` takes package names.
    #[serde(default)]
    pub managers: Vec<String>,
    /// Patterns of package names.
    #[serde(default)]
    pub packages: Vec<String>,
    /// Patterns of the names of installers that are run as files.
    #[serde(default)]
    pub installers: Vec<String>,
    /// The rule applies only if the installer has one of these options. If the list is empty, the
    /// rule always applies.
    #[serde(default)]
    pub with_options: Vec<String>,
    /// Options of an installer with which it does not install.
    #[serde(default)]
    pub unless_options: Vec<String>,
    /// `{name}` is the package or the installer.
    pub verdict: LintVerdict,
}
