//! Prices of GPU-hours, from the command line. Without a price, the report shows no cost.

use std::str::FromStr;

use farrier_facts::FactSet;
use farrier_fleet::fleet::Pool;
use farrier_fleet::fleet::ledger::report::{Cause, FleetReport, SkuTime, ratio};

const HOUR_MS: u64 = 3_600_000;

/// The price of one GPU-hour: `H100=2.5`, or `train/H100=2.1` for one pool.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GpuHourPrice {
    pool: Option<Pool>,
    sku: String,
    per_hour: f64,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PriceError {
    #[error("expected `GPU=PRICE` or `POOL/GPU=PRICE`, such as H100=2.5")]
    Form,
    #[error("`{0}` is not the name of a pool")]
    Pool(String),
    #[error("`{0}` is not a price per GPU-hour, which is a number from 0 on")]
    Number(String),
}

impl FromStr for GpuHourPrice {
    type Err = PriceError;

    fn from_str(text: &str) -> Result<Self, PriceError> {
        let (gpu, price) = text.split_once('=').ok_or(PriceError::Form)?;
        let (pool, sku) = match gpu.split_once('/') {
            Some((pool, sku)) => {
                let parsed = pool.parse().map_err(|_| PriceError::Pool(pool.to_owned()))?;
                (Some(parsed), sku)
            }
            None => (None, gpu),
        };
        if words(sku).next().is_none() {
            return Err(PriceError::Form);
        }
        let per_hour: f64 = price.parse().map_err(|_| PriceError::Number(price.to_owned()))?;
        if !per_hour.is_finite() || per_hour < 0.0 {
            return Err(PriceError::Number(price.to_owned()));
        }
        Ok(Self { pool, sku: sku.to_owned(), per_hour })
    }
}

fn words(name: &str) -> impl Iterator<Item = String> {
    let words = name.split(|letter: char| !letter.is_ascii_alphanumeric());
    words.filter(|word| !word.is_empty()).map(str::to_ascii_lowercase)
}

impl GpuHourPrice {
    /// Whether the price is for the GPU with this NVML name: they are the same SKU, or the name has
    /// every word of the price, as `NVIDIA H100 PCIe` has `H100`.
    fn is_for(&self, name: &str) -> bool {
        let gpus = &FactSet::embedded().gpus;
        let exact = |name: &str| gpus.by_name(name).filter(|found| !found.assumed);
        let same_sku = exact(&self.sku).zip(exact(name));
        let mut own = words(&self.sku);
        same_sku.is_some_and(|(own, other)| own.gpu.id == other.gpu.id)
            || own.all(|word| words(name).any(|other| other == word))
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Prices(pub(super) Vec<GpuHourPrice>);

impl Prices {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Price of one GPU-hour. The price of the pool takes precedence.
    fn per_hour(&self, pool: &Pool, sku: Option<&str>) -> Option<f64> {
        let sku = sku?;
        let of_pool = self.0.iter().filter(|price| price.pool.as_ref() == Some(pool));
        let of_fleet = self.0.iter().filter(|price| price.pool.is_none());
        of_pool.chain(of_fleet).find(|price| price.is_for(sku)).map(|price| price.per_hour)
    }

    /// Cost of GPU-time. `None` without a price.
    pub(super) fn cost(&self, pool: &Pool, sku: Option<&str>, gpu_ms: u64) -> Option<f64> {
        Some(self.per_hour(pool, sku)? * ratio(gpu_ms, HOUR_MS))
    }

    /// Cost of a pool's lost time with these causes. `None` if no GPU of the pool has a price.
    pub(super) fn lost(&self, pool: &Pool, skus: &[SkuTime], causes: &[Cause]) -> Option<f64> {
        let cost = |sku: &SkuTime| {
            let gpu_ms = causes.iter().map(|cause| sku.time.lost_ms.of(*cause)).sum();
            self.cost(pool, sku.sku.as_deref(), gpu_ms)
        };
        skus.iter().filter_map(cost).reduce(|one, other| one + other)
    }

    /// Lost GPU-time without a price.
    pub(super) fn unpriced_ms(&self, report: &FleetReport) -> u64 {
        let skus =
            report.pools.iter().flat_map(|pool| pool.skus.iter().map(move |sku| (&pool.pool, sku)));
        let unpriced = skus.filter(|(pool, sku)| self.per_hour(pool, sku.sku.as_deref()).is_none());
        unpriced.map(|(_, sku)| sku.time.lost_sum_ms()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prices(texts: &[&str]) -> Prices {
        Prices(texts.iter().map(|text| text.parse().unwrap()).collect())
    }

    #[test]
    fn a_price_is_for_a_sku_or_a_family_and_a_pool_comes_first() {
        let prices = prices(&["H100=2.5", "train/H100=2", "H20=1"]);
        let per_hour = |pool: &str, sku| prices.per_hour(&pool.parse().unwrap(), Some(sku));
        assert_eq!(per_hour("serve", "NVIDIA H100 80GB HBM3"), Some(2.5));
        assert_eq!(per_hour("train", "NVIDIA H100 80GB HBM3"), Some(2.0));
        assert_eq!(per_hour("train", "NVIDIA H200"), None, "an H20 is no H200");
        assert_eq!(prices.per_hour(&"train".parse().unwrap(), None), None);
    }

    #[test]
    fn a_wrong_price_is_an_error_that_says_what_is_expected() {
        let error = |text: &str| text.parse::<GpuHourPrice>().unwrap_err();
        assert_eq!(error("H100"), PriceError::Form);
        assert_eq!(error("=2"), PriceError::Form);
        assert_eq!(error("a b/H100=2"), PriceError::Pool("a b".to_owned()));
        for price in ["two", "-1", "inf", "NaN"] {
            assert_eq!(error(&format!("H100={price}")), PriceError::Number(price.to_owned()));
        }
    }
}
