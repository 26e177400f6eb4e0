//! What goodput cannot be computed from.

/// Why there is no answer, and what would be possible.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GoodputError {
    /// Nothing trains.
    #[error("`{what}` is 0; at least 1 is needed")]
    None {
        /// Which count.
        what: &'static str,
    },
    /// Not a number that can be reckoned with.
    #[error("`{what}` is {value}; a finite number of at least 0 is possible")]
    Negative {
        /// Which input.
        what: &'static str,
        /// As given.
        value: f64,
    },
    /// A rate or a time that must not be 0.
    #[error("`{what}` is {value}; a finite number above 0 is possible")]
    NotPositive {
        /// Which input.
        what: &'static str,
        /// As given.
        value: f64,
    },
    /// Beyond what there is.
    #[error("`{what}` is {value}; a number from 0 to {most} is possible")]
    TooMuch {
        /// Which input.
        what: &'static str,
        /// As given.
        value: f64,
        /// The most that is possible.
        most: f64,
    },
    /// A share that is none.
    #[error("`{what}` is {value}; a share from 0 to 1 is possible")]
    NotAShare {
        /// Which input.
        what: &'static str,
        /// As given.
        value: f64,
    },
    /// A checkpoint would begin before the last is written.
    #[error(
        "a checkpoint every {interval_s:.1} s is not possible: {write_s:.1} s go by until one is \
         written; {least_s:.1} s or more is possible, or {faster:.1} times the bandwidth"
    )]
    BelowWrite {
        /// As given.
        interval_s: f64,
        /// The background write, or the copy to a peer.
        write_s: f64,
        /// The shortest that is possible.
        least_s: f64,
        /// How many times faster the write would have to be.
        faster: f64,
    },
    /// Planned stops would take all of the time, or more.
    #[error(
        "{per_day} planned stops a day are not possible: each takes {:.1} min with its checkpoint \
         and recovery; fewer than {:.1} a day are possible", each_s / 60.0, 86_400.0 / each_s
    )]
    StopsBeyondDay {
        /// As given.
        per_day: f64,
        /// A stop.
        each_s: f64,
    },
    /// A checkpoint within a step.
    #[error(
        "a checkpoint every {interval_s:.3} s is not possible: a step takes {step_s:.3} s, and a \
         checkpoint is taken between steps; {step_s:.3} s or more is possible"
    )]
    BelowStep {
        /// As given.
        interval_s: f64,
        /// A step.
        step_s: f64,
    },
}

/// A finite number of at least 0.
pub(super) fn at_least_zero(what: &'static str, value: f64) -> Result<(), GoodputError> {
    if value.is_finite() && value >= 0.0 {
        Ok(())
    } else {
        Err(GoodputError::Negative { what, value })
    }
}

/// A number from 0 to the most that there is.
pub(super) fn at_most(what: &'static str, value: f64, most: f64) -> Result<(), GoodputError> {
    if (0.0..=most).contains(&value) {
        Ok(())
    } else {
        Err(GoodputError::TooMuch { what, value, most })
    }
}

/// A finite number above 0.
pub(super) fn positive(what: &'static str, value: f64) -> Result<(), GoodputError> {
    if value.is_finite() && value > 0.0 {
        Ok(())
    } else {
        Err(GoodputError::NotPositive { what, value })
    }
}

/// A number from 0 to 1.
pub(super) fn share(what: &'static str, value: f64) -> Result<(), GoodputError> {
    if (0.0..=1.0).contains(&value) { Ok(()) } else { Err(GoodputError::NotAShare { what, value }) }
}
