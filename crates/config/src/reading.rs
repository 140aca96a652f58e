//! Reads a whole tree past what is not accepted, so that all errors of a file are found at once.
//!
//! A type that derives [`serde::Deserialize`] stops at its first error. So each error is noted, the value
//! that it is about is taken out of a copy of the tree, and the copy is read again, until it is accepted.
//! What follows from the absence of such a value only is not the operator's error, and is not reported.

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use toml::de::DeValue;

use crate::de::NodeDeserializer;
use crate::error::{Kind, Problem};
use crate::node::{self, Node, Value};
use crate::place::Step;

/// The most errors of a file that are looked for: each takes another reading.
pub(crate) const MAX_PROBLEMS: usize = 50;

/// A key's path from the document inwards.
pub(crate) type Path = Vec<Step>;

/// What a tree says.
pub(crate) struct Reading<T> {
    /// The value, without what is `broken`; none where too little is left.
    pub(crate) value: Option<T>,
    pub(crate) problems: Vec<Problem>,
    /// What `value` lacks because of the problems.
    pub(crate) broken: Vec<Path>,
}

/// Reads a tree. A key that is missing is replaced by its example, so that what else is missing is found.
pub(crate) fn read<T: DeserializeOwned>(root: &Node, examples: &[(&str, &str)]) -> Reading<T> {
    let (mut tree, mut repair) = (Cow::Borrowed(root), Repair::default());
    loop {
        let read = T::deserialize(NodeDeserializer(&tree));
        let (value, goes_on) = match read {
            Ok(value) => (Some(value), false),
            Err(problem) => (None, repair.take_out(problem, tree.to_mut(), examples)),
        };
        if !goes_on || repair.problems.len() == MAX_PROBLEMS {
            let Repair { problems, broken, .. } = repair;
            return Reading { value, problems, broken };
        }
    }
}

#[derive(Default)]
struct Repair {
    problems: Vec<Problem>,
    broken: Vec<Path>,
    /// Where examples stand, or stood until they were not accepted either.
    replaced: Vec<Path>,
}

impl Repair {
    /// Notes the problem and takes its value out of the tree; false where that leaves nothing.
    fn take_out(&mut self, problem: Problem, tree: &mut Node, examples: &[(&str, &str)]) -> bool {
        let path: Path = problem.path().cloned().collect();
        let kind = problem.kind().clone();
        if !self.follows(&kind, &path) {
            self.problems.push(problem);
        }
        let Some(node) = node_at(tree, &path) else { return false };
        match kind {
            Kind::Missing(key) if self.replace(below(&path, key), node, key, examples) => true,
            // Without it the table has all that it should have, but for the key that was meant.
            Kind::UnknownKey(meant) => {
                let table = &path[..path.len().saturating_sub(1)];
                self.broken.extend(meant.map(|meant| below(table, &meant)));
                node.value = Value::Rejected;
                !path.is_empty()
            }
            _ => self.reject(path, node),
        }
    }

    /// Puts the example of a key that is missing, or that was taken out, into its table.
    fn replace(&mut self, path: Path, table: &mut Node, key: &str, examples: &[(&str, &str)]) -> bool {
        if self.replaced.contains(&path) || !insert_example(table, key, examples) {
            return false;
        }
        self.replaced.push(path.clone());
        self.broken.push(path);
        true
    }

    fn reject(&mut self, path: Path, node: &mut Node) -> bool {
        node.value = Value::Rejected;
        let goes_on = !path.is_empty();
        self.broken.push(path);
        goes_on
    }

    /// Whether there would be no such problem without one that is noted already.
    fn follows(&self, kind: &Kind, path: &[Step]) -> bool {
        match kind {
            Kind::Missing(key) => self.broken.contains(&below(path, key)),
            Kind::UnknownKey(_) => false,
            Kind::Other | Kind::NotATable | Kind::Unnamed => {
                self.broken.iter().any(|broken| broken.starts_with(path))
            }
        }
    }
}

fn below(path: &[Step], key: &str) -> Path {
    path.iter().cloned().chain([Step::from(key)]).collect()
}

fn node_at<'a>(root: &'a mut Node, path: &[Step]) -> Option<&'a mut Node> {
    path.iter().try_fold(root, |node, step| node.child_mut(step))
}

/// Adds a key with its example to a table, if there is one.
fn insert_example(table: &mut Node, key: &str, examples: &[(&str, &str)]) -> bool {
    let place = table.place.clone();
    let Value::Table(table) = &mut table.value else { return false };
    let example =
        examples.iter().find(|(known, _)| *known == key).map(|(_, example)| DeValue::parse(example));
    let Some(Ok(example)) = example else { return false };
    let value = node::value(example.get_ref(), &|_| place.clone());
    table.insert(key.to_owned(), Node { value, place: place.clone() });
    true
}

/// The checks that concern more than a single value, and what they found.
#[derive(Debug)]
pub struct Checks<'a> {
    broken: &'a [Path],
    pub(crate) problems: Vec<Problem>,
    pub(crate) warnings: Vec<Problem>,
}

impl<'a> Checks<'a> {
    pub(crate) fn new(broken: &'a [Path]) -> Self {
        Self { broken, problems: Vec::new(), warnings: Vec::new() }
    }

    /// Makes a check unless something that it `reads` is wrong already. That is told by keys with dots
    /// between them; `*` is any name, or any element of a list: `legs.*.rate`.
    pub fn check(&mut self, reads: &[&str], check: impl FnOnce() -> Result<(), Problem>) {
        if self.are_sound(reads) {
            self.problems.extend(check().err());
        }
    }

    /// Looks for what is accepted, but hardly meant.
    pub fn warn(&mut self, reads: &[&str], look: impl FnOnce() -> Option<Problem>) {
        if self.are_sound(reads) {
            self.warnings.extend(look());
        }
    }

    fn are_sound(&self, keys: &[&str]) -> bool {
        !keys.iter().any(|key| self.broken.iter().any(|path| concerns(key, path)))
    }
}

/// Whether one of them is, or is inside, the other.
fn concerns(key: &str, path: &[Step]) -> bool {
    key.split('.').zip(path).all(|(part, step)| match step {
        _ if part == "*" => true,
        Step::Key(key) => key == part,
        Step::Index(_) => false,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use crate::{Document, Error, InTable, Problem, Whole};

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        legs: BTreeMap<String, Leg>,
        #[serde(default)]
        #[serde(rename = "rules")]
        _rules: Vec<Rule>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Leg {
        interface: String,
        #[serde(rename = "gate")]
        _gate: String,
        rate: Option<Whole<u32, 1, 9>>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(try_from = "Written")]
    struct Rule;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Written {
        action: String,
        weight: Option<u8>,
    }

    impl TryFrom<Written> for Rule {
        type Error = String;

        fn try_from(written: Written) -> Result<Self, String> {
            match written.weight {
                Some(_) if written.action != "split" => Err("weight goes with split only".into()),
                _ => Ok(Self),
            }
        }
    }

    /// The errors of a file, one a line; legs without a rate, and two on one interface, are checked for.
    fn errors(text: &str) -> Vec<String> {
        let examples = &[("interface", "'sat0'"), ("gate", "'a'"), ("action", "'pass'")];
        let outcome = Document::parse("f", text).and_then(|document| {
            document.with_examples(examples).read_checked(|file: &File, checks| {
                for (name, leg) in &file.legs {
                    checks.check(&["legs.*.rate"], || match leg.rate {
                        Some(_) => Ok(()),
                        None => Err(Problem::of("rate", "is needed")).inside(name.as_str()).inside("legs"),
                    });
                }
                checks.check(&["legs.*.interface"], || match file.legs.len() {
                    2 if file.legs.values().all(|leg| leg.interface == "sat0") => {
                        Err(Problem::of("legs", "both"))
                    }
                    _ => Ok(()),
                });
            })
        });
        match outcome {
            Ok(_) => Vec::new(),
            Err(Error::Faults(faults)) => faults.iter().map(ToString::to_string).collect(),
            Err(other) => panic!("{other}"),
        }
    }

    fn starts(text: &str, expected: &[&str]) {
        let errors = errors(text);
        assert_eq!(errors.len(), expected.len(), "{text}\n{errors:#?}");
        for (error, expected) in errors.iter().zip(expected) {
            assert!(error.starts_with(expected), "{error}\nis not {expected}");
        }
    }

    #[test]
    fn all_errors_are_reported_in_the_order_of_their_lines() {
        let text = "[[rules]]\naction = 'pass'\nwieght = 3\n[[rules]]\nweight = 300\n[[rules]]\naction = 'pass'\n\
                    weight = 2\n[legs.a]\ninterface = 3\nrate = 10\n[legs.b]\nspeed = 3\nrate = 1\n[lgs]\n";
        starts(
            text,
            &[
                "f:3: rules[1].wieght: there is no such key (did you mean weight?)",
                "f:4: rules[2]: action is missing; write for example action = 'pass'",
                "f:5: rules[2].weight: 300 is not a whole number",
                "f:6: rules[3]: weight goes with split only",
                "f:9: legs.a: gate is missing",
                "f:10: legs.a.interface: 3 is not a text in quotation marks; write interface = \"3\"",
                "f:11: legs.a.rate: 10 is not a whole number between 1 and 9",
                "f:12: legs.b: interface is missing",
                "f:12: legs.b: gate is missing",
                "f:13: legs.b.speed: there is no such key",
                "f:15: lgs: there is no such key (did you mean [legs]?)",
            ],
        );
    }

    #[test]
    fn what_follows_from_an_error_is_not_reported() {
        let leg = "[legs.a]\ngate = 'a'\n";
        // Neither is the interface missing, nor is there no rate.
        starts(
            &format!("{leg}interfce = 'sat0'\nrate = 1\n"),
            &["f:3: legs.a.interfce: there is no such key"],
        );
        starts(
            &format!("{leg}interface = 'sat0'\nrate = 'x'\n"),
            &["f:4: legs.a.rate: \"x\" is not a whole"],
        );
        // A weight is right or wrong by the action that was meant.
        let rules = "[[rules]]\naction = 7\nweight = 3\n[[rules]]\nweight = 3\n";
        let good = format!("{leg}interface = 'sat0'\nrate = 1\n");
        starts(
            &format!("{good}{rules}"),
            &["f:6: rules[1].action: 7 is not a text", "f:8: rules[2]: action is missing"],
        );
    }

    #[test]
    fn a_check_is_made_if_what_it_reads_is_sound() {
        let legs = "[legs.a]\ngate = 'a'\ninterface = 'sat0'\nspeed = 3\n[legs.b]\ngate = 'a'\ninterface = 'sat0'\nrate = 1\n";
        starts(
            legs,
            &["f:1: legs.a.rate: is needed", "f:1: legs: both", "f:4: legs.a.speed: there is no such key"],
        );
        starts(
            &legs.replace("b]\ngate = 'a'\ninterface = 'sat0'", "b]\ngate = 'a'\ninterface = 2"),
            &[
                "f:1: legs.a.rate: is needed",
                "f:4: legs.a.speed: there is no such key",
                "f:7: legs.b.interface: 2 is not a text",
            ],
        );
    }

    #[test]
    fn a_table_without_its_name_is_told_of() {
        starts(
            "[legs]\ninterface = 'sat0'\n",
            &[
                "f:2: legs.interface: \"sat0\" is not a table with interface, gate, rate; write [legs.NAME] above it",
            ],
        );
        starts("[[rule]]\n[legs]\n", &["f:1: rule: there is no such key (did you mean [[rules]]?)"]);
    }

    #[test]
    fn syntax_errors_stand_beside_the_others() {
        let text = "[legs.a]\ninterface = sat0\ngate = 3\nrate = \n[legs.b]\nspeed = 9\nrate = 10Mbit/s\n";
        let errors = errors(text);
        for line in [2, 3, 4, 6, 7] {
            assert!(
                errors.iter().any(|error| error.starts_with(&format!("f:{line}: "))),
                "{line}: {errors:#?}"
            );
        }
        assert!(errors[0].contains("write interface = \"sat0\""), "{errors:#?}");
        assert_eq!(errors.len(), 5, "{errors:#?}");
        // To which table the second line belongs is not known; the last is another's.
        starts("[legs.a\nspeed = 9\n[legs.b]\nspeed = 9\n", &["f:1: ", "f:4: legs.b.speed: "]);
    }

    #[test]
    fn of_very_many_errors_the_first_are_reported() {
        let text: String = (0..1000).map(|number| format!("x{number} = 1\n")).collect();
        let errors = errors(&text);
        assert_eq!(errors.len(), super::MAX_PROBLEMS + 1);
        assert!(errors.last().unwrap().contains("there is more"), "{errors:#?}");
    }
}
