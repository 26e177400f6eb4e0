//! REST client: JSON with a bearer token.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, Uri};
use rustls::ClientConfig;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tonic::body::Body;
use tower_service::Service;

use super::{CallError, ConnectError, Connection, ServerUrl, open};
use crate::rest::Problem;

/// Maximum wait for the start of a response. The server's own timeout for a request is shorter.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(40);
/// Maximum bytes of a response that is not a stream.
const RESPONSE_BYTES_MAX: usize = 64 << 20;

#[derive(Debug, thiserror::Error)]
pub enum RestError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The server uses TLS, so the address should start with `https://`.
    #[error(transparent)]
    Call(CallError),
    /// The token is not a valid header value.
    #[error("the token contains invalid characters")]
    Token,
    /// The path is not a valid URI.
    #[error("`{0}` is not a valid path")]
    Path(String),
    /// The server answered with problem details (RFC 9457).
    #[error("{}: {}", .0.title, .0.detail)]
    Refused(Box<Problem>),
    /// The server answered with an error status, but without problem details.
    #[error("the server answered with status {0} and no problem details: is it a farrier server?")]
    Foreign(u16),
    /// The response did not arrive, or was interrupted.
    #[error("the response was interrupted")]
    Broken(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the response timed out")]
    Slow,
    /// The response could not be decoded.
    #[error("failed to decode the response")]
    Form(#[from] serde_json::Error),
}

/// A REST client. Its connection stays open as long as the client exists.
pub struct RestClient {
    connection: Connection,
    origin: Uri,
    token: HeaderValue,
}

impl std::fmt::Debug for RestClient {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("RestClient").field("origin", &self.origin).finish_non_exhaustive()
    }
}

/// A streamed response.
#[derive(Debug)]
pub struct RestResponse(Incoming);

impl RestResponse {
    /// The next chunk. `None` at the end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, RestError> {
        loop {
            match self.0.frame().await {
                None => return Ok(None),
                Some(Err(err)) => return Err(RestError::Broken(err.into())),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }
}

impl RestClient {
    /// Connects to a server. Ignores `tls` if the address starts with `http://`.
    pub async fn connect(
        url: &ServerUrl,
        tls: Arc<ClientConfig>,
        token: &str,
    ) -> Result<Self, RestError> {
        let mut token = HeaderValue::from_str(&format!("Bearer {}", token.trim()))
            .map_err(|_| RestError::Token)?;
        token.set_sensitive(true);
        Ok(Self { connection: open(url, tls).await?, origin: url.origin()?, token })
    }

    pub async fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, RestError> {
        self.request(Method::GET, path, None).await
    }

    pub async fn post<T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, RestError> {
        self.request(Method::POST, path, Some(serde_json::to_vec(body)?)).await
    }

    pub async fn put<T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, RestError> {
        self.request(Method::PUT, path, Some(serde_json::to_vec(body)?)).await
    }

    /// Reads a response that is long or never ends.
    pub async fn follow(&mut self, path: &str) -> Result<RestResponse, RestError> {
        Ok(RestResponse(self.send(Method::GET, path, None).await?.into_body()))
    }

    async fn request<T: DeserializeOwned>(
        &mut self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<T, RestError> {
        let response = self.send(method, path, body).await?;
        Ok(serde_json::from_slice(&read_body(response).await?)?)
    }

    async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Response<Incoming>, RestError> {
        let invalid = || RestError::Path(path.chars().take(200).collect());
        let mut parts = self.origin.clone().into_parts();
        parts.path_and_query = Some(path.parse().map_err(|_| invalid())?);
        let uri = Uri::from_parts(parts).map_err(|_| invalid())?;
        let has_body = body.is_some();
        let body = Body::new(Full::new(Bytes::from(body.unwrap_or_default())));
        let mut request = Request::new(body);
        (*request.method_mut(), *request.uri_mut()) = (method, uri);
        let headers = request.headers_mut();
        headers.insert(AUTHORIZATION, self.token.clone());
        headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        if has_body {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let response = async {
            std::future::poll_fn(|context| self.connection.poll_ready(context)).await?;
            self.connection.call(request).await
        };
        let response =
            tokio::time::timeout(RESPONSE_TIMEOUT, response).await.map_err(|_| RestError::Slow)?;
        let response = response.map_err(|err| match err {
            CallError::SpeaksTls => RestError::Call(err),
            CallError::Broken(err) => RestError::Broken(err.into()),
        })?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status().as_u16();
        let bytes = read_body(response).await?;
        match serde_json::from_slice::<Problem>(&bytes) {
            Ok(problem) => Err(RestError::Refused(Box::new(problem))),
            Err(_) => Err(RestError::Foreign(status)),
        }
    }
}

async fn read_body(response: Response<Incoming>) -> Result<Bytes, RestError> {
    let body = Limited::new(response.into_body(), RESPONSE_BYTES_MAX).collect();
    let body = tokio::time::timeout(RESPONSE_TIMEOUT, body).await.map_err(|_| RestError::Slow)?;
    Ok(body.map_err(RestError::Broken)?.to_bytes())
}
