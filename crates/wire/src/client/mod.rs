//! The client side of a connection to a server: HTTP/2 over TLS, or without TLS on loopback. The
//! streams of many nodes share one connection.

mod pinned;
mod plain;
mod rest;

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::crypto::ring as provider;
use rustls::pki_types::ServerName;
use rustls::{CertificateError, ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::body::Body;

pub use pinned::{FingerprintError, fingerprint, pinned};
use plain::{Plain, SpeaksTls};
pub use rest::{RestClient, RestError, RestResponse};

use crate::limits::MESSAGE_BYTES_MAX;
use crate::proto::agents_client::AgentsClient;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a ping is sent. A dead peer is detected after this time plus [`PING_TIMEOUT`].
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Flow-control window for messages from the server, which are small.
const WINDOW_BYTES: u32 = 64 << 10;

/// Address of a server: `https://HOST:PORT`, or `http://` with a loopback address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerUrl {
    host: String,
    port: u16,
    is_plain: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    #[error("expected `https://HOST:PORT`")]
    Form,
    /// Plain HTTP beyond loopback could be intercepted.
    #[error("`http://` is allowed on loopback only; expected `https://HOST:PORT`")]
    Plain,
}

impl FromStr for ServerUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let uri: Uri = text.parse().map_err(|_| UrlError::Form)?;
        let is_bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
        let host = uri.host().filter(|host| !host.is_empty()).ok_or(UrlError::Form)?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = uri.port_u16().ok_or(UrlError::Form)?;
        let is_plain = match uri.scheme_str() {
            Some("https") => false,
            Some("http") => true,
            _ => return Err(UrlError::Form),
        };
        let has_user = uri.authority().is_some_and(|authority| authority.as_str().contains('@'));
        if !is_bare || has_user {
            return Err(UrlError::Form);
        }
        let is_loopback =
            host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
        if is_plain && !is_loopback {
            return Err(UrlError::Plain);
        }
        Ok(Self { host, port, is_plain })
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_plain { "http" } else { "https" };
        if self.host.contains(':') {
            write!(formatter, "{scheme}://[{}]:{}", self.host, self.port)
        } else {
            write!(formatter, "{scheme}://{}:{}", self.host, self.port)
        }
    }
}

impl ServerUrl {
    pub fn is_plain(&self) -> bool {
        self.is_plain
    }

    fn origin(&self) -> Result<Uri, ConnectError> {
        let failed = |err| ConnectError::Connect { url: self.clone(), err: io::Error::other(err) };
        self.to_string().parse::<Uri>().map_err(failed)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The server does not answer, or does not answer as expected.
    #[error("failed to connect to `{url}`")]
    Connect {
        url: ServerUrl,
        #[source]
        err: io::Error,
    },
    #[error("`{url}` did not answer in {} s", CONNECT_TIMEOUT.as_secs())]
    Slow { url: ServerUrl },
    /// The certificate is not valid for this server.
    #[error("`{url}` is not the expected server: {why}")]
    UntrustedServer { url: ServerUrl, why: String },
    /// The server does not offer TLS.
    #[error("`{url}` does not support TLS, which `https://` requires")]
    NoTls { url: ServerUrl },
    /// The server does not support HTTP/2.
    #[error("`{url}` does not support HTTP/2")]
    Http2 {
        url: ServerUrl,
        #[source]
        err: hyper::Error,
    },
}

/// A connection to a server. All clones share one connection, which closes when the last clone is
/// dropped.
#[derive(Debug, Clone)]
pub struct Connection {
    send: SendRequest<Body>,
    speaks_tls: SpeaksTls,
}

#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// `http://` was used for a TLS port.
    #[error("the server uses TLS on this port: the address must start with `https://`")]
    SpeaksTls,
    #[error("the connection was lost")]
    Broken(#[source] hyper::Error),
}

impl tower_service::Service<hyper::Request<Body>> for Connection {
    type Response = hyper::Response<hyper::body::Incoming>;
    type Error = CallError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.send.poll_ready(context).map_err(|err| failed_call(&self.speaks_tls, err))
    }

    fn call(&mut self, request: hyper::Request<Body>) -> Self::Future {
        let (sent, speaks_tls) = (self.send.send_request(request), self.speaks_tls.clone());
        Box::pin(async move { sent.await.map_err(|err| failed_call(&speaks_tls, err)) })
    }
}

fn failed_call(speaks_tls: &SpeaksTls, err: hyper::Error) -> CallError {
    if speaks_tls.get() { CallError::SpeaksTls } else { CallError::Broken(err) }
}

/// An empty TLS configuration. Plain connections do not use it.
pub fn no_tls() -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(Arc::new(provider::default_provider()));
    let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]);
    let builder = builder.expect("the provider has TLS 1.3");
    Arc::new(builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}

pub type Agents = AgentsClient<Connection>;

/// Connects as an agent. Ignores `tls` if the address starts with `http://`.
pub async fn connect(url: &ServerUrl, tls: Arc<ClientConfig>) -> Result<Agents, ConnectError> {
    let agents = AgentsClient::with_origin(open(url, tls).await?, url.origin()?);
    Ok(agents
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX))
}

/// Opens a connection. gRPC and REST both use it.
async fn open(url: &ServerUrl, tls: Arc<ClientConfig>) -> Result<Connection, ConnectError> {
    let slow = |_| ConnectError::Slow { url: url.clone() };
    tokio::time::timeout(CONNECT_TIMEOUT, open_untimed(url, tls)).await.map_err(slow)?
}

async fn open_untimed(url: &ServerUrl, tls: Arc<ClientConfig>) -> Result<Connection, ConnectError> {
    let failed = |err| ConnectError::Connect { url: url.clone(), err };
    let tcp = TcpStream::connect((url.host.as_str(), url.port)).await.map_err(failed)?;
    // Orders and acknowledgements are small and latency-sensitive.
    tcp.set_nodelay(true).map_err(failed)?;
    if url.is_plain {
        let speaks_tls = SpeaksTls::default();
        return handshake(url, Plain::new(tcp, speaks_tls.clone()), speaks_tls).await;
    }
    let name =
        ServerName::try_from(url.host.clone()).map_err(|err| failed(io::Error::other(err)))?;
    let tls = TlsConnector::from(tls).connect(name, tcp).await;
    handshake(url, tls.map_err(|err| untrusted(url, err))?, SpeaksTls::default()).await
}

/// Names the cause of a failed TLS handshake, so that the user knows which side is wrong.
fn untrusted(url: &ServerUrl, err: io::Error) -> ConnectError {
    let url = url.clone();
    match err.get_ref().and_then(|source| source.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidCertificate(CertificateError::Other(why))) => {
            ConnectError::UntrustedServer { url, why: why.to_string() }
        }
        Some(rustls::Error::InvalidCertificate(why)) => ConnectError::UntrustedServer {
            url,
            why: format!("its certificate is invalid ({why:?})"),
        },
        Some(rustls::Error::InvalidMessage(_)) => ConnectError::NoTls { url },
        _ => ConnectError::Connect { url, err },
    }
}

async fn handshake(
    url: &ServerUrl,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    speaks_tls: SpeaksTls,
) -> Result<Connection, ConnectError> {
    let (send, driver) = Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES * 16)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|err| ConnectError::Http2 { url: url.clone(), err })?;
    // This task ends when the last sender is dropped or the peer disconnects. Open streams then
    // report the error.
    tokio::spawn(async move {
        let _ = driver.await;
    });
    Ok(Connection { send, speaks_tls })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_complete_and_plain_only_on_loopback() {
        for valid in [
            "https://fleet.example:9443",
            "https://[::1]:1",
            "http://127.0.0.1:80",
            "http://localhost:1",
        ] {
            let url: ServerUrl = valid.parse().unwrap();
            assert_eq!(url.to_string(), valid);
        }
        let invalid = [
            ("fleet:1", UrlError::Form),
            ("https://fleet", UrlError::Form),
            ("https://a@fleet:1", UrlError::Form),
            ("https://fleet:1/x", UrlError::Form),
            ("ftp://fleet:1", UrlError::Form),
            ("http://fleet:1", UrlError::Plain),
            ("http://10.0.0.1:1", UrlError::Plain),
        ];
        for (text, err) in invalid {
            assert_eq!(text.parse::<ServerUrl>(), Err(err), "{text}");
        }
    }
}
