//! Processes: one line a job, or one a process.

use std::collections::BTreeMap;

use super::frame::{Frame, Style};
use super::words;
use crate::commands::top::now::{NodeNow, ProcessNow};

/// Draws as many as there are rows, with a heading; says how many are not shown. `empty` is what stands there where there
/// is none.
pub(super) fn draw(
    frame: &mut Frame,
    (from, rows): (usize, usize),
    node: &NodeNow,
    processes: &[&ProcessNow],
    by_job: bool,
    empty: &str,
) {
    if rows == 0 {
        return;
    }
    if node.processes.is_none() {
        frame.text(from, 0, usize::MAX, Style::Caution, "processes: not known");
        return;
    }
    let lines: Vec<Line> =
        if by_job { jobs(node, processes, rows - 1) } else { singles(node, processes) };
    let title = if by_job { "job" } else { "process" };
    Line::heading(title).draw(frame, from, Style::Dim);
    if lines.is_empty() && rows > 1 {
        frame.text(from + 1, 0, usize::MAX, Style::Dim, empty);
    }
    let room = rows - 1;
    let shown = if lines.len() > room { room.saturating_sub(1) } else { lines.len() };
    for (row, line) in lines.iter().take(shown).enumerate() {
        line.draw(frame, from + 1 + row, Style::Plain);
    }
    if lines.len() > shown && room > 0 {
        let more = format!("and {} more", lines.len() - shown);
        frame.text(from + 1 + shown, 0, usize::MAX, Style::Dim, &more);
    }
}

/// A line of text in columns.
struct Line {
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

impl Line {
    fn heading(job: &str) -> Self {
        let word = |text: &str| text.to_owned();
        Self {
            job: word(job),
            user: word("user"),
            gpus: word("GPU"),
            memory: word("memory"),
            sm: word("SM"),
            bandwidth: word("HBM"),
            cpu: word("CPU"),
            host_memory: word("host"),
            elapsed: word("time"),
            command: word("command"),
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
    seconds.map_or_else(|| "?".to_owned(), words::duration)
}

fn known(text: Option<&String>) -> String {
    text.cloned().unwrap_or_else(|| "?".to_owned())
}

fn singles(node: &NodeNow, processes: &[&ProcessNow]) -> Vec<Line> {
    let line = |process: &&ProcessNow| {
        let kind = process.kind.map(|kind| format!(" {kind}")).unwrap_or_default();
        Line {
            job: format!("{}{kind}", process.pid),
            user: known(process.user.as_ref()),
            gpus: match process.instance {
                Some(instance) => format!("{}:{instance}", node.gpu_name(&process.gpu)),
                None => node.gpu_name(&process.gpu),
            },
            memory: words::memory(process.memory_bytes),
            sm: share(process.sm_ratio),
            bandwidth: share(process.memory_ratio),
            cpu: share(process.cpu_ratio),
            host_memory: words::memory(process.host_memory_bytes),
            elapsed: elapsed(process.elapsed_s),
            command: match (&process.job, &process.command) {
                (Some(job), Some(command)) => format!("{command} [{job}]"),
                (Some(job), None) => format!("? [{job}]"),
                (None, command) => known(command.as_ref()),
            },
        }
    };
    processes.iter().map(line).collect()
}

/// What belongs together, a line each; below it its processes, where all have room.
fn jobs(node: &NodeNow, processes: &[&ProcessNow], room: usize) -> Vec<Line> {
    let mut order: Vec<String> = Vec::new();
    let mut members: BTreeMap<String, Vec<&ProcessNow>> = BTreeMap::new();
    for process in processes {
        let name = process.job.clone().unwrap_or_else(|| format!("pid {}", process.pid));
        if !members.contains_key(&name) {
            order.push(name.clone());
        }
        members.entry(name).or_default().push(process);
    }
    let is_wide_open = order.len() + processes.len() <= room;
    let mut lines = Vec::new();
    for name in order {
        let own = members.remove(&name).unwrap_or_default();
        let below = if is_wide_open && own.len() > 1 { singles(node, &own) } else { Vec::new() };
        lines.push(job(node, &own, name));
        // The job stands above it.
        lines.extend(below.into_iter().zip(&own).map(|(line, process)| Line {
            job: format!("  {}", line.job),
            command: known(process.command.as_ref()),
            ..line
        }));
    }
    lines
}

fn job(node: &NodeNow, processes: &[&ProcessNow], name: String) -> Line {
    let mut gpus: Vec<String> = processes.iter().map(|it| node.gpu_name(&it.gpu)).collect();
    gpus.sort();
    gpus.dedup();
    let mut pids: Vec<u32> = processes.iter().map(|it| it.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    // A sum of which a part is not known is not known.
    let sum = |of: fn(&ProcessNow) -> Option<u64>| {
        processes.iter().map(|it| of(it)).try_fold(0_u64, |sum, part| Some(sum + part?))
    };
    // A process on several GPUs has one processor time and one memory.
    let once = |pid: &u32| processes.iter().find(|it| it.pid == *pid).copied();
    let cpu = pids
        .iter()
        .filter_map(once)
        .map(|it| it.cpu_ratio)
        .try_fold(0.0, |sum, part| Some(sum + part?));
    let host = pids
        .iter()
        .filter_map(once)
        .map(|it| it.host_memory_bytes)
        .try_fold(0_u64, |sum, part| Some(sum + part?));
    let mean = |of: fn(&ProcessNow) -> Option<f64>| {
        let sum = processes.iter().map(|it| of(it)).try_fold(0.0, |sum, it| Some(sum + it?));
        sum.map(|sum: f64| sum / f64::from(u32::try_from(gpus.len().max(1)).unwrap_or(u32::MAX)))
    };
    let command = known(processes.first().and_then(|it| it.command.as_ref()));
    Line {
        job: name,
        user: known(processes.first().and_then(|it| it.user.as_ref())),
        gpus: ranges(&gpus),
        memory: words::memory(sum(|it| it.memory_bytes)),
        sm: share(mean(|it| it.sm_ratio)),
        bandwidth: share(mean(|it| it.memory_ratio)),
        cpu: share(cpu),
        host_memory: words::memory(host),
        elapsed: elapsed(processes.iter().filter_map(|it| it.elapsed_s).max()),
        command: match pids.len() {
            0 | 1 => command,
            count => format!("{count} × {command}"),
        },
    }
}

/// `0-3,6` of numbers; what is no number stays.
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
    fn numbers_in_a_row_are_a_range() {
        let names = |all: &[&str]| all.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        assert_eq!(ranges(&names(&["0", "1", "2", "3", "6"])), "0-3,6");
        assert_eq!(ranges(&names(&["10", "2"])), "2,10");
        assert_eq!(ranges(&names(&["GPU-1", "2"])), "GPU-1,2");
        assert_eq!(ranges(&[]), "");
    }
}
