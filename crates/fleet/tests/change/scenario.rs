//! The changes into which faults are injected.

use farrier_bundle::BundleId;
use farrier_fleet::change::{
    BundleRef, ChangeClass, ChangeId, ChangeLimits, ChangeRequest, CordonMark, GpuHolder,
    ReloadMethod, StepDeadlines,
};

use crate::run::{Fault, Injection};
use crate::test_node::TestNode;

pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) node: TestNode,
    /// Faults that belong to the scenario.
    pub(crate) injections: Vec<Injection>,
}

pub(crate) fn request(method: ReloadMethod) -> ChangeRequest {
    let bundle = |digit: &str, driver: &str| BundleRef {
        id: digit.repeat(64).parse::<BundleId>().unwrap(),
        driver: driver.to_owned(),
        has_fabric_manager: true,
        reload: method,
    };
    ChangeRequest {
        id: ChangeId("c1".to_owned()),
        generation: 7,
        class: ChangeClass::Driver,
        from: bundle("a", "535.216.01"),
        to: bundle("b", "580.95.05"),
        rollback: bundle("a", "535.216.01"),
        deadlines: StepDeadlines::default(),
        policy: ChangeLimits::default(),
    }
}

fn holder() -> GpuHolder {
    GpuHolder { pid: 4711, command: "python".to_owned(), owner: "user ann".to_owned() }
}

/// Every path through the machine without an injected fault.
#[expect(clippy::too_many_lines, reason = "a list of scenarios")]
pub(crate) fn scenarios() -> Vec<Scenario> {
    let reload = || TestNode::new(request(ReloadMethod::ReloadModules));
    let reboot = || TestNode::new(request(ReloadMethod::Reboot));
    let settings = || {
        let mut request = request(ReloadMethod::ReloadModules);
        request.class = ChangeClass::Settings;
        for bundle in [&mut request.to, &mut request.rollback, &mut request.from] {
            "580.95.05".clone_into(&mut bundle.driver);
        }
        TestNode::new(request)
    };
    let with = |mut node: TestNode, change: &dyn Fn(&mut TestNode)| {
        change(&mut node);
        node
    };
    let plain = |name, node| Scenario { name, node, injections: Vec::new() };
    let broken = |node: &mut TestNode| node.broken = Some("580.95.05".to_owned());
    let worse = |node: &mut TestNode| node.regression = Some("Xid 79".to_owned());
    let mut all = vec![
        plain("reload", reload()),
        plain("reboot", reboot()),
        plain("reload, verification fails", with(reload(), &broken)),
        plain("reboot, verification fails", with(reboot(), &broken)),
        plain("reload, regression in probation", with(reload(), &worse)),
        plain("reboot, regression in probation", with(reboot(), &worse)),
        plain(
            "no automatic rollback",
            with(reload(), &|node| {
                worse(node);
                node.request.policy.auto_rollback_in_probation = false;
            }),
        ),
        plain("a process holds a GPU", with(reload(), &|node| node.holders = vec![holder()])),
        plain(
            "a process holds a GPU, reboot",
            with(reload(), &|node| {
                node.holders = vec![holder()];
                node.request.policy.reboot_on_holders = true;
            }),
        ),
        plain(
            "a process holds a GPU, kill",
            with(reload(), &|node| {
                node.holders = vec![holder()];
                node.request.policy.kill_holders = true;
            }),
        ),
        plain("work does not end", with(reload(), &|node| node.drains = false)),
        plain(
            "the driver does not initialise",
            with(reload(), &|node| {
                node.fails_to_load = Some("580.95.05".to_owned());
            }),
        ),
        plain(
            "no reboot allowed",
            with(reload(), &|node| {
                broken(node);
                node.request.policy.allow_reboot = false;
            }),
        ),
        plain(
            "a reboot is needed and not allowed",
            with(reboot(), &|node| {
                node.request.policy.allow_reboot = false;
            }),
        ),
        plain(
            "external cordon",
            with(reload(), &|node| {
                node.cordon =
                    CordonMark::External { owner: "bob".to_owned(), reason: String::new() };
            }),
        ),
        plain(
            "already installed",
            with(reload(), &|node| {
                let to = node.request.to.clone();
                node.closure = farrier_fleet::change::InstalledClosure::Equals(to.id);
                for version in [&mut node.library, &mut node.fabric_manager, &mut node.on_disk] {
                    version.clone_from(&to.driver);
                }
                node.loaded = Some(to.driver);
            }),
        ),
        plain("edge autonomy", with(reload(), &|node| node.request.policy.edge_autonomy = true)),
        plain("settings", settings()),
        plain("settings, regression", with(settings(), &worse)),
    ];
    for (name, node) in [
        ("controller lost after the point of no return", reload()),
        ("controller lost, verification fails", with(reload(), &broken)),
        (
            "controller lost, edge autonomy",
            with(reload(), &|node| {
                node.request.policy.edge_autonomy = true;
            }),
        ),
    ] {
        let at = position_after_install(&node);
        let injections = vec![Injection { at, fault: Fault::ControllerAway }];
        all.push(Scenario { name, node, injections });
    }
    all
}

/// The decision that follows the installation.
fn position_after_install(node: &TestNode) -> usize {
    let mut run = crate::run::Run::new(node.clone(), Vec::new());
    run.run();
    let is_install = |step: &crate::run::TraceStep| {
        matches!(step.action, Some(farrier_fleet::change::ChangeAction::Install { .. }))
    };
    run.trace.iter().position(is_install).unwrap() + 1
}
