//! Synthetic packages and repositories, and an HTTP server for them.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

use farrier_bundle::Sha256Digest;

/// A Debian package without files.
pub(crate) fn deb(name: &str, version: &str, architecture: &str, fields: &str) -> Vec<u8> {
    let control =
        format!("Package: {name}\nVersion: {version}\nArchitecture: {architecture}\n{fields}");
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(control.len() as u64);
    header.set_mode(0o644);
    tar.append_data(&mut header, "./control", control.as_bytes()).unwrap();
    let tar = tar.into_inner().unwrap();
    let mut out = b"!<arch>\n".to_vec();
    for (member, content) in [("debian-binary", b"2.0\n".as_slice()), ("control.tar", &tar)] {
        let bytes = content.len();
        out.extend(
            format!("{member:<16}{:<12}{:<6}{:<6}{:<8}{bytes:<10}`\n", 0, 0, 0, 644).bytes(),
        );
        out.extend(content);
        out.extend(vec![b'\n'; bytes % 2]);
    }
    out
}

/// A package of a synthetic apt repository.
pub(crate) struct AptPackage {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    /// Lines such as `Depends: a\n`.
    pub(crate) fields: &'static str,
}

/// Writes a repository with one component.
pub(crate) fn write_apt(folder: &Path, packages: &[AptPackage]) {
    let index_folder = folder.join("dists/stable/main/binary-amd64");
    fs::create_dir_all(&index_folder).unwrap();
    fs::create_dir_all(folder.join("pool")).unwrap();
    let mut index = String::new();
    for AptPackage { name, version, fields } in packages {
        let bytes = deb(name, version, "amd64", fields);
        let path = format!("pool/{name}_{}_amd64.deb", version.replace(':', "%3a"));
        index.push_str(&format!(
            "Package: {name}\nVersion: {version}\nArchitecture: amd64\n{fields}Filename: {path}\n\
             Size: {}\nSHA256: {}\n\n",
            bytes.len(),
            Sha256Digest::of(&bytes)
        ));
        fs::write(folder.join(path), bytes).unwrap();
    }
    fs::write(index_folder.join("Packages"), &index).unwrap();
    let release = format!(
        "Suite: stable\nSHA256:\n {} {} main/binary-amd64/Packages\n",
        Sha256Digest::of(index.as_bytes()),
        index.len()
    );
    fs::write(folder.join("dists/stable/Release"), release).unwrap();
}

/// What the server does with the requests of one path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Misbehaviour {
    /// Sends the file, and then bytes without an end.
    Endless,
    /// Ends the connection in the middle of the file.
    Cut,
    /// Answers with an internal error.
    Fails,
}

type Rules = Arc<Mutex<Vec<(String, Misbehaviour)>>>;

/// Serves a folder. The thread ends with the test's process.
pub(crate) struct HttpServer {
    pub(crate) url: String,
    rules: Rules,
}

impl HttpServer {
    pub(crate) fn start(folder: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let rules = Rules::default();
        let (folder, shared) = (folder.to_owned(), Arc::clone(&rules));
        thread::spawn(move || {
            for connection in listener.incoming() {
                let (folder, rules) = (folder.clone(), Arc::clone(&shared));
                // A client that went away is no error.
                thread::spawn(move || drop(answer(connection.unwrap(), &folder, &rules)));
            }
        });
        Self { url, rules }
    }

    /// From now on, paths that contain a text are served in this way.
    pub(crate) fn misbehave(&self, path: &str, misbehaviour: Misbehaviour) {
        self.rules.lock().unwrap().push((path.to_owned(), misbehaviour));
    }

    pub(crate) fn behave(&self) {
        self.rules.lock().unwrap().clear();
    }
}

fn answer(connection: TcpStream, folder: &Path, rules: &Rules) -> std::io::Result<()> {
    let mut reader = BufReader::new(connection.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or_default().trim_start_matches('/').to_owned();
    while reader.read_line(&mut line)? > 2 {}
    let rules = rules.lock().unwrap().clone();
    let misbehaviour = rules.iter().find(|(text, _)| path.contains(text.as_str()));
    let misbehaviour = misbehaviour.map(|(_, misbehaviour)| *misbehaviour);
    let mut out = connection;
    let file: PathBuf = folder.join(path);
    match (fs::read(file), misbehaviour) {
        (_, Some(Misbehaviour::Fails)) => out.write_all(b"HTTP/1.1 500 X\r\n\r\n"),
        (Err(_), _) => out.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"),
        (Ok(bytes), Some(Misbehaviour::Endless)) => {
            out.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
            out.write_all(&bytes)?;
            loop {
                out.write_all(&[b' '; 4096])?;
            }
        }
        (Ok(bytes), cut) => {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", bytes.len());
            out.write_all(head.as_bytes())?;
            let end = if cut.is_some() { bytes.len() / 2 } else { bytes.len() };
            out.write_all(&bytes[..end])
        }
    }
}
