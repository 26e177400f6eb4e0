//! Webhooks, Slack and `PagerDuty`.

use farrier_fleet::health::Severity;
use farrier_fleet::notify::{
    Notification, NotificationStatus, PagerdutyReceiver, Receiver, SecretFile, SlackReceiver,
    WebhookReceiver, WebhookUrl,
};
use farrier_notify::{DeliveryError, ReceiverFiles, ReceiverFolders, Sender};
use jiff::Timestamp;
use ring::hmac;
use serde_json::json;

use crate::http_server::{Answer, HttpServer, Received};
use crate::sample::{Certificate, notification, resolved, secret};

pub(crate) fn webhook(url: String) -> WebhookReceiver {
    WebhookReceiver {
        url: WebhookUrl::Public(url),
        template: None,
        content_type: None,
        hmac_key: None,
        bearer_token: None,
        ca: None,
    }
}

/// Verifies a signature as `docs/receivers.md` describes it.
fn is_signed(received: &Received, key: &str) -> bool {
    let timestamp = received.header("x-farrier-timestamp");
    let seconds: i64 = timestamp.parse().unwrap();
    assert!((Timestamp::now().as_second() - seconds).abs() <= 300, "{seconds}");
    let signature = received.header("x-farrier-signature").strip_prefix("v1=").unwrap();
    let digits = signature
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap());
    let signed = [timestamp.as_bytes(), b".", &received.body].concat();
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes());
    hmac::verify(&key, &signed, &digits.collect::<Vec<u8>>()).is_ok()
}

#[tokio::test]
async fn a_webhook_over_tls_is_signed_and_repeats_with_the_same_key() {
    let folder = tempfile::tempdir().unwrap();
    let certificate = Certificate::write(folder.path());
    let answers = vec![Answer::status(500), Answer::status(200)];
    let mut server = HttpServer::tls(answers, &certificate).await;
    let receiver = Receiver::Webhook(WebhookReceiver {
        hmac_key: Some(secret(folder.path(), "hmac", "a shared key\n")),
        bearer_token: Some(secret(folder.path(), "token", "a-token\n")),
        ca: Some(certificate.pem.clone()),
        ..webhook(server.https_url("/hooks/farrier?team=gpu"))
    });
    assert!(farrier_notify::check(&receiver, &ReceiverFiles::Any).is_empty());
    let notification = notification();
    let err = Sender::unrestricted().deliver(&receiver, &notification).await.unwrap_err();
    assert!(matches!(err, DeliveryError::Status { status: 500, .. }), "{err}");
    assert!(err.is_retryable());
    Sender::unrestricted().deliver(&receiver, &notification).await.unwrap();
    let (first, second) = (server.next().await, server.next().await);
    for received in [&first, &second] {
        assert_eq!(received.path, "/hooks/farrier?team=gpu");
        assert_eq!(received.header("idempotency-key"), "gpu-7/gpu.xid/1");
        assert_eq!(received.header("authorization"), "Bearer a-token");
        assert_eq!(received.header("content-type"), "application/json");
        assert_eq!(received.header("host"), server.address.to_string());
        assert!(is_signed(received, "a shared key"));
        assert!(!is_signed(received, "another key"));
        let sent: Notification = serde_json::from_slice(&received.body).unwrap();
        assert_eq!(sent, notification);
    }
}

#[tokio::test]
async fn a_template_renders_the_body() {
    let mut server = HttpServer::plain(vec![Answer::status(204)]).await;
    let templates = [
        (
            None,
            r#"{"summary": {{ subject }}, "gpus": [{% for n in nodes %}{{ n.part }}{% endfor %}], "site": {{ nodes[0].site }}}"#,
            "application/json",
            r#"{"summary": "FATAL gpu-7 GPU 3: Xid 79: the GPU is not reachable over PCIe", "gpus": ["GPU 3"], "site": null}"#,
        ),
        (
            Some("text/plain"),
            "{{ severity | upper }} {{ nodes_total }} {{ action_needed or 'nothing' }}",
            "text/plain",
            "FATAL 1 power-cycle the node",
        ),
    ];
    for (content_type, template, sent_type, body) in templates {
        let receiver = Receiver::Webhook(WebhookReceiver {
            template: Some(template.to_owned()),
            content_type: content_type.map(str::to_owned),
            ..webhook(server.url("/"))
        });
        Sender::unrestricted().deliver(&receiver, &notification()).await.unwrap();
        let received = server.next().await;
        assert_eq!(received.header("content-type"), sent_type);
        assert_eq!(String::from_utf8(received.body).unwrap(), body);
    }
}

#[tokio::test]
async fn slack_gets_the_text_without_markup() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = HttpServer::plain(vec![Answer::status(200)]).await;
    let url = secret(folder.path(), "url", &server.url("/services/T0/B0/token"));
    let slack = SlackReceiver { url, template: None, ca: None };
    let hostile = Notification {
        cause: "<!channel> *look* <https://evil.example|here> & more".to_owned(),
        ..notification()
    };
    Sender::unrestricted().deliver(&Receiver::Slack(slack.clone()), &hostile).await.unwrap();
    let received = server.next().await;
    assert_eq!(received.path, "/services/T0/B0/token");
    assert_eq!(
        received.json(),
        json!({
            "text": "FATAL gpu-7 GPU 3: &lt;!channel&gt; *look* &lt;https://evil.example|here&gt; &amp; more \
                     | done: cordoned; drain ordered | to do: power-cycle the node | https://runbooks.example/xid.79",
            "mrkdwn": false,
        })
    );
    let template = Some("*{{ subject }}* <{{ runbook_url }}|runbook>".to_owned());
    let receiver = Receiver::Slack(SlackReceiver { template, ..slack });
    Sender::unrestricted().deliver(&receiver, &hostile).await.unwrap();
    assert_eq!(
        server.next().await.json(),
        json!({
            "text": "*FATAL gpu-7 GPU 3: &lt;!channel&gt; *look* &lt;https://evil.example|here&gt; &amp; more* \
                     <https://runbooks.example/xid.79|runbook>",
            "mrkdwn": true,
        })
    );
}

#[tokio::test]
async fn pagerduty_gets_a_trigger_and_a_resolve_with_one_dedup_key() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = HttpServer::plain(vec![Answer::status(202)]).await;
    let receiver = Receiver::Pagerduty(PagerdutyReceiver {
        routing_key: secret(folder.path(), "key", "R0UT1NGKEY"),
        url: Some(server.url("/v2/enqueue")),
        ca: None,
    });
    for (notification, action) in [(notification(), "trigger"), (resolved(), "resolve")] {
        Sender::unrestricted().deliver(&receiver, &notification).await.unwrap();
        let event = server.next().await.json();
        assert_eq!(event["routing_key"], "R0UT1NGKEY");
        assert_eq!(event["event_action"], action);
        assert_eq!(event["dedup_key"], "gpu-7/gpu.xid");
        assert_eq!(event["payload"]["source"], "gpu-7");
        assert_eq!(event["payload"]["severity"], "critical");
        assert_eq!(event["links"][0]["href"], "https://runbooks.example/xid.79");
    }
    let severities =
        [(Severity::Info, "info"), (Severity::Warning, "warning"), (Severity::Critical, "error")];
    for (severity, sent) in severities {
        let notification = Notification { severity, ..notification() };
        Sender::unrestricted().deliver(&receiver, &notification).await.unwrap();
        assert_eq!(server.next().await.json()["payload"]["severity"], sent);
    }
    let group = "g".repeat(300);
    let long = Notification { group, status: NotificationStatus::Resolved, ..notification() };
    Sender::unrestricted().deliver(&receiver, &long).await.unwrap();
    assert_eq!(server.next().await.json()["dedup_key"].as_str().unwrap().len(), 64);
}

#[tokio::test]
async fn only_secrets_in_the_folder_are_read() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("secrets");
    std::fs::create_dir(&inner).unwrap();
    std::fs::set_permissions(&inner, std::fs::Permissions::from_mode(0o755)).unwrap();
    let outside = secret(folder.path(), "outside", "s3cret-outside");
    let inside = secret(&inner, "inside", "s3cret-inside");
    std::os::unix::fs::symlink(&outside.0, inner.join("link")).unwrap();
    let link = SecretFile(inner.join("link"));
    let missing = SecretFile(inner.join("missing"));
    let folders = ReceiverFolders { commands: Vec::new(), secrets: vec![inner] };
    let sender = Sender::within(folders.clone());
    let files = ReceiverFiles::within(folders);
    let mut server = HttpServer::plain(vec![Answer::status(200)]).await;
    // Every kind of receiver with a secret.
    let receivers = |file: &SecretFile| {
        let some = Some(file.clone());
        let email = json!({
            "server": server.address.to_string(), "from": "a@b.example", "to": ["c@d.example"],
            "tls": "none", "user": "farrier", "password": file,
        });
        [
            Receiver::Webhook(WebhookReceiver {
                bearer_token: some.clone(),
                ..webhook(server.url("/"))
            }),
            Receiver::Webhook(WebhookReceiver { hmac_key: some, ..webhook(server.url("/")) }),
            Receiver::Webhook(WebhookReceiver {
                url: WebhookUrl::Secret(file.clone()),
                ..webhook(String::new())
            }),
            Receiver::Slack(SlackReceiver { url: file.clone(), template: None, ca: None }),
            Receiver::Pagerduty(PagerdutyReceiver {
                routing_key: file.clone(),
                url: Some(server.url("/")),
                ca: None,
            }),
            serde_json::from_value(json!({ "email": email })).unwrap(),
            serde_json::from_value(json!({
                "alertmanager": { "url": server.url("/"), "bearer_token": file },
            }))
            .unwrap(),
        ]
    };
    for file in [&outside, &link] {
        for receiver in receivers(file) {
            let err = sender.deliver(&receiver, &notification()).await.unwrap_err();
            assert!(matches!(err, DeliveryError::Folder(_)) && err.is_retryable(), "{err}");
            let problems = farrier_notify::check(&receiver, &files);
            assert!(problems.len() == 1 && problems[0].is_error(), "{receiver:?}: {problems:?}");
            assert!(problems[0].to_string().contains("--notify-secrets"), "{}", problems[0]);
        }
    }
    assert_eq!(server.waiting(), 0, "nothing was sent");
    for receiver in receivers(&missing) {
        let problems = farrier_notify::check(&receiver, &files);
        assert!(problems.len() == 1 && !problems[0].is_error(), "it may come: {problems:?}");
    }
    let [allowed, ..] = receivers(&inside);
    assert!(farrier_notify::check(&allowed, &files).is_empty());
    sender.deliver(&allowed, &notification()).await.unwrap();
    assert_eq!(server.next().await.header("authorization"), "Bearer s3cret-inside");
}
