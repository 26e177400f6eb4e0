//! URLs of receivers.

use std::net::IpAddr;

use hyper::Uri;
use rustls::pki_types::ServerName;

/// An absolute `http` or `https` URL.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct HttpUrl {
    uri: Uri,
    path_and_query: String,
    host: String,
    port: u16,
    is_tls: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReceiverUrlError {
    #[error("the URL is invalid; expected `https://HOST/PATH`")]
    Form,
    /// Configurations name the files of secrets, never the secrets.
    #[error(
        "the URL has a user or password; expected a file with the secret, such as in `bearer_token`"
    )]
    UserInfo,
    /// The secret could be intercepted.
    #[error(
        "the URL is plain `http://` but a secret is sent; expected `https://`, or a loopback address"
    )]
    Plain,
}

impl HttpUrl {
    pub(crate) fn parse(text: &str) -> Result<Self, ReceiverUrlError> {
        // `Uri` drops fragments, which no receiver gets.
        let uri: Uri = text.parse().map_err(|_| ReceiverUrlError::Form)?;
        let authority = uri.authority().ok_or(ReceiverUrlError::Form)?;
        if authority.as_str().contains('@') {
            return Err(ReceiverUrlError::UserInfo);
        }
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(ReceiverUrlError::Form),
        };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        // A port that does not parse must not become the default port.
        let has_port = authority.as_str().len() > authority.host().len();
        let port = authority.port_u16().filter(|port| *port > 0);
        if host.is_empty() || text.contains('#') || (has_port && port.is_none()) {
            return Err(ReceiverUrlError::Form);
        }
        // TLS verifies the name of the server.
        if is_tls && ServerName::try_from(host.as_str()).is_err() {
            return Err(ReceiverUrlError::Form);
        }
        let port = port.unwrap_or(if is_tls { 443 } else { 80 });
        let path_and_query = uri.path_and_query().map_or("", |path| path.as_str());
        // A request needs a path, also if the URL has only a query.
        let slash = if path_and_query.starts_with('/') { "" } else { "/" };
        let path_and_query = format!("{slash}{path_and_query}");
        if path_and_query.parse::<Uri>().is_err() {
            return Err(ReceiverUrlError::Form);
        }
        Ok(Self { uri, path_and_query, host, port, is_tls })
    }

    /// Parses the URL of a request that has a secret in its headers, body or URL.
    pub(crate) fn parse_confidential(text: &str) -> Result<Self, ReceiverUrlError> {
        let url = Self::parse(text)?;
        if url.is_tls || is_loopback(&url.host) { Ok(url) } else { Err(ReceiverUrlError::Plain) }
    }

    /// The same server with another path.
    pub(crate) fn join(&self, path: &str) -> Result<Self, ReceiverUrlError> {
        let base = self.uri.path().trim_end_matches('/');
        let scheme = if self.is_tls { "https" } else { "http" };
        Self::parse(&format!("{scheme}://{}{base}{path}", self.authority()))
    }

    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// Host and port as written, for the header `Host`.
    pub(crate) fn authority(&self) -> &str {
        self.uri.authority().map_or("", |authority| authority.as_str())
    }

    pub(crate) fn path_and_query(&self) -> &str {
        &self.path_and_query
    }
}

pub(crate) fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}
