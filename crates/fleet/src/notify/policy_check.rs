//! Problems of a notification policy, as typed values.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use super::policy::{AlertMatch, NotificationPolicy, NotificationRoute};
use super::receiver::{Receiver, SmtpTls, WebhookUrl};
use crate::health::Severity;

/// Maximum number of receivers, and of routes.
const ENTRIES_MAX: usize = 200;
/// Longest name of a receiver or a route.
const NAME_MAX: usize = 63;
/// One week. A longer interval is a mistake in the unit.
const INTERVAL_S_MAX: u32 = 7 * 86_400;

/// Something wrong with a notification policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotificationProblem {
    /// The field, such as `notifications.routes[0].receivers`.
    pub at: String,
    pub kind: ProblemKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProblemKind {
    /// No receiver has this name.
    UnknownReceiver(String),
    /// A route or an escalation without receivers.
    NoReceiver,
    /// No route uses this receiver.
    UnusedReceiver,
    /// No route takes every fatal alert.
    NoRouteForFatal,
    /// An earlier route takes everything that this route would match.
    UnreachableRoute {
        earlier: String,
    },
    DuplicateRoute(String),
    /// Not a name: 1 to 63 letters, digits, `.`, `_` and `-`.
    InvalidName(String),
    TooMany {
        found: usize,
        maximum: usize,
    },
    InvalidInterval {
        found: u32,
        minimum: u32,
        maximum: u32,
    },
    EmptyCode,
    EmptyArgv,
    RelativePath(PathBuf),
    InvalidUrl(String),
    /// An e-mail without a recipient.
    NoRecipient,
    /// A user without a password, or the reverse.
    HalfCredentials,
    /// SMTP without encryption to another machine.
    PlaintextMail(String),
    InvalidServer(String),
}

impl NotificationProblem {
    /// Whether the policy may not be set. The other problems are warnings.
    pub fn is_error(&self) -> bool {
        !matches!(
            self.kind,
            ProblemKind::NoRouteForFatal
                | ProblemKind::UnreachableRoute { .. }
                | ProblemKind::UnusedReceiver
        )
    }
}

impl fmt::Display for NotificationProblem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.at, self.kind)
    }
}

impl fmt::Display for ProblemKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownReceiver(name) => write!(out, "there is no receiver `{name}`"),
            Self::NoReceiver => out.write_str("expected at least one receiver"),
            Self::UnusedReceiver => out.write_str("no route uses this receiver"),
            Self::NoRouteForFatal => {
                out.write_str("no route takes every fatal alert, so some have no receiver")
            }
            Self::UnreachableRoute { earlier } => {
                write!(out, "route `{earlier}` takes every alert that this route matches")
            }
            Self::DuplicateRoute(name) => write!(out, "another route has the name `{name}`"),
            Self::InvalidName(name) => write!(
                out,
                "expected a name of 1 to {NAME_MAX} letters, digits, `.`, `_` and `-`, found `{name}`"
            ),
            Self::TooMany { found, maximum } => {
                write!(out, "expected at most {maximum} entries, found {found}")
            }
            Self::InvalidInterval { found, minimum, maximum } => {
                write!(out, "expected {minimum} to {maximum} seconds, found {found}")
            }
            Self::EmptyCode => out.write_str("expected a code, such as `gpu.xid` or `nic.*`"),
            Self::EmptyArgv => out.write_str("expected a program"),
            Self::RelativePath(path) => {
                write!(out, "expected an absolute path, found `{}`", path.display())
            }
            Self::InvalidUrl(url) => {
                write!(out, "expected a URL with `http://` or `https://`, found `{url}`")
            }
            Self::NoRecipient => out.write_str("expected at least one address"),
            Self::HalfCredentials => out.write_str("expected both `user` and `password`, or none"),
            Self::PlaintextMail(server) => write!(
                out,
                "mail to `{server}` would be sent without encryption; only a loopback address may do so"
            ),
            Self::InvalidServer(server) => write!(out, "expected `host:port`, found `{server}`"),
        }
    }
}

impl NotificationPolicy {
    /// Every problem, errors and warnings, that the policy alone shows. Templates and files are
    /// checked by the crate that delivers.
    pub fn problems(&self) -> Vec<NotificationProblem> {
        let mut found = Problems::default();
        found.count("receivers", self.receivers.len());
        found.count("routes", self.routes.len());
        for (name, receiver) in &self.receivers {
            let at = format!("receivers.{name}");
            found.name(&at, name);
            found.receiver(&at, receiver);
        }
        if let Some(url) = &self.runbook_base_url {
            found.url("runbook_base_url", url);
        }
        for (index, route) in self.routes.iter().enumerate() {
            let at = format!("routes[{index}]");
            found.route(&at, route, self);
            let earlier = &self.routes[..index];
            if earlier.iter().any(|other| other.name == route.name) {
                found.add(&at, ProblemKind::DuplicateRoute(route.name.clone()));
            }
            let taken = earlier
                .iter()
                .find(|other| !other.continues && other.matches.covers(&route.matches));
            if let Some(other) = taken {
                found.add(&at, ProblemKind::UnreachableRoute { earlier: other.name.clone() });
            }
        }
        self.check_use(&mut found);
        found.0
    }

    fn check_use(&self, found: &mut Problems) {
        let fatal = AlertMatch { min_severity: Some(Severity::Fatal), ..AlertMatch::default() };
        let takes_fatal = self.routes.iter().any(|route| route.matches.covers(&fatal));
        if !takes_fatal && !self.is_empty() {
            found.add("routes", ProblemKind::NoRouteForFatal);
        }
        let escalations = self.routes.iter().filter_map(|route| route.escalate.as_ref());
        let used: BTreeSet<&String> = self
            .routes
            .iter()
            .flat_map(|route| &route.receivers)
            .chain(escalations.flat_map(|escalation| &escalation.receivers))
            .collect();
        for name in self.receivers.keys().filter(|name| !used.contains(name)) {
            found.add(&format!("receivers.{name}"), ProblemKind::UnusedReceiver);
        }
    }
}

#[derive(Default)]
struct Problems(Vec<NotificationProblem>);

impl Problems {
    fn add(&mut self, at: &str, kind: ProblemKind) {
        self.0.push(NotificationProblem { at: format!("notifications.{at}"), kind });
    }

    fn count(&mut self, at: &str, found: usize) {
        if found > ENTRIES_MAX {
            self.add(at, ProblemKind::TooMany { found, maximum: ENTRIES_MAX });
        }
    }

    fn name(&mut self, at: &str, name: &str) {
        let allowed =
            |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-');
        if !(1..=NAME_MAX).contains(&name.len()) || !name.chars().all(allowed) {
            self.add(at, ProblemKind::InvalidName(name.chars().take(NAME_MAX).collect()));
        }
    }

    fn interval(&mut self, at: &str, found: u32, minimum: u32) {
        if !(minimum..=INTERVAL_S_MAX).contains(&found) {
            let kind = ProblemKind::InvalidInterval { found, minimum, maximum: INTERVAL_S_MAX };
            self.add(at, kind);
        }
    }

    fn url(&mut self, at: &str, url: &str) {
        let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
        if rest.is_none_or(|rest| rest.is_empty() || rest.contains(char::is_whitespace)) {
            self.add(at, ProblemKind::InvalidUrl(url.to_owned()));
        }
    }

    fn absolute(&mut self, at: &str, path: &std::path::Path) {
        if !path.is_absolute() {
            self.add(at, ProblemKind::RelativePath(path.to_owned()));
        }
    }

    fn route(&mut self, at: &str, route: &NotificationRoute, policy: &NotificationPolicy) {
        self.name(&format!("{at}.name"), &route.name);
        self.receivers(&format!("{at}.receivers"), &route.receivers, policy);
        // A group without a wait sends its first alert alone, which may be intended.
        self.interval(&format!("{at}.group_wait_s"), route.group_wait_s, 0);
        self.interval(&format!("{at}.group_interval_s"), route.group_interval_s, 1);
        self.interval(&format!("{at}.repeat_interval_s"), route.repeat_interval_s, 60);
        if let Some(escalation) = &route.escalate {
            self.interval(&format!("{at}.escalate.after_s"), escalation.after_s, 1);
            self.receivers(&format!("{at}.escalate.receivers"), &escalation.receivers, policy);
        }
        if route.matches.codes.iter().any(|code| code.0.trim().is_empty()) {
            self.add(&format!("{at}.match.codes"), ProblemKind::EmptyCode);
        }
    }

    fn receivers(&mut self, at: &str, names: &[String], policy: &NotificationPolicy) {
        if names.is_empty() {
            self.add(at, ProblemKind::NoReceiver);
        }
        for name in names.iter().filter(|name| !policy.receivers.contains_key(*name)) {
            self.add(at, ProblemKind::UnknownReceiver(name.clone()));
        }
    }

    fn receiver(&mut self, at: &str, receiver: &Receiver) {
        let mut files: Vec<(&str, &std::path::Path)> = Vec::new();
        match receiver {
            Receiver::Alertmanager(receiver) => {
                self.url(&format!("{at}.url"), &receiver.url);
                files.extend(receiver.bearer_token.iter().map(|file| ("bearer_token", &*file.0)));
                files.extend(receiver.ca.iter().map(|file| ("ca", &**file)));
            }
            Receiver::Webhook(receiver) => {
                match &receiver.url {
                    WebhookUrl::Public(url) => self.url(&format!("{at}.url"), url),
                    WebhookUrl::Secret(file) => files.push(("url_file", &file.0)),
                }
                files.extend(receiver.bearer_token.iter().map(|file| ("bearer_token", &*file.0)));
                files.extend(receiver.hmac_key.iter().map(|file| ("hmac_key", &*file.0)));
                files.extend(receiver.ca.iter().map(|file| ("ca", &**file)));
            }
            Receiver::Slack(receiver) => {
                files.push(("url", &receiver.url.0));
                files.extend(receiver.ca.iter().map(|file| ("ca", &**file)));
            }
            Receiver::Pagerduty(receiver) => {
                if let Some(url) = &receiver.url {
                    self.url(&format!("{at}.url"), url);
                }
                files.push(("routing_key", &receiver.routing_key.0));
                files.extend(receiver.ca.iter().map(|file| ("ca", &**file)));
            }
            Receiver::Email(receiver) => {
                if receiver.to.is_empty() {
                    self.add(&format!("{at}.to"), ProblemKind::NoRecipient);
                }
                if receiver.user.is_some() != receiver.password.is_some() {
                    self.add(at, ProblemKind::HalfCredentials);
                }
                self.mail_server(&format!("{at}.server"), &receiver.server, receiver.tls);
                files.extend(receiver.password.iter().map(|file| ("password", &*file.0)));
                files.extend(receiver.ca.iter().map(|file| ("ca", &**file)));
            }
            Receiver::Command(receiver) => {
                match receiver.argv.first() {
                    None => self.add(&format!("{at}.argv"), ProblemKind::EmptyArgv),
                    Some(program) => {
                        self.absolute(&format!("{at}.argv"), std::path::Path::new(program));
                    }
                }
                let (found, maximum) = (receiver.timeout_s, 600);
                if !(1..=maximum).contains(&found) {
                    let kind = ProblemKind::InvalidInterval { found, minimum: 1, maximum };
                    self.add(&format!("{at}.timeout_s"), kind);
                }
            }
        }
        for (field, path) in files {
            self.absolute(&format!("{at}.{field}"), path);
        }
    }

    fn mail_server(&mut self, at: &str, server: &str, tls: SmtpTls) {
        let host = server.rsplit_once(':').filter(|(host, port)| {
            !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
        });
        let Some((host, _)) = host else {
            return self.add(at, ProblemKind::InvalidServer(server.to_owned()));
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let is_loopback = host == "localhost"
            || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
        if tls == SmtpTls::None && !is_loopback {
            self.add(at, ProblemKind::PlaintextMail(server.to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn problems(policy: Value) -> Vec<NotificationProblem> {
        let policy: NotificationPolicy = serde_json::from_value(policy).unwrap();
        policy.problems()
    }

    fn with_routes(routes: &Value) -> Value {
        json!({
            "receivers": { "ops": { "webhook": { "url": "http://127.0.0.1:1/" } } },
            "routes": routes,
        })
    }

    #[test]
    fn an_empty_policy_and_a_complete_one_have_no_problem() {
        assert_eq!(problems(json!({})), []);
        let complete = with_routes(&json!([{ "name": "all", "receivers": ["ops"] }]));
        assert_eq!(problems(complete), []);
    }

    #[test]
    fn every_mistake_in_a_route_is_found() {
        let invalid = [
            (json!([{ "name": "a", "receivers": [] }]), "routes[0].receivers"),
            (json!([{ "name": "a", "receivers": ["none"] }]), "routes[0].receivers"),
            (json!([{ "name": "a b", "receivers": ["ops"] }]), "routes[0].name"),
            (
                json!([{ "name": "a", "receivers": ["ops"], "group_interval_s": 0 }]),
                "routes[0].group_interval_s",
            ),
            (
                json!([{ "name": "a", "receivers": ["ops"], "repeat_interval_s": 0 }]),
                "routes[0].repeat_interval_s",
            ),
            (
                json!([{ "name": "a", "receivers": ["ops"], "escalate": { "after_s": 0, "receivers": ["ops"] } }]),
                "routes[0].escalate.after_s",
            ),
            (
                json!([{ "name": "a", "receivers": ["ops"], "match": { "codes": [""] } }]),
                "routes[0].match.codes",
            ),
        ];
        for (routes, at) in invalid {
            let found = problems(with_routes(&routes));
            let at = format!("notifications.{at}");
            assert!(
                found.iter().any(|problem| problem.at == at && problem.is_error()),
                "{routes}: {found:?}"
            );
        }
    }

    #[test]
    fn every_mistake_in_a_receiver_is_found() {
        let invalid = [
            (json!({ "command": { "argv": [] } }), "argv"),
            (json!({ "command": { "argv": ["notify.sh"] } }), "argv"),
            (json!({ "command": { "argv": ["/bin/x"], "timeout_s": 0 } }), "timeout_s"),
            (json!({ "webhook": { "url": "ftp://x" } }), "url"),
            (json!({ "webhook": { "url_file": "secret" } }), "url_file"),
            (json!({ "slack": { "url": "secret" } }), "url"),
            (json!({ "pagerduty": { "routing_key": "key" } }), "routing_key"),
            (json!({ "email": { "server": "mail", "from": "a@b", "to": ["c@d"] } }), "server"),
            (json!({ "email": { "server": "mail:25", "from": "a@b", "to": [] } }), "to"),
            (
                json!({ "email": { "server": "mail:25", "from": "a@b", "to": ["c@d"], "tls": "none" } }),
                "server",
            ),
        ];
        for (receiver, field) in invalid {
            let found = problems(json!({
                "receivers": { "ops": receiver },
                "routes": [{ "name": "all", "receivers": ["ops"] }],
            }));
            let at = format!("notifications.receivers.ops.{field}");
            assert!(
                found.iter().any(|problem| problem.at == at && problem.is_error()),
                "{at}: {found:?}"
            );
        }
        let loopback = json!({
            "receivers": { "ops": { "email": { "server": "[::1]:25", "from": "a@b", "to": ["c@d"], "tls": "none" } } },
            "routes": [{ "name": "all", "receivers": ["ops"] }],
        });
        assert_eq!(problems(loopback), []);
    }

    #[test]
    fn routes_that_lose_alerts_are_warnings() {
        let kinds = |routes| -> Vec<ProblemKind> {
            let found = problems(with_routes(&routes));
            assert!(found.iter().all(|problem| !problem.is_error()), "{found:?}");
            found.into_iter().map(|problem| problem.kind).collect()
        };
        let only_nic =
            json!([{ "name": "nic", "receivers": ["ops"], "match": { "codes": ["nic.*"] } }]);
        assert_eq!(kinds(only_nic), [ProblemKind::NoRouteForFatal]);
        let shadowed = json!([
            { "name": "all", "receivers": ["ops"] },
            { "name": "nic", "receivers": ["ops"], "match": { "codes": ["nic.*"] } },
        ]);
        let unreachable = ProblemKind::UnreachableRoute { earlier: "all".to_owned() };
        assert_eq!(kinds(shadowed), [unreachable]);
        let continued = json!([
            { "name": "all", "receivers": ["ops"], "continue": true },
            { "name": "nic", "receivers": ["ops"], "match": { "codes": ["nic.*"] } },
        ]);
        assert_eq!(kinds(continued), []);
        assert_eq!(kinds(json!([])), [ProblemKind::NoRouteForFatal, ProblemKind::UnusedReceiver]);
    }
}
