//! How long to wait before the next try: twice as long each time, and never all at the same moment.

use std::time::Duration;

use ring::rand::{SecureRandom, SystemRandom};

const FIRST: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_secs(60);

/// Counts the tries.
#[derive(Debug, Default)]
pub(super) struct BackOff {
    tries: u32,
}

impl BackOff {
    /// It went well.
    pub(super) fn reset(&mut self) {
        self.tries = 0;
    }

    /// Somewhere between nothing and twice the last one: a server that comes back is not met by everybody at once.
    pub(super) fn next_wait(&mut self) -> Duration {
        let most = FIRST.saturating_mul(1 << self.tries.min(16)).min(MOST);
        self.tries = self.tries.saturating_add(1);
        most.mul_f64(random())
    }
}

/// From 0 to 1.
fn random() -> f64 {
    let mut bytes = [0; 4];
    match SystemRandom::new().fill(&mut bytes) {
        Ok(()) => f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX),
        Err(_) => 0.5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_and_are_spread() {
        let mut sums = [Duration::ZERO; 8];
        for _ in 0..200 {
            let mut back_off = BackOff::default();
            for sum in &mut sums {
                let wait = back_off.next_wait();
                assert!(wait <= MOST);
                *sum += wait;
            }
        }
        assert!(sums[0] < FIRST * 200 && sums[0] > FIRST * 50, "{sums:?}");
        assert!(sums.windows(2).take(5).all(|pair| pair[0] < pair[1]), "{sums:?}");
    }
}
