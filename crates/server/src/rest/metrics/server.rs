//! Metrics of the server process.

use std::sync::atomic::Ordering;

use jiff::Timestamp;

use super::families;
use super::page::MetricsPage;
use crate::counters::{Counters, EnrolmentRefusal, HandshakeFailure, RequestFailure};
use crate::rest::Call;

pub(super) fn write(page: &mut MetricsPage, call: &Call, is_responding: bool) {
    let version = vec![env!("CARGO_PKG_VERSION").to_owned()];
    page.family(&families::BUILD_INFO, [(version, 1)]);
    page.value(&families::CONTROLLER_RESPONDING, u8::from(is_responding));
    controller(page, call);
    log(page, call);
    sessions(page, call);
    refusals(page, &call.app.counters);
    page.value(&families::STREAMS_OPEN, call.rest.limits.streams_open());
    let classes = (2..6).map(|class: usize| {
        (vec![format!("{class}xx")], call.rest.answered[class].load(Ordering::Relaxed))
    });
    page.family(&families::RESPONSES, classes);
}

fn controller(page: &mut MetricsPage, call: &Call) {
    let controller = &call.app.controller;
    page.histogram(&families::COMMIT_DURATION, &controller.commit_durations());
    page.value(&families::COMMITS, controller.commits());
    page.value(&families::INPUTS_QUEUED, controller.waiting());
    page.value(&families::INPUTS_QUEUED_MAX, controller.waiting_max());
    let clock = controller.now().duration_since(Timestamp::UNIX_EPOCH);
    page.value(&families::CLOCK, clock.as_secs_f64());
    page.value(&families::CLOCK_STEPS, controller.clock_steps());
    page.value(&families::PAUSES, controller.pauses());
}

fn log(page: &mut MetricsPage, call: &Call) {
    let space = &call.app.space;
    page.value(&families::LOG_ENTRIES, call.app.tail.end());
    // If the disk space is unknown, its metrics are left out.
    if let Some((log_bytes, free_bytes)) = space.bytes() {
        page.value(&families::LOG_BYTES, log_bytes);
        page.value(&families::DISK_FREE, free_bytes);
    }
    page.value(&families::DISK_LOW, u8::from(space.is_low()));
}

fn sessions(page: &mut MetricsPage, call: &Call) {
    let (sessions, counters) = (&call.app.sessions, &call.app.counters);
    page.value(&families::AGENTS_CONNECTED, sessions.connected());
    page.value(&families::THROTTLED, sessions.times_throttled());
    page.value(&families::SESSIONS_ENDED, counters.sessions_ended());
    page.value(&families::NAMES_REFUSED, counters.names_refused());
    page.value(&families::GENERATIONS_REFUSED, counters.order_generations_refused());
}

fn refusals(page: &mut MetricsPage, counters: &Counters) {
    let failed =
        HandshakeFailure::ALL.map(|reason| (vec![reason.to_string()], counters.handshakes(reason)));
    page.family(&families::HANDSHAKES_FAILED, failed);
    let unread = RequestFailure::ALL
        .map(|failure| (vec![failure.to_string()], counters.requests_failed(failure)));
    page.family(&families::UNAUTHENTICATED_FAILED, unread);
    let refused = EnrolmentRefusal::ALL
        .map(|reason| (vec![reason.to_string()], counters.enrolments_refused(reason)));
    page.family(&families::ENROLMENTS_REFUSED, refused);
    let renewals = [("issued", counters.renewals()), ("throttled", counters.renewals_throttled())];
    let renewals = renewals.map(|(result, count)| (vec![result.to_owned()], count));
    page.family(&families::RENEWALS, renewals);
}
