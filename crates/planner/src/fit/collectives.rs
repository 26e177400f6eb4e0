//! What measured collectives say of `NVLink`: the rate that large ones reach, and the time of a hop.
//! From tables of latencies by size, which are not part of Farrier.

use super::squares;

/// A measured gather, reduction or exchange within a domain.
#[derive(Debug, Clone, Copy)]
pub struct Collective {
    /// GPUs that took part.
    pub gpus: f64,
    /// What all hold together, bytes.
    pub bytes: f64,
    /// What it took.
    pub seconds: f64,
}

/// What fits a table of collectives.
#[derive(Debug, Clone, Copy)]
pub struct Link {
    /// Share of the link's rate in one direction that large ones reach.
    pub rate: f64,
    /// Time of a hop, seconds.
    pub hop_s: f64,
    /// Half of the measured lie within so much of the line, as a share.
    pub median_error: f64,
    /// Collectives that were fitted to.
    pub count: usize,
}

/// What a training step sends at once is of this size and more; below it NCCL has other protocols.
const LEAST_BYTES: f64 = 3e7;

/// Fits the line to collectives over a link of the given rate in one direction.
pub fn link(collectives: &[Collective], bytes_per_s: f64) -> Link {
    let wanted: Vec<&Collective> =
        collectives.iter().filter(|of| of.bytes >= LEAST_BYTES).collect();
    let error = |at: &[f64], of: &Collective| {
        let passed = of.bytes * (of.gpus - 1.0) / of.gpus;
        let seconds = passed / (bytes_per_s * at[0].exp()) + (of.gpus - 1.0) * at[1].exp();
        (seconds / of.seconds).ln()
    };
    let found = squares::least(vec![0.7_f64.ln(), 2e-6_f64.ln()], |at| {
        wanted.iter().map(|of| squares::robust(error(at, of) / 0.2, 2.0)).collect()
    });
    let mut errors: Vec<f64> = wanted.iter().map(|of| error(&found, of).abs()).collect();
    errors.sort_by(f64::total_cmp);
    Link {
        rate: found[0].exp(),
        hop_s: found[1].exp(),
        median_error: errors.get(errors.len() / 2).copied().unwrap_or(f64::NAN),
        count: wanted.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_again() {
        let sizes =
            (25..33).flat_map(|power| [2.0, 4.0, 8.0].map(|gpus| (gpus, 2_f64.powi(power))));
        let made: Vec<Collective> = sizes
            .map(|(gpus, bytes)| Collective {
                gpus,
                bytes,
                seconds: bytes * (gpus - 1.0) / gpus / (0.75 * 450e9) + (gpus - 1.0) * 1.5e-6,
            })
            .collect();
        let found = link(&made, 450e9);
        assert!(
            (found.rate - 0.75).abs() < 0.01 && (found.hop_s - 1.5e-6).abs() < 1e-8,
            "{found:?}"
        );
    }
}
