//! Email to an SMTP server (Debian's aiosmtpd), and to peers that misbehave.

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use farrier_fleet::notify::{EmailReceiver, Notification, Receiver, SmtpTls};
use farrier_notify::{DeliveryError, DeliveryStep, ReceiverFiles, Sender};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::sample::{Certificate, chain, notification, resolved, secret, skipped};

/// Debian's Python, which has Debian's aiosmtpd.
const PYTHON: &str = "/usr/bin/python3";

struct SmtpServer {
    child: Child,
    port: u16,
    lines: Lines<BufReader<ChildStdout>>,
    certificate: Certificate,
}

impl Drop for SmtpServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl SmtpServer {
    /// `None` if aiosmtpd is not installed.
    fn start(folder: &Path, tls: SmtpTls) -> Option<Self> {
        let mut python = Command::new(PYTHON);
        python.args(["-c", "import aiosmtpd"]).stderr(Stdio::null());
        if !python.status().is_ok_and(|status| status.success()) {
            skipped("aiosmtpd is not installed; run `apt-get install python3-aiosmtpd`");
            return None;
        }
        let certificate = Certificate::write(folder);
        let mode = match tls {
            SmtpTls::Starttls => "starttls",
            SmtpTls::Implicit => "implicit",
            SmtpTls::None => "none",
        };
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/delivery/smtp_server.py");
        let mut child = Command::new(PYTHON)
            .args([program, mode])
            .args([&certificate.pem, &certificate.key])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let port = lines.next().unwrap().unwrap().parse().unwrap();
        Some(Self { child, port, lines, certificate })
    }

    fn receiver(&self, folder: &Path, tls: SmtpTls) -> EmailReceiver {
        let login = (tls != SmtpTls::None).then(|| secret(folder, "password", "s3cret-password\n"));
        EmailReceiver {
            ca: (tls != SmtpTls::None).then(|| self.certificate.pem.clone()),
            user: login.as_ref().map(|_| "farrier".to_owned()),
            password: login,
            ..email(self.port, tls)
        }
    }

    fn message(&mut self) -> Value {
        serde_json::from_str(&self.lines.next().unwrap().unwrap()).unwrap()
    }
}

fn email(port: u16, tls: SmtpTls) -> EmailReceiver {
    EmailReceiver {
        server: format!("localhost:{port}"),
        from: "Farrier <farrier@fleet.example>".to_owned(),
        to: vec!["oncall@fleet.example".to_owned()],
        tls,
        user: None,
        password: None,
        template: None,
        ca: None,
    }
}

async fn deliver(receiver: &EmailReceiver, sent: &Notification) -> Result<(), DeliveryError> {
    Sender::unrestricted().deliver(&Receiver::Email(receiver.clone()), sent).await
}

/// The value of a header, with its continuation lines.
fn header<'m>(message: &'m Value, name: &str) -> Vec<&'m str> {
    let text = message["text"].as_str().unwrap();
    let (head, _) = text.split_once("\r\n\r\n").unwrap();
    let prefix = format!("{name}: ");
    head.split("\r\n").filter_map(|line| line.strip_prefix(prefix.as_str())).collect()
}

#[tokio::test]
async fn an_email_is_encrypted_authenticated_and_threaded() {
    for tls in [SmtpTls::Starttls, SmtpTls::Implicit, SmtpTls::None] {
        let folder = tempfile::tempdir().unwrap();
        let Some(mut server) = SmtpServer::start(folder.path(), tls) else { return };
        let receiver = server.receiver(folder.path(), tls);
        assert!(
            farrier_notify::check(&Receiver::Email(receiver.clone()), &ReceiverFiles::Any)
                .is_empty()
        );
        deliver(&receiver, &notification()).await.unwrap();
        let first = server.message();
        assert_eq!(first["from"], "farrier@fleet.example");
        assert_eq!(first["to"][0], "oncall@fleet.example");
        assert_eq!(first["is_encrypted"], tls != SmtpTls::None);
        assert_eq!(first["user"].as_str(), (tls != SmtpTls::None).then_some("farrier"));
        let text = first["text"].as_str().unwrap();
        assert!(text.contains("done: cordoned; drain ordered"), "{text}");
        assert_eq!(header(&first, "Subject").len(), 1);
        assert!(header(&first, "Subject")[0].starts_with("FATAL gpu-7 GPU 3: Xid 79"), "{text}");

        // A duplicate has the same id. The resolution has another one, in the same thread.
        deliver(&receiver, &notification()).await.unwrap();
        let duplicate = server.message();
        deliver(&receiver, &resolved()).await.unwrap();
        let end = server.message();
        assert_eq!(header(&first, "Message-ID"), header(&duplicate, "Message-ID"));
        assert_ne!(header(&first, "Message-ID"), header(&end, "Message-ID"));
        assert_eq!(header(&first, "In-Reply-To"), header(&end, "In-Reply-To"));
        assert_eq!(header(&first, "References"), header(&end, "References"));
        assert_eq!(header(&first, "Message-ID").len(), 1);
        assert!(header(&end, "Subject")[0].starts_with("RESOLVED gpu-7"), "{end}");
    }
}

#[tokio::test]
async fn hostile_texts_add_no_headers_and_no_smtp_commands() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut server) = SmtpServer::start(folder.path(), SmtpTls::None) else { return };
    let receiver = server.receiver(folder.path(), SmtpTls::None);
    let hostile = "x\r\nBcc: evil@example.org\r\n\r\nbody\r\n.\r\nMAIL FROM:<evil@example.org>";
    let sent = Notification {
        key: hostile.to_owned(),
        group: hostile.to_owned(),
        cause: format!("{hostile} \u{1f525} {}", "long ".repeat(500)),
        action_taken: Some(hostile.to_owned()),
        ..notification()
    };
    deliver(&receiver, &sent).await.unwrap();
    let message = server.message();
    assert_eq!(header(&message, "Bcc").len(), 0, "{message}");
    assert_eq!(message["to"].as_array().unwrap().len(), 1);
    // The next message arrives: the first one did not end early.
    deliver(&receiver, &resolved()).await.unwrap();
    assert!(header(&server.message(), "Subject")[0].starts_with("RESOLVED"));
}

#[tokio::test]
async fn a_rejected_recipient_fails_the_delivery_but_the_others_get_the_message() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut server) = SmtpServer::start(folder.path(), SmtpTls::Starttls) else { return };
    let receiver = server.receiver(folder.path(), SmtpTls::Starttls);
    let to = |names: &[&str]| EmailReceiver {
        to: names.iter().map(|name| format!("{name}@fleet.example")).collect(),
        ..receiver.clone()
    };
    let err = deliver(&to(&["unknown", "oncall"]), &notification()).await.unwrap_err();
    assert!(matches!(&err, DeliveryError::Smtp { code: Some(550), .. }), "{err}");
    assert!(!err.is_retryable() && err.to_string().contains("no such user"), "{err}");
    assert_eq!(server.message()["to"], serde_json::json!(["oncall@fleet.example"]));
    // A temporary rejection is repeated, even if another one is permanent.
    let err = deliver(&to(&["unknown", "busy", "oncall"]), &notification()).await.unwrap_err();
    assert!(matches!(&err, DeliveryError::Smtp { code: Some(451), .. }), "{err}");
    assert!(err.is_retryable());
    server.message();
    let err = deliver(&to(&["unknown"]), &notification()).await.unwrap_err();
    assert!(!err.is_retryable(), "{err}");
}

#[tokio::test]
async fn a_wrong_password_is_permanent_and_not_in_the_error() {
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = SmtpServer::start(folder.path(), SmtpTls::Starttls) else { return };
    let receiver = server.receiver(folder.path(), SmtpTls::Starttls);
    let password = Some(secret(folder.path(), "password", "wr0ng-password"));
    let receiver = EmailReceiver { password, ..receiver };
    let err = deliver(&receiver, &notification()).await.unwrap_err();
    assert!(matches!(&err, DeliveryError::Smtp { code: Some(535), .. }), "{err}");
    assert!(!err.is_retryable() && !chain(&err).contains("wr0ng"), "{}", chain(&err));
}

#[tokio::test]
async fn an_unknown_authority_is_a_tls_error() {
    for tls in [SmtpTls::Starttls, SmtpTls::Implicit] {
        let folder = tempfile::tempdir().unwrap();
        let Some(server) = SmtpServer::start(folder.path(), tls) else { return };
        let other = tempfile::tempdir().unwrap();
        let ca = Some(Certificate::write(other.path()).pem);
        let receiver = EmailReceiver { ca, ..server.receiver(folder.path(), tls) };
        let err = deliver(&receiver, &notification()).await.unwrap_err();
        assert!(matches!(err, DeliveryError::Tls { .. }), "{}", chain(&err));
        assert!(err.is_retryable());
    }
}

/// A peer that sends a reply to each thing that the client sends, and then nothing more. Returns its
/// port.
async fn peer(replies: Vec<&'static [u8]>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut tcp, _) = listener.accept().await.unwrap();
        for reply in replies {
            let _ = tcp.write_all(reply).await;
            let _ = tcp.read(&mut [0; 1024]).await;
        }
        std::future::pending::<()>().await;
    });
    port
}

#[tokio::test]
async fn a_server_without_starttls_is_refused() {
    let port = peer(vec![b"220 smtp.test\r\n", b"250-smtp.test\r\n250 AUTH PLAIN\r\n"]).await;
    let err = deliver(&email(port, SmtpTls::Starttls), &notification()).await.unwrap_err();
    assert!(matches!(err, DeliveryError::NoStarttls { .. }), "{err}");
    assert!(err.is_retryable());
}

#[tokio::test]
async fn replies_that_are_appended_to_the_reply_to_starttls_are_refused() {
    let ehlo = b"250-smtp.test\r\n250 STARTTLS\r\n";
    let injected = b"220 go ahead\r\n250-smtp.test\r\n250 AUTH PLAIN\r\n";
    let port = peer(vec![b"220 smtp.test\r\n", ehlo, injected]).await;
    let err = deliver(&email(port, SmtpTls::Starttls), &notification()).await.unwrap_err();
    assert!(err.to_string().contains("more than the reply to STARTTLS"), "{}", chain(&err));
}

#[tokio::test]
async fn an_endless_reply_is_cut() {
    let endless: &'static [u8] = Box::leak(vec![b'2'; 1 << 20].into_boxed_slice());
    let err = deliver(&email(peer(vec![endless]).await, SmtpTls::None), &notification()).await;
    let err = err.unwrap_err();
    assert!(matches!(err, DeliveryError::Smtp { .. }), "{err}");
    assert!(err.is_retryable() && err.to_string().len() < 400, "{err}");
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_meets_a_deadline() {
    for replies in [vec![], vec![&b"220 smtp.test\r\n"[..]]] {
        let port = peer(replies).await;
        let err = deliver(&email(port, SmtpTls::None), &notification()).await.unwrap_err();
        assert!(matches!(err, DeliveryError::TimedOut { step: DeliveryStep::Smtp, .. }), "{err}");
    }
}

#[tokio::test]
async fn a_remote_server_without_tls_is_refused() {
    let server = "smtp.example:25".to_owned();
    let receiver = EmailReceiver { server, ..email(25, SmtpTls::None) };
    let err = deliver(&receiver, &notification()).await.unwrap_err();
    assert!(matches!(err, DeliveryError::Email(_)) && !err.is_retryable(), "{err}");
    let problems = farrier_notify::check(&Receiver::Email(receiver), &ReceiverFiles::Any);
    assert_eq!(problems.iter().map(|problem| problem.key).collect::<Vec<_>>(), ["tls"]);
}

#[tokio::test]
async fn a_server_without_auth_is_named_if_there_is_a_password() {
    let folder = tempfile::tempdir().unwrap();
    let port = peer(vec![b"220 smtp.test\r\n", b"250 smtp.test\r\n"]).await;
    let receiver = EmailReceiver {
        user: Some("farrier".to_owned()),
        password: Some(secret(folder.path(), "password", "s3cret-password")),
        ..email(port, SmtpTls::None)
    };
    let err = deliver(&receiver, &notification()).await.unwrap_err();
    assert!(matches!(err, DeliveryError::NoAuth { .. }), "{err}");
    assert!(err.to_string().contains("offers no AUTH"), "{err}");
}

/// A conversation up to the reply to the message. The peer does not answer `QUIT`.
#[tokio::test]
async fn a_mail_is_delivered_even_if_the_server_does_not_answer_quit() {
    let replies: Vec<&'static [u8]> =
        vec![b"220 smtp.test\r\n", b"250 smtp.test\r\n", b"250 sender\r\n", b"250 recipient\r\n"];
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut tcp, _) = listener.accept().await.unwrap();
        for reply in replies {
            let _ = tcp.write_all(reply).await;
            let _ = tcp.read(&mut [0; 1024]).await;
        }
        let _ = tcp.write_all(b"354 go ahead\r\n").await;
        let mut message = Vec::new();
        while !message.ends_with(b"\r\n.\r\n") {
            let mut part = [0; 4096];
            let length = tcp.read(&mut part).await.unwrap();
            message.extend_from_slice(&part[..length]);
        }
        let _ = tcp.write_all(b"250 accepted\r\n").await;
        std::future::pending::<()>().await;
    });
    deliver(&email(port, SmtpTls::None), &notification()).await.unwrap();
}

#[tokio::test]
async fn a_reply_that_repeats_the_password_is_not_in_the_error() {
    let folder = tempfile::tempdir().unwrap();
    for refused in [&b"550 no s3c\xc2\xadret-pass/w0rd\r\n"[..], b"550 S3CRET%2DPASS%2FW0RD\r\n"] {
        let replies: Vec<&'static [u8]> = vec![
            b"220 smtp.test\r\n",
            b"250-smtp.test\r\n250 AUTH PLAIN\r\n",
            b"235 hello\r\n",
            refused,
        ];
        let receiver = EmailReceiver {
            user: Some("farrier".to_owned()),
            password: Some(secret(folder.path(), "password", "s3cret-pass/w0rd")),
            ..email(peer(replies).await, SmtpTls::None)
        };
        let err = deliver(&receiver, &notification()).await.unwrap_err();
        let text = chain(&err).to_lowercase();
        assert!(matches!(err, DeliveryError::Smtp { code: Some(550), .. }), "{text}");
        assert!(text.contains("withheld") && !text.contains("w0rd"), "{text}");
    }
}
