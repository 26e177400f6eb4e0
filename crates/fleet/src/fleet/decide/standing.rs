//! Where a node stands next. A way back to service leads through proof, whatever took the node out.

use super::Look;
use super::blame;
use super::breaker::Budget;
use super::complaint::Weight;
use crate::fleet::event::{Cordon, Event, Why};
use crate::fleet::order::Rung;
use crate::fleet::policy::Autonomy;
use crate::fleet::state::Standing;

/// The next change of the node's standing; or why it does not change though it should.
pub(super) fn step(look: &Look<'_>, budget: &Budget<'_>) -> Option<Event> {
    if let Some(step) = held(look) {
        return Some(step);
    }
    match look.node.standing {
        Standing::Joining => joining(look, budget),
        Standing::InService => in_service(look, budget),
        Standing::Suspect => suspect(look, budget),
        Standing::Quarantined => quarantined(look),
        Standing::InRepair => in_repair(look),
        Standing::Verifying => verifying(look),
        Standing::Held => released(look),
    }
}

/// A person, or another tool, keeps the node out: whatever it is, we leave it alone.
fn held(look: &Look<'_>) -> Option<Event> {
    let standing = look.node.standing;
    if let Some(hold) = look.node.hold.as_ref().filter(|_| standing != Standing::Held) {
        let text = format!("{} holds it: {}", hold.by, hold.reason);
        return Some(look.moved(Standing::Held, Why::new(text, "whoever holds it releases it")));
    }
    if let Some(why) = shut_out(look).filter(|_| standing != Standing::Held) {
        return Some(look.moved(Standing::Held, why));
    }
    match &look.node.cordon {
        Cordon::Theirs { owner, reason }
            if standing.in_service() || standing == Standing::Joining =>
        {
            let text = format!("it is cordoned by {owner}: {reason}");
            Some(look.moved(Standing::Held, Why::new(text, "whoever cordoned it takes that away")))
        }
        _ => None,
    }
}

/// A node whose certificates were revoked may not speak: whatever it was, nobody knows what it is now, and no order reaches it.
fn shut_out(look: &Look<'_>) -> Option<Why> {
    let since = look.node.revoked?;
    let text = format!(
        "its certificates were revoked at {since:.0}: it may not speak, and nobody knows how it is"
    );
    let until = format!(
        "it enrols anew (`farrier server token create --pool {} --node {}`) and is proven, or is retired",
        look.node.place.pool, look.id
    );
    Some(Why::new(text, until))
}

fn joining(look: &Look<'_>, budget: &Budget<'_>) -> Option<Event> {
    if look.complaint.weight == Weight::Serious {
        return Some(
            look.refusal(budget).map_or_else(|| look.quarantine(), |why| look.held_back(why)),
        );
    }
    // Our own cordon goes first; a pool that only observes leaves it where it is.
    let cordoned = look.node.cordon == Cordon::Ours && look.pool.autonomy != Autonomy::Observe;
    let proven = look.proven() && look.complaint.weight == Weight::None && !cordoned;
    proven.then(|| look.in_service("it has enrolled and passed what its pool asks for"))
}

fn in_service(look: &Look<'_>, budget: &Budget<'_>) -> Option<Event> {
    match look.complaint.weight {
        Weight::None => None,
        Weight::Serious if look.refusal(budget).is_none() => Some(look.quarantine()),
        Weight::Serious | Weight::Doubt => {
            let text = look.complaint.text.clone();
            let why = Why::new(text, "that is over, or lasts too long, or gets worse");
            Some(look.moved(Standing::Suspect, why.of(look.complaint.findings.clone())))
        }
    }
}

fn suspect(look: &Look<'_>, budget: &Budget<'_>) -> Option<Event> {
    if look.complaint.weight == Weight::None {
        return Some(look.in_service("nothing speaks against it any longer"));
    }
    let silent = look.node.heartbeat_deadline(look.pool).is_some_and(|at| at <= look.now);
    let lasts = look.node.phase_deadline(look.pool.suspect_s) <= look.now;
    if look.complaint.weight < Weight::Serious && !silent && !lasts {
        return None;
    }
    match look.refusal(budget) {
        Some(why) => Some(look.held_back(why)),
        None => Some(look.quarantine()),
    }
}

fn quarantined(look: &Look<'_>) -> Option<Event> {
    if look.node.mended {
        return Some(look.moved(Standing::Verifying, Why::new(MENDED, RETURNS)));
    }
    if look.complaint.weight == Weight::None {
        let why = Why::new(
            "nothing speaks against it any longer; it is proven before it comes back",
            RETURNS,
        );
        return Some(look.moved(Standing::Verifying, why));
    }
    let until = "it is mended, by an order or by hand";
    look.emptied().then(|| look.moved(Standing::InRepair, look.complained(until)))
}

fn in_repair(look: &Look<'_>) -> Option<Event> {
    let text = match (look.node.mended, look.complaint.weight) {
        (true, _) => MENDED,
        (false, Weight::None) => {
            "nothing speaks against it any longer; it is proven before it comes back"
        }
        (false, _) if look.emptied() => return None,
        (false, _) => {
            let why = look.complained(
                "it is drained anew: its cordon was taken away, and work may run there",
            );
            return Some(look.moved(Standing::Quarantined, why));
        }
    };
    Some(look.moved(Standing::Verifying, Why::new(text, RETURNS)))
}

const MENDED: &str = "it was mended, and is proven before it comes back";
const RETURNS: &str = "it passes, and comes back; or it does not, and is mended";

fn verifying(look: &Look<'_>) -> Option<Event> {
    if let Some((rung, proof)) = look.node.proven.iter().find(|(_, proof)| !proof.passed) {
        let text = format!("it did not pass {rung}: {}", proof.evidence);
        return Some(look.unfit(Why::new(text, "it is mended, by an order or by hand")));
    }
    let settled = look.node.phase_deadline(look.pool.settle_s) <= look.now;
    if look.complaint.weight == Weight::Serious && settled {
        return Some(look.unfit(look.complained("it is mended, by an order or by hand")));
    }
    if look.complaint.weight != Weight::None || !look.proven() {
        return None;
    }
    match &look.node.cordon {
        Cordon::None => Some(look.in_service("it passed what its pool asks for")),
        Cordon::Theirs { owner, reason } => {
            let text = format!("it is fit, and cordoned by {owner}: {reason}");
            Some(look.moved(Standing::Held, Why::new(text, "whoever cordoned it takes that away")))
        }
        Cordon::Ours | Cordon::Unknown => None,
    }
}

fn released(look: &Look<'_>) -> Option<Event> {
    let theirs = matches!(look.node.cordon, Cordon::Theirs { .. });
    if look.node.hold.is_some() {
        return None;
    }
    // Who held it may have let go meanwhile, and then it is held for this.
    if let Some(why) = shut_out(look) {
        return (look.node.why != why).then(|| look.moved(Standing::Held, why));
    }
    if theirs {
        return None;
    }
    let why = Why::new("nobody holds it any longer; it is proven before it comes back", RETURNS);
    Some(look.moved(Standing::Verifying, why))
}

impl Look<'_> {
    fn moved(&self, to: Standing, why: Why) -> Event {
        Event::Moved { node: self.id.clone(), to, why }
    }

    fn in_service(&self, text: &str) -> Event {
        self.moved(Standing::InService, Why::new(text, "something speaks against it"))
    }

    fn complained(&self, until: &str) -> Why {
        Why::new(self.complaint.text.clone(), until).of(self.complaint.findings.clone())
    }

    fn quarantine(&self) -> Event {
        self.moved(Standing::Quarantined, self.complained("it is mended and proven"))
    }

    /// Back to repair; by way of the quarantine where work may still run.
    fn unfit(&self, why: Why) -> Event {
        let to = if self.emptied() { Standing::InRepair } else { Standing::Quarantined };
        self.moved(to, why)
    }

    /// Whether no work runs there, and none comes.
    fn emptied(&self) -> bool {
        self.node.drained && matches!(self.node.cordon, Cordon::Ours | Cordon::Theirs { .. })
    }

    /// Why a node that should be taken out of service is not.
    fn refusal(&self, budget: &Budget<'_>) -> Option<Why> {
        if self.pool.autonomy == Autonomy::Observe {
            let text = format!(
                "it would be quarantined for {}; the pool only observes",
                self.complaint.text
            );
            return Some(Why::new(text, "the pool's policy allows it, or a person holds the node"));
        }
        if let Some((domain, symptom)) =
            blame::culprit(self.node, &self.complaint.codes, self.blamed)
        {
            let text = format!("{domain} is to blame for {}, and not the node", symptom.words());
            return Some(Why::new(text, format!("{domain} is mended")));
        }
        budget.refusal(self.node)
    }

    /// What its pool asks for, and what it failed before.
    pub(super) fn asked_for(&self) -> impl Iterator<Item = Rung> {
        let owed = self.node.owed.iter().filter(|rung| !self.pool.prove.contains(rung));
        self.pool.prove.iter().chain(owed).copied()
    }

    pub(super) fn has_passed(&self, rung: Rung) -> bool {
        self.node.proven.get(&rung).is_some_and(|proof| proof.passed)
    }

    /// Whether it passed all that it has to.
    pub(super) fn proven(&self) -> bool {
        self.asked_for().all(|rung| self.has_passed(rung))
    }
}
