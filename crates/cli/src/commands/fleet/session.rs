//! What was kept by `farrier login`, and a connection with it.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use farrier_agent::brain::Chain;
use farrier_wire::client::{
    Answered, Asker, ConnectError, RestError, ServerUrl, fingerprint, pinned,
};
use farrier_wire::file_mode::{self, FileKind};
use farrier_wire::rest::{HintCode, Problem};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::failure::Hinted;

/// A server, and a token for it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Login {
    pub(crate) server: String,
    pub(crate) ca_fingerprint: Option<String>,
    pub(crate) token: String,
}

/// `$XDG_CONFIG_HOME/farrier`, or `~/.config/farrier`.
fn folder() -> anyhow::Result<PathBuf> {
    let path = |name| std::env::var_os(name).filter(|it| !it.is_empty()).map(PathBuf::from);
    let base = path("XDG_CONFIG_HOME").or_else(|| path("HOME").map(|home| home.join(".config")));
    let base = base.filter(|it| it.is_absolute());
    base.map(|it| it.join("farrier")).ok_or_else(|| {
        Hinted::error("nobody knows where to keep a login", "set XDG_CONFIG_HOME or HOME")
    })
}

impl Login {
    /// Whole, and for this user only.
    pub(crate) fn keep(&self) -> anyhow::Result<PathBuf> {
        let folder = folder()?;
        let path = folder.join("login.json");
        let keep = || -> io::Result<()> {
            DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
            let part = folder.join("login.part");
            let _ = fs::remove_file(&part);
            let mut file =
                OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
            file.write_all(&serde_json::to_vec_pretty(self)?)?;
            file.sync_all()?;
            fs::rename(&part, &path)
        };
        keep().with_context(|| format!("failed to keep `{}`", path.display()))?;
        Ok(path)
    }

    pub(crate) fn read() -> anyhow::Result<Self> {
        let path = folder()?.join("login.json");
        let none = || {
            Hinted::error(
                "nobody is logged in",
                "`farrier login --server URL --ca-fingerprint HEX --token -`, as `farrier server user add` printed it",
            )
        };
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Err(none()),
            Err(err) => {
                return Err(err).with_context(|| format!("failed to read `{}`", path.display()));
            }
        };
        if let Err(loose) = file_mode::check([(path.as_path(), FileKind::Secret)])? {
            return Err(Hinted::error(
                format!("a token can be read by others: {loose}"),
                "have the token replaced if somebody may have read it",
            ));
        }
        serde_json::from_slice(&bytes).map_err(|_| {
            Hinted::error(format!("`{}` does not read", path.display()), "`farrier login` anew")
        })
    }
}

/// A connection, for somebody who waits.
pub(crate) struct Session {
    runtime: tokio::runtime::Runtime,
    asker: Asker,
}

impl Session {
    /// With what was kept.
    pub(super) fn kept() -> anyhow::Result<Self> {
        Self::open(&Login::read()?)
    }

    /// Replaces a connection that broke, with what is kept now. Where that fails, the next request does too.
    pub(super) fn reconnect(&mut self) {
        if let Ok(session) = Self::kept() {
            *self = session;
        }
    }

    pub(crate) fn open(login: &Login) -> anyhow::Result<Self> {
        let url: ServerUrl = login.server.parse().context("the server's address")?;
        let wanted = match &login.ca_fingerprint {
            Some(text) => fingerprint(text).map_err(|err| {
                Hinted::error(err.to_string(), "`farrier server user add` prints it")
            })?,
            // A plain address has no authority, and any other none with nothing but noughts.
            None => [0; 32],
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let tls = Arc::clone(&pinned(wanted)?);
        let asker = runtime
            .block_on(Asker::connect(&url, tls, &login.token))
            .map_err(|err| explained(&err))?;
        Ok(Self { runtime, asker })
    }

    pub(crate) fn get<T: DeserializeOwned>(&mut self, path: &str) -> anyhow::Result<T> {
        self.runtime.block_on(self.asker.get(path)).map_err(|err| explained(&err))
    }

    pub(super) fn post<T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &impl Serialize,
    ) -> anyhow::Result<T> {
        self.runtime.block_on(self.asker.post(path, body)).map_err(|err| explained(&err))
    }

    pub(super) fn put<T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &impl Serialize,
    ) -> anyhow::Result<T> {
        self.runtime.block_on(self.asker.put(path, body)).map_err(|err| explained(&err))
    }

    /// Something that is written on while it comes.
    pub(super) fn download(
        &mut self,
        path: &str,
        mut take: impl FnMut(&[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let answered = self.runtime.block_on(self.asker.follow(path));
        let mut answered = answered.map_err(|err| explained(&err))?;
        loop {
            let piece = self.runtime.block_on(answered.piece()).map_err(|err| explained(&err))?;
            match piece {
                Some(piece) => take(&piece)?,
                None => return Ok(()),
            }
        }
    }

    /// Something that is read line by line, while it comes.
    pub(super) fn lines(&mut self, path: &str) -> anyhow::Result<Lines<'_>> {
        let answered = self.runtime.block_on(self.asker.follow(path));
        let answered = answered.map_err(|err| explained(&err))?;
        Ok(Lines { runtime: &self.runtime, answered, buffer: Vec::new(), is_whole: false })
    }
}

/// Lines of an answer.
pub(super) struct Lines<'s> {
    runtime: &'s tokio::runtime::Runtime,
    answered: Answered,
    buffer: Vec<u8>,
    is_whole: bool,
}

impl Iterator for Lines<'_> {
    type Item = Result<String, RestError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.buffer) {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(Ok(String::from_utf8_lossy(&line[..end]).into_owned()));
            }
            if self.is_whole {
                let rest = std::mem::take(&mut self.buffer);
                return (!rest.is_empty()).then(|| Ok(String::from_utf8_lossy(&rest).into_owned()));
            }
            match self.runtime.block_on(self.answered.piece()) {
                Ok(Some(piece)) => self.buffer.extend_from_slice(&piece),
                Ok(None) => self.is_whole = true,
                Err(err) => {
                    self.is_whole = true;
                    self.buffer.clear();
                    return Some(Err(err));
                }
            }
        }
    }
}

/// A path with what was asked for behind it.
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

/// The server's advice is for programs; whoever types commands is told the command.
fn by_command(problem: &Problem) -> String {
    let command = match problem.hint_code {
        Some(HintCode::ListNodes) => "`farrier fleet nodes` lists those that you see",
        Some(HintCode::ListTokens) => "`farrier server token list` lists those that you see",
        Some(HintCode::SeeApproval) => "`farrier fleet explain NODE` says when there is something",
        Some(HintCode::HoldAndDrain) => {
            "hold it first (`farrier fleet cordon NODE --reason TEXT`), and let what runs there end"
        }
        Some(HintCode::HoldOrWait) => {
            "hold it first (`farrier fleet cordon NODE --reason TEXT`), or wait until something speaks against it"
        }
        Some(HintCode::ListArtifacts) => "without --last, the node is asked for new ones",
        Some(HintCode::WaitForOrder) => {
            "wait until it is; `farrier fleet node NODE` says what came of it"
        }
        Some(HintCode::ListDomains) => "`farrier fleet domains` lists those that you see",
        Some(HintCode::EnrolAgain) => {
            "enrol it again: `farrier server token create --node NODE`, then `farrier agent enrol` there"
        }
        Some(HintCode::ReadReference) => "`--help` says what is expected",
        Some(HintCode::Unknown) | None => &problem.hint,
    };
    command.to_owned()
}

/// An error as a person reads it, with what to do.
pub(super) fn explained(err: &RestError) -> anyhow::Error {
    let hint = match err {
        RestError::Refused(problem) if problem.status == 401 => {
            "`farrier login` with another token; `farrier server user add` makes one".to_owned()
        }
        RestError::Refused(problem) => by_command(problem),
        RestError::Connect(ConnectError::Connect { .. } | ConnectError::Slow { .. }) => {
            "does the server run, and is the address right?".to_owned()
        }
        RestError::Connect(ConnectError::Stranger { .. }) => {
            "is the address right? `farrier server user add` prints the fingerprint of its own server; where its authority is a new one, `farrier login` anew"
                .to_owned()
        }
        RestError::Connect(ConnectError::NoTls { .. }) => {
            "is another program there? A farrier server without TLS (`--plain`) is `http://` and on loopback".to_owned()
        }
        RestError::Call(_) => "`farrier login --server https://...`".to_owned(),
        RestError::Connect(_) | RestError::Foreign(_) => "is a farrier server there?".to_owned(),
        RestError::Token => "`farrier login` with the token that was printed".to_owned(),
        RestError::Path(_) => "names have letters, digits, `.`, `_` and `-`".to_owned(),
        RestError::Broken(_) | RestError::Slow => "try again in a moment".to_owned(),
        RestError::Form(_) => "is this program older than the server?".to_owned(),
    };
    let message = Chain(err).to_string();
    match err {
        // It ends, or has too much to do.
        RestError::Refused(problem) if problem.status == 503 => Hinted::unavailable(message, hint),
        RestError::Connect(ConnectError::Connect { .. } | ConnectError::Slow { .. })
        | RestError::Broken(_)
        | RestError::Slow => Hinted::unavailable(message, hint),
        _ => Hinted::error(message, hint),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_cannot_be_taken_for_something_else() {
        let path = Path::new("/a").with("text", Some("x&limit=1 \u{e9}")).with("no", None::<u8>);
        assert_eq!(path.with("limit", Some(3)).as_str(), "/a?text=x%26limit%3D1%20%C3%A9&limit=3");
    }
}
