//! Which links a packet takes from one node to another.

use std::collections::{HashMap, VecDeque};

use crate::scenario::Hop;

/// The nodes and what joins them.
#[derive(Debug, Default)]
pub(super) struct Topology {
    names: Vec<String>,
    index: HashMap<String, usize>,
    neighbours: Vec<Vec<(usize, Hop)>>,
}

/// Why there is no one path.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RouteError {
    #[error("no links lead from {0} to {1}")]
    None(String, String),
    #[error(
        "several paths of {links} links lead from {from} to {to}: say which one, for example via = {via:?}"
    )]
    Several { from: String, to: String, links: usize, via: Vec<String> },
    #[error("no link joins {from} and {to}; from {from} links lead to {neighbours}")]
    NotJoined { from: String, to: String, neighbours: String },
    #[error("the path comes to {0} twice: a route has no loops")]
    Loop(String),
}

impl Topology {
    /// The index of a node, which is added if it is new.
    pub(super) fn add_node(&mut self, name: &str) -> usize {
        if let Some(&index) = self.index.get(name) {
            return index;
        }
        let index = self.names.len();
        self.names.push(name.to_owned());
        self.index.insert(name.to_owned(), index);
        self.neighbours.push(Vec::new());
        index
    }

    /// Joins two nodes by the link of index `link`; gives the index of the one that joins them already, if
    /// there is one.
    pub(super) fn join(&mut self, link: usize, [from, to]: [usize; 2]) -> Result<(), usize> {
        if let Some(hop) = self.hop(from, to) {
            return Err(hop.link);
        }
        self.neighbours[from].push((to, Hop { link, forward: true }));
        self.neighbours[to].push((from, Hop { link, forward: false }));
        Ok(())
    }

    /// The index of a node.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.index.get(name).copied()
    }

    /// The names of the nodes by index.
    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// The nodes of the path of fewest links, both ends included.
    ///
    /// # Errors
    /// If there is none, or more than one.
    pub(super) fn shortest(&self, from: usize, to: usize) -> Result<Vec<usize>, RouteError> {
        let reached = self.reach(from, to);
        let ends = || (self.names[from].clone(), self.names[to].clone());
        if reached[to].is_none() {
            let (from, to) = ends();
            return Err(RouteError::None(from, to));
        }
        let mut nodes = vec![to];
        let mut several = false;
        while let Some(step) = reached[nodes[nodes.len() - 1]].as_ref().filter(|step| step.links > 0) {
            several |= step.several;
            nodes.push(step.before);
        }
        nodes.reverse();
        if several {
            let (from, to) = ends();
            let between = &nodes[1..nodes.len() - 1];
            let via = between.iter().map(|&node| self.names[node].clone()).collect();
            return Err(RouteError::Several { from, to, links: nodes.len() - 1, via });
        }
        Ok(nodes)
    }

    /// The links between each node and the next.
    ///
    /// # Errors
    /// If two of them are not joined, or a node comes twice.
    pub(super) fn hops(&self, nodes: &[usize]) -> Result<Vec<Hop>, RouteError> {
        let mut seen = vec![false; self.names.len()];
        for &node in nodes {
            if std::mem::replace(&mut seen[node], true) {
                return Err(RouteError::Loop(self.names[node].clone()));
            }
        }
        let joined =
            |pair: &[usize]| self.hop(pair[0], pair[1]).ok_or_else(|| self.not_joined(pair[0], pair[1]));
        nodes.windows(2).map(joined).collect()
    }

    /// Breadth-first: how each node nearer than `to` is reached from `from`.
    fn reach(&self, from: usize, to: usize) -> Vec<Option<Step>> {
        let mut reached: Vec<Option<Step>> = vec![None; self.names.len()];
        reached[from] = Some(Step { links: 0, before: from, several: false });
        let mut front = VecDeque::from([from]);
        while let Some(node) = front.pop_front() {
            let links = reached[node].as_ref().map_or(0, |step| step.links) + 1;
            if reached[to].as_ref().is_some_and(|step| step.links < links) {
                break;
            }
            for &(next, _) in &self.neighbours[node] {
                match &mut reached[next] {
                    Some(step) => step.several |= step.links == links,
                    unreached => {
                        *unreached = Some(Step { links, before: node, several: false });
                        front.push_back(next);
                    }
                }
            }
        }
        reached
    }

    fn hop(&self, from: usize, to: usize) -> Option<Hop> {
        self.neighbours[from].iter().find(|&&(node, _)| node == to).map(|&(_, hop)| hop)
    }

    fn not_joined(&self, from: usize, to: usize) -> RouteError {
        let names = self.neighbours[from].iter().map(|&(node, _)| self.names[node].as_str());
        let neighbours = names.collect::<Vec<_>>().join(", ");
        RouteError::NotJoined { from: self.names[from].clone(), to: self.names[to].clone(), neighbours }
    }
}

/// How a node is reached.
#[derive(Debug, Clone)]
struct Step {
    /// Links from the start.
    links: usize,
    /// The node before it.
    before: usize,
    /// Another node before it would do as well.
    several: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology(links: &[[&str; 2]]) -> Topology {
        let mut topology = Topology::default();
        for (index, names) in links.iter().enumerate() {
            let nodes = names.map(|name| topology.add_node(name));
            topology.join(index, nodes).unwrap();
        }
        topology
    }

    fn shortest(topology: &Topology, from: &str, to: &str) -> Result<Vec<String>, RouteError> {
        let nodes = topology.shortest(topology.find(from).unwrap(), topology.find(to).unwrap())?;
        Ok(nodes.into_iter().map(|node| topology.names()[node].clone()).collect())
    }

    #[test]
    fn the_path_of_fewest_links_is_taken() {
        let topology = topology(&[["a", "b"], ["b", "c"], ["c", "d"], ["a", "x"], ["x", "d"]]);
        assert_eq!(shortest(&topology, "a", "d").unwrap(), ["a", "x", "d"]);
        assert_eq!(shortest(&topology, "d", "a").unwrap(), ["d", "x", "a"]);
        let nodes = ["d", "x", "a"].map(|name| topology.find(name).unwrap());
        let hops = topology.hops(&nodes).unwrap();
        assert_eq!(hops, [Hop { link: 4, forward: false }, Hop { link: 3, forward: false }]);
    }

    #[test]
    fn two_paths_of_one_length_are_a_question() {
        let diamond = topology(&[["a", "b"], ["b", "d"], ["a", "c"], ["c", "d"], ["d", "e"]]);
        for (from, to) in [("a", "d"), ("a", "e"), ("e", "a")] {
            let error = shortest(&diamond, from, to).unwrap_err().to_string();
            assert!(error.contains("several paths") && error.contains("via = [\""), "{error}");
        }
        assert_eq!(shortest(&diamond, "a", "b").unwrap(), ["a", "b"], "a tie elsewhere does not matter");
    }

    #[test]
    fn islands_loops_and_gaps_are_refused() {
        let mut topology = topology(&[["a", "b"], ["b", "c"], ["x", "y"]]);
        assert!(matches!(shortest(&topology, "a", "x"), Err(RouteError::None(..))));
        let nodes =
            |names: &[&str]| names.iter().map(|name| topology.find(name).unwrap()).collect::<Vec<_>>();
        assert_eq!(topology.hops(&nodes(&["a", "b", "a"])), Err(RouteError::Loop("a".into())));
        assert!(
            topology.hops(&nodes(&["a", "c"])).unwrap_err().to_string().contains("from a links lead to b")
        );
        assert_eq!(topology.join(9, [1, 0]), Err(0), "a second link between two nodes");
    }
}
