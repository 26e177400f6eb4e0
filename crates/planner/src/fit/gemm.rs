//! Fit of the GEMM rate curve (plateau and knees) to measured GEMMs. The tables of latencies by
//! shape are not part of Farrier.

use super::least_squares;

/// A measured M×K by K×N GEMM.
#[derive(Debug, Clone, Copy)]
pub struct GemmSample {
    /// M.
    pub rows: f64,
    /// N.
    pub columns: f64,
    /// K.
    pub depth: f64,
    pub seconds: f64,
}

/// Fitted rate curve of a GPU's GEMMs.
#[derive(Debug, Clone, Copy)]
pub struct GemmFit {
    /// Share of the peak that large GEMMs reach.
    pub plateau: f64,
    /// M at which half of the rate is reached.
    pub rows_knee: f64,
    /// N and K at which half of the rate is reached.
    pub columns_knee: f64,
    /// Median relative error of the fit.
    pub median_error: f64,
    /// Number of samples used.
    pub count: usize,
}

/// Smallest dimensions that occur in training.
const MIN_ROWS: f64 = 512.0;
const MIN_COLUMNS: f64 = 512.0;

/// Launch overhead, measured as the time of the smallest GEMMs.
const LAUNCH_S: f64 = 4e-6;

/// Fits the curve to GEMMs on a GPU with the given peak. `scaling_s` is the time to quantize one
/// element of the first operand. It is 0 if the table does not include quantization, as for 16
/// bits.
pub fn fit_gemm(gemms: &[GemmSample], peak_flops: f64, scaling_s: f64) -> GemmFit {
    let samples: Vec<&GemmSample> = gemms
        .iter()
        .filter(|gemm| {
            gemm.rows >= MIN_ROWS && gemm.columns >= MIN_COLUMNS && gemm.depth >= MIN_COLUMNS
        })
        .collect();
    let error = |at: &[f64], gemm: &GemmSample| {
        let [plateau, rows_knee, columns_knee] = [at[0].exp(), at[1].exp(), at[2].exp()];
        let slowdown = (1.0 + rows_knee / gemm.rows)
            * (1.0 + columns_knee / gemm.columns)
            * (1.0 + columns_knee / gemm.depth);
        let work = 2.0 * gemm.rows * gemm.columns * gemm.depth;
        let overhead = LAUNCH_S + gemm.rows * gemm.depth * scaling_s;
        ((work / (peak_flops * plateau) * slowdown + overhead) / gemm.seconds).ln()
    };
    let start = vec![0.7_f64.ln(), 100.0_f64.ln(), 100.0_f64.ln()];
    let fitted = least_squares::minimize(start, |at| {
        samples.iter().map(|gemm| least_squares::robust(error(at, gemm) / 0.1, 2.0)).collect()
    });
    let mut errors: Vec<f64> = samples.iter().map(|gemm| error(&fitted, gemm).abs()).collect();
    errors.sort_by(f64::total_cmp);
    GemmFit {
        plateau: fitted[0].exp(),
        rows_knee: fitted[1].exp(),
        columns_knee: fitted[2].exp(),
        median_error: errors.get(errors.len() / 2).copied().unwrap_or(f64::NAN),
        count: samples.len(),
    }
}
