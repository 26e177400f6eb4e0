//! Receivers that fail: what is retried, and what an error shows.

use std::time::Duration;

use farrier_fleet::notify::{
    PagerdutyReceiver, Receiver, SecretFile, SlackReceiver, WebhookReceiver, WebhookUrl,
};
use farrier_notify::{DeliveryError, DeliveryStep, ReceiverFiles, Sender};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::http_server::{Answer, HttpServer};
use crate::sample::{Certificate, chain, notification, secret};
use crate::webhooks::webhook;

async fn delivery_error(receiver: WebhookReceiver) -> DeliveryError {
    Sender::unrestricted().deliver(&Receiver::Webhook(receiver), &notification()).await.unwrap_err()
}

/// A peer that sends bytes to each connection, and then keeps it open.
async fn peer(bytes: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let mut open = Vec::new();
        loop {
            let (mut tcp, _) = listener.accept().await.unwrap();
            let _ = tcp.write_all(&bytes).await;
            open.push(tcp);
        }
    });
    url
}

#[tokio::test]
async fn a_refused_connection_is_retried() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let err = delivery_error(webhook(url)).await;
    assert!(matches!(&err, DeliveryError::Connect { host, .. } if host == "127.0.0.1"), "{err}");
    assert!(err.is_retryable());
}

/// Time is paused: it advances when every task waits.
#[tokio::test(start_paused = true)]
async fn a_silent_peer_meets_a_deadline() {
    let silent = peer(Vec::new()).await;
    let err = delivery_error(webhook(silent.clone())).await;
    assert!(matches!(err, DeliveryError::TimedOut { step: DeliveryStep::Request, .. }), "{err}");
    assert!(err.is_retryable());
    let tls = silent.replace("http://", "https://");
    let err = delivery_error(webhook(tls)).await;
    assert!(
        matches!(err, DeliveryError::TimedOut { step: DeliveryStep::TlsHandshake, .. }),
        "{err}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_response_that_never_ends_meets_a_deadline() {
    let head = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 100\r\n\r\nstart";
    let err = delivery_error(webhook(peer(head.to_vec()).await)).await;
    assert!(matches!(err, DeliveryError::TimedOut { step: DeliveryStep::Request, .. }), "{err}");
}

#[tokio::test]
async fn a_status_says_whether_to_retry() {
    let statuses = [
        (301, false),
        (400, false),
        (401, true),
        (403, true),
        (404, true),
        (422, false),
        (408, true),
        (429, true),
        (500, true),
        (503, true),
    ];
    for (status, is_retryable) in statuses {
        let answer = Answer {
            headers: vec![
                ("location", "http://127.0.0.1:1/".to_owned()),
                ("retry-after", "17".to_owned()),
            ],
            ..Answer::status(status)
        };
        let server = HttpServer::plain(vec![answer]).await;
        let err = delivery_error(webhook(server.url("/"))).await;
        assert_eq!(err.is_retryable(), is_retryable, "{err}");
        assert!(err.reached_receiver(), "{err}");
        assert_eq!(err.retry_after(), Some(Duration::from_secs(17)), "{err}");
        // A redirect is not followed.
        assert_eq!(server.waiting(), 1, "{status}");
    }
}

#[tokio::test]
async fn retry_after_is_seconds_or_a_date_and_is_limited() {
    let soon = jiff::Timestamp::now() + jiff::SignedDuration::from_mins(10);
    let soon = soon.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    let cases = [
        ("0".to_owned(), Some(0..=0)),
        (soon, Some(290..=600)),
        ("Wed, 21 Oct 2015 07:28:00 GMT".to_owned(), Some(0..=0)),
        ("99999999".to_owned(), Some(3600..=3600)),
        ("soon".to_owned(), None),
        ("-1".to_owned(), None),
    ];
    for (value, expected) in cases {
        let headers = vec![("retry-after", value.clone())];
        let server = HttpServer::plain(vec![Answer { headers, ..Answer::status(429) }]).await;
        let wait = delivery_error(webhook(server.url("/"))).await.retry_after();
        match expected {
            None => assert_eq!(wait, None, "{value}"),
            Some(range) => assert!(range.contains(&wait.unwrap().as_secs()), "{value}: {wait:?}"),
        }
    }
}

#[tokio::test]
async fn a_large_response_is_cut_and_cleaned() {
    let mut body = b"first line\r\n\x1b[31mred\x1b[0m \xe2\x80\xaehidden ".to_vec();
    body.resize(10 << 20, b'x');
    let server = HttpServer::plain(vec![Answer { body, ..Answer::status(400) }]).await;
    let DeliveryError::Status { body, .. } = delivery_error(webhook(server.url("/"))).await else {
        panic!("expected a status");
    };
    assert!(body.starts_with("first line [31mred [0m hidden xxx"), "{body}");
    assert_eq!(body.chars().count(), 203, "{body}");
}

#[tokio::test]
async fn a_large_success_is_a_success() {
    let body = vec![b'x'; 10 << 20];
    let server = HttpServer::plain(vec![Answer { body, ..Answer::status(200) }]).await;
    let receiver = Receiver::Webhook(webhook(server.url("/")));
    Sender::unrestricted().deliver(&receiver, &notification()).await.unwrap();
}

#[tokio::test]
async fn garbage_and_endless_headers_are_errors() {
    let endless = [b"HTTP/1.1 200 OK\r\nx: ".to_vec(), vec![b'y'; 1 << 20]].concat();
    for bytes in [b"\x00\xff not http at all\r\n\r\n".to_vec(), endless] {
        let err = delivery_error(webhook(peer(bytes).await)).await;
        assert!(matches!(err, DeliveryError::Http { .. }), "{err}");
        assert!(err.is_retryable());
    }
}

#[tokio::test]
async fn a_connection_that_closes_early_is_retried() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut tcp, _) = listener.accept().await.unwrap();
        let _ = tcp.read(&mut [0; 10]).await;
    });
    let err = delivery_error(webhook(url)).await;
    assert!(matches!(err, DeliveryError::Http { .. }), "{err}");
    assert!(err.is_retryable());
    assert!(err.reached_receiver(), "it may end because of the request");
}

#[tokio::test]
async fn an_unknown_authority_is_a_tls_error() {
    let folder = tempfile::tempdir().unwrap();
    let server =
        HttpServer::tls(vec![Answer::status(200)], &Certificate::write(folder.path())).await;
    let other = tempfile::tempdir().unwrap();
    let ca = Some(Certificate::write(other.path()).pem);
    let err = delivery_error(WebhookReceiver { ca, ..webhook(server.https_url("/")) }).await;
    assert!(matches!(err, DeliveryError::Tls { .. }), "{err}");
    assert!(err.is_retryable());
    assert!(!err.reached_receiver(), "nothing was sent");
    assert_eq!(server.waiting(), 0);
}

#[tokio::test]
async fn a_plain_server_is_a_tls_error_for_https() {
    let server = HttpServer::plain(vec![Answer::status(200)]).await;
    let folder = tempfile::tempdir().unwrap();
    let ca = Some(Certificate::write(folder.path()).pem);
    let err = delivery_error(WebhookReceiver { ca, ..webhook(server.https_url("/")) }).await;
    assert!(matches!(err, DeliveryError::Tls { .. }), "{err}");
}

#[tokio::test]
async fn no_error_shows_a_secret_even_if_the_receiver_repeats_it() {
    let folder = tempfile::tempdir().unwrap();
    let body = b"no /services/T0/B0/s3cret-path, no s3cret-token, no s3cret-routing-key".to_vec();
    let server = HttpServer::plain(vec![Answer { body, ..Answer::status(403) }]).await;
    let receivers = [
        Receiver::Webhook(WebhookReceiver {
            bearer_token: Some(secret(folder.path(), "token", "s3cret-token")),
            ..webhook(server.url("/services/T0/B0/s3cret-path"))
        }),
        Receiver::Webhook(WebhookReceiver {
            url: WebhookUrl::Secret(secret(
                folder.path(),
                "url-file",
                &server.url("/services/T0/B0/s3cret-path"),
            )),
            ..webhook(String::new())
        }),
        Receiver::Slack(SlackReceiver {
            url: secret(folder.path(), "url", &server.url("/services/T0/B0/s3cret-path")),
            template: None,
            ca: None,
        }),
        Receiver::Pagerduty(PagerdutyReceiver {
            routing_key: secret(folder.path(), "key", "s3cret-routing-key"),
            url: Some(server.url("/services/T0/B0/s3cret-path")),
            ca: None,
        }),
    ];
    let own = ["s3cret-token", "s3cret-path", "s3cret-path", "s3cret-routing-key"];
    for (receiver, own) in receivers.iter().zip(own) {
        let err = Sender::unrestricted().deliver(receiver, &notification()).await.unwrap_err();
        let text = chain(&err);
        assert!(text.contains("withheld") && !text.contains(own), "{text}");
    }
}

#[tokio::test]
async fn no_error_shows_a_secret_that_the_receiver_has_escaped_or_split() {
    let folder = tempfile::tempdir().unwrap();
    for body in [
        r#"{"token":"s3cret\/token-0123"}"#,
        "s3c\u{200b}ret/tok\u{ad}en-0123",
        "s3cret%2Ftoken%2D0123",
        r"s3cret\u002ftoken\u002d0123",
        "S3CRET/TOKEN-0123",
        "no /services/s3cret/token-0123",
    ] {
        let answer = Answer { body: body.as_bytes().to_vec(), ..Answer::status(403) };
        let server = HttpServer::plain(vec![answer]).await;
        let err = delivery_error(WebhookReceiver {
            bearer_token: Some(secret(folder.path(), "token", "s3cret/token-0123")),
            ..webhook(server.url("/"))
        })
        .await;
        let text = chain(&err).to_lowercase();
        assert!(text.contains("withheld") && !text.contains("0123"), "{text}");
    }
    // A token in the URL.
    let body = b"POST /hooks/xyz0123456789".to_vec();
    let server = HttpServer::plain(vec![Answer { body, ..Answer::status(404) }]).await;
    let err = delivery_error(webhook(server.url("/hooks/xyz0123456789"))).await;
    assert!(!chain(&err).contains("xyz0"), "{}", chain(&err));
}

#[test]
fn a_pipe_as_a_file_of_certificates_does_not_block_the_check() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("ca.pem");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let receiver = WebhookReceiver { ca: Some(pipe), ..webhook("https://localhost/".to_owned()) };
    let problems = farrier_notify::check(&Receiver::Webhook(receiver), &ReceiverFiles::Any);
    assert_eq!(problems.iter().map(|problem| problem.key).collect::<Vec<_>>(), ["ca"]);
    assert!(problems[0].to_string().contains("not a regular file"), "{}", problems[0]);
}

#[tokio::test]
async fn a_secret_that_others_can_read_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let server = HttpServer::plain(vec![Answer::status(200)]).await;
    let file = secret(folder.path(), "token", "s3cret-token");
    std::fs::set_permissions(&file.0, std::fs::Permissions::from_mode(0o644)).unwrap();
    let receiver = WebhookReceiver { bearer_token: Some(file), ..webhook(server.url("/")) };
    let err = delivery_error(receiver.clone()).await;
    assert!(matches!(err, DeliveryError::Secret(_)) && err.is_retryable(), "{err}");
    let problems = farrier_notify::check(&Receiver::Webhook(receiver), &ReceiverFiles::Any);
    let text = problems[0].to_string();
    assert_eq!(problems.len(), 1);
    assert!(text.starts_with("`bearer_token`: ") && text.contains("chmod 600"), "{text}");
    assert_eq!(server.waiting(), 0);
}

#[tokio::test]
async fn a_token_is_not_sent_over_plain_http() {
    let folder = tempfile::tempdir().unwrap();
    let bearer_token = Some(secret(folder.path(), "token", "s3cret-token"));
    let url = "http://receiver.example/hook".to_owned();
    let receiver = WebhookReceiver { bearer_token, ..webhook(url) };
    let err = delivery_error(receiver.clone()).await;
    assert!(matches!(err, DeliveryError::Url(_)) && !err.is_retryable(), "{err}");
    let problems = farrier_notify::check(&Receiver::Webhook(receiver), &ReceiverFiles::Any);
    assert_eq!(problems.iter().map(|problem| problem.key).collect::<Vec<_>>(), ["url"]);
}

/// A URL in a file is a secret, whatever fails.
#[tokio::test]
async fn no_error_shows_the_path_of_a_secret_url() {
    let folder = tempfile::tempdir().unwrap();
    // Nothing listens at the port of a server that has ended.
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}/hooks/s3cret-path", listener.local_addr().unwrap())
    };
    let garbage = peer(b"/hooks/s3cret-path is not HTTP\r\n\r\n".to_vec()).await;
    let garbage = format!("{garbage}hooks/s3cret-path?key=s3cret-path");
    let texts = [
        ("http://receiver.example/hooks/s3cret-path", "plain `http://`"),
        ("https:///hooks/s3cret-path", "the URL is invalid"),
        ("https://user:s3cret-path@receiver.example/", "the URL has a user or password"),
        (closed.as_str(), "failed to connect"),
        (garbage.as_str(), "the HTTP exchange"),
    ];
    for (url, expected) in texts {
        let url = WebhookUrl::Secret(secret(folder.path(), "url", url));
        let receiver = WebhookReceiver { url, ..webhook(String::new()) };
        let text = chain(&delivery_error(receiver.clone()).await);
        assert!(text.contains(expected) && !text.contains("s3cret"), "{text}");
        let receiver = Receiver::Webhook(receiver);
        for problem in farrier_notify::check(&receiver, &ReceiverFiles::Any) {
            assert_eq!(problem.key, "url_file");
            assert!(!format!("{problem} {problem:?}").contains("s3cret"), "{problem}");
        }
        assert!(!format!("{receiver:?}").contains("s3cret"));
    }
}

/// Someone writes a wrong line into the file, and the right one later.
#[tokio::test]
async fn a_wrong_url_or_token_in_a_file_is_retried() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = HttpServer::plain(vec![Answer::status(200)]).await;
    let (url, token) = (secret(folder.path(), "url", ""), secret(folder.path(), "token", ""));
    let alertmanager = serde_json::json!({ "url": server.url("/"), "bearer_token": token });
    let receivers: [(Receiver, &str, &SecretFile); 4] = [
        (
            Receiver::Webhook(WebhookReceiver {
                url: WebhookUrl::Secret(url.clone()),
                ..webhook(String::new())
            }),
            "url_file",
            &url,
        ),
        (
            Receiver::Slack(SlackReceiver { url: url.clone(), template: None, ca: None }),
            "url",
            &url,
        ),
        (
            Receiver::Webhook(WebhookReceiver {
                bearer_token: Some(token.clone()),
                ..webhook(server.url("/"))
            }),
            "bearer_token",
            &token,
        ),
        (
            serde_json::from_value(serde_json::json!({ "alertmanager": alertmanager })).unwrap(),
            "bearer_token",
            &token,
        ),
    ];
    std::fs::write(&token.0, "\u{feff}s3cret-token").unwrap();
    for (receiver, key, file) in &receivers {
        let bad_urls = [
            "hooks.example/s3cret",
            "http://hooks.example/s3cret",
            "https://s3cret@hooks.example/",
            "https://hooks..example/s3cret",
            "https://-/s3cret",
        ];
        let wrong = if *file == &url { &bad_urls[..] } else { &["\u{feff}s3cret-token"] };
        for text in wrong {
            std::fs::write(&file.0, text).unwrap();
            let err = Sender::unrestricted().deliver(receiver, &notification()).await.unwrap_err();
            assert!(matches!(err, DeliveryError::Secret(_)), "{text}: {}", chain(&err));
            assert!(err.is_retryable() && !err.reached_receiver(), "{}", chain(&err));
            assert!(!chain(&err).contains("s3cret"), "{}", chain(&err));
            let problems = farrier_notify::check(receiver, &ReceiverFiles::Any);
            assert!(problems.len() == 1 && problems[0].key == *key, "{problems:?}");
            assert!(problems[0].is_error() && problems[0].is_about_files(), "{problems:?}");
        }
    }
    assert_eq!(server.waiting(), 0, "nothing was sent");
    std::fs::write(&url.0, server.url("?key=1")).unwrap();
    std::fs::write(&token.0, "s3cret-token").unwrap();
    let (webhook, ..) = &receivers[0];
    Sender::unrestricted().deliver(webhook, &notification()).await.unwrap();
    assert_eq!(server.next().await.path, "/?key=1");
    let (with_token, ..) = &receivers[2];
    Sender::unrestricted().deliver(with_token, &notification()).await.unwrap();
    assert_eq!(server.next().await.header("authorization"), "Bearer s3cret-token");
}

#[tokio::test]
async fn a_webhook_is_sent_to_the_url_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = HttpServer::plain(vec![Answer::status(200)]).await;
    let file = secret(folder.path(), "url", &server.url("/hooks/first"));
    let url = WebhookUrl::Secret(file.clone());
    let receiver = Receiver::Webhook(WebhookReceiver { url, ..webhook(String::new()) });
    assert!(farrier_notify::check(&receiver, &ReceiverFiles::Any).is_empty());
    for path in ["/hooks/first", "/hooks/replaced"] {
        // A new secret needs no restart.
        std::fs::write(&file.0, server.url(path)).unwrap();
        Sender::unrestricted().deliver(&receiver, &notification()).await.unwrap();
        assert_eq!(server.next().await.path, path);
    }
}
