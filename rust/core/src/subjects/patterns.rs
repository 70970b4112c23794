//! Many patterns at once: which of them have a subject in common with another one.
//!
//! ```text
//! orders.*.new  orders.eu.>           root ─ orders ┬ * ─ new  ends
//!                                                   └ eu ─ >   rest
//! ```
//! A tree by tokens. A search goes down both trees at once, so that a literal pattern touches few nodes however many
//! there are. Patterns with wildcards may touch many: a search has a budget of steps.

use std::collections::HashMap;

use super::tokens;

/// More than any sound configuration needs; a search that takes as many was made to take long.
pub const STEPS_MAX: usize = 20_000_000;

/// A search took too many steps.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the patterns have too many wildcards to be compared")]
pub struct TooManySteps;

#[derive(Debug, Default)]
struct Node {
    children: HashMap<Box<[u8]>, usize>,
    any_token: Option<usize>,
    /// Labels of the patterns that end here.
    ends: Vec<u64>,
    /// Labels of the patterns that go on with `>`.
    rests: Vec<u64>,
    /// Patterns that end here or below.
    count: usize,
}

/// A set of patterns, each with a label. The same pattern may be there under several labels.
#[derive(Debug)]
pub struct PatternSet {
    nodes: Vec<Node>,
    free: Vec<usize>,
}

impl Default for PatternSet {
    fn default() -> Self {
        PatternSet { nodes: vec![Node::default()], free: Vec::new() }
    }
}

impl PatternSet {
    pub fn len(&self) -> usize {
        self.nodes[0].count
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn insert(&mut self, pattern: &[u8], label: u64) {
        let mut at = 0;
        self.nodes[at].count += 1;
        for token in tokens(pattern) {
            if token == b">" {
                self.nodes[at].rests.push(label);
                return;
            }
            let next = self.child(at, token).unwrap_or_else(|| self.add_child(at, token));
            self.nodes[next].count += 1;
            at = next;
        }
        self.nodes[at].ends.push(label);
    }

    fn child(&self, at: usize, token: &[u8]) -> Option<usize> {
        if token == b"*" { self.nodes[at].any_token } else { self.nodes[at].children.get(token).copied() }
    }

    fn add_child(&mut self, at: usize, token: &[u8]) -> usize {
        let made = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(Node::default());
            self.nodes.len() - 1
        });
        if token == b"*" {
            self.nodes[at].any_token = Some(made);
        } else {
            self.nodes[at].children.insert(token.into(), made);
        }
        made
    }

    /// False if it was not there under that label.
    pub fn remove(&mut self, pattern: &[u8], label: u64) -> bool {
        let (mut at, mut path, mut rest) = (0, vec![(0, None)], false);
        for token in tokens(pattern) {
            if token == b">" {
                rest = true;
                break;
            }
            let Some(next) = self.child(at, token) else { return false };
            path.push((next, Some((at, token))));
            at = next;
        }
        let labels = if rest { &mut self.nodes[at].rests } else { &mut self.nodes[at].ends };
        let Some(found) = labels.iter().position(|known| *known == label) else { return false };
        labels.swap_remove(found);
        for (node, parent) in path.into_iter().rev() {
            self.nodes[node].count -= 1;
            if let Some((above, token)) = parent.filter(|_| self.nodes[node].count == 0) {
                if token == b"*" {
                    self.nodes[above].any_token = None;
                } else {
                    self.nodes[above].children.remove(token);
                }
                self.nodes[node] = Node::default();
                self.free.push(node);
            }
        }
        true
    }

    /// Calls `found` with the label of every pattern that has a subject in common with this one, until it says no.
    /// `steps` is what is left of the budget.
    pub fn overlaps(
        &self,
        pattern: &[u8],
        steps: &mut usize,
        mut found: impl FnMut(u64) -> bool,
    ) -> Result<(), TooManySteps> {
        let wanted: Vec<&[u8]> = tokens(pattern).collect();
        let mut stack = vec![(0usize, 0usize)];
        while let Some((at, depth)) = stack.pop() {
            *steps = steps.checked_sub(1).ok_or(TooManySteps)?;
            let node = &self.nodes[at];
            let everything_below = depth > wanted.len();
            if depth == wanted.len() || everything_below {
                if !node.ends.iter().all(|label| found(*label)) {
                    return Ok(());
                }
                if !everything_below {
                    continue;
                }
            }
            if !node.rests.iter().all(|label| found(*label)) {
                return Ok(());
            }
            // Below a `>` of ours everything counts: a depth beyond the tokens says so.
            let token = if everything_below { &b">"[..] } else { wanted[depth] };
            let next = if token == b">" { wanted.len() + 1 } else { depth + 1 };
            if matches!(token, b"*" | b">") {
                stack.extend(node.children.values().map(|child| (*child, next)));
            } else if let Some(child) = node.children.get(token) {
                stack.push((*child, next));
            }
            stack.extend(node.any_token.map(|child| (child, next)));
        }
        Ok(())
    }

    /// Whether one of the patterns takes a literal subject. Few steps: a token leads to two nodes at most.
    pub fn selects(&self, subject: &[u8]) -> bool {
        let (mut found, mut steps) = (false, STEPS_MAX);
        let searched = self.overlaps(subject, &mut steps, |_| {
            found = true;
            false
        });
        found || searched.is_err()
    }

    /// The lowest label of a pattern other than `not` that overlaps this one.
    pub fn first_overlap(
        &self,
        pattern: &[u8],
        not: Option<u64>,
        steps: &mut usize,
    ) -> Result<Option<u64>, TooManySteps> {
        let mut lowest = None;
        self.overlaps(pattern, steps, |label| {
            if Some(label) != not && lowest.is_none_or(|known| label < known) {
                lowest = Some(label);
            }
            true
        })?;
        Ok(lowest)
    }
}

/// The first pattern that overlaps an earlier one, and the first of those: (earlier, later).
pub fn first_pair(patterns: &[&[u8]]) -> Result<Option<(usize, usize)>, TooManySteps> {
    let (mut set, mut steps) = (PatternSet::default(), STEPS_MAX);
    for (later, pattern) in patterns.iter().enumerate() {
        if let Some(earlier) = set.first_overlap(pattern, None, &mut steps)? {
            return Ok(Some((earlier as usize, later)));
        }
        set.insert(pattern, later as u64);
    }
    Ok(None)
}
