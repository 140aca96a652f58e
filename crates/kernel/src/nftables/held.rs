//! A table that lives as long as a socket does: with the process that holds it the kernel removes it
//! (`flags owner`, Linux 5.12).

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::netlink;

use super::message::{BATCH_BEGIN, BATCH_END, SUBSYSTEM, generic_header};
use crate::netlink::{Socket, Writer};

const NEW_TABLE: u16 = SUBSYSTEM | libc::NFT_MSG_NEWTABLE as u16;
const NEW_CHAIN: u16 = SUBSYSTEM | libc::NFT_MSG_NEWCHAIN as u16;
const NEW_RULE: u16 = SUBSYSTEM | libc::NFT_MSG_NEWRULE as u16;
/// `NFT_TABLE_F_OWNER`.
const OWNER: u32 = 2;
/// `enum nft_table_attributes`, `nft_chain_attributes`, `nft_hook_attributes`, `nft_rule_attributes`.
const TABLE_NAME: u16 = 1;
const TABLE_FLAGS: u16 = 2;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
/// `NFTA_LIST_ELEM`, `nft_expr_attributes`, `nft_data_attributes`.
const ELEMENT: u16 = 1;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
/// `NFT_META_MARK`, `NFT_REG32_00`, `NFT_REG_VERDICT`, `NFT_CMP_EQ`, `NF_DROP`, `NFT_PAYLOAD_NETWORK_HEADER`.
const META_MARK: u32 = 3;
const REGISTER: u32 = 8;
const VERDICT: u32 = 0;
const EQUAL: u32 = 0;
const DROP: u32 = 0;
const NETWORK_HEADER: u32 = 1;
/// Where an IPv4 header has the source address, and how long it is (RFC 791 §3.1).
const SOURCE_ADDRESS: (u32, u32) = (12, 4);
/// `NF_IP_PRI_NAT_SRC`.
const AFTER_ROUTING: i32 = 100;

/// The hooks of the family `inet`, with the names of the chains there.
const HOOKS: [(u32, &str); 2] =
    [(libc::NF_INET_PRE_ROUTING as u32, "prerouting"), (libc::NF_INET_FORWARD as u32, "forward")];

/// A table of rules that exists as long as a process holds this.
#[derive(Debug)]
pub struct HeldTable {
    fd: OwnedFd,
}

/// What a table consists of: chains with one rule each.
struct Table<'a> {
    name: &'a str,
    /// `NFPROTO_…`.
    family: u8,
    chains: Vec<Chain<'a>>,
}

struct Chain<'a> {
    name: &'a str,
    /// `filter` or `nat`.
    kind: &'a str,
    hook: u32,
    priority: i32,
    /// Writes the expressions of its rule.
    rule: &'a dyn Fn(&mut Writer),
}

impl HeldTable {
    /// Makes a table of the family `inet` whose chains, in the hooks `prerouting` and `forward`, have this
    /// priority. What has `mark` under `mask` is dropped. Needs `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// `EEXIST` or `EPERM` if another process holds a table of this name, `EOPNOTSUPP` before Linux 5.12,
    /// and what the kernel says besides.
    pub fn install(name: &str, priority: i32, mask: u32, mark: u32) -> io::Result<Self> {
        let rule = |list: &mut Writer| drop_marked(list, mask, mark);
        let chain = |(hook, name)| Chain { name, kind: "filter", hook, priority, rule: &rule };
        Self::load(&Table { name, family: libc::NFPROTO_INET as u8, chains: HOOKS.map(chain).into() })
    }

    /// Makes a table of the family `ip` that gives packets from `source`, which this network namespace
    /// forwards, the address of the interface by which they leave. Needs `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// As [`install`](Self::install); `ENOENT` if the kernel has no masquerading.
    pub fn masquerade(name: &str, source: Ipv4Addr) -> io::Result<Self> {
        let rule = |list: &mut Writer| masquerade_from(list, source);
        let hook = libc::NF_INET_POST_ROUTING as u32;
        let chain = Chain { name: "postrouting", kind: "nat", hook, priority: AFTER_ROUTING, rule: &rule };
        Self::load(&Table { name, family: libc::NFPROTO_IPV4 as u8, chains: vec![chain] })
    }

    fn load(table: &Table<'_>) -> io::Result<Self> {
        let mut socket = Socket::open(Some(netlink::NETFILTER))?;
        let count = 2 + 1 + 2 * table.chains.len() as u32;
        let first = socket.take_sequence(count);
        socket.send(batch(first, table).as_bytes())?;
        let last = first.wrapping_add(count - 2);
        let code = socket.receive_until(|message| {
            let code = message.error_number()?;
            (code != 0 || message.sequence == last).then_some(code)
        })?;
        if code == 0 { Ok(Self { fd: socket.into_fd() }) } else { Err(io::Error::from_raw_os_error(code)) }
    }

    /// The table that another process has made and hands over.
    pub fn inherited(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

impl AsFd for HeldTable {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn batch(first: u32, table: &Table<'_>) -> Writer {
    let mut writer = Writer::default();
    let mut sequence = first;
    let outer = generic_header(libc::AF_UNSPEC as u8, libc::NFNL_SUBSYS_NFTABLES as u16);
    let family = generic_header(table.family, 0);
    let create = libc::NLM_F_REQUEST | libc::NLM_F_CREATE | libc::NLM_F_ACK;
    let mut message = |writer: &mut Writer, kind, flags, header: &[u8], body: &dyn Fn(&mut Writer)| {
        writer.message(kind, flags, sequence, header, body);
        sequence = sequence.wrapping_add(1);
    };
    message(&mut writer, BATCH_BEGIN, libc::NLM_F_REQUEST, &outer, &|_| {});
    message(&mut writer, NEW_TABLE, create, &family, &|w| {
        w.text(TABLE_NAME, table.name);
        w.attribute(TABLE_FLAGS, &OWNER.to_be_bytes());
    });
    for chain in &table.chains {
        message(&mut writer, NEW_CHAIN, create, &family, &|w| write_chain(w, table.name, chain));
        message(&mut writer, NEW_RULE, create, &family, &|w| write_rule(w, table.name, chain));
    }
    message(&mut writer, BATCH_END, libc::NLM_F_REQUEST, &outer, &|_| {});
    writer
}

fn write_chain(writer: &mut Writer, table: &str, chain: &Chain<'_>) {
    writer.text(CHAIN_TABLE, table);
    writer.text(CHAIN_NAME, chain.name);
    writer.nested(CHAIN_HOOK, |w| {
        w.attribute(HOOK_NUMBER, &chain.hook.to_be_bytes());
        w.attribute(HOOK_PRIORITY, &chain.priority.to_be_bytes());
    });
    writer.text(CHAIN_TYPE, chain.kind);
}

fn write_rule(writer: &mut Writer, table: &str, chain: &Chain<'_>) {
    writer.text(RULE_TABLE, table);
    writer.text(RULE_CHAIN, chain.name);
    writer.nested(RULE_EXPRESSIONS, |list| (chain.rule)(list));
}

/// `meta mark & MASK == MARK drop`.
fn drop_marked(list: &mut Writer, mask: u32, mark: u32) {
    expression(list, "meta", |w| {
        numbers(w, &[(1, REGISTER), (2, META_MARK)]);
    });
    expression(list, "bitwise", |w| {
        numbers(w, &[(1, REGISTER), (2, REGISTER), (3, 4)]);
        w.nested(4, |w| w.attribute(DATA_VALUE, &mask.to_ne_bytes()));
        w.nested(5, |w| w.attribute(DATA_VALUE, &[0; 4]));
    });
    equals(list, &mark.to_ne_bytes());
    expression(list, "immediate", |w| {
        numbers(w, &[(1, VERDICT)]);
        w.nested(2, |w| {
            w.nested(DATA_VERDICT, |w| w.attribute(VERDICT_CODE, &DROP.to_be_bytes()));
        });
    });
}

/// `ip saddr SOURCE masquerade`.
fn masquerade_from(list: &mut Writer, source: Ipv4Addr) {
    let (offset, length) = SOURCE_ADDRESS;
    expression(list, "payload", |w| {
        numbers(w, &[(1, REGISTER), (2, NETWORK_HEADER), (3, offset), (4, length)]);
    });
    equals(list, &source.octets());
    expression(list, "masq", |_| {});
}

fn equals(list: &mut Writer, value: &[u8]) {
    expression(list, "cmp", |w| {
        numbers(w, &[(1, REGISTER), (2, EQUAL)]);
        w.nested(3, |w| w.attribute(DATA_VALUE, value));
    });
}

fn expression(list: &mut Writer, name: &str, data: impl FnOnce(&mut Writer)) {
    list.nested(ELEMENT, |w| {
        w.text(EXPRESSION_NAME, name);
        w.nested(EXPRESSION_DATA, data);
    });
}

fn numbers(writer: &mut Writer, attributes: &[(u16, u32)]) {
    for (kind, number) in attributes {
        writer.attribute(*kind, &number.to_be_bytes());
    }
}
