//! Why a value could not be read, as a typed error.

use std::borrow::Cow;
use std::fmt;
use std::io;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::nvml_status::NvmlStatus;

/// Why a value is unreadable. Code matches on the variant; `Display` is for people.
///
/// Serialised as `{"code": ..., "params": ...}`. Older captures and logs have a plain string
/// instead. It is parsed as [`Self::Legacy`] and written back unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(remote = "Self", tag = "code", content = "params", rename_all = "kebab-case")]
pub enum ReadError {
    /// An NVML call failed.
    #[error("{status}")]
    Nvml { status: NvmlStatus },
    /// The NVML library is too old to have the call.
    #[error("{}", missing_call(call.as_deref()))]
    MissingCall {
        /// Name of the function, if known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        call: Option<Cow<'static, str>>,
    },
    /// A system call failed.
    #[error("{}", os_message(*errno))]
    Os { errno: i32 },
    /// A pipe, device or directory instead of a file.
    #[error("not a regular file")]
    NotRegularFile,
    /// Not a symbolic link.
    #[error("not a link")]
    NotALink,
    /// A symbolic link with a target that is not UTF-8.
    #[error("a link to a name that is not UTF-8")]
    LinkNotUtf8,
    /// Too many levels of symbolic links.
    #[error("a loop of links")]
    LinkLoop,
    /// A file larger than the read limit.
    #[error("larger than {} MiB", limit_bytes >> 20)]
    TooLarge { limit_bytes: u64 },
    /// A directory with more entries than the limit.
    #[error("more than {limit} entries")]
    TooManyEntries { limit: usize },
    /// A file that contains a NUL byte.
    #[error("`{path}` is not text")]
    NotText { path: String },
    /// The capture does not include the value.
    #[error("not in the capture")]
    NotInCapture,
    /// NVML could not open the GPU, so nothing more was queried.
    #[error("the device could not be opened")]
    DeviceNotOpened,
    /// NVML lists GPUs that it cannot open.
    #[error("NVML does not open {}", unopened_gpus(gpus))]
    GpusNotOpened {
        /// NVML indices with the returned status.
        gpus: Vec<(u32, NvmlStatus)>,
    },
    /// NVML does not list the GPU.
    #[error("NVML does not list the GPU")]
    NotListed,
    /// NVML listed the GPU earlier but no longer does.
    #[error("NVML no longer lists the GPU")]
    NoLongerListed,
    /// A call into the driver hangs.
    #[error("NVML does not answer: it hangs in {call}")]
    CallHung {
        /// The call and its GPU.
        call: String,
    },
    /// The GPU is not queried for a while, because a call on this GPU hung.
    #[error("not queried: a call on this GPU hung{}", back_off(*avoid_s))]
    CallStuck {
        /// For how many seconds the GPU is not queried. `None` if the collector does not say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        avoid_s: Option<u64>,
    },
    /// NVML did not answer in time.
    #[error("NVML did not answer within {limit_s} s")]
    Deadline { limit_s: u64 },
    /// NVML works again, but the value has not been read since.
    #[error("NVML recovered; not read again yet")]
    NotReadSince,
    /// Not read yet.
    #[error("the value has not been read yet")]
    NotReadYet,
    /// The agent, which would read the value, is not running.
    #[error("the agent is not running")]
    AgentNotRunning,
    /// NaN or an infinity.
    #[error("the value is not a number")]
    NotANumber,
    /// Failed to read the state of one NVLink.
    #[error("{err}, link {link}")]
    Link { link: u32, err: Box<ReadError> },
    /// Failed to read the number of `NVLink`s.
    #[error("the number of NVLinks cannot be read: {err}")]
    LinkCount { err: Box<ReadError> },
    /// An error with the path or object at which it happened.
    #[error("{place}: {err}")]
    At {
        /// Path or other name.
        place: Box<str>,
        err: Box<ReadError>,
    },
    /// The value has an unexpected format.
    #[error("{detail}")]
    Malformed {
        /// Human-readable description.
        detail: Cow<'static, str>,
    },
    /// The NVML probe process died or wrote malformed output.
    #[error("{detail}")]
    ProbeEnded {
        /// How the process ended, and in which call.
        detail: String,
    },
    /// The NVML library could not be loaded.
    #[error("{detail}")]
    NoLibrary {
        /// Error of the dynamic loader.
        detail: String,
    },
    /// The source is missing or not accessible.
    #[error("{detail}")]
    Unavailable {
        /// Human-readable description.
        detail: Cow<'static, str>,
    },
    /// A plain string, as older versions wrote it.
    #[error("{0}")]
    #[serde(skip)]
    Legacy(String),
}

impl ReadError {
    /// An NVML call failed.
    pub fn nvml(status: u32) -> Self {
        Self::Nvml { status: NvmlStatus(status) }
    }

    /// Shorthand for [`Self::Malformed`].
    pub fn malformed(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::Malformed { detail: detail.into() }
    }

    /// Shorthand for [`Self::Unavailable`].
    pub fn unavailable(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::Unavailable { detail: detail.into() }
    }

    /// Whether the value is not part of what is read at all: a capture from an older version, or a
    /// root without this part of the file system.
    pub fn is_out_of_reach(&self) -> bool {
        match self {
            Self::NotInCapture | Self::Unavailable { .. } => true,
            Self::At { err, .. } => err.is_out_of_reach(),
            _ => false,
        }
    }

    /// Adds the path or object at which the error happened.
    #[must_use]
    pub fn at(self, place: impl Into<Box<str>>) -> Self {
        Self::At { place: place.into(), err: Box::new(self) }
    }
}

/// Returns the [`ReadError`] inside the I/O error, if there is one.
impl From<&io::Error> for ReadError {
    fn from(err: &io::Error) -> Self {
        let own = err.get_ref().and_then(|inner| inner.downcast_ref::<Self>());
        match (own, err.raw_os_error()) {
            (Some(own), _) => own.clone(),
            (None, Some(errno)) => Self::Os { errno },
            (None, None) => Self::unavailable(err.to_string()),
        }
    }
}

impl From<NvmlStatus> for ReadError {
    fn from(status: NvmlStatus) -> Self {
        Self::Nvml { status }
    }
}

fn missing_call(call: Option<&str>) -> String {
    call.map_or_else(
        || "the library lacks the call".to_owned(),
        |call| format!("the library has no {call}"),
    )
}

fn back_off(avoid_s: Option<u64>) -> String {
    avoid_s.map_or_else(String::new, |avoid_s| {
        format!("; backing off for {avoid_s} s and while that call is stuck")
    })
}

fn unopened_gpus(gpus: &[(u32, NvmlStatus)]) -> String {
    let each = gpus.iter().map(|(index, status)| format!("GPU {index}: {status}"));
    each.collect::<Vec<_>>().join(", ")
}

/// The system's error text, without the error number.
fn os_message(errno: i32) -> String {
    let err = io::Error::from_raw_os_error(errno);
    if err.kind() == io::ErrorKind::PermissionDenied {
        return "permission denied".to_owned();
    }
    let text = err.to_string();
    let words = text.split(" (os error").next().unwrap_or_default();
    let mut letters = words.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

impl Serialize for ReadError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Legacy(text) => serializer.serialize_str(text),
            _ => Self::serialize(self, serializer),
        }
    }
}

impl<'de> Deserialize<'de> for ReadError {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ReadErrorVisitor)
    }
}

struct ReadErrorVisitor;

impl<'de> Visitor<'de> for ReadErrorVisitor {
    type Value = ReadError;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a read error")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ReadError, E> {
        Ok(ReadError::Legacy(text.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ReadError, A::Error> {
        ReadError::deserialize(MapAccessDeserializer::new(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_round_trip_by_code() {
        let lost = ReadError::Nvml { status: NvmlStatus::GPU_IS_LOST };
        assert_eq!(
            serde_json::to_string(&lost).unwrap(),
            r#"{"code":"nvml","params":{"status":"NVML_ERROR_GPU_IS_LOST"}}"#
        );
        let text = serde_json::to_string(&ReadError::NotInCapture).unwrap();
        assert_eq!(text, r#"{"code":"not-in-capture"}"#);
        for (err, words) in [
            (lost.clone(), "NVML_ERROR_GPU_IS_LOST"),
            (ReadError::NotInCapture, "not in the capture"),
            (ReadError::MissingCall { call: None }, "the library lacks the call"),
            (ReadError::TooLarge { limit_bytes: 32 << 20 }, "larger than 32 MiB"),
            (lost.clone().at("/sys/bus"), "/sys/bus: NVML_ERROR_GPU_IS_LOST"),
            (
                ReadError::Link { link: 3, err: Box::new(ReadError::nvml(77)) },
                "NVML error 77, link 3",
            ),
            (
                ReadError::GpusNotOpened { gpus: vec![(1, NvmlStatus(4)), (5, NvmlStatus(999))] },
                "NVML does not open GPU 1: NVML_ERROR_NO_PERMISSION, GPU 5: NVML_ERROR_UNKNOWN",
            ),
            (ReadError::malformed("it is odd"), "it is odd"),
        ] {
            assert_eq!(err.to_string(), words);
            let text = serde_json::to_string(&err).unwrap();
            assert_eq!(serde_json::from_str::<ReadError>(&text).unwrap(), err, "{text}");
        }
    }

    /// One of each variant except `Legacy`.
    fn samples() -> Vec<ReadError> {
        let err = || Box::new(ReadError::NotListed);
        let detail = || "detail".to_owned();
        vec![
            ReadError::nvml(15),
            ReadError::MissingCall { call: Some("nvmlInit_v2".into()) },
            ReadError::Os { errno: 5 },
            ReadError::NotRegularFile,
            ReadError::NotALink,
            ReadError::LinkNotUtf8,
            ReadError::LinkLoop,
            ReadError::TooLarge { limit_bytes: 1 << 20 },
            ReadError::TooManyEntries { limit: 9 },
            ReadError::NotText { path: "/etc/x".to_owned() },
            ReadError::NotInCapture,
            ReadError::DeviceNotOpened,
            ReadError::GpusNotOpened { gpus: vec![(0, NvmlStatus::NO_PERMISSION)] },
            ReadError::NotListed,
            ReadError::NoLongerListed,
            ReadError::CallHung { call: "nvmlInit_v2".to_owned() },
            ReadError::CallStuck { avoid_s: Some(60) },
            ReadError::Deadline { limit_s: 60 },
            ReadError::NotReadSince,
            ReadError::NotReadYet,
            ReadError::AgentNotRunning,
            ReadError::NotANumber,
            ReadError::Link { link: 3, err: err() },
            ReadError::LinkCount { err: err() },
            ReadError::NotListed.at("/sys"),
            ReadError::malformed("detail"),
            ReadError::ProbeEnded { detail: detail() },
            ReadError::NoLibrary { detail: detail() },
            ReadError::unavailable("detail"),
        ]
    }

    #[test]
    fn docs_reasons_md_has_every_code_with_its_params() {
        const PAGE: &str = include_str!("../../../../docs/reasons.md");
        let rows = PAGE.split("| unreadable code |").nth(1).unwrap();
        let rows: Vec<&str> = rows.split("\n\n").next().unwrap().lines().skip(2).collect();
        let samples = samples();
        assert_eq!(rows.len(), samples.len());
        for err in samples {
            let value = serde_json::to_value(&err).unwrap();
            let params: Vec<String> = value.get("params").map_or_else(
                || vec!["-".to_owned()],
                |params| params.as_object().unwrap().keys().map(|key| format!("`{key}`")).collect(),
            );
            let code = value["code"].as_str().unwrap();
            let row = rows.iter().find(|row| row.starts_with(&format!("| `{code}` | ")));
            let row = row.unwrap_or_else(|| panic!("no row for `{code}`"));
            assert!(params.iter().all(|param| row.contains(param.as_str())), "{row}: {params:?}");
            assert_eq!(serde_json::from_value::<ReadError>(value).unwrap(), err);
        }
    }

    #[test]
    fn legacy_text_round_trips() {
        let text = r#""NVML_ERROR_INVALID_ARGUMENT""#;
        let err: ReadError = serde_json::from_str(text).unwrap();
        assert_eq!(err, ReadError::Legacy("NVML_ERROR_INVALID_ARGUMENT".to_owned()));
        assert_eq!(serde_json::to_string(&err).unwrap(), text);
    }

    #[test]
    fn os_errors_keep_their_number() {
        let err = ReadError::from(&io::Error::from_raw_os_error(5));
        assert_eq!(err, ReadError::Os { errno: 5 });
        assert_eq!(err.to_string(), "input/output error");
        assert_eq!(ReadError::Os { errno: 13 }.to_string(), "permission denied");
        assert_eq!(ReadError::Os { errno: 1 }.to_string(), "permission denied");
        let own = io::Error::other(ReadError::LinkLoop);
        assert_eq!(ReadError::from(&own), ReadError::LinkLoop);
    }
}
