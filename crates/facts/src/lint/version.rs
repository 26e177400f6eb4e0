//! Recognises identifiers that hold a version of the GPU stack.

/// Components with versions.
const STACK: [&str; 14] = [
    "cuda",
    "driver",
    "nvidia",
    "nccl",
    "cudnn",
    "cublas",
    "torch",
    "tensorflow",
    "jax",
    "keras",
    "triton",
    "toolkit",
    "nvcc",
    "nvml",
];

/// Confidence that a word is a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Meaning {
    /// Not a version.
    None,
    /// A version only if it is compared with a version.
    Weak,
    /// A version by its name.
    Strong,
}

/// Classifies an identifier, ignoring case: `cuda_version`, `CUDA_VER`, `__version__`.
pub(super) fn meaning(word: &str) -> Meaning {
    let word = word.to_ascii_lowercase();
    if word == "__version__" {
        return Meaning::Strong;
    }
    let names_component = STACK.iter().any(|part| word.contains(part));
    let version = word.contains("version") || word.ends_with("_ver") || word.ends_with("_v");
    match (names_component, version) {
        (true, true) => Meaning::Strong,
        (true, false) if matches!(word.as_str(), "cuda" | "driver" | "nvcc") => Meaning::Weak,
        (false, true) if matches!(word.as_str(), "version" | "tf_version" | "tf_ver") => {
            Meaning::Weak
        }
        _ if matches!(word.as_str(), "ver" | "toolkit" | "cuda_runtime" | "cuda_toolkit") => {
            Meaning::Weak
        }
        _ => Meaning::None,
    }
}

/// Whether a literal looks like a version with two or more parts: `12.8`, `570.124.06`.
pub(super) fn is_version_text(text: &str) -> bool {
    let mut parts = text.split('.');
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    parts.clone().count() >= 2 && parts.all(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognises_version_identifiers() {
        for word in ["cuda_version", "CUDA_VERSION", "driver_ver", "__version__", "torch_version"] {
            assert_eq!(meaning(word), Meaning::Strong, "{word}");
        }
        for word in ["cuda", "version", "driver"] {
            assert_eq!(meaning(word), Meaning::Weak, "{word}");
        }
        for word in ["model_version", "conversion", "loss", "cuda_memory", "lr", "driver_count"] {
            assert_eq!(meaning(word), Meaning::None, "{word}");
        }
        assert!(is_version_text("12.8") && is_version_text("570.124.06"));
        assert!(!is_version_text("12") && !is_version_text(".5") && !is_version_text("v1.2"));
    }
}
