//! Fit of the `NVLink` cost model (bandwidth share and hop latency) to measured collectives. The
//! tables of latencies by message size are not part of Farrier.

use super::least_squares;

/// A measured all-gather, reduce-scatter or all-to-all within an `NVLink` domain.
#[derive(Debug, Clone, Copy)]
pub struct CollectiveSample {
    pub gpus: f64,
    /// Size of the message, over all ranks.
    pub bytes: f64,
    pub seconds: f64,
}

/// Fitted bandwidth and latency of a link.
#[derive(Debug, Clone, Copy)]
pub struct LinkFit {
    /// Share of the link's bandwidth per direction that large collectives reach.
    pub rate: f64,
    pub hop_s: f64,
    /// Median relative error of the fit.
    pub median_error: f64,
    /// Number of samples used.
    pub count: usize,
}

/// Messages of a training step are at least this large. For smaller messages, NCCL uses other
/// protocols.
const MIN_BYTES: f64 = 3e7;

/// Fits the cost model to collectives over a link with the given bandwidth per direction.
pub fn fit_link(collectives: &[CollectiveSample], bytes_per_s: f64) -> LinkFit {
    let samples: Vec<&CollectiveSample> =
        collectives.iter().filter(|sample| sample.bytes >= MIN_BYTES).collect();
    let error = |at: &[f64], sample: &CollectiveSample| {
        let ring_bytes = sample.bytes * (sample.gpus - 1.0) / sample.gpus;
        let seconds = ring_bytes / (bytes_per_s * at[0].exp()) + (sample.gpus - 1.0) * at[1].exp();
        (seconds / sample.seconds).ln()
    };
    let fitted = least_squares::minimize(vec![0.7_f64.ln(), 2e-6_f64.ln()], |at| {
        samples.iter().map(|sample| least_squares::robust(error(at, sample) / 0.2, 2.0)).collect()
    });
    let mut errors: Vec<f64> = samples.iter().map(|sample| error(&fitted, sample).abs()).collect();
    errors.sort_by(f64::total_cmp);
    LinkFit {
        rate: fitted[0].exp(),
        hop_s: fitted[1].exp(),
        median_error: errors.get(errors.len() / 2).copied().unwrap_or(f64::NAN),
        count: samples.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fit_recovers_known_parameters() {
        let sizes =
            (25..33).flat_map(|power| [2.0, 4.0, 8.0].map(|gpus| (gpus, 2_f64.powi(power))));
        let samples: Vec<CollectiveSample> = sizes
            .map(|(gpus, bytes)| CollectiveSample {
                gpus,
                bytes,
                seconds: bytes * (gpus - 1.0) / gpus / (0.75 * 450e9) + (gpus - 1.0) * 1.5e-6,
            })
            .collect();
        let found = fit_link(&samples, 450e9);
        assert!(
            (found.rate - 0.75).abs() < 0.01 && (found.hop_s - 1.5e-6).abs() < 1e-8,
            "{found:?}"
        );
    }
}
