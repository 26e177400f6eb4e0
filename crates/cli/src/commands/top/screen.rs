//! What somebody looks at: which page, sorted how, filtered by what. Keys in, state out; nothing is drawn here.

use farrier_fleet::health::{GpuUuid, Signal};

use super::board::Board;
use super::keys::Key;
use super::now::{GpuNow, NodeNow, ProcessNow};

/// A page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Page {
    /// All GPUs of a node.
    Node,
    /// One GPU.
    Gpu(GpuUuid),
    /// All nodes of a fleet.
    Fleet,
    /// A node as the server knows it.
    FleetNode(String),
}

/// What lies over a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    Help,
    /// The filter is being typed.
    Filter,
}

/// How GPUs are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    Number,
    Busy,
    Power,
    Memory,
    Temperature,
    /// What should be acted on first.
    Limit,
}

impl Sort {
    const ALL: [Self; 6] =
        [Self::Number, Self::Busy, Self::Power, Self::Memory, Self::Temperature, Self::Limit];

    pub(super) fn word(self) -> &'static str {
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

    /// What a GPU is sorted by. What is not known comes last, whichever way.
    fn key(self, gpu: &GpuNow) -> Option<f64> {
        match self {
            Self::Number => Some(f64::from(gpu.identity.index)),
            Self::Busy => gpu.busy().value().copied(),
            Self::Power => gpu.value(Signal::GpuPower),
            Self::Memory => gpu.value(Signal::GpuMemoryUsed),
            Self::Temperature => gpu.value(Signal::GpuTemperature),
            Self::Limit => Some(f64::from(gpu.limit.kind as u8)),
        }
    }

    /// Numbers go up; of everything else the most is looked for.
    fn is_downward(self) -> bool {
        self != Self::Number
    }
}

/// What the loop should do after a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wish {
    Nothing,
    Quit,
    /// Draw everything anew.
    Redraw,
    /// Ask the server for something else.
    Ask(Question),
}

/// What a server is asked for besides the nodes that are out of service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Question {
    /// The node that is open.
    pub(super) open: Option<String>,
    /// What nodes in service should be like: of a large fleet not all are told.
    pub(super) filter: Option<String>,
}

/// The state of the view.
#[derive(Debug, Clone)]
pub(super) struct Screen {
    pub(super) page: Page,
    pub(super) sort: Sort,
    /// Turned round.
    pub(super) is_reversed: bool,
    pub(super) filter: String,
    /// What keys go to before the page.
    pub(super) over: Option<Over>,
    /// One line a job, or one a process.
    pub(super) by_job: bool,
    /// The GPU or the node that is chosen.
    pub(super) chosen: Option<String>,
    /// What stands still, where it does.
    pub(super) frozen: Option<Box<Board>>,
}

impl Screen {
    pub(super) fn new(page: Page) -> Self {
        let is_fleet = matches!(page, Page::Fleet | Page::FleetNode(_));
        Self {
            page,
            // Of a fleet what is wrong is looked for.
            sort: if is_fleet { Sort::Limit } else { Sort::Number },
            is_reversed: false,
            filter: String::new(),
            over: None,
            by_job: true,
            chosen: None,
            frozen: None,
        }
    }

    /// What a key does. `board` is what is there now.
    pub(super) fn press(&mut self, key: Key, board: &Board) -> Wish {
        match self.over {
            Some(Over::Filter) => return self.type_filter(key),
            Some(Over::Help) => {
                // Whatever is pressed, the help goes; quitting still quits.
                self.over = None;
                return if key == Key::Letter('q') { Wish::Quit } else { Wish::Nothing };
            }
            None => {}
        }
        match key {
            Key::Letter('q') => return Wish::Quit,
            Key::Letter('?' | 'h') => self.over = Some(Over::Help),
            Key::Letter('/') => self.over = Some(Over::Filter),
            Key::Letter('s') => self.sort = self.next_sort(),
            Key::Letter('r') => self.is_reversed = !self.is_reversed,
            Key::Letter('j' | 'p') => self.by_job = !self.by_job,
            Key::Letter('f' | ' ') => {
                self.frozen = match self.frozen {
                    Some(_) => None,
                    None => Some(Box::new(board.clone())),
                };
            }
            Key::Redraw => return Wish::Redraw,
            Key::Up => self.step(board, -1),
            Key::Down => self.step(board, 1),
            Key::PageUp => self.step(board, -10),
            Key::PageDown => self.step(board, 10),
            Key::Home => self.step(board, isize::MIN),
            Key::End => self.step(board, isize::MAX),
            Key::Enter | Key::Right => return self.open(board),
            Key::Escape | Key::Backspace | Key::Left => return self.back(),
            Key::Letter(_) => {}
        }
        Wish::Nothing
    }

    /// Nodes are sorted by trouble or by name.
    fn next_sort(&self) -> Sort {
        match (&self.page, self.sort) {
            (Page::Node | Page::Gpu(_), sort) => sort.next(),
            (_, Sort::Number) => Sort::Limit,
            _ => Sort::Number,
        }
    }

    /// How it is sorted, where that is not as it is at first.
    pub(super) fn sorted(&self) -> Option<String> {
        let word = match (&self.page, self.sort) {
            (Page::Node | Page::Gpu(_), Sort::Number) if !self.is_reversed => return None,
            (Page::Node | Page::Gpu(_), sort) => sort.word(),
            (_, Sort::Number) => "name",
            _ => "trouble",
        };
        let turned = if self.is_reversed { ", turned round" } else { "" };
        Some(format!("by {word}{turned}"))
    }

    fn type_filter(&mut self, key: Key) -> Wish {
        match key {
            Key::Enter => {
                self.over = None;
                return self.ask();
            }
            Key::Escape => {
                self.over = None;
                self.filter.clear();
                return self.ask();
            }
            Key::Backspace => {
                self.filter.pop();
            }
            Key::Letter(letter) => self.filter.push(letter),
            _ => {}
        }
        Wish::Nothing
    }

    /// What is looked at: what stands still, or what is now.
    pub(super) fn seen<'b>(&'b self, board: &'b Board) -> &'b Board {
        self.frozen.as_deref().unwrap_or(board)
    }

    fn step(&mut self, board: &Board, by: isize) {
        let names = self.names(board);
        let Some(last) = names.len().checked_sub(1) else { return };
        let at = self.chosen.as_ref().and_then(|it| names.iter().position(|name| name == it));
        let next = match at {
            // The first press chooses the first or the last.
            None => usize::from(by < 0 && by != isize::MIN) * last,
            Some(at) => at.saturating_add_signed(by).min(last),
        };
        let next = if by == isize::MAX { last } else { next };
        self.chosen = names.into_iter().nth(next);
    }

    /// What can be chosen on this page, in the order in which it is shown.
    fn names(&self, board: &Board) -> Vec<String> {
        let board = self.seen(board);
        match (&self.page, &board.node, &board.fleet) {
            (Page::Node | Page::Gpu(_), Some(node), _) => {
                self.gpus(node).iter().map(|gpu| gpu.identity.uuid.0.clone()).collect()
            }
            (Page::Fleet | Page::FleetNode(_), _, Some(fleet)) => {
                self.nodes(fleet).iter().map(|node| node.node.to_string()).collect()
            }
            _ => Vec::new(),
        }
    }

    fn open(&mut self, board: &Board) -> Wish {
        let names = self.names(board);
        let chosen = self.chosen.clone().filter(|it| names.contains(it));
        let Some(chosen) = chosen.or_else(|| names.first().cloned()) else { return Wish::Nothing };
        self.chosen = Some(chosen.clone());
        match self.page {
            Page::Node => self.page = Page::Gpu(GpuUuid(chosen)),
            Page::Fleet => {
                self.page = Page::FleetNode(chosen);
                return self.ask();
            }
            Page::Gpu(_) | Page::FleetNode(_) => {}
        }
        Wish::Nothing
    }

    /// What the server should be asked for now, where there is one.
    fn ask(&self) -> Wish {
        let open = match &self.page {
            Page::FleetNode(name) => Some(name.clone()),
            Page::Fleet => None,
            Page::Node | Page::Gpu(_) => return Wish::Nothing,
        };
        let filter = Some(self.filter.clone()).filter(|filter| !filter.is_empty());
        Wish::Ask(Question { open, filter })
    }

    fn back(&mut self) -> Wish {
        match self.page {
            Page::Gpu(_) => self.page = Page::Node,
            Page::FleetNode(_) => {
                self.page = Page::Fleet;
                return self.ask();
            }
            Page::Node | Page::Fleet => {
                self.filter.clear();
                return self.ask();
            }
        }
        Wish::Nothing
    }

    /// GPUs as they are shown.
    pub(super) fn gpus<'n>(&self, node: &'n NodeNow) -> Vec<&'n GpuNow> {
        let processes = node.processes.as_deref().unwrap_or_default();
        let mut gpus: Vec<&GpuNow> = node
            .gpus
            .iter()
            .filter(|gpu| {
                let own = |it: &&ProcessNow| it.gpu == gpu.identity.uuid;
                self.wants_gpu(gpu)
                    || processes.iter().filter(own).any(|process| self.wants(&words(process)))
            })
            .collect();
        let downward = self.sort.is_downward() != self.is_reversed;
        gpus.sort_by(|one, other| {
            let (a, b) = (self.sort.key(one), self.sort.key(other));
            let by_key = match (a, b) {
                (Some(a), Some(b)) if downward => b.total_cmp(&a),
                (Some(a), Some(b)) => a.total_cmp(&b),
                // What is not known stands last, whichever way.
                (a, b) => a.is_none().cmp(&b.is_none()),
            };
            by_key.then(one.identity.index.cmp(&other.identity.index))
        });
        gpus
    }

    /// Processes as they are shown: of a job together, the most memory first.
    pub(super) fn processes<'n>(&self, node: &'n NodeNow) -> Vec<&'n ProcessNow> {
        let all = node.processes.as_deref().unwrap_or_default();
        let of_gpu = |process: &ProcessNow| {
            let gpu = node.gpus.iter().find(|gpu| gpu.identity.uuid == process.gpu);
            !self.filter.is_empty() && gpu.is_some_and(|gpu| self.wants_gpu(gpu))
        };
        let mut processes: Vec<&ProcessNow> =
            all.iter().filter(|it| self.wants(&words(it)) || of_gpu(it)).collect();
        processes.sort_by(|one, other| {
            let by_share = match self.sort {
                // What is not known stands last.
                Sort::Busy => {
                    other.sm_ratio.unwrap_or(-1.0).total_cmp(&one.sm_ratio.unwrap_or(-1.0))
                }
                _ => std::cmp::Ordering::Equal,
            };
            by_share.then(other.memory_bytes.cmp(&one.memory_bytes)).then(one.pid.cmp(&other.pid))
        });
        processes
    }

    /// Nodes as they are shown.
    pub(super) fn nodes<'f>(
        &self,
        fleet: &'f super::board::Fleet,
    ) -> Vec<&'f farrier_wire::rest::NodeRow> {
        let mut nodes: Vec<&farrier_wire::rest::NodeRow> =
            fleet.nodes.iter().filter(|node| self.wants(&node_words(node))).collect();
        nodes.sort_by(|one, other| {
            let trouble = |node: &farrier_wire::rest::NodeRow| {
                (!node.phase.in_service(), node.worst, node.findings)
            };
            match self.sort {
                Sort::Number => one.node.cmp(&other.node),
                _ => trouble(other).cmp(&trouble(one)).then(one.node.cmp(&other.node)),
            }
        });
        if self.is_reversed {
            nodes.reverse();
        }
        nodes
    }

    fn wants_gpu(&self, gpu: &GpuNow) -> bool {
        let identity = &gpu.identity;
        let name = identity.name.as_deref().unwrap_or_default();
        let pci = identity.pci.as_deref().unwrap_or_default();
        let words = [
            &format!("gpu {}", identity.index),
            &identity.uuid.0,
            name,
            pci,
            gpu.limit.kind.word(),
            gpu.limit.text.as_str(),
        ];
        self.wants(&words.join("\n"))
    }

    fn wants(&self, text: &str) -> bool {
        self.filter.is_empty() || text.to_lowercase().contains(&self.filter.to_lowercase())
    }
}

fn words(process: &ProcessNow) -> String {
    let known = [&process.user, &process.job, &process.command];
    let mut words: Vec<String> = known.into_iter().flatten().cloned().collect();
    words.push(process.pid.to_string());
    words.join("\n")
}

fn node_words(node: &farrier_wire::rest::NodeRow) -> String {
    let rack = node.location.rack.as_ref().map(ToString::to_string).unwrap_or_default();
    let (driver, gpu) = (node.driver.as_deref(), node.gpu.as_deref());
    let words = [
        node.node.to_string(),
        node.location.pool.to_string(),
        rack,
        node.phase.to_string(),
        node.reason.text.clone(),
        driver.unwrap_or_default().to_owned(),
        gpu.unwrap_or_default().to_owned(),
    ];
    words.join("\n")
}
