//! What the lab builds once: folders below `target/lab`, named by a hash of their inputs.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;

use crate::shell::{print_status, root};

/// The folder of everything that the lab writes.
pub(crate) fn lab_folder() -> PathBuf {
    root().join("target/lab")
}

/// One cached folder.
pub(crate) struct CacheEntry {
    name: &'static str,
    key: String,
}

impl CacheEntry {
    /// The inputs are everything that decides the content, such as sources and package names.
    pub(crate) fn new(name: &'static str, inputs: &[&str]) -> Self {
        let mut hasher = DefaultHasher::new();
        inputs.hash(&mut hasher);
        Self { name, key: format!("{:016x}", hasher.finish()) }
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    fn path(&self) -> PathBuf {
        lab_folder().join(format!("{}-{}", self.name, self.key))
    }

    /// The folder, after `build` has filled it in this or an earlier run.
    pub(crate) fn ensure(
        &self,
        build: impl FnOnce(&Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<PathBuf> {
        let path = self.path();
        if path.exists() {
            return Ok(path);
        }
        fs::create_dir_all(lab_folder())?;
        // Another run may be building the same.
        let lock = fs::File::create(lab_folder().join(format!("{}.lock", self.name)))?;
        lock.lock()?;
        if path.exists() {
            return Ok(path);
        }
        print_status(&format!("--- lab: building the {}", self.name));
        let started = Instant::now();
        self.remove_others()?;
        let partial = lab_folder().join(format!("{}-partial", self.name));
        fs::create_dir_all(&partial)?;
        build(&partial).with_context(|| format!("failed to build the lab's {}", self.name))?;
        fs::rename(&partial, &path)?;
        let elapsed_s = started.elapsed().as_secs_f64();
        print_status(&format!("--- lab: built the {} in {elapsed_s:.0} s", self.name));
        Ok(path)
    }

    /// Removes partial and outdated folders of this name.
    fn remove_others(&self) -> anyhow::Result<()> {
        for entry in fs::read_dir(lab_folder())? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.rsplit_once('-').is_some_and(|(name, _)| name == self.name) {
                fs::remove_dir_all(&path)
                    .with_context(|| format!("failed to remove `{}`", path.display()))?;
            }
        }
        Ok(())
    }
}
