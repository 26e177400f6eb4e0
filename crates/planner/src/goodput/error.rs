//! Invalid inputs of a goodput estimate.

/// Why an input is invalid, and which values would be possible.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GoodputError {
    /// A count is 0.
    #[error("`{what}` is 0; it must be at least 1")]
    Zero { what: &'static str },
    /// A number is negative or not finite.
    #[error("`{what}` is {value}; possible: a finite number of at least 0")]
    Negative { what: &'static str, value: f64 },
    /// A number is zero, negative or not finite.
    #[error("`{what}` is {value}; possible: a finite number above 0")]
    NotPositive { what: &'static str, value: f64 },
    #[error("`{what}` is {value}; possible: 0 to {max}")]
    AboveMaximum { what: &'static str, value: f64, max: f64 },
    #[error("`{what}` is {value}; possible: a share from 0 to 1")]
    OutsideUnitInterval { what: &'static str, value: f64 },
    /// A checkpoint would start before the previous one is written.
    #[error(
        "a checkpoint interval of {interval_s:.1} s is shorter than the write time of \
         {write_s:.1} s; possible: {min_s:.1} s or more, or {faster:.1} times the bandwidth"
    )]
    BelowWrite {
        interval_s: f64,
        /// Background write, or copy to a peer.
        write_s: f64,
        min_s: f64,
        /// Required speedup of the write.
        faster: f64,
    },
    /// Planned stops would take all of the time.
    #[error(
        "{per_day} planned stops per day do not fit into a day: each takes {:.1} min with its \
         checkpoint and recovery; possible: fewer than {:.1} per day", each_s / 60.0, 86_400.0 / each_s
    )]
    StopsBeyondDay { per_day: f64, each_s: f64 },
    /// The interval is shorter than a step.
    #[error(
        "a checkpoint interval of {interval_s:.3} s is shorter than a step of {step_s:.3} s; \
         possible: {step_s:.3} s or more"
    )]
    BelowStep { interval_s: f64, step_s: f64 },
}

pub(super) fn at_least_zero(what: &'static str, value: f64) -> Result<(), GoodputError> {
    if value.is_finite() && value >= 0.0 {
        Ok(())
    } else {
        Err(GoodputError::Negative { what, value })
    }
}

pub(super) fn at_most(what: &'static str, value: f64, max: f64) -> Result<(), GoodputError> {
    if (0.0..=max).contains(&value) {
        Ok(())
    } else {
        Err(GoodputError::AboveMaximum { what, value, max })
    }
}

pub(super) fn positive(what: &'static str, value: f64) -> Result<(), GoodputError> {
    if value.is_finite() && value > 0.0 {
        Ok(())
    } else {
        Err(GoodputError::NotPositive { what, value })
    }
}

pub(super) fn share(what: &'static str, value: f64) -> Result<(), GoodputError> {
    if (0.0..=1.0).contains(&value) {
        Ok(())
    } else {
        Err(GoodputError::OutsideUnitInterval { what, value })
    }
}
