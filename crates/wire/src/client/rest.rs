//! Asks a server as a person does: JSON over a connection, with a token.

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

/// How long an answer may take to begin; the server itself gives up earlier.
const ANSWER_WAIT: Duration = Duration::from_secs(40);
/// The longest answer that is not a stream.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum RestError {
    /// There is no connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The address begins with `http://`, and should not.
    #[error(transparent)]
    Call(CallError),
    /// The token cannot stand in a request.
    #[error("the token has characters that no token has")]
    Token,
    /// The path cannot stand in a request.
    #[error("`{0}` is no path")]
    Path(String),
    /// The server says why not.
    #[error("{}: {}", .0.title, .0.detail)]
    Refused(Box<Problem>),
    /// It answered with something else.
    #[error("the server answered with status {0} and no reason: is it a farrier server?")]
    Foreign(u16),
    /// The answer did not come, or broke off.
    #[error("the answer broke off")]
    Broken(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// It took too long.
    #[error("the answer took too long")]
    Slow,
    /// The answer does not read.
    #[error("the answer does not read")]
    Form(#[from] serde_json::Error),
}

/// Asks. The connection is open as long as this is there.
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

/// An answer that is read while it comes.
#[derive(Debug)]
pub struct RestResponse(Incoming);

impl RestResponse {
    /// The next piece; none: it is whole.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, RestError> {
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
    /// Connects. `tls` is not used where the address is a plain one.
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

    /// Reads something.
    pub async fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, RestError> {
        self.asked(Method::GET, path, None).await
    }

    /// Asks for something.
    pub async fn post<T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, RestError> {
        self.asked(Method::POST, path, Some(serde_json::to_vec(body)?)).await
    }

    /// Replaces something.
    pub async fn put<T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, RestError> {
        self.asked(Method::PUT, path, Some(serde_json::to_vec(body)?)).await
    }

    /// Reads something that is long, or does not end.
    pub async fn follow(&mut self, path: &str) -> Result<RestResponse, RestError> {
        Ok(RestResponse(self.send(Method::GET, path, None).await?.into_body()))
    }

    async fn asked<T: DeserializeOwned>(
        &mut self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<T, RestError> {
        let response = self.send(method, path, body).await?;
        Ok(serde_json::from_slice(&whole(response).await?)?)
    }

    async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Response<Incoming>, RestError> {
        let wrong = || RestError::Path(path.chars().take(200).collect());
        let mut parts = self.origin.clone().into_parts();
        parts.path_and_query = Some(path.parse().map_err(|_| wrong())?);
        let uri = Uri::from_parts(parts).map_err(|_| wrong())?;
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
        let answer = async {
            std::future::poll_fn(|context| self.connection.poll_ready(context)).await?;
            self.connection.call(request).await
        };
        let answer =
            tokio::time::timeout(ANSWER_WAIT, answer).await.map_err(|_| RestError::Slow)?;
        let response = answer.map_err(|err| match err {
            CallError::SpeaksTls => RestError::Call(err),
            CallError::Broken(err) => RestError::Broken(err.into()),
        })?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status().as_u16();
        let bytes = whole(response).await?;
        match serde_json::from_slice::<Problem>(&bytes) {
            Ok(problem) => Err(RestError::Refused(Box::new(problem))),
            Err(_) => Err(RestError::Foreign(status)),
        }
    }
}

async fn whole(response: Response<Incoming>) -> Result<Bytes, RestError> {
    let read = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect();
    let read = tokio::time::timeout(ANSWER_WAIT, read).await.map_err(|_| RestError::Slow)?;
    Ok(read.map_err(RestError::Broken)?.to_bytes())
}
