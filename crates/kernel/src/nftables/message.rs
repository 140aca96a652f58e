//! Changes to sets as a batch of nfnetlink messages (linux/netfilter/nfnetlink.h,
//! linux/netfilter/nf_tables.h).

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use super::{Change, Key};
use crate::feature;
use crate::netlink::Writer;

/// `NFNL_MSG_BATCH_BEGIN` and `_END` of linux/netfilter/nfnetlink.h.
pub(super) const BATCH_BEGIN: u16 = libc::NFNL_MSG_BATCH_BEGIN as u16;
pub(super) const BATCH_END: u16 = libc::NFNL_MSG_BATCH_END as u16;
/// The subsystem, in the upper byte of a message's type.
pub(super) const SUBSYSTEM: u16 = (libc::NFNL_SUBSYS_NFTABLES as u16) << 8;
const NEW_ELEMENTS: u16 = SUBSYSTEM | libc::NFT_MSG_NEWSETELEM as u16;
const DELETE_ELEMENTS: u16 = SUBSYSTEM | libc::NFT_MSG_DELSETELEM as u16;
/// `NFT_MSG_DESTROYSETELEM`, Linux 6.3: deletes an element, and is no error where there is none.
const DESTROY_ELEMENTS: u16 = SUBSYSTEM | 30;

/// `enum nft_set_elem_list_attributes`.
const LIST_TABLE: u16 = 1;
const LIST_SET: u16 = 2;
const LIST_ELEMENTS: u16 = 3;
/// `NFTA_LIST_ELEM`.
const ELEMENT: u16 = 1;
/// `enum nft_set_elem_attributes`.
const ELEMENT_KEY: u16 = 1;
const ELEMENT_TIMEOUT: u16 = 4;
/// `NFTA_DATA_VALUE`.
const DATA_VALUE: u16 = 1;

/// An element takes at most 40 bytes, and the list of them is an attribute, whose length has 16 bits.
const ELEMENTS_PER_MESSAGE: usize = 1000;
const _: () = assert!(4 + ELEMENTS_PER_MESSAGE * 40 <= u16::MAX as usize);

/// Longer than a transaction takes.
const BRIEFLY: Duration = Duration::from_secs(60);

/// The changes to the keys of one set: a time-out, or `None` to delete the key.
type Elements = BTreeMap<Key, Option<Duration>>;

/// A transaction, ready to be encoded with any sequence numbers.
#[derive(Debug)]
pub(super) struct Transaction<'a> {
    table: &'a str,
    commands: Vec<Command<'a>>,
}

/// How an element is deleted that may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deletion {
    /// By the message for it.
    Destroy,
    /// Before Linux 6.3: it is added first, which is no error where it is there, and then deleted.
    AddFirst,
}

impl Deletion {
    /// What the running kernel can do.
    fn running() -> Self {
        static RUNNING: OnceLock<Deletion> = OnceLock::new();
        *RUNNING.get_or_init(|| match feature::running() {
            Some(version) if version < (6, 3) => Self::AddFirst,
            _ => Self::Destroy,
        })
    }
}

/// One message between the beginning and the end of the batch.
#[derive(Debug)]
struct Command<'a> {
    kind: u16,
    set: &'a str,
    elements: Vec<(Key, Option<Duration>)>,
}

impl<'a> Transaction<'a> {
    /// Sorts the changes by set. Each says how its element shall be, whatever it was before, so the last one
    /// of a key is all that matters.
    pub(super) fn new(table: &'a str, changes: &[Change<'a>]) -> Self {
        Self::deleting_by(Deletion::running(), table, changes)
    }

    fn deleting_by(deletion: Deletion, table: &'a str, changes: &[Change<'a>]) -> Self {
        let mut sets: BTreeMap<&str, Elements> = BTreeMap::new();
        for change in changes {
            let (set, key, timeout) = match *change {
                Change::Put { set, key, timeout } => (set, key, Some(timeout)),
                Change::Remove { set, key } => (set, key, None),
            };
            sets.entry(set).or_default().insert(key, timeout);
        }
        Self {
            table,
            commands: sets
                .into_iter()
                .flat_map(|(set, elements)| commands(deletion, set, &elements))
                .collect(),
        }
    }

    /// How many sequence numbers it takes: the beginning, the commands, the end.
    pub(super) fn messages(&self) -> u32 {
        u32::try_from(self.commands.len() + 2).expect("memory ends before")
    }

    /// The place of the message, counted from the beginning of the batch, whose acknowledgement means
    /// success.
    pub(super) fn last_command(&self) -> u32 {
        self.messages() - 2
    }

    /// The set that the message at this place is about; `None` for the beginning and the end.
    pub(super) fn set_of(&self, place: u32) -> Option<&'a str> {
        let index = usize::try_from(place).ok()?.checked_sub(1)?;
        self.commands.get(index).map(|command| command.set)
    }

    /// The batch, with sequence numbers from `first` on. Only the last command asks for an acknowledgement:
    /// the kernel reports what fails unasked, and nothing else for the batch's own messages before Linux
    /// 6.10.
    pub(super) fn encode(&self, first: u32) -> Writer {
        let mut writer = Writer::default();
        let request = libc::NLM_F_REQUEST;
        let batch = generic_header(libc::AF_UNSPEC as u8, libc::NFNL_SUBSYS_NFTABLES as u16);
        let family = generic_header(libc::NFPROTO_INET as u8, 0);
        let mut sequence = first;
        writer.message(BATCH_BEGIN, request, sequence, &batch, |_| {});
        for (index, command) in self.commands.iter().enumerate() {
            sequence = sequence.wrapping_add(1);
            let create = if command.kind == NEW_ELEMENTS { libc::NLM_F_CREATE } else { 0 };
            let acknowledge = if index + 1 == self.commands.len() { libc::NLM_F_ACK } else { 0 };
            writer.message(command.kind, request | create | acknowledge, sequence, &family, |w| {
                command.write(w, self.table);
            });
        }
        writer.message(BATCH_END, request, sequence.wrapping_add(1), &batch, |_| {});
        writer
    }
}

impl Command<'_> {
    fn write(&self, writer: &mut Writer, table: &str) {
        writer.text(LIST_TABLE, table);
        writer.text(LIST_SET, self.set);
        writer.nested(LIST_ELEMENTS, |list| {
            for (key, timeout) in &self.elements {
                list.nested(ELEMENT, |element| write_element(element, *key, *timeout));
            }
        });
    }
}

/// Everything is deleted first, for the kernel leaves the time-out of an element that is there as it is.
fn commands<'a>(deletion: Deletion, set: &'a str, elements: &Elements) -> Vec<Command<'a>> {
    let gone = || elements.keys().map(|key| (*key, None)).collect();
    let put = || elements.iter().filter(|(_, t)| t.is_some()).map(|(key, t)| (*key, *t)).collect();
    // The time-out of what is deleted at once does not matter, but that the set may want one.
    let added = || elements.keys().map(|key| (*key, Some(BRIEFLY))).collect();
    let steps: Vec<(u16, Vec<_>)> = match deletion {
        Deletion::Destroy => vec![(DESTROY_ELEMENTS, gone()), (NEW_ELEMENTS, put())],
        Deletion::AddFirst => {
            vec![(NEW_ELEMENTS, added()), (DELETE_ELEMENTS, gone()), (NEW_ELEMENTS, put())]
        }
    };
    steps
        .into_iter()
        .flat_map(|(kind, elements)| {
            let chunks: Vec<_> = elements.chunks(ELEMENTS_PER_MESSAGE).map(<[_]>::to_vec).collect();
            chunks.into_iter().map(move |elements| Command { kind, set, elements })
        })
        .collect()
}

fn write_element(writer: &mut Writer, key: Key, timeout: Option<Duration>) {
    writer.nested(ELEMENT_KEY, |data| match key {
        Key::Protocol(number) => data.attribute(DATA_VALUE, &[number]),
        Key::Ipv4(address) => data.attribute(DATA_VALUE, &address.octets()),
        Key::Ipv6(address) => data.attribute(DATA_VALUE, &address.octets()),
    });
    if let Some(timeout) = timeout {
        writer.attribute(ELEMENT_TIMEOUT, &milliseconds(timeout).to_be_bytes());
    }
}

/// The kernel takes 0 for "never", the opposite of what a time-out of no length means.
fn milliseconds(timeout: Duration) -> u64 {
    u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// `struct nfgenmsg`.
pub(super) fn generic_header(family: u8, resource: u16) -> [u8; 4] {
    let [high, low] = resource.to_be_bytes();
    [family, libc::NFNETLINK_V0 as u8, high, low]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{attributes, messages};
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    const TCP: Key = Key::Protocol(6);

    fn put(set: &str, key: impl Into<Key>, millis: u64) -> Change<'_> {
        Change::Put { set, key: key.into(), timeout: Duration::from_millis(millis) }
    }

    /// The commands of a batch as their type, set and elements: keys as they are on the wire, time-outs in
    /// ms.
    #[derive(Debug, Clone, PartialEq, Eq)]
    struct Seen {
        kind: u16,
        set: String,
        elements: Vec<(Vec<u8>, Option<u64>)>,
    }

    fn seen(batch: &[u8]) -> Vec<Seen> {
        let all: Vec<_> = messages(batch).collect();
        assert_eq!((all[0].kind, all[all.len() - 1].kind), (BATCH_BEGIN, BATCH_END));
        all[1..all.len() - 1]
            .iter()
            .map(|message| {
                let list: Vec<_> = attributes(&message.payload[4..]).collect();
                let [(LIST_TABLE, b"t\0"), (LIST_SET, set), (LIST_ELEMENTS, elements)] = list[..] else {
                    panic!("{list:?}")
                };
                Seen {
                    kind: message.kind,
                    set: String::from_utf8(set[..set.len() - 1].to_vec()).unwrap(),
                    elements: attributes(elements).map(|(_, element)| seen_element(element)).collect(),
                }
            })
            .collect()
    }

    fn seen_element(element: &[u8]) -> (Vec<u8>, Option<u64>) {
        let find = |wanted| attributes(element).find(|(kind, _)| *kind == wanted).map(|(_, payload)| payload);
        let key = attributes(find(ELEMENT_KEY).unwrap()).next().unwrap().1.to_vec();
        (key, find(ELEMENT_TIMEOUT).map(|t| u64::from_be_bytes(t.try_into().unwrap())))
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_renewal_is_these_bytes() {
        #[rustfmt::skip]
        let expected: &[u8] = &[
            // Begin: length, type 0x10, NLM_F_REQUEST, sequence, port; AF_UNSPEC, version 0, subsystem 10.
            20, 0, 0, 0, 0x10, 0, 1, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10,
            // Destroy elements: type 0x0a1e, NLM_F_REQUEST; NFPROTO_INET.
            60, 0, 0, 0, 0x1e, 0x0a, 1, 0, 6, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0,
            8, 0, 1, 0, b'p', b'e', b'p', 0,
            10, 0, 2, 0, b'a', b'l', b'i', b'v', b'e', 0, 0, 0,
            // Elements, element, key, value: nested but for the last, which is padded.
            20, 0, 3, 0x80, 16, 0, 1, 0x80, 12, 0, 1, 0x80, 5, 0, 1, 0, 6, 0, 0, 0,
            // New elements: type 0x0a0c, NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE.
            72, 0, 0, 0, 0x0c, 0x0a, 5, 4, 7, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0,
            8, 0, 1, 0, b'p', b'e', b'p', 0,
            10, 0, 2, 0, b'a', b'l', b'i', b'v', b'e', 0, 0, 0,
            32, 0, 3, 0x80, 28, 0, 1, 0x80, 12, 0, 1, 0x80, 5, 0, 1, 0, 6, 0, 0, 0,
            // 1,500 ms in network order.
            12, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5, 220,
            // End.
            20, 0, 0, 0, 0x11, 0, 1, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10,
        ];
        let batch = Transaction::deleting_by(Deletion::Destroy, "pep", &[put("alive", TCP, 1500)]).encode(5);
        assert_eq!(batch.as_bytes(), expected);
    }

    #[test]
    fn addresses_are_in_network_order() {
        let changes = [put("v4", Ipv4Addr::new(10, 0, 0, 1), 1), put("v6", Ipv6Addr::LOCALHOST, 1)];
        let seen = seen(Transaction::deleting_by(Deletion::Destroy, "t", &changes).encode(0).as_bytes());
        assert_eq!(seen[1].elements[0].0, [10, 0, 0, 1]);
        assert_eq!(seen[3].elements[0].0, Ipv6Addr::LOCALHOST.octets());
    }

    #[test]
    fn a_time_out_too_short_for_the_kernel_does_not_become_an_eternity() {
        let change = Change::Put { set: "s", key: TCP, timeout: Duration::from_micros(1) };
        let seen = seen(Transaction::deleting_by(Deletion::Destroy, "t", &[change]).encode(0).as_bytes());
        assert_eq!(seen[1].elements, [(vec![6], Some(1))]);
    }

    #[test]
    fn the_last_change_of_a_key_is_the_one_that_counts() {
        let changes =
            [put("s", TCP, 1), put("s", TCP, 2), Change::Remove { set: "s", key: Key::Protocol(17) }];
        let seen = seen(Transaction::deleting_by(Deletion::Destroy, "t", &changes).encode(0).as_bytes());
        let destroy = Seen {
            kind: DESTROY_ELEMENTS,
            set: "s".into(),
            elements: vec![(vec![6], None), (vec![17], None)],
        };
        let new = Seen { kind: NEW_ELEMENTS, set: "s".into(), elements: vec![(vec![6], Some(2))] };
        assert_eq!(seen, [destroy, new]);
    }

    #[test]
    fn only_the_last_command_asks_for_an_acknowledgement() {
        let changes = [put("a", TCP, 1), put("b", TCP, 1)];
        let transaction = Transaction::deleting_by(Deletion::Destroy, "t", &changes);
        let batch = transaction.encode(u32::MAX);
        let asking: Vec<u32> = messages(batch.as_bytes())
            .zip(flags(batch.as_bytes()))
            .filter(|(_, flags)| flags & libc::NLM_F_ACK as u16 != 0)
            .map(|(message, _)| message.sequence)
            .collect();
        assert_eq!(asking, [u32::MAX.wrapping_add(transaction.last_command())]);
        assert_eq!((transaction.set_of(1), transaction.set_of(4)), (Some("a"), Some("b")));
        assert_eq!((transaction.set_of(0), transaction.set_of(5)), (None, None));
    }

    /// The flags of each message in `batch`, which `Message` has no use for.
    fn flags(mut batch: &[u8]) -> Vec<u16> {
        let mut flags = Vec::new();
        while let [a, b, c, d, _, _, e, f, ..] = *batch {
            flags.push(u16::from_ne_bytes([e, f]));
            batch = &batch[u32::from_ne_bytes([a, b, c, d]) as usize..];
        }
        flags
    }

    fn any_key() -> impl Strategy<Value = Key> {
        prop_oneof![
            any::<u8>().prop_map(Key::Protocol),
            any::<u32>().prop_map(|a| Key::Ipv4(a.into())),
            any::<u128>().prop_map(|a| Key::Ipv6(a.into())),
        ]
    }

    proptest! {
        /// The kernel's own view: run the commands on a model of the set, and compare with the changes one by
        /// one.
        #[test]
        fn a_batch_applies_its_changes_to_the_set(
            keys in proptest::collection::vec((any_key(), proptest::option::of(1u64..9)), 1..2500), there in 0usize..2500, first: u32
        ) {
            let changes: Vec<Change<'_>> = keys
                .iter()
                .map(|(key, timeout)| match timeout {
                    Some(millis) => put("s", *key, *millis),
                    None => Change::Remove { set: "s", key: *key },
                })
                .collect();
            let wire = |key: &Key| match key {
                Key::Protocol(number) => vec![*number],
                Key::Ipv4(address) => address.octets().to_vec(),
                Key::Ipv6(address) => address.octets().to_vec(),
            };
            let mut expected = BTreeMap::new();
            for (key, timeout) in &keys {
                expected.remove(&wire(key));
                timeout.map(|millis| expected.insert(wire(key), millis));
            }
            let there: BTreeMap<_, _> =
                keys.iter().take(there).map(|(key, _)| (wire(key), 7)).collect();
            for deletion in [Deletion::Destroy, Deletion::AddFirst] {
                let transaction = Transaction::deleting_by(deletion, "t", &changes);
                let batch = transaction.encode(first);
                prop_assert_eq!(messages(batch.as_bytes()).count(), transaction.messages() as usize);
                let mut set = there.clone();
                for command in seen(batch.as_bytes()) {
                    for (key, timeout) in command.elements {
                        match command.kind {
                            NEW_ELEMENTS => drop(set.entry(key).or_insert(timeout.unwrap())),
                            DESTROY_ELEMENTS => drop(set.remove(&key)),
                            _ => prop_assert!(set.remove(&key).is_some(), "deleting what is missing fails"),
                        }
                    }
                }
                prop_assert_eq!(&set, &expected);
            }
        }
    }
}
