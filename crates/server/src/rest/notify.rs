//! Notifications: the queue, tests of receivers, mutes and acknowledgements.
//!
//! A notification names nodes of several owners, and the queue shows it as it is sent. The queue,
//! tests and acknowledgements therefore require the whole fleet as scope. A mute is limited to the
//! caller's scope.

use std::collections::BTreeMap;

use farrier_fleet::fleet::Domain;
use farrier_fleet::fleet::event::{Event, OperatorRequest};
use farrier_fleet::notify::{
    AlertCodePattern, Mute, MuteMatch, Notification, NotificationPolicy, NotificationStatus,
};
use farrier_notify::{ReceiverFiles, ReceiverProblem};
use farrier_wire::rest::{
    AcknowledgeRequest, DeliveryErrorView, Done, HintCode, MuteList, MuteRequest, MuteRow,
    NotificationDatabaseFailure, NotificationGap, NotificationQueue, NotificationTestRequest,
    NotificationTestResult, QueuedNotification, QueuedNotificationsChanged,
    QueuedNotificationsRequest, ReceiverProblemList, ReceiverProblemView, ReceiverQueue,
    UnmuteRequest,
};

use super::Call;
use super::extent::Extent;
use super::failure::{Failure, internal_error};
use super::reply::Reply;
use super::requests::{check_exists, check_owned, end_time, submit_request, visible_node};
use crate::notify::{
    Depth, LogGap, NotifyStore, NotifyStoreError, QueuePage, QueuePlace, QueuedMessage, Retried,
};

/// Notifications per page. The most that a request may ask for, because most callers want all.
const PAGE: usize = 500;
/// How long the check of a policy's receivers may take. Below the limit for answers.
const CHECK_MAX: std::time::Duration = std::time::Duration::from_secs(10);
/// How long a test may take. Below the limit for answers.
const TEST_MAX: std::time::Duration = std::time::Duration::from_secs(15);

async fn with_store<T: Send + 'static>(
    call: &Call,
    access: impl FnOnce(&NotifyStore) -> Result<T, NotifyStoreError> + Send + 'static,
) -> Result<T, Failure> {
    match call.app.notify.with_store(access).await {
        Some(result) => result.map_err(|err| internal_error(&err)),
        None => Err(Failure::overloaded()),
    }
}

pub(super) async fn queue(call: Call) -> Result<Reply, Failure> {
    call.caller()?.check_fleet_wide()?;
    let all = call.query.text("state") == Some("all");
    let after = call.query.text("cursor").map(place).transpose()?;
    let limit = call.query.limit(PAGE);
    let StoredQueue { page, gaps, depths } = stored_queue(&call, all, after, limit).await?;
    let next = page.messages.last().filter(|_| page.more > 0);
    let next = next.map(|last| format!("{}/{}", last.receiver, last.id));
    let configured = call.app.controller.read(|state| {
        state.policy.notifications.receivers.keys().cloned().collect::<Vec<String>>()
    });
    let stats = call.app.notify.stats();
    let mut receivers: BTreeMap<String, ReceiverQueue> = BTreeMap::new();
    for name in configured.await?.into_iter().chain(depths.keys().cloned()) {
        let depth = depths.get(&name).cloned().unwrap_or_default();
        let counts = stats.get(&name).copied().unwrap_or_default();
        let row = ReceiverQueue {
            receiver: name.clone(),
            waiting: depth.waiting,
            undeliverable: depth.undeliverable,
            dropped: depth.dropped,
            oldest: depth.oldest,
            delivered: counts.delivered,
            retries: counts.retries,
        };
        receivers.insert(name, row);
    }
    let gap = |gap: LogGap| NotificationGap {
        at: gap.at,
        after: gap.after_seq,
        end: gap.end_seq,
        cause: gap.cause.code().to_owned(),
    };
    let end = call.app.tail.end();
    let lag = call.app.notify.log_lag(end);
    Reply::json(&NotificationQueue {
        receivers: receivers.into_values().collect(),
        more: page.more,
        next,
        messages: page.messages.into_iter().map(row).collect(),
        database: call.app.notify.database_failure().map(|failure| NotificationDatabaseFailure {
            error: failure.error,
            since: failure.since,
        }),
        gaps: gaps.into_iter().map(gap).collect(),
        cursor: lag.cursor,
        end,
        behind_s: lag.behind_s,
    })
}

/// Parses `RECEIVER/NUMBER`.
fn place(cursor: &str) -> Result<QueuePlace, Failure> {
    let parts = cursor.rsplit_once('/');
    let place = parts.and_then(|(receiver, id)| Some((receiver.to_owned(), id.parse().ok()?)));
    place.ok_or_else(|| Failure::bad_request("`cursor` is not a `next` value of an earlier page"))
}

/// What the database has for an answer.
#[derive(Default)]
struct StoredQueue {
    page: QueuePage,
    gaps: Vec<LogGap>,
    depths: BTreeMap<String, Depth>,
}

/// Reads a page of the queue. If the database is known to fail and cannot be read, the queue is
/// empty: the answer then says that the database fails.
async fn stored_queue(
    call: &Call,
    all: bool,
    after: Option<QueuePlace>,
    limit: usize,
) -> Result<StoredQueue, Failure> {
    let read = with_store(call, move |store| {
        let page = store.page(all, after.as_ref(), limit)?;
        Ok(StoredQueue { page, gaps: store.gaps()?, depths: store.depths()? })
    });
    match read.await {
        Err(_) if call.app.notify.database_failure().is_some() => Ok(StoredQueue::default()),
        read => read,
    }
}

fn row(message: QueuedMessage) -> QueuedNotification {
    let notification = message.notification;
    QueuedNotification {
        receiver: message.receiver,
        state: message.state.code().to_owned(),
        key: notification.key,
        group: notification.group,
        status: match notification.status {
            NotificationStatus::Firing => "firing".to_owned(),
            NotificationStatus::Resolved => "resolved".to_owned(),
        },
        severity: notification.severity,
        code: notification.code,
        cause: notification.cause,
        nodes: notification.nodes_total,
        queued: message.queued,
        attempts: message.attempts,
        next: message.next,
        error: message.error.map(|(code, text)| DeliveryErrorView { code, text }),
        summarised: message.summarised,
    }
}

/// Refuses receivers to which nothing can ever be delivered, such as one with an invalid template,
/// and receivers that name a program or a secret outside the server's folders.
/// A missing file of a secret may still be added. The paths in a policy may be on a file system that
/// does not answer, so the check must not block the runtime.
pub(super) async fn check_receivers(
    policy: NotificationPolicy,
    files: ReceiverFiles,
) -> Result<(), Failure> {
    let problems = problems(policy, files).await?;
    match problems.iter().find(|(_, problem)| problem.is_error()) {
        Some((name, problem)) => {
            Err(Failure::bad_request(format!("notifications.receivers.{name}: {problem}")))
        }
        None => Ok(()),
    }
}

/// What is wrong with the receivers, by their names.
async fn problems(
    policy: NotificationPolicy,
    files: ReceiverFiles,
) -> Result<Vec<(String, ReceiverProblem)>, Failure> {
    let check = tokio::task::spawn_blocking(move || {
        let problems = policy.receivers.iter().flat_map(|(name, receiver)| {
            let problems = farrier_notify::check(receiver, &files).into_iter();
            problems.map(|problem| (name.clone(), problem))
        });
        problems.collect()
    });
    match tokio::time::timeout(CHECK_MAX, check).await {
        Ok(problems) => problems.map_err(|_| Failure::internal_error()),
        Err(_) => Err(Failure::bad_request(format!(
            "notifications.receivers: the files could not be checked within {} s; expected files that the server can read",
            CHECK_MAX.as_secs()
        ))),
    }
}

/// Checks the receivers of the policy in force.
pub(super) async fn receiver_problems(call: Call) -> Result<Reply, Failure> {
    call.caller()?.check_fleet_wide()?;
    let policy = call.app.controller.read(|state| state.policy.notifications.clone()).await?;
    let problems = problems(policy, call.app.receiver_files.clone()).await?;
    let view = |(receiver, problem): (String, ReceiverProblem)| ReceiverProblemView {
        receiver,
        key: problem.key.to_owned(),
        is_error: problem.is_error(),
        is_about_files: problem.is_about_files(),
        text: problem.text(),
    };
    Reply::json(&ReceiverProblemList { problems: problems.into_iter().map(view).collect() })
}

/// Sends a test message directly, so that the caller gets the result.
pub(super) async fn test(call: Call) -> Result<Reply, Failure> {
    let caller = call.caller()?;
    caller.check_fleet_wide()?;
    let NotificationTestRequest { receiver: name } = call.body()?;
    let wanted = name.clone();
    let found = call
        .app
        .controller
        .read(move |state| state.policy.notifications.receivers.get(&wanted).cloned());
    let Some(receiver) = found.await? else {
        let detail = "the policy has no receiver with this name";
        return Err(Failure::not_found(detail, HintCode::ShowNotifications));
    };
    let now = call.app.controller.now();
    let notification = Notification::test(&name, &caller.user.name, now);
    let delivery = call.app.notify.deliver.deliver(&receiver, &notification);
    let error = match tokio::time::timeout(TEST_MAX, delivery).await {
        Ok(Ok(())) => None,
        Ok(Err(failure)) => Some(DeliveryErrorView { code: failure.code, text: failure.text }),
        Err(_) => Some(DeliveryErrorView {
            code: "timed-out".to_owned(),
            text: format!("the delivery took longer than {} s", TEST_MAX.as_secs()),
        }),
    };
    Reply::json(&NotificationTestResult { delivered: error.is_none(), error })
}

/// What is done with notifications in the queue.
#[derive(Debug, Clone, Copy)]
enum QueueChange {
    Retry,
    Drop,
}

pub(super) async fn retry(call: Call) -> Result<Reply, Failure> {
    change_queue(call, QueueChange::Retry).await
}

pub(super) async fn discard(call: Call) -> Result<Reply, Failure> {
    change_queue(call, QueueChange::Drop).await
}

/// Changes the queue after the request is in the log, so that the log has who did it.
async fn change_queue(call: Call, change: QueueChange) -> Result<Reply, Failure> {
    call.caller()?.check_fleet_wide()?;
    let QueuedNotificationsRequest { receiver, key } = call.body()?;
    let (name, wanted) = (receiver.clone(), key.clone());
    let open = with_store(&call, move |store| store.count_open(&name, wanted.as_deref())).await?;
    let name = receiver.clone();
    let is_known = call
        .app
        .controller
        .read(move |state| state.policy.notifications.receivers.contains_key(&name));
    if open == 0 || matches!(change, QueueChange::Retry) && !is_known.await? {
        let detail =
            "no such notification waits or is undeliverable, or the policy has no such receiver";
        return Err(Failure::not_found(detail, HintCode::ShowNotifications));
    }
    let (name, wanted) = (receiver.clone(), key.clone());
    let request = match change {
        QueueChange::Retry => OperatorRequest::RetryNotifications { receiver, key },
        QueueChange::Drop => OperatorRequest::DropNotifications { receiver, key },
    };
    let event = Event::OperatorRequested { request };
    call.app.controller.submit(call.caller()?.actor(), event).await?;
    let changed = with_store(&call, move |store| match change {
        QueueChange::Retry => {
            let Retried { due, obsolete } = store.retry_now(&name, wanted.as_deref())?;
            Ok(QueuedNotificationsChanged { count: due, obsolete: Some(obsolete) })
        }
        QueueChange::Drop => {
            let count = store.discard(&name, wanted.as_deref())?;
            Ok(QueuedNotificationsChanged { count, obsolete: None })
        }
    });
    let changed = changed.await?;
    call.app.notify.wake_workers();
    Reply::json(&changed)
}

pub(super) async fn mutes(call: Call) -> Result<Reply, Failure> {
    let caller = call.caller()?.clone();
    let extent = Extent::count(&call.app.controller, &caller).await?;
    let now = call.app.controller.now();
    let mutes = call.app.controller.read(move |state| {
        let is_visible = |mute: &Mute| {
            let node = mute.matches.node.as_ref();
            // A mute of a node that is gone is shown to those who see every node.
            let sees_node = node.is_none_or(|node| match state.nodes.get(node) {
                Some(node) => caller.sees(&node.location),
                None => caller.check_fleet_wide().is_ok(),
            });
            let domain = mute.matches.domain.as_ref();
            sees_node && domain.is_none_or(|domain| extent.touches(domain))
        };
        let active = state.mutes.iter().filter(|(_, mute)| mute.until > now && is_visible(mute));
        active.map(|(number, mute)| mute_row(*number, mute)).collect()
    });
    Reply::json(&MuteList { mutes: mutes.await? })
}

fn mute_row(number: u64, mute: &Mute) -> MuteRow {
    MuteRow {
        mute: number,
        node: mute.matches.node.clone(),
        domain: mute.matches.domain.clone(),
        code: mute.matches.code.as_ref().map(|code| code.0.clone()),
        scope: mute.scope.clone(),
        since: mute.since,
        until: mute.until,
        by: mute.by.to_string(),
        reason: mute.reason.clone(),
    }
}

/// Checks that everything that a mute hides is in the caller's scope.
async fn check_scope(call: &Call, matches: &MuteMatch) -> Result<(), Failure> {
    if let Some(node) = &matches.node {
        return visible_node(call, node).await;
    }
    let domain = matches.domain.clone().unwrap_or(Domain::Fleet);
    if domain == Domain::Fleet {
        return call.caller()?.check_fleet_wide();
    }
    check_owned(call, &domain).await
}

pub(super) async fn mute(call: Call) -> Result<Reply, Failure> {
    let MuteRequest { node, domain, code, duration_s, until, reason } = call.body()?;
    let until = end_time(&call, duration_s, until)?;
    let code = code.map(|code| AlertCodePattern(code.into_text()));
    let matches = MuteMatch { node, domain, code };
    check_scope(&call, &matches).await?;
    if let Some(domain) = matches.domain.as_ref().filter(|domain| **domain != Domain::Fleet) {
        check_exists(&call, domain).await?;
    }
    let reason = reason.into_text();
    let scope = call.caller()?.scope().clone();
    submit_request(&call, OperatorRequest::Mute { matches, scope, until, reason }).await
}

pub(super) async fn unmute(call: Call) -> Result<Reply, Failure> {
    let UnmuteRequest { mute } = call.body()?;
    let found = call.app.controller.read(move |state| state.mutes.get(&mute).cloned());
    let unknown = || {
        let detail = format!("there is no mute {mute}, or it is not in your scope");
        Failure::not_found(detail, HintCode::ListMutes)
    };
    let found = found.await?.ok_or_else(unknown)?;
    // Nodes of others may have come to the domain since, and the mute does not apply to them.
    let caller = call.caller()?;
    if !caller.is_fleet_wide() && found.scope != *caller.scope() {
        check_scope(&call, &found.matches).await.map_err(|_| unknown())?;
    }
    submit_request(&call, OperatorRequest::Unmute { mute }).await
}

pub(super) async fn acknowledge(call: Call) -> Result<Reply, Failure> {
    call.caller()?.check_fleet_wide()?;
    let AcknowledgeRequest { group } = call.body()?;
    let wanted = group.clone();
    if !with_store(&call, move |store| store.has_group(&wanted)).await? {
        let detail = "no group of alerts with this name fires";
        return Err(Failure::not_found(detail, HintCode::ShowNotifications));
    }
    let caller = call.caller()?;
    let request = OperatorRequest::AcknowledgeAlerts { group };
    let event = Event::OperatorRequested { request };
    let outcome = call.app.controller.submit(caller.actor(), event).await?;
    Reply::json(&Done { changed: outcome.is_logged() })
}
