//! Least squares: Levenberg and Marquardt's way, with slopes taken by small steps.

use super::linear;

/// The place where the squares of `residuals` are least, sought from `start`.
pub fn least(start: Vec<f64>, residuals: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    let mut at = start;
    let mut damping = 1e-2;
    let mut errors = residuals(&at);
    let mut cost = squares(&errors);
    for _ in 0..60 {
        let slopes = slopes(&at, &errors, &residuals);
        let mut improved = false;
        for _ in 0..8 {
            let step = linear::damped_step(&slopes, &errors, damping);
            let tried: Vec<f64> = at.iter().zip(&step).map(|(at, step)| at + step).collect();
            let tried_errors = residuals(&tried);
            let tried_cost = squares(&tried_errors);
            if tried_cost < cost {
                improved = cost - tried_cost > 1e-6 * cost;
                (at, errors, cost) = (tried, tried_errors, tried_cost);
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

fn squares(errors: &[f64]) -> f64 {
    errors.iter().map(|error| error * error).sum()
}

/// How each residual changes with each variable: one column a variable.
fn slopes(at: &[f64], errors: &[f64], residuals: impl Fn(&[f64]) -> Vec<f64>) -> Vec<Vec<f64>> {
    const STEP: f64 = 1e-4;
    (0..at.len())
        .map(|column| {
            let mut moved = at.to_vec();
            moved[column] += STEP;
            let there = residuals(&moved);
            there.iter().zip(errors).map(|(there, here)| (there - here) / STEP).collect()
        })
        .collect()
}

/// The square of this grows only as a logarithm beyond `most`: what is far off is something that the
/// model does not know of.
pub fn robust(deviations: f64, most: f64) -> f64 {
    let scaled = deviations / most;
    most * (1.0 + scaled * scaled).ln().sqrt().copysign(scaled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_is_found_again() {
        let points: Vec<(f64, f64)> =
            (1..20).map(f64::from).map(|x| (x, 3.0 * x / (x + 5.0))).collect();
        let found = least(vec![0.0, 0.0], |at| {
            let curve = |x: f64| at[0].exp() * x / (x + at[1].exp());
            points.iter().map(|(x, y)| curve(*x) - y).collect()
        });
        assert!((found[0].exp() - 3.0).abs() < 1e-3 && (found[1].exp() - 5.0).abs() < 1e-2);
    }
}
