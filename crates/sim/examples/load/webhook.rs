//! A webhook that accepts every notification of the server, and counts them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use farrier_fleet::fleet::Policy;
use farrier_wire::client::{RestClient, ServerUrl, no_tls};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// After this time without a notification, all groups were notified.
const QUIET: Duration = Duration::from_secs(15);

pub(crate) struct Messages(Arc<AtomicU64>);

impl Messages {
    /// Waits until no more notifications arrive, and returns their number.
    pub(crate) async fn until_quiet(&self) -> u64 {
        loop {
            let before = self.0.load(Ordering::Relaxed);
            tokio::time::sleep(QUIET).await;
            let now = self.0.load(Ordering::Relaxed);
            if now == before && now > 0 {
                return now;
            }
        }
    }
}

/// Starts the webhook, and sets a policy that notifies it of every finding.
pub(crate) async fn receive(url: &ServerUrl, token: &str) -> anyhow::Result<Messages> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = Vec::new();
            // The body is one JSON object that ends the request.
            while !request.ends_with(b"}") {
                match stream.read_buf(&mut request).await {
                    Ok(0) | Err(_) => break,
                    Ok(_) => {}
                }
            }
            counted.fetch_add(1, Ordering::Relaxed);
            // If the server has gone, so has the scenario.
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
        }
    });
    let notifications = serde_json::from_value(json!({
        "receivers": { "hook": { "webhook": { "url": format!("http://{address}/") } } },
        "routes": [{
            "name": "all", "receivers": ["hook"], "group_wait_s": 1, "group_interval_s": 5,
        }],
    }))?;
    let policy = Policy { notifications, ..Policy::default() };
    let mut client = RestClient::connect(url, no_tls(), token).await?;
    let _: Value = client.put("/api/v1/policy", &policy).await?;
    Ok(Messages(count))
}
