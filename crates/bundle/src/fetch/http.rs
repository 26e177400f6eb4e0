//! One HTTP/1.1 download, read as a file. Must not be called from an asynchronous runtime.

use std::io::{self, Read};
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{HOST, USER_AGENT};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::FetchError;

/// Deadline of connecting, which includes the name lookup.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// Longest time without a byte.
const IDLE_DEADLINE: Duration = Duration::from_secs(30);
const HEAD_BYTES_MAX: usize = 16 << 10;
const USER_AGENT_TEXT: &str = concat!("farrier/", env!("CARGO_PKG_VERSION"));

/// An `http://` URL without a query.
#[derive(Debug, Clone)]
pub struct HttpBase {
    host: String,
    port: u16,
    authority: String,
    path: String,
}

impl HttpBase {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let uri: Uri = text.parse().ok()?;
        let authority = uri.authority()?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let has_port = authority.as_str().len() > authority.host().len();
        let port = authority.port_u16().filter(|port| *port > 0);
        let is_plain = !authority.as_str().contains('@') && uri.query().is_none();
        if host.is_empty() || !is_plain || (has_port && port.is_none()) {
            return None;
        }
        let path = uri.path().trim_end_matches('/').to_owned();
        Some(Self { host, port: port.unwrap_or(80), authority: authority.to_string(), path })
    }

    /// Requests a file; the body is read with [`HttpFile`].
    pub(super) fn get(&self, path: &str) -> Result<HttpFile, FetchError> {
        let what = path.to_owned();
        let io_error = |err| FetchError::Io { what: what.clone(), err };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(io_error)?;
        // Ends with the file.
        let mut tasks = JoinSet::new();
        let body = runtime.block_on(self.request(path, &mut tasks))?;
        Ok(HttpFile { runtime, _tasks: tasks, body, buffer: Bytes::new(), what })
    }

    async fn request(
        &self,
        path: &str,
        tasks: &mut JoinSet<Result<(), hyper::Error>>,
    ) -> Result<Incoming, FetchError> {
        let what = || path.to_owned();
        let unreachable = |err| FetchError::Unreachable { host: self.authority.clone(), err };
        let connected =
            timeout(CONNECT_DEADLINE, TcpStream::connect((self.host.as_str(), self.port))).await;
        let tcp = connected.map_err(|_| unreachable(io::ErrorKind::TimedOut.into()))?;
        let tcp = tcp.map_err(unreachable)?;
        let broken = |err| FetchError::Broken { what: what(), err };
        let mut builder = http1::Builder::new();
        builder.max_buf_size(HEAD_BYTES_MAX.max(64 << 10));
        let (mut sender, connection) =
            builder.handshake::<_, Empty<Bytes>>(TokioIo::new(tcp)).await.map_err(broken)?;
        tasks.spawn(connection);
        let request = Request::get(format!("{}/{path}", self.path))
            .header(HOST, &self.authority)
            .header(USER_AGENT, USER_AGENT_TEXT)
            .body(Empty::new())
            .map_err(|_| FetchError::PathEscape { path: what() })?;
        let slow = |_| FetchError::TimedOut { what: what(), limit: IDLE_DEADLINE };
        let response = timeout(IDLE_DEADLINE, sender.send_request(request)).await.map_err(slow)?;
        let response = response.map_err(broken)?;
        match response.status().as_u16() {
            200 => Ok(response.into_body()),
            404 | 410 => Err(FetchError::NotFound { what: what() }),
            status => Err(FetchError::Status { what: what(), status }),
        }
    }
}

/// The body of a response.
pub(super) struct HttpFile {
    runtime: Runtime,
    _tasks: JoinSet<Result<(), hyper::Error>>,
    body: Incoming,
    buffer: Bytes,
    what: String,
}

impl Read for HttpFile {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.buffer.is_empty() {
            let body = &mut self.body;
            let frame = self.runtime.block_on(async { timeout(IDLE_DEADLINE, body.frame()).await });
            let what = || self.what.clone();
            match frame {
                Err(_) => {
                    let limit = IDLE_DEADLINE;
                    return Err(io::Error::other(FetchError::TimedOut { what: what(), limit }));
                }
                Ok(None) => return Ok(0),
                Ok(Some(Err(err))) => {
                    return Err(io::Error::other(FetchError::Broken { what: what(), err }));
                }
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer = data;
                    }
                }
            }
        }
        let bytes = out.len().min(self.buffer.len());
        out[..bytes].copy_from_slice(&self.buffer.split_to(bytes));
        Ok(bytes)
    }
}
