//! The deserializer over the tree.
//!
//! Every error carries the path to its value. Beyond serde's data model, a type may ask for three things by
//! its name:
//!
//! * an enum called `$shape` (`#[serde(rename = "$shape", rename_all = "lowercase")]`) is chosen by what is
//!   written: its variants are some of `text`, `number`, `boolean`, `date`, `list` and `table`, each with the
//!   type to read then;
//! * an enum called `$tag:KEY` is chosen by the text under `KEY` in its table, as serde's `tag = "KEY"`, but
//!   without the copy in which serde loses keys and places;
//! * the newtypes of `values.rs`: `$or:WORD`, the word instead of a value; `$list`, a value that may stand
//!   alone; `$written` and `$date`, a number or a date as the text that it is.

use std::iter::Peekable;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};

use crate::error::{InTable, Kind, Problem, alternatives, expectation};
use crate::node::{Node, Table, Value};
use crate::place::Place;

pub(crate) const SHAPE: &str = "$shape";
pub(crate) const TAG: &str = "$tag:";
pub(crate) const OR: &str = "$or:";
pub(crate) const LIST: &str = "$list";
pub(crate) const DATE: &str = "$date";
pub(crate) const WRITTEN: &str = "$written";

/// A value to be read.
#[derive(Clone, Copy)]
pub(crate) struct NodeDeserializer<'de>(pub(crate) &'de Node);

impl<'de> NodeDeserializer<'de> {
    fn is_not(self, expected: impl std::fmt::Display) -> Problem {
        Problem::new(format!("{} is not {expected}", self.0.value))
    }

    fn is_neither(self) -> Problem {
        Problem::new(format!("{} is neither true nor false", self.0.value))
    }

    /// It is no number, though it may be the text of one.
    fn is_no_number(self, expected: impl std::fmt::Display) -> Problem {
        match &self.0.value {
            Value::Text(text) if text.parse::<f64>().is_ok() => {
                Problem::new(format!("\"{text}\" in quotation marks is not {expected}; write {text}"))
            }
            _ => self.is_not(expected),
        }
    }

    fn text(self) -> Option<&'de str> {
        match &self.0.value {
            Value::Text(text) | Value::Word(text) => Some(text),
            _ => None,
        }
    }

    /// The number, as it is written.
    fn number(self) -> Option<&'de str> {
        match &self.0.value {
            Value::Number(number) | Value::Word(number) => Some(number),
            _ => None,
        }
    }

    fn table(self, expected: impl FnOnce() -> String) -> Result<&'de Table, Problem> {
        match &self.0.value {
            Value::Table(table) => Ok(table),
            _ => Err(self.is_not(expected()).with_kind(Kind::NotATable)),
        }
    }

    fn list<V: Visitor<'de>>(self, elements: &'de [Node], visitor: V) -> Result<V::Value, Problem> {
        visitor.visit_seq(Elements { elements: elements.iter(), index: 0 })
    }

    /// The names by which an enum called `$shape` may take the value.
    fn shapes(self) -> &'static [&'static str] {
        match &self.0.value {
            Value::Text(_) => &["text"],
            Value::Number(_) => &["number"],
            Value::Boolean(_) => &["boolean"],
            Value::Date(_) => &["date"],
            Value::Word(_) => &["text", "number", "boolean"],
            Value::List(_) => &["list"],
            Value::Table(_) => &["table"],
            Value::Rejected => &[],
        }
    }
}

/// The number as the kind that it is.
fn visit_number<'de, V: Visitor<'de>>(number: &str, visitor: V) -> Result<V::Value, Problem> {
    match (number.parse::<i64>(), number.parse::<f64>()) {
        (Ok(number), _) => visitor.visit_i64(number),
        (_, Ok(number)) => visitor.visit_f64(number),
        _ => Err(Problem::new(format!("{number} is not a number"))),
    }
}

/// `visit` is called with the number, if there is one in the range of 64 bits.
fn integer<'de, V: Visitor<'de>>(node: NodeDeserializer<'de>, visitor: V) -> Result<V::Value, Problem> {
    match node.number().map(|number| (number.parse::<u64>(), number.parse::<i64>())) {
        Some((Ok(number), _)) => visitor.visit_u64(number),
        Some((_, Ok(number))) => visitor.visit_i64(number),
        _ => Err(node.is_no_number(expectation(&visitor))),
    }
}

macro_rules! integers {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
            integer(self, visitor)
        })*
    };
}

impl<'de> Deserializer<'de> for NodeDeserializer<'de> {
    type Error = Problem;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        match &self.0.value {
            Value::Text(text) | Value::Word(text) => visitor.visit_borrowed_str(text),
            Value::Number(number) => match number.parse() {
                Ok(number) => visitor.visit_i64(number),
                Err(_) => self.deserialize_f64(visitor),
            },
            Value::Boolean(boolean) => visitor.visit_bool(*boolean),
            Value::Date(date) => visitor.visit_string(date.to_string()),
            Value::List(elements) => self.list(elements, visitor),
            Value::Table(table) => visitor.visit_map(Entries::of(table, None)),
            Value::Rejected => Err(self.is_not("to be read")),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        match &self.0.value {
            Value::Boolean(boolean) => visitor.visit_bool(*boolean),
            Value::Word(word) if word == "true" => visitor.visit_bool(true),
            Value::Word(word) if word == "false" => visitor.visit_bool(false),
            Value::Word(_) => Err(self.is_neither()),
            _ => Err(Problem::new(format!(
                "{}; write true or false, without quotation marks",
                self.is_neither()
            ))),
        }
    }

    integers! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        match self.number().map(str::parse) {
            Some(Ok(number)) => visitor.visit_f64(number),
            _ => Err(self.is_no_number(expectation(&visitor))),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        const TEXT: &str = "a text in quotation marks";
        match (self.text(), self.number()) {
            (Some(text), _) => visitor.visit_borrowed_str(text),
            // The visitor of a quantity tells what is wrong with a number.
            (None, Some(number)) if expectation(&visitor) != TEXT => visit_number(number, visitor),
            (None, Some(number)) => Err(Problem::new(format!("{number} is not {TEXT}; write \"{number}\""))),
            (None, None) => Err(self.is_not(TEXT)),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Problem> {
        if let Some(word) = name.strip_prefix(OR) {
            return match self.text() == Some(word) {
                true => visitor.visit_unit(),
                false => visitor.visit_newtype_struct(self).map_err(|problem| problem.or_word(word)),
            };
        }
        match &self.0.value {
            Value::List(elements) if name == LIST => self.list(elements, visitor),
            Value::Date(date) if name == DATE => visitor.visit_string(date.to_string()),
            _ if name == DATE => Err(self.is_not("a date")),
            _ if name == WRITTEN => match self.text().or_else(|| self.number()) {
                Some(text) => visitor.visit_borrowed_str(text),
                None => Err(self.is_not("a text or a number")),
            },
            _ => visitor.visit_newtype_struct(self),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        match &self.0.value {
            Value::List(elements) => self.list(elements, visitor),
            _ => Err(self.is_not("a list in brackets")),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        let table = self.table(|| "a table".into())?;
        visitor.visit_map(Entries { names_are_free: true, ..Entries::of(table, None) })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        keys: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Problem> {
        let table = self.table(|| format!("a table with {}", keys.join(", ")))?;
        visitor.visit_map(Entries::of(table, None))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Problem> {
        let choice = |name, tag| Choice { name, node: self.0, tag };
        if name == SHAPE {
            let shape = self.shapes().iter().find(|shape| variants.contains(shape));
            let shape = shape.ok_or_else(|| self.is_not(format!("a {}", alternatives(variants))))?;
            return visitor.visit_enum(choice(shape, None));
        }
        if let Some(tag) = name.strip_prefix(TAG) {
            let table = self.table(|| format!("a table with {tag}"))?;
            let missing = || {
                let what = format!("{tag} is missing: choose {}", alternatives(variants));
                Problem::new(what).with_kind(Kind::Missing(tag))
            };
            let value = table.get(tag).filter(|value| value.is_accepted());
            let value = NodeDeserializer(value.ok_or_else(missing)?);
            let variant = value.variant(variants).inside(tag)?;
            return visitor.visit_enum(choice(variant, Some(tag)));
        }
        let variant = self.variant(variants)?;
        visitor.visit_enum(variant.into_deserializer())
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        self.deserialize_str(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        i128 u128 char bytes byte_buf unit unit_struct tuple tuple_struct
    }
}

impl<'de> NodeDeserializer<'de> {
    /// The value as one of these texts.
    fn variant(self, variants: &'static [&'static str]) -> Result<&'de str, Problem> {
        let text = self.text().unwrap_or_default();
        match (variants.contains(&text), self.text()) {
            (true, _) => Ok(text),
            (false, Some(_)) => Err(Problem::unknown_variant(text, variants)),
            (false, None) => Err(Problem::new(format!(
                "{} is not accepted: choose {}",
                self.0.value,
                alternatives(variants)
            ))),
        }
    }
}

/// The elements of a list.
struct Elements<'de> {
    elements: std::slice::Iter<'de, Node>,
    /// That of the next element.
    index: usize,
}

impl<'de> SeqAccess<'de> for Elements<'de> {
    type Error = Problem;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Problem> {
        for node in self.elements.by_ref() {
            let index = self.index;
            self.index += 1;
            if node.is_accepted() {
                return seed.deserialize(NodeDeserializer(node)).map(Some).inside(index);
            }
        }
        Ok(None)
    }
}

/// The entries of a table, in the order of their lines, so that the first of several errors is reported.
struct Entries<'de> {
    entries: Peekable<std::vec::IntoIter<(&'de str, &'de Node)>>,
    /// Whether the keys are names of the operator's choice.
    names_are_free: bool,
}

impl<'de> Entries<'de> {
    /// Of all keys but `tag`.
    fn of(table: &'de Table, tag: Option<&'static str>) -> Self {
        let entries = table.iter().map(|(key, node)| (key.as_str(), node));
        let is_read = |(key, node): &(&str, &Node)| Some(*key) != tag && node.is_accepted();
        let mut entries: Vec<_> = entries.filter(is_read).collect();
        entries.sort_by_key(|(_, node)| match node.place {
            Place::Line(line) => line,
            Place::Setting(_) => usize::MAX,
        });
        Self { entries: entries.into_iter().peekable(), names_are_free: false }
    }
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = Problem;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Problem> {
        let Some((key, _)) = self.entries.peek() else { return Ok(None) };
        let read: Result<_, Problem> = seed.deserialize(key.into_deserializer());
        read.map(Some).inside(*key)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Problem> {
        let (key, node) = self.entries.next().expect("a value follows its key");
        let read: Result<_, Problem> = seed.deserialize(NodeDeserializer(node));
        read.map_err(|problem| match problem.kind() {
            Kind::NotATable if self.names_are_free && problem.is_at_hand() => {
                problem.with_kind(Kind::Unnamed).inside(key)
            }
            _ => problem.at_key(key),
        })
    }
}

/// A variant that was chosen by the value's shape or tag.
struct Choice<'de> {
    name: &'de str,
    node: &'de Node,
    /// The key that is the tag, which is not the variant's own.
    tag: Option<&'static str>,
}

impl<'de> EnumAccess<'de> for Choice<'de> {
    type Error = Problem;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Problem> {
        Ok((seed.deserialize(self.name.into_deserializer())?, self))
    }
}

impl<'de> VariantAccess<'de> for Choice<'de> {
    type Error = Problem;

    fn unit_variant(self) -> Result<(), Problem> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Problem> {
        seed.deserialize(NodeDeserializer(self.node))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _length: usize, visitor: V) -> Result<V::Value, Problem> {
        NodeDeserializer(self.node).deserialize_seq(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        keys: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Problem> {
        let table = NodeDeserializer(self.node).table(|| format!("a table with {}", keys.join(", ")))?;
        visitor.visit_map(Entries::of(table, self.tag))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use crate::{Document, Setting};

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Link {
        name: String,
        per: f64,
        queue: Option<Queue>,
        end: Option<End>,
        #[serde(default)]
        on: bool,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename = "$shape", rename_all = "lowercase")]
    enum Queue {
        Text(Discipline),
        Number(u32),
        List(Vec<u8>),
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Discipline {
        Fifo,
        Codel,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename = "$tag:kind", rename_all = "lowercase", deny_unknown_fields)]
    enum End {
        Snoop { cache: u32 },
        Arq {},
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        link: Vec<Link>,
        #[serde(default, rename = "tcp")]
        _tcp: BTreeMap<String, bool>,
    }

    fn read(rest: &str) -> Result<File, String> {
        let text = format!("[[link]]\nname = 'sat'\nper = 1\n{rest}");
        Document::parse("f", &text).and_then(|document| document.read()).map_err(|error| error.to_string())
    }

    #[test]
    fn values_are_read_by_shape_and_by_tag() {
        let link = |rest: &str| read(rest).unwrap().link.remove(0);
        assert_eq!(link("queue = 'codel'").queue, Some(Queue::Text(Discipline::Codel)));
        assert_eq!(link("queue = 0x10").queue, Some(Queue::Number(16)));
        assert_eq!(link("queue = [1, 2]").queue, Some(Queue::List(vec![1, 2])));
        assert_eq!(link("end = { kind = 'snoop', cache = 9 }").end, Some(End::Snoop { cache: 9 }));
        assert_eq!(link("[link.end]\nkind = 'arq'").end, Some(End::Arq {}));
    }

    #[test]
    fn every_error_has_file_line_key_and_accepted_values() {
        for (rest, expected) in [
            (
                "naem = 1",
                "f:4: link.sat.naem: there is no such key (did you mean name?); there is name, per, queue",
            ),
            ("queue = true", "f:4: link.sat.queue: true is not a text, number or list"),
            (
                "queue = 'fiofo'",
                "f:4: link.sat.queue: \"fiofo\" is not accepted (did you mean fifo?): choose fifo or",
            ),
            ("queue = [\n1,\n300]", "f:6: link.sat.queue[2]: 300 is not a whole number between 0 and 255"),
            ("queue = -1", "f:4: link.sat.queue: -1 is not a whole number between 0 and 4294967295"),
            ("queue = 1.5", "f:4: link.sat.queue: 1.5 is not a whole number between 0 and 4294967295"),
            ("end = {}", "f:4: link.sat.end: kind is missing: choose snoop or arq"),
            ("end = 3", "f:4: link.sat.end: 3 is not a table with kind"),
            ("end = { kind = 3 }", "f:4: link.sat.end.kind: 3 is not accepted: choose snoop or arq"),
            (
                "[link.end]\nkind = 'snoop'\ncache = 'x'",
                "f:6: link.sat.end.cache: \"x\" is not a whole number",
            ),
            ("end = { kind = 'arq', cache = 1 }", "f:4: link.sat.end.cache: there is no such key"),
            ("on = 'yes'", "f:4: link.sat.on: \"yes\" is neither true nor false"),
            ("on = 2007-01-01", "f:4: link.sat.on: the date 2007-01-01 is neither true nor false"),
            ("[[link]]\nname = 'b'", "f:4: link.b: per is missing"),
            ("[[link]]\nname = 3", "f:5: link[2].name: 3 is not a text in quotation marks"),
            ("[[link]]\nname = 'b'\nper = 'x'", "f:6: link.b.per: \"x\" is not a number"),
            ("[tcp]\na = 1", "f:5: tcp.a: 1 is neither true nor false"),
            ("tcp = 1", "f:4: link.sat.tcp: there is no such key"),
        ] {
            let error = read(rest).expect_err(rest);
            assert!(error.starts_with(expected), "{error}\nis not {expected}");
        }
        let error = Document::parse("f", "link = 3").unwrap().read::<File>().unwrap_err().to_string();
        assert_eq!(error, "f:1: link: 3 is not a list in brackets");
    }

    #[test]
    fn a_setting_is_one_of_its_keywords() {
        let mut document = Document::parse("f", "[[link]]\nname = 'sat'\nper = 1\n").unwrap();
        for setting in ["link.sat.per=0.5", "link.sat.on=true", "link.sat.queue=fifo"] {
            document.set(&setting.parse::<Setting>().unwrap(), &[]).unwrap();
        }
        let link = document.read::<File>().unwrap().link.remove(0);
        assert_eq!((link.per, link.on, link.queue), (0.5, true, Some(Queue::Text(Discipline::Fifo))));
        document.set(&"link.sat.on=maybe".parse().unwrap(), &[]).unwrap();
        let error = document.read::<File>().unwrap_err().to_string();
        assert_eq!(error, "f with link.sat.on=maybe: link.sat.on: \"maybe\" is neither true nor false");
    }
}
