//! The process list: one row per job, or per process.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::format;
use super::frame::{Frame, Style};
use crate::commands::top::freshness::STALE_MARK;
use crate::commands::top::sample::{NodeSample, ProcessSample};

/// Draws a heading and as many rows as fit, and the number of other rows. If there are no
/// processes, draws the text `empty`.
pub(super) fn draw(
    frame: &mut Frame,
    (from, rows): (usize, usize),
    node: &NodeSample,
    processes: &[&ProcessSample],
    (by_job, now): (bool, Timestamp),
    empty: &str,
) {
    if rows == 0 {
        return;
    }
    if node.processes.is_none() {
        frame.text(from, 0, usize::MAX, Style::Caution, "processes: unknown");
        return;
    }
    let lines: Vec<ProcessRow> =
        if by_job { job_rows(node, processes, rows - 1) } else { process_rows(node, processes) };
    let title = if by_job { "job" } else { "process" };
    let is_stale = node.stale_processes(now).is_some();
    let title = if is_stale { format!("{STALE_MARK}{title}") } else { title.to_owned() };
    ProcessRow::heading(&title).draw(frame, from, Style::Dim);
    if lines.is_empty() && rows > 1 {
        frame.text(from + 1, 0, usize::MAX, Style::Dim, empty);
    }
    let room = rows - 1;
    let shown = if lines.len() > room { room.saturating_sub(1) } else { lines.len() };
    for (row, line) in lines.iter().take(shown).enumerate() {
        line.draw(frame, from + 1 + row, if is_stale { Style::Dim } else { Style::Plain });
    }
    if lines.len() > shown && room > 0 {
        let more = format!("and {} more", lines.len() - shown);
        frame.text(from + 1 + shown, 0, usize::MAX, Style::Dim, &more);
    }
}

/// A row in columns.
struct ProcessRow {
    job: String,
    user: String,
    gpus: String,
    memory: String,
    sm: String,
    bandwidth: String,
    cpu: String,
    host_memory: String,
    elapsed: String,
    command: String,
}

impl ProcessRow {
    fn heading(job: &str) -> Self {
        let owned = |text: &str| text.to_owned();
        Self {
            job: owned(job),
            user: owned("user"),
            gpus: owned("GPU"),
            memory: owned("memory"),
            sm: owned("SM"),
            bandwidth: owned("HBM"),
            cpu: owned("CPU"),
            host_memory: owned("host"),
            elapsed: owned("time"),
            command: owned("command"),
        }
    }

    fn draw(&self, frame: &mut Frame, row: usize, style: Style) {
        let width = frame.width();
        let wide = width >= 100;
        let (job, user) = if wide { (24, 12) } else { (18, 8) };
        let mut at = 0;
        let left = |frame: &mut Frame, room: usize, text: &str, at: &mut usize| {
            frame.text(row, *at, room, style, text);
            *at += room + 1;
        };
        let right = |frame: &mut Frame, room: usize, text: &str, at: &mut usize| {
            frame.right(row, *at, room, style, text);
            *at += room + 1;
        };
        left(frame, job.min(width), &self.job, &mut at);
        if width >= 40 {
            left(frame, user, &self.user, &mut at);
        }
        if width >= 30 {
            right(frame, if wide { 8 } else { 5 }, &self.gpus, &mut at);
        }
        right(frame, 6, &self.memory, &mut at);
        if width >= 60 {
            right(frame, 5, &self.sm, &mut at);
        }
        if wide {
            right(frame, 5, &self.bandwidth, &mut at);
        }
        if width >= 60 {
            right(frame, 5, &self.cpu, &mut at);
        }
        if wide {
            right(frame, 6, &self.host_memory, &mut at);
        }
        if width >= 70 {
            right(frame, 6, &self.elapsed, &mut at);
        }
        frame.text(row, at, usize::MAX, style, &self.command);
    }
}

fn share(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "?".to_owned(), |ratio| format!("{:.0}%", ratio * 100.0))
}

fn elapsed(seconds: Option<u64>) -> String {
    seconds.map_or_else(|| "?".to_owned(), format::duration)
}

fn or_unknown(text: Option<&String>) -> String {
    text.cloned().unwrap_or_else(|| "?".to_owned())
}

fn process_rows(node: &NodeSample, processes: &[&ProcessSample]) -> Vec<ProcessRow> {
    let line = |process: &&ProcessSample| {
        let kind = process.kind.map(|kind| format!(" {kind}")).unwrap_or_default();
        ProcessRow {
            job: format!("{}{kind}", process.pid),
            user: or_unknown(process.user.as_ref()),
            gpus: match process.instance {
                Some(instance) => format!("{}:{instance}", node.gpu_name(&process.gpu)),
                None => node.gpu_name(&process.gpu),
            },
            memory: format::memory(process.memory_bytes),
            sm: share(process.sm_ratio),
            bandwidth: share(process.memory_ratio),
            cpu: share(process.cpu_ratio),
            host_memory: format::memory(process.host_memory_bytes),
            elapsed: elapsed(process.elapsed_s),
            command: match (&process.job, &process.command) {
                (Some(job), Some(command)) => format!("{command} [{job}]"),
                (Some(job), None) => format!("? [{job}]"),
                (None, command) => or_unknown(command.as_ref()),
            },
        }
    };
    processes.iter().map(line).collect()
}

/// One row per job, followed by its processes if all fit.
fn job_rows(node: &NodeSample, processes: &[&ProcessSample], room: usize) -> Vec<ProcessRow> {
    let mut order: Vec<String> = Vec::new();
    let mut members: BTreeMap<String, Vec<&ProcessSample>> = BTreeMap::new();
    for process in processes {
        let name = process.job.clone().unwrap_or_else(|| format!("pid {}", process.pid));
        if !members.contains_key(&name) {
            order.push(name.clone());
        }
        members.entry(name).or_default().push(process);
    }
    let fits_all = order.len() + processes.len() <= room;
    let mut lines = Vec::new();
    for name in order {
        let own = members.remove(&name).unwrap_or_default();
        let below = if fits_all && own.len() > 1 { process_rows(node, &own) } else { Vec::new() };
        lines.push(job_row(node, &own, name));
        // The row above already names the job, so these rows do not name it.
        lines.extend(below.into_iter().zip(&own).map(|(line, process)| ProcessRow {
            job: format!("  {}", line.job),
            command: or_unknown(process.command.as_ref()),
            ..line
        }));
    }
    lines
}

fn job_row(node: &NodeSample, processes: &[&ProcessSample], name: String) -> ProcessRow {
    let mut gpus: Vec<String> =
        processes.iter().map(|process| node.gpu_name(&process.gpu)).collect();
    gpus.sort();
    gpus.dedup();
    let mut pids: Vec<u32> = processes.iter().map(|process| process.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    // If any part of a sum is unknown, the sum is unknown.
    let sum = |field: fn(&ProcessSample) -> Option<u64>| {
        processes
            .iter()
            .map(|process| field(process))
            .try_fold(0_u64, |sum, part| Some(sum + part?))
    };
    // CPU time and host memory of a process on several GPUs count once.
    let by_pid = |pid: &u32| processes.iter().find(|process| process.pid == *pid).copied();
    let cpu = pids
        .iter()
        .filter_map(by_pid)
        .map(|process| process.cpu_ratio)
        .try_fold(0.0, |sum, part| Some(sum + part?));
    let host = pids
        .iter()
        .filter_map(by_pid)
        .map(|process| process.host_memory_bytes)
        .try_fold(0_u64, |sum, part| Some(sum + part?));
    let mean = |field: fn(&ProcessSample) -> Option<f64>| {
        let sum = processes
            .iter()
            .map(|process| field(process))
            .try_fold(0.0, |sum, part| Some(sum + part?));
        sum.map(|sum: f64| sum / f64::from(u32::try_from(gpus.len().max(1)).unwrap_or(u32::MAX)))
    };
    let command = or_unknown(processes.first().and_then(|process| process.command.as_ref()));
    ProcessRow {
        job: name,
        user: or_unknown(processes.first().and_then(|process| process.user.as_ref())),
        gpus: ranges(&gpus),
        memory: format::memory(sum(|process| process.memory_bytes)),
        sm: share(mean(|process| process.sm_ratio)),
        bandwidth: share(mean(|process| process.memory_ratio)),
        cpu: share(cpu),
        host_memory: format::memory(host),
        elapsed: elapsed(processes.iter().filter_map(|process| process.elapsed_s).max()),
        command: match pids.len() {
            0 | 1 => command,
            count => format!("{count} × {command}"),
        },
    }
}

/// `0-3,6` from indexes; other names are joined as they are.
fn ranges(names: &[String]) -> String {
    let mut numbers: Vec<u32> = Vec::new();
    for name in names {
        match name.parse() {
            Ok(number) => numbers.push(number),
            Err(_) => return names.join(","),
        }
    }
    numbers.sort_unstable();
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => parts.push((number, number)),
        }
    }
    let part = |(first, last): &(u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    parts.iter().map(part).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_indexes_form_a_range() {
        let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(ranges(&names(&["0", "1", "2", "3", "6"])), "0-3,6");
        assert_eq!(ranges(&names(&["10", "2"])), "2,10");
        assert_eq!(ranges(&names(&["GPU-1", "2"])), "GPU-1,2");
        assert_eq!(ranges(&[]), "");
    }
}
