//! Jobs that report to the agent.

use farrier_agent::jobs::JobState;

use super::host::HostReader;
use crate::commands::top::sample::{JobSample, ProcessSample};

/// Jobs with connected ranks.
pub(super) fn connected(jobs: &[JobState], host: &HostReader) -> Vec<JobSample> {
    let sample = |job: &JobState| JobSample {
        job: job.job.clone(),
        user: job.uid.map(|uid| host.user(uid)),
        ranks: job.ranks,
        phase: job.phase.clone(),
        step: job.step,
        step_s: job.step_s,
        tokens_per_s: job.tokens_per_s,
        loss: job.loss,
    };
    jobs.iter().filter(|job| job.left.is_none()).map(sample).collect()
}

/// Sets the job of processes without a known job: the agent knows the PIDs of some ranks.
pub(super) fn assign(jobs: &[JobState], processes: &mut [ProcessSample]) {
    let ranks = jobs.iter().flat_map(|job| {
        job.slowest.iter().chain(&job.fastest).filter_map(|rank| Some((rank.pid?, &job.job)))
    });
    for (pid, job) in ranks {
        for process in
            processes.iter_mut().filter(|process| process.pid == pid && process.job.is_none())
        {
            process.job = Some(format!("job {job}"));
        }
    }
}
