//! Nonlinear least squares: Levenberg-Marquardt with a finite-difference Jacobian.

use super::linear_algebra;

/// Minimizes the sum of squared `residuals`, starting from `start`.
pub fn minimize(start: Vec<f64>, residuals: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    let mut at = start;
    let mut damping = 1e-2;
    let mut errors = residuals(&at);
    let mut cost = sum_of_squares(&errors);
    for _ in 0..60 {
        let jacobian = jacobian(&at, &errors, &residuals);
        let mut improved = false;
        for _ in 0..8 {
            let step = linear_algebra::damped_step(&jacobian, &errors, damping);
            let trial: Vec<f64> = at.iter().zip(&step).map(|(at, step)| at + step).collect();
            let trial_errors = residuals(&trial);
            let trial_cost = sum_of_squares(&trial_errors);
            if trial_cost < cost {
                improved = cost - trial_cost > 1e-6 * cost;
                (at, errors, cost) = (trial, trial_errors, trial_cost);
                damping = (damping * 0.4).max(1e-9);
                break;
            }
            damping *= 4.0;
        }
        if !improved {
            break;
        }
    }
    at
}

fn sum_of_squares(errors: &[f64]) -> f64 {
    errors.iter().map(|error| error * error).sum()
}

/// Derivative of each residual by each variable, one column per variable.
fn jacobian(at: &[f64], errors: &[f64], residuals: impl Fn(&[f64]) -> Vec<f64>) -> Vec<Vec<f64>> {
    const STEP: f64 = 1e-4;
    (0..at.len())
        .map(|column| {
            let mut moved = at.to_vec();
            moved[column] += STEP;
            let shifted = residuals(&moved);
            shifted.iter().zip(errors).map(|(shifted, error)| (shifted - error) / STEP).collect()
        })
        .collect()
}

/// Cauchy loss. The square of the result grows only logarithmically beyond `limit`, so that
/// outliers that the model does not cover have little influence.
pub fn robust(deviations: f64, limit: f64) -> f64 {
    let scaled = deviations / limit;
    limit * (1.0 + scaled * scaled).ln().sqrt().copysign(scaled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minimize_recovers_known_parameters() {
        let points: Vec<(f64, f64)> =
            (1..20).map(f64::from).map(|x| (x, 3.0 * x / (x + 5.0))).collect();
        let fitted = minimize(vec![0.0, 0.0], |at| {
            let curve = |x: f64| at[0].exp() * x / (x + at[1].exp());
            points.iter().map(|(x, y)| curve(*x) - y).collect()
        });
        assert!((fitted[0].exp() - 3.0).abs() < 1e-3 && (fitted[1].exp() - 5.0).abs() < 1e-2);
    }
}
