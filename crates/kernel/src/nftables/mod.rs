//! Elements of nftables sets, changed through netlink, and named counters, read through it: without starting
//! `nft`, and in microseconds.
//!
//! Tables, sets and rules are the business of `nft`; this module puts elements into sets that are there and
//! takes them out. That is enough for a rule set whose rules match only while a process keeps renewing the
//! elements of a set.

mod held;
mod message;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use rustix::net::netlink;

pub use self::held::HeldTable;
use self::message::{SUBSYSTEM, Transaction, generic_header};
use crate::netlink::{Message, Socket, Writer, attributes};

/// How often a transaction is tried that failed for a reason which passes.
const ATTEMPTS: u32 = 5;
/// `ERESTART` of linux/errno.h: the rule set has changed meanwhile. libc has no name for it.
const ERESTART: i32 = 85;
/// `NFT_NAME_MAXLEN` of linux/netfilter/nf_tables.h, the zero at the end included.
const NAME_MAX: usize = 256;
const GET_RULES: u16 = SUBSYSTEM | libc::NFT_MSG_GETRULE as u16;
const GET_OBJECTS: u16 = SUBSYSTEM | libc::NFT_MSG_GETOBJ as u16;
const GET_GENERATION: u16 = SUBSYSTEM | libc::NFT_MSG_GETGEN as u16;
/// `enum nft_rule_attributes`, `NFTA_GEN_ID`.
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
const GENERATION: u16 = 1;
/// `enum nft_object_attributes`, `NFT_OBJECT_COUNTER`, `enum nft_counter_attributes`.
const OBJECT_TABLE: u16 = 1;
const OBJECT_NAME: u16 = 2;
const OBJECT_TYPE: u16 = 3;
const OBJECT_DATA: u16 = 4;
const COUNTER: u32 = 1;
const COUNTER_BYTES: u16 = 1;
const COUNTER_PACKETS: u16 = 2;
/// `enum nft_list_attributes`, `nft_expr_attributes`, and `nft_match_attributes`, which are those of targets.
const LIST_ELEMENT: u16 = 1;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
const EXTENSION_NAME: u16 = 1;
/// Expressions of nftables that begin the tracking of connections, and the matches and targets of iptables
/// that do.
const TRACKING: [&str; 7] = ["ct", "nat", "masq", "redir", "synproxy", "flow_offload", "connlimit"];
const TRACKING_EXTENSIONS: [&str; 17] = [
    "conntrack",
    "state",
    "connmark",
    "connbytes",
    "connlimit",
    "connlabel",
    "helper",
    "cluster",
    "CONNMARK",
    "CONNSECMARK",
    "CT",
    "MASQUERADE",
    "SNAT",
    "DNAT",
    "REDIRECT",
    "NETMAP",
    "SYNPROXY",
];
/// Size of `struct nfgenmsg`.
const GENERIC_HEADER: usize = 4;

/// A connection to nftables in the network namespace of the thread that opened it.
///
/// Every transaction needs `CAP_NET_ADMIN` of the thread that applies it and of the one that opened this.
#[derive(Debug)]
pub struct NfTables {
    socket: Socket,
}

/// What a named counter has counted since it was declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Their length, IP headers included, bytes.
    pub bytes: u64,
}

/// A change to a set of a table of the family `inet`. It states the new state of an element, independent of
/// the former one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<'a> {
    /// Adds the element, or restarts its time-out if it exists.
    Put {
        /// The set's name; it has the flag `timeout`, and not `interval`.
        set: &'a str,
        /// The element.
        key: Key,
        /// The element goes by itself after this time, which is rounded down to milliseconds, but is one at
        /// the least.
        timeout: Duration,
    },
    /// Removes the element; where it is not there, nothing happens.
    Remove {
        /// The set's name.
        set: &'a str,
        /// The element.
        key: Key,
    },
}

/// An element of a set, by the set's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// `inet_proto`: a transport protocol's number, such as 6 for TCP.
    Protocol(u8),
    /// `ipv4_addr`.
    Ipv4(Ipv4Addr),
    /// `ipv6_addr`.
    Ipv6(Ipv6Addr),
}

impl From<Ipv4Addr> for Key {
    fn from(address: Ipv4Addr) -> Self {
        Self::Ipv4(address)
    }
}

impl From<Ipv6Addr> for Key {
    fn from(address: Ipv6Addr) -> Self {
        Self::Ipv6(address)
    }
}

impl From<IpAddr> for Key {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => address.into(),
        }
    }
}

/// Why a transaction has changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum NfTablesError {
    /// The table or the set is not there (any more).
    #[error(
        "cannot change set {set} of table inet {table}: the table or the set is gone; somebody has removed it, \
         e.g. nft flush ruleset: install the rules again"
    )]
    Missing {
        /// The table that was to be changed.
        table: String,
        /// The first set that was not found.
        set: String,
    },
    /// The kernel does not let this thread change the table.
    #[error(
        "cannot change table inet {table}: not permitted; it needs CAP_NET_ADMIN, and a table that no other \
         process owns"
    )]
    NotPermitted {
        /// The table that was to be changed.
        table: String,
    },
    /// The kernel has refused an element.
    #[error("cannot change set {set} of table inet {table}: {source}; {}", remedy(source))]
    Refused {
        /// The table that was to be changed.
        table: String,
        /// The set of the element that was refused.
        set: String,
        /// What the kernel said: `EINVAL`, for example, for a key of another type than the set's.
        source: io::Error,
    },
    /// The transaction does not fit one message to the kernel, which holds some 30,000 changes; a fifth of
    /// that where [`NfTables`] was opened without `CAP_NET_ADMIN`.
    #[error(
        "cannot change table inet {table}: {changes} changes are too many at once; make several transactions"
    )]
    TooLarge {
        /// The table that was to be changed.
        table: String,
        /// The number of changes asked for.
        changes: usize,
    },
    /// No table and no set can have this name.
    #[error("cannot change an nftables set: {name:?} is no name; use 1 to 255 bytes without a zero")]
    Name {
        /// The name.
        name: String,
    },
    /// The kernel could not be asked, or has not answered.
    #[error("cannot change table inet {table}: {source}; try again")]
    Io {
        /// The table that was to be changed.
        table: String,
        /// What went wrong; of the kind `TimedOut` where the kernel has said nothing for a second.
        source: io::Error,
    },
}

fn remedy(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EINVAL) => "its type must be that of the key, and it needs flags timeout",
        Some(libc::ENFILE) => "it is full: give it a larger size",
        Some(libc::EBUSY) => "it must not be constant",
        _ => "look at it with nft list ruleset",
    }
}

impl NfTables {
    /// Opens the connection, which survives a later change of the thread's namespace.
    ///
    /// # Errors
    /// What socket(2) says: `EPROTONOSUPPORT` where this kernel lacks nfnetlink, `EMFILE` without a
    /// descriptor left.
    pub fn open() -> io::Result<Self> {
        Ok(Self { socket: Socket::open(Some(netlink::NETFILTER))? })
    }

    /// Makes all changes to sets of the table `inet TABLE` at once, or none. No packet sees a state between:
    /// one that looks up an element which is being renewed finds it.
    ///
    /// Of several changes to one element the last counts. No changes are none, whatever the table.
    ///
    /// It returns when the kernel has done it: at once, or after others that are changing the rule set.
    /// A kernel that takes the changes and then says nothing is given a second.
    ///
    /// # Errors
    /// See [`NfTablesError`]. Nothing has changed then; only after [`NfTablesError::Io`] is that not certain.
    pub fn apply(&mut self, table: &str, changes: &[Change<'_>]) -> Result<(), NfTablesError> {
        if changes.is_empty() {
            return Ok(());
        }
        check_names(table, changes)?;
        let transaction = Transaction::new(table, changes);
        let mut attempt = 1;
        loop {
            // It states the new state of elements, so it may be repeated whether or not it was applied.
            match self.commit(&transaction) {
                Err(failure) if failure.passes() && attempt < ATTEMPTS => attempt += 1,
                outcome => {
                    return outcome.map_err(|failure| failure.explain(&transaction, table, changes.len()));
                }
            }
        }
    }

    /// The number of the rule set's state: each transaction of anybody in this network namespace adds one.
    ///
    /// # Errors
    /// `TimedOut` if the kernel does not answer for a second, and its other errors.
    pub fn generation(&mut self) -> io::Result<u32> {
        let sequence = self.socket.take_sequence(1);
        let mut writer = Writer::default();
        let header = generic_header(libc::AF_UNSPEC as u8, 0);
        writer.message(GET_GENERATION, libc::NLM_F_REQUEST, sequence, &header, |_| {});
        self.socket.send(writer.as_bytes())?;
        self.socket.receive_until(|message| (message.sequence == sequence).then(|| generation(message)))?
    }

    /// The rules of the table `inet TABLE` as the kernel has them, one after another, to be compared with an
    /// earlier answer; elements of sets do not count. Empty without the table.
    ///
    /// # Errors
    /// `TimedOut` if the kernel does not answer for a second, `ResourceBusy` if the rule set changes all the
    /// time, and its other errors.
    pub fn rules_of(&mut self, table: &str) -> io::Result<Vec<Vec<u8>>> {
        self.each_rule(libc::NFPROTO_INET, Some(table), |rules: &mut Vec<_>, rule| {
            // Not its handle nor that of the rule before it, which another transaction changes.
            let parts = attributes(rule).filter(|(kind, _)| matches!(*kind, RULE_CHAIN | RULE_EXPRESSIONS));
            rules.push(parts.flat_map(|(_, payload)| payload.iter().copied()).collect());
        })
    }

    /// Whether a rule of any family asks for the state of a connection or translates addresses, in nftables
    /// or by the iptables that writes nftables' rules: from the first such rule on the kernel tracks
    /// connections. Those in the table `except`, and those of the older iptables, do not count.
    ///
    /// # Errors
    /// Those of [`rules_of`](Self::rules_of).
    pub fn has_tracking_rules(&mut self, except: &str) -> io::Result<bool> {
        self.each_rule(libc::NFPROTO_UNSPEC, None, |found: &mut bool, rule| {
            let of_table = attributes(rule).any(|(kind, name)| kind == RULE_TABLE && text(name) == except);
            *found = *found || (!of_table && begins_tracking(rule));
        })
    }

    /// The named counters of the table `inet TABLE`, by name. Empty without the table.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_ADMIN`, and those of [`rules_of`](Self::rules_of).
    pub fn counters_of(&mut self, table: &str) -> io::Result<BTreeMap<String, Count>> {
        let request = |writer: &mut Writer| {
            writer.text(OBJECT_TABLE, table);
            writer.attribute(OBJECT_TYPE, &COUNTER.to_be_bytes());
        };
        self.dump(GET_OBJECTS, libc::NFPROTO_INET, request, |counters: &mut BTreeMap<_, _>, object| {
            counters.extend(counter(object, table));
        })
    }

    /// Collects from the attributes of every rule of a family, or of one table.
    fn each_rule<T: Default>(
        &mut self,
        family: libc::c_int,
        table: Option<&str>,
        each: impl FnMut(&mut T, &[u8]),
    ) -> io::Result<T> {
        let request = |writer: &mut Writer| {
            if let Some(table) = table {
                writer.text(RULE_TABLE, table);
            }
        };
        self.dump(GET_RULES, family, request, each)
    }

    /// Requests a list, and collects from the attributes of every item. Nothing is listed where what was
    /// asked about is not there.
    fn dump<T: Default>(
        &mut self,
        kind: u16,
        family: libc::c_int,
        body: impl Fn(&mut Writer),
        mut each: impl FnMut(&mut T, &[u8]),
    ) -> io::Result<T> {
        let header = generic_header(family as u8, 0);
        let request = |sequence| {
            let mut writer = Writer::default();
            writer.message(kind, libc::NLM_F_REQUEST | libc::NLM_F_DUMP, sequence, &header, &body);
            writer
        };
        let listed = self.socket.list(request, |items, message: Message<'_>| {
            each(items, message.payload.get(GENERIC_HEADER..).unwrap_or_default());
        });
        match listed {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(T::default()),
            listed => listed,
        }
    }

    fn commit(&mut self, transaction: &Transaction<'_>) -> Result<(), Failure> {
        let first = self.socket.take_sequence(transaction.messages());
        self.socket.send(transaction.encode(first).as_bytes())?;
        let last = transaction.last_command();
        self.socket.receive_until(|message| verdict(message, first, last))?
    }
}

/// Whether an expression of a rule, given by its attributes, is one that tracks connections.
fn begins_tracking(rule: &[u8]) -> bool {
    let lists = attributes(rule).filter(|(kind, _)| *kind == RULE_EXPRESSIONS);
    let elements = lists.flat_map(|(_, list)| attributes(list)).filter(|(kind, _)| *kind == LIST_ELEMENT);
    let mut expressions = elements.map(|(_, expression)| expression);
    expressions.any(|expression| {
        let find = |wanted: u16| attributes(expression).find(|(kind, _)| *kind == wanted);
        let name = find(EXPRESSION_NAME).map_or("", |(_, name)| text(name));
        let mut data = find(EXPRESSION_DATA).into_iter().flat_map(|(_, data)| attributes(data));
        TRACKING.contains(&name)
            || matches!(name, "match" | "target")
                && data
                    .any(|(kind, name)| kind == EXTENSION_NAME && TRACKING_EXTENSIONS.contains(&text(name)))
    })
}

/// The name and the value of a counter of this table, given by its attributes.
fn counter(object: &[u8], table: &str) -> Option<(String, Count)> {
    let find = |wanted: u16| attributes(object).find(|(kind, _)| *kind == wanted).map(|(_, payload)| payload);
    let number = |wanted: u16| {
        let (_, bytes) = attributes(find(OBJECT_DATA)?).find(|(kind, _)| *kind == wanted)?;
        Some(u64::from_be_bytes(*bytes.first_chunk()?))
    };
    let count = Count { packets: number(COUNTER_PACKETS)?, bytes: number(COUNTER_BYTES)? };
    let is_counter = find(OBJECT_TYPE)? == COUNTER.to_be_bytes() && text(find(OBJECT_TABLE)?) == table;
    is_counter.then(|| (text(find(OBJECT_NAME).unwrap_or_default()).to_owned(), count))
}

/// A text with its zero at the end; empty if it is none.
fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default().trim_end_matches('\0')
}

fn generation(message: Message<'_>) -> io::Result<u32> {
    if let Some(code) = message.error_number() {
        return Err(io::Error::from_raw_os_error(code));
    }
    attributes(message.payload.get(GENERIC_HEADER..).unwrap_or_default())
        .find(|(kind, _)| *kind == GENERATION)
        .and_then(|(_, number)| Some(u32::from_be_bytes(*number.first_chunk()?)))
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a generation without its number"))
}

fn check_names(table: &str, changes: &[Change<'_>]) -> Result<(), NfTablesError> {
    let sets = changes.iter().map(|change| match *change {
        Change::Put { set, .. } | Change::Remove { set, .. } => set,
    });
    let bad = |name: &&str| name.is_empty() || name.len() >= NAME_MAX || name.contains('\0');
    match std::iter::once(table).chain(sets).find(bad) {
        Some(name) => Err(NfTablesError::Name { name: name.to_owned() }),
        None => Ok(()),
    }
}

/// What a message says of the batch whose sequence numbers begin at `first` and whose last command is at
/// place `last`.
///
/// The kernel tries all commands and reports in their order, the beginning of the batch standing for the
/// whole. So the first error fails it, and the last command's acknowledgement means success only where no
/// error came before it.
fn verdict(message: Message<'_>, first: u32, last: u32) -> Option<Result<(), Failure>> {
    let place = message.sequence.wrapping_sub(first);
    let code = message.error_number().filter(|_| place <= last)?;
    match code {
        0 if place == last => Some(Ok(())),
        0 => None,
        code => Some(Err(Failure { place, source: io::Error::from_raw_os_error(code) })),
    }
}

/// For the fuzz target `netlink`.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn judge(message: Message<'_>) {
    let _ = verdict(message, 3, 9);
}

/// Why a batch has failed, and at which message, counted from its beginning.
#[derive(Debug)]
struct Failure {
    place: u32,
    source: io::Error,
}

impl From<io::Error> for Failure {
    fn from(source: io::Error) -> Self {
        Self { place: 0, source }
    }
}

impl Failure {
    /// True for a signal, a race with another change, and answers that were lost.
    fn passes(&self) -> bool {
        matches!(self.source.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::ENOBUFS | ERESTART))
    }

    fn explain(self, transaction: &Transaction<'_>, table: &str, changes: usize) -> NfTablesError {
        let table = table.to_owned();
        match (self.source.raw_os_error(), transaction.set_of(self.place)) {
            (Some(libc::EPERM | libc::EACCES), _) => NfTablesError::NotPermitted { table },
            (Some(libc::EMSGSIZE), None) => NfTablesError::TooLarge { table, changes },
            (Some(libc::ENOENT), Some(set)) => NfTablesError::Missing { table, set: set.to_owned() },
            (_, Some(set)) => NfTablesError::Refused { table, set: set.to_owned(), source: self.source },
            (_, None) => NfTablesError::Io { table, source: self.source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{Writer, messages};

    const TCP: Key = Key::Protocol(6);

    /// What is concluded from answers with these sequence numbers and codes to a batch of two commands from
    /// 10 on.
    fn judge(answers: &[(u32, i32)]) -> Option<Result<(), (u32, Option<i32>)>> {
        let mut writer = Writer::default();
        for (sequence, code) in answers {
            writer.message(libc::NLMSG_ERROR as u16, 0, *sequence, &(-code).to_ne_bytes(), |_| {});
        }
        let verdict = messages(writer.as_bytes()).find_map(|message| verdict(message, 10, 2));
        verdict.map(|result| result.map_err(|failure| (failure.place, failure.source.raw_os_error())))
    }

    #[test]
    fn the_last_commands_acknowledgement_means_success() {
        assert_eq!(judge(&[(12, 0)]), Some(Ok(())));
        assert_eq!(judge(&[(10, 0), (11, 0)]), None);
    }

    #[test]
    fn an_error_before_it_means_failure() {
        let missing = Some(Err((1, Some(libc::ENOENT))));
        assert_eq!(judge(&[(11, libc::ENOENT), (12, 0)]), missing);
        let interrupted = Some(Err((0, Some(libc::EINTR))));
        assert_eq!(judge(&[(10, libc::EINTR), (12, 0)]), interrupted);
    }

    #[test]
    fn answers_to_other_transactions_mean_nothing() {
        assert_eq!(judge(&[(9, libc::ENOENT), (9, 0), (13, libc::EPERM), (14, 0)]), None);
        assert_eq!(judge(&[(9, libc::ENOENT), (12, 0)]), Some(Ok(())));
    }

    #[test]
    fn sequence_numbers_may_wrap_within_a_batch() {
        let mut writer = Writer::default();
        writer.message(libc::NLMSG_ERROR as u16, 0, 1, &[0; 4], |_| {});
        let message = messages(writer.as_bytes()).next().unwrap();
        assert!(matches!(verdict(message, u32::MAX, 2), Some(Ok(()))));
    }

    fn explain(place: u32, code: i32) -> NfTablesError {
        let change = Change::Remove { set: "alive", key: TCP };
        let failure = Failure { place, source: io::Error::from_raw_os_error(code) };
        failure.explain(&Transaction::new("pep", &[change]), "pep", 1)
    }

    #[test]
    fn an_error_suggests_a_remedy() {
        let missing = explain(1, libc::ENOENT);
        assert!(
            matches!(&missing, NfTablesError::Missing { table, set } if table == "pep" && set == "alive")
        );
        assert!(missing.to_string().contains("install the rules again"), "{missing}");
        assert!(matches!(explain(0, libc::EPERM), NfTablesError::NotPermitted { .. }));
        assert!(matches!(explain(1, libc::EPERM), NfTablesError::NotPermitted { .. }));
        assert!(matches!(explain(0, libc::EMSGSIZE), NfTablesError::TooLarge { changes: 1, .. }));
        assert!(explain(1, libc::EINVAL).to_string().contains("flags timeout"));
        assert!(matches!(explain(0, libc::EOPNOTSUPP), NfTablesError::Io { .. }));
    }

    #[test]
    fn temporary_failures_are_retried_and_permanent_ones_are_not() {
        let passes = |code| Failure { place: 0, source: io::Error::from_raw_os_error(code) }.passes();
        assert!([libc::EINTR, libc::EAGAIN, libc::ENOBUFS, ERESTART].into_iter().all(passes));
        assert!(![libc::ENOENT, libc::EPERM, libc::EINVAL, libc::ENFILE].into_iter().any(passes));
    }

    #[test]
    fn a_name_that_is_none_never_reaches_the_kernel() {
        let mut nftables = NfTables::open().unwrap();
        let long = "x".repeat(NAME_MAX);
        for name in ["", "a\0b", &long] {
            let change = Change::Remove { set: name, key: TCP };
            assert!(matches!(nftables.apply("pep", &[change]), Err(NfTablesError::Name { .. })), "{name:?}");
            let change = Change::Remove { set: "alive", key: TCP };
            assert!(matches!(nftables.apply(name, &[change]), Err(NfTablesError::Name { .. })), "{name:?}");
        }
    }
}
