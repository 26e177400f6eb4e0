//! One node: what is known of it, and what an event makes of that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::symptom::Symptom;
use crate::fleet::access::AccessChange;
use crate::fleet::event::{Ask, Cordon, Entry, Event, GpuMakeup, Makeup, Record};
use crate::fleet::identity::{Actor, Place};
use crate::fleet::order::{Answer, Order, OrderKind, Rung};
use crate::fleet::policy::Policy;
use crate::fleet::reason::{OrderFailure, Reason, UnblockedBy, Why, bounded};
use crate::health::{Change, Finding, FindingKind};

/// Where a node stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// Enrolled, and not proven yet.
    Joining,
    /// It works.
    InService,
    /// There is a doubt. It works on.
    Suspect,
    /// It gets no new work, and what runs there is waited for.
    Quarantined,
    /// It is being mended, or waits for a person who does.
    InRepair,
    /// It is being proven.
    Verifying,
    /// A person or another tool holds it out of service.
    Held,
}

impl Standing {
    /// Every one, as a node may go through them.
    pub const ALL: [Self; 7] = [
        Self::Joining,
        Self::InService,
        Self::Suspect,
        Self::Quarantined,
        Self::InRepair,
        Self::Verifying,
        Self::Held,
    ];

    /// Whether it may have work.
    pub fn in_service(self) -> bool {
        matches!(self, Self::InService | Self::Suspect)
    }

    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::InService => "in service",
            Self::Suspect => "suspect",
            Self::Quarantined => "quarantined",
            Self::InRepair => "in repair",
            Self::Verifying => "verifying",
            Self::Held => "held",
        }
    }
}

/// What is known of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Where it stands, and whose it is.
    pub place: Place,
    /// How it stands.
    pub standing: Standing,
    /// Since when.
    pub since: Timestamp,
    /// Why.
    pub why: Why,
    /// What it is made of; none before its first report.
    pub makeup: Option<Arc<Makeup>>,
    /// GPUs that it had and has no more, in this boot or with an open finding: so that these can be named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<GpuMakeup>,
    /// When it was last heard, while it is silent.
    pub silent_since: Option<Timestamp>,
    /// When its certificates were revoked, for as long as it has no other: it may not speak, and nobody knows how it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<Timestamp>,
    /// The last record of the agent's journal that is here.
    pub record: Option<Record>,
    /// Open findings, by their number on the node.
    pub findings: BTreeMap<u64, Finding>,
    /// Whether it takes new work.
    pub cordon: Cordon,
    /// Whether the work that was there is gone, since the cordon.
    pub drained: bool,
    /// A person who holds it.
    pub hold: Option<Hold>,
    /// Whether a person let a repair that waits go on.
    pub approved: bool,
    /// The last order's generation. Only grows.
    pub generation: u64,
    /// The order that is not answered yet.
    pub order: Option<Pending>,
    /// Orders of this kind that failed since one was done.
    pub failures: u32,
    /// When the last of them failed, and why.
    pub failed: Option<(Timestamp, OrderFailure)>,
    /// What was ordered then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_order: Option<OrderKind>,
    /// What was proven, in the present boot and since the last repair.
    pub proven: BTreeMap<Rung, Proof>,
    /// The proof that it did not pass, for as long as nothing was done about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unproven: Option<Unproven>,
    /// What a person wants proven though the node is in service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prove_now: Option<Rung>,
    /// What a person wants done there, once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errand: Option<Errand>,
    /// What came of what a person wanted done, the last of each kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errands_ended: Vec<ErrandEnded>,
    /// Rungs that it did not pass, and has not passed since: it owes them, whatever its pool asks for.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub owed: BTreeSet<Rung>,
    /// Repairs since it was last in service.
    pub repairs: Vec<Repair>,
    /// Those that were ordered, by the fault that they were meant for, since a person last repaired it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tried: BTreeMap<String, Vec<OrderKind>>,
    /// What a person did, for as long as its agent does not know: it counts what happened before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub untold_repair: Option<String>,
    /// Whether one of them was made since it came into repair.
    pub mended: bool,
    /// When it was quarantined, in the last year.
    pub quarantines: Vec<Timestamp>,
    /// Why something is not done that should be.
    pub held_back: Option<Why>,
    /// What it shows that other nodes of its rack or switch may show too, and since when, by the server's clock.
    #[serde(default)]
    pub shows: BTreeMap<Symptom, Timestamp>,
    /// Since when it reports more than its quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over_quota_since: Option<Timestamp>,
    /// Since when the server cannot read what it reports of its findings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable_since: Option<Timestamp>,
    /// The entry with which it enrolled, the first time since its name was free: what the log has of that name before is of another node.
    #[serde(default)]
    pub first_seq: u64,
    /// Seconds since its last change of standing that count towards no timeout: the controller did not run, or the clock was stepped.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub uncounted_s: u32,
    /// Likewise, since its heartbeats ended: towards no heartbeat timeout.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub heartbeat_uncounted_s: u32,
    /// When it was first in service; none: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_served: Option<Timestamp>,
    /// When it is looked at again.
    pub wake: Option<Timestamp>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(seconds: &u32) -> bool {
    *seconds == 0
}

/// A person who holds a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// Who.
    pub by: Actor,
    /// Why.
    pub reason: String,
}

impl Hold {
    /// That it holds the node.
    pub(in crate::fleet) fn as_reason(&self) -> Reason {
        Reason::OperatorHold { by: self.by.clone(), reason: bounded(&self.reason) }
    }
}

/// An order on its way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// It.
    pub order: Order,
    /// Whether the agent has it in its journal.
    pub accepted: bool,
    /// For a repair, the faults that it is meant for, as [`Node::faults`] names them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<String>,
}

/// What was done to mend a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Repair {
    /// By its agent.
    Ordered(OrderKind),
    /// By a person, in their words.
    ByHand(String),
}

/// The result of a verification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// When.
    pub at: Timestamp,
    /// Whether it passed.
    pub passed: bool,
    /// What was seen.
    pub evidence: String,
}

/// What a person wants done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Errand {
    /// What.
    pub what: OrderKind,
    /// Who.
    pub by: Actor,
}

/// What came of something that a person wanted done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrandEnded {
    /// What.
    pub what: OrderKind,
    /// When.
    pub at: Timestamp,
    /// What the node answered in the end; refused, without a text, where it was withdrawn.
    pub answer: Answer,
    /// Why the controller withdrew it, where it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withdrawn: Option<Reason>,
}

/// A proof that was not passed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unproven {
    /// Which.
    pub rung: Rung,
    /// What was seen.
    pub why: String,
}

impl Node {
    pub(super) fn joining(place: Place, at: Timestamp, generation: u64) -> Self {
        Self {
            place,
            standing: Standing::Joining,
            since: at,
            why: Why::new(Reason::Enrolled, UnblockedBy::Verification),
            makeup: None,
            gone: Vec::new(),
            silent_since: None,
            revoked: None,
            record: None,
            findings: BTreeMap::new(),
            cordon: Cordon::Unknown,
            drained: false,
            hold: None,
            approved: false,
            generation,
            order: None,
            failures: 0,
            failed: None,
            failed_order: None,
            proven: BTreeMap::new(),
            unproven: None,
            prove_now: None,
            errand: None,
            errands_ended: Vec::new(),
            owed: BTreeSet::new(),
            repairs: Vec::new(),
            tried: BTreeMap::new(),
            untold_repair: None,
            mended: false,
            quarantines: Vec::new(),
            held_back: None,
            shows: BTreeMap::new(),
            over_quota_since: None,
            unreadable_since: None,
            first_seq: 0,
            uncounted_s: 0,
            heartbeat_uncounted_s: 0,
            first_served: None,
            wake: None,
        }
    }

    fn is_out(&self) -> bool {
        !matches!(self.standing, Standing::InService | Standing::Suspect | Standing::Joining)
    }

    /// Whether it counts towards disruption budgets: it was in service, or it was quarantined while it joined, which takes it away from
    /// whatever ran there before it was managed. A node that is out for another reason before its first service does not count: otherwise a
    /// joining node could use up the budget of others by claiming an external cordon and by failing its verification afterwards.
    pub(in crate::fleet) fn counts_as_out(&self) -> bool {
        self.is_out() && (self.first_served.is_some() || !self.quarantines.is_empty())
    }

    /// Adds what states of format 1 lack. They do not say which nodes have been in service; every node that is not joining is taken as one
    /// that was, because a node too many in the count keeps a healthy node in service, and one too few takes it out.
    pub(super) fn upgrade_from_v1(&mut self) {
        if self.standing != Standing::Joining {
            self.first_served.get_or_insert(self.since);
        }
    }
}

impl Node {
    pub(in crate::fleet) fn take_in(&mut self, entry: &Entry) {
        match &entry.event {
            Event::Placed { place, .. } => self.place = place.clone(),
            Event::Seen { makeup, .. } => self.seen(makeup),
            Event::Silent { since, .. } => {
                self.silent_since = Some(*since);
                self.heartbeat_uncounted_s = 0;
            }
            Event::Access { what: AccessChange::CertificateRevoked { .. }, .. } => {
                self.revoked = Some(entry.at);
            }
            Event::Heard { .. } => {
                self.silent_since = None;
                self.heartbeat_uncounted_s = 0;
                self.revoked = None;
                // What could not be done because nobody was there is no failure of the node.
                self.failures = 0;
                self.failed = None;
            }
            Event::Found { record, changes, .. } => {
                let was_unfit = self.has_found_against();
                self.found(record, changes);
                self.doubt_what_was_not_proven(was_unfit);
            }
            Event::Resynced { record, open, .. } => {
                let was_unfit = self.has_found_against();
                self.record = Some(record.clone());
                self.findings = open.iter().map(|it| (it.id, it.clone())).collect();
                self.doubt_what_was_not_proven(was_unfit);
            }
            Event::CordonSeen { cordon, .. } => {
                if matches!(cordon, Cordon::None | Cordon::Unknown) {
                    self.drained = false;
                }
                self.cordon = cordon.clone();
            }
            Event::Answered { generation, answer, .. } => {
                self.answered(*generation, answer, entry.at);
            }
            Event::OrdersSeen { generation, .. } => self.orders_seen(*generation),
            Event::QuotaExceeded { .. } => {
                self.over_quota_since.get_or_insert(entry.at);
            }
            Event::QuotaKept { .. } => self.over_quota_since = None,
            Event::ReportsUnreadable { .. } => {
                self.unreadable_since.get_or_insert(entry.at);
            }
            Event::ReportsReadable { .. } => self.unreadable_since = None,
            Event::Moved { to, why, .. } => self.moved(*to, why, entry.at),
            Event::Withdrawn { generation, why, .. } => self.withdrawn(*generation, why, entry.at),
            Event::HeldBack { why, .. } => self.held_back = Some(why.clone()),
            _ => {}
        }
        self.note_symptoms(entry.at);
    }

    fn seen(&mut self, makeup: &Makeup) {
        let before = self.makeup.as_ref().map(|it| it.boot.as_str());
        if before.is_some_and(|boot| boot != makeup.boot) {
            // What was proven in another boot is proven no more, and what was not may be now.
            self.proven.clear();
            self.unproven = None;
        }
        self.note_gone(makeup);
        self.makeup = Some(Arc::new(makeup.clone()));
    }

    fn found(&mut self, record: &Record, changes: &[Change]) {
        if self.has(record) {
            return;
        }
        self.record = Some(record.clone());
        for finding in changes.iter().map(Change::finding) {
            if finding.is_open() {
                self.findings.insert(finding.id, finding.clone());
            } else {
                self.findings.remove(&finding.id);
            }
        }
    }

    /// Whether a repair waits for a person to let it go on.
    pub fn waits_for_approval(&self) -> bool {
        !self.approved
            && self.held_back.as_ref().is_some_and(|why| why.unblocked_by.is_approvable())
    }

    /// Whether the record was taken in already.
    pub fn has(&self, record: &Record) -> bool {
        let last = self.record.as_ref().filter(|it| it.journal == record.journal);
        last.is_some_and(|last| record.number <= last.number)
    }

    fn moved(&mut self, to: Standing, why: &Why, at: Timestamp) {
        match to {
            Standing::Quarantined => {
                if !self.is_out() {
                    let year = SignedDuration::from_hours(365 * 24);
                    self.quarantines.retain(|it| at.duration_since(*it) < year);
                    self.quarantines.push(at);
                }
                self.mended = false;
                self.untold_repair = None;
                self.proven.clear();
            }
            Standing::InRepair => {
                self.mended = false;
                self.untold_repair = None;
                self.proven.clear();
            }
            // Whoever held it may have changed anything.
            Standing::Verifying if self.standing == Standing::Held => {
                self.proven.clear();
                self.unproven = None;
            }
            Standing::InService => {
                self.first_served.get_or_insert(at);
                self.repairs.clear();
                self.tried.clear();
                self.untold_repair = None;
                self.approved = false;
                self.unproven = None;
            }
            _ => {}
        }
        if !to.in_service() {
            self.prove_now = None;
        }
        self.standing = to;
        self.since = at;
        self.uncounted_s = 0;
        self.why = why.clone();
        self.held_back = None;
        self.failures = 0;
        self.failed = None;
    }

    pub(in crate::fleet) fn ordered(&mut self, order: &Order) {
        self.generation = order.generation;
        self.held_back = None;
        // Named now: a fault may be over before the repair is answered.
        let faults = if order.what.is_repair() { self.faults() } else { Vec::new() };
        self.order = Some(Pending { order: order.clone(), accepted: false, faults });
    }

    /// An order below that number is never taken: what is on its way is ordered anew, with a higher one.
    fn orders_seen(&mut self, generation: u64) {
        if generation > self.generation {
            self.generation = generation;
            self.order = None;
        }
    }

    fn answered(&mut self, generation: u64, answer: &Answer, at: Timestamp) {
        let Some(pending) = self.order.as_mut() else { return };
        if pending.order.generation != generation {
            return;
        }
        if *answer == Answer::Accepted {
            pending.accepted = true;
            return;
        }
        let what = pending.order.what.clone();
        let faults = std::mem::take(&mut pending.faults);
        self.order = None;
        if what.is_errand() {
            return self.end_errand(what, answer, at);
        }
        match (answer, &what) {
            (Answer::Done { evidence }, _) => {
                self.failures = 0;
                self.failed = None;
                for fault in faults {
                    self.tried.entry(fault).or_default().push(what.clone());
                }
                self.done(what, evidence, at);
            }
            (Answer::Failed { why }, OrderKind::Verify { rung }) => {
                let proof = Proof { at, passed: false, evidence: why.clone() };
                self.proven.insert(*rung, proof);
                self.unproven = Some(Unproven { rung: *rung, why: why.clone() });
                self.owed.insert(*rung);
                self.prove_now.take_if(|wanted| wanted == rung);
                self.fail(what, OrderFailure::Reported(why.clone()), at);
            }
            // An agent that does not know of repairs goes by what it counted: what it finds against the node is what is left.
            (Answer::Failed { .. } | Answer::Refused { .. }, OrderKind::NoteRepair { .. }) => {
                self.untold_repair = None;
            }
            (Answer::Failed { why } | Answer::Refused { why }, _) => {
                self.fail(what, OrderFailure::Reported(why.clone()), at);
            }
            (Answer::Accepted, _) => {}
        }
    }

    fn done(&mut self, what: OrderKind, evidence: &str, at: Timestamp) {
        match what {
            OrderKind::Cordon => {
                self.cordon = Cordon::Ours;
                self.drained = false;
            }
            OrderKind::Drain { .. } => self.drained = true,
            OrderKind::Uncordon => {
                self.cordon = Cordon::None;
                self.drained = false;
            }
            OrderKind::Verify { rung } => {
                let proof = Proof { at, passed: true, evidence: evidence.to_owned() };
                self.proven.insert(rung, proof);
                self.owed.remove(&rung);
                self.unproven.take_if(|it| it.rung == rung);
                self.prove_now.take_if(|wanted| *wanted == rung);
            }
            OrderKind::NoteRepair { .. } => self.untold_repair = None,
            OrderKind::ResetGpu { .. } | OrderKind::Reboot | OrderKind::RestartService { .. } => {
                self.mend(Repair::Ordered(what));
            }
            // What an operator asked for ends in `end_errand`.
            operators => debug_assert!(operators.is_errand(), "{operators}"),
        }
    }

    /// Whatever came of it, it is not tried again: a person sees it, and asks anew.
    fn end_errand(&mut self, what: OrderKind, answer: &Answer, at: Timestamp) {
        let (passed, evidence) = match answer {
            Answer::Done { evidence } => (true, evidence),
            Answer::Failed { why } | Answer::Refused { why } => (false, why),
            Answer::Accepted => return,
        };
        if what.changes() {
            self.proven.clear();
        }
        // A test that ran counts as the proof that it is; one that was refused says nothing of the GPUs.
        if let Some(rung) = what.proves().filter(|_| !matches!(answer, Answer::Refused { .. })) {
            let (at, evidence) = (at, evidence.clone());
            self.unproven.take_if(|it| it.rung == rung);
            self.owed.remove(&rung);
            if !passed {
                self.unproven = Some(Unproven { rung, why: evidence.clone() });
                self.owed.insert(rung);
            }
            self.proven.insert(rung, Proof { at, passed, evidence });
        }
        // Another may have been asked for meanwhile.
        self.errand.take_if(|errand| errand.what == what);
        let kind = std::mem::discriminant(&what);
        self.errands_ended.retain(|it| std::mem::discriminant(&it.what) != kind);
        self.errands_ended.push(ErrandEnded { what, at, answer: answer.clone(), withdrawn: None });
    }

    fn mend(&mut self, repair: Repair) {
        self.proven.clear();
        self.unproven = None;
        self.approved = false;
        self.mended = true;
        self.failures = 0;
        self.failed = None;
        self.repairs.push(repair);
    }

    fn withdrawn(&mut self, generation: u64, why: &Reason, at: Timestamp) {
        let Some(pending) = self.order.take_if(|it| it.order.generation == generation) else {
            return;
        };
        // What the operator asked for is ordered again.
        if matches!(why, Reason::OrderSuperseded { .. }) {
            return;
        }
        if pending.order.what.is_errand() {
            self.end_errand(pending.order.what, &Answer::Refused { why: String::new() }, at);
            if let Some(ended) = self.errands_ended.last_mut() {
                ended.withdrawn = Some(why.clone());
            }
            return;
        }
        self.fail(pending.order.what, OrderFailure::Withdrawn(Box::new(why.clone())), at);
    }

    fn fail(&mut self, what: OrderKind, why: OrderFailure, at: Timestamp) {
        // Repairs share one count: a reboot that fails after a failed reset is one more failed repair. Everything else counts by kind, so
        // that a cordon is not delayed by the back-off of failed drains.
        let same = |it: &OrderKind| it.same_kind(&what) || (it.is_repair() && what.is_repair());
        if !self.failed_order.as_ref().is_some_and(same) {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
        self.failed = Some((at, why));
        self.failed_order = Some(what);
    }

    pub(super) fn asked(&mut self, what: &Ask, entry: &Entry) {
        match what {
            Ask::Hold { reason, .. } => {
                self.hold = Some(Hold { by: entry.by.clone(), reason: reason.clone() });
            }
            Ask::Release { .. } => self.hold = None,
            Ask::Approve { .. } => self.approved = true,
            Ask::Repaired { what, .. } => {
                self.tried.clear();
                self.untold_repair = Some(what.clone());
                self.mend(Repair::ByHand(what.clone()));
            }
            Ask::Verify { rung, .. } => {
                self.proven.remove(rung);
                self.unproven.take_if(|it| it.rung == *rung);
                self.prove_now = self.standing.in_service().then_some(*rung);
            }
            Ask::Errand { what, .. } => {
                self.errand = Some(Errand { what: what.clone(), by: entry.by.clone() });
            }
            Ask::Freeze { .. } | Ask::Thaw { .. } => {}
        }
    }

    /// When it must be looked at though nothing happens: the earliest of all that waits for time.
    pub(super) fn next_look(&self, policy: &Policy) -> Option<Timestamp> {
        let pool = policy.of(&self.place.pool);
        let lease = self.order.as_ref().map(|it| it.order.lease_until);
        let doubted = self.standing == Standing::Suspect;
        let silent = self.heartbeat_deadline(pool).filter(|_| doubted);
        let suspect = doubted.then(|| self.phase_deadline(pool.suspect_s));
        let settled =
            (self.standing == Standing::Verifying).then(|| self.phase_deadline(pool.settle_s));
        let retry =
            self.failed.as_ref().map(|(at, _)| later(*at, pool.retry_s_after(self.failures)));
        // Who should be out and may not is looked at again and again: a breaker does not say when there is room.
        let refused = doubted || self.standing == Standing::Joining;
        let held_back = self
            .held_back
            .as_ref()
            .and_then(|why| why.unblocked_by.changes_at().or(refused.then_some(self.since)));
        [lease, silent, suspect, settled, retry, held_back].into_iter().flatten().min()
    }
}

impl Node {
    /// Dated by when the server heard of it: nodes' own clocks may be hours apart.
    fn note_symptoms(&mut self, at: Timestamp) {
        let faults = self.findings.values().filter(|it| it.kind == FindingKind::Fault);
        let mut shown: BTreeSet<Symptom> = faults.filter_map(|it| Symptom::of(&it.code)).collect();
        // Whoever may not speak is silent for that, and no switch is to blame.
        if self.silent_since.is_some() && self.revoked.is_none() {
            shown.insert(Symptom::Silence);
        }
        self.shows.retain(|symptom, _| shown.contains(symptom));
        for symptom in shown {
            let since = self.silent_since.filter(|_| symptom == Symptom::Silence).unwrap_or(at);
            self.shows.entry(symptom).or_insert(since);
        }
    }
}

/// So many seconds after.
pub(crate) fn later(at: Timestamp, seconds: u32) -> Timestamp {
    at.checked_add(SignedDuration::from_secs(i64::from(seconds))).unwrap_or(Timestamp::MAX)
}
