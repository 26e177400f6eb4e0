//! Creates the order executor from the configuration.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use farrier_fleet::fleet::NodeId;
use jiff::Timestamp;

use super::actuator::{Actuator, Inspector};
use super::executor::{ExecutorParts, NodePaths, OrderExecutor};
use super::journal::OrdersError;
use super::repair_note::RepairNote;
use super::scheduler::Scheduler;
use super::scheduler::host::HostScheduler;
use super::scheduler::slurm::Slurm;
use super::submit::OrderLimits;
use super::tuner::Tuner;
use crate::artifact::Outbox;
use crate::config::{Config, SchedulerChoice};
use crate::failpoint::Failpoint;

/// Polling interval.
const POLL: Duration = Duration::from_secs(1);

/// Creates the actuator for a root that is not the root of this machine. Returns `None` if there is
/// no actuator for that root.
pub type ActuatorFactory = fn(&Path, Tuner) -> Option<Box<dyn Actuator>>;

pub struct ExecutorOptions {
    pub actuator: Box<dyn Actuator>,
    pub inspector: Arc<dyn Inspector>,
    pub hostname: String,
    /// The name under which the node enrolled. `None` if the node has not enrolled. Farrier then
    /// does not check whether an order names this node.
    pub node: Option<NodeId>,
    /// Uploads artifacts to the server. `None` if there is no server.
    pub outbox: Option<Outbox>,
    /// Called when an order status changes.
    pub wake: Box<dyn Fn() + Send + Sync>,
    /// Called when a repair note is on disk, for the health monitor of this process.
    pub repaired: Box<dyn Fn(RepairNote) + Send + Sync>,
}

pub fn open(config: &Config, options: ExecutorOptions) -> Result<OrderExecutor, OrdersError> {
    let ExecutorOptions { actuator, inspector, hostname, node, outbox, wake, repaired } = options;
    let orders = &config.orders;
    let scheduler = scheduler(config, &hostname, &inspector);
    tracing::info!(scheduler = scheduler.name(), "order executor started");
    OrderExecutor::open(ExecutorParts {
        state_dir: config.state_dir.clone(),
        limits: OrderLimits {
            node,
            allow_reset: orders.allow_reset,
            allow_reboot: orders.allow_reboot,
            allow_tune: orders.allow_tune,
            services: orders.services.clone(),
            settle_s: orders.settle_s,
        },
        actuator,
        inspector,
        scheduler,
        now: Box::new(Timestamp::now),
        poll: POLL,
        paths: NodePaths { root: config.root.clone(), nvml: config.nvml.clone() },
        outbox,
        crash: Failpoint::from_environment(),
        wake,
        repaired,
    })
}

fn scheduler(
    config: &Config,
    hostname: &str,
    inspector: &Arc<dyn Inspector>,
) -> Box<dyn Scheduler> {
    // The default NodeName of slurmd (`slurmd -N`, slurm.conf(5)).
    let short = hostname.split('.').next().unwrap_or(hostname);
    let node = config.orders.slurm_node.as_deref().unwrap_or(short);
    let host = || Box::new(HostScheduler::new(&config.state_dir, Arc::clone(inspector)));
    match config.orders.scheduler {
        SchedulerChoice::Slurm => Box::new(Slurm::new(node.to_owned())),
        SchedulerChoice::Host => host(),
        SchedulerChoice::Auto => match Slurm::detect(node) {
            Some(slurm) => Box::new(slurm),
            None => host(),
        },
    }
}
