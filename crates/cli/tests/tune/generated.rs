//! Property test: whatever the node, the profiles, and the failpoints at which apply and revert are
//! killed, a last revert restores all GPU settings and the whole file tree.

use farrier_hardware::tune::FailpointSite;
use proptest::prelude::*;
use serde_json::json;

use crate::simulated_node::SimulatedNode;

/// Initial state of a GPU.
#[derive(Debug, Clone)]
struct Gpu {
    persistence: bool,
    compute: u32,
    limit_w: u32,
    clock: u32,
    ecc: (bool, bool),
    accounting: bool,
}

/// Initial state of a host.
#[derive(Debug, Clone)]
struct Host {
    has_daemon: bool,
    is_enabled: bool,
    pages: &'static str,
    governor: &'static str,
    memlock: Option<String>,
    has_apt: bool,
    free_packages: usize,
    environment: Option<String>,
}

fn gpu() -> impl Strategy<Value = Gpu> {
    let compute = prop::sample::select(vec![0_u32, 2, 3]);
    (any::<bool>(), compute, 200..=700_u32, 0..60_u32, any::<(bool, bool)>(), any::<bool>())
        .prop_map(|(persistence, compute, limit_w, clock, ecc, accounting)| Gpu {
            persistence,
            compute,
            limit_w,
            clock,
            ecc,
            accounting,
        })
}

fn host() -> impl Strategy<Value = Host> {
    let pages = prop::sample::select(vec![
        "[always] madvise never\n",
        "always [madvise] never\n",
        "always madvise [never]\n",
    ]);
    let governor = prop::sample::select(vec!["performance\n", "powersave\n", "schedutil"]);
    let text = || prop::option::of("[ -~\n]{0,40}");
    (any::<(bool, bool, bool)>(), pages, governor, text(), 0..4_usize, text()).prop_map(
        |(
            (has_daemon, is_enabled, has_apt),
            pages,
            governor,
            memlock,
            free_packages,
            environment,
        )| Host {
            has_daemon,
            is_enabled,
            pages,
            governor,
            memlock,
            has_apt,
            free_packages,
            environment,
        },
    )
}

fn set_up(node: &SimulatedNode, gpus: &[Gpu], host: &Host) {
    for (number, gpu) in gpus.iter().enumerate() {
        node.edit(&format!("gpus/{number}.json"), |file| {
            file["modes"]["persistence"] = json!(gpu.persistence);
            file["modes"]["compute"] = json!(gpu.compute);
            file["modes"]["accounting"] = json!(gpu.accounting);
            file["power"]["limit_mw"] = json!(gpu.limit_w * 1000);
            let top = file["clocks"]["max_mhz"]["graphics"].as_u64().unwrap();
            let step = file["clocks"]["graphics_step_mhz"].as_u64().unwrap();
            let clock = top - step * u64::from(gpu.clock);
            file["clocks"]["application_graphics_mhz"] = json!(clock);
            file["ecc"]["enabled"] = json!(gpu.ecc.0);
            file["ecc"]["pending"] = json!(gpu.ecc.1);
        });
    }
    if !host.has_daemon {
        node.remove("lib/systemd/system/nvidia-persistenced.service");
    }
    if !host.is_enabled {
        node.remove("etc/systemd/system/multi-user.target.wants/nvidia-persistenced.service");
    }
    node.put("sys/kernel/mm/transparent_hugepage/enabled", host.pages);
    for cpu in ["cpu0", "cpu95"] {
        let path = format!("sys/devices/system/cpu/{cpu}/cpufreq/scaling_governor");
        node.put(&path, host.governor);
    }
    if host.has_apt {
        node.put("etc/apt/apt.conf.d/20auto-upgrades", "");
    }
    if let Some(text) = &host.memlock {
        node.put("etc/security/limits.d/90-farrier-memlock.conf", text);
    }
    if let Some(text) = &host.environment {
        node.put("etc/farrier/jobs/torch.env", text);
    }
    let status = node.read("var/lib/dpkg/status");
    let free = status.replacen("Status: hold ok", "Status: install ok", host.free_packages);
    node.put("var/lib/dpkg/status", &free);
}

fn crash() -> impl Strategy<Value = String> {
    (prop::sample::select(FailpointSite::ALL.to_vec()), 1..30_u32)
        .prop_map(|(point, times)| format!("{}:{times}", point.name()))
}

proptest! {
    // Few cases, because each runs the binary four or five times.
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn revert_restores_any_node(
        gpus in prop::collection::vec(gpu(), 2),
        host in host(),
        profiles in prop::collection::vec(prop::sample::select(vec!["training", "inference", "shared"]), 1..3),
        apply_crash in crash(),
        revert_crash in crash(),
    ) {
        let node = SimulatedNode::new();
        set_up(&node, &gpus, &host);
        let before = node.state();
        for profile in profiles {
            let applied = node.tune_with_failpoint(&["apply", profile, "--yes"], &apply_crash);
            prop_assert!(
                matches!(applied.code, 0 | -1),
                "{apply_crash}: {}{}", applied.stdout, applied.stderr
            );
        }
        node.tune_with_failpoint(&["revert", "--yes"], &revert_crash);
        let reverted = node.tune(&["revert", "--yes"]);
        prop_assert_eq!(reverted.code, 0, "{}{}", reverted.stdout, reverted.stderr);
        prop_assert_eq!(node.state(), before);
    }
}
