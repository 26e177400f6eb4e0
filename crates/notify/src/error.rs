//! Why a notification was not delivered. No message contains a secret or the path of a URL, which
//! often is one.

use std::fmt;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use farrier_wire::file_mode::LooseModes;

use crate::folders::FolderError;
use crate::receiver::email::EmailError;
use crate::template::TemplateError;
use crate::url::ReceiverUrlError;

/// Longest wait that a receiver may ask for. A longer one would delay the notification beyond use.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// A step of a delivery that has a deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryStep {
    Connect,
    TlsHandshake,
    /// Sending the request and receiving the head of the response.
    Request,
    /// The whole conversation with an SMTP server.
    Smtp,
    Command,
}

impl fmt::Display for DeliveryStep {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Connect => "connecting",
            Self::TlsHandshake => "the TLS handshake",
            Self::Request => "the request",
            Self::Smtp => "the SMTP conversation",
            Self::Command => "the command",
        })
    }
}

/// Why the file of a secret is not usable.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The value is not shown: it may be the secret itself.
    #[error("expected the absolute path of a file with the secret")]
    NotAbsolute,
    #[error("failed to read the secret in `{}`", path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        err: std::io::Error,
    },
    #[error("the secret in `{}` is not private", path.display())]
    NotPrivate {
        path: PathBuf,
        #[source]
        err: LooseModes,
    },
    #[error("`{}` is empty; expected a secret in one line", path.display())]
    Empty { path: PathBuf },
    #[error("`{}` is larger than {max} bytes; expected a secret in one line", path.display())]
    TooLarge { path: PathBuf, max: u64 },
    #[error("`{}` has several lines or control characters; expected a secret in one line", path.display())]
    SeveralLines { path: PathBuf },
    #[error("the secret in `{}` is not a URL that can be used", path.display())]
    NotUrl {
        path: PathBuf,
        #[source]
        err: ReceiverUrlError,
    },
    #[error("the secret in `{}` is not a token; expected ASCII", path.display())]
    NotToken { path: PathBuf },
}

/// Why the root certificates are not usable.
#[derive(Debug, thiserror::Error)]
pub enum RootsError {
    #[error("failed to read the root certificates in `{}`", path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        err: std::io::Error,
    },
    #[error("`{}` has no valid certificate in PEM format", path.display())]
    NoCertificate { path: PathBuf },
    #[error("this machine has no root certificates")]
    NoneInstalled,
}

/// Why a command did not deliver.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("the program is not an absolute path")]
    NotAbsolute,
    #[error("an argument has a NUL character, which no program can get")]
    Nul,
    #[error("failed to start `{}`", program.display())]
    Start {
        program: PathBuf,
        #[source]
        err: std::io::Error,
    },
    #[error("failed to wait for `{}`", program.display())]
    Wait {
        program: PathBuf,
        #[source]
        err: std::io::Error,
    },
    /// `output` is the end of its stderr.
    #[error("`{}` ended with {status}{}", program.display(), said(output))]
    Failed { program: PathBuf, status: std::process::ExitStatus, output: String },
}

impl CommandError {
    /// A program may be replaced, its folder mounted later, or the machine short of processes. No
    /// repetition changes the arguments.
    fn is_retryable(&self) -> bool {
        match self {
            Self::NotAbsolute | Self::Nul => false,
            Self::Start { err, .. } => err.kind() != ErrorKind::ArgumentListTooLong,
            Self::Wait { .. } | Self::Failed { .. } => true,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum DeliveryError {
    #[error(transparent)]
    Url(#[from] ReceiverUrlError),
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    Roots(#[from] RootsError),
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error(transparent)]
    Email(#[from] EmailError),
    #[error(transparent)]
    Command(#[from] CommandError),
    /// An address, a header or a TLS name that no receiver accepts.
    #[error("{what} is invalid")]
    Invalid { what: &'static str },
    /// A response that is too large, incomplete or not what the API defines.
    #[error("the response of `{host}` is not what its API defines")]
    Response { host: String },
    #[error("failed to connect to `{host}`")]
    Connect {
        host: String,
        #[source]
        err: std::io::Error,
    },
    #[error("failed to establish TLS with `{host}`")]
    Tls {
        host: String,
        #[source]
        err: std::io::Error,
    },
    #[error("{step} took longer than {} s", limit.as_secs())]
    TimedOut { step: DeliveryStep, limit: Duration },
    /// The connection broke, or the peer does not speak HTTP.
    #[error("the HTTP exchange with `{host}` failed")]
    Http {
        host: String,
        #[source]
        err: hyper::Error,
    },
    /// `body` is the start of the response.
    #[error("`{host}` answered {status}{}", said(body))]
    Status { host: String, status: u16, retry_after: Option<Duration>, body: String },
    #[error("`{host}` does not offer STARTTLS")]
    NoStarttls { host: String },
    #[error("`{host}` offers no AUTH with PLAIN or LOGIN, which `user` and `password` need")]
    NoAuth { host: String },
    /// `code` is the reply code of the server, if it sent one.
    #[error("the SMTP server `{host}` failed{}{}", code_text(*code), said(reply))]
    Smtp { host: String, code: Option<u16>, is_permanent: bool, reply: String },
}

impl DeliveryError {
    /// `true` if the same delivery may succeed later. Otherwise someone has to change the receiver
    /// or its configuration.
    pub fn is_retryable(&self) -> bool {
        match self {
            // Secrets and certificates are replaced while the sender runs.
            Self::Secret(_)
            // The server may get the folder at its next start.
            | Self::Folder(_)
            | Self::Roots(_)
            | Self::Connect { .. }
            | Self::Tls { .. }
            | Self::TimedOut { .. }
            | Self::Http { .. }
            | Self::Response { .. }
            | Self::NoStarttls { .. }
            | Self::NoAuth { .. } => true,
            Self::Url(_) | Self::Email(_) | Self::Invalid { .. } => false,
            Self::Template(err) => matches!(err, TemplateError::Thread(_)),
            Self::Command(err) => err.is_retryable(),
            // A token or an address is often wrong only for a while, such as after a rotation.
            Self::Status { status, .. } => {
                matches!(status, 401 | 403 | 404 | 408 | 425 | 429 | 500..=599)
            }
            Self::Smtp { is_permanent, .. } => !is_permanent,
        }
    }

    /// Whether the receiver was reached. A receiver that is reached and fails again and again may
    /// fail because of this notification, so a sender gives up after a while. One that is down gets
    /// everything when it returns.
    pub fn reached_receiver(&self) -> bool {
        match self {
            Self::TimedOut { step, .. } => {
                !matches!(step, DeliveryStep::Connect | DeliveryStep::TlsHandshake)
            }
            Self::Response { .. }
            | Self::Http { .. }
            | Self::Status { .. }
            | Self::NoStarttls { .. }
            | Self::Command(CommandError::Failed { .. }) => true,
            Self::Smtp { code, .. } => code.is_some(),
            _ => false,
        }
    }

    /// How long the receiver asks the sender to wait, at most an hour.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => retry_after.map(|wait| wait.min(RETRY_AFTER_MAX)),
            _ => None,
        }
    }
}

fn said(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": `{text}`") }
}

fn code_text(code: Option<u16>) -> String {
    code.map(|code| format!(" with {code}")).unwrap_or_default()
}
