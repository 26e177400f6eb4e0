//! What Farrier does about a finding without a person, under the default policy.

use crate::fleet::{Impact, Policy, impact};
use crate::health::finding::ends_work;
use crate::health::{Action, FindingKind, Severity};

pub(super) fn describe(
    kind: FindingKind,
    severity: Option<Severity>,
    action: Option<Action>,
) -> Vec<String> {
    let mut steps = vec![
        "The agent opens the finding, shows it in `farrier status` and `/metrics`, and reports it to \
         the server."
            .to_owned(),
    ];
    let (Some(severity), Some(action)) = (severity, action) else {
        steps.push(
            "Severity and action are those of the event or check; they decide what the server does."
                .to_owned(),
        );
        return steps;
    };
    if ends_work(kind, severity, action) {
        steps.push(
            "The agent asks the training jobs on the affected GPU for a checkpoint.".to_owned(),
        );
    }
    let policy = Policy::default().pools_default;
    match impact(kind, severity, action) {
        Impact::None => steps.push("The server records it. The node stays in service.".to_owned()),
        Impact::Suspect => steps.push(format!(
            "The server marks the node suspect. If the finding is still open after {} minutes, it \
             quarantines the node.",
            policy.suspect_timeout_s / 60
        )),
        Impact::Unfit => {
            steps.push(
                "The server quarantines the node within the disruption budget: it cordons the node \
                 and drains it."
                    .to_owned(),
            );
            steps.push(repair(action).to_owned());
        }
    }
    steps
}

fn repair(action: Action) -> &'static str {
    match action {
        Action::ResetGpu => {
            "It then resets the GPU, and reboots the node if the reset does not help. After \
             verification the node returns to service."
        }
        Action::RebootNode => {
            "It then reboots the node. After verification the node returns to service."
        }
        Action::DrainAndReplace | Action::Investigate | Action::Ignore | Action::RestartApp => {
            "It then waits for a person. After the repair, `farrier fleet repaired NODE` starts the \
             verification, and the node returns to service when it passes."
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fatal_reset_is_automatic_and_a_replacement_is_not() {
        let fatal =
            |action| describe(FindingKind::Fault, Some(Severity::Fatal), Some(action)).join("\n");
        assert!(fatal(Action::ResetGpu).contains("resets the GPU"));
        assert!(fatal(Action::DrainAndReplace).contains("waits for a person"));
        let advice =
            describe(FindingKind::Advice, Some(Severity::Warning), Some(Action::Investigate));
        assert!(advice.join("\n").contains("stays in service"));
    }
}
