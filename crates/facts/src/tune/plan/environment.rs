//! The environment of jobs: a file a framework.

use super::host::file;
use super::{Need, Subject, Told};
use crate::tune::profile::ProfileSetting;
use crate::tune::readings::Readings;
use crate::tune::setting::Kind;

pub(super) fn told(
    framework: &str,
    kind: &Kind,
    setting: &ProfileSetting,
    readings: &Readings,
) -> Told {
    let count = setting.variables.len();
    let wanted = format!("{count} variable{}", if count == 1 { "" } else { "s" });
    let told = file(kind, text(framework, setting), &wanted, vec![Need::NewJob], readings);
    Told { subject: Subject::Jobs(kind.file().unwrap_or_default()), ..told }
}

/// Lines that a shell, systemd's `EnvironmentFile=` and `docker --env-file` read alike.
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
