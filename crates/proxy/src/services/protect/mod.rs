//! Protected legs: what cannot be split crosses the leg in coded frames, to a box at its other end.
//!
//! The rules mark packets that leave by the leg's interface; an eBPF program there takes them into a TUN
//! device ([`Divert`]). A thread for each leg reads them, queues them ([`Queue`]), and sends them as frames of
//! a [`Leg`](bentpipe_protect::Leg) over UDP, at a rate that the leg's rate controller gives it beside the
//! connections. What the peer has sent is written to the device, and arrives as if by the leg's interface.
//!
//! ```text
//! rules ══► interface ══► device ──► queue ──► leg ──► pacer ══► UDP ══► the peer
//!           interface ◄══ device ◄──────────── leg ◄──────────── UDP ◄══
//! ```
//!
//! Packets are diverted only as long as the thread says that the peer is alive; otherwise they cross the leg
//! as they are, or are dropped, as configured. So nothing is lost to a peer that is silent, has another key
//! or another version, nor to a daemon that hangs or was killed.
//!
//! [`Queue`]: bentpipe_protect::queue::Queue

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use bentpipe_kernel::divert::{Divert, MarkMatch, WhenSilent};
use bentpipe_kernel::tun::Tun;
use bentpipe_legs::{ProtectCipher, ProtectSettings, SatelliteLeg};
use bentpipe_protect::{Cipher, Secret};
use serde::{Deserialize, Serialize};

use super::thread::ServiceThread;
use super::{Context, Preparation, Service};
use crate::config::{self, Config, Mark};
use crate::error::{Error, Refusal};
use crate::intercept::tun;
use crate::snapshot::{Fd, Section, SnapshotError};
use crate::stats::Counters;

mod carrier;
mod pacer;
mod packet;
mod peer;
mod progress;
mod transport;
mod waiting;

use carrier::{Carrier, Rated, Wanted};
pub use peer::checks;
use transport::Transport;

const NAME: &str = "protect";
/// The devices are `bentpipe10` and up, one for each leg.
const FIRST_DEVICE: usize = 10;

/// All protected legs.
#[derive(Debug, Default)]
pub(super) struct Protect {
    legs: Vec<ProtectedLeg>,
}

/// One of them.
#[derive(Debug)]
struct ProtectedLeg {
    name: String,
    settings: ProtectSettings,
    secret: Secret,
    device: String,
    /// Until there is a carrier.
    tun: Option<Tun>,
    divert: Option<Divert>,
    transport: Option<Transport>,
    /// A predecessor's.
    session: Option<Section>,
    /// While its thread does not run.
    carrier: Option<Carrier>,
    thread: Option<ServiceThread<Wanted, Carrier>>,
    counters: Arc<Counters>,
}

/// What a successor goes on with, for each leg.
#[derive(Debug, Serialize, Deserialize)]
struct LegSnapshot {
    leg: String,
    device: String,
    tun: Fd,
    socket: Fd,
    /// The session. Versions that write it otherwise begin a new one.
    #[serde(default)]
    session: Option<Section>,
    /// Whether the peer answered.
    #[serde(default)]
    is_alive: bool,
}

impl Protect {
    /// Reads the keys, makes the devices, unless they come from a predecessor, and loads the programs. Needs
    /// `CAP_NET_ADMIN`, `CAP_BPF` and `CAP_PERFMON`. A leg whose packets this kernel cannot divert is not
    /// protected, which the log says.
    pub(super) fn prepare(preparation: &Preparation<'_>) -> Result<Self, Error> {
        let config = preparation.config;
        let inherits = preparation.inherits(NAME);
        let legs = config.protected_legs().enumerate().map(|(index, (name, _, settings))| {
            let device = format!("bentpipe{}", FIRST_DEVICE + index);
            ProtectedLeg::prepare(name, settings, device, config, inherits)
        });
        let legs = legs.collect::<Result<Vec<_>, Error>>()?;
        Ok(Self { legs: legs.into_iter().flatten().collect() })
    }
}

impl ProtectedLeg {
    fn prepare(
        name: &str,
        settings: &ProtectSettings,
        device: String,
        config: &Config,
        inherits: bool,
    ) -> Result<Option<Self>, Error> {
        let refused = |reason: String| Error::Refused(format!("leg {name}: {reason}; {KEY_REMEDY}"));
        let secret = secret(settings).map_err(refused)?;
        let is_there = inherits && bentpipe_kernel::divert::exists(&device);
        let tun = match is_there {
            true => None,
            false => Some(tun::open(&device, "action = \"protect\"", "write \"pass\"")?),
        };
        let mark = config.proxy.mark;
        let mark = MarkMatch { value: mark.value(Mark::ToLink), mask: mark.mask() };
        let when_silent = match settings.when_silent {
            config::WhenSilent::Pass => WhenSilent::Pass,
            config::WhenSilent::Drop => WhenSilent::Drop,
        };
        let divert = match Divert::load(&device, mark, when_silent) {
            Ok(divert) => divert,
            Err(error) => {
                tracing::warn!("{error}; packets cross leg {name} unprotected");
                return Ok(None);
            }
        };
        Ok(Some(Self {
            name: name.to_owned(),
            settings: settings.clone(),
            secret,
            device,
            tun,
            divert: Some(divert),
            transport: None,
            session: None,
            carrier: None,
            thread: None,
            counters: Arc::default(),
        }))
    }

    /// Takes over what a predecessor has of this leg.
    fn resume(&mut self, snapshot: LegSnapshot, context: &Context) -> Result<(), Error> {
        let action = || Error::system("take over a protected leg");
        let tun = snapshot.tun.into_owned().map_err(action())?;
        self.tun = Some(Tun::inherited(tun, &self.device));
        let socket = snapshot.socket.into_owned().map_err(action())?;
        self.transport =
            Some(Transport::inherited(socket, self.settings.peer.get(), self.settings.port.get()));
        self.session = snapshot.session;
        let leg = context.config.legs.get(&self.name);
        if let (Some(divert), Some(leg), true) = (&mut self.divert, leg, snapshot.is_alive) {
            // The predecessor's program goes with it, maybe before this process serves. Until then packets wait
            // in the device, which is the same for both. If this process never serves, they are left to the
            // predecessor again.
            match divert.follow(leg.interface.as_str()) {
                Ok(_) => divert.stand_in_until(carrier::now() + carrier::STAND_BY),
                Err(error) => tracing::debug!(%error, leg = self.name, "packets pass for a moment"),
            }
        }
        Ok(())
    }

    fn start(&mut self, context: &Context) -> Result<(), Error> {
        let Some(leg) = context.config.legs.get(&self.name) else { return Ok(()) };
        let (Some(tun), Some(divert)) = (self.tun.take(), self.divert.take()) else { return Ok(()) };
        let (peer, port) = (self.settings.peer.get(), self.settings.port.get());
        let is_inherited = self.transport.is_some();
        let transport = match self.transport.take() {
            Some(transport) => transport,
            None => Transport::open(peer, port).map_err(|error| {
                Error::Refused(format!(
                    "cannot send frames of leg {} by UDP port {port}: {error}; choose another port in \
                     legs.{}.protect, at both ends",
                    self.name, self.name
                ))
            })?,
        };
        let rated = context.legs.leg(&self.name).and_then(|leg| leg.rated()).cloned();
        if let Some(rated) = &rated {
            rated.join(transport.socket()).map_err(Error::system("tell frames from cross traffic"))?;
        }
        let rated = rated.map(|_| Rated(context.shared.senders.register(&self.name)));
        let counters = self.counters.clone();
        let entropy = entropy().map_err(Error::system("draw random numbers"))?;
        let wanted = Wanted::of(&self.settings, leg);
        let ends = carrier::Ends { tun, divert, transport, is_inherited };
        let mut carrier =
            Carrier::new(&self.name, ends, rated, wanted, self.secret.clone(), entropy, counters);
        if let Some(session) = self.session.take() {
            carrier.resume(session);
        }
        self.carrier = Some(carrier);
        self.run()
    }

    /// Runs the carrier's thread.
    fn run(&mut self) -> Result<(), Error> {
        let Some(mut carrier) = self.carrier.take() else { return Ok(()) };
        let mut thread = ServiceThread::new("a protected leg")?;
        let mailbox = thread.mailbox().clone();
        thread.run("bentpipe-protect", move |stop| {
            carrier.run(&mailbox, stop);
            carrier
        })?;
        self.thread = Some(thread);
        Ok(())
    }

    /// Stops the thread, and keeps the carrier.
    fn pause(&mut self) {
        if let Some(mut thread) = self.thread.take() {
            self.carrier = thread.stop();
        }
    }

    fn snapshot(&self) -> Result<Option<LegSnapshot>, SnapshotError> {
        let Some(carrier) = &self.carrier else { return Ok(None) };
        let (tun, socket) = carrier.descriptors()?;
        Ok(Some(LegSnapshot {
            leg: self.name.clone(),
            device: self.device.clone(),
            tun: tun.into(),
            socket: socket.into(),
            session: carrier.session()?,
            is_alive: carrier.is_alive(),
        }))
    }
}

impl Service for Protect {
    fn name(&self) -> &'static str {
        NAME
    }

    /// A leg is protected, and as it is, from the start or an upgrade on: a key file is read with the rights of
    /// root.
    fn check(&self, config: &Config) -> Result<(), Refusal> {
        let is_known = |name: &str, settings: &ProtectSettings| {
            self.legs.iter().any(|leg| leg.name == name && leg.settings == *settings)
        };
        match config.protected_legs().find(|(name, _, settings)| !is_known(name, settings)) {
            Some((name, ..)) => {
                let key = format!("legs.{name}.protect");
                Err(Refusal::until_upgrade(key.clone(), "another protected leg, or other settings of one"))
            }
            None => Ok(()),
        }
    }

    fn resume(&mut self, section: Option<Section>, context: &Context) -> Result<(), Error> {
        let snapshots: Vec<LegSnapshot> = match section {
            Some(section) => section.read().map_err(Error::snapshot)?,
            None => Vec::new(),
        };
        for snapshot in snapshots {
            if let Some(leg) = self.legs.iter_mut().find(|leg| leg.device == snapshot.device) {
                leg.resume(snapshot, context)?;
            }
        }
        Ok(())
    }

    fn start(&mut self, context: &Context) -> Result<(), Error> {
        self.legs.iter_mut().try_for_each(|leg| leg.start(context))
    }

    /// Goes on after an upgrade that has failed, in the same session: the successor has not claimed it, and so
    /// has sent no frame of it.
    fn unpause(&mut self, _context: &Context) -> Result<(), Error> {
        self.legs.iter_mut().try_for_each(ProtectedLeg::run)
    }

    fn reload(&mut self, context: &Context) {
        for leg in &self.legs {
            let settings = context.config.legs.get(&leg.name);
            if let (Some(thread), Some(settings)) = (&leg.thread, settings) {
                thread.send(Wanted::of(&leg.settings, settings));
            }
        }
    }

    /// Packets wait in the devices for who goes on.
    fn pause(&mut self) {
        self.legs.iter_mut().for_each(ProtectedLeg::pause);
    }

    fn snapshot(&self, _context: &Context) -> Result<Option<Section>, SnapshotError> {
        let legs = self.legs.iter().map(ProtectedLeg::snapshot).collect::<Result<Vec<_>, _>>()?;
        let legs: Vec<LegSnapshot> = legs.into_iter().flatten().collect();
        if legs.is_empty() { Ok(None) } else { Section::of(&legs).map(Some) }
    }

    /// A successor must not open the devices again.
    fn is_exclusive(&self) -> bool {
        !self.legs.is_empty()
    }

    fn counters(&self) -> Vec<Arc<Counters>> {
        self.legs.iter().map(|leg| leg.counters.clone()).collect()
    }
}

impl Drop for Protect {
    fn drop(&mut self) {
        for leg in &mut self.legs {
            if leg.thread.is_some() {
                leg.pause();
                tracing::info!("leg {} is no longer protected", leg.name);
            }
        }
    }
}

impl Wanted {
    fn of(settings: &ProtectSettings, leg: &SatelliteLeg) -> Self {
        Self {
            interface: leg.interface.as_str().to_owned(),
            rate: leg.rate,
            rtt: leg.rtt.get(),
            class: settings.class,
            queue: settings.queue,
            weight: settings.weight,
        }
    }
}

/// What both boxes know of a leg.
fn secret(settings: &ProtectSettings) -> Result<Secret, String> {
    let Some(file) = &settings.key_file else { return Ok(Secret::insecure()) };
    let cipher = match settings.cipher {
        ProtectCipher::Aes128Gcm => Cipher::Aes128Gcm,
        ProtectCipher::ChaCha20Poly1305 => Cipher::ChaCha20Poly1305,
    };
    let key =
        read_key(file).map_err(|reason| format!("cannot read the key from {}: {reason}", file.display()))?;
    Ok(Secret::new(cipher, key))
}

/// What to do where there is no key.
const KEY_REMEDY: &str = "write 64 hexadecimal digits there, the same at both ends (`openssl rand -hex 32`), and let \
                          only root read it";

/// 64 hexadecimal digits, with any blanks around them.
fn read_key(file: &Path) -> Result<[u8; 32], String> {
    let text = fs::read_to_string(file).map_err(|error| error.to_string())?;
    let digits = text.trim();
    let is_hexadecimal = digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if !is_hexadecimal {
        return Err(format!(
            "it has {} characters, or others than hexadecimal digits",
            digits.chars().count()
        ));
    }
    let mut key = [0; 32];
    for (byte, place) in key.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&digits[place..place + 2], 16).map_err(|error| error.to_string())?;
    }
    if key == [0; 32] {
        return Err("it is zero".into());
    }
    Ok(key)
}

fn entropy() -> std::io::Result<[u8; 32]> {
    let mut entropy = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut entropy)?;
    Ok(entropy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_64_hexadecimal_digits() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("key");
        let read = |text: &str| {
            fs::write(&file, text).unwrap();
            read_key(&file)
        };
        assert_eq!(read(&format!("{}\n", "0f".repeat(32))), Ok([15; 32]));
        for text in ["", "0f0f", &"0".repeat(64), &"g".repeat(64), &"é".repeat(32)] {
            assert!(read(text).is_err(), "{text}");
        }
        assert!(read_key(&directory.path().join("none")).unwrap_err().contains("No such file"));
    }
}
