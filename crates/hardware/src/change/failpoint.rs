//! Failpoints: named places at which a test crashes the process.
//!
//! `FARRIER_CHANGE_CRASH_AT=acted:3` aborts when `acted` is reached for the third time. The variable
//! is read once. If it is not set, a failpoint costs one comparison.

use std::cell::Cell;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeFailpointSite {
    /// Half of a journal line is in the file.
    HalfWritten,
    /// A journal line is in the file and not synced.
    Written,
    /// A journal line is on disk.
    Synced,
    /// The action is done, and its result is not in the journal.
    Acted,
}

impl ChangeFailpointSite {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "half-written" => Self::HalfWritten,
            "written" => Self::Written,
            "synced" => Self::Synced,
            "acted" => Self::Acted,
            _ => return None,
        })
    }
}

/// At most one place at which to crash.
#[derive(Debug, Default)]
pub struct ChangeFailpoint {
    site: Option<ChangeFailpointSite>,
    left: Cell<u32>,
    /// Tests in this process panic instead of aborting.
    panics: bool,
}

impl ChangeFailpoint {
    pub fn from_environment() -> Self {
        let Some(text) = std::env::var_os("FARRIER_CHANGE_CRASH_AT") else {
            return Self::default();
        };
        let text = text.to_string_lossy();
        let (name, count) = text.split_once(':').unwrap_or((&text, "1"));
        let site = ChangeFailpointSite::named(name);
        Self { site, left: Cell::new(count.parse().unwrap_or(1)), panics: false }
    }

    /// Panics when `site` is reached for the `count`th time.
    pub fn panicking(site: ChangeFailpointSite, count: u32) -> Self {
        Self { site: Some(site), left: Cell::new(count), panics: true }
    }

    /// Whether to crash now.
    pub(crate) fn is_due(&self, site: ChangeFailpointSite) -> bool {
        if self.site != Some(site) {
            return false;
        }
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        left == 1
    }

    pub(crate) fn crash(&self) -> ! {
        if self.panics {
            std::panic::panic_any("injected crash");
        }
        std::process::abort()
    }

    pub(crate) fn hit(&self, site: ChangeFailpointSite) {
        if self.is_due(site) {
            self.crash();
        }
    }
}
