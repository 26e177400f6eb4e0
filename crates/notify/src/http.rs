//! One HTTP/1.1 request with deadlines. It follows no redirects: a redirect would send the secret
//! to another place.

use std::path::Path;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{
    AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT,
};
use hyper::{Method, Response};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::error::{DeliveryError, DeliveryStep};
use crate::receiver_answer::AnswerSecrets;
use crate::secret::BearerToken;
use crate::tls;
use crate::url::HttpUrl;

/// Deadline of connecting, which includes the name lookup.
pub(crate) const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
pub(crate) const TLS_DEADLINE: Duration = Duration::from_secs(10);
/// Deadline of sending the request and receiving the response.
pub(crate) const REQUEST_DEADLINE: Duration = Duration::from_secs(30);

/// Bytes of a response head that are accepted.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Bytes of an error response that are read.
const BODY_BYTES_MAX: usize = 4 << 10;

/// A request.
pub(crate) struct HttpRequest<'r> {
    method: Method,
    pub(crate) url: HttpUrl,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
    pub(crate) ca: Option<&'r Path>,
    /// Bytes of a successful response that are read. A longer one is an error.
    response_bytes_max: usize,
    /// What an error must not show, even if the response repeats it.
    secrets: AnswerSecrets,
}

impl<'r> HttpRequest<'r> {
    pub(crate) fn post(
        url: HttpUrl,
        content_type: &str,
        body: Vec<u8>,
        ca: Option<&'r Path>,
    ) -> Result<Self, DeliveryError> {
        let mut request = Self::new(Method::POST, url, body, ca);
        request.header(CONTENT_TYPE, content_type, "the content type")?;
        Ok(request)
    }

    /// A request whose response has at most `response_bytes_max` bytes.
    pub(crate) fn get(url: HttpUrl, response_bytes_max: usize, ca: Option<&'r Path>) -> Self {
        Self { response_bytes_max, ..Self::new(Method::GET, url, Vec::new(), ca) }
    }

    fn new(method: Method, url: HttpUrl, body: Vec<u8>, ca: Option<&'r Path>) -> Self {
        let mut secrets = AnswerSecrets::default();
        secrets.add_url(url.path_and_query());
        let headers =
            HeaderMap::from_iter([(USER_AGENT, HeaderValue::from_static(USER_AGENT_TEXT))]);
        Self { method, url, headers, body, ca, response_bytes_max: 0, secrets }
    }

    pub(crate) fn header(
        &mut self,
        name: HeaderName,
        value: &str,
        what: &'static str,
    ) -> Result<(), DeliveryError> {
        let value = HeaderValue::from_str(value).map_err(|_| DeliveryError::Invalid { what })?;
        self.headers.insert(name, value);
        Ok(())
    }

    pub(crate) fn hide(&mut self, secret: &str) {
        self.secrets.add(secret);
    }

    pub(crate) fn bearer(&mut self, token: &BearerToken) {
        self.headers.insert(AUTHORIZATION, token.header.clone());
        self.hide(token.secret.expose());
    }

    /// Sends the request. Any status from 200 to 299 is a success. Returns the body of the response
    /// to a `GET`.
    pub(crate) async fn send(self) -> Result<Vec<u8>, DeliveryError> {
        let tcp = connect(self.url.host(), self.url.port()).await?;
        if !self.url.is_tls() {
            return self.exchange(tcp).await;
        }
        let roots = tls::load_roots(self.ca).await?;
        let stream = handshake(self.url.host(), tcp, roots).await?;
        self.exchange(stream).await
    }

    async fn exchange(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<Vec<u8>, DeliveryError> {
        let host = self.url.host().to_owned();
        let slow =
            |_| DeliveryError::TimedOut { step: DeliveryStep::Request, limit: REQUEST_DEADLINE };
        let response = timeout(REQUEST_DEADLINE, self.exchange_untimed(stream)).await;
        response.map_err(slow)?.map_err(|err| match err {
            ExchangeError::Http(err) => DeliveryError::Http { host, err },
            ExchangeError::Delivery(err) => err,
        })
    }

    async fn exchange_untimed(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<Vec<u8>, ExchangeError> {
        let mut builder = http1::Builder::new();
        builder.max_buf_size(HEAD_BYTES_MAX);
        let (mut sender, connection) =
            builder.handshake::<_, Full<Bytes>>(TokioIo::new(stream)).await?;
        // Ends with this function.
        let mut tasks = JoinSet::new();
        tasks.spawn(connection);
        let mut request = hyper::Request::new(Full::new(Bytes::from(self.body)));
        *request.method_mut() = self.method;
        *request.uri_mut() = self
            .url
            .path_and_query()
            .parse()
            .map_err(|_| DeliveryError::Invalid { what: "the path of the URL" })?;
        *request.headers_mut() = self.headers;
        let authority = HeaderValue::from_str(self.url.authority());
        let authority = authority.map_err(|_| DeliveryError::Invalid { what: "the host name" })?;
        request.headers_mut().insert(HOST, authority);
        let response = sender.send_request(request).await?;
        let status = response.status();
        if status.is_success() {
            return match self.response_bytes_max {
                0 => Ok(Vec::new()),
                max => Ok(read_body(response, max, self.url.host().to_owned()).await?),
            };
        }
        let retry_after = retry_after(response.headers(), Timestamp::now());
        let body = read_start(response, &self.secrets).await;
        let host = self.url.host().to_owned();
        Err(DeliveryError::Status { host, status: status.as_u16(), retry_after, body }.into())
    }
}

const USER_AGENT_TEXT: &str = concat!("farrier/", env!("CARGO_PKG_VERSION"));

enum ExchangeError {
    Http(hyper::Error),
    Delivery(DeliveryError),
}

impl From<hyper::Error> for ExchangeError {
    fn from(err: hyper::Error) -> Self {
        Self::Http(err)
    }
}

impl From<DeliveryError> for ExchangeError {
    fn from(err: DeliveryError) -> Self {
        Self::Delivery(err)
    }
}

pub(crate) async fn connect(host: &str, port: u16) -> Result<TcpStream, DeliveryError> {
    let slow = |_| DeliveryError::TimedOut { step: DeliveryStep::Connect, limit: CONNECT_DEADLINE };
    let connected = timeout(CONNECT_DEADLINE, TcpStream::connect((host, port))).await;
    connected.map_err(slow)?.map_err(|err| DeliveryError::Connect { host: host.to_owned(), err })
}

pub(crate) async fn handshake(
    host: &str,
    tcp: TcpStream,
    roots: Vec<rustls::pki_types::CertificateDer<'static>>,
) -> Result<TlsStream<TcpStream>, DeliveryError> {
    let name = ServerName::try_from(host.to_owned());
    let name = name.map_err(|_| DeliveryError::Invalid { what: "the host name" })?;
    let connector = TlsConnector::from(tls::client_config(roots)?);
    let slow =
        |_| DeliveryError::TimedOut { step: DeliveryStep::TlsHandshake, limit: TLS_DEADLINE };
    let stream = timeout(TLS_DEADLINE, connector.connect(name, tcp)).await.map_err(slow)?;
    stream.map_err(|err| DeliveryError::Tls { host: host.to_owned(), err })
}

async fn read_body(
    response: Response<Incoming>,
    max: usize,
    host: String,
) -> Result<Vec<u8>, DeliveryError> {
    let body = Limited::new(response.into_body(), max).collect().await;
    Ok(body.map_err(|_| DeliveryError::Response { host })?.to_bytes().to_vec())
}

/// The start of a response, for an error message. Empty if it cannot be read.
async fn read_start(response: Response<Incoming>, secrets: &AnswerSecrets) -> String {
    let mut body = response.into_body();
    let mut bytes = Vec::new();
    while bytes.len() < BODY_BYTES_MAX {
        let Some(Ok(frame)) = body.frame().await else { break };
        bytes.extend_from_slice(frame.data_ref().map_or(&[][..], |data| &data[..]));
    }
    secrets.shown(&String::from_utf8_lossy(&bytes))
}

/// The wait in `Retry-After`: seconds or a date (RFC 9110, section 10.2.3).
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = jiff::fmt::rfc2822::parse(value).ok()?.timestamp();
    Some(Duration::try_from(date.duration_since(now)).unwrap_or_default())
}
