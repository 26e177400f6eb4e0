//! What measured products say of a GPU: the rate that a large one reaches, and how it falls where
//! one is small. From tables of latencies by shape, which are not part of Farrier.

use super::squares;

/// A measured product of `rows × depth` by `depth × columns`.
#[derive(Debug, Clone, Copy)]
pub struct Product {
    /// Rows of the first matrix.
    pub rows: f64,
    /// Columns of the second.
    pub columns: f64,
    /// What is summed over.
    pub depth: f64,
    /// What it took.
    pub seconds: f64,
}

/// What fits a table of products.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Share of the peak that large ones reach.
    pub plateau: f64,
    /// Rows at which half of it is reached.
    pub rows_knee: f64,
    /// Columns and depth likewise.
    pub columns_knee: f64,
    /// Half of the measured lie within so much of the curve, as a share.
    pub median_error: f64,
    /// Products that were fitted to.
    pub count: usize,
}

/// The least of each size that a training step has.
const LEAST_ROWS: f64 = 512.0;
const LEAST_COLUMNS: f64 = 512.0;

/// Time of a launch beside the work itself, as the smallest products show.
const LAUNCH_S: f64 = 4e-6;

/// Fits the curve to products on a GPU of the given peak. `scaling_s` is what it takes to scale one
/// number of the first matrix, where tables count that in: 0 for 16 bits.
pub fn shape(products: &[Product], peak_flops: f64, scaling_s: f64) -> Shape {
    let wanted: Vec<&Product> = products
        .iter()
        .filter(|product| {
            product.rows >= LEAST_ROWS
                && product.columns >= LEAST_COLUMNS
                && product.depth >= LEAST_COLUMNS
        })
        .collect();
    let error = |at: &[f64], product: &Product| {
        let [plateau, rows_knee, columns_knee] = [at[0].exp(), at[1].exp(), at[2].exp()];
        let slowness = (1.0 + rows_knee / product.rows)
            * (1.0 + columns_knee / product.columns)
            * (1.0 + columns_knee / product.depth);
        let work = 2.0 * product.rows * product.columns * product.depth;
        let beside = LAUNCH_S + product.rows * product.depth * scaling_s;
        ((work / (peak_flops * plateau) * slowness + beside) / product.seconds).ln()
    };
    let start = vec![0.7_f64.ln(), 100.0_f64.ln(), 100.0_f64.ln()];
    let found = squares::least(start, |at| {
        wanted.iter().map(|product| squares::robust(error(at, product) / 0.1, 2.0)).collect()
    });
    let mut errors: Vec<f64> = wanted.iter().map(|product| error(&found, product).abs()).collect();
    errors.sort_by(f64::total_cmp);
    Shape {
        plateau: found[0].exp(),
        rows_knee: found[1].exp(),
        columns_knee: found[2].exp(),
        median_error: errors.get(errors.len() / 2).copied().unwrap_or(f64::NAN),
        count: wanted.len(),
    }
}
