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
    self, ExecutorOptions, InspectorError, NodeActuator, NodeInspector, OrderExecutor, OrdersError,
    Tuner,
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
enum Request {
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
enum Response<'a> {
    OrderStatus { generation: u64, status: &'a OrderStatus },
    Cordon(Cordon),
}

/// An input of the main loop.
enum Input {
    Line(String),
    Ended,
    StatusChanged,
}

pub(crate) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    log::start();
    let (sender, inputs) = channel();
    let executor = open(args, sender.clone())?;
    executor.spawn().context("failed to start the order thread")?;
    std::thread::spawn(move || read(&sender));
    serve(&executor, &inputs, printer)?;
    Ok(Outcome::Fine)
}

fn open(args: &Args, inputs: Sender<Input>) -> anyhow::Result<OrderExecutor> {
    let config = config::read(&args.config, true).map_err(|err| {
        Hinted::error(
            agent::config_problems(&err),
            "correct the file, or name another with --config",
        )
    })?;
    std::fs::create_dir_all(&config.state_dir)
        .with_context(|| format!("failed to create `{}`", config.state_dir.display()))?;
    let tuner = Tuner::new(&config, Path::new("/proc/self/exe"));
    let simulated = if config.is_live() {
        None
    } else {
        simulated_actuator::from_root(&config.root, tuner.clone())
    };
    let actuator =
        simulated.unwrap_or_else(|| Box::new(NodeActuator::new(&config.root, None, tuner)));
    let socket = config.socket.path.clone();
    let agent_status = move || match status::query(&socket) {
        Ok(Some(status)) => Ok(status),
        Ok(None) => Err(InspectorError::NoAgent { socket: socket.clone() }),
        Err(err) => Err(InspectorError::Status(err.into())),
    };
    let inspector = NodeInspector::new(
        &config,
        "/proc/self/exe".into(),
        agent::facts(),
        Box::new(agent_status),
    );
    let options = ExecutorOptions {
        actuator,
        inspector: Arc::new(inspector),
        hostname: farrier_agent::run::hostname(&config),
        node: None,
        outbox: None,
        wake: Box::new(move || {
            let _ = inputs.send(Input::StatusChanged);
        }),
        // There is no monitor to notify: the agent of the node is another process, and watches the
        // repair file.
        repaired: Box::new(drop),
    };
    orders::open(&config, options).map_err(|err| match &err {
        OrdersError::InUse { .. } => {
            let hint = "an agent with `orders.enabled` already executes orders there";
            Hinted::error(err.to_string(), hint)
        }
        _ => err.into(),
    })
}

fn read(inputs: &Sender<Input>) {
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        if inputs.send(Input::Line(line)).is_err() {
            return;
        }
    }
    let _ = inputs.send(Input::Ended);
}

fn serve(
    executor: &OrderExecutor,
    inputs: &Receiver<Input>,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    let mut printed = BTreeSet::new();
    let mut input_ended = false;
    print_statuses(executor, &mut printed, printer)?;
    while let Ok(input) = inputs.recv() {
        match input {
            Input::Line(line) => handle(executor, &line, printer)?,
            Input::Ended => input_ended = true,
            Input::StatusChanged => {}
        }
        print_statuses(executor, &mut printed, printer)?;
        let outstanding = executor.outstanding();
        if input_ended && !outstanding.iter().any(|(_, status)| *status == OrderStatus::Accepted) {
            return Ok(());
        }
    }
    Ok(())
}

fn handle(executor: &OrderExecutor, line: &str, printer: &mut Printer) -> anyhow::Result<()> {
    let request = serde_json::from_str(line).with_context(|| {
        Hinted::plain(
            "failed to parse a line of the input",
            "a line looks like {\"order\":{...}}; see docs/orders.md",
        )
    })?;
    match request {
        Request::Order(order) => {
            let status = executor.submit(&order, jiff::Timestamp::now());
            // Skip the final status of an outstanding order, because `print_statuses` prints it.
            if matches!(status, OrderStatus::Accepted)
                || executor
                    .outstanding()
                    .iter()
                    .all(|(generation, _)| *generation != order.generation)
            {
                print_line(
                    &Response::OrderStatus { generation: order.generation, status: &status },
                    printer,
                )?;
            }
        }
        Request::Acknowledged { generation } => executor.acknowledge(generation),
        Request::Cordon {} => print_line(&Response::Cordon(executor.cordon()), printer)?,
    }
    Ok(())
}

/// Prints each final order status once.
fn print_statuses(
    executor: &OrderExecutor,
    printed: &mut BTreeSet<u64>,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    for (generation, status) in executor.outstanding() {
        if status != OrderStatus::Accepted && printed.insert(generation) {
            print_line(&Response::OrderStatus { generation, status: &status }, printer)?;
        }
    }
    Ok(())
}

fn print_line(response: &Response<'_>, printer: &mut Printer) -> anyhow::Result<()> {
    printer.json_line(response)?;
    // Flush the output, because the sender of the order waits for this line.
    printer.finish()?;
    Ok(())
}
