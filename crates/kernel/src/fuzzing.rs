//! The body of the fuzz target `netlink`; see `fuzz/README.md`.

use crate::netlink::{attributes, messages};
use crate::{nftables, route};

/// A datagram from the kernel: read as messages, attributes in attributes, routes, and verdicts about
/// nftables.
///
/// # Panics
/// A message or an attribute is longer than the datagram, or an answer is none.
pub fn netlink(data: &[u8]) {
    let mut total = 0;
    for message in messages(data) {
        total += message.payload.len();
        let error = message.error_number();
        assert!(error.is_none_or(|number| number != i32::MIN));
        let _ = route::answer(message);
        let _ = route::is_local(message);
        nftables::judge(message);
        walk(message.payload, 4);
        walk(message.payload.get(12..).unwrap_or_default(), 4);
    }
    assert!(total <= data.len());
}

fn walk(bytes: &[u8], depth: usize) {
    let mut total = 0;
    for (_, payload) in attributes(bytes) {
        total += payload.len();
        if depth > 0 {
            walk(payload, depth - 1);
        }
    }
    assert!(total <= bytes.len());
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_corpus_breaks_nothing() {
        replay::replay("netlink", netlink);
    }
}
