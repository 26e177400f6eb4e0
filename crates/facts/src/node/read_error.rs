//! Why something could not be read.

use std::borrow::Cow;
use std::fmt;
use std::io;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::nvml_status::NvmlStatus;

/// Why a reading has no value. Code goes by the variant; `Display` is for people.
///
/// It is written as `{"code": ..., "params": ...}`. A plain text, as older captures and logs have
/// it, is read as [`Self::Legacy`] and written back as it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(remote = "Self", tag = "code", content = "params", rename_all = "kebab-case")]
pub enum ReadError {
    /// An NVML call returned it.
    #[error("{status}")]
    Nvml {
        /// What it returned.
        status: NvmlStatus,
    },
    /// The NVML library is too old to have the call.
    #[error("{}", missing_call(call.as_deref()))]
    MissingCall {
        /// Its name, where it is told.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        call: Option<Cow<'static, str>>,
    },
    /// The operating system refused.
    #[error("{}", os_words(*errno))]
    Os {
        /// Its number of the error.
        errno: i32,
    },
    /// A pipe, a device or a folder where a file is expected.
    #[error("not a regular file")]
    NotRegularFile,
    /// Something else where a symbolic link is expected.
    #[error("not a link")]
    NotALink,
    /// A symbolic link to a name that is not UTF-8.
    #[error("a link to a name that is not UTF-8")]
    LinkNotUtf8,
    /// More symbolic links on one path than the kernel follows.
    #[error("a loop of links")]
    LinkLoop,
    /// A file beyond the limit of what is read.
    #[error("larger than {} MiB", limit_bytes >> 20)]
    TooLarge {
        /// The limit.
        limit_bytes: u64,
    },
    /// A folder beyond the limit of what is listed.
    #[error("more than {limit} entries")]
    TooManyEntries {
        /// The limit.
        limit: usize,
    },
    /// A file with a NUL in it.
    #[error("`{path}` is not a text")]
    NotText {
        /// Which.
        path: String,
    },
    /// The capture does not speak of it.
    #[error("not in the capture")]
    NotInCapture,
    /// NVML did not open the GPU, so that nothing more was asked.
    #[error("the device could not be opened")]
    DeviceNotOpened,
    /// NVML lists GPUs that it does not open.
    #[error("NVML does not open {}", shut_gpus(gpus))]
    GpusNotOpened {
        /// Their numbers, each with what the call returned.
        gpus: Vec<(u32, NvmlStatus)>,
    },
    /// NVML does not list the GPU.
    #[error("NVML does not list it")]
    NotListed,
    /// NVML listed the GPU before.
    #[error("NVML no longer lists it")]
    NoLongerListed,
    /// A call into the driver has not returned.
    #[error("NVML does not answer: it hangs in {call}")]
    CallHung {
        /// Which, with the GPU that it is about.
        call: String,
    },
    /// The GPU is left alone after a call about it did not return.
    #[error("it is not asked: a call about it did not return{}", left_alone(*avoid_s))]
    CallStuck {
        /// For how long; `None` where the collector does not report it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        avoid_s: Option<u64>,
    },
    /// No answer within the time that is given.
    #[error("NVML did not answer within {limit_s} s")]
    Deadline {
        /// The limit.
        limit_s: u64,
    },
    /// What stood in the way is over, and it was not read again yet.
    #[error("NVML answers again; this was not read since")]
    NotReadSince,
    /// Nothing was read so far.
    #[error("it has not been read yet")]
    NotReadYet,
    /// The agent, which would read it, does not run.
    #[error("the agent is not running")]
    AgentNotRunning,
    /// NaN or an infinity.
    #[error("it is not a number")]
    NotANumber,
    /// The state of one NVLink.
    #[error("{err}, link {link}")]
    Link {
        /// Which.
        link: u32,
        /// Why.
        err: Box<ReadError>,
    },
    /// How many `NVLink`s there are.
    #[error("the number of NVLinks cannot be read: {err}")]
    LinkCount {
        /// Why.
        err: Box<ReadError>,
    },
    /// Something below what was asked for.
    #[error("{place}: {err}")]
    At {
        /// The path, or another name.
        place: Box<str>,
        /// Why.
        err: Box<ReadError>,
    },
    /// It was read and does not have the expected form.
    #[error("{detail}")]
    Malformed {
        /// What is wrong with it, for people.
        detail: Cow<'static, str>,
    },
    /// The process that asks NVML ended, or wrote what does not read.
    #[error("{detail}")]
    ProbeEnded {
        /// How, and in which call.
        detail: String,
    },
    /// The NVML library could not be loaded.
    #[error("{detail}")]
    NoLibrary {
        /// What the loader says.
        detail: String,
    },
    /// There was nothing to read it from, or no right to.
    #[error("{detail}")]
    Unavailable {
        /// What is missing, for people.
        detail: Cow<'static, str>,
    },
    /// A text of an older form, which says no more than its words.
    #[error("{0}")]
    #[serde(skip)]
    Legacy(String),
}

impl ReadError {
    /// An NVML call returned it.
    pub fn nvml(status: u32) -> Self {
        Self::Nvml { status: NvmlStatus(status) }
    }

    /// It does not have the expected form.
    pub fn malformed(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::Malformed { detail: detail.into() }
    }

    /// There is nothing to read it from.
    pub fn unavailable(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::Unavailable { detail: detail.into() }
    }

    /// The same of something below what was asked for.
    #[must_use]
    pub fn at(self, place: impl Into<Box<str>>) -> Self {
        Self::At { place: place.into(), err: Box::new(self) }
    }
}

/// An error that carries a [`ReadError`] is that one.
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

fn left_alone(avoid_s: Option<u64>) -> String {
    avoid_s.map_or_else(String::new, |avoid_s| {
        format!(", so that it is left alone for {avoid_s} s and for as long as that call is stuck")
    })
}

fn shut_gpus(gpus: &[(u32, NvmlStatus)]) -> String {
    let each = gpus.iter().map(|(index, status)| format!("GPU {index}: {status}"));
    each.collect::<Vec<_>>().join(", ")
}

/// The system's words, without the number that differs between systems.
fn os_words(errno: i32) -> String {
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
        out.write_str("why something could not be read")
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
    fn errors_are_written_by_code_and_read_back() {
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

    /// One of each variant but the legacy text.
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
    fn a_text_of_before_stays_a_text() {
        let text = r#""NVML_ERROR_INVALID_ARGUMENT""#;
        let err: ReadError = serde_json::from_str(text).unwrap();
        assert_eq!(err, ReadError::Legacy("NVML_ERROR_INVALID_ARGUMENT".to_owned()));
        assert_eq!(serde_json::to_string(&err).unwrap(), text);
    }

    #[test]
    fn the_systems_errors_keep_their_number() {
        let err = ReadError::from(&io::Error::from_raw_os_error(5));
        assert_eq!(err, ReadError::Os { errno: 5 });
        assert_eq!(err.to_string(), "input/output error");
        assert_eq!(ReadError::Os { errno: 13 }.to_string(), "permission denied");
        assert_eq!(ReadError::Os { errno: 1 }.to_string(), "permission denied");
        let own = io::Error::other(ReadError::LinkLoop);
        assert_eq!(ReadError::from(&own), ReadError::LinkLoop);
    }
}
