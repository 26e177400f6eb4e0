//! The login that `farrier login` saved, and a blocking REST session with its server.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use farrier_agent::monitor::Chain;
use farrier_wire::client::{
    ConnectError, RestClient, RestError, RestResponse, ServerUrl, fingerprint, pinned,
};
use farrier_wire::file_mode::{self, FileKind};
use farrier_wire::rest::{HintCode, Problem};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::failure::Hinted;

/// Server address and token, as saved in `login.json`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Login {
    pub(crate) server: String,
    pub(crate) ca_fingerprint: Option<String>,
    pub(crate) token: String,
}

/// `$XDG_CONFIG_HOME/farrier`, or `~/.config/farrier`.
fn config_dir() -> anyhow::Result<PathBuf> {
    let path = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = path("XDG_CONFIG_HOME").or_else(|| path("HOME").map(|home| home.join(".config")));
    let base = base.filter(|base| base.is_absolute());
    base.map(|base| base.join("farrier")).ok_or_else(|| {
        Hinted::error("no directory to save the login in", "set XDG_CONFIG_HOME or HOME")
    })
}

impl Login {
    /// Saves atomically (write, fsync, rename), with mode 0600.
    pub(crate) fn save(&self) -> anyhow::Result<PathBuf> {
        let dir = config_dir()?;
        let path = dir.join("login.json");
        let save = || -> io::Result<()> {
            DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
            let temporary = dir.join("login.part");
            let _ = fs::remove_file(&temporary);
            let mut file =
                OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
            file.write_all(&serde_json::to_vec_pretty(self)?)?;
            file.sync_all()?;
            fs::rename(&temporary, &path)
        };
        save().with_context(|| format!("failed to save `{}`", path.display()))?;
        Ok(path)
    }

    pub(crate) fn read() -> anyhow::Result<Self> {
        let path = config_dir()?.join("login.json");
        let not_logged_in = || {
            Hinted::error(
                "not logged in",
                "`farrier login --server URL --ca-fingerprint SHA256 --token -`; `farrier server user add` prints the whole command",
            )
        };
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Err(not_logged_in()),
            Err(err) => {
                return Err(err).with_context(|| format!("failed to read `{}`", path.display()));
            }
        };
        if let Err(loose) = file_mode::check([(path.as_path(), FileKind::Secret)])? {
            return Err(Hinted::error(
                format!("other users can read the saved token: {loose}"),
                "if someone may have read it, have the token replaced",
            ));
        }
        serde_json::from_slice(&bytes).map_err(|_| {
            let message = format!("`{}` is not a valid login file", path.display());
            Hinted::error(message, "run `farrier login` again")
        })
    }
}

/// Wait after the server refused a request because of the rate limit. The default limit is 50
/// requests per second.
const RATE_LIMIT_WAIT: Duration = Duration::from_millis(500);
/// Maximum number of these waits. Together they take a minute, because another client with the same
/// token may use up the rate for that long.
const RATE_LIMIT_TRIES: u32 = 120;

/// A blocking wrapper around the REST client.
pub(crate) struct FleetSession {
    runtime: tokio::runtime::Runtime,
    client: RestClient,
}

impl FleetSession {
    /// Opens a session with the saved login.
    pub(crate) fn from_saved_login() -> anyhow::Result<Self> {
        Self::open(&Login::read()?)
    }

    /// Replaces a broken connection with a new one that uses the currently saved login. If that
    /// fails, the old connection stays and the next request fails too.
    pub(crate) fn reconnect(&mut self) {
        if let Ok(session) = Self::from_saved_login() {
            *self = session;
        }
    }

    pub(crate) fn open(login: &Login) -> anyhow::Result<Self> {
        let url: ServerUrl = login.server.parse().context("invalid server address")?;
        let expected = match &login.ca_fingerprint {
            Some(text) => fingerprint(text).map_err(|err| {
                Hinted::error(err.to_string(), "`farrier server user add` prints it")
            })?,
            // An `http://` address has no CA. The zeros are a placeholder, because no CA has this
            // fingerprint.
            None => [0; 32],
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let tls = Arc::clone(&pinned(expected)?);
        let client = runtime
            .block_on(RestClient::connect(&url, tls, &login.token))
            .map_err(|err| explained(&err))?;
        Ok(Self { runtime, client })
    }

    pub(crate) fn get<T: DeserializeOwned>(&mut self, path: &str) -> anyhow::Result<T> {
        self.runtime.block_on(self.client.get(path)).map_err(|err| explained_for(path, &err))
    }

    pub(crate) fn post<T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &impl Serialize,
    ) -> anyhow::Result<T> {
        self.runtime.block_on(self.client.post(path, body)).map_err(|err| explained_for(path, &err))
    }

    /// Sends a request, and again as long as the server limits the rate.
    pub(super) fn post_patiently<T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, RestError> {
        let mut tries = 0;
        loop {
            let answer = self.runtime.block_on(self.client.post(path, body));
            tries += 1;
            match answer {
                Err(RestError::Refused(problem))
                    if problem.status == 429 && tries < RATE_LIMIT_TRIES =>
                {
                    std::thread::sleep(RATE_LIMIT_WAIT);
                }
                other => return other,
            }
        }
    }

    pub(crate) fn put<T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &impl Serialize,
    ) -> anyhow::Result<T> {
        self.runtime.block_on(self.client.put(path, body)).map_err(|err| explained_for(path, &err))
    }

    /// Streams the response body to `consume`, chunk by chunk.
    pub(super) fn download(
        &mut self,
        path: &str,
        mut consume: impl FnMut(&[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let response = self.runtime.block_on(self.client.follow(path));
        let mut response = response.map_err(|err| explained_for(path, &err))?;
        loop {
            let chunk = self.runtime.block_on(response.chunk());
            match chunk.map_err(|err| explained_for(path, &err))? {
                Some(chunk) => consume(&chunk)?,
                None => return Ok(()),
            }
        }
    }

    /// Streams the response body line by line.
    pub(super) fn lines(&mut self, path: &str) -> anyhow::Result<ResponseLines<'_>> {
        let response = self.runtime.block_on(self.client.follow(path));
        let response = response.map_err(|err| explained_for(path, &err))?;
        Ok(ResponseLines {
            runtime: &self.runtime,
            response,
            buffer: Vec::new(),
            is_complete: false,
        })
    }
}

/// Iterator over the lines of a streamed response.
pub(super) struct ResponseLines<'s> {
    runtime: &'s tokio::runtime::Runtime,
    response: RestResponse,
    buffer: Vec<u8>,
    is_complete: bool,
}

impl Iterator for ResponseLines<'_> {
    type Item = Result<String, RestError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.buffer) {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(Ok(String::from_utf8_lossy(&line[..end]).into_owned()));
            }
            if self.is_complete {
                let rest = std::mem::take(&mut self.buffer);
                return (!rest.is_empty()).then(|| Ok(String::from_utf8_lossy(&rest).into_owned()));
            }
            match self.runtime.block_on(self.response.chunk()) {
                Ok(Some(chunk)) => self.buffer.extend_from_slice(&chunk),
                Ok(None) => self.is_complete = true,
                Err(err) => {
                    self.is_complete = true;
                    self.buffer.clear();
                    return Some(Err(err));
                }
            }
        }
    }
}

/// A REST path with percent-encoded query parameters.
#[derive(Debug, Clone)]
pub(crate) struct Path(String);

impl Path {
    pub(crate) fn new(path: &str) -> Self {
        Self(path.to_owned())
    }

    pub(crate) fn with(mut self, name: &str, value: Option<impl ToString>) -> Self {
        if let Some(value) = value {
            self.0.push(if self.0.contains('?') { '&' } else { '?' });
            self.0.push_str(name);
            self.0.push('=');
            for byte in value.to_string().bytes() {
                if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                    self.0.push(char::from(byte));
                } else {
                    self.0.push_str(&format!("%{byte:02X}"));
                }
            }
        }
        self
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The name of the node in a path such as `/api/v1/nodes/gpu-7/hold`, or `NODE` if the path
/// contains no name.
fn node_in(path: &str) -> &str {
    let rest = path.strip_prefix("/api/v1/nodes/").unwrap_or_default();
    let name = rest.split(['/', '?']).next().unwrap_or_default();
    if name.is_empty() { "NODE" } else { name }
}

/// The command that replaces the server's hint. The server writes its hints for API clients.
fn by_command(path: &str, problem: &Problem) -> String {
    let node = node_in(path);
    match problem.hint_code {
        Some(HintCode::ListNodes) => {
            "`farrier fleet nodes` lists the nodes in your scope".to_owned()
        }
        Some(HintCode::ListTokens) => "`farrier server token list` lists the tokens".to_owned(),
        Some(HintCode::SeeApproval) => {
            format!("`farrier fleet explain {node}` shows what the node waits for")
        }
        Some(HintCode::HoldAndDrain) => format!(
            "hold it first (`farrier fleet cordon {node} --reason TEXT`), and wait until its running jobs have ended"
        ),
        Some(HintCode::HoldOrWait) => format!(
            "hold it first (`farrier fleet cordon {node} --reason TEXT`), or wait until a finding affects its service"
        ),
        Some(HintCode::ListArtifacts) => "without --last, the node collects new ones".to_owned(),
        Some(HintCode::WaitForOrder) => {
            format!("wait until it has run; `farrier fleet node {node}` shows the result")
        }
        Some(HintCode::ListDomains) => {
            "`farrier fleet domains` lists the domains in your scope".to_owned()
        }
        Some(HintCode::ListMutes) => "`farrier notify mutes` lists the mutes".to_owned(),
        Some(HintCode::ShowNotifications) => {
            "`farrier notify queue` shows receivers and groups".to_owned()
        }
        Some(HintCode::EnrolAgain) => format!(
            "enrol it again: `farrier server token create --pool POOL --node {node}` on the server, then `farrier agent enrol` on the node"
        ),
        Some(HintCode::ReadReference) => "see `--help` for the expected values".to_owned(),
        Some(HintCode::Unknown) | None => problem.hint.clone(),
    }
}

/// Converts a REST error into a message with a hint for the operator.
pub(super) fn explained(err: &RestError) -> anyhow::Error {
    explained_for("", err)
}

/// Like [`explained`], but the hint names the node in the request's `path`.
fn explained_for(path: &str, err: &RestError) -> anyhow::Error {
    let hint = match err {
        RestError::Refused(problem) if problem.status == 401 => {
            "`farrier login` with another token; `farrier server user add` creates one".to_owned()
        }
        RestError::Refused(problem) => by_command(path, problem),
        RestError::Connect(ConnectError::Connect { .. } | ConnectError::Slow { .. }) => {
            "is the server running, and is the address right?".to_owned()
        }
        RestError::Connect(ConnectError::UntrustedServer { .. }) => {
            "is the address right? `farrier server user add` prints the fingerprint of its server; if the server has a new CA, run `farrier login` again"
                .to_owned()
        }
        RestError::Connect(ConnectError::NoTls { .. }) => {
            "is another program listening there? A farrier server without TLS (`--plain`) has an `http://` address on loopback".to_owned()
        }
        RestError::Call(_) => "`farrier login --server https://...`".to_owned(),
        RestError::Connect(_) | RestError::Foreign(_) => {
            "is this the address of a farrier server?".to_owned()
        }
        RestError::Token => "`farrier login` with the token that was printed".to_owned(),
        RestError::Path(_) => "names consist of letters, digits, `.`, `_` and `-`".to_owned(),
        RestError::Broken(_) | RestError::Slow => "try again in a moment".to_owned(),
        RestError::Form(_) => "is this program older than the server?".to_owned(),
    };
    let message = Chain(err).to_string();
    match err {
        // Status 503: the server is shutting down or is overloaded.
        RestError::Refused(problem) if problem.status == 503 => Hinted::unavailable(message, hint),
        RestError::Connect(ConnectError::Connect { .. } | ConnectError::Slow { .. })
        | RestError::Broken(_)
        | RestError::Slow => Hinted::unavailable(message, hint),
        _ => Hinted::error(message, hint),
    }
}

/// Whether a request for any other node would fail with the same error. This is the case if the
/// server does not answer, or if it refuses the caller and not the node.
pub(super) fn is_for_every_node(err: &RestError) -> bool {
    match err {
        RestError::Refused(problem) => matches!(problem.status, 400 | 401 | 403 | 429 | 500..),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_values_are_percent_encoded() {
        let path = Path::new("/a").with("text", Some("x&limit=1 \u{e9}")).with("no", None::<u8>);
        assert_eq!(path.with("limit", Some(3)).as_str(), "/a?text=x%26limit%3D1%20%C3%A9&limit=3");
    }

    #[test]
    fn hints_name_the_node_of_the_request() {
        assert_eq!(node_in("/api/v1/nodes/gpu-7/hold"), "gpu-7");
        assert_eq!(node_in("/api/v1/nodes/gpu-7?text=x"), "gpu-7");
        assert_eq!(node_in("/api/v1/nodes"), "NODE");
        assert_eq!(node_in("/api/v1/freezes"), "NODE");
    }
}
