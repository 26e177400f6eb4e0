//! Dense linear algebra for small systems.

/// Levenberg-Marquardt step from residuals and their Jacobian, stored by column (one per variable).
pub fn damped_step(columns: &[Vec<f64>], residuals: &[f64], damping: f64) -> Vec<f64> {
    let count = columns.len();
    let mut normal = vec![vec![0.0; count]; count];
    let mut right = vec![0.0; count];
    for row in 0..count {
        for column in 0..=row {
            let product = dot(&columns[row], &columns[column]);
            normal[row][column] = product;
            normal[column][row] = product;
        }
        right[row] = -dot(&columns[row], residuals);
    }
    for (index, row) in normal.iter_mut().enumerate() {
        row[index] *= 1.0 + damping;
    }
    Cholesky::factor(normal).map_or_else(|| vec![0.0; count], |factor| factor.solve(&right))
}

pub fn dot(left: &[f64], right: &[f64]) -> f64 {
    // Four accumulators: a single one stalls on the latency of every addition.
    let (left_fours, left_rest) = left.as_chunks::<4>();
    let (right_fours, right_rest) = right.as_chunks::<4>();
    let mut sums = [0.0; 4];
    for (left, right) in left_fours.iter().zip(right_fours) {
        for lane in 0..4 {
            sums[lane] += left[lane] * right[lane];
        }
    }
    let rest: f64 = left_rest.iter().zip(right_rest).map(|(left, right)| left * right).sum();
    sums[0] + sums[1] + sums[2] + sums[3] + rest
}

/// Cholesky factor of a positive definite matrix.
#[derive(Debug, Clone)]
pub struct Cholesky {
    lower: Vec<Vec<f64>>,
}

impl Cholesky {
    /// `None` if the matrix is not positive definite.
    pub fn factor(mut matrix: Vec<Vec<f64>>) -> Option<Self> {
        for row in 0..matrix.len() {
            for column in 0..=row {
                let (before, after) = matrix.split_at_mut(row);
                let this = &mut after[0];
                let other: &[f64] = if column == row { &[] } else { &before[column] };
                let sum = if column == row {
                    this[column] - dot(&this[..column], &this[..column])
                } else {
                    this[column] - dot(&this[..column], &other[..column])
                };
                this[column] = if column == row {
                    if sum <= 0.0 || !sum.is_finite() {
                        return None;
                    }
                    sum.sqrt()
                } else {
                    sum / other[column]
                };
            }
        }
        Some(Self { lower: matrix })
    }

    /// Solves L·x = `right`; the squared norm of x is `right`ᵀ·A⁻¹·`right`.
    pub fn forward_substitute(&self, right: &[f64]) -> Vec<f64> {
        let mut solution = right.to_vec();
        for row in 0..right.len() {
            let sum = solution[row] - dot(&self.lower[row][..row], &solution[..row]);
            solution[row] = sum / self.lower[row][row];
        }
        solution
    }

    /// Solves A·x = `right`.
    pub fn solve(&self, right: &[f64]) -> Vec<f64> {
        let count = right.len();
        let mut solution = self.forward_substitute(right);
        for row in (0..count).rev() {
            let below: f64 =
                (row + 1..count).map(|below| self.lower[below][row] * solution[below]).sum();
            solution[row] = (solution[row] - below) / self.lower[row][row];
        }
        solution
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn solution_satisfies_the_system() {
        let matrix = vec![vec![4.0, 1.0, 0.5], vec![1.0, 3.0, 0.2], vec![0.5, 0.2, 2.0]];
        let right = [1.0, -2.0, 3.0];
        let solution = Cholesky::factor(matrix.clone()).unwrap().solve(&right);
        for (row, right) in matrix.iter().zip(right) {
            assert!((dot(row, &solution) - right).abs() < 1e-12);
        }
    }

    #[test]
    fn indefinite_matrix_is_rejected() {
        assert!(Cholesky::factor(vec![vec![1.0, 2.0], vec![2.0, 1.0]]).is_none());
    }
}
