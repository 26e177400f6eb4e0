//! Messages made into what the fleet works with, and back. Whatever comes from outside is bounded here; nothing panics.

mod evidence;
mod finding;
mod findings;
mod inventory;
mod order;
mod read_error;

use farrier_fleet::health::SERVER_FINDING_ID;
use farrier_fleet::health::signal::UnknownSignal;

pub use findings::{changes, changes_message, findings_message, open_findings};
pub use inventory::{cordon, cordon_message, inventory, inventory_message};
pub use order::{UnknownOrder, answer, order, order_message, order_status_message};

/// Why a message is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// Something must be there.
    #[error("`{0}` is missing")]
    Missing(&'static str),
    /// There is too much of something.
    #[error("`{what}` has {found}, and at most {most} are taken")]
    TooMuch {
        what: &'static str,
        found: usize,
        /// How much is taken.
        most: usize,
    },
    /// A finding is no message, or a field of it has another type.
    #[error("failed to decode a finding")]
    Decode(#[from] prost::DecodeError),
    /// A value of an enumeration that is not known here, or none at all.
    #[error("`{what}` has the value {value}, which is not known")]
    UnknownValue {
        what: &'static str,
        /// Its number; 0 where it is missing.
        value: i32,
    },
    /// A signal that is not known here.
    #[error("failed to read evidence")]
    UnknownSignal(#[from] UnknownSignal),
    /// NaN or infinity. The log is written in JSON, which has no such number.
    #[error("`{0}` has a number that is not finite")]
    NotFinite(&'static str),
    /// A time that has no date.
    #[error("`{what}` is no time")]
    Time {
        what: &'static str,
        #[source]
        err: jiff::Error,
    },
    /// A change whose kind and finding disagree.
    #[error("finding {0} is said to be cleared and is not, or the other way round")]
    Contradiction(u64),
    /// A finding with a number that is not an agent's to give.
    #[error("finding {0} has a number that is reserved: agents stay below {SERVER_FINDING_ID}")]
    ReservedId(u64),
}

fn within(what: &'static str, found: usize, most: usize) -> Result<(), ConvertError> {
    if found <= most { Ok(()) } else { Err(ConvertError::TooMuch { what, found, most }) }
}
