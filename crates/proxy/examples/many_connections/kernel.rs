//! The memory that the kernel takes for connections: objects of its caches, over the whole machine.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;

use crate::common::footprint::kibibytes;

/// The caches that connections take objects of. The kernel merges caches of one size, so that `eventpoll_epi`
/// may stand for others of 128 bytes, and a busy machine takes objects of some of them for other work.
const CACHES: [&str; 12] = [
    "TCP",
    "TCPv6",
    "sock_inode_cache",
    "dentry",
    "filp",
    "lsm_file_cache",
    "lsm_inode_cache",
    "eventpoll_epi",
    "eventpoll_pwq",
    "ep_head",
    "tcp_bind_bucket",
    "tcp_bind2_bucket",
];

/// The caches and the memory of them all at one moment.
pub(crate) struct Kernel {
    caches: BTreeMap<String, Cache>,
    /// `Slab` of /proc/meminfo, bytes.
    slab: u64,
}

/// A line of /proc/slabinfo (slabinfo(5)).
#[derive(Clone, Copy)]
struct Cache {
    objects: f64,
    /// Bytes that an object takes.
    size: f64,
}

/// How the caches have grown, for each connection.
pub(crate) struct Growth {
    caches: BTreeMap<String, Cache>,
    slab: f64,
    plain: Option<Box<Growth>>,
}

impl Kernel {
    pub(crate) fn now() -> Self {
        let caches = fs::read_to_string("/proc/slabinfo").unwrap_or_default();
        let slab = kibibytes(&fs::read_to_string("/proc/meminfo").unwrap(), "Slab:");
        Self { caches: caches.lines().filter_map(cache_in).collect(), slab }
    }
}

/// `name active_objects objects size …`; the two lines of heading have no numbers there.
fn cache_in(line: &str) -> Option<(String, Cache)> {
    let mut words = line.split_whitespace();
    let (name, objects, size) = (words.next()?, words.next()?, words.nth(1)?);
    Some((name.to_owned(), Cache { objects: objects.parse().ok()?, size: size.parse().ok()? }))
}

impl Growth {
    pub(crate) fn between(before: &Kernel, after: &Kernel, connections: usize) -> Self {
        let each = |before: f64, after: f64| (after - before) / connections as f64;
        let caches = after.caches.iter().map(|(name, now)| {
            let was = before.caches.get(name).map_or(0.0, |cache| cache.objects);
            (name.clone(), Cache { objects: each(was, now.objects), ..*now })
        });
        Self { caches: caches.collect(), slab: each(before.slab as f64, after.slab as f64), plain: None }
    }

    /// With the growth that would have been without the daemon to compare with.
    pub(crate) fn beyond(self, plain: &Growth) -> Self {
        let plain = Self { caches: plain.caches.clone(), slab: plain.slab, plain: None };
        Self { plain: Some(Box::new(plain)), ..self }
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "the kernel, for each connection: objects      size   without daemon    with   more bytes"
        )?;
        let mut sum = 0.0;
        for (name, cache) in CACHES.iter().filter_map(|name| self.caches.get_key_value(*name)) {
            let plain = self.plain.as_ref().and_then(|plain| plain.caches.get(name));
            let plain = plain.map_or(0.0, |cache| cache.objects);
            let more = cache.objects - plain;
            let bytes = more * cache.size;
            sum += bytes;
            writeln!(f, "  {name:36}{:10.0} B{plain:15.2}{:9.2}{bytes:11.0} B", cache.size, cache.objects)?;
        }
        let plain = self.plain.as_ref().map_or(0.0, |plain| plain.slab);
        writeln!(f, "  sum of these {sum:69.0} B")?;
        write!(f, "  Slab of /proc/meminfo {plain:37.0} B {:7.0} B {:8.0} B", self.slab, self.slab - plain)
    }
}

/// TCP sockets in use in the network namespace of the calling thread (/proc/net/sockstat).
pub(crate) fn sockets_in_use() -> u64 {
    let in_use = |name: &str| {
        let table = fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default();
        let line = table.lines().find(|line| line.starts_with("TCP"));
        line.and_then(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok()).unwrap_or(0)
    };
    in_use("sockstat") + in_use("sockstat6")
}
