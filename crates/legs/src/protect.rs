//! `[legs.NAME.protect]`: what cannot be split crosses the leg in coded frames, to a box at its other end.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use bentpipe_kernel::Weight;
use bentpipe_units::ByteCount;
use serde::Deserialize;

/// The UDP port of both boxes unless another is configured.
const PORT: u16 = 25200;

/// `[legs.NAME.protect]`. Both boxes need the same key, cipher and port.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProtectSettings {
    /// The address of the box at the other end of the leg.
    pub peer: Peer,
    /// The UDP port at both ends, 1 to 65535; 25200 by default.
    #[serde(default)]
    pub port: ProtectPort,
    /// A file with the key that both boxes share: 64 hexadecimal digits.
    pub key_file: Option<PathBuf>,
    /// How frames are encrypted and authenticated.
    #[serde(default)]
    pub cipher: ProtectCipher,
    /// That frames are neither encrypted nor authenticated, instead of a key: whoever can send to this host
    /// can then inject packets.
    #[serde(default)]
    pub insecure: bool,
    /// How packets are repaired.
    #[serde(default)]
    pub class: ProtectClass,
    /// What becomes of packets while the peer is silent.
    #[serde(default)]
    pub when_silent: WhenSilent,
    /// Bytes that wait for their turn at the most; by default four bandwidth-delay products, or 4 MB where the
    /// rate is not configured.
    pub queue: Option<ByteCount>,
    /// What each flow that waits counts among the leg's connections, where their rates are explicit.
    #[serde(default)]
    pub weight: Weight,
}

/// The address of a host, which is neither this one nor a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Peer(IpAddr);

/// A UDP port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "i64")]
pub struct ProtectPort(u16);

/// The AEAD of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub enum ProtectCipher {
    /// Fastest where the processor has AES instructions.
    #[default]
    #[serde(rename = "aes-128-gcm")]
    Aes128Gcm,
    /// Fastest elsewhere.
    #[serde(rename = "chacha20-poly1305")]
    ChaCha20Poly1305,
}

/// The class of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProtectClass {
    /// Packets of 100 bytes or fewer are `latency`, longer ones `bulk`.
    #[default]
    Auto,
    /// Repaired by the code alone, and delivered at once.
    Latency,
    /// Repaired by the code and by retransmission, and delivered in order.
    Bulk,
}

/// What becomes of packets while the peer is silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WhenSilent {
    /// They cross the leg unprotected.
    #[default]
    Pass,
    /// They are dropped, as long as the daemon lives.
    Drop,
}

impl ProtectSettings {
    /// What is wrong with the settings as a whole, and what to do.
    ///
    /// # Errors
    /// The key at fault, and the text.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        match (&self.key_file, self.insecure) {
            (None, false) => Err((
                "key_file",
                "is missing: without a key anybody can inject packets; write key_file = \"/etc/bentpipe/protect.key\" \
                 with 64 hexadecimal digits in this file, the same at both ends (`openssl rand -hex 32`), or insecure = true"
                    .into(),
            )),
            (Some(_), true) => {
                Err(("insecure", "true, and there is a key_file: leave out one of them".into()))
            }
            _ => Ok(()),
        }
    }
}

impl Peer {
    /// The address.
    pub fn get(self) -> IpAddr {
        self.0
    }
}

impl TryFrom<String> for Peer {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let address = text
            .parse::<IpAddr>()
            .ok()
            .filter(|address| !(address.is_unspecified() || address.is_multicast() || address.is_loopback()));
        address.map(Self).ok_or_else(|| {
            format!("\"{text}\" is not the address of another host; write for example \"192.0.2.2\" or \"2001:db8::2\"")
        })
    }
}

impl ProtectPort {
    /// The number.
    pub fn get(self) -> u16 {
        self.0
    }
}

impl Default for ProtectPort {
    fn default() -> Self {
        Self(PORT)
    }
}

impl TryFrom<i64> for ProtectPort {
    type Error = String;

    fn try_from(number: i64) -> Result<Self, String> {
        let port = u16::try_from(number).ok().filter(|port| *port != 0);
        port.map(Self).ok_or_else(|| format!("{number} is not a port; write 1 to 65535"))
    }
}

impl fmt::Display for ProtectSettings {
    /// On one line, without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { peer, port, key_file, cipher, insecure, class, when_silent, queue, weight } = self;
        write!(f, "peer {} port {}", peer.0, port.0)?;
        if let Some(file) = key_file {
            write!(f, " key_file {}", file.display())?;
        }
        match (insecure, cipher) {
            (true, _) => f.write_str(" insecure"),
            (false, ProtectCipher::Aes128Gcm) => Ok(()),
            (false, ProtectCipher::ChaCha20Poly1305) => f.write_str(" cipher chacha20-poly1305"),
        }?;
        f.write_str(match class {
            ProtectClass::Auto => "",
            ProtectClass::Latency => " class latency",
            ProtectClass::Bulk => " class bulk",
        })?;
        if *when_silent == WhenSilent::Drop {
            f.write_str(" when_silent drop")?;
        }
        queue.map_or(Ok(()), |queue| write!(f, " queue {queue}"))?;
        match *weight == Weight::default() {
            true => Ok(()),
            false => write!(f, " weight {weight}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ProtectSettings, String> {
        toml::from_str(text).map_err(|error: toml::de::Error| error.to_string())
    }

    #[test]
    fn a_peer_and_a_key_are_all_that_it_needs() {
        let settings = read("peer = \"192.0.2.2\"\nkey_file = \"/k\"").unwrap();
        assert_eq!((settings.port.get(), settings.class), (25200, ProtectClass::Auto));
        assert_eq!(settings.check(), Ok(()));
        assert_eq!(settings.to_string(), "peer 192.0.2.2 port 25200 key_file /k");
        let heavy = read("peer = \"192.0.2.2\"\ninsecure = true\nweight = 4").unwrap();
        assert!(heavy.to_string().ends_with(" weight 4"), "{heavy}");
    }

    #[test]
    fn without_a_key_it_has_to_be_asked_for() {
        let error = read("peer = \"192.0.2.2\"").unwrap().check().unwrap_err();
        assert!(error.0 == "key_file" && error.1.contains("insecure = true"), "{error:?}");
        assert_eq!(read("peer = \"192.0.2.2\"\ninsecure = true").unwrap().check(), Ok(()));
        let both = read("peer = \"192.0.2.2\"\ninsecure = true\nkey_file = \"/k\"").unwrap();
        assert_eq!(both.check().unwrap_err().0, "insecure");
    }

    #[test]
    fn a_peer_is_another_host() {
        for peer in ["0.0.0.0", "::", "127.0.0.1", "224.0.0.1", "host", ""] {
            let error = read(&format!("peer = \"{peer}\"\ninsecure = true")).unwrap_err();
            assert!(error.contains("is not the address of another host"), "{error}");
        }
        let error = read("peer = \"::2\"\nport = 0").unwrap_err();
        assert!(error.contains("0 is not a port"), "{error}");
    }
}
