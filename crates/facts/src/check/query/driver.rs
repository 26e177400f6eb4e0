//! `--driver` and `--fabric-manager`.

use super::{Driver, DriverPrecision};
use crate::check::input::{Field, InputError};
use crate::set::FactSet;
use crate::version::{Branch, DriverVersion, number};

pub(super) fn parse_driver<'a>(set: &'a FactSet, text: &str) -> Result<Driver<'a>, InputError> {
    const EXPECTED: &str = "a release such as `580.65.06`, or a branch such as `580`";
    let error = |problem: String| InputError::new(Field::Driver, problem, EXPECTED);
    if text.is_empty() {
        return Err(error("no version given".to_owned()));
    }
    let bare = text.strip_prefix(['R', 'r']).unwrap_or(text);
    let (version, precision) = if let Some(number) = number(bare) {
        let latest = set.drivers.branch(Branch(number)).map(|facts| facts.latest.clone());
        // If the data lacks the branch, use release 0 as a placeholder.
        let version = latest.map_or_else(|| format!("{number}.0").parse(), Ok);
        (version.map_err(|err| error(err.to_string()))?, DriverPrecision::Branch)
    } else {
        let version: DriverVersion =
            text.parse().map_err(|_| error(format!("`{text}` is not a version")))?;
        let partial =
            set.drivers.release.iter().any(|release| version.is_prefix_of(&release.version))
                && !set.drivers.release.iter().any(|release| release.version == version);
        (version, if partial { DriverPrecision::PartOfRelease } else { DriverPrecision::Release })
    };
    let number = version.branch();
    if set.cuda.family(number.0).is_some() {
        return Err(error(format!("`{text}` looks like a CUDA version; are the two swapped?")));
    }
    // Branch numbers have three digits; anything else is a typo.
    if !(100..1000).contains(&number.0) {
        return Err(error(format!("`{text}` is not a driver version")));
    }
    let branch = set.drivers.branch(number);
    let reach = set.drivers.oldest().branch..=set.drivers.newest().branch;
    if branch.is_none() && reach.contains(&number) {
        let mut near: Vec<Branch> = set.drivers.branch.iter().map(|facts| facts.branch).collect();
        near.sort_by_key(|branch| branch.0.abs_diff(number.0));
        near.truncate(2);
        near.sort();
        return Err(InputError::new(
            Field::Driver,
            format!("there is no Linux data-centre driver branch {}", number.0),
            format!("the nearest branches are {} and {}", near[0].0, near[1].0),
        ));
    }
    Ok(Driver { version, branch, precision })
}

pub(super) fn parse_fabric_manager(text: &str) -> Result<DriverVersion, InputError> {
    text.parse().map_err(|_| {
        InputError::new(
            Field::FabricManager,
            format!("`{text}` is not a version"),
            "a full version such as `580.65.06` (`nv-fabricmanager --version`)",
        )
    })
}
