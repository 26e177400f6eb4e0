//! Faults of the node and of the agent's dependencies.

use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::agent_node::{Agent, AgentNode, find, skipped};
use crate::crash::gpu_address;
use crate::support::wait::{wait_for, wait_until};

#[test]
fn a_node_without_faults_is_healthy() {
    let agent_node = AgentNode::new();
    let agent = agent_node.agent().ready();
    // The node is healthy once the rules have their inputs, which come every ten seconds.
    agent.until(|status| status["verdict"] == "healthy");
    let (status, code) = agent_node.status();
    assert_eq!((status["verdict"].as_str(), code), (Some("healthy"), 0), "{status:#}");
    assert_eq!(status["gpus"].as_array().unwrap().len(), 8);
    assert_eq!(status["v"], 1);
    assert!(status["agent"]["rss_bytes"].as_u64().unwrap() > 0);
    let (code, text) = agent.get("/healthz");
    assert_eq!((code, text.as_str()), (200, "ok\n"));
    let (code, text) = agent.get("/metrics");
    assert_eq!(code, 200);
    assert!(text.contains("\nDCGM_FI_DEV_GPU_TEMP{gpu=\"7\","), "{text}");
    assert!(text.contains("\nfarrier_agent_coverage_gap{source=\"nvml\"} 0\n"), "{text}");
    let table = agent_node.status_ran(&[]);
    assert_eq!(table.code, 0);
    assert!(table.stdout.starts_with("HEALTHY: "), "{}", table.stdout);
    agent.stop();
}

#[test]
fn a_setting_that_blocks_work_is_a_finding_of_the_check() {
    let agent_node = AgentNode::with_gpus(2);
    agent_node.inject(&["--gpu", "1", "settings", "--compute-mode", "2"]);
    agent_node.inject(&["--gpu", "0", "settings", "--mig", "on"]);
    let agent = agent_node.agent();
    let details = |status: &Value| -> Vec<String> {
        let findings = status["findings"].as_array().unwrap().iter();
        findings.map(|open| open["finding"]["detail"].as_str().unwrap().to_owned()).collect()
    };
    let status = agent.until(|status| {
        let details = details(status);
        ["compute-mode-prohibited", "mig-on"].iter().all(|code| details.iter().any(|d| d == code))
    });
    assert_eq!(status["verdict"], "faulty", "{status:#}");
}

#[test]
fn a_signal_of_one_adapter_is_not_listed_as_unsupported() {
    let agent_node = AgentNode::with(&["--gpus", "1", "--efa", "2"]);
    let agent = agent_node.agent().ready();
    // EFA and other adapters support different counters. Each kind lacks some counters of the other
    // kind.
    let status = agent.until(|status| {
        // The fast collectors report first, with one or two unsupported signals.
        status["unsupported_signals"].as_object().is_some_and(|unsupported| unsupported.len() > 3)
    });
    for signal in ["nic.link_downed", "nic.rate_gbps", "nic.efa_rx_drops"] {
        assert!(status["unsupported_signals"][signal].is_null(), "{signal}: {status:#}");
    }
    let table = agent_node.status_ran(&[]).stdout;
    let unsupported =
        table.lines().filter(|line| line.starts_with("Not supported by this node's hardware"));
    let unsupported: Vec<&str> = unsupported.collect();
    assert!(
        matches!(unsupported[..], [line] if line.ends_with("signals (--output json lists them)")),
        "{table}"
    );
    agent.stop();
}

#[test]
fn a_gpu_missing_after_an_agent_restart_is_reported() {
    let agent_node = AgentNode::with_gpus(2);
    let quick = "[tiers]\nmedium_s = 1\n[rules.\"node.gpus-missing\"]\nfor_s = 1\n";
    fs::write(agent_node.path("agent.toml"), agent_node.config(quick)).unwrap();
    let agent = agent_node.agent().ready();
    let saved = || fs::read_to_string(agent_node.path("state/hardware.json")).unwrap_or_default();
    agent.until(|_| saved().contains("\"gpus_most\":2"));
    agent.stop();
    fs::remove_file(agent_node.path("node/gpus/0.json")).unwrap();
    let device = format!("node/root/sys/bus/pci/devices/{}.0", gpu_address(&agent_node));
    fs::remove_dir_all(agent_node.path(&device)).unwrap();
    let agent = agent_node.agent().ready();
    agent.until_found("node.gpus-missing");
    agent.stop();
}

#[test]
fn a_gpu_that_never_opens_is_reported_by_the_first_agent() {
    let agent_node = AgentNode::with_gpus(4);
    let quick = "[rules.\"node.gpus-unseen\"]\nfor_s = 1\n";
    fs::write(agent_node.path("agent.toml"), agent_node.config(quick)).unwrap();
    let call = "nvmlDeviceGetHandleByIndex_v2";
    agent_node.inject(&["--gpu", "2", "error", call, "INSUFFICIENT_POWER"]);
    let agent = agent_node.agent();
    let unseen = agent.until_found("node.gpus-unseen");
    let note = &unseen["evidence"][0]["signal"]["note"];
    assert_eq!(note, "NVML does not open GPU 2: NVML_ERROR_INSUFFICIENT_POWER");
    assert_eq!(agent_node.status().1, 1);
    agent.stop();
}

#[test]
fn a_failing_gpu_count_is_not_taken_for_a_node_without_gpus() {
    let agent_node = AgentNode::with_gpus(2);
    let quick = "[rules.\"driver.nvml-silent\"]\nfor_s = 1\n";
    fs::write(agent_node.path("agent.toml"), agent_node.config(quick)).unwrap();
    let before = agent_node.agent().ready();
    before.stop();
    agent_node.inject(&["--gpu", "all", "error", "nvmlDeviceGetCount_v2", "UNKNOWN"]);
    let agent = agent_node.agent();
    let status = agent.until(|status| find(status, "driver.nvml-silent").is_some());
    assert_eq!(status["gpus"].as_array().map(Vec::len), Some(2), "{status:#}");
    let (code, text) = agent.get("/healthz");
    assert_eq!(code, 503, "{text}");
    let (_, text) = agent.get("/metrics");
    assert!(text.contains("\nfarrier_agent_coverage_gap{source=\"nvml\"} 1\n"), "{text}");
    agent.stop();
}

#[test]
fn a_gpu_that_does_not_open_is_a_coverage_gap_before_its_finding_opens() {
    let agent_node = AgentNode::with_gpus(4);
    let call = "nvmlDeviceGetHandleByIndex_v2";
    agent_node.inject(&["--gpu", "2", "error", call, "INSUFFICIENT_POWER"]);
    let agent = agent_node.agent();
    let status = agent.until(|status| {
        let is_missing = |gap: &Value| gap["reason"] == "NVML opens 3 of the 4 GPUs on the PCI bus";
        status["coverage_gaps"].as_array().is_some_and(|gaps| gaps.iter().any(is_missing))
    });
    // The node check may have reported the GPU already; the rule waits for a second reading.
    assert!(find(&status, "node.gpus-unseen").is_none(), "{status:#}");
    assert!(status["verdict"] == "unknown" || status["verdict"] == "faulty", "{status:#}");
    agent.stop();
}

#[test]
fn a_gpu_lost_between_agents_keeps_its_uuid_within_a_boot() {
    let agent_node = AgentNode::with_gpus(4);
    let agent = agent_node.agent().ready();
    let gpus = agent_node.status().0["gpus"].clone();
    agent.stop();
    agent_node.inject(&["--gpu", "2", "lost"]);
    let agent = agent_node.agent();
    let lost = agent.until_found("gpu.lost");
    assert_eq!(lost["subject"]["gpu"], gpus[2]["identity"]["uuid"]);
    agent.stop();
}

#[test]
fn a_gpu_reset_between_agents_clears_its_findings() {
    let agent_node = AgentNode::with_gpus(2);
    let agent = agent_node.agent().ready();
    agent_node.inject(&["--gpu", "1", "recovery-action", "1"]);
    agent_node.inject(&["--gpu", "1", "xid", "95"]);
    agent.until(|status| {
        ["gpu.xid", "gpu.recovery-reset"].iter().all(|code| find(status, code).is_some())
    });
    agent.stop();
    agent_node.inject(&["--gpu", "1", "recovery-action", "0"]);
    let agent = agent_node.agent();
    agent.until(|status| find(status, "gpu.xid").is_none());
    let why = |(kind, finding): (String, Value)| {
        (kind == "cleared" && finding["code"] == "gpu.xid")
            .then(|| finding["cleared"]["why"].clone())
    };
    let why = agent_node.sink_changes().into_iter().find_map(why).unwrap();
    assert_eq!(why, "the GPU was reset, or the driver withdrew its recovery action");
    agent.stop();
}

#[test]
fn a_lost_gpu_is_reported_and_recovers() {
    let agent_node = AgentNode::new();
    let agent = agent_node.agent().ready();
    agent_node.inject(&["--gpu", "3", "lost"]);
    let lost = agent.until_found("gpu.lost");
    assert_eq!(lost["severity"], "fatal");
    let (status, code) = agent_node.status();
    assert_eq!((status["verdict"].as_str(), code), (Some("faulty"), 1));
    let table = agent_node.status_ran(&[]).stdout;
    assert!(table.contains("\n  fatal     gpu.lost, since "), "{table}");
    assert!(table.contains(": NVML reports the GPU as lost\n"), "{table}");
    let (_, text) = agent.get("/metrics");
    let named = "farrier_findings{code=\"gpu.lost\",severity=\"fatal\",kind=\"fault\",gpu=\"3\",UUID=\"GPU-";
    assert!(text.contains(named), "{text}");
    // The power limit is read only once a minute, but it disappears together with the GPU.
    agent.until(|status| {
        let limit = |gpu: usize| status["gpus"][gpu]["power_limit_w"]["value"].is_number();
        limit(2) && !limit(3)
    });
    let (_, text) = agent.get("/metrics");
    let limit = |gpu: u32| text.contains(&format!("farrier_gpu_power_limit_w{{gpu=\"{gpu}\""));
    assert!(limit(2) && !limit(3), "{text}");
    agent_node.inject(&["clear"]);
    agent.until(|status| {
        let gpus = status["gpus"].as_array().map_or(0, Vec::len);
        let is_read = |name: &str| status["gpus"][3][name]["value"].is_number();
        gpus == 8 && is_read("temperature_c") && is_read("power_limit_w")
    });
    agent.stop();
}

#[test]
fn a_gpu_off_the_bus_has_one_action_and_its_index_even_without_agent_or_nvml() {
    let agent_node = AgentNode::with_gpus(4);
    let agent = agent_node.agent().ready();
    let group_of_gpu = |status: &Value| {
        let groups = status["groups"].as_array().cloned().unwrap_or_default();
        groups.into_iter().find(|group| group["name"] == "GPU 3")
    };
    agent_node.inject(&["--gpu", "3", "xid", "79"]);
    let count = |status: &Value| {
        group_of_gpu(status).map_or(0, |group| group["findings"].as_array().unwrap().len())
    };
    let status = agent.until(|status| count(status) >= 3);
    let identity = &status["gpus"][3]["identity"];
    let (pci, uuid) = (identity["pci"].as_str().unwrap(), identity["uuid"].as_str().unwrap());
    let check_table = |ran: crate::support::CommandOutput| {
        let table = ran.stdout;
        assert_eq!(table.matches("do first").count(), 1, "{table}");
        let heading = format!("\nGPU 3: NVIDIA H100 80GB HBM3, {pci}, {uuid}\n");
        let first = "  do first  reboot-node: drain the node and reboot it.\n  fatal  ";
        assert!(table.contains(&format!("{heading}{first}")), "{table}");
        table
    };
    check_table(agent_node.status_ran(&[]));
    agent.kill();
    let (status, _) = agent_node.status();
    let group = group_of_gpu(&status).unwrap();
    assert_eq!((&group["pci"], &group["uuid"]), (&pci.into(), &uuid.into()));
    assert_eq!(group["first_action"]["action"], "reboot-node");
    let table = check_table(agent_node.status_ran(&[]));
    assert!(table.contains("agent is not running"), "{table}");
    // After a restart without NVML, the agent knows the GPUs from its saved inventory.
    let config = agent_node.config("").replace("libnvidia-ml.so.1", "no-such-library.so");
    fs::write(agent_node.path("agent.toml"), config).unwrap();
    let agent = agent_node.agent();
    agent.until(|status| group_of_gpu(status).is_some());
    check_table(agent_node.status_ran(&[]));
    agent.stop();
}

#[test]
fn each_remedy_is_printed_once_and_first() {
    let has = |status: &Value, name: &str| {
        status["groups"]
            .as_array()
            .is_some_and(|groups| groups.iter().any(|group| group["name"] == name))
    };
    let agent_node = AgentNode::with_gpus(2);
    let agent = agent_node.agent().ready();
    agent_node.inject(&["--gpu", "1", "recovery-action", "3"]);
    agent.until(|status| has(status, "GPU 1"));
    let table = agent_node.status_ran(&[]).stdout;
    let words: Vec<&str> = table.split_whitespace().collect();
    let first = "do first stop the peer-to-peer traffic of this GPU; other work may continue. The driver itself says so.";
    assert!(words.join(" ").contains(first), "{table}");
    agent.stop();
    // A driver upgrade without a reboot causes several findings with the same remedy: reboot.
    let agent_node = AgentNode::with_gpus(2);
    agent_node.inject(&["module-on-disk", "580.105.08"]);
    let agent = agent_node.agent();
    agent.until(|status| has(status, "node"));
    let table = agent_node.status_ran(&[]).stdout;
    assert!(!table.contains("do first  investigate: drain"), "{table}");
    let is_remedy = |line: &&str| line.starts_with("    do ") || line.starts_with("  do first ");
    let remedy =
        |line: &str| line.replacen("do first", "", 1).replacen("do ", "", 1).trim().to_owned();
    let remedies: Vec<String> = table.lines().filter(is_remedy).map(remedy).collect();
    let distinct: std::collections::BTreeSet<&String> = remedies.iter().collect();
    assert!(!remedies.is_empty() && remedies.len() == distinct.len(), "{table}");
    agent.stop();
}

#[test]
fn an_error_of_a_port_is_reported_for_the_gpu_below_it() {
    let agent_node = AgentNode::with_gpus(2);
    let agent = agent_node.agent().ready();
    agent_node.inject(&["--gpu", "1", "pcie", "--port-error", "contained"]);
    let errors = |status: &Value| {
        let findings = status["findings"].as_array().cloned().unwrap_or_default();
        let findings = findings.iter().map(|entry| entry["finding"].clone());
        findings.filter(|finding| finding["code"] == "pcie.kernel-error").collect::<Vec<_>>()
    };
    let status = agent.until(|status| !errors(status).is_empty());
    let errors = errors(&status);
    assert_eq!(errors.len(), 1, "{errors:#?}");
    assert_eq!(errors[0]["subject"]["gpu"], status["gpus"][1]["identity"]["uuid"]);
    assert_eq!(
        (&errors[0]["severity"], &errors[0]["action"]),
        (&"fatal".into(), &"reboot-node".into())
    );
    agent.stop();
}

#[test]
fn a_finding_without_an_action_has_no_do_first_line() {
    let agent_node = AgentNode::with_gpus(2);
    let agent = agent_node.agent().ready();
    agent_node.inject(&["--gpu", "1", "xid", "43"]);
    agent.until(|status| status["groups"].as_array().is_some_and(|groups| !groups.is_empty()));
    let table = agent_node.status_ran(&[]).stdout;
    assert!(table.contains("gpu.xid Xid 43") && !table.contains("do first"), "{table}");
    let brief = agent_node.status_ran(&["--brief"]).stdout;
    assert!(brief.contains("1 info") && !brief.contains("do first"), "{brief}");
    agent.stop();
}

#[test]
fn a_hung_nvml_call_affects_only_its_gpu() {
    let agent_node = AgentNode::with_gpus(2);
    fs::write(
        agent_node.path("agent.toml"),
        agent_node.config("[probe]\ndeadline_s = 4\navoid_s = 12\n"),
    )
    .unwrap();
    let agent = agent_node.agent().ready();
    agent_node.inject(&["--gpu", "1", "hang", "nvmlDeviceGetTemperature", "forever"]);
    // One cause, one finding: the collector blocked in the call is not also reported as silent.
    let status = agent.until(|status| !status["findings"].as_array().unwrap().is_empty());
    let findings: Vec<&Value> = status["findings"].as_array().unwrap().iter().collect();
    assert_eq!(findings.len(), 1, "{findings:?}");
    let finding = &findings[0]["finding"];
    assert_eq!(finding["code"], "driver.unresponsive");
    assert_eq!(finding["subject"]["gpu"], status["gpus"][1]["identity"]["uuid"]);
    let note = finding["evidence"][0]["signal"]["note"].as_str().unwrap_or_default();
    assert_eq!(note, "nvmlDeviceGetTemperature of GPU 1 has not returned for 4 s");
    let clears = finding["clears"].as_str().unwrap_or_default();
    assert!(clears.contains("`probe.avoid_s`"), "{clears}");
    let log = agent.log();
    assert!(log.contains("NVML is unavailable why=a call has not returned for 4 s"), "{log}");
    // The agent still reads the other GPU, so there is no coverage gap, but the node is not
    // healthy.
    let status = agent.until(|status| {
        status["coverage_gaps"].as_array().is_some_and(Vec::is_empty)
            && status["gpus"][0]["temperature_c"]["value"].is_number()
    });
    assert_eq!(agent.get("/healthz").0, 200);
    assert_eq!(status["verdict"], "faulty");
    assert!(find(&status, "driver.unresponsive").is_some(), "{status:#}");
    let is_read = |status: &Value| status["gpus"][1]["temperature_c"]["value"].is_number();
    assert!(!is_read(&status), "{status:#}");
    // The agent still reads the kernel log.
    let line = format!("NVRM: Xid (PCI:{}): 119, pid=1, Timeout", gpu_address(&agent_node));
    agent_node.kernel_lines(std::iter::once(line));
    let xid = agent.until_found("gpu.xid");
    assert_eq!(xid["detail"], "Xid 119");
    agent_node.inject(&["clear"]);
    agent.until(is_read);
    agent.stop();
}

#[test]
fn a_gpu_that_answers_again_is_healthy_for_the_next_agent() {
    let agent_node = AgentNode::with_gpus(2);
    let quick = "[probe]\ndeadline_s = 2\navoid_s = 600\n";
    fs::write(agent_node.path("agent.toml"), agent_node.config(quick)).unwrap();
    let agent = agent_node.agent().ready();
    agent_node.inject(&["--gpu", "0", "hang", "nvmlDeviceGetTemperature", "forever"]);
    agent.until_found("driver.unresponsive");
    agent.stop();
    agent_node.inject(&["clear"]);
    let agent = agent_node.agent();
    agent.until(|status| find(status, "driver.unresponsive").is_none());
    agent.until(|status| status["verdict"] == "healthy");
    agent.stop();
}

#[test]
fn a_gpu_without_readings_is_a_finding_and_a_coverage_gap() {
    let agent_node = AgentNode::with_gpus(2);
    let quick = "[rules.\"gpu.unreadable\"]\nfor_s = 5\n";
    fs::write(agent_node.path("agent.toml"), agent_node.config(quick)).unwrap();
    let agent = agent_node.agent().ready();
    agent_node.inject(&["--gpu", "1", "error", "*", "UNKNOWN"]);
    let why = "GPU 1: no NVML call reads it";
    let has_gap = |status: &Value| status["coverage_gaps"].to_string().contains(why);
    let status = agent.until(has_gap);
    assert_ne!(status["verdict"], "healthy", "{status:#}");
    let (code, text) = agent.get("/healthz");
    assert_eq!((code, text.contains(why)), (503, true), "{text}");
    let (_, text) = agent.get("/metrics");
    assert!(text.contains("\nfarrier_agent_coverage_gap{source=\"gpus\"} 1\n"), "{text}");
    let finding = agent.until_found("gpu.unreadable");
    assert_eq!(finding["severity"], "fatal");
    assert_eq!(finding["subject"]["gpu"], status["gpus"][1]["identity"]["uuid"]);
    agent_node.inject(&["clear"]);
    agent.until(|status| status["coverage_gaps"].as_array().is_some_and(Vec::is_empty));
    agent.stop();
}

#[test]
fn an_unreadable_signal_makes_the_verdict_unknown_even_if_no_rule_uses_it() {
    let agent_node = AgentNode::with_gpus(2);
    let agent = agent_node.agent().ready();
    agent.until(|status| status["verdict"] == "healthy");
    let (_, text) = agent.get("/metrics");
    assert!(text.contains("\nfarrier_node_verdict{verdict=\"healthy\"} 1\n"), "{text}");
    agent_node.inject(&["--gpu", "1", "error", "nvmlDeviceGetTemperature", "UNKNOWN"]);
    let status = agent.until(|status| status["verdict"] == "unknown");
    let coverage_gaps = status["coverage_gaps"].to_string();
    let why = "GPU 1: gpu.temperature_c cannot be read: NVML_ERROR_UNKNOWN";
    assert!(coverage_gaps.contains(why), "{coverage_gaps}");
    let (_, text) = agent.get("/metrics");
    for line in [
        "farrier_node_verdict{verdict=\"healthy\"} 0",
        "farrier_node_verdict{verdict=\"unknown\"} 1",
        "farrier_agent_coverage_gap{source=\"gpus\"} 0",
        "farrier_agent_rules_inactive 0",
    ] {
        assert!(text.contains(&format!("\n{line}\n")), "{line}: {text}");
    }
    assert!(text.contains("\nfarrier_gpu_signals_unreadable{gpu=\"1\",UUID=\"GPU-"), "{text}");
    agent_node.inject(&["clear"]);
    agent.until(|status| status["verdict"] == "healthy");
    agent.stop();
}

#[test]
fn a_gpu_without_a_pci_address_is_not_healthy() {
    let agent_node = AgentNode::with_gpus(2);
    agent_node.inject(&["--gpu", "1", "error", "nvmlDeviceGetPciInfo_v3", "UNKNOWN"]);
    let agent = agent_node.agent();
    let status = agent.until(|status| {
        let coverage_gaps = status["coverage_gaps"].to_string();
        coverage_gaps.contains("GPU 1: ") && coverage_gaps.contains("gpu.on_bus")
    });
    assert_ne!(status["verdict"], "healthy", "{status:#}");
    agent.stop();
}

#[test]
fn an_agent_started_on_a_hung_driver_shows_the_gpus_of_this_boot() {
    let agent_node = AgentNode::with_gpus(2);
    let agent = agent_node.agent().ready();
    let saved = || fs::read_to_string(agent_node.path("state/inventory.json")).unwrap_or_default();
    agent.until(|_| saved().contains("GPU-"));
    let (before, _) = agent_node.status();
    agent.stop();
    agent_node.inject(&["--gpu", "all", "hang", "*", "forever"]);
    let agent = agent_node.agent();
    // The first call may take 30 s before it counts as stuck.
    let status = agent.until(|status| {
        let waits = status["coverage_gaps"].to_string().contains("NVML: no answer yet");
        waits && status["driver"].is_string()
    });
    assert_eq!(status["driver"], before["driver"]);
    let gpus = status["gpus"].as_array().unwrap();
    assert_eq!(gpus.len(), 2, "{status:#}");
    assert_eq!(gpus[1]["identity"], before["gpus"][1]["identity"]);
    assert!(gpus[1]["temperature_c"]["value"].is_null(), "{status:#}");
    assert_ne!(status["verdict"], "healthy");
    agent.stop();
}

/// Live child processes of the agent.
fn children(agent: &Agent<'_>) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{0}/task", agent.pid())).unwrap().flatten();
    tasks
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|text| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

/// Whether a process runs. A zombie does not count as running.
fn is_running(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| !matches!(rest.trim().chars().next(), None | Some('Z')))
}

#[test]
fn a_hung_probe_does_not_outlive_the_agent() {
    let agent_node = AgentNode::with_gpus(1);
    agent_node.inject(&["--gpu", "all", "hang", "*", "forever"]);
    for end in [Agent::stop, Agent::kill] {
        let agent = agent_node.agent();
        // Once the process has loaded the library, it is in the call that never returns.
        let loaded = |pid: &String| {
            let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
            maps.contains("libnvidia-ml.so.1")
        };
        let stuck = wait_for(|| agent.log(), || children(&agent).into_iter().find(loaded));
        end(agent);
        wait_until(|| format!("process {stuck} is still running"), || !is_running(&stuck));
    }
}

#[test]
fn a_killed_probe_is_restarted() {
    let agent_node = AgentNode::with_gpus(1);
    let agent = agent_node.agent().ready();
    let pids = children(&agent);
    assert_eq!(pids.len(), 1, "{pids:?}");
    crate::kill::kill("-KILL", &pids[0]);
    agent.until(|status| status["coverage_gaps"].as_array().is_some_and(|gaps| !gaps.is_empty()));
    agent.until(|status| status["coverage_gaps"].as_array().is_some_and(Vec::is_empty));
    agent.stop();
}

#[test]
fn without_nvml_the_agent_reports_a_gap_and_reads_the_rest() {
    let agent_node = AgentNode::with_gpus(1);
    let config = agent_node.config("").replace("libnvidia-ml.so.1", "no-such-library.so");
    fs::write(agent_node.path("agent.toml"), config).unwrap();
    let agent = agent_node.agent();
    agent.until(|status| {
        let gaps = status["coverage_gaps"].as_array().cloned().unwrap_or_default();
        let no_library = |gap: &Value| {
            gap["reason"].as_str().is_some_and(|why| why.contains("failed to load the library"))
        };
        let host = status["collectors"].as_array().cloned().unwrap_or_default().into_iter();
        let mut host = host.filter(|collector| collector["name"] == "host-medium");
        gaps.len() == 1
            && no_library(&gaps[0])
            && host.all(|collector| collector["age_s"].is_number())
    });
    let (status, code) = agent_node.status();
    assert_ne!(status["verdict"], "healthy");
    assert_eq!(code, 1);
    assert!(status["gpus"].as_array().unwrap().is_empty());
    let (code, text) = agent.get("/metrics");
    assert_eq!(code, 200);
    assert!(!text.contains("DCGM_FI_DEV_GPU_TEMP"), "an unknown value is omitted: {text}");
    assert!(text.contains("farrier_node_gpus_pci 1\n"), "{text}");
    agent.stop();
}

#[test]
fn an_unloaded_driver_is_reported() {
    let agent_node = AgentNode::with_gpus(2);
    let more = "[tiers]\nmedium_s = 1\n[rules.\"driver.not-loaded\"]\nfor_s = 1\n";
    fs::write(agent_node.path("agent.toml"), agent_node.config(more)).unwrap();
    let agent = agent_node.agent().ready();
    agent_node.inject(&["driver-unloaded"]);
    agent.until(|status| status["coverage_gaps"].as_array().is_some_and(|gaps| !gaps.is_empty()));
    agent.until_found("driver.not-loaded");
    // The check runs again as soon as the driver is unloaded, and again once the driver is loaded.
    // It adds no duplicate finding.
    let hidden = |status: &Value| status["skipped_checks"].as_array().map_or(0, Vec::len);
    // A check that read the files during the unload may have found nvidia-uvm missing. The next check
    // clears that, so that one finding per cause remains.
    let status = agent.until(|status| hidden(status) > 0 && find(status, "check").is_none());
    assert!(status["driver"].is_null() && status["driver_loaded"] == false, "{status:#}");
    let table = agent_node.status_ran(&[]).stdout;
    assert!(table.contains(", no driver loaded, "), "{table}");
    agent_node.inject(&["driver-loaded"]);
    agent.until(|status| hidden(status) == 0);
    agent.until(|status| status["coverage_gaps"].as_array().is_some_and(Vec::is_empty));
    agent.until(|status| find(status, "driver.not-loaded").is_none());
    agent.stop();
}

#[test]
fn overwritten_kernel_lines_are_counted_and_reported() {
    let agent_node = AgentNode::with_gpus(1);
    let agent = agent_node.agent().ready();
    agent_node.inject(&["kernel-gap", "1000"]);
    agent_node.inject(&["kernel-line", "something else"]);
    let lost = || {
        let (_, text) = agent.get("/metrics");
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("farrier_agent_kernel_lines_lost_total "));
        line.and_then(|value| value.parse::<u64>().ok()).unwrap_or(0)
    };
    wait_until(|| agent.log(), || lost() >= 1000);
    agent.until_found("agent.kernel-lines-lost");
    agent.stop();
}

#[test]
fn ten_thousand_xid_lines_per_second_are_one_finding_in_bounded_memory() {
    let agent_node = AgentNode::with_gpus(1);
    let line = format!(
        "NVRM: Xid (PCI:{}): 31, pid=7, name=python3, Ch 00000008, MMU Fault",
        gpu_address(&agent_node)
    );
    let agent = agent_node.agent().ready();
    let before = agent.rss_bytes();
    for _ in 0..30 {
        agent_node.kernel_lines((0..1000).map(|_| line.clone()));
        std::thread::sleep(Duration::from_millis(50));
    }
    let count = |status: &Value| {
        find(status, "gpu.xid").and_then(|finding| finding["count"].as_u64()).unwrap_or(0)
    };
    let status = agent.until(|status| count(status) >= 30_000);
    assert_eq!(count(&status), 30_000);
    let grown = agent.rss_bytes().saturating_sub(before);
    assert!(grown < 8 << 20, "{grown} bytes more");
    let journal = status["journal"]["bytes"].as_u64().unwrap();
    assert!(journal < 1 << 20, "{journal} bytes of journal");
    agent.stop();
}

#[test]
fn each_kernel_line_opens_its_finding_before_the_next_is_written() {
    let agent_node = AgentNode::with_gpus(1);
    let agent = agent_node.agent().ready();
    let pci = gpu_address(&agent_node);
    for turn in 0..20 {
        // Use a different Xid each time, so that each opens a new finding.
        let line = format!("NVRM: Xid (PCI:{pci}): {}, pid=7, name=python3, x", 200 + turn);
        agent_node.kernel_lines(std::iter::once(line));
        let expected = format!("detail=Xid {}", 200 + turn);
        wait_until(|| agent.log(), || agent.log().contains(&expected));
    }
    agent.stop();
}

#[test]
fn a_driver_upgrade_without_a_reboot_is_reported() {
    let agent_node = AgentNode::with_gpus(1);
    let agent = agent_node.agent().ready();
    agent_node.inject(&["module-on-disk", "580.105.08"]);
    agent.stop();
    // The check runs only once a minute, but a new agent also runs it when it starts.
    let agent = agent_node.agent();
    let finding = agent.until_found("check");
    assert_eq!(finding["kind"], "fault");
    agent.stop();
}

#[test]
fn gpu_processes_show_their_slurm_job() {
    let agent_node = AgentNode::with_gpus(2);
    agent_node.inject(&[
        "--gpu",
        "1",
        "process",
        "4242",
        "--command",
        "python train.py",
        "--cgroup",
        "/system.slice/slurmstepd.scope/job_77/step_0/user/task_0",
    ]);
    let agent = agent_node.agent().ready();
    let status =
        agent.until(|status| !status["gpus"][1]["processes"].as_array().is_none_or(Vec::is_empty));
    let process = &status["gpus"][1]["processes"][0];
    assert_eq!(
        (&process["pid"], &process["kind"], &process["name"]),
        (&4242.into(), &"slurm-job".into(), &"77".into())
    );
    assert!(agent_node.status_ran(&[]).stdout.contains("job 77"));
    let (_, text) = agent.get("/metrics");
    assert!(text.contains("kind=\"slurm-job\",name=\"77\"} 1"), "{text}");
    agent.stop();
}

/// A tmpfs of 64 KiB. Only a user who may mount file systems can create it.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn at(path: std::path::PathBuf) -> Option<Self> {
        fs::create_dir_all(&path).unwrap();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64k,mode=755", "tmpfs"])
            .arg(&path)
            .output();
        mount.is_ok_and(|ran| ran.status.success()).then_some(Self(path))
    }

    fn fill(&self) {
        // Write until the disk is full.
        let mut file = fs::File::create(self.0.join("filler")).unwrap();
        while std::io::Write::write(&mut file, &[0; 512]).is_ok_and(|length| length > 0) {}
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

#[test]
fn a_full_disk_is_reported_and_loses_no_finding() {
    let agent_node = AgentNode::with_gpus(1);
    let Some(disk) = SmallDisk::at(agent_node.path("state")) else {
        skipped("this user may not mount; the journal's own tests fill a disk too");
        return;
    };
    let agent = agent_node.agent().ready();
    disk.fill();
    let line =
        format!("NVRM: Xid (PCI:{}): 31, pid=7, name=x, MMU Fault", gpu_address(&agent_node));
    agent_node.kernel_lines(std::iter::once(line.clone()));
    let status = agent.until(|status| find(status, "agent.log-unwritable").is_some());
    assert!(find(&status, "gpu.xid").is_some());
    assert!(
        status["findings"].as_array().unwrap().iter().all(|entry| entry["durable"] == false),
        "{status:#}"
    );
    assert_eq!(agent.get("/healthz").0, 503);
    assert!(
        agent_node.sink_changes().is_empty(),
        "findings reach the sink only after they are on disk"
    );
    // The agent also starts on a full disk.
    agent.stop();
    let agent = agent_node.agent();
    agent.until_found("gpu.xid");
    fs::remove_file(agent_node.path("state/filler")).unwrap();
    agent.until(|status| {
        let findings = status["findings"].as_array().cloned().unwrap_or_default();
        findings.iter().all(|entry| entry["durable"] == true) && find(status, "gpu.xid").is_some()
    });
    agent.kill();
    let (status, _) = agent_node.status();
    assert_eq!(find(&status, "gpu.xid").unwrap()["count"], 1);
    let opened = agent_node
        .sink_changes()
        .into_iter()
        .filter(|(kind, finding)| kind == "opened" && finding["code"] == "gpu.xid");
    assert_eq!(opened.count(), 1);
}
