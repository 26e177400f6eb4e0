//! What to order next, one at a time. The repair is the least that may help, and one more each time that it did not.

use jiff::SignedDuration;

use super::Look;
use crate::fleet::event::{Cordon, Event, Why, shortened};
use crate::fleet::order::{Order, OrderKind};
use crate::fleet::policy::Autonomy;
use crate::fleet::state::{Errand, Repair, Standing, Symptom, later};
use crate::fleet::window;
use crate::health::Action;

/// The next order; or that one is not waited for any longer; or why there is none though there should be.
pub(super) fn step(look: &Look<'_>) -> Option<Event> {
    if let Some(pending) = &look.node.order {
        let order = &pending.order;
        let (node, generation) = (look.id.clone(), order.generation);
        let why = format!("`{}` was not answered until {:.0}", order.what, order.lease_until);
        let over = (order.lease_until <= look.now).then_some(why);
        let stopped = || stopped(look).filter(|_| order.what.is_repair());
        let unfit = || {
            let is_unfit = look.complaint.weight == super::complaint::Weight::Serious;
            (is_unfit && order.what == OrderKind::Uncordon).then(|| look.complaint.text.clone())
        };
        let stopped = || stopped().or_else(unfit).filter(|_| !pending.accepted);
        let why = over.or_else(stopped).map(shortened);
        return why.map(|why| Event::Withdrawn { node, generation, why });
    }
    if let Some(Errand { what, by }) = errand(look) {
        let waits = at_work(look).or_else(|| frozen(look).filter(|_| what.changes()));
        let reason = format!("{by} asked for it");
        return Some(match waits {
            Some(why) => look.held_back(why),
            None => Event::Ordered { order: Order { reason, ..order(look, what.clone()) } },
        });
    }
    let wanted = wanted(look)?;
    let what = match wanted {
        Wanted::Order(what) => what,
        Wanted::Person(why) => return Some(look.held_back(why)),
    };
    match obstacle(look, &what) {
        Some(Obstacle::Later) => None,
        Some(Obstacle::Why(why)) => Some(look.held_back(why)),
        None => Some(Event::Ordered { order: order(look, what) }),
    }
}

/// What a person wants done there. A node that is being emptied is emptied first.
fn errand<'a>(look: &Look<'a>) -> Option<&'a Errand> {
    let cordoned = matches!(look.node.cordon, Cordon::Ours | Cordon::Theirs { .. });
    let ready = match look.node.standing {
        Standing::Held => cordoned || look.pool.autonomy == Autonomy::Observe,
        Standing::Quarantined => look.node.drained,
        _ => true,
    };
    look.node.errand.as_ref().filter(|_| ready)
}

/// Nothing is changed or measured under work.
fn at_work(look: &Look<'_>) -> Option<Why> {
    let is_out = !look.node.standing.in_service() && look.node.standing != Standing::Joining;
    (!is_out).then(|| {
        Why::new(
            "it takes work, and is neither tested nor changed under it",
            "a person holds it (`farrier fleet cordon`)",
        )
    })
}

enum Wanted {
    Order(OrderKind),
    Person(Why),
}

fn wanted(look: &Look<'_>) -> Option<Wanted> {
    let cordoned = matches!(look.node.cordon, Cordon::Ours | Cordon::Theirs { .. });
    let drain = OrderKind::Drain { wait_s: look.pool.drain_wait_s };
    match look.node.standing {
        Standing::InService | Standing::Suspect => {
            look.node.prove_now.map(|rung| Wanted::Order(OrderKind::Verify { rung }))
        }
        Standing::Joining => {
            let ours = look.node.cordon == Cordon::Ours;
            let proven = cordon_first(look).or_else(|| proof(look));
            proven.or_else(|| uncordon(look).filter(|_| ours)).map(Wanted::Order)
        }
        Standing::Quarantined if !cordoned => Some(Wanted::Order(OrderKind::Cordon)),
        Standing::Quarantined => (!look.node.drained).then_some(Wanted::Order(drain)),
        Standing::InRepair => Some(repair(look)),
        Standing::Verifying => {
            let before = cordon_first(look).or_else(|| note_repair(look));
            before.or_else(|| proof(look)).or_else(|| uncordon(look)).map(Wanted::Order)
        }
        Standing::Held => {
            let ours = look.node.hold.is_some() && !cordoned;
            ours.then_some(Wanted::Order(OrderKind::Cordon))
        }
    }
}

/// A node that is not verified gets no new work: it is cordoned before anything else. One that joins is as it was before we managed it,
/// unless its pool wants it cordoned.
fn cordon_first(look: &Look<'_>) -> Option<OrderKind> {
    let applies = match look.node.standing {
        Standing::Verifying => true,
        Standing::Joining => look.pool.cordon_joining,
        _ => false,
    };
    let cordoned = matches!(look.node.cordon, Cordon::Ours | Cordon::Theirs { .. });
    let may = look.pool.autonomy != Autonomy::Observe;
    (applies && may && !cordoned).then_some(OrderKind::Cordon)
}

/// Before anything is proven the agent hears of a repair by hand: it would hold against the node what was mended.
fn note_repair(look: &Look<'_>) -> Option<OrderKind> {
    let what = look.node.untold_repair.clone()?;
    Some(OrderKind::NoteRepair { what })
}

/// The first rung that is not proven.
fn proof(look: &Look<'_>) -> Option<OrderKind> {
    let open = look.asked_for().find(|rung| !look.has_passed(*rung));
    open.map(|rung| OrderKind::Verify { rung })
}

/// Only our own mark goes, and only when all is well. Where nobody knows of a mark the agent looks.
fn uncordon(look: &Look<'_>) -> Option<OrderKind> {
    let ours = matches!(look.node.cordon, Cordon::Ours | Cordon::Unknown);
    let fit = look.proven() && look.complaint.weight == super::complaint::Weight::None;
    (ours && fit).then_some(OrderKind::Uncordon)
}

/// The least that may help and was not tried yet.
fn repair(look: &Look<'_>) -> Wanted {
    if let Some(why) = lemon(look) {
        return Wanted::Person(why);
    }
    let complaint = look.complaint;
    let service = complaint.codes.iter().find_map(|code| look.state.policy.services.get(code));
    let mut ladder = Vec::new();
    if let Some(unit) = service {
        ladder.push(OrderKind::RestartService { unit: unit.clone() });
    }
    if let (Action::ResetGpu, Some(gpu)) = (complaint.action, complaint.gpu.clone()) {
        ladder.push(OrderKind::ResetGpu { gpu });
    }
    if matches!(complaint.action, Action::ResetGpu | Action::RebootNode) {
        ladder.push(OrderKind::Reboot);
    }
    let untried = |what: &&OrderKind| !look.node.was_tried(what, &complaint.fault);
    // Each fault has its own try of each; and faults that follow one another do not have a node rebooted for ever.
    let most = usize::try_from(look.pool.tries.max(1)).unwrap_or(usize::MAX);
    let is_spent = |what: &&OrderKind| look.node.times_done(what) >= most;
    if let Some(what) = ladder.iter().filter(untried).find(|what| !is_spent(what)) {
        return Wanted::Order(what.clone());
    }
    if let Some(why) = blamed(look) {
        return Wanted::Person(why);
    }
    let tried = match ladder.iter().filter(untried).find(is_spent) {
        Some(what) => format!(
            "; `{}` was done {most} times since it was last in service, for other faults, and is not ordered again",
            look.node.words_of_order(what)
        ),
        None if ladder.is_empty() => String::new(),
        None => "; what could be ordered was, and did not help".to_owned(),
    };
    let text = format!("{}: {}{tried}", complaint.text, complaint.action.asks());
    Wanted::Person(
        Why::new(text, "a person repairs it and says so (`farrier fleet repaired`)")
            .of(complaint.findings.clone()),
    )
}

/// What is left is of a switch, a rack or an `NVLink` domain: nobody has to look at the node for it.
fn blamed(look: &Look<'_>) -> Option<Why> {
    let (complaint, domains) = (look.complaint, look.node.place.domains());
    let explains = |symptom: Symptom| {
        let is_it = |code: &String| Symptom::of(code) == Some(symptom);
        !complaint.codes.is_empty() && complaint.codes.iter().all(is_it)
    };
    let mut blamed = look.blamed.iter();
    let (domain, _) =
        blamed.find(|(domain, symptom)| domains.contains(domain) && explains(**symptom))?;
    let text = format!("{}: {domain} is to blame, and not the node", complaint.text);
    Some(Why::new(text, format!("{domain} is mended")).of(complaint.findings.clone()))
}

/// A node that was out of service too often is not given back by another repair.
fn lemon(look: &Look<'_>) -> Option<Why> {
    let policy = &look.state.policy.lemon;
    let from = look.now - SignedDuration::from_hours(24 * i64::from(policy.days));
    let times = look.node.quarantines.iter().filter(|at| **at >= from).count();
    let many = u32::try_from(times).unwrap_or(u32::MAX) >= policy.quarantines;
    let by_hand = look.node.repairs.iter().any(|it| matches!(it, Repair::ByHand(_)));
    (many && !by_hand).then(|| {
        let text = format!(
            "it was out of service {times} times in {} days: the cause was not mended",
            policy.days
        );
        Why::new(text, "a person repairs it and says so (`farrier fleet repaired`)")
    })
}

enum Obstacle {
    /// Time passes, and it will be ordered.
    Later,
    Why(Why),
}

fn obstacle(look: &Look<'_>, what: &OrderKind) -> Option<Obstacle> {
    let changes = what.is_repair();
    match look.pool.autonomy {
        Autonomy::Observe
            if !matches!(what, OrderKind::Verify { .. } | OrderKind::NoteRepair { .. }) =>
        {
            let why = Why::new(
                format!("`{what}` would be ordered; the pool only observes"),
                "the pool's policy allows it",
            );
            return Some(Obstacle::Why(why));
        }
        Autonomy::Quarantine if changes => {
            let why = Why::new(
                format!("`{what}` would be ordered; repairs of the pool are left to people"),
                "a person repairs it and says so (`farrier fleet repaired`)",
            );
            return Some(Obstacle::Why(why));
        }
        _ => {}
    }
    let waits = frozen(look).or_else(|| unapproved(look, what)).or_else(|| shut(look, what));
    if let Some(why) = waits.filter(|_| changes) {
        return Some(Obstacle::Why(why));
    }
    // A cordon waits for no other order: until then the node takes work.
    let is_other = look.node.failed_order.as_ref().is_some_and(|it| it != what);
    let failed = look.node.failed.as_ref().filter(|_| *what != OrderKind::Cordon || !is_other);
    let (at, failure) = failed?;
    // These are tried for as long as it takes: a node without a cordon takes work, and nothing else brings it into service.
    let is_retried =
        matches!(what, OrderKind::Verify { .. } | OrderKind::Cordon | OrderKind::Uncordon);
    let failed_often = (look.node.failures >= look.pool.tries)
        .then(|| format!("`{what}` failed {} times, last: {failure}", look.node.failures));
    if let Some(text) = failed_often.as_ref().filter(|_| !is_retried) {
        let until = "a person looks, and says that it is repaired or holds it";
        return Some(Obstacle::Why(Why::new(text, until)));
    }
    let again = later(*at, look.pool.retry_s_after(look.node.failures));
    if look.now >= again {
        return None;
    }
    let is_proof = matches!(what, OrderKind::Verify { .. });
    let unproven = look.node.unproven.as_ref().filter(|_| look.node.standing == Standing::Joining);
    let text = unproven.map(|it| format!("it did not pass {}: {}", it.rung, it.why));
    Some(text.or_else(|| failed_often.filter(|_| !is_proof)).map_or(Obstacle::Later, |text| {
        let until = format!("it passes: it is tried again at {again:.0}");
        Obstacle::Why(Why::new(text, until).over_at(again))
    }))
}

/// Who says that nothing is to be done there, since it was ordered.
fn stopped(look: &Look<'_>) -> Option<String> {
    let held = look.node.hold.as_ref().map(|hold| format!("{} holds it: {}", hold.by, hold.reason));
    let shut_out = || look.node.revoked.map(|_| "its certificates were revoked".to_owned());
    held.or_else(shut_out).or_else(|| frozen(look).map(|why| why.text))
}

fn frozen(look: &Look<'_>) -> Option<Why> {
    let domains = look.node.place.domains();
    let (domain, freeze) = look
        .state
        .freezes
        .iter()
        .find(|(domain, freeze)| domains.contains(domain) && freeze.until > look.now)?;
    let text = format!("{domain} is frozen by {}: {}", freeze.by, freeze.reason);
    let until = format!("{:.0}, or whoever froze it thaws it", freeze.until);
    Some(Why::new(text, until).over_at(freeze.until))
}

fn unapproved(look: &Look<'_>, what: &OrderKind) -> Option<Why> {
    let asks = *what == OrderKind::Reboot && look.pool.approve_reboot && !look.node.approved;
    asks.then(|| {
        Why::new("a reboot waits for approval", "a person approves it (`farrier fleet approve`)")
            .over_when_approved()
    })
}

/// Outside of its windows a pool is left as it is, unless a person wants it done now.
fn shut(look: &Look<'_>, what: &OrderKind) -> Option<Why> {
    if look.node.approved {
        return None;
    }
    let opens = window::opens(&look.pool.repair_windows, look.now)?;
    let text = format!("`{what}` waits for a window of pool {}", look.node.place.pool);
    let until = format!("{opens:.0}, or a person approves it (`farrier fleet approve`)");
    Some(Why::new(text, until).over_at(opens).over_when_approved())
}

fn order(look: &Look<'_>, what: OrderKind) -> Order {
    // An uncordon or a change that was meant for another boot must not be carried out in this one.
    let bound = what.changes() || what == OrderKind::Uncordon;
    let boot = look.node.makeup.as_ref().filter(|_| bound).map(|it| it.boot.clone());
    Order {
        node: look.id.clone(),
        generation: look.node.generation.saturating_add(1),
        boot,
        lease_until: later(look.now, look.pool.lease_of(&what)),
        reason: look.node.why.text.clone(),
        what,
    }
}
