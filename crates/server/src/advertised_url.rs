//! The URL under which clients reach this server. The server records it here, and commands that
//! print the URL for other programs or people read it.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

const FILE_NAME: &str = "url";

/// Records the URL. The host is the first of `names`. Without names, the host is that of the listen
/// address, or `HOST` if the server listens on all addresses.
pub(crate) fn record(
    dir: &Path,
    names: &[String],
    address: SocketAddr,
    is_plain: bool,
) -> io::Result<()> {
    let scheme = if is_plain { "http" } else { "https" };
    let url = match names.first() {
        Some(name) => format!("{scheme}://{name}:{}", address.port()),
        None if address.ip().is_unspecified() => format!("{scheme}://HOST:{}", address.port()),
        None => format!("{scheme}://{address}"),
    };
    let part = dir.join("url.part");
    fs::write(&part, url)?;
    fs::rename(part, dir.join(FILE_NAME))
}

/// Returns the recorded URL, or `https://HOST:9443` if none is recorded. The word `HOST` in a URL
/// means that the host name is unknown.
pub fn url(dir: &Path) -> String {
    let recorded = fs::read_to_string(dir.join(FILE_NAME)).ok().filter(|url| !url.is_empty());
    recorded.unwrap_or_else(|| "https://HOST:9443".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_takes_precedence_over_the_address_and_an_unknown_host_is_marked() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        assert_eq!(url(dir), "https://HOST:9443");
        let recorded = |names: &[&str], address: &str, is_plain| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            record(dir, &names, address.parse().unwrap(), is_plain).unwrap();
            url(dir)
        };
        assert_eq!(recorded(&["a.example", "b"], "0.0.0.0:9443", false), "https://a.example:9443");
        assert_eq!(recorded(&[], "0.0.0.0:19443", false), "https://HOST:19443");
        assert_eq!(recorded(&[], "[::1]:7", true), "http://[::1]:7");
    }
}
