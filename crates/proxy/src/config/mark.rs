//! The part of a packet's mark that is ours, and what its values mean.

use std::fmt;

use bentpipe_config::Scalar;
use serde::Deserialize;

/// Three adjacent bits of packets' marks (`SO_MARK`, `meta mark`). The other bits are those of other
/// programs, and stay as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Scalar")]
pub struct MarkField {
    shift: u8,
}

/// What our part of a mark says of a packet, or of the packets of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Mark {
    /// It belongs to a socket of ours although its destination is another host.
    Ours = 1,
    /// A SYN that the daemon sends to one of its listeners.
    Injected = 2,
    /// It leaves from a socket that faces a client.
    Client = 3,
    /// A SYN whose copy the daemon has, so that it ends here.
    Taken = 4,
    /// It is to take its way through the daemon, towards a satellite: by a route if its flow is snooped, at the
    /// leg's interface if it is protected.
    ToLink = 5,
    /// The same, from a satellite.
    FromLink = 6,
    /// An ICMP error of this host about a packet of its own, sent in a client's name.
    OwnError = 7,
}

const BITS: u32 = 0b111;

impl MarkField {
    /// The bits of the field.
    pub(crate) const fn mask(self) -> u32 {
        BITS << self.shift
    }

    /// A mark with this value, all other bits zero.
    pub(crate) const fn value(self, mark: Mark) -> u32 {
        (mark as u32) << self.shift
    }

    /// The bits of other programs.
    pub(crate) const fn of_others(self, mark: u32) -> u32 {
        mark & !self.mask()
    }

    /// A condition of nftables.
    pub(crate) fn is(self, mark: Mark) -> String {
        format!("meta mark & {:#x} == {:#x}", self.mask(), self.value(mark))
    }

    /// The condition that none of our values is there.
    pub(crate) fn is_none(self) -> String {
        format!("meta mark & {:#x} == 0", self.mask())
    }

    /// A statement of nftables that leaves the bits of others.
    pub(crate) fn set(self, mark: Mark) -> String {
        format!("meta mark set meta mark & {:#x} | {:#x}", !self.mask(), self.value(mark))
    }

    /// The value with its mask, as `ip rule` has it.
    pub(crate) fn selector(self, mark: Mark) -> String {
        format!("fwmark {:#x}/{:#x}", self.value(mark), self.mask())
    }
}

impl Default for MarkField {
    /// Bits 28 to 30, which none of the programs uses that mark packets on many gateways: kube-proxy (bits 14
    /// and 15), Tailscale (16 to 23), mwan3 (8 to 13), Cilium (8 to 11), wg-quick and firewalld (small
    /// numbers). Calico may; then choose others.
    fn default() -> Self {
        Self { shift: 28 }
    }
}

impl fmt::Display for MarkField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.mask())
    }
}

impl TryFrom<Scalar> for MarkField {
    type Error = String;

    fn try_from(value: Scalar) -> Result<Self, String> {
        let mask = match &value {
            Scalar::Number(number) => u32::try_from(*number).ok(),
            Scalar::Text(text) => match text.strip_prefix("0x") {
                Some(digits) => u32::from_str_radix(digits, 16).ok(),
                None => text.parse().ok(),
            },
        };
        let fields = (0..=29).map(|shift| Self { shift });
        fields.into_iter().find(|field| Some(field.mask()) == mask).ok_or_else(|| {
            "not a field of marks; write a mask of three adjacent bits, for example \"0x70000000\" or \
             \"0x700\""
                .to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<MarkField, String> {
        MarkField::try_from(Scalar::Text(text.to_owned()))
    }

    #[test]
    fn a_field_is_three_adjacent_bits() {
        assert_eq!(parse("0x70000000").unwrap(), MarkField::default());
        assert_eq!(parse("0x7").unwrap().mask(), 7);
        assert_eq!(parse("0xe0000000").unwrap().mask(), 0xe000_0000);
        for wrong in ["0x1", "0x5", "0xf", "", "mark", "0x80000003", "-7", "0x700000000"] {
            assert!(parse(wrong).unwrap_err().contains("three adjacent bits"), "{wrong}");
        }
    }

    #[test]
    fn the_bits_of_others_stay() {
        let field = MarkField::default();
        assert_eq!(field.of_others(0x3000_0100), 0x100);
        assert_eq!(field.set(Mark::Ours), "meta mark set meta mark & 0x8fffffff | 0x10000000");
        assert_eq!(field.is(Mark::Taken), "meta mark & 0x70000000 == 0x40000000");
        assert_eq!(field.selector(Mark::ToLink), "fwmark 0x50000000/0x70000000");
    }
}
