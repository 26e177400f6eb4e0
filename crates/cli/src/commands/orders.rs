//! `farrier orders`: the agent's order executor without a server, for experiments and tests. Hidden
//! from the help; see docs/orders.md.

use std::collections::BTreeSet;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use anyhow::Context;
use farrier_agent::config;
use farrier_agent::orders::{
    self, InspectorError, NodeActuator, NodeInspector, OrderExecutor, OrdersError, Start, Tuner,
};
use farrier_fleet::fleet::event::Cordon;
use farrier_fleet::fleet::order::{Order, OrderStatus};
use serde::{Deserialize, Serialize};

use crate::commands::{Outcome, agent, status};
use crate::failure::Hinted;
use crate::printer::Printer;
use crate::{log, simulated_actuator};

/// Executes orders from stdin, one JSON object per line, as the agent executes a server's orders.
///
/// Prints each order status as a line of JSON. Exits when stdin has ended and no order is running.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Agent configuration; its `[orders]` section lists the allowed orders
    #[arg(long, value_name = "FILE", default_value = config::DEFAULT_PATH)]
    config: PathBuf,
}

/// A line of stdin.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Said {
    /// An order to execute.
    Order(Box<Order>),
    /// The server has persisted the final status of this order.
    Acknowledged { generation: u64 },
    /// Asks for the cordon state of the node.
    Cordon {},
}

/// A line of stdout.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Told<'a> {
    OrderStatus { generation: u64, answer: &'a OrderStatus },
    Cordon(Cordon),
}

/// An input of the main loop.
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

fn open(args: &Args, woken: Sender<Happening>) -> anyhow::Result<OrderExecutor> {
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
    let hands = elsewhere.unwrap_or_else(|| Box::new(NodeActuator::new(&config.root, None, tuner)));
    let socket = config.socket.path.clone();
    let known = move || match status::query(&socket) {
        Ok(Some(status)) => Ok(status),
        Ok(None) => Err(InspectorError::NoAgent { socket: socket.clone() }),
        Err(err) => Err(InspectorError::Status(err.into())),
    };
    let eyes =
        NodeInspector::new(&config, "/proc/self/exe".into(), agent::facts(), Box::new(known));
    let start = Start {
        hands,
        eyes: Arc::new(eyes),
        hostname: farrier_agent::run::hostname(&config),
        node: None,
        outbox: None,
        wake: Box::new(move || {
            let _ = woken.send(Happening::Woken);
        }),
        // The node's agent is another process, which watches for the repair file itself.
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
    desk: &OrderExecutor,
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
        if input_ended && !outstanding.iter().any(|(_, answer)| *answer == OrderStatus::Accepted) {
            return Ok(());
        }
    }
    Ok(())
}

fn heard(desk: &OrderExecutor, line: &str, printer: &mut Printer) -> anyhow::Result<()> {
    let said = serde_json::from_str(line).with_context(|| {
        Hinted::plain(
            "a line of the input does not read",
            "lines are such as {\"order\":{...}}; docs/orders.md has them",
        )
    })?;
    match said {
        Said::Order(order) => {
            let answer = desk.offer(&order, jiff::Timestamp::now());
            // A final status is printed by `tell`.
            if matches!(answer, OrderStatus::Accepted)
                || desk.outstanding().iter().all(|it| it.0 != order.generation)
            {
                line_of(
                    &Told::OrderStatus { generation: order.generation, answer: &answer },
                    printer,
                )?;
            }
        }
        Said::Acknowledged { generation } => desk.acknowledged(generation),
        Said::Cordon {} => line_of(&Told::Cordon(desk.cordon()), printer)?,
    }
    Ok(())
}

/// Prints each final order status once.
fn tell(
    desk: &OrderExecutor,
    told: &mut BTreeSet<u64>,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    for (generation, answer) in desk.outstanding() {
        if answer != OrderStatus::Accepted && told.insert(generation) {
            line_of(&Told::OrderStatus { generation, answer: &answer }, printer)?;
        }
    }
    Ok(())
}

fn line_of(told: &Told<'_>, printer: &mut Printer) -> anyhow::Result<()> {
    printer.json_line(told)?;
    // Flush: the sender of the order waits for this line.
    printer.finish()?;
    Ok(())
}
