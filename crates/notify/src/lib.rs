//! Delivers notifications to people and their tools.
//!
//! ```text
//! Notification ─┬─ text (subject, body) ─┐
//!               └─ template ─────────────┴─> receiver/*.rs ─> HTTP, SMTP, process
//! Receiver ─────── secret, CA, URL ──────────────^
//! ```
//!
//! [`Sender::deliver`] delivers once and says in its error whether a repetition can help
//! ([`DeliveryError::is_retryable`]). The caller stores notifications, repeats deliveries with
//! back-off, and thus delivers at least once; each delivery of a notification has the same
//! idempotency key. [`check`] finds what is wrong with a receiver before the first delivery.
//! [`ReceiverFiles`] says which programs and secrets a receiver may use.
//!
//! No error, log line or `Debug` output has a secret in it.

mod bounded_file;
mod check;
mod error;
mod folders;
mod hex;
#[cfg(test)]
mod hostile_tests;
mod http;
mod receiver;
mod receiver_answer;
mod secret;
mod sender;
mod smtp_stream;
mod template;
mod text;
mod tls;
mod url;

pub use check::{ReceiverProblem, check};
pub use error::{CommandError, DeliveryError, DeliveryStep, RootsError, SecretError};
pub use folders::{FolderError, FolderKind, ReceiverFiles, ReceiverFolders};
pub use receiver::email::EmailError;
pub use sender::Sender;
pub use template::{RefusedSyntax, TemplateError};
pub use text::{body, subject, text};
pub use url::ReceiverUrlError;
