//! Job environments: one file per framework.

use super::host::file;
use super::{Evaluation, Need, StepSubject};
use crate::tune::profile::ProfileSetting;
use crate::tune::readings::Readings;
use crate::tune::setting::SettingKind;

pub(super) fn evaluate(
    framework: &str,
    kind: &SettingKind,
    setting: &ProfileSetting,
    readings: &Readings,
) -> Evaluation {
    let count = setting.variables.len();
    let wanted = format!("{count} variable{}", if count == 1 { "" } else { "s" });
    let path = kind.file().unwrap_or_default();
    let evaluation = file(&path, text(framework, setting), &wanted, vec![Need::NewJob], readings);
    Evaluation { subject: StepSubject::Jobs(path), ..evaluation }
}

/// Lines valid for a shell, systemd's `EnvironmentFile=` and `docker --env-file`.
fn text(framework: &str, setting: &ProfileSetting) -> String {
    let mut text = format!("# Written by farrier tune, for {framework}.\n");
    for variable in &setting.variables {
        text.push_str(&format!(
            "# {}\n{}={}\n",
            variable.reason.replace('\n', " "),
            variable.name,
            variable.value
        ));
    }
    text
}
