//! View state: page, sort order, filter and selection. Maps key presses to commands.

use farrier_fleet::health::{GpuUuid, Signal};

use super::keys::Key;
use super::model::TopModel;
use super::sample::{GpuSample, NodeSample, ProcessSample};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Page {
    /// All GPUs of a node.
    Node,
    /// One GPU.
    Gpu(GpuUuid),
    /// All nodes of a fleet.
    Fleet,
    /// A node of the fleet.
    FleetNode(String),
}

/// An overlay over the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Overlay {
    Help,
    /// The filter is being typed.
    Filter,
}

/// Sort order of GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    Number,
    Busy,
    Power,
    Memory,
    Temperature,
    /// Most urgent limit first.
    Limit,
}

impl Sort {
    const ALL: [Self; 6] =
        [Self::Number, Self::Busy, Self::Power, Self::Memory, Self::Temperature, Self::Limit];

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Number => "number",
            Self::Busy => "SM",
            Self::Power => "power",
            Self::Memory => "memory",
            Self::Temperature => "temperature",
            Self::Limit => "limit",
        }
    }

    fn next(self) -> Self {
        let at = Self::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }

    /// Sort key; unknown values sort last in both directions.
    fn key(self, gpu: &GpuSample) -> Option<f64> {
        match self {
            Self::Number => Some(f64::from(gpu.identity.index)),
            Self::Busy => gpu.busy().value().copied(),
            Self::Power => gpu.value(Signal::GpuPower),
            Self::Memory => gpu.value(Signal::GpuMemoryUsed),
            Self::Temperature => gpu.value(Signal::GpuTemperature),
            Self::Limit => Some(f64::from(gpu.limit.kind as u8)),
        }
    }

    /// Indexes ascend; everything else shows the largest first.
    fn is_descending(self) -> bool {
        self != Self::Number
    }
}

/// What the event loop does after a key press.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum UiCommand {
    None,
    Quit,
    /// Redraw the whole screen, not only the changed cells.
    Redraw,
    /// Send another query to the server.
    Query(ServerQuery),
}

/// What to request from the server besides the nodes out of service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ServerQuery {
    /// The opened node.
    pub(super) open: Option<String>,
    /// Filter for nodes in service: the server of a large fleet does not return all of them.
    pub(super) filter: Option<String>,
}

#[derive(Debug, Clone)]
pub(super) struct ViewState {
    pub(super) page: Page,
    pub(super) sort: Sort,
    /// Reverse the sort order.
    pub(super) is_reversed: bool,
    pub(super) filter: String,
    /// An overlay takes key presses before the page.
    pub(super) overlay: Option<Overlay>,
    /// One row per job instead of one per process.
    pub(super) by_job: bool,
    /// UUID of the selected GPU, or name of the selected node.
    pub(super) selected: Option<String>,
    /// The model at the time of the freeze.
    pub(super) frozen: Option<Box<TopModel>>,
}

impl ViewState {
    pub(super) fn new(page: Page) -> Self {
        let is_fleet = matches!(page, Page::Fleet | Page::FleetNode(_));
        Self {
            page,
            // In a fleet, show problems first.
            sort: if is_fleet { Sort::Limit } else { Sort::Number },
            is_reversed: false,
            filter: String::new(),
            overlay: None,
            by_job: true,
            selected: None,
            frozen: None,
        }
    }

    pub(super) fn press(&mut self, key: Key, model: &TopModel) -> UiCommand {
        match self.overlay {
            Some(Overlay::Filter) => return self.type_filter(key),
            Some(Overlay::Help) => {
                // Any key closes the help; `q` still quits.
                self.overlay = None;
                return if key == Key::Letter('q') { UiCommand::Quit } else { UiCommand::None };
            }
            None => {}
        }
        match key {
            Key::Letter('q') => return UiCommand::Quit,
            Key::Letter('?' | 'h') => self.overlay = Some(Overlay::Help),
            Key::Letter('/') => self.overlay = Some(Overlay::Filter),
            Key::Letter('s') => self.sort = self.next_sort(),
            Key::Letter('r') => self.is_reversed = !self.is_reversed,
            Key::Letter('j' | 'p') => self.by_job = !self.by_job,
            Key::Letter('f' | ' ') => {
                self.frozen = match self.frozen {
                    Some(_) => None,
                    None => Some(Box::new(model.clone())),
                };
            }
            Key::Redraw => return UiCommand::Redraw,
            Key::Up => self.move_selection(model, -1),
            Key::Down => self.move_selection(model, 1),
            Key::PageUp => self.move_selection(model, -10),
            Key::PageDown => self.move_selection(model, 10),
            Key::Home => self.move_selection(model, isize::MIN),
            Key::End => self.move_selection(model, isize::MAX),
            Key::Enter | Key::Right => return self.open(model),
            Key::Escape | Key::Backspace | Key::Left => return self.back(),
            Key::Letter(_) => {}
        }
        UiCommand::None
    }

    /// Nodes sort by problems or by name.
    fn next_sort(&self) -> Sort {
        match (&self.page, self.sort) {
            (Page::Node | Page::Gpu(_), sort) => sort.next(),
            (_, Sort::Number) => Sort::Limit,
            _ => Sort::Number,
        }
    }

    /// Description of the sort order, if it is not the default.
    pub(super) fn sort_label(&self) -> Option<String> {
        let word = match (&self.page, self.sort) {
            (Page::Node | Page::Gpu(_), Sort::Number) if !self.is_reversed => return None,
            (Page::Node | Page::Gpu(_), sort) => sort.label(),
            (_, Sort::Number) => "name",
            _ => "problems",
        };
        let reversed = if self.is_reversed { ", reversed" } else { "" };
        Some(format!("by {word}{reversed}"))
    }

    fn type_filter(&mut self, key: Key) -> UiCommand {
        match key {
            Key::Enter => {
                self.overlay = None;
                return self.query();
            }
            Key::Escape => {
                self.overlay = None;
                self.filter.clear();
                return self.query();
            }
            Key::Backspace => {
                self.filter.pop();
            }
            Key::Letter(letter) => self.filter.push(letter),
            _ => {}
        }
        UiCommand::None
    }

    /// The frozen model, or the live one.
    pub(super) fn visible_model<'b>(&'b self, model: &'b TopModel) -> &'b TopModel {
        self.frozen.as_deref().unwrap_or(model)
    }

    fn move_selection(&mut self, model: &TopModel, by: isize) {
        let names = self.selectable(model);
        let Some(last) = names.len().checked_sub(1) else { return };
        let at = self
            .selected
            .as_ref()
            .and_then(|selected| names.iter().position(|name| name == selected));
        let next = match at {
            // The first key press selects the first or the last entry.
            None => usize::from(by < 0 && by != isize::MIN) * last,
            Some(at) => at.saturating_add_signed(by).min(last),
        };
        let next = if by == isize::MAX { last } else { next };
        self.selected = names.into_iter().nth(next);
    }

    /// What can be selected on this page, in display order.
    fn selectable(&self, model: &TopModel) -> Vec<String> {
        let model = self.visible_model(model);
        match (&self.page, &model.node, &model.fleet) {
            (Page::Node | Page::Gpu(_), Some(node), _) => {
                self.gpus(node).iter().map(|gpu| gpu.identity.uuid.0.clone()).collect()
            }
            (Page::Fleet | Page::FleetNode(_), _, Some(fleet)) => {
                self.nodes(fleet).iter().map(|node| node.node.to_string()).collect()
            }
            _ => Vec::new(),
        }
    }

    fn open(&mut self, model: &TopModel) -> UiCommand {
        let names = self.selectable(model);
        let selected = self.selected.clone().filter(|name| names.contains(name));
        let Some(selected) = selected.or_else(|| names.first().cloned()) else {
            return UiCommand::None;
        };
        self.selected = Some(selected.clone());
        match self.page {
            Page::Node => self.page = Page::Gpu(GpuUuid(selected)),
            Page::Fleet => {
                self.page = Page::FleetNode(selected);
                return self.query();
            }
            Page::Gpu(_) | Page::FleetNode(_) => {}
        }
        UiCommand::None
    }

    /// The query for the current page, if it shows a fleet.
    fn query(&self) -> UiCommand {
        let open = match &self.page {
            Page::FleetNode(name) => Some(name.clone()),
            Page::Fleet => None,
            Page::Node | Page::Gpu(_) => return UiCommand::None,
        };
        let filter = Some(self.filter.clone()).filter(|filter| !filter.is_empty());
        UiCommand::Query(ServerQuery { open, filter })
    }

    fn back(&mut self) -> UiCommand {
        match self.page {
            Page::Gpu(_) => self.page = Page::Node,
            Page::FleetNode(_) => {
                self.page = Page::Fleet;
                return self.query();
            }
            Page::Node | Page::Fleet => {
                self.filter.clear();
                return self.query();
            }
        }
        UiCommand::None
    }

    /// GPUs in display order.
    pub(super) fn gpus<'n>(&self, node: &'n NodeSample) -> Vec<&'n GpuSample> {
        let processes = node.processes.as_deref().unwrap_or_default();
        let mut gpus: Vec<&GpuSample> = node
            .gpus
            .iter()
            .filter(|gpu| {
                let own = |process: &&ProcessSample| process.gpu == gpu.identity.uuid;
                self.matches_gpu(gpu)
                    || processes
                        .iter()
                        .filter(own)
                        .any(|process| self.matches(&search_text(process)))
            })
            .collect();
        let descending = self.sort.is_descending() != self.is_reversed;
        gpus.sort_by(|one, other| {
            let (a, b) = (self.sort.key(one), self.sort.key(other));
            let by_key = match (a, b) {
                (Some(a), Some(b)) if descending => b.total_cmp(&a),
                (Some(a), Some(b)) => a.total_cmp(&b),
                // Unknown values sort last in both directions.
                (a, b) => a.is_none().cmp(&b.is_none()),
            };
            by_key.then(one.identity.index.cmp(&other.identity.index))
        });
        gpus
    }

    /// Processes in display order: largest memory first.
    pub(super) fn processes<'n>(&self, node: &'n NodeSample) -> Vec<&'n ProcessSample> {
        let all = node.processes.as_deref().unwrap_or_default();
        let on_matching_gpu = |process: &ProcessSample| {
            let gpu = node.gpus.iter().find(|gpu| gpu.identity.uuid == process.gpu);
            !self.filter.is_empty() && gpu.is_some_and(|gpu| self.matches_gpu(gpu))
        };
        let mut processes: Vec<&ProcessSample> = all
            .iter()
            .filter(|process| self.matches(&search_text(process)) || on_matching_gpu(process))
            .collect();
        processes.sort_by(|one, other| {
            let by_share = match self.sort {
                // Unknown values sort last.
                Sort::Busy => {
                    other.sm_ratio.unwrap_or(-1.0).total_cmp(&one.sm_ratio.unwrap_or(-1.0))
                }
                _ => std::cmp::Ordering::Equal,
            };
            by_share.then(other.memory_bytes.cmp(&one.memory_bytes)).then(one.pid.cmp(&other.pid))
        });
        processes
    }

    /// Nodes in display order.
    pub(super) fn nodes<'f>(
        &self,
        fleet: &'f super::model::FleetSample,
    ) -> Vec<&'f farrier_wire::rest::NodeRow> {
        let mut nodes: Vec<&farrier_wire::rest::NodeRow> =
            fleet.nodes.iter().filter(|node| self.matches(&node_search_text(node))).collect();
        nodes.sort_by(|one, other| {
            let problems = |node: &farrier_wire::rest::NodeRow| {
                (!node.phase.in_service(), node.worst, node.findings)
            };
            match self.sort {
                Sort::Number => one.node.cmp(&other.node),
                _ => problems(other).cmp(&problems(one)).then(one.node.cmp(&other.node)),
            }
        });
        if self.is_reversed {
            nodes.reverse();
        }
        nodes
    }

    fn matches_gpu(&self, gpu: &GpuSample) -> bool {
        let identity = &gpu.identity;
        let name = identity.name.as_deref().unwrap_or_default();
        let pci = identity.pci.as_deref().unwrap_or_default();
        let fields = [
            &format!("gpu {}", identity.index),
            &identity.uuid.0,
            name,
            pci,
            gpu.limit.kind.label(),
            gpu.limit.text.as_str(),
        ];
        self.matches(&fields.join("\n"))
    }

    fn matches(&self, text: &str) -> bool {
        self.filter.is_empty() || text.to_lowercase().contains(&self.filter.to_lowercase())
    }
}

fn search_text(process: &ProcessSample) -> String {
    let known = [&process.user, &process.job, &process.command];
    let mut fields: Vec<String> = known.into_iter().flatten().cloned().collect();
    fields.push(process.pid.to_string());
    fields.join("\n")
}

fn node_search_text(node: &farrier_wire::rest::NodeRow) -> String {
    let rack = node.location.rack.as_ref().map(ToString::to_string).unwrap_or_default();
    let (driver, gpu) = (node.driver.as_deref(), node.gpu.as_deref());
    let fields = [
        node.node.to_string(),
        node.location.pool.to_string(),
        rack,
        node.phase.to_string(),
        node.reason.text.clone(),
        driver.unwrap_or_default().to_owned(),
        gpu.unwrap_or_default().to_owned(),
    ];
    fields.join("\n")
}
