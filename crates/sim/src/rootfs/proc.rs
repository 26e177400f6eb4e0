//! `/proc/PID` of processes and kernel threads, and `cgroup.procs` of the driver's services under
//! `/sys/fs/cgroup`.

use crate::gpu::{Process, SimGpu};
use crate::host::{FABRIC_MANAGER_PID, Host, PERSISTENCED_PID, SoftwareFault, Task, TaskState};
use crate::node::SharedNodeState;

use super::RootFs;
use super::driver::switches;
use super::packages::has_imex;

/// Process ID of nvidia-imex.
const IMEX_PID: u32 = 2171;

pub(super) fn add(rootfs: &mut RootFs, node: &SharedNodeState, host: &Host, gpus: &[&SimGpu]) {
    let no_fabric = switches(gpus).is_empty();
    let has_no_manager = no_fabric || host.has(SoftwareFault::FabricManagerStopped);
    for task in &host.tasks {
        // Driver tasks need the loaded driver, and the Fabric Manager needs NVSwitches.
        let of_driver = task.name.starts_with("nv") && !task.is_injected;
        let absent =
            of_driver && !node.driver_loaded || task.pid == FABRIC_MANAGER_PID && has_no_manager;
        if !absent {
            files(rootfs, node, task);
        }
    }
    for process in gpus.iter().flat_map(|gpu| &gpu.processes) {
        let task = task_for_process(process);
        files(rootfs, node, &task);
        // The process has a single thread.
        thread(rootfs, node, &task, &format!("proc/{0}/task/{0}", task.pid));
    }
    if node.driver_loaded && has_imex(node) && !host.has(SoftwareFault::ImexStopped) {
        let folder = "sys/fs/cgroup/system.slice/nvidia-imex.service";
        rootfs.add_value(format!("{folder}/cgroup.procs"), IMEX_PID);
    }
    if node.driver_loaded {
        let manager = (FABRIC_MANAGER_PID, "nvidia-fabricmanager");
        let running = [(PERSISTENCED_PID, "nvidia-persistenced"), manager];
        for (pid, name) in running {
            if pid != FABRIC_MANAGER_PID || !has_no_manager {
                let folder = format!("sys/fs/cgroup/system.slice/{name}.service");
                rootfs.add_value(format!("{folder}/cgroup.procs"), pid);
            }
        }
    }
}

fn task_for_process(process: &Process) -> Task {
    let command = if process.command.is_empty() { &process.name } else { &process.command };
    Task {
        pid: process.pid,
        parent: 1,
        name: process.name.rsplit('/').next().unwrap_or_default().chars().take(15).collect(),
        command: command.split(' ').map(str::to_owned).collect(),
        cgroup: if process.cgroup.is_empty() {
            "/user.slice/user-1000.slice/session-3.scope".to_owned()
        } else {
            process.cgroup.clone()
        },
        state: TaskState::Running,
        wait_channel: String::new(),
        started_unix_ms: process.started_unix_ms,
        is_injected: true,
    }
}

fn files(rootfs: &mut RootFs, node: &SharedNodeState, task: &Task) {
    let folder = format!("proc/{}", task.pid);
    let mut command = task.command.join("\0");
    if !command.is_empty() {
        command.push('\0');
    }
    rootfs.add_file(format!("{folder}/cmdline"), command);
    rootfs.add_value(format!("{folder}/cgroup"), format!("0::{}", task.cgroup));
    thread(rootfs, node, task, &folder);
}

/// Files that a process and each of its threads have.
fn thread(rootfs: &mut RootFs, node: &SharedNodeState, task: &Task, folder: &str) {
    let Task { pid, parent, name, .. } = task;
    let (letter, word) = task.state.proc_state();
    rootfs.add_value(format!("{folder}/comm"), name);
    let wait = if task.wait_channel.is_empty() { "0" } else { task.wait_channel.as_str() };
    rootfs.add_file(format!("{folder}/wchan"), wait);
    let stack = match task.wait_channel.as_str() {
        "" => String::new(),
        function => format!("[<0>] {function}+0x1c4/0x2a0\n"),
    };
    rootfs.add_file(format!("{folder}/stack"), stack);
    // The start time is in clock ticks of 10 ms, because `USER_HZ` is 100.
    let started = task.started_unix_ms.saturating_sub(node.booted_unix_ms) / 10;
    // `PF_KTHREAD` is set in the flags of kernel threads. The fields of `stat` that are literal
    // numbers below are the same for all tasks.
    let flags = if *parent == 2 || *pid == 2 { 0x0020_8040 } else { 0x0040_0100 };
    rootfs.add_file(
        format!("{folder}/stat"),
        format!(
            "{pid} ({name}) {letter} {parent} {pid} {pid} 0 -1 {flags} 0 0 0 0 12 8 0 0 20 0 1 0 {started} 0 0 \
             18446744073709551615 0 0 0 0 0 0 0 0 0 0 0 0 17 3 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
        ),
    );
    rootfs.add_file(
        format!("{folder}/status"),
        format!(
            "Name:\t{name}\nUmask:\t0022\nState:\t{letter} ({word})\nTgid:\t{pid}\nNgid:\t0\nPid:\t{pid}\nPPid:\t{parent}\n\
             TracerPid:\t0\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nThreads:\t1\nvoluntary_ctxt_switches:\t150\n\
             nonvoluntary_ctxt_switches:\t12\n"
        ),
    );
}
