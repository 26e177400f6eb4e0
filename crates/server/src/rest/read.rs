//! Parses requests without handling them, for fuzzing.

use farrier_fleet::fleet::Policy;
use farrier_wire::rest::{
    AcknowledgeRequest, DiagRequest, DomainRepairedRequest, EmptyRequest, FreezeRequest,
    HoldRequest, MuteRequest, NotificationTestRequest, QueuedNotificationsRequest, RepairedRequest,
    RetireRequest, TokenRequest, TuneRequest, UnfreezeRequest, UnmuteRequest, VerifyRequest,
};
use hyper::Method;

use super::body::parse_body;
use super::query::Params;
use super::{findings, routes};

/// Returns whether the path and the query match a route, and whether the body is valid for any
/// route.
pub fn reads(method: &[u8], path: &str, query: &str, body: &[u8]) -> (bool, bool) {
    let is_route = Method::from_bytes(method).ok().and_then(|method| {
        let found = routes::find(&method, path).ok()?;
        let params = Params::read(query, found.route.query).ok()?;
        params.text("cursor").is_none_or(|text| findings::cursor(text).is_ok()).then_some(())
    });
    let policy = parse_body::<Policy>(body).is_ok_and(|policy| policy.check().is_ok());
    let bodies = [
        policy,
        parse_body::<FreezeRequest>(body).is_ok(),
        parse_body::<AcknowledgeRequest>(body).is_ok(),
        parse_body::<MuteRequest>(body).is_ok(),
        parse_body::<UnmuteRequest>(body).is_ok(),
        parse_body::<NotificationTestRequest>(body).is_ok(),
        parse_body::<QueuedNotificationsRequest>(body).is_ok(),
        parse_body::<HoldRequest>(body).is_ok(),
        parse_body::<EmptyRequest>(body).is_ok(),
        parse_body::<RepairedRequest>(body).is_ok(),
        parse_body::<RetireRequest>(body).is_ok(),
        parse_body::<UnfreezeRequest>(body).is_ok(),
        parse_body::<DomainRepairedRequest>(body).is_ok(),
        parse_body::<TokenRequest>(body).is_ok(),
        parse_body::<VerifyRequest>(body).is_ok(),
        parse_body::<DiagRequest>(body).is_ok(),
        parse_body::<TuneRequest>(body).is_ok(),
    ];
    (is_route.is_some(), bodies.contains(&true))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        // The fuzz target `rest` tests the same, but this test runs with every build. Parsing must
        // never panic.
        #[test]
        fn no_request_panics(
            path in "(/api/v1/(nodes|findings|events|tokens|freezes|policy)?)?[ -~]{0,20}",
            query in "([a-z]{1,8}=[^&]{0,12}&?){0,4}",
            body in prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..64),
                "[\\[\\]{}:,\"a-z0-9.-]{0,64}".prop_map(String::into_bytes),
            ],
        ) {
            for method in [&b"GET"[..], b"POST", b"PUT", b" "] {
                let _ = reads(method, &path, &query, &body);
            }
        }
    }

    #[test]
    fn valid_requests_are_parsed_and_others_refused() {
        let hold = br#"{"reason":"cable"}"#;
        assert_eq!(reads(b"POST", "/api/v1/nodes/gpu-1/hold", "", hold), (true, true));
        assert_eq!(reads(b"GET", "/api/v1/findings", "cursor=gpu-1%2F7", b""), (true, false));
        assert_eq!(reads(b"GET", "/api/v1/findings", "cursor=gpu-1", b"[]"), (false, false));
        assert_eq!(reads(b"GET", "/api/v1/nothing", "", b"{}"), (false, true));
    }
}
