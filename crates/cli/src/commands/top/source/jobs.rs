//! Jobs that speak to the agent.

use farrier_agent::jobs::JobState;

use super::host::Host;
use crate::commands::top::now::{JobNow, ProcessNow};

/// Those that are connected.
pub(super) fn of(jobs: &[JobState], host: &Host) -> Vec<JobNow> {
    let now = |job: &JobState| JobNow {
        job: job.job.clone(),
        user: job.uid.map(|uid| host.user(uid)),
        ranks: job.ranks,
        phase: job.phase.clone(),
        step: job.step,
        step_s: job.step_s,
        tokens_per_s: job.tokens_per_s,
        loss: job.loss,
    };
    jobs.iter().filter(|job| job.left.is_none()).map(now).collect()
}

/// Names the job of processes that are of none otherwise: the agent knows the process of some ranks.
pub(super) fn name(jobs: &[JobState], processes: &mut [ProcessNow]) {
    let ranks = jobs.iter().flat_map(|job| {
        job.slowest.iter().chain(&job.fastest).filter_map(|rank| Some((rank.pid?, &job.job)))
    });
    for (pid, job) in ranks {
        for process in processes.iter_mut().filter(|it| it.pid == pid && it.job.is_none()) {
            process.job = Some(format!("job {job}"));
        }
    }
}
