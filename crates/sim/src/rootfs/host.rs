//! Files of the kernel and the distribution.

use crate::host::{Host, HostMemory, Mount, SoftwareFault};
use crate::node::SharedNodeState;

use super::RootFs;

const CPUS: u64 = 96;

pub(super) fn add(rootfs: &mut RootFs, node: &SharedNodeState, host: &Host) {
    identity(rootfs, node, host);
    memory(rootfs, host);
    mounts(rootfs, &host.mounts);
    disks(rootfs, host);
    if !host.has(SoftwareFault::ClockUnsynchronised) {
        rootfs.add_file("run/systemd/timesync/synchronized", "");
    }
    // The folder exists while the time service runs.
    rootfs.add_file("run/systemd/timesync/clock", "");
    rootfs.add_value(
        "proc/sys/fs/file-nr",
        format!("{}\t0\t{}", host.file_handles.used, host.file_handles.max),
    );
    rootfs.add_value("proc/sys/fs/file-max", host.file_handles.max);
    rootfs.add_value("proc/loadavg", "2.11 2.04 1.98 3/1843 48211");
    let clock = "sys/devices/system/clocksource/clocksource0";
    rootfs.add_value(format!("{clock}/current_clocksource"), &host.clock_source);
    rootfs.add_value(format!("{clock}/available_clocksource"), "tsc hpet acpi_pm");
    for cpu in [0, CPUS - 1] {
        let folder = format!("sys/devices/system/cpu/cpu{cpu}/cpufreq");
        rootfs.add_value(format!("{folder}/scaling_governor"), &host.governor);
        let folder = format!("sys/devices/system/cpu/cpu{cpu}/thermal_throttle");
        rootfs.add_value(format!("{folder}/core_throttle_count"), 0);
        rootfs.add_value(format!("{folder}/package_throttle_count"), host.cpu_throttles);
    }
    rootfs.add_value("sys/devices/system/cpu/online", format!("0-{}", CPUS - 1));
    if node.virtual_machine {
        rootfs.add_value("sys/class/dmi/id/sys_vendor", "QEMU");
        rootfs.add_value("sys/class/dmi/id/product_name", "Standard PC (Q35 + ICH9, 2009)");
    } else {
        rootfs.add_value("sys/class/dmi/id/sys_vendor", "Farrier");
        rootfs.add_value("sys/class/dmi/id/product_name", "Simulated GPU server");
    }
    // The firmware has no EFI, so Secure Boot is off.
    rootfs.add_value("sys/firmware/acpi/pm_profile", 4);
    rootfs.add_value("sys/module/module/parameters/sig_enforce", "N");
}

fn identity(rootfs: &mut RootFs, node: &SharedNodeState, host: &Host) {
    rootfs.add_value("etc/hostname", &node.hostname);
    rootfs.add_value("proc/sys/kernel/hostname", &node.hostname);
    rootfs.add_value("proc/sys/kernel/osrelease", &node.kernel);
    rootfs.add_value("proc/sys/kernel/random/boot_id", &host.boot_id);
    rootfs.add_file(
        "proc/version",
        format!("Linux version {} (buildd@lcy02-amd64-026) (x86_64-linux-gnu-gcc-13 (Ubuntu 13.3.0-6ubuntu2~24.04) 13.3.0)\n", node.kernel),
    );
    rootfs.add_file(
        "proc/cmdline",
        format!("BOOT_IMAGE=/boot/vmlinuz-{} root=/dev/nvme0n1p2 ro iommu=pt\n", node.kernel),
    );
    uptime(rootfs, node);
    rootfs.add_file("proc/stat", format!("btime {}\n", node.booted_unix_ms / 1000));
    rootfs.add_file(
        "etc/os-release",
        "PRETTY_NAME=\"Ubuntu 24.04.3 LTS\"\nNAME=\"Ubuntu\"\nVERSION_ID=\"24.04\"\nVERSION=\"24.04.3 LTS (Noble Numbat)\"\nVERSION_CODENAME=noble\nID=ubuntu\nID_LIKE=debian\n",
    );
    rootfs.add_file("etc/default/grub", "GRUB_DEFAULT=0\nGRUB_CMDLINE_LINUX=\"\"\n");
}

/// `/proc/uptime`, the only file that depends on the clock.
pub(super) fn uptime(rootfs: &mut RootFs, node: &SharedNodeState) {
    let uptime_ms = node.uptime_ms();
    let seconds = |ms: u64| format!("{}.{:02}", ms / 1000, ms % 1000 / 10);
    let idle_ms = uptime_ms.saturating_mul(CPUS);
    rootfs.add_value("proc/uptime", format!("{} {}", seconds(uptime_ms), seconds(idle_ms)));
}

fn memory(rootfs: &mut RootFs, host: &Host) {
    let total = HostMemory::TOTAL_KIB;
    let HostMemory { available_kib, large_blocks } = host.memory;
    let free = available_kib.saturating_sub(98_742_252);
    rootfs.add_file(
        "proc/meminfo",
        format!("MemTotal:       {total} kB\nMemFree:        {free} kB\nMemAvailable:   {available_kib} kB\nBuffers:          402132 kB\n\
         Cached:         98340120 kB\nSwapTotal:             0 kB\nSwapFree:              0 kB\nHugePages_Total:       0\nHugepagesize:       2048 kB\n"),
    );
    rootfs.add_file(
        "proc/vmstat",
        format!(
            "nr_free_pages 473355072\nnr_dirty 312\nnr_writeback 0\npgfault 48211034\npgmajfault 10211\ncompact_stall 0\noom_kill {}\n",
            host.oom_kills
        ),
    );
    // Free blocks by order. Most of the memory is in 4 MiB blocks, which have the largest order.
    let small = "1033   2011   1800   1310    911    660    401    280    190      0";
    let (near, far) = (large_blocks / 2, large_blocks - large_blocks / 2);
    rootfs.add_file(
        "proc/buddyinfo",
        format!(
            "Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      0      0 \n\
             Node 0, zone   Normal   {small} {near} \nNode 1, zone   Normal   {small} {far} \n"
        ),
    );
    rootfs.add_file("proc/swaps", "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n");
    rootfs.add_value("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never");
    let folder = "sys/devices/system/edac/mc/mc0";
    rootfs.add_value(format!("{folder}/mc_name"), "Intel_10nm Socket#0 IMC#0");
    rootfs.add_value(format!("{folder}/ce_count"), host.edac.corrected);
    rootfs.add_value(format!("{folder}/ue_count"), host.edac.uncorrected);
}

/// What `statvfs` would answer: total and available bytes, total and available inodes.
fn disks(rootfs: &mut RootFs, host: &Host) {
    const TOTAL: u64 = 2_000_000_000_000;
    const INODES: u64 = 120_000_000;
    let mut text = String::new();
    for Mount { path, .. } in &host.mounts {
        let available = match path.as_str() {
            "/scratch" if host.has(SoftwareFault::DiskFull) => 0,
            "/" if host.has(SoftwareFault::DiskNearlyFull) => 50_000_000_000,
            _ => TOTAL / 2,
        };
        text.push_str(&format!("{path} {TOTAL} {available} {INODES} {}\n", INODES / 2));
    }
    rootfs.add_file("run/farrier-sim/disks", text);
}

fn mounts(rootfs: &mut RootFs, mounts: &[Mount]) {
    let (mut table, mut details, mut statistics) = (String::new(), String::new(), String::new());
    for (number, mount) in (24_u32..).zip(mounts) {
        let Mount { source, path, kind, .. } = mount;
        let access = if mount.read_only { "ro" } else { "rw" };
        table.push_str(&format!("{source} {path} {kind} {access},relatime 0 0\n"));
        // After an error, the superblock is read-only (`access`), but the mount is still `rw`.
        // `/proc/mounts` above shows `ro` if either is read-only.
        details.push_str(&format!(
            "{number} 1 259:{number} / {path} rw,relatime shared:{number} - {kind} {source} {access}\n"
        ));
        statistics.push_str(&format!("device {source} mounted on {path} with fstype {kind}"));
        if kind.starts_with("nfs") {
            // RPCs sent, answered and pending. If the server is stalled, requests stay pending.
            let (sent, answered) = if mount.stalled { (90_412, 90_380) } else { (90_380, 90_380) };
            let waiting = sent - answered;
            statistics.push_str(&format!(
                " statvers=1.1\n\topts:\t{access},vers=4.2,hard,proto=tcp\n\tage:\t86000\n\
                 \txprt:\ttcp 0 0 1 0 0 {sent} {answered} 0 {sent} {waiting} 32 0 0\n"
            ));
        } else {
            statistics.push('\n');
        }
    }
    rootfs.add_file("proc/self/mounts", table.clone());
    rootfs.add_file("proc/self/mountinfo", details.clone());
    rootfs.add_file("proc/self/mountstats", statistics);
    // `/proc/mounts` links to `self/mounts`. Some readers use PID 1 instead.
    rootfs.add_symlink("proc/mounts", "self/mounts");
    rootfs.add_file("proc/1/mounts", table);
    rootfs.add_file("proc/1/mountinfo", details);
}
