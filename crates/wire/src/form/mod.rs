//! Messages made into what the fleet works with, and back. Whatever comes from outside is bounded here; nothing panics.

mod findings;
mod made_of;
mod order;

use farrier_fleet::health::SERVER_FINDING_ID;

pub use findings::{changes, changes_json, findings_json, open_findings};
pub use made_of::{cordon, cordon_message, makeup, makeup_message};
pub use order::{UnknownOrder, answer, answer_message, order, order_message};

/// Why a message is refused.
#[derive(Debug, thiserror::Error)]
pub enum FormError {
    /// Something must be there.
    #[error("`{0}` is missing")]
    Missing(&'static str),
    /// There is too much of something.
    #[error("`{what}` has {found}, and at most {most} are taken")]
    TooMuch {
        /// Of what.
        what: &'static str,
        /// How much.
        found: usize,
        /// How much is taken.
        most: usize,
    },
    /// Findings that do not read: no JSON, a field that is not known, or a number that is none.
    #[error("the findings do not read")]
    Findings(#[source] serde_json::Error),
    /// A change whose kind and finding disagree.
    #[error("finding {0} is said to be cleared and is not, or the other way round")]
    Contradiction(u64),
    /// A finding with a number that is not an agent's to give.
    #[error("finding {0} has a number that is reserved: agents stay below {SERVER_FINDING_ID}")]
    ReservedId(u64),
}

fn within(what: &'static str, found: usize, most: usize) -> Result<(), FormError> {
    if found <= most { Ok(()) } else { Err(FormError::TooMuch { what, found, most }) }
}
