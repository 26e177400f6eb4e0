//! `SplitMix64`, a random number generator that is small, fast and identical on every machine.

/// A seeded random number generator.
#[derive(Debug, Clone)]
pub(crate) struct SeededRng(u64);

impl SeededRng {
    /// Creates the stream `name` of a seed. Streams are separate, so a new consumer does not change
    /// the numbers that other consumers get.
    pub(crate) fn new(seed: u64, name: &str) -> Self {
        // FNV-1a hash of the name.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        Self(seed ^ hash)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    /// A number below `bound`. Panics if `bound` is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A random UUID string, without the version and variant bits.
    pub(crate) fn uuid(&mut self) -> String {
        let digits = format!("{:016x}{:016x}", self.next(), self.next());
        let groups =
            [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
        groups.join("-")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_depend_on_seed_and_name() {
        let first = SeededRng::new(1, "gpu 0").uuid();
        assert_eq!(first, SeededRng::new(1, "gpu 0").uuid());
        assert_ne!(first, SeededRng::new(1, "gpu 1").uuid());
        assert_ne!(first, SeededRng::new(2, "gpu 0").uuid());
        assert_eq!(first.len(), 36);
    }
}
