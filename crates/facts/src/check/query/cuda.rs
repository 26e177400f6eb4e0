//! `--cuda` and `--forward-compat`.

use super::CudaRequest;
use crate::check::input::{Field, InputError};
use crate::set::FactSet;
use crate::version::{Branch, CudaVersion, ToolkitVersion};

pub(super) fn parse_cuda<'a>(set: &'a FactSet, text: &str) -> Result<CudaRequest<'a>, InputError> {
    const EXPECTED: &str = "a release such as `12.8`, `12.8.1` or `12`";
    let error = |problem: String| InputError::new(Field::Cuda, problem, EXPECTED);
    if text.is_empty() {
        return Err(error("no version given".to_owned()));
    }
    let parts: Vec<&str> = text.split('.').collect();
    let major: u32 = match parts[0].parse() {
        Ok(major) if parts.len() <= 3 && parts[0].bytes().all(|b| b.is_ascii_digit()) => major,
        _ => return Err(error(format!("`{text}` is not a CUDA version"))),
    };
    if set.drivers.branch(Branch(major)).is_some() || major >= 100 {
        return Err(error(format!("`{text}` looks like a driver version; are the two swapped?")));
    }
    let unknown = || self::unknown_cuda(set, Field::Cuda, text);
    match parts.len() {
        1 => set.cuda.family(major).map(|_| CudaRequest::Major(major)).ok_or_else(unknown),
        2 => {
            let cuda: CudaVersion =
                text.parse().map_err(|_| error(format!("`{text}` is not a CUDA version")))?;
            set.cuda.first_release(cuda).map(CudaRequest::Minor).ok_or_else(unknown)
        }
        _ => {
            let version: ToolkitVersion =
                text.parse().map_err(|_| error(format!("`{text}` is not a CUDA version")))?;
            let toolkit = set.cuda.toolkit.iter().find(|toolkit| toolkit.version == version);
            toolkit.map(CudaRequest::Exact).ok_or_else(unknown)
        }
    }
}

/// Returns an error for a CUDA version that is not in the data. The error lists published versions.
fn unknown_cuda(set: &FactSet, field: Field, text: &str) -> InputError {
    let releases = set.cuda.toolkit.iter().rev().map(|toolkit| toolkit.version);
    // Suggest releases of the same minor version. If there are none, suggest minor versions of the
    // same major version.
    let minor = text.rsplit_once('.').and_then(|(minor, _)| minor.parse::<CudaVersion>().ok());
    let major = text.split('.').next().and_then(|major| major.parse::<u32>().ok());
    let same_minor = releases.clone().filter(|release| Some(release.cuda) == minor);
    let same_major = set.cuda.minors().into_iter().rev().filter(|cuda| Some(cuda.major) == major);
    let mut published: Vec<String> = same_minor.map(|release| release.to_string()).collect();
    if published.is_empty() {
        published = same_major.map(|cuda| cuda.to_string()).collect();
    }
    if !published.is_empty() {
        let problem = format!("there is no CUDA {text}");
        return InputError::new(field, problem, format!("published: {}", published.join(", ")));
    }
    let range = match (releases.clone().next(), releases.clone().next_back()) {
        (Some(first), Some(last)) => format!("the data holds {} to {}", first.cuda, last.cuda),
        _ => "the data holds none".to_owned(),
    };
    InputError::new(field, format!("CUDA {text} is not in the data"), format!("{range}{NEWER}"))
}

/// Hint for releases newer than the data.
pub(super) const NEWER: &str = "; `farrier facts update --from FILE` installs newer facts";

pub(super) fn parse_forward_compat(set: &FactSet, text: &str) -> Result<CudaVersion, InputError> {
    const EXPECTED: &str = "the CUDA of the package, such as `13.0` for cuda-compat-13-0";
    let cuda: CudaVersion = text.parse().map_err(|_| {
        let problem = format!("`{text}` is not a CUDA version");
        InputError::new(Field::ForwardCompat, problem, EXPECTED)
    })?;
    if set.cuda.first_release(cuda).is_none() {
        return Err(unknown_cuda(set, Field::ForwardCompat, text));
    }
    Ok(cuda)
}
