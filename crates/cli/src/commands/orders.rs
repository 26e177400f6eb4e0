//! `farrier orders`: the agent's desk without a server, for trials and tests. Not shown in the help; docs/orders.md has it.

use std::collections::BTreeSet;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use anyhow::Context;
use farrier_agent::config;
use farrier_agent::orders::{
    self, Desk, InspectorError, NodeEyes, NodeHands, OrdersError, Start, Tuner,
};
use farrier_fleet::fleet::event::Cordon;
use farrier_fleet::fleet::order::{Answer, Order};
use serde::{Deserialize, Serialize};

use crate::commands::{Outcome, agent, status};
use crate::failure::Hinted;
use crate::printer::Printer;
use crate::{log, simulated_actuator};

/// Carries out orders that stand on its input, one in a line of JSON, as the agent does with those of a server.
///
/// Says every answer in a line of JSON. Ends when its input has ended and no order is being carried out.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The agent's configuration, whose `[orders]` says what is allowed
    #[arg(long, value_name = "FILE", default_value = config::DEFAULT_PATH)]
    config: PathBuf,
}

/// A line of the input.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Said {
    /// An order.
    Order(Box<Order>),
    /// The server has on disk how an order ended.
    Acknowledged { generation: u64 },
    /// Whether the node takes new work.
    Cordon {},
}

/// A line of the output.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Told<'a> {
    Answer { generation: u64, answer: &'a Answer },
    Cordon(Cordon),
}

/// What happens.
enum Happening {
    Line(String),
    InputEnded,
    Woken,
}

pub(crate) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    log::start();
    let (sender, happenings) = channel();
    let desk = open(args, sender.clone())?;
    desk.spawn().context("failed to start")?;
    std::thread::spawn(move || read(&sender));
    serve(&desk, &happenings, printer)?;
    Ok(Outcome::Fine)
}

fn open(args: &Args, woken: Sender<Happening>) -> anyhow::Result<Desk> {
    let config = config::read(&args.config, true).map_err(|err| {
        Hinted::error(agent::config_problems(&err), "fix the file, or name another with --config")
    })?;
    std::fs::create_dir_all(&config.state_dir)
        .with_context(|| format!("failed to make `{}`", config.state_dir.display()))?;
    let tuner = Tuner::new(&config, Path::new("/proc/self/exe"));
    let elsewhere = if config.is_live() {
        None
    } else {
        simulated_actuator::from_root(&config.root, tuner.clone())
    };
    let hands = elsewhere.unwrap_or_else(|| Box::new(NodeHands::new(&config.root, None, tuner)));
    let socket = config.socket.path.clone();
    let known = move || match status::query(&socket) {
        Ok(Some(status)) => Ok(status),
        Ok(None) => Err(InspectorError::NoAgent { socket: socket.clone() }),
        Err(err) => Err(InspectorError::Status(err.into())),
    };
    let eyes = NodeEyes::new(&config, "/proc/self/exe".into(), agent::facts(), Box::new(known));
    let start = Start {
        hands,
        eyes: Arc::new(eyes),
        hostname: farrier_agent::run::hostname(&config),
        node: None,
        outbox: None,
        wake: Box::new(move || {
            let _ = woken.send(Happening::Woken);
        }),
        // The agent that watches the node is another process, and looks for the file.
        repaired: Box::new(drop),
    };
    orders::open(&config, start).map_err(|err| match &err {
        OrdersError::InUse { .. } => {
            let hint = "an agent with `orders.enabled` carries out orders there already";
            Hinted::error(err.to_string(), hint)
        }
        _ => err.into(),
    })
}

fn read(to: &Sender<Happening>) {
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        if to.send(Happening::Line(line)).is_err() {
            return;
        }
    }
    let _ = to.send(Happening::InputEnded);
}

fn serve(
    desk: &Desk,
    happenings: &Receiver<Happening>,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    let mut told = BTreeSet::new();
    let mut input_ended = false;
    tell(desk, &mut told, printer)?;
    while let Ok(happening) = happenings.recv() {
        match happening {
            Happening::Line(line) => heard(desk, &line, printer)?,
            Happening::InputEnded => input_ended = true,
            Happening::Woken => {}
        }
        tell(desk, &mut told, printer)?;
        let outstanding = desk.outstanding();
        if input_ended && !outstanding.iter().any(|(_, answer)| *answer == Answer::Accepted) {
            return Ok(());
        }
    }
    Ok(())
}

fn heard(desk: &Desk, line: &str, printer: &mut Printer) -> anyhow::Result<()> {
    let said = serde_json::from_str(line).with_context(|| {
        Hinted::plain(
            "a line of the input does not read",
            "lines are such as {\"order\":{...}}; docs/orders.md has them",
        )
    })?;
    match said {
        Said::Order(order) => {
            let answer = desk.offer(&order, jiff::Timestamp::now());
            // One that ends here is told with the others.
            if matches!(answer, Answer::Accepted)
                || desk.outstanding().iter().all(|it| it.0 != order.generation)
            {
                line_of(&Told::Answer { generation: order.generation, answer: &answer }, printer)?;
            }
        }
        Said::Acknowledged { generation } => desk.acknowledged(generation),
        Said::Cordon {} => line_of(&Told::Cordon(desk.cordon()), printer)?,
    }
    Ok(())
}

/// Tells answers that were not told yet.
fn tell(desk: &Desk, told: &mut BTreeSet<u64>, printer: &mut Printer) -> anyhow::Result<()> {
    for (generation, answer) in desk.outstanding() {
        if answer != Answer::Accepted && told.insert(generation) {
            line_of(&Told::Answer { generation, answer: &answer }, printer)?;
        }
    }
    Ok(())
}

fn line_of(told: &Told<'_>, printer: &mut Printer) -> anyhow::Result<()> {
    printer.json_line(told)?;
    // Whoever gives orders waits for it.
    printer.finish()?;
    Ok(())
}
