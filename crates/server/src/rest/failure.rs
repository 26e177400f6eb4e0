//! Failed requests: RFC 9457 problems with a hint. The problems reveal nothing about the server's
//! internals.

use farrier_wire::rest::{HintCode, Problem};
use hyper::header::{ALLOW, HeaderName, RETRY_AFTER, WWW_AUTHENTICATE};

use crate::audit::AuditError;
use crate::controller::SubmitError;

#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(super) problem: Box<Problem>,
    pub(super) headers: Vec<(HeaderName, String)>,
}

pub(super) struct Hint {
    text: &'static str,
    code: Option<HintCode>,
}

impl From<&'static str> for Hint {
    fn from(text: &'static str) -> Self {
        Self { text, code: None }
    }
}

impl From<HintCode> for Hint {
    fn from(code: HintCode) -> Self {
        Self { text: code.text(), code: Some(code) }
    }
}

impl Failure {
    fn new(
        status: u16,
        kind: &str,
        title: &str,
        detail: impl Into<String>,
        hint: impl Into<Hint>,
    ) -> Self {
        let Hint { text, code } = hint.into();
        let problem = Problem {
            kind: format!("urn:farrier:problem:{kind}"),
            title: title.to_owned(),
            status,
            detail: detail.into(),
            hint: text.to_owned(),
            hint_code: code,
        };
        Self { problem: Box::new(problem), headers: Vec::new() }
    }

    fn with(mut self, name: HeaderName, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Wrong, expired and revoked tokens get the same answer, so that a caller cannot find out
    /// which tokens exist.
    pub(super) fn unauthenticated() -> Self {
        Self::new(
            401,
            "unauthenticated",
            "authentication failed",
            "the token is missing, wrong, expired or revoked",
            "send `Authorization: Bearer TOKEN`; `farrier server user add` creates a token",
        )
        .with(WWW_AUTHENTICATE, "Bearer")
    }

    pub(super) fn forbidden(detail: impl Into<String>) -> Self {
        let hint = "ask someone whose role and scope allow it";
        Self::new(403, "forbidden", "the token does not allow this", detail, hint)
    }

    /// The object does not exist, or the caller's scope does not include it.
    pub(super) fn not_found(detail: impl Into<String>, hint: impl Into<Hint>) -> Self {
        Self::new(404, "not-found", "not found", detail, hint)
    }

    pub(super) fn node_not_found(node: &str) -> Self {
        let detail = format!("`{node}` is not a node of the fleet, or is not in your scope");
        Self::not_found(detail, HintCode::ListNodes)
    }

    pub(super) fn method_not_allowed(allowed: &str) -> Self {
        let detail = format!("allowed here: {allowed}");
        Self::new(405, "method-not-allowed", "method not allowed", detail, OPENAPI)
            .with(ALLOW, allowed)
    }

    pub(super) fn request_timeout() -> Self {
        let detail = "the body did not arrive in time";
        Self::new(408, "request-timeout", "the request timed out", detail, "send it again")
    }

    pub(super) fn conflict(detail: impl Into<String>, hint: impl Into<Hint>) -> Self {
        Self::new(409, "conflict", "conflict with the current state", detail, hint)
    }

    pub(super) fn too_large(most: usize) -> Self {
        let detail = format!("the body exceeds {most} bytes");
        Self::new(413, "too-large", "the body is too large", detail, OPENAPI)
    }

    pub(super) fn unsupported_media_type() -> Self {
        let detail = "the body must be `application/json`";
        let hint = "send `Content-Type: application/json`";
        Self::new(415, "unsupported-media-type", "unsupported media type", detail, hint)
    }

    pub(super) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(400, "bad-request", "the request is invalid", detail, OPENAPI)
    }

    pub(super) fn too_many_requests(detail: &str, wait_s: u64) -> Self {
        let hint = "wait as long as `Retry-After` says";
        Self::new(429, "too-many-requests", "too many requests", detail, hint)
            .with(RETRY_AFTER, wait_s.to_string())
    }

    pub(super) fn internal_error() -> Self {
        let detail = "the server failed to process the request";
        Self::new(500, "internal-error", "internal error", detail, "see the server's log")
    }

    pub(super) fn stopping() -> Self {
        let hint = "try again in a moment; the change may have been made, and repeating the request is safe";
        Self::new(503, "stopping", "the server is stopping", "the server is stopping", hint)
            .with(RETRY_AFTER, "2")
    }

    pub(super) fn overloaded() -> Self {
        let detail = "the answer was not ready in time";
        Self::new(503, "overloaded", "the server is overloaded", detail, "try again in a moment")
            .with(RETRY_AFTER, "5")
    }
}

const OPENAPI: HintCode = HintCode::ReadReference;

impl From<SubmitError> for Failure {
    fn from(err: SubmitError) -> Self {
        match err {
            SubmitError::UnknownNode(node) => Self::node_not_found(node.as_str()),
            SubmitError::TooManyFindings(_) | SubmitError::LowSpace => Self::internal_error(),
            SubmitError::Stopped => Self::stopping(),
        }
    }
}

impl From<AuditError> for Failure {
    fn from(err: AuditError) -> Self {
        match err {
            AuditError::Submit(err) => err.into(),
            AuditError::Access(err) => internal_error(&err),
        }
    }
}

/// Logs the error with its cause. The caller sees neither of them.
pub(super) fn internal_error(err: &dyn std::error::Error) -> Failure {
    tracing::error!(%err, cause = ?err.source().map(ToString::to_string), "failed to answer a request");
    Failure::internal_error()
}

/// Every status that a failure can have, except 500, for the OpenAPI document.
pub(super) const STATUSES: [(u16, &str); 11] = [
    (400, "The request is invalid."),
    (401, "Authentication failed."),
    (403, "The token does not allow this."),
    (404, "It does not exist, or is not visible to you."),
    (405, "The method is not allowed here."),
    (408, "The request timed out."),
    (409, "It conflicts with the current state."),
    (413, "The body is too large."),
    (415, "The body is not JSON."),
    (429, "Too many requests."),
    (503, "The server is stopping or overloaded."),
];
