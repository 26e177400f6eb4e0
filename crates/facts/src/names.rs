//! GPU lookup by name, ignoring case and punctuation, and suggestions for misspelt names.

use crate::gpu::{Gpu, GpuFacts};

/// A name in lower case without spaces and punctuation, and without the words NVIDIA and Tesla at
/// its start.
pub fn fold(name: &str) -> String {
    folded(name).map(char::from).collect()
}

/// The bytes of [`fold`] as an iterator. It does not allocate, because every check compares all
/// names.
fn folded(name: &str) -> impl Iterator<Item = u8> {
    let mut letters =
        name.bytes().filter(u8::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase());
    for maker in ["nvidia", "tesla"] {
        let mut rest = letters.clone();
        let begins = maker.bytes().all(|letter| rest.next() == Some(letter));
        if begins && rest.clone().next().is_some() {
            letters = rest;
        }
    }
    letters
}

fn folds_to(name: &str, key: &str) -> bool {
    folded(name).eq(key.bytes())
}

/// The candidates closest to a misspelt `name`, nearest first, at most three.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let key = fold(name);
    // Up to a third of the letters may be wrong. A word with more wrong letters is another word.
    let max_distance = (key.len() / 3).max(1);
    let mut near: Vec<(usize, &str)> = candidates
        .into_iter()
        .map(|candidate| {
            let folded = fold(candidate);
            let is_prefix = !key.is_empty() && folded.starts_with(&key);
            (if is_prefix { 0 } else { distance(&key, &folded) }, candidate)
        })
        .filter(|(distance, _)| *distance <= max_distance)
        .collect();
    near.sort_unstable();
    near.dedup_by_key(|(_, candidate)| *candidate);
    near.into_iter().take(3).map(|(_, candidate)| candidate).collect()
}

/// Damerau-Levenshtein distance: a swap of neighbouring letters is one edit.
pub(crate) fn distance(left: &str, right: &str) -> usize {
    let (left, right) = (left.as_bytes(), right.as_bytes());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for (row, &a) in left.iter().enumerate() {
        let mut now = vec![row + 1];
        for (column, &b) in right.iter().enumerate() {
            let mut best =
                (last[column] + usize::from(a != b)).min(last[column + 1] + 1).min(now[column] + 1);
            let swapped = row > 0 && column > 0 && a == right[column - 1] && left[row - 1] == b;
            if swapped {
                best = best.min(before[column - 1] + 1);
            }
            now.push(best);
        }
        before = std::mem::replace(&mut last, now);
    }
    last[right.len()]
}

/// Result of a lookup by name.
#[derive(Debug, Clone, Copy)]
pub struct GpuMatch<'a> {
    pub gpu: &'a Gpu,
    /// The name denotes a family; this member was chosen.
    pub assumed: bool,
}

impl GpuFacts {
    /// Finds a GPU by canonical id, alias, NVML name or PCI id, ignoring case.
    pub fn by_name(&self, name: &str) -> Option<GpuMatch<'_>> {
        let exact = |gpu| Some(GpuMatch { gpu, assumed: false });
        // Drop MIG and time-slicing suffixes, as nvidia-smi and Kubernetes label them.
        let name = ["-MIG-", " MIG ", "-SHARED"]
            .iter()
            .filter_map(|mark| name.find(mark))
            .min()
            .map_or(name, |end| &name[..end]);
        let key = fold(name);
        if key.is_empty() {
            return None;
        }
        if let Some(gpu) = self.gpu.iter().find(|gpu| {
            folds_to(&gpu.id, &key) || gpu.nvml_names.iter().any(|name| folds_to(name, &key))
        }) {
            return exact(gpu);
        }
        if let Some(gpu) = self.by_pci_id(name) {
            return exact(gpu);
        }
        self.alias.iter().find_map(|alias| {
            let is_alias = alias.names.iter().any(|name| folds_to(name, &key));
            let assumed = !is_alias && alias.family.iter().any(|name| folds_to(name, &key));
            (is_alias || assumed).then_some(())?;
            let gpu = self.gpu.iter().find(|gpu| gpu.id == alias.gpu)?;
            Some(GpuMatch { gpu, assumed })
        })
    }

    /// Finds a GPU by PCI id: `0x2330`, `2330`, `10de:2330`, `10DE:2330`, `0x233010de` (NVML's
    /// form).
    fn by_pci_id(&self, name: &str) -> Option<&Gpu> {
        let text = name.trim().to_ascii_lowercase();
        let text = text.strip_prefix("0x").unwrap_or(&text);
        let text = text.strip_prefix("10de:").unwrap_or(text);
        let text = text.strip_prefix("0x").unwrap_or(text);
        let device = match text.len() {
            4 => text,
            8 => text.strip_suffix("10de").or_else(|| text.strip_prefix("10de"))?,
            _ => return None,
        };
        self.gpu.iter().find(|gpu| gpu.pci_device_ids.iter().any(|id| id == device))
    }

    /// The names that suggestions are chosen from: canonical ids, aliases and families.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let ids = self.gpu.iter().map(|gpu| gpu.id.as_str());
        let aliases = self.alias.iter().flat_map(|alias| alias.names.iter().chain(&alias.family));
        ids.chain(aliases.map(String::as_str))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_fold_to_the_same_key() {
        for name in ["NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-hbm3", "h100_80gb_hbm3"] {
            assert_eq!(fold(name), "h10080gbhbm3");
        }
        assert_eq!(fold("NVIDIA"), "nvidia");
    }

    #[test]
    fn suggests_for_typos_but_not_for_other_words() {
        let names = ["H100-SXM5-80GB", "A100-SXM4-80GB", "torch", "tensorflow"];
        assert_eq!(nearest("tensroflow", names), ["tensorflow"]);
        assert_eq!(nearest("toch", names), ["torch"]);
        assert!(nearest("Z9000", names).is_empty());
        assert_eq!(nearest("H100", names), ["H100-SXM5-80GB"]);
    }
}
