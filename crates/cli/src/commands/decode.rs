//! `farrier decode`: GPU faults in a kernel log, and what to do about them.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;
use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Read};
use std::path::{Path, PathBuf};

use anyhow::Context;
use farrier_facts::decode::{
    DecodedEvent, Decoder, DeviceSummary, EventGroup, Kind, LogSniffer, Summary, UnreadableLog,
};
use farrier_facts::xid::{Action, Severity, XidFacts};
use farrier_fleet::health::Rules;
use farrier_fleet::runbook::{FirstCommands, RunbookSources};

use crate::cli::Output;
use crate::commands::Outcome;
use crate::fact_sets;
use crate::failure::{self, Hinted};
use crate::printer::{Printer, Tone};
use crate::read_ahead::{CHUNK, Chunk, ReadAhead};

/// Explains GPU faults in a kernel log.
///
/// Reads the output of dmesg and journalctl, syslog files and /dev/kmsg, of one host or of many.
///
/// Exit code 0: nothing to do; 1: something calls for an action; 2: the log cannot be read.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Log file; `-` or nothing reads standard input
    file: Option<PathBuf>,
    /// Output format; JSON is one event per line
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

pub(crate) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let log = open(args.file.as_deref())?;
    let set = fact_sets::active();
    let (rules, commands) = (Rules::embedded()?, FirstCommands::embedded()?);
    let sources = RunbookSources { rules: &rules, facts: &set, commands: &commands };
    let needs_action = match args.output {
        Output::Json => print_events(&sources, log, printer)?,
        Output::Table => {
            let mut summary = Summary::default();
            let lines = read(&set.xids, log, |item| {
                if let LogItem::Event(event) = item {
                    summary.add(*event);
                }
                Ok(())
            })?;
            print_summary(&summary, lines, &sources, printer)?;
            fact_sets::print(&set.set, printer)?;
            summary.needs_action()
        }
    };
    Ok(Outcome::finding_if(needs_action))
}

/// An open log.
struct Log {
    stream: Box<dyn Read + Send>,
    /// Name in error messages.
    name: String,
    /// `None` for standard input.
    path: Option<PathBuf>,
}

fn open(file: Option<&Path>) -> anyhow::Result<Log> {
    let Some(path) = file.filter(|path| *path != Path::new("-")) else {
        let stdin = io::stdin();
        if file.is_none() && stdin.is_terminal() {
            return Err(Hinted::error(
                "no log to read",
                "name a file, or pipe one in: `journalctl -k | farrier decode`",
            ));
        }
        let name = "standard input".to_owned();
        return Ok(Log { stream: Box::new(stdin), name, path: None });
    };
    let name = format!("`{}`", path.display());
    let opened = File::open(path).and_then(|file| {
        let directory = file.metadata()?.is_dir();
        if directory { Err(ErrorKind::IsADirectory.into()) } else { Ok(file) }
    });
    match opened {
        Ok(file) => Ok(Log { stream: Box::new(file), name, path: Some(path.to_owned()) }),
        Err(err) => {
            let hint = match err.kind() {
                ErrorKind::NotFound => {
                    "check the path; the kernel's messages are in `journalctl -k` or `dmesg`"
                }
                ErrorKind::IsADirectory => "name a file in it, such as `kern.log` or `messages`",
                ErrorKind::PermissionDenied => "read it as root, or as a member of group `adm`",
                _ => "copy the log to a local file and try again",
            };
            let what = Hinted::plain(format!("failed to open {name}"), hint);
            Err(anyhow::Error::new(err).context(what))
        }
    }
}

/// Decodes the log up to its end. Returns the number of lines.
fn read(
    facts: &XidFacts,
    log: Log,
    mut handle: impl FnMut(LogItem) -> io::Result<()>,
) -> anyhow::Result<u64> {
    let mut decoder = Decoder::new(facts);
    let mut content = LogSniffer::default();
    let mut events = 0_u64;
    let mut ahead = ReadAhead::spawn(log.stream, decoder.scanner());
    loop {
        let chunk = ahead.next().with_context(|| format!("failed to read {}", log.name))?;
        let mut handled = Ok(());
        let mut emit = |event| {
            events += 1;
            if handled.is_ok() {
                handled = handle(LogItem::Event(Box::new(event)));
            }
        };
        let Some(chunk) = chunk else {
            decoder.finish(&mut emit);
            handled?;
            if let Err(err) = content.finish() {
                let err = unreadable(err, &log.name, log.path.as_deref());
                if events == 0 {
                    return Err(err);
                }
                // Events found before the unreadable part still count.
                failure::warn(&err);
            }
            return Ok(decoder.lines());
        };
        let bytes = chunk.bytes();
        content.inspect(bytes).map_err(|err| unreadable(err, &log.name, log.path.as_deref()))?;
        let is_full = bytes.len() == CHUNK;
        match &chunk {
            Chunk::Raw(bytes) => decoder.feed(bytes, &mut emit),
            Chunk::Scanned(chunk) => decoder.feed_scanned(chunk, &mut emit),
        }
        handled?;
        if !is_full {
            handle(LogItem::Pause)?;
        }
        ahead.recycle(chunk);
    }
}

/// The error for a file that is not a text log, with a command that converts it.
fn unreadable(err: UnreadableLog, name: &str, path: Option<&Path>) -> anyhow::Error {
    // The path is part of the hint only if a shell needs no quotes for it.
    let plain = |text: &&str| {
        !text.is_empty() && text.chars().all(|l| l.is_ascii_alphanumeric() || "/._-+:@".contains(l))
    };
    let file = path.and_then(Path::to_str).filter(plain).unwrap_or("FILE");
    let unpack = |tool: &str| format!("unpack it on the way: `{tool} {file} | farrier decode`");
    let hint = match err {
        UnreadableLog::Empty => {
            "an empty log does not mean healthy GPUs: `dmesg` may need root, and log rotation \
             leaves an empty file; try `sudo dmesg | farrier decode`"
                .to_owned()
        }
        UnreadableLog::Gzip => unpack("zcat"),
        UnreadableLog::Xz => unpack("xzcat"),
        UnreadableLog::Zstd => unpack("zstdcat"),
        UnreadableLog::Bzip2 => unpack("bzcat"),
        UnreadableLog::Lz4 => unpack("lz4cat"),
        UnreadableLog::Zip => unpack("unzip -p"),
        UnreadableLog::Journal => {
            format!("let journalctl read it: `journalctl -k --file {file} | farrier decode`")
        }
        UnreadableLog::Utf16 => {
            format!("convert it on the way: `iconv -f utf-16 -t utf-8 {file} | farrier decode`")
        }
        UnreadableLog::Binary => {
            "name a log in plain text, such as the output of `journalctl -k` or `dmesg`".to_owned()
        }
    };
    anyhow::Error::new(err).context(Hinted::plain(format!("failed to read {name}"), hint))
}

/// An event of the log, or a pause in it.
enum LogItem {
    Event(Box<DecodedEvent>),
    /// The stream has no more data at the moment. The output is flushed, so that a reader sees all
    /// events so far.
    Pause,
}

/// An event in the JSON output.
#[derive(serde::Serialize)]
struct EventLine<'e> {
    #[serde(flatten)]
    event: &'e DecodedEvent,
    /// Code of the runbook page. Null if there is no page.
    runbook: Option<&'e str>,
}

/// Prints all events. Returns whether any of them needs an action.
fn print_events(
    sources: &RunbookSources<'_>,
    log: Log,
    printer: &mut Printer,
) -> anyhow::Result<bool> {
    let mut needs_action = false;
    // A log repeats a few kinds of events. To find a page, all rules are compared, so the result is
    // kept.
    let mut pages: HashMap<EventKey, Option<String>> = HashMap::new();
    read(&sources.facts.xids, log, |item| match item {
        LogItem::Event(event) => {
            needs_action |= event.action != Action::Ignore;
            if pages.len() > PAGES_MAX {
                pages.clear();
            }
            let page = pages.entry(key(&event)).or_insert_with(|| sources.event_page(&event));
            printer.json_line(&EventLine { event: &event, runbook: page.as_deref() })
        }
        LogItem::Pause => printer.finish(),
    })?;
    Ok(needs_action)
}

/// The properties of an event that determine its runbook page.
type EventKey = (Kind, String, Severity, bool);

/// Maximum number of pages that are remembered, because a hostile log may have any number of codes.
const PAGES_MAX: usize = 4096;

fn key(event: &DecodedEvent) -> EventKey {
    (event.kind, event.code.clone(), event.severity, event.unit.is_some())
}

fn print_summary(
    summary: &Summary,
    lines: u64,
    sources: &RunbookSources<'_>,
    printer: &mut Printer,
) -> io::Result<()> {
    let Some(worst) = summary.worst() else {
        return printer.line(&format!(
            "Nothing about GPUs, their NICs or their host in {}.",
            counted(lines, "line")
        ));
    };
    let devices = summary.devices();
    let hosts = match summary.hosts() {
        0 | 1 => String::new(),
        hosts => format!(" of {hosts} hosts"),
    };
    printer.line(&format!(
        "{}{hosts} in {}; the worst is {}.",
        counted(summary.events(), "event"),
        counted(lines, "line"),
        printer.severity(worst),
    ))?;
    let mut linked = BTreeSet::new();
    for device in &devices {
        print_device(device, sources, &mut linked, printer)?;
    }
    if summary.ungrouped() > 0 {
        printer.line("")?;
        printer.line(&format!(
            "{} not listed: there are too many different kinds. `--output json` prints all events.",
            counted(summary.ungrouped(), "event")
        ))?;
    }
    Ok(())
}

const INDENT: usize = 12;

/// Prints the events of a device. `linked` are the runbook pages that the output has named.
fn print_device(
    device: &DeviceSummary<'_>,
    sources: &RunbookSources<'_>,
    linked: &mut BTreeSet<String>,
    printer: &mut Printer,
) -> io::Result<()> {
    let heading = match (device.host, device.pci) {
        (Some(host), Some(pci)) => format!("{host} {pci}"),
        (Some(host), None) => format!("{host}, no device named"),
        (None, Some(pci)) => pci.to_owned(),
        (None, None) => "No device named".to_owned(),
    };
    printer.line("")?;
    printer.line(&printer.toned(Tone::Strong, &heading))?;
    if let Some(first) = device.first() {
        let mut text = format!("{}: {}", first.event.action, first.event.action.instruction());
        if first.event.xid == Some(154) {
            let line = first.last_line;
            let _ = write!(text, ". The driver itself says so (Xid 154, line {line})");
        }
        text.push('.');
        printer.paragraph("  do first", INDENT, &text)?;
    }
    for group in &device.groups {
        print_group(group, printer)?;
        // An event that needs no action also needs no page.
        let needs_action = group.event.action != Action::Ignore;
        let page = sources.event_page(&group.event).filter(|_| needs_action);
        if let Some(page) = page.filter(|page| linked.insert(page.clone())) {
            printer.paragraph("", INDENT, &format!("Runbook: farrier runbook {page}"))?;
        }
    }
    Ok(())
}

fn print_group(group: &EventGroup, printer: &mut Printer) -> io::Result<()> {
    let event = &group.event;
    let what = match event.xid {
        Some(code) if event.kind == Kind::Sxid => format!("SXid {code}"),
        Some(code) => format!("Xid {code}"),
        None => event.kind.to_string(),
    };
    let time = match (&event.time, &group.last_time) {
        (Some(first), Some(last)) if first != last => {
            format!(", {} – {}", shown_time(first), shown_time(last))
        }
        (Some(time), _) | (None, Some(time)) => format!(", {}", shown_time(time)),
        (None, None) => String::new(),
    };
    let lines = if group.count == 1 {
        format!(", line {}", event.line)
    } else {
        format!(" ×{}, lines {}–{}", group.count, event.line, group.last_line)
    };
    let process = match (&event.process, event.pid) {
        _ if group.processes_differ => ", different processes".to_owned(),
        (Some(name), Some(pid)) => format!(", process {name} ({pid})"),
        (Some(name), None) => format!(", process {name}"),
        (None, Some(pid)) => format!(", process {pid}"),
        (None, None) => String::new(),
    };
    let what = format!("{what}{lines}{time}{process} → {}", event.action);
    // Pad before adding colour, because escape codes must not count as width.
    let severity = format!("  {:<9} ", event.severity.to_string());
    let severity =
        severity.replacen(&event.severity.to_string(), &printer.severity(event.severity), 1);
    printer.line(&format!("{severity}{what}"))?;
    printer.paragraph("", INDENT, &event.text)?;
    printer.paragraph("", INDENT, &format!("Source: {}", event.source))
}

/// The time of an event. Seconds since the start of the kernel are in brackets, as in `dmesg`.
fn shown_time(time: &str) -> String {
    if time.contains(':') { time.to_owned() } else { format!("[{time}]") }
}

fn counted(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}
