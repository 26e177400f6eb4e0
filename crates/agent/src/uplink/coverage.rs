//! Sends coverage gaps to the server.

use farrier_facts::node::ReadError;
use farrier_fleet::fleet::coverage::GapSource;
use farrier_fleet::health::Subject;
use farrier_hardware::clock;
use farrier_wire::{convert, proto};

use crate::monitor::ObservedGap;
use crate::state::Published;

/// Returns the open coverage gaps. `None` while the agent does not know them.
pub type CoverageSource = Box<dyn Fn() -> Option<Vec<ObservedGap>> + Send>;

/// Returns the gaps of the last published state. If that state is outdated, one more gap says so.
pub fn coverage_source(published: Published) -> CoverageSource {
    Box::new(move || {
        let state = published.get()?;
        let mut gaps = state.gaps.as_ref()?.to_vec();
        if state.staleness(clock::since_boot_ms()).is_some() {
            gaps.push(ObservedGap {
                subject: Subject::Agent,
                source: GapSource::Monitor,
                cause: ReadError::Unavailable { detail: "it publishes no state".into() },
                since_ms: state.at.steady_ms,
            });
        }
        Some(gaps)
    })
}

/// Whether both lists have the same gaps. The age of the gaps does not matter.
pub(super) fn is_same(sent: &[ObservedGap], gaps: &[ObservedGap]) -> bool {
    let is_same = |(one, other): (&ObservedGap, &ObservedGap)| {
        (&one.subject, &one.source, &one.cause) == (&other.subject, &other.source, &other.cause)
    };
    sent.len() == gaps.len() && sent.iter().zip(gaps).all(is_same)
}

pub(super) fn message(gaps: &[ObservedGap]) -> proto::Coverage {
    let now_ms = clock::since_boot_ms();
    convert::coverage_message(gaps.iter().map(|gap| {
        let age_ms = u64::try_from(now_ms - gap.since_ms).unwrap_or_default();
        (&gap.subject, &gap.source, &gap.cause, age_ms)
    }))
}
