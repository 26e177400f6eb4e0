//! Hostile texts: a cause, an action or a key may come from a kernel log or another program. They
//! must not change the structure of any message, and no template may crash or hang.

use farrier_fleet::health::Severity;
use farrier_fleet::notify::{
    AffectedNode, EmailReceiver, Notification, NotificationKind, NotificationStatus, SecretFile,
    SlackReceiver, SmtpTls, WebhookReceiver, WebhookUrl,
};
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::Value;

use crate::receiver::{email, pagerduty, slack, webhook};
use crate::template::{Markup, render};
use crate::text::{self, CleanNotification};

fn notification(texts: &[String]) -> CleanNotification {
    let text = |index: usize| texts[index % texts.len()].clone();
    CleanNotification::new(&Notification {
        key: text(0),
        group: text(1),
        status: NotificationStatus::Firing,
        severity: Severity::Fatal,
        kind: NotificationKind::Finding,
        code: text(2),
        cause: text(3),
        nodes: vec![AffectedNode {
            node: "gpu-7".parse().unwrap(),
            pool: None,
            site: None,
            tenant: None,
            part: Some(text(4)),
        }],
        nodes_total: 1,
        action_taken: Some(text(5)),
        action_needed: Some(text(6)),
        runbook_url: Some(text(7)),
        started: Timestamp::UNIX_EPOCH,
        at: Timestamp::UNIX_EPOCH,
    })
}

fn webhook(template: Option<String>) -> WebhookReceiver {
    WebhookReceiver {
        url: WebhookUrl::Public("http://localhost/".to_owned()),
        template,
        content_type: None,
        hmac_key: None,
        bearer_token: None,
        ca: None,
    }
}

fn is_hostile(char: char) -> bool {
    char.is_control() || matches!(char, '\u{202e}' | '\u{200b}' | '\u{ad}' | '\u{e0041}')
}

/// Adds all texts in a JSON value.
fn add_texts(json: &Value, texts: &mut Vec<String>) {
    match json {
        Value::String(text) => texts.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| add_texts(item, texts)),
        Value::Object(map) => map.values().for_each(|value| add_texts(value, texts)),
        _ => {}
    }
}

/// Texts with the characters that have a meaning in headers, JSON, mrkdwn and templates.
fn hostile() -> impl Strategy<Value = Vec<String>> {
    let text = prop_oneof![
        any::<String>(),
        "[\\x00-\\x1f\"\\\\<>&{}%|*_`@:\r\n\u{202e}\u{200b}\u{ad}\u{e0041}\u{1f525}a-c .]{0,400}",
        Just("x\r\nBcc: evil@example.org\r\n\r\n.\r\n".to_owned()),
        Just("<!channel> <https://evil.example|here>".to_owned()),
        Just("{{ key }}{% for x in range(9) %}".to_owned()),
    ];
    proptest::collection::vec(text, 8)
}

proptest! {
    #[test]
    fn texts_are_one_short_line(texts in hostile()) {
        let notification = notification(&texts);
        for line in [text::subject(&notification), text::text(&notification)] {
            let is_clean = !line.chars().any(|char| char.is_control() || char == '\u{202e}');
            prop_assert!(is_clean, "{line:?}");
            prop_assert!(line.chars().count() < 2_000);
        }
    }

    #[test]
    fn a_json_template_stays_json(texts in hostile()) {
        let notification = notification(&texts);
        let template = r#"{"a": {{ cause }}, "b": {{ text }}, "c": {{ nodes }}, "d": {{ key }}}"#;
        let json: Value = serde_json::from_str(&render(template, Markup::Json, &notification).unwrap()).unwrap();
        prop_assert_eq!(json.as_object().unwrap().len(), 4);
        prop_assert_eq!(json["d"].as_str().unwrap(), notification.key.as_str());
        prop_assert_eq!(json["b"].as_str().unwrap(), text::text(&notification));
    }

    #[test]
    fn no_payload_has_a_hidden_character(texts in hostile()) {
        let notification = notification(&texts);
        let template = "{{ nodes[0].part }}{{ code }}{{ cause }}{{ key }}{{ group }}{{ action_taken }}x";
        let url = SecretFile("/slack.url".into());
        let slack = SlackReceiver { url, template: None, ca: None };
        let mut sent = vec![render(template, Markup::Plain, &notification).unwrap()];
        let json = webhook::body(&webhook(None), &notification).unwrap();
        let slack = slack::body(&slack, &notification).unwrap();
        for json in [slack, pagerduty::event("key", &notification), json.parse().unwrap()] {
            add_texts(&json, &mut sent);
        }
        for text in sent {
            prop_assert!(!text.chars().any(is_hostile), "{text:?}");
        }
    }

    #[test]
    fn a_slack_text_has_only_the_markup_of_its_template(texts in hostile()) {
        let template = "<{{ runbook_url }}|runbook> {{ text }} {{ code }}";
        let text = render(template, Markup::Slack, &notification(&texts)).unwrap();
        prop_assert_eq!(text.matches('<').count(), 1);
        prop_assert_eq!(text.matches('>').count(), 1);
    }

    #[test]
    fn an_email_has_exactly_its_own_headers(texts in hostile()) {
        let receiver = EmailReceiver {
            server: "localhost:25".to_owned(),
            from: "farrier@fleet.example".to_owned(),
            to: vec!["oncall@fleet.example".to_owned()],
            tls: SmtpTls::None,
            user: None,
            password: None,
            template: None,
            ca: None,
        };
        let message = email::formatted(&receiver, &notification(&texts)).unwrap();
        let message = String::from_utf8(message).unwrap();
        prop_assert!(message.is_ascii());
        let (head, _) = message.split_once("\r\n\r\n").unwrap();
        // Lines that continue a header start with a space.
        let names = head.split("\r\n").filter(|line| !line.starts_with(' '));
        let names: Vec<&str> = names.map(|line| line.split(':').next().unwrap()).collect();
        let expected = [
            "From", "Date", "Message-ID", "In-Reply-To", "References", "Subject",
            "Auto-Submitted", "Content-Type", "To", "Content-Transfer-Encoding",
        ];
        prop_assert_eq!(names.len(), expected.len(), "{}", head);
        for name in expected {
            prop_assert!(names.contains(&name), "{} {}", name, head);
        }
    }

    #[test]
    fn no_template_crashes(template in prop_oneof![
        any::<String>(),
        "[{}%|a-z0-9_.()\\[\\]'\"* ]{0,200}",
        "\\{\\{ [a-z_.|()0-9'*~ ]{0,60} \\}\\}",
    ]) {
        let notification = notification(&["text".to_owned()]);
        for markup in [Markup::Json, Markup::Slack, Markup::Plain] {
            let _ = render(&template, markup, &notification);
        }
        let _ = webhook::body(&webhook(Some(template)), &notification);
    }
}

#[test]
fn a_template_cannot_read_files_run_forever_or_render_too_much() {
    let notification = notification(&["text".to_owned()]);
    for template in [
        "{% include '/etc/passwd' %}",
        "{% import '/etc/passwd' as x %}",
        "{% extends '/etc/passwd' %}",
        "{% for x in range(100000) %}{% for y in range(100000) %}{% endfor %}{% endfor %}",
        "{% for x in range(9999) %}aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa{% endfor %}",
        "{{ undefined }}",
        "{{ nodes[9].node }}",
        "{{ cause",
        "   ",
    ] {
        for markup in [Markup::Json, Markup::Slack, Markup::Plain] {
            assert!(render(template, markup, &notification).is_err(), "{markup:?} {template}");
        }
    }
    let long = "a".repeat(17 << 10);
    assert!(render(&long, Markup::Plain, &notification).is_err());
    // A value in quotation marks is a value twice.
    assert!(render("{\"a\": \"{{ text }}\"}", Markup::Json, &notification).is_err());
}

#[test]
fn texts_that_hide_characters_are_cleaned() {
    let hidden =
        "a\u{61c}\u{ad}\u{180e}\u{115f}\u{3164}\u{fff9}\u{e0041}\u{e0020}\u{2800}\u{fe0f}b";
    let notification = notification(&[format!("{hidden}\n\x1b[31m\u{202e}c")]);
    let part = notification.nodes[0].part.as_deref();
    for text in [notification.code.as_str(), &notification.cause, part.unwrap()] {
        assert_eq!(text, "ab [31mc");
    }
    // Two keys must not become one.
    assert_eq!(notification.key.len(), 64);
    assert_ne!(notification.key, self::notification(&["ab [31mc".to_owned()]).key);
}

/// Templates that once took the memory or the stack of the server.
fn attacks() -> Vec<String> {
    let nested = |open: &str, inner: &str, close: &str, levels: usize| {
        format!("{}{inner}{}", open.repeat(levels), close.repeat(levels))
    };
    // About 29 KiB in a few characters.
    let long = ["text"; 19].join("~");
    vec![
        format!("{{{{ '{}'|list|map('replace', '', {long})|list|length }}}}", "t".repeat(7_000)),
        format!("{{{{ '{}'|replace('', {long})|length }}}}", "t".repeat(14_000)),
        format!("{{{{ '{}'|list|join({long})|length }}}}", "t".repeat(7_000)),
        "{% set ns=namespace(a='ab') %}{% for i in range(40) %}{% set ns.a=ns.a|list|join(ns.a) %}{% endfor %}{{ ns.a|length }}".to_owned(),
        "{% set a='ab' %}{% set a=a~a %}{{ a }}".to_owned(),
        "{% set a %}{{ text }}{% endset %}{{ a }}".to_owned(),
        "{{ 'a'|indent(2000000000) }}".to_owned(),
        "{{ '%1000000000d'|format(1) }}".to_owned(),
        "{{ 'a' * 100000000 }}".to_owned(),
        "{{ 9 ** 9 ** 9 }}".to_owned(),
        "{{ [text] * 100000000 }}".to_owned(),
        "{{ nodes|tojson(1000000000) }}".to_owned(),
        "{{ nodes|tojson(indent=1000000000) }}".to_owned(),
        "{{ nodes|batch(1000000000, text)|list }}".to_owned(),
        "{{ nodes|pprint }}".to_owned(),
        "{{ range(10000)|join(text) }}".to_owned(),
        "{{ [[text, text]] }}".to_owned(),
        "{% for a in [text ~ text] %}{{ a }}{% endfor %}".to_owned(),
        "{% with a = text ~ text %}{{ a }}{% endwith %}".to_owned(),
        "{% macro a(x) %}{{ x }}{% endmacro %}{{ a(text) }}".to_owned(),
        "{% filter upper %}{{ text }}{% endfilter %}".to_owned(),
        "{% for n in nodes recursive %}{{ loop([n]) }}{% endfor %}".to_owned(),
        "{{ text[::-9223372036854775808] }}".to_owned(),
        "{{ dict(a=text) }}".to_owned(),
        "{{ {'a': text} }}".to_owned(),
        "{{ text|replace(*[text, text]) }}".to_owned(),
        format!("{{{{ {} }}}}", ["text|replace('e', text)"; 30].join("|").replace("|text", "")),
        format!("{{{{ text{} }}}}", "|replace('', 'aaaaaaaaaaaaaaaa')".repeat(40)),
        format!("{{{{ text{} }}}}", "|list|join('aaaaaaaaaaaaaaaaaaaa')".repeat(40)),
        format!("{{{{ text|list|map('replace', 't', '{}')|list|length }}}}", "x".repeat(10_000)),
        format!("{{{{ text{} }}}}", "|list|string".repeat(40)),
        format!("{{{{ ('\"'|string){} }}}}", "|tojson".repeat(60)),
        format!("{{{{ ('&'|string){} }}}}", "|list|string|list".repeat(60)),
        nested("{% for a in [[a, a]] %}", "{{ a }}", "{% endfor %}", 30),
        format!("{{{{ {}text{} }}}}", "[[".repeat(40), "]~'']".repeat(40)),
        format!("{{{{ {} }}}}", ["text"; 2_000].join("~")),
        format!("{{{{ {} }}}}", ["1"; 8_000].join("-")),
        format!("{{{{ text{} }}}}", ".a".repeat(8_000)),
        format!("{{{{ text{} }}}}", "|e".repeat(8_000)),
        format!("{{{{ text{} }}}}", "[0]".repeat(5_000)),
        format!("{{{{ {}text }}}}", "not ".repeat(4_000)),
        format!("{{{{ {}text }}}}", "-".repeat(16_000)),
        format!("{{{{ {}text{} }}}}", "(".repeat(8_000), ")".repeat(8_000)),
        format!("{{{{ {}1 }}}}", "1 if 1 else ".repeat(1_300)),
        "{% if text %}".repeat(1_200),
        nested("{% if 1 %}", "x", "{% endif %}", 600),
    ]
}

/// With [`attacks`] in its environment, this test is the child of the next one.
const ATTACKED: &str = "FARRIER_TEST_ATTACKED";

#[test]
fn attacked_child() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    if std::env::var_os(ATTACKED).is_none() {
        return;
    }
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    let bytes = Some(pages * rustix::param::page_size() as u64 + (320 << 20));
    setrlimit(Resource::As, Rlimit { current: bytes, maximum: bytes }).unwrap();
    let notification = notification(&["text \"\\&< ".repeat(40)]);
    for attack in attacks() {
        for markup in [Markup::Json, Markup::Slack, Markup::Plain] {
            let rendered = render(&attack, markup, &notification);
            let start: String = attack.chars().take(120).collect();
            assert!(rendered.is_err(), "{markup:?} {start}");
        }
    }
}

/// An allocation that fails ends the process, and so does a stack that overflows.
#[test]
fn no_template_takes_more_memory_than_a_server_has() {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "hostile_tests::attacked_child", "--nocapture"])
        .env(ATTACKED, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} {text}", output.status);
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}

#[test]
fn useful_templates_work() {
    let notification = notification(&["some text".to_owned()]);
    for (template, expected) in [
        ("{{ nodes|map(attribute='node')|join(', ') }}", "gpu-7"),
        ("{{ severity|upper }}: {{ cause[:4] }}", "FATAL: some"),
        (
            "{% for n in nodes %}{{ loop.index }}/{{ nodes|length }} {{ n.node }}{% endfor %}",
            "1/1 gpu-7",
        ),
        ("{{ severity ~ ': ' ~ cause|replace('some', 'any') }}", "fatal: any text"),
        ("{{ 'page' if severity in ['fatal', 'critical'] else 'mail' }}", "page"),
        ("{{ nodes[0].pool|default('no pool', true) }}", "no pool"),
        (
            "{% for n in nodes|sort(attribute='node') if n.part %}{{ n.part }}{% endfor %}",
            "some text",
        ),
        ("{% if nodes_total > 1 %}many{% elif nodes_total == 1 %}one{% endif %}", "one"),
        ("{{ [action_taken, action_needed]|select|join('; ') }}", "some text; some text"),
        ("{{ nodes|selectattr('part')|list|length + 1 }}", "2"),
        ("{{ missing|default('none') }}", "none"),
        ("{{ runbook_url is none }} {{ cause is startingwith('some') }}", "False True"),
    ] {
        assert_eq!(render(template, Markup::Plain, &notification).unwrap(), expected, "{template}");
    }
}

/// The templates in `docs/receivers.md` pass the check of a configuration.
#[test]
fn the_documented_templates_are_valid() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/receivers.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    let (_, section) = docs.split_once("## Templates").unwrap();
    let (_, section) = section.split_once("```\n").unwrap();
    let (examples, _) = section.split_once("```").unwrap();
    assert_eq!(examples.lines().count(), 2, "{examples}");
    for template in examples.lines() {
        let content_type = (!template.starts_with("{\"")).then(|| "text/plain".to_owned());
        let receiver = WebhookReceiver { content_type, ..webhook(Some(template.to_owned())) };
        let problems = crate::check(
            &farrier_fleet::notify::Receiver::Webhook(receiver),
            &crate::ReceiverFiles::Any,
        );
        assert!(problems.is_empty(), "{template}: {}", problems[0]);
    }
}
