//! A private Slurm cluster: munge, a controller and four nodes, in a temporary directory.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::agent_node::{is_root, skipped};
use crate::support::wait::wait_until;

const NODES: u16 = 4;
/// How long to wait at the end for jobs and then for daemons. Daemons that have not exited by then
/// are killed. No test depends on this time.
const END_WAIT: Duration = Duration::from_secs(30);
/// Debian's directories for daemons, which are not in every user's PATH.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A running Slurm cluster, stopped at the end of its test.
pub(crate) struct Cluster {
    folder: tempfile::TempDir,
    daemons: Vec<Child>,
    ports: Ports,
}

/// What is missing to start a cluster; `None` if nothing is.
fn missing() -> Option<String> {
    if !is_root() {
        return Some("only root starts slurmd".to_owned());
    }
    let has =
        |program: &&str| PATH.split(':').any(|folder| Path::new(folder).join(program).exists());
    let programs = ["munged", "slurmctld", "slurmd", "scontrol", "squeue", "sbatch"];
    let missing: Vec<&str> = programs.into_iter().filter(|program| !has(program)).collect();
    (!missing.is_empty())
        .then(|| format!("{} missing: `apt-get install slurm-wlm munge`", missing.join(", ")))
}

impl Cluster {
    /// Starts a cluster; `None`, with a message, if that is impossible here.
    pub(crate) fn start() -> Option<Self> {
        if let Some(reason) = missing() {
            skipped(&reason);
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        // munge requires that no other user can write to any directory above its socket. Jobs of
        // other users need to enter this directory.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let mut cluster = Self { folder, daemons: Vec::new(), ports: Ports::reserve() };
        cluster.write();
        cluster.daemon("munged", &cluster.munge_args());
        cluster.wait("munge's socket", |cluster| cluster.path("munge/socket").exists());
        cluster.daemon("slurmctld", &["-D".to_owned()]);
        for number in 1..=NODES {
            cluster.daemon("slurmd", &["-D".to_owned(), "-N".to_owned(), format!("node{number}")]);
        }
        cluster.wait("idle nodes", |cluster| {
            let nodes = cluster.run("sinfo", &["--noheader", "--Node", "--format=%N %t"]);
            nodes.lines().filter(|line| line.ends_with(" idle")).count() == usize::from(NODES)
        });
        Some(cluster)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Environment that directs Slurm's programs to this cluster.
    pub(crate) fn environment(&self) -> [(&'static str, String); 2] {
        [("SLURM_CONF", self.path("slurm.conf").display().to_string()), ("PATH", PATH.to_owned())]
    }

    /// Output of a Slurm program, even if it fails.
    pub(crate) fn run(&self, program: &str, args: &[&str]) -> String {
        let output = self.command(program).args(args).output().unwrap();
        format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
    }

    /// `scontrol show node`.
    pub(crate) fn node(&self, node: &str) -> String {
        self.run("scontrol", &["show", "node", node])
    }

    /// Drains a node as an administrator does.
    pub(crate) fn drain(&self, node: &str, reason: &str) {
        let (node, reason) = (format!("NodeName={node}"), format!("Reason={reason}"));
        assert_eq!(self.run("scontrol", &["update", &node, "State=DRAIN", &reason]), "");
    }

    /// `scontrol show job`.
    pub(crate) fn job(&self, job: &str) -> String {
        self.run("scontrol", &["show", "job", job])
    }

    /// Starts a job and waits until it runs on the node; returns its ID.
    pub(crate) fn start_job(&self, node: &str, more: &[&str]) -> String {
        self.start_script(node, "exec sleep 600", more)
    }

    /// Starts a job that ends successfully as soon as the file `job.may-end` exists.
    pub(crate) fn start_ending_job(&self, node: &str) -> String {
        let end = self.path("job.may-end").display().to_string();
        let script = format!("until [ -e {end} ]; do sleep 0.1; done");
        self.start_script(node, &script, &["--requeue"])
    }

    fn start_script(&self, node: &str, text: &str, more: &[&str]) -> String {
        let script = self.path("job.sh");
        fs::write(&script, format!("#!/bin/sh\n{text}\n")).unwrap();
        let (script, log) =
            (script.display().to_string(), self.path("job.log").display().to_string());
        let default_args = ["--parsable", "--gres=gpu:1", "--output", &log];
        let id = self.run("sbatch", &[&default_args, more, &[&script]].concat()).trim().to_owned();
        assert!(id.parse::<u32>().is_ok(), "{id}");
        self.wait("running job", |cluster| cluster.job(&id).contains("JobState=RUNNING"));
        assert!(self.job(&id).contains(&format!("NodeList={node}")), "{}", self.job(&id));
        id
    }

    /// Starts a requeued job now. Slurm would wait two minutes, until the last credential of the
    /// job has expired. That only matters if the job starts on the same node again.
    pub(crate) fn release(&self, job: &str) {
        if self.job(job).contains("JobState=PENDING") {
            self.run("scontrol", &["update", &format!("JobId={job}"), "StartTime=now"]);
        }
    }

    /// Waits for a node state that satisfies the predicate; returns the output of `scontrol`.
    pub(crate) fn until_node(&self, node: &str, condition: impl Fn(&str) -> bool) -> String {
        self.wait("node in the expected state", |cluster| condition(&cluster.node(node)));
        self.node(node)
    }

    pub(crate) fn wait(&self, expected: &str, condition: impl Fn(&Self) -> bool) {
        wait_until(|| format!("no {expected}:\n{}", self.logs()), || condition(self));
    }

    fn logs(&self) -> String {
        let Ok(entries) = fs::read_dir(self.path("log")) else { return String::new() };
        let mut logs = String::new();
        for entry in entries.flatten() {
            let text = fs::read_to_string(entry.path()).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let last = lines[lines.len().saturating_sub(20)..].join("\n");
            logs.push_str(&format!("--- {}\n{last}\n", entry.path().display()));
        }
        logs
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("env");
        for (key, value) in self.environment() {
            command.arg(format!("{key}={value}"));
        }
        command.arg(program).stdin(Stdio::null());
        command
    }

    fn daemon(&mut self, program: &str, args: &[String]) {
        let log = self.path(&format!("log/{program}-{}", self.daemons.len()));
        let log = fs::File::create(log).unwrap();
        let mut command = self.command(program);
        command.args(args).stdout(log.try_clone().unwrap()).stderr(log);
        self.daemons.push(command.spawn().unwrap());
    }

    fn munge_args(&self) -> Vec<String> {
        let at = |name: &str| self.path(&format!("munge/{name}")).display().to_string();
        let mut args = vec!["--foreground".to_owned(), "--force".to_owned()];
        for (flag, name) in [("key", "key"), ("pid", "pid"), ("seed", "seed")] {
            args.push(format!("--{flag}-file={}", at(name)));
        }
        args.push(format!("--socket={}", at("socket")));
        args
    }

    fn write(&self) {
        for name in ["munge", "state", "spool", "log", "dev"] {
            fs::create_dir(self.path(name)).unwrap();
        }
        let key = self.path("munge/key");
        let mut random = vec![0; 256];
        std::io::Read::read_exact(&mut fs::File::open("/dev/urandom").unwrap(), &mut random)
            .unwrap();
        fs::write(&key, random).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        for number in 0..2 {
            fs::write(self.path(&format!("dev/nvidia{number}")), "").unwrap();
        }
        let folder = self.folder.path().display();
        fs::write(self.path("cgroup.conf"), self.cgroup_conf()).unwrap();
        let gres = format!("NodeName=node[1-{NODES}] Name=gpu File={folder}/dev/nvidia[0-1]\n");
        fs::write(self.path("gres.conf"), gres).unwrap();
        let mut conf = CONF
            .replace("{folder}", &folder.to_string())
            .replace("{port}", &self.ports.first.to_string());
        for number in 1..=NODES {
            let port = self.ports.first + number;
            conf.push_str(&format!(
                "NodeName=node{number} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=100 Gres=gpu:2\n"
            ));
        }
        conf.push_str("PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n");
        fs::write(self.path("slurm.conf"), conf).unwrap();
    }

    /// slurmd loads a cgroup plugin although nothing here uses cgroups, and a container or chroot
    /// may have no cgroups. Since Slurm 23.11, the plugin can be disabled (`CgroupPlugin=disabled`,
    /// cgroup.conf(5)). Older versions get the v1 plugin, which looks for no mount until a
    /// controller is requested.
    fn cgroup_conf(&self) -> String {
        let version = self.run("slurmd", &["-V"]);
        let mut numbers =
            version.split([' ', '.']).filter_map(|part| part.trim().parse::<u32>().ok());
        let is_new = (numbers.next(), numbers.next()) >= (Some(23), Some(11));
        format!("CgroupPlugin={}\n", if is_new { "disabled" } else { "cgroup/v1" })
    }
}

/// The start of `slurm.conf`. Waits at the end of a job are short, because their defaults are meant
/// for large clusters. Timeouts between daemons are minutes long, so that Slurm does not consider a
/// slow node on a busy machine down.
const CONF: &str = "\
ClusterName=farrier
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
ReturnToService=1
KillWait=1
MessageTimeout=100
TCPTimeout=100
SlurmctldTimeout=600
SlurmdTimeout=600
BatchStartTimeout=600
UnkillableStepTimeout=600
GresTypes=gpu
SlurmdParameters=config_overrides
";

/// Ports of one cluster: the controller's port, then one per node. Slurm needs fixed ports. They
/// are below the kernel's ephemeral range, and a lock file keeps other tests from using them.
struct Ports {
    first: u16,
    _lock: fs::File,
}

impl Ports {
    fn reserve() -> Self {
        let blocks = (20_000..30_000).step_by(usize::from(NODES) + 1);
        let mut free = blocks.filter_map(|first| {
            let path = std::env::temp_dir().join(format!("farrier-test-slurm-{first}.lock"));
            let lock = fs::File::options().create(true).append(true).open(path).ok()?;
            lock.try_lock().ok()?;
            let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
            (first..=first + NODES).all(is_free).then_some(Self { first, _lock: lock })
        });
        free.next().expect("a block of free ports")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Cancel the jobs, so that none of their processes is left behind.
        let jobs = self.run("squeue", &["--noheader", "--format=%i"]);
        let jobs: Vec<&str> =
            jobs.split_whitespace().filter(|id| id.parse::<u32>().is_ok()).collect();
        if !jobs.is_empty() {
            self.run("scancel", &[&["--signal=KILL", "--full"][..], &jobs].concat());
            self.run("scancel", &jobs);
        }
        // slurmd ends the processes of a job, so wait for that before slurmd is stopped.
        let start = Instant::now();
        while !self.run("squeue", &["--noheader", "--format=%i"]).trim().is_empty()
            && start.elapsed() < END_WAIT
        {
            std::thread::sleep(Duration::from_millis(50));
        }
        for daemon in self.daemons.iter_mut().rev() {
            let pid = daemon.id();
            let _ = Command::new("sh").args(["-c", &format!("kill -TERM {pid}")]).status();
        }
        let start = Instant::now();
        for daemon in &mut self.daemons {
            while matches!(daemon.try_wait(), Ok(None)) && start.elapsed() < END_WAIT {
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}
