//! Selects nodes by what is known about them: each key lists name patterns, and a node has to match
//! one pattern of every key. There are no expressions, so that two selectors can be compared: which
//! one is more specific, whether both can match the same node, and whether one covers the other.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use farrier_facts::FactSet;
use farrier_facts::version::DriverVersion;
use serde::{Deserialize, Serialize};

use crate::fleet::identity::{Domain, DomainKind, Location, NodeId};
use crate::fleet::state::Node;

/// What a selector can ask about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SelectorKey {
    Node,
    /// The SKU, as `farrier facts gpu` names it. All GPUs of the node have to match.
    Gpu,
    /// The branch of the driver that the node runs now, such as `580`.
    DriverBranch,
    Pool,
    Tenant,
    Site,
    Row,
    Rack,
    Pdu,
    Spine,
    Leaf,
    Nvlink,
}

impl SelectorKey {
    pub const ALL: [Self; 12] = [
        Self::Node,
        Self::Gpu,
        Self::DriverBranch,
        Self::Pool,
        Self::Tenant,
        Self::Site,
        Self::Row,
        Self::Rack,
        Self::Pdu,
        Self::Spine,
        Self::Leaf,
        Self::Nvlink,
    ];

    /// The kind of domain that the key names.
    pub(super) fn domain_kind(self) -> Option<DomainKind> {
        Some(match self {
            Self::Node | Self::Gpu | Self::DriverBranch => return None,
            Self::Pool => DomainKind::Pool,
            Self::Tenant => DomainKind::Tenant,
            Self::Site => DomainKind::Site,
            Self::Row => DomainKind::Row,
            Self::Rack => DomainKind::Rack,
            Self::Pdu => DomainKind::Pdu,
            Self::Spine => DomainKind::Spine,
            Self::Leaf => DomainKind::Leaf,
            Self::Nvlink => DomainKind::Nvlink,
        })
    }

    /// Name as serialised.
    pub fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Gpu => "gpu",
            Self::DriverBranch => "driver-branch",
            Self::Pool => "pool",
            Self::Tenant => "tenant",
            Self::Site => "site",
            Self::Row => "row",
            Self::Rack => "rack",
            Self::Pdu => "pdu",
            Self::Spine => "spine",
            Self::Leaf => "leaf",
            Self::Nvlink => "nvlink",
        }
    }
}

/// A name in which `*` stands for any letters. Case does not matter.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NamePattern(Box<str>);

/// Longest pattern: the longest name of a node, and two wildcards.
const PATTERN_MAX: usize = 65;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a name pattern: 1 to {PATTERN_MAX} letters, digits, `.`, `_`, `-` and `*` for any letters"
)]
pub struct NamePatternError(String);

impl FromStr for NamePattern {
    type Err = NamePatternError;

    fn from_str(text: &str) -> Result<Self, NamePatternError> {
        let allowed = |letter: char| {
            letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-' | '*')
        };
        if (1..=PATTERN_MAX).contains(&text.len()) && text.chars().all(allowed) {
            Ok(Self(text.into()))
        } else {
            Err(NamePatternError(text.chars().take(PATTERN_MAX).collect()))
        }
    }
}

impl TryFrom<String> for NamePattern {
    type Error = NamePatternError;

    fn try_from(text: String) -> Result<Self, NamePatternError> {
        text.parse()
    }
}

impl From<NamePattern> for String {
    fn from(pattern: NamePattern) -> Self {
        pattern.0.into()
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&self.0)
    }
}

/// Stands for the letters of a wildcard in the sample of a pattern. No name contains it.
const ANY: u8 = b'~';

impl NamePattern {
    fn is_exact(&self) -> bool {
        !self.0.contains('*')
    }

    fn letters(&self) -> Vec<u8> {
        self.0.bytes().map(|letter| letter.to_ascii_lowercase()).collect()
    }

    fn matches(&self, name: &str) -> bool {
        let name: Vec<u8> = name.bytes().map(|letter| letter.to_ascii_lowercase()).collect();
        matches_letters(&self.letters(), &name)
    }

    /// Whether this pattern matches every name that `other` matches.
    fn covers(&self, other: &Self) -> bool {
        // A wildcard of `other` can only be covered by a wildcard.
        matches_letters(&self.letters(), &other.letters())
    }

    /// A name that both patterns match, if there is one. The letters of a wildcard are [`ANY`]
    /// where both patterns leave them open.
    fn common_name(&self, other: &Self) -> Option<String> {
        let (one, two) = (self.letters(), other.letters());
        let width = two.len() + 1;
        // Breadth-first over the positions in both patterns; each position remembers how it was
        // reached, and which letter that took.
        let mut reached: Vec<Option<(usize, Option<u8>)>> = vec![None; (one.len() + 1) * width];
        let mut queue = std::collections::VecDeque::from([(0, 0)]);
        reached[0] = Some((0, None));
        while let Some((at, to)) = queue.pop_front() {
            let here = at * width + to;
            let mut go = |at: usize, to: usize, letter: Option<u8>| {
                let next = &mut reached[at * width + to];
                if next.is_none() {
                    *next = Some((here, letter));
                    queue.push_back((at, to));
                }
            };
            match (one.get(at), two.get(to)) {
                (Some(b'*'), Some(b'*')) => {
                    go(at + 1, to + 1, Some(ANY));
                    go(at + 1, to, Some(ANY));
                    go(at, to + 1, Some(ANY));
                }
                (Some(b'*'), Some(letter)) => {
                    go(at, to + 1, Some(*letter));
                    go(at + 1, to, None);
                }
                (Some(letter), Some(b'*')) => {
                    go(at + 1, to, Some(*letter));
                    go(at, to + 1, None);
                }
                (Some(b'*'), None) => go(at + 1, to, None),
                (None, Some(b'*')) => go(at, to + 1, None),
                (Some(a), Some(b)) if a == b => go(at + 1, to + 1, Some(*a)),
                _ => {}
            }
        }
        let mut here = one.len() * width + two.len();
        let mut name = Vec::new();
        while here != 0 {
            let (before, letter) = reached[here]?;
            name.extend(letter);
            here = before;
        }
        name.reverse();
        String::from_utf8(name).ok()
    }
}

/// Whether a pattern matches a whole text. Both are in lower case.
fn matches_letters(pattern: &[u8], text: &[u8]) -> bool {
    // Whether the part of the pattern so far matches the first `n` letters.
    let mut matched = vec![false; text.len() + 1];
    matched[0] = true;
    for letter in pattern {
        if *letter == b'*' {
            let first = matched.iter().position(|is| *is).unwrap_or(matched.len());
            matched[first..].fill(true);
        } else {
            for at in (1..matched.len()).rev() {
                matched[at] = matched[at - 1] && text[at - 1] == *letter;
            }
            matched[0] = false;
        }
    }
    matched[text.len()]
}

/// What policies know about a node, or about a class of nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyNode {
    /// `None` for a class of nodes.
    pub node: Option<NodeId>,
    pub location: Location,
    /// The SKUs of its GPUs. `None` if they are unknown.
    pub gpus: Option<Vec<String>>,
    /// The driver that it runs. `None` if it is unknown.
    pub driver: Option<DriverVersion>,
}

impl PolicyNode {
    /// A node of the fleet. Its GPUs have NVML names; [`name_skus`] replaces them.
    pub fn reported(id: &NodeId, node: &Node) -> Self {
        let inventory = node.reported_inventory();
        let names = inventory.and_then(|inventory| inventory.gpus.as_ref());
        let names: Option<BTreeSet<String>> =
            names.and_then(|gpus| gpus.iter().map(|gpu| gpu.name.clone()).collect());
        Self {
            node: Some(id.clone()),
            location: node.location.clone(),
            gpus: names.map(|names| names.into_iter().collect()),
            driver: inventory
                .and_then(|inventory| inventory.driver.as_deref())
                .and_then(|driver| driver.parse().ok()),
        }
    }

    /// The name for messages.
    pub fn label(&self) -> String {
        match &self.node {
            Some(node) => node.to_string(),
            None => format!("a node of pool {}", self.location.pool),
        }
    }
}

/// Replaces the NVML names of GPUs by their SKUs.
pub fn name_skus(nodes: &mut [PolicyNode], facts: &FactSet) {
    let mut known: BTreeMap<Vec<String>, Vec<String>> = BTreeMap::new();
    for gpus in nodes.iter_mut().filter_map(|node| node.gpus.as_mut()) {
        let names = std::mem::take(gpus);
        let skus = known.entry(names).or_insert_with_key(|names| skus(names, facts));
        gpus.clone_from(skus);
    }
}

/// The SKUs of GPUs with these NVML names, each once. A GPU that the facts do not list keeps its
/// NVML name without `NVIDIA`, with `-` for each space.
pub fn skus(names: &[String], facts: &FactSet) -> Vec<String> {
    let sku = |name: &String| match facts.gpus.by_name(name) {
        Some(found) => found.gpu.id.clone(),
        None => name.trim_start_matches("NVIDIA ").replace(' ', "-"),
    };
    let mut skus: Vec<String> = names.iter().map(sku).collect();
    skus.sort();
    skus.dedup();
    skus
}

/// The attributes that selectors are compared with.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeAttributes {
    values: BTreeMap<SelectorKey, Vec<String>>,
    unknown: Vec<SelectorKey>,
}

impl NodeAttributes {
    pub(super) fn new(node: &PolicyNode) -> Self {
        let location = &node.location;
        let text = |name: Option<&dyn fmt::Display>| name.map(|name| vec![name.to_string()]);
        let mut values = BTreeMap::new();
        let mut unknown = Vec::new();
        let mut put = |key, value: Option<Vec<String>>| {
            values.extend(value.map(|value| (key, value)));
        };
        put(SelectorKey::Node, text(node.node.as_ref().map(|name| name as _)));
        put(SelectorKey::Pool, text(Some(&location.pool)));
        put(SelectorKey::Tenant, text(location.tenant.as_ref().map(|name| name as _)));
        for (key, unit) in [
            (SelectorKey::Site, &location.site),
            (SelectorKey::Row, &location.row),
            (SelectorKey::Rack, &location.rack),
            (SelectorKey::Pdu, &location.pdu),
            (SelectorKey::Spine, &location.spine),
            (SelectorKey::Leaf, &location.leaf),
            (SelectorKey::Nvlink, &location.nvlink),
        ] {
            put(key, text(unit.as_ref().map(|name| name as _)));
        }
        match &node.gpus {
            Some(gpus) => put(SelectorKey::Gpu, Some(gpus.clone())),
            None => unknown.push(SelectorKey::Gpu),
        }
        match &node.driver {
            Some(driver) => {
                put(SelectorKey::DriverBranch, Some(vec![driver.branch().0.to_string()]));
            }
            None => unknown.push(SelectorKey::DriverBranch),
        }
        Self { values, unknown }
    }

    /// Without the name of the node, so that equal nodes are equal.
    pub(super) fn without_node_unless(mut self, keeps_node: bool) -> Self {
        if !keeps_node {
            self.values.remove(&SelectorKey::Node);
        }
        self
    }

    pub(super) fn first(&self, key: SelectorKey) -> Option<&str> {
        self.values.get(&key)?.first().map(String::as_str)
    }
}

/// Whether a selector selects a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SelectorMatch {
    Yes,
    No,
    /// These values of the node could not be read.
    Unknown(Vec<SelectorKey>),
}

/// Selects nodes, such as `{"gpu": ["H200*"], "site": ["a", "b"]}`. An empty selector selects every
/// node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeSelector(pub BTreeMap<SelectorKey, Vec<NamePattern>>);

impl NodeSelector {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A key without patterns, which could never match.
    pub(super) fn empty_key(&self) -> Option<SelectorKey> {
        self.0.iter().find(|(_, patterns)| patterns.is_empty()).map(|(key, _)| *key)
    }

    pub(super) fn patterns(&self, key: SelectorKey) -> Option<&[NamePattern]> {
        self.0.get(&key).map(Vec::as_slice)
    }

    /// The selector with a key that allows one name.
    #[must_use]
    pub(super) fn with(&self, key: SelectorKey, name: &str) -> Self {
        let mut selector = self.clone();
        selector.0.insert(key, name.parse().into_iter().collect());
        selector
    }

    pub(super) fn matches(&self, node: &NodeAttributes) -> SelectorMatch {
        let mut unknown = Vec::new();
        for (key, patterns) in &self.0 {
            if node.unknown.contains(key) {
                unknown.push(*key);
                continue;
            }
            let names = node.values.get(key).map(Vec::as_slice).unwrap_or_default();
            let is_match = |name: &String| patterns.iter().any(|pattern| pattern.matches(name));
            if names.is_empty() || !names.iter().all(is_match) {
                return SelectorMatch::No;
            }
        }
        if unknown.is_empty() { SelectorMatch::Yes } else { SelectorMatch::Unknown(unknown) }
    }

    /// Whether this selector is more specific than `other`: it names nodes and `other` does not, or
    /// it has more keys, or `other` covers it.
    pub(super) fn is_more_specific_than(&self, other: &Self) -> bool {
        let rank = |selector: &Self| {
            let names = selector.patterns(SelectorKey::Node);
            let names_nodes = names.is_some_and(|names| names.iter().all(NamePattern::is_exact));
            (names_nodes, selector.0.len())
        };
        match rank(self).cmp(&rank(other)) {
            std::cmp::Ordering::Greater => true,
            std::cmp::Ordering::Less => false,
            std::cmp::Ordering::Equal => other.covers(self) && !self.covers(other),
        }
    }

    /// Whether this selector selects every node that `other` selects.
    pub(super) fn covers(&self, other: &Self) -> bool {
        self.0.iter().all(|(key, ours)| {
            let theirs = other.0.get(key);
            theirs.is_some_and(|theirs| {
                theirs.iter().all(|theirs| ours.iter().any(|ours| ours.covers(theirs)))
            })
        })
    }

    /// Whether the selector can select nodes of these domains, without naming nodes.
    pub fn may_select_in(&self, domains: &[&Domain]) -> bool {
        self.0.iter().all(|(key, patterns)| {
            let Some(kind) = key.domain_kind() else { return *key != SelectorKey::Node };
            let names =
                domains.iter().filter(|domain| domain.kind() == kind).map(|domain| domain.name());
            names.into_iter().any(|name| patterns.iter().any(|pattern| pattern.matches(name)))
        })
    }

    /// Nodes that match both selectors: one for each combination of patterns, at most `limit`. None
    /// if no node can match both.
    pub(super) fn samples(&self, other: &Self, limit: usize) -> Vec<NodeAttributes> {
        let mut samples = vec![NodeAttributes::default()];
        for key in SelectorKey::ALL {
            let names: Vec<String> = match (self.0.get(&key), other.0.get(&key)) {
                (None, None) => continue,
                (Some(only), None) | (None, Some(only)) => {
                    only.iter().filter_map(|pattern| pattern.common_name(pattern)).collect()
                }
                (Some(ours), Some(theirs)) => ours
                    .iter()
                    .flat_map(|ours| theirs.iter().filter_map(|theirs| ours.common_name(theirs)))
                    .collect(),
            };
            samples = samples
                .iter()
                .flat_map(|sample| {
                    names.iter().map(|name| {
                        let mut sample = sample.clone();
                        sample.values.insert(key, vec![name.clone()]);
                        sample
                    })
                })
                .take(limit)
                .collect();
        }
        samples
    }
}

impl fmt::Display for NodeSelector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return formatter.write_str("every node");
        }
        let key = |(key, patterns): (&SelectorKey, &Vec<NamePattern>)| {
            let patterns: Vec<&str> = patterns.iter().map(|pattern| &*pattern.0).collect();
            format!("{} {}", key.name(), patterns.join(" or "))
        };
        formatter.write_str(&self.0.iter().map(key).collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> NamePattern {
        text.parse().unwrap()
    }

    fn selector(json: &str) -> NodeSelector {
        serde_json::from_str(json).unwrap()
    }

    fn node(gpus: Option<&[&str]>, driver: Option<&str>) -> PolicyNode {
        let mut location = Location::in_pool("train".parse().unwrap());
        location.site = "a".parse().ok();
        PolicyNode {
            node: "n1".parse().ok(),
            location,
            gpus: gpus.map(|gpus| gpus.iter().map(|&gpu| gpu.to_owned()).collect()),
            driver: driver.map(|driver| driver.parse().unwrap()),
        }
    }

    #[test]
    fn patterns_match_whole_names_without_case() {
        for (text, name, expected) in [
            ("H200*", "h200-sxm5-141gb", true),
            ("H200*", "H20-96GB", false),
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abbcd", false),
            ("*-*", "a-b", true),
            ("gpu-7", "gpu-70", false),
        ] {
            assert_eq!(pattern(text).matches(name), expected, "{text} {name}");
        }
        assert!("a b".parse::<NamePattern>().is_err());
        assert!("".parse::<NamePattern>().is_err());
    }

    #[test]
    fn overlapping_patterns_have_a_common_name_and_covering_is_one_way() {
        for (one, two, common) in [
            ("a*", "*b", Some("a~b")),
            ("a*", "ab", Some("ab")),
            ("a*", "b*", None),
            ("*x*", "y", None),
            ("a*c", "ab*", Some("ab~c")),
            ("*a", "*b*a", Some("~b~a")),
            ("h200*", "h200*", Some("h200~")),
        ] {
            let (one, two) = (pattern(one), pattern(two));
            let found = one.common_name(&two);
            assert_eq!(found.as_deref(), common, "{one} {two}");
            if let Some(name) = found {
                assert!(one.matches(&name) && two.matches(&name), "{name}");
            }
        }
        assert!(pattern("h*").covers(&pattern("h200*")));
        assert!(!pattern("h200*").covers(&pattern("h*")));
        assert!(!pattern("h200").covers(&pattern("h200*")));
    }

    #[test]
    fn every_key_has_to_match_and_unread_values_are_unknown() {
        let h200 = selector(r#"{"gpu": ["H200*"], "site": ["a", "b"]}"#);
        let matched = |node: &PolicyNode| h200.matches(&NodeAttributes::new(node));
        assert_eq!(matched(&node(Some(&["H200-SXM5-141GB"]), None)), SelectorMatch::Yes);
        assert_eq!(matched(&node(Some(&["H200-SXM5-141GB", "L4"]), None)), SelectorMatch::No);
        assert_eq!(matched(&node(Some(&[]), None)), SelectorMatch::No, "a node without GPUs");
        assert_eq!(matched(&node(None, None)), SelectorMatch::Unknown(vec![SelectorKey::Gpu]));
        let mut elsewhere = node(None, None);
        elsewhere.location.site = None;
        assert_eq!(matched(&elsewhere), SelectorMatch::No, "a node without site is in no site");
        let branch = selector(r#"{"driver-branch": ["580"]}"#);
        let at = |driver| branch.matches(&NodeAttributes::new(&node(None, driver)));
        assert_eq!(at(Some("580.95.05")), SelectorMatch::Yes);
        assert_eq!(at(Some("595.45")), SelectorMatch::No);
        assert_eq!(at(None), SelectorMatch::Unknown(vec![SelectorKey::DriverBranch]));
    }

    #[test]
    fn node_names_then_more_keys_then_covered_patterns_are_more_specific() {
        let beats = |one, other| {
            let (one, other) = (selector(one), selector(other));
            (one.is_more_specific_than(&other), other.is_more_specific_than(&one))
        };
        let (both, only) = (r#"{"gpu": ["H*"], "site": ["*"]}"#, r#"{"pool": ["p"]}"#);
        assert_eq!(beats(both, only), (true, false));
        assert_eq!(beats(r#"{"node": ["n1"]}"#, both), (true, false));
        assert_eq!(beats(r#"{"node": ["n*"]}"#, both), (false, true));
        assert_eq!(beats(r#"{"gpu": ["H200"]}"#, r#"{"gpu": ["H200*"]}"#), (true, false));
        assert_eq!(beats(r#"{"gpu": ["H200", "L4"]}"#, r#"{"gpu": ["H200*"]}"#), (false, false));
        assert_eq!(beats(r#"{"gpu": ["H200*"]}"#, r#"{"site": ["a"]}"#), (false, false));
    }

    #[test]
    fn selectors_overlap_unless_a_key_excludes_it() {
        let overlaps = |one, two| !selector(one).samples(&selector(two), 1).is_empty();
        assert!(overlaps(r#"{"gpu": ["H200*"]}"#, r#"{"site": ["a"]}"#));
        assert!(!overlaps(r#"{"gpu": ["H200*"], "site": ["a"]}"#, r#"{"site": ["b", "c"]}"#));
        let covers = |one, two| selector(one).covers(&selector(two));
        assert!(covers(r#"{"tenant": ["acme"]}"#, r#"{"tenant": ["acme"], "site": ["a"]}"#));
        assert!(!covers(r#"{"tenant": ["acme"], "site": ["a"]}"#, r#"{"tenant": ["acme"]}"#));
        assert!(covers("{}", r#"{"tenant": ["acme"]}"#));
    }

    #[test]
    fn unknown_keys_are_refused() {
        let error = serde_json::from_str::<NodeSelector>(r#"{"sku": ["H200"]}"#).unwrap_err();
        assert!(error.to_string().starts_with("unknown variant `sku`, expected one of"), "{error}");
        assert_eq!(
            selector(r#"{"gpu": ["H*", "B*"], "site": ["a"]}"#).to_string(),
            "gpu H* or B*, site a"
        );
    }
}
