//! Converts messages to and from the types of the fleet. Input from outside is checked against
//! limits here, and never causes a panic.

mod coverage;
mod evidence;
mod finding;
mod findings;
mod inventory;
mod order;
mod read_error;

use farrier_fleet::health::SERVER_FINDING_ID;
use farrier_fleet::health::signal::UnknownSignal;

pub use coverage::{coverage, coverage_message};
pub use findings::{changes, changes_message, findings_message, open_findings};
pub use inventory::{cordon, cordon_message, inventory, inventory_message};
pub use order::{UnknownOrder, order, order_message, order_status, order_status_message};

#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// A required field is missing.
    #[error("`{0}` is missing")]
    Missing(&'static str),
    #[error("the size of `{what}` is {found}, but the limit is {most}")]
    TooMuch {
        what: &'static str,
        found: usize,
        /// The limit.
        most: usize,
    },
    /// A finding cannot be decoded, for example because a field has another type.
    #[error("failed to decode a finding")]
    Decode(#[from] prost::DecodeError),
    /// An unknown or missing enum value.
    #[error("`{what}` has the unknown value {value}")]
    UnknownValue {
        what: &'static str,
        /// Number of the value; 0 if it is missing.
        value: i32,
    },
    #[error("failed to read evidence")]
    UnknownSignal(#[from] UnknownSignal),
    /// The number is NaN or infinite. The log is JSON, which cannot represent such numbers.
    #[error("`{0}` has a number that is not finite")]
    NotFinite(&'static str),
    /// The time is out of range.
    #[error("`{what}` is not a valid time")]
    Time {
        what: &'static str,
        #[source]
        err: jiff::Error,
    },
    /// The kind of a change does not fit its finding.
    #[error(
        "the kind of a change contradicts finding {0}: only a cleared finding has a clear time"
    )]
    Contradiction(u64),
    /// The finding ID is reserved for the server.
    #[error("finding ID {0} is reserved: IDs of agents are below {SERVER_FINDING_ID}")]
    ReservedId(u64),
}

fn within(what: &'static str, found: usize, most: usize) -> Result<(), ConvertError> {
    if found <= most { Ok(()) } else { Err(ConvertError::TooMuch { what, found, most }) }
}
