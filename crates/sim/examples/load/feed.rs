//! Reads the event stream as an API client does: server-sent events over HTTP.

use std::time::Instant;

use anyhow::Context;
use farrier_wire::client::{Asker, ServerUrl, no_tls};
use farrier_wire::rest::EventRow;
use rustls::ClientConfig;
use std::sync::Arc;

pub(crate) struct EventFeed {
    response: farrier_wire::client::Answered,
    unread: Vec<u8>,
    _client: Asker,
}

impl EventFeed {
    /// Follows events from now on.
    pub(crate) async fn open(url: &ServerUrl, token: &str) -> anyhow::Result<Self> {
        Self::after(url, no_tls(), token, None).await
    }

    /// Follows events after a sequence number.
    pub(crate) async fn after(
        url: &ServerUrl,
        tls: Arc<ClientConfig>,
        token: &str,
        seq: Option<u64>,
    ) -> anyhow::Result<Self> {
        let mut client = Asker::connect(url, tls, token).await?;
        let after = seq.map(|seq| format!("?after={seq}")).unwrap_or_default();
        let response = client.follow(&format!("/api/v1/events/stream{after}")).await?;
        Ok(Self { response, unread: Vec::new(), _client: client })
    }

    /// The next events and when they arrived.
    pub(crate) async fn next(&mut self) -> anyhow::Result<(Instant, Vec<EventRow>)> {
        let piece = self.response.piece().await?.context("the server closed the stream")?;
        let at = Instant::now();
        self.unread.extend_from_slice(&piece);
        let mut rows = Vec::new();
        while let Some(end) = self.unread.windows(2).position(|pair| pair == b"\n\n") {
            let event: Vec<u8> = self.unread.drain(..end + 2).collect();
            let event = String::from_utf8(event)?;
            if let Some(data) = event.lines().find_map(|line| line.strip_prefix("data: ")) {
                rows.push(serde_json::from_str(data)?);
            }
        }
        Ok((at, rows))
    }
}
