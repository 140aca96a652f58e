//! Bundles from application to application between bentpipe and dtn7-rs: each way, each scheme, whoever
//! connects.

use std::fmt;
use std::fs;
use std::path::Path;

use super::nodes::{Bentpipe, Contact, Dtn7, Layer, Programs, folder, free_port};
use super::web::WebSocket;

/// The payloads, bytes.
pub(crate) const SIZES: [usize; 5] = [1, 1000, 64 << 10, 1_000_000, 10_000_000];
/// The longest payload whose bundle fits a datagram.
const DATAGRAM_MAX: usize = 1000;
/// The longest payload for `dtnsend`; its bundle has to fit into 2 MiB.
const DTNSEND_MAX: usize = 2_000_000;
/// Seconds until a bundle has arrived, or does not.
const ARRIVES_WITHIN: u64 = 30;

/// How the two nodes and their services are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// RFC 9171 §4.2.5.1.1.
    Dtn,
    /// RFC 9171 §4.2.5.1.2.
    Ipn,
}

/// Which node is told where the other one listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opener {
    /// bentpipe is, as it is up.
    Bentpipe,
    /// dtn7-rs is, which connects when it has something to send.
    Dtn7,
    /// Each connects to the other one, so that there may be two sessions.
    Both,
    /// None: each has the other one's address, and bundles travel in datagrams.
    Nobody,
}

/// What became of one bundle.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The names.
    pub(crate) scheme: Scheme,
    /// Who connects.
    pub(crate) opener: Opener,
    /// From bentpipe to dtn7-rs, or the other way.
    pub(crate) to_dtn7: bool,
    /// Bytes of payload.
    pub(crate) size: usize,
    /// Why it has not arrived as it was sent.
    pub(crate) failure: Option<String>,
}

struct Pair {
    bentpipe: Bentpipe,
    dtn7: Dtn7,
    names: Names,
}

struct Names {
    bentpipe: &'static str,
    dtn7: &'static str,
    bare_dtn7: &'static str,
    service: &'static str,
}

impl Scheme {
    /// Both.
    pub(crate) const ALL: [Self; 2] = [Self::Dtn, Self::Ipn];

    fn names(self) -> Names {
        match self {
            Self::Dtn => {
                Names { bentpipe: "dtn://gs1/", dtn7: "dtn://dtn7/", bare_dtn7: "dtn7", service: "in" }
            }
            Self::Ipn => Names { bentpipe: "ipn:5.0", dtn7: "ipn:23.0", bare_dtn7: "23", service: "42" },
        }
    }

    fn endpoint(self, node: &str) -> String {
        let service = self.names().service;
        match self {
            Self::Dtn => format!("{node}{service}"),
            Self::Ipn => format!("{}.{service}", node.trim_end_matches(".0")),
        }
    }
}

impl Opener {
    /// All of them.
    pub(crate) const ALL: [Self; 4] = [Self::Bentpipe, Self::Dtn7, Self::Both, Self::Nobody];

    fn layer(self) -> Layer {
        if self == Self::Nobody { Layer::Udp } else { Layer::Tcp }
    }
}

/// Sends a bundle of each size each way between two new nodes.
///
/// # Errors
/// The nodes do not come up. What happens to single bundles is in the outcomes.
pub(crate) fn exchange(
    programs: &Programs,
    scheme: Scheme,
    opener: Opener,
    sizes: &[usize],
) -> Result<Vec<Outcome>, String> {
    let pair = Pair::start(programs, scheme, opener)?;
    let work = folder()?;
    // Who does not know where the other one is, waits for it: the first bundle goes from who connects.
    let directions = [opener != Opener::Dtn7, opener == Opener::Dtn7];
    let mut outcomes = Vec::new();
    for to_dtn7 in directions {
        // dtn7-rs puts no fragments together, so that by UDP a bundle has to fit a datagram.
        let is_sent = |size: &&usize| opener.layer() == Layer::Tcp || **size <= DATAGRAM_MAX;
        for &size in sizes.iter().filter(is_sent) {
            let failure = pair.carry(scheme, to_dtn7, size, work.path()).err();
            outcomes.push(Outcome { scheme, opener, to_dtn7, size, failure });
        }
    }
    Ok(outcomes)
}

impl Pair {
    fn start(programs: &Programs, scheme: Scheme, opener: Opener) -> Result<Self, String> {
        let names = scheme.names();
        let (here, there) = (free_port()?, free_port()?);
        let contact = |id: &str, port, is_told| Contact {
            id: id.into(),
            port: Some(port).filter(|_| is_told),
            layer: opener.layer(),
        };
        let bentpipe = contact(names.bentpipe, here, opener != Opener::Bentpipe);
        let dtn7 = contact(names.dtn7, there, opener != Opener::Dtn7);
        Ok(Self {
            dtn7: Dtn7::start(programs, names.bare_dtn7, names.service, there, Some(&bentpipe))?,
            bentpipe: Bentpipe::start(programs, names.bentpipe, here, &dtn7)?,
            names,
        })
    }

    /// One bundle, and whether what comes is what went.
    fn carry(&self, scheme: Scheme, to_dtn7: bool, size: usize, work: &Path) -> Result<(), String> {
        let (sent, received) = (work.join("sent"), work.join(format!("received-{to_dtn7}-{size}")));
        let payload = payload(size);
        fs::write(&sent, &payload).map_err(|error| format!("cannot write a payload: {error}"))?;
        if to_dtn7 {
            self.bentpipe.send(&sent, &scheme.endpoint(self.names.dtn7))?;
            self.dtn7.receive(self.names.service, &received, ARRIVES_WITHIN)?;
        } else {
            let destination = scheme.endpoint(self.names.bentpipe);
            if size <= DTNSEND_MAX {
                self.dtn7.send(&sent, &destination)?;
            } else {
                WebSocket::connect(self.dtn7.web)
                    .and_then(|mut socket| socket.send(self.names.dtn7, &destination, &payload))
                    .map_err(|error| format!("dtnd does not take the payload: {error}"))?;
            }
            self.bentpipe.receive(self.names.service, &received, ARRIVES_WITHIN)?;
        }
        let arrived = fs::read(&received).map_err(|error| format!("no payload: {error}"))?;
        if arrived == payload {
            return Ok(());
        }
        let same = arrived.iter().zip(&payload).take_while(|(here, there)| here == there).count();
        Err(format!("{} bytes of {size}, the first {same} as they were sent", arrived.len()))
    }
}

/// Bytes that no mistake with lengths, order or text survives.
pub(crate) fn payload(size: usize) -> Vec<u8> {
    (0..size as u64).map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 29) as u8).collect()
}

/// The outcomes as a table, and what failed below.
pub(crate) fn table(outcomes: &[Outcome]) -> String {
    let mut text = "| names | who connects | payload, bytes | bentpipe → dtn7-rs | dtn7-rs → bentpipe \
         |\n|---|---|---|---|---|\n"
        .to_owned();
    for outcome in outcomes.iter().filter(|outcome| outcome.to_dtn7) {
        let back = outcomes.iter().find(|other| !other.to_dtn7 && other.case() == outcome.case());
        let (scheme, opener, size) = outcome.case();
        let there_and_back = [Some(outcome), back].map(|outcome| match outcome {
            Some(Outcome { failure: None, .. }) => "same",
            Some(_) => "**failed**",
            None => "not tried",
        });
        text +=
            &format!("| {scheme} | {opener} | {size} | {} | {} |\n", there_and_back[0], there_and_back[1]);
    }
    for outcome in outcomes {
        if let Some(failure) = &outcome.failure {
            text += &format!("\n{outcome}: {failure}\n");
        }
    }
    text
}

impl Outcome {
    fn case(&self) -> (Scheme, Opener, usize) {
        (self.scheme, self.opener, self.size)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = if self.to_dtn7 { "bentpipe → dtn7-rs" } else { "dtn7-rs → bentpipe" };
        write!(f, "{way}, {} bytes, {}, {} connects", self.size, self.scheme, self.opener)
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dtn => "dtn:",
            Self::Ipn => "ipn:",
        })
    }
}

impl fmt::Display for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bentpipe => "bentpipe",
            Self::Dtn7 => "dtn7-rs",
            Self::Both => "each",
            Self::Nobody => "none (UDP)",
        })
    }
}
