//! Reasons as a caller sees them: how many nodes a rack, a tenant or the fleet has, and how many of them are out of service, is not told to
//! somebody who has only some of them.

use farrier_fleet::fleet::event::Why;
use farrier_fleet::fleet::state::Symptom;
use farrier_fleet::fleet::{Domain, FleetState, Node};

use super::caller::Caller;

/// Why something is not done with a node. Where too many nodes are out of service the reason counts them.
pub(super) fn held_back(caller: &Caller, why: &Why) -> Why {
    let text = uncounted(&why.text, caller.scope());
    Why { text: text.unwrap_or_else(|| why.text.clone()), ..why.clone() }
}

/// The text without its counts; none where there are none, or they are of the scope itself.
fn uncounted(text: &str, scope: &Domain) -> Option<String> {
    if *scope == Domain::Fleet {
        return None;
    }
    let (out, rest) = text.split_once(" of ")?;
    let (members, rest) = rest.split_once(" nodes of ")?;
    let is_number = |it: &str| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit());
    let is_own = rest.strip_prefix(&scope.to_string()).is_some_and(|it| it.starts_with(' '));
    if !is_number(out) || !is_number(members) || is_own {
        return None;
    }
    let (domain, _) = rest.split_once(" are out of service").unwrap_or((rest, ""));
    Some(format!("as many nodes of {domain} are out of service as may be"))
}

/// Why something that nodes share is to blame.
pub(super) fn blame(caller: &Caller, domain: &Domain, symptom: Symptom, why: &Why) -> Why {
    if caller.is_fleet_wide() {
        return why.clone();
    }
    let shown = symptom.words();
    let text =
        format!("several nodes of {domain} began to show {shown}: one cause, outside of them");
    Why { text, ..why.clone() }
}

/// What a node shares with others and is to blame.
pub(super) fn blamed(caller: &Caller, state: &FleetState, node: &Node) -> Vec<String> {
    let domains = node.place.domains();
    let found = state.blamed.iter().filter(|(domain, _)| domains.contains(domain));
    found.map(|(domain, it)| blame(caller, domain, it.symptom, &it.why).text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_others_are_left_out_and_other_reasons_are_not_touched() {
        let pool: Domain = "pool:train".parse().unwrap();
        let of = |domain: &str| {
            format!("150 of 1500 nodes of {domain} are out of service, and 150 may be")
        };
        for domain in ["the fleet", "tenant lab", "rack r1", "pool training"] {
            let told = uncounted(&of(domain), &pool).unwrap();
            assert_eq!(told, format!("as many nodes of {domain} are out of service as may be"));
            assert_eq!(uncounted(&of(domain), &Domain::Fleet), None);
        }
        assert_eq!(uncounted(&of("pool train"), &pool), None, "they are the caller's");
        for other in ["rack r1 is frozen by ann: 3 of 4 nodes of ours", "a reboot waits", "of", ""]
        {
            assert_eq!(uncounted(other, &pool), None);
        }
    }
}
