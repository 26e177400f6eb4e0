//! The table of routes. It has the permission, parameters, body, answer and handler of each path.
//! The OpenAPI document is generated from the table.

use std::future::Future;
use std::pin::Pin;

use farrier_fleet::fleet::ledger::LedgerSpec;
use farrier_fleet::fleet::{OrderKind, Permission, Policy};
use farrier_wire::rest::{
    AcknowledgeRequest, ArtifactList, DiagRequest, DomainFaultList, DomainList,
    DomainRepairedRequest, Done, EmptyRequest, EventPage, FindingPage, FreezeList, FreezeRequest,
    HoldRequest, LocationRequest, Matrix, Me, MuteList, MuteRequest, NodeDetail, NodeExplanation,
    NodePage, NotificationQueue, NotificationTestRequest, NotificationTestResult, PolicyView,
    QueuedNotificationsChanged, QueuedNotificationsRequest, ReceiverProblemList, RepairedRequest,
    RetireRequest, Schemas, TokenCreated, TokenList, TokenRequest, TuneRequest, UnfreezeRequest,
    UnmuteRequest, VerifyRequest,
};
use hyper::Method;
use serde_json::Value;

use super::events::EVENT_KINDS;
use super::failure::Failure;
use super::query::{ListItem, Parameter, ParameterKind, Params};
use super::reply::{self, Reply};
use super::{
    Call, artifacts, events, export, findings, fleet, health, matrix, metrics, nodes, notify,
    openapi, report, requests, stream, tokens,
};

type HandlerFuture = Pin<Box<dyn Future<Output = Result<Reply, Failure>> + Send>>;

pub(super) type SchemaFn = fn(&mut Schemas) -> Value;

#[derive(Clone, Copy)]
pub(super) enum AnswerKind {
    Json(SchemaFn),
    Created(SchemaFn),
    /// An answer with this media type.
    Other(&'static str),
}

pub(super) struct Route {
    pub(super) method: Method,
    /// Segments in braces are parameters.
    pub(super) path: &'static str,
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    /// `None` if no token is needed.
    pub(super) permission: Option<Permission>,
    pub(super) query: &'static [Parameter],
    pub(super) body: Option<SchemaFn>,
    pub(super) answer: AnswerKind,
    /// Whether the route requests an order. Such a request can conflict with a pending order.
    pub(super) requests_order: bool,
    pub(super) run: fn(Call) -> HandlerFuture,
}

const fn parameter(name: &'static str, kind: ParameterKind, about: &'static str) -> Parameter {
    Parameter { name, about, kind }
}

const NUMBER: ParameterKind = ParameterKind::Number { min: 0, max: i64::MAX as u64 };
const LIMIT: Parameter = parameter(
    "limit",
    ParameterKind::Number { min: 1, max: 500 },
    "maximum number of items per page",
);
const CURSOR: Parameter = parameter("cursor", ParameterKind::Text, "`next` of the previous page");
const NAMES: ParameterKind = ParameterKind::ListOf(ListItem::Name);
const TEXTS: ParameterKind = ParameterKind::ListOf(ListItem::Text);
const PHASES: ParameterKind = ParameterKind::ListOf(ListItem::OneOf(&[
    "joining",
    "in-service",
    "suspect",
    "quarantined",
    "repairing",
    "verifying",
    "held",
]));
const SEVERITY: ParameterKind = ParameterKind::OneOf(&["info", "warning", "critical", "fatal"]);
const POOL: Parameter = parameter("pool", NAMES, "only these pools");
const RACK: Parameter = parameter("rack", NAMES, "only these racks");
const LEAF: Parameter = parameter("leaf", NAMES, "only these leaf switches");
const SITE: Parameter = parameter("site", NAMES, "only these sites");
const PHASE: Parameter = parameter("phase", PHASES, "only these phases");
const NODE: Parameter = parameter("node", ParameterKind::Name, "only this node");
const KIND: Parameter = parameter("kind", ParameterKind::OneOf(EVENT_KINDS), "only this kind");
const BY: Parameter = parameter(
    "by",
    ParameterKind::Text,
    "only by this user; `farrier` is the server, `node NAME` a node",
);
const EVENT_SEVERITY: Parameter =
    parameter("severity", SEVERITY, "only reports of findings of at least this severity");
const AFTER: Parameter = parameter("after", NUMBER, "entries after this one, oldest first");
const BEFORE: Parameter = parameter("before", NUMBER, "entries before this one, newest first");

const NODES: &[Parameter] = &[
    parameter("node", NAMES, "only these nodes"),
    POOL,
    RACK,
    LEAF,
    SITE,
    PHASE,
    parameter("gpu", TEXTS, "only GPUs whose name contains one of these, or `unknown`"),
    parameter("driver", TEXTS, "only these driver versions or branches, or `unknown`"),
    parameter("finding", TEXTS, "only with an open finding of these code prefixes, or `xid.N`"),
    parameter(
        "needs_attention",
        ParameterKind::OneOf(&["true"]),
        "only nodes that need a person, or may need one soon",
    ),
    parameter(
        "text",
        ParameterKind::Text,
        "only if name, reason, driver, GPU or a finding contains this text",
    ),
    parameter("cursor", ParameterKind::Name, "`next` of the previous page"),
    LIMIT,
];
const FINDINGS: &[Parameter] = &[
    POOL,
    RACK,
    LEAF,
    SITE,
    PHASE,
    NODE,
    parameter("severity", SEVERITY, "at least this severity"),
    parameter("code", ParameterKind::Text, "only codes with this prefix"),
    parameter("text", ParameterKind::Text, "only findings that contain this text"),
    CURSOR,
    LIMIT,
];
const EVENTS: &[Parameter] = &[AFTER, BEFORE, NODE, KIND, BY, EVENT_SEVERITY, LIMIT];
const FOLLOW: &[Parameter] = &[AFTER, NODE, KIND, BY, EVENT_SEVERITY];
const QUEUE: &[Parameter] = &[
    parameter(
        "state",
        ParameterKind::OneOf(&["open", "all"]),
        "`all` includes delivered notifications; default `open`",
    ),
    CURSOR,
    LIMIT,
];
const EXPORT: &[Parameter] = &[
    parameter("data", ParameterKind::OneOf(&["state", "log"]), "the nodes, or the log"),
    AFTER,
    NODE,
    KIND,
    BY,
];

const REPORT: &[Parameter] = &[
    parameter(
        "from",
        ParameterKind::Text,
        "begin of the period, as RFC 3339, not in the future; default: the begin of the log",
    ),
    parameter("to", ParameterKind::Text, "end of the period, as RFC 3339; default: now"),
    parameter(
        "window_h",
        ParameterKind::Number { min: 1, max: LedgerSpec::SHADOW_WINDOW_H_MAX as u64 },
        "hours within which a would-be decision and an action of an operator agree; default: 24",
    ),
];

pub(super) fn path_parameter(name: &str) -> Parameter {
    match name {
        "id" => parameter("id", NUMBER, "the token's number"),
        "generation" => parameter("generation", NUMBER, "the order's generation"),
        _ => parameter("node", ParameterKind::Name, "the node"),
    }
}

macro_rules! route {
    ($method:ident $path:literal, $name:literal, $permission:expr, $query:expr, $body:expr, $answer:expr,
        $run:path, $about:literal) => {
        Route {
            method: Method::$method,
            path: $path,
            name: $name,
            about: $about,
            permission: $permission,
            query: $query,
            body: $body,
            answer: $answer,
            requests_order: false,
            run: |call| Box::pin($run(call)),
        }
    };
}

macro_rules! order_route {
    ($path:literal, $name:literal, $order:expr, $about:literal) => {
        Route {
            method: Method::POST,
            path: $path,
            name: $name,
            about: $about,
            permission: OPERATE,
            query: &[],
            body: body!(EmptyRequest),
            answer: json!(Done),
            requests_order: true,
            run: |call| Box::pin(requests::order(call, $order)),
        }
    };
}

macro_rules! json {
    ($type:ty) => {
        AnswerKind::Json(Schemas::schema_for::<$type>)
    };
}

macro_rules! body {
    ($type:ty) => {
        Some(Schemas::schema_for::<$type>)
    };
}

const READ: Option<Permission> = Some(Permission::Read);
const OPERATE: Option<Permission> = Some(Permission::Operate);
const APPROVE: Option<Permission> = Some(Permission::Approve);
const ADMINISTER: Option<Permission> = Some(Permission::Administer);

pub(super) static TABLE: &[Route] = &[
    route!(GET "/api/v1/nodes", "listNodes", READ, NODES, None, json!(NodePage), nodes::list,
        "Lists nodes by name."),
    route!(GET "/api/v1/nodes/{node}", "getNode", READ, &[], None, json!(NodeDetail), nodes::get,
        "Returns a node with all details."),
    route!(GET "/api/v1/nodes/{node}/explanation", "explainNode", READ, &[], None, json!(NodeExplanation),
        nodes::explain, "Explains a node's phase, and what would change it."),
    route!(GET "/api/v1/nodes/{node}/artifacts", "listArtifacts", OPERATE, &[], None,
        json!(ArtifactList), artifacts::list, "Lists the artifacts that a node sent for orders, newest first."),
    route!(GET "/api/v1/nodes/{node}/artifacts/{generation}", "getArtifact", OPERATE, &[], None,
        AnswerKind::Other(reply::GZIP), artifacts::download, "Downloads the artifact that a node sent for an order."),
    route!(POST "/api/v1/nodes/{node}/hold", "holdNode", OPERATE, &[], body!(HoldRequest), json!(Done),
        requests::hold, "Holds a node out of service."),
    route!(POST "/api/v1/nodes/{node}/release", "releaseNode", OPERATE, &[], body!(EmptyRequest),
        json!(Done), requests::release, "Releases a hold. The node is verified before it returns to service."),
    route!(POST "/api/v1/nodes/{node}/repaired", "repairedNode", OPERATE, &[], body!(RepairedRequest),
        json!(Done), requests::repaired, "Records a manual repair. The node can then be verified."),
    route!(POST "/api/v1/nodes/{node}/verify", "verifyNode", OPERATE, &[], body!(VerifyRequest),
        json!(Done), requests::verify, "Verifies a node again at a level."),
    route!(POST "/api/v1/nodes/{node}/diag", "testNode", OPERATE, &[], body!(DiagRequest),
        json!(Done), requests::diag, "Runs a diag on a node's GPUs, once."),
    route!(POST "/api/v1/nodes/{node}/tune", "tuneNode", OPERATE, &[], body!(TuneRequest),
        json!(Done), requests::tune, "Applies a tuning profile to a node, once."),
    order_route!(
        "/api/v1/nodes/{node}/logs",
        "collectLogs",
        OrderKind::CollectLogs,
        "Collects a node's logs, once. They are then in `artifacts`."
    ),
    route!(POST "/api/v1/nodes/{node}/approve", "approveNode", APPROVE, &[], body!(EmptyRequest),
        json!(Done), requests::approve, "Approves a repair that waits for approval."),
    route!(PUT "/api/v1/nodes/{node}/location", "setNodeLocation", ADMINISTER, &[], body!(LocationRequest), json!(Done),
        requests::set_location, "Sets a node's location and tenant. Requires the whole fleet as scope."),
    route!(POST "/api/v1/nodes/{node}/retire", "retireNode", ADMINISTER, &[], body!(RetireRequest),
        json!(Done), requests::retire, "Retires a node permanently."),
    route!(POST "/api/v1/nodes/{node}/revoke", "revokeNode", ADMINISTER, &[], body!(EmptyRequest),
        json!(Done), tokens::revoke_node, "Revokes a node's certificates."),
    route!(GET "/api/v1/findings", "listFindings", READ, FINDINGS, None, json!(FindingPage),
        findings::list, "Lists open findings by node and number."),
    route!(GET "/api/v1/events", "listEvents", READ, EVENTS, None, json!(EventPage), events::list,
        "Lists the log: with `after` oldest first, otherwise newest first."),
    route!(GET "/api/v1/events/stream", "followEvents", READ, FOLLOW, None,
        AnswerKind::Other(reply::EVENTS), stream::follow,
        "Streams the log as server-sent events, from `Last-Event-ID`, `after` or now on."),
    route!(GET "/api/v1/domains", "listDomains", READ, &[], None, json!(DomainList), fleet::domains,
        "Lists pools, racks and switches with their nodes, nodes out of service, and disruption budgets."),
    route!(GET "/api/v1/domain-faults", "listDomainFaults", READ, &[], None, json!(DomainFaultList), fleet::domain_faults,
        "Lists domain faults."),
    route!(GET "/api/v1/freezes", "listFreezes", READ, &[], None, json!(FreezeList), fleet::freezes,
        "Lists freezes."),
    route!(POST "/api/v1/freezes", "freeze", OPERATE, &[], body!(FreezeRequest), json!(Done), requests::freeze,
        "Freezes a domain: no repair or tuning orders for a time."),
    route!(POST "/api/v1/unfreezes", "unfreeze", OPERATE, &[], body!(UnfreezeRequest), json!(Done), requests::unfreeze,
        "Ends a freeze."),
    route!(POST "/api/v1/domain-repairs", "domainRepaired", OPERATE, &[], body!(DomainRepairedRequest), json!(Done),
        requests::domain_repaired,
        "Says that the fault of a failure domain is repaired. Its nodes are judged on their own again."),
    route!(GET "/api/v1/notifications", "listNotifications", OPERATE, QUEUE, None, json!(NotificationQueue),
        notify::queue, "Lists queued and undeliverable notifications. Requires the whole fleet as scope."),
    route!(GET "/api/v1/receiver-problems", "listReceiverProblems", OPERATE, &[], None, json!(ReceiverProblemList),
        notify::receiver_problems,
        "Checks the receivers of the policy in force, with the server's files. Requires the whole fleet as scope."),
    route!(POST "/api/v1/notification-tests", "testReceiver", ADMINISTER, &[], body!(NotificationTestRequest),
        json!(NotificationTestResult), notify::test,
        "Sends a test message to a receiver. Requires the whole fleet as scope."),
    route!(POST "/api/v1/notification-retries", "retryNotifications", ADMINISTER, &[],
        body!(QueuedNotificationsRequest), json!(QueuedNotificationsChanged), notify::retry,
        "Delivers waiting and undeliverable notifications of a receiver now. Requires the whole fleet as scope."),
    route!(POST "/api/v1/notification-drops", "dropNotifications", ADMINISTER, &[],
        body!(QueuedNotificationsRequest), json!(QueuedNotificationsChanged), notify::discard,
        "Removes waiting and undeliverable notifications of a receiver. Requires the whole fleet as scope."),
    route!(POST "/api/v1/acknowledgements", "acknowledgeAlerts", OPERATE, &[], body!(AcknowledgeRequest), json!(Done),
        notify::acknowledge,
        "Acknowledges a group of alerts: it is neither repeated nor escalated. Requires the whole fleet as scope."),
    route!(GET "/api/v1/mutes", "listMutes", READ, &[], None, json!(MuteList), notify::mutes, "Lists mutes."),
    route!(POST "/api/v1/mutes", "mute", OPERATE, &[], body!(MuteRequest), json!(Done), notify::mute,
        "Mutes alerts of a node, a domain or a code for a time."),
    route!(POST "/api/v1/unmutes", "unmute", OPERATE, &[], body!(UnmuteRequest), json!(Done), notify::unmute,
        "Ends a mute."),
    route!(GET "/api/v1/matrix", "getMatrix", READ, &[], None, json!(Matrix), matrix::matrix,
        "Returns the compatibility matrix: GPU × driver × CUDA × framework, with end of support and exposure."),
    route!(GET "/api/v1/policy", "getPolicy", READ, &[], None, json!(PolicyView), fleet::policy,
        "Returns the current policy."),
    route!(PUT "/api/v1/policy", "setPolicy", ADMINISTER, &[], body!(Policy), json!(Done),
        fleet::set_policy, "Replaces the whole policy. Omitted keys get their defaults."),
    route!(GET "/api/v1/tokens", "listTokens", ADMINISTER, &[], None, json!(TokenList), tokens::list,
        "Lists join tokens."),
    route!(POST "/api/v1/tokens", "createToken", ADMINISTER, &[], body!(TokenRequest),
        AnswerKind::Created(Schemas::schema_for::<TokenCreated>), tokens::create,
        "Creates a join token. Only this answer shows it."),
    route!(POST "/api/v1/tokens/{id}/revoke", "revokeToken", ADMINISTER, &[], body!(EmptyRequest),
        json!(Done), tokens::revoke, "Revokes a join token."),
    route!(GET "/api/v1/export", "export", READ, EXPORT, None, AnswerKind::Other(reply::LINES),
        export::export, "Exports all nodes or the whole log as JSON lines."),
    route!(GET "/api/v1/report", "report", READ, REPORT, None, AnswerKind::Other(reply::LINES),
        report::report, "Returns the loss ledger and the fleet report, as one JSON line."),
    route!(GET "/api/v1/me", "getMe", READ, &[], None, json!(Me), fleet::me, "Returns the caller."),
    route!(GET "/api/v1/openapi.json", "getOpenapi", None, &[], None,
        AnswerKind::Json(|_| serde_json::json!({ "type": "object" })), openapi::document,
        "Returns this OpenAPI document."),
    route!(GET "/metrics", "getMetrics", READ, metrics::QUERY, None, AnswerKind::Other(reply::METRICS),
        metrics::metrics, "Prometheus metrics. Requires the whole fleet as scope."),
    route!(GET "/healthz", "getHealth", None, &[], None, AnswerKind::Other(reply::TEXT), health::healthz,
        "Health check."),
];

pub(super) struct RouteMatch {
    pub(super) route: &'static Route,
    pub(super) path: Params,
}

impl Route {
    /// Returns the parameters of the path if the path matches this route.
    fn matched<'p>(&self, path: &'p str) -> Option<Vec<(Parameter, &'p str)>> {
        let (mut ours, mut theirs) = (self.path.split('/'), path.split('/'));
        let mut found = Vec::new();
        loop {
            match (ours.next(), theirs.next()) {
                (None, None) => return Some(found),
                (Some(own), Some(part)) if own == part => {}
                (Some(own), Some(part)) => {
                    let name = own.strip_prefix('{')?.strip_suffix('}')?;
                    found.push((path_parameter(name), part));
                }
                _ => return None,
            }
        }
    }
}

pub(super) fn find(method: &Method, path: &str) -> Result<RouteMatch, Failure> {
    let mut allowed: Vec<&str> = Vec::new();
    for route in TABLE {
        let Some(parts) = route.matched(path) else { continue };
        if route.method != *method {
            allowed.push(route.method.as_str());
            continue;
        }
        let mut path = Params::default();
        for (parameter, part) in parts {
            path.put(&parameter, part)?;
        }
        return Ok(RouteMatch { route, path });
    }
    if allowed.is_empty() {
        let hint = "GET /api/v1/openapi.json lists every path";
        return Err(Failure::not_found("there is no such path", hint));
    }
    Err(Failure::method_not_allowed(&allowed.join(", ")))
}
