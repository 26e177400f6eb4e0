//! Writes `root/`: the files derived from the JSON files, and the kernel log.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use super::{NodeDir, StoreError};
use crate::gpu::SimGpu;
use crate::rootfs::{self, RootFs, RootFsEntry};
use crate::state::SimState;

impl NodeDir {
    /// Writes all files of a new node, which has no readers yet.
    pub(super) fn write_new(&self, rootfs: &RootFs) -> Result<(), StoreError> {
        let mut last_folder = None;
        for (path, content) in rootfs.iter() {
            let path = self.path.join("root").join(path);
            let failed = |err| StoreError::Write { path: path.clone(), err };
            // Paths are sorted, so most files share the folder of the previous one.
            let folder = path.parent().map(Path::to_owned);
            if let Some(folder) = folder.as_ref().filter(|_| folder != last_folder) {
                fs::create_dir_all(folder).map_err(failed)?;
            }
            last_folder = folder;
            write(&path, content).map_err(failed)?;
        }
        Ok(())
    }

    /// Writes new and changed files, and removes obsolete files and the folders that become empty.
    pub(super) fn write_changes(&self, before: &RootFs, after: &RootFs) -> Result<(), StoreError> {
        // Write outside of `root/` and rename, so that no reader lists a partial file.
        let temp_path = self.path.join(format!(".new.{}", std::process::id()));
        let changed = after.iter().filter(|(path, content)| before.get(path) != Some(content));
        for (path, content) in changed {
            let path = self.path.join("root").join(path);
            let failed = |err| StoreError::Write { path: path.clone(), err };
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder).map_err(failed)?;
            }
            // A file left by a killed writer would make `symlink` fail.
            let _ = fs::remove_file(&temp_path);
            write(&temp_path, content).map_err(failed)?;
            fs::rename(&temp_path, &path).map_err(failed)?;
        }
        for (path, _) in before.iter().filter(|(path, _)| after.get(path).is_none()) {
            self.remove(Path::new(path))?;
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> Result<(), StoreError> {
        let root = self.path.join("root");
        match fs::remove_file(root.join(path)) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => {
                return Err(StoreError::Write { path: root.join(path), err });
            }
            _ => {}
        }
        // `remove_dir` fails at the first folder that is not empty.
        for folder in path.ancestors().skip(1).filter(|folder| folder.components().count() > 1) {
            if fs::remove_dir(root.join(folder)).is_err() {
                break;
            }
        }
        Ok(())
    }

    /// Sequence number for the next kernel log record.
    pub(super) fn next_sequence(&self) -> Result<u64, StoreError> {
        /// Bytes to read from the end of the log: more than the longest record.
        const TAIL: u64 = 16 * 1024;
        let path = self.kernel_log_path();
        let failed = |err| StoreError::Read { path: path.clone(), err };
        let mut file = File::open(&path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL))).map_err(failed)?;
        let mut tail = Vec::new();
        file.read_to_end(&mut tail).map_err(failed)?;
        let sequence = |line: &[u8]| -> Option<u64> {
            std::str::from_utf8(line).ok()?.split(',').nth(1)?.parse().ok()
        };
        let last = tail.split(|byte| *byte == b'\n').rev().find_map(sequence);
        Ok(last.map_or(0, |last| last.saturating_add(1)))
    }

    /// Appends the pending records to the kernel log.
    pub(super) fn append_kernel_log(
        &self,
        state: &SimState,
        now_unix_ms: u64,
    ) -> Result<(), StoreError> {
        let path = self.kernel_log_path();
        if state.resets_kernel_log {
            let gpus: Vec<SimGpu> = state.gpus.values().cloned().collect();
            fs::write(&path, rootfs::boot_log(&state.node, &gpus))
                .map_err(|err| StoreError::Write { path: path.clone(), err })?;
        }
        if state.records.is_empty() {
            return Ok(());
        }
        let uptime_us = now_unix_ms.saturating_sub(state.node.booted_unix_ms).saturating_mul(1000);
        let first = state.next_sequence.max(state.host.kernel_sequence);
        let more: String = (first..)
            .zip(&state.records)
            .map(|(sequence, record)| rootfs::format_record(record, sequence, uptime_us))
            .collect();
        let failed = |err| StoreError::Write { path: path.clone(), err };
        let mut file = File::options().append(true).open(&path).map_err(failed)?;
        file.write_all(more.as_bytes()).map_err(failed)
    }
}

fn write(path: &Path, content: &RootFsEntry) -> io::Result<()> {
    match content {
        RootFsEntry::File(bytes) => fs::write(path, bytes),
        RootFsEntry::Symlink(target) => std::os::unix::fs::symlink(target, path),
    }
}
