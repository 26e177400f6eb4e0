//! An HTTP server that records requests and gives prepared answers, over plain TCP or TLS.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::HeaderMap;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use rustls::crypto::ring as provider;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_rustls::TlsAcceptor;

use crate::sample::Certificate;

#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Received {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: b"answer".to_vec() }
    }
}

pub(crate) struct HttpServer {
    pub(crate) address: SocketAddr,
    received: UnboundedReceiver<Received>,
}

#[derive(Clone)]
struct Script {
    answers: Arc<Vec<Answer>>,
    next: Arc<AtomicUsize>,
    sender: UnboundedSender<Received>,
}

impl Script {
    async fn answer(self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes().to_vec();
        let path = head.uri.to_string();
        let _ = self.sender.send(Received { path, headers: head.headers, body });
        let index = self.next.fetch_add(1, Ordering::Relaxed).min(self.answers.len() - 1);
        let answer = &self.answers[index];
        let mut response = Response::builder().status(answer.status);
        for (name, value) in &answer.headers {
            response = response.header(*name, value);
        }
        Ok(response.body(Full::new(Bytes::from(answer.body.clone()))).unwrap())
    }
}

impl HttpServer {
    /// Gives the answers in order, and then repeats the last one.
    pub(crate) async fn plain(answers: Vec<Answer>) -> Self {
        Self::start(answers, None).await
    }

    pub(crate) async fn tls(answers: Vec<Answer>, certificate: &Certificate) -> Self {
        let provider = Arc::new(provider::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(rustls::ALL_VERSIONS)
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![CertificateDer::from(certificate.der.clone())],
                PrivatePkcs8KeyDer::from(certificate.key_der.clone()).into(),
            )
            .unwrap();
        Self::start(answers, Some(TlsAcceptor::from(Arc::new(config)))).await
    }

    async fn start(answers: Vec<Answer>, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, received) = unbounded_channel();
        let script = Script { answers: Arc::new(answers), next: Arc::default(), sender };
        tokio::spawn(async move {
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                let (script, tls) = (script.clone(), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => serve(tcp, script).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(tcp).await {
                                serve(stream, script).await;
                            }
                        }
                    }
                });
            }
        });
        Self { address, received }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn https_url(&self, path: &str) -> String {
        format!("https://{}{path}", self.address)
    }

    pub(crate) async fn next(&mut self) -> Received {
        self.received.recv().await.unwrap()
    }

    /// The number of requests that were not taken.
    pub(crate) fn waiting(&self) -> usize {
        self.received.len()
    }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin + 'static, script: Script) {
    let service = service_fn(move |request| script.clone().answer(request));
    let _ = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}
