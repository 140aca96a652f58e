//! The handshake of a session: contact headers, TLS, SESS_INIT (RFC 9174 §4).

use std::time::Duration;

use bentpipe_units::Time;

use super::{Event, Phase, Session};
use crate::Eid;
use crate::tcpcl::message::{self, Contact, Message, SessInit, TermReason};
use crate::tcpcl::settings::{EndedBy, PeerOverride, Role};
use crate::tcpcl::tls::Tls;

impl Session {
    /// Processes the contact header. Nothing more may be read before the decision about TLS.
    pub fn receive_contact(
        &mut self,
        bytes: [u8; message::CONTACT_LEN],
        now: Time,
    ) -> Option<Event<'static>> {
        self.last_received = now;
        let contact = match Contact::decode(bytes) {
            Ok(contact) => contact,
            Err(error) => {
                self.abort(EndedBy::Us, format!("the peer at {}: {error}", self.place));
                return None;
            }
        };
        if self.role == Role::Passive {
            self.send_contact();
        }
        if contact.version != message::VERSION {
            let text = format!(
                "the node at {} speaks version {} of TCPCL, and only version {} is spoken here",
                self.place,
                contact.version,
                message::VERSION
            );
            self.terminate_with(TermReason::VERSION_MISMATCH, text);
            return None;
        }
        self.decide_tls(contact.can_tls)
    }

    fn decide_tls(&mut self, peer_can: bool) -> Option<Event<'static>> {
        match (&self.settings.tls, peer_can) {
            (Tls::Require(_), false) => {
                let text = format!(
                    "the node at {} speaks plain text only, and TLS is required; give it a certificate, or \
                     set \
                     this peer's TLS to optional",
                    self.place
                );
                self.terminate_with(TermReason::CONTACT_FAILURE, text);
                None
            }
            (Tls::Offer(_) | Tls::Require(_), true) => {
                self.phase = Phase::Tls;
                Some(Event::StartTls)
            }
            _ => {
                self.begin_init();
                None
            }
        }
    }

    /// The TLS handshake is complete; the certificate belongs to one of these peers.
    pub fn tls_done(&mut self, proven: Vec<Eid>) {
        self.proven = Some(proven);
        self.begin_init();
    }

    fn begin_init(&mut self) {
        self.phase = Phase::Init;
        // RFC 9174 §4.6: the active side sends first.
        if self.role == Role::Active {
            self.send_init();
        }
    }

    /// The peer that has been introduced, if its certificate proves that it is the one.
    pub fn proven(&self) -> Option<&Eid> {
        self.peer.as_ref().filter(|peer| self.proven.as_ref().is_some_and(|proven| proven.contains(peer)))
    }

    /// The agent admits the peer: the session is established.
    pub fn admit(&mut self, now: Time) {
        if self.phase != Phase::Admission {
            return;
        }
        if self.role == Role::Passive {
            self.send_init();
        }
        self.phase = Phase::Established;
        self.last_progress = now;
    }

    /// The agent rejects the peer.
    pub fn reject_peer(&mut self, why: &str) {
        let text = format!("the peer at {} was turned away: {why}", self.place);
        self.terminate_with(TermReason::CONTACT_FAILURE, text);
    }

    pub(super) fn send_contact(&mut self) {
        let can_tls = !matches!(self.settings.tls, Tls::Off);
        self.control.extend(Contact { version: message::VERSION, can_tls }.encode());
    }

    fn send_init(&mut self) {
        let init = SessInit {
            keepalive: u16::try_from(self.settings.keepalive.as_secs()).unwrap_or(u16::MAX),
            segment_mru: self.settings.segment_mru,
            transfer_mru: self.settings.transfer_mru,
            node: self.settings.node.to_string(),
            critical_extension: None,
        };
        self.push(&Message::SessInit(init));
    }

    pub(super) fn on_init(&mut self, init: SessInit) -> Option<Event<'static>> {
        let fault = |session: &mut Self, text: String| {
            session.terminate_with(TermReason::CONTACT_FAILURE, text);
            None
        };
        let place = &self.place;
        let peer: Eid = match init.node.parse::<Eid>() {
            Ok(peer) if peer.is_node() => peer,
            Ok(_) => {
                let text = format!("the node at {place} says it is {:?}, which is no node", init.node);
                return fault(self, text);
            }
            Err(error) => return fault(self, format!("the node at {place} has an unknown name: {error}")),
        };
        let known = self.settings.peers.get(&peer).copied().unwrap_or_default();
        self.lenient |= known.lenient;
        if let Some(text) = self.identity_error(&peer) {
            return fault(self, text);
        }
        if let Some(item) = init.critical_extension.filter(|_| !self.lenient) {
            let text = format!("the node at {place} insists on session extension {item:#06x}, unknown here");
            return fault(self, text);
        }
        if init.segment_mru == 0 {
            return fault(self, format!("the node at {place} takes no data: its segment MRU is 0"));
        }
        self.agree(&init, known);
        self.peer = Some(peer.clone());
        self.phase = Phase::Admission;
        Some(Event::Introduced(peer))
    }

    fn identity_error(&self, peer: &Eid) -> Option<String> {
        let place = &self.place;
        if *peer == self.settings.node {
            return Some(format!("the node at {place} is this one, {peer}; check addresses and names"));
        }
        if let Some(proven) = self.proven.as_ref().filter(|proven| !proven.contains(peer)) {
            let proven = proven.iter().map(Eid::to_string).collect::<Vec<_>>().join(" or ");
            return Some(format!(
                "the node at {place} says it is {peer}, but its certificate is that of {proven}; check both \
                 nodes' names and certificates"
            ));
        }
        let expected = self.settings.expected_peer.as_ref().filter(|expected| *expected != peer)?;
        Some(format!(
            "the node at {place} says it is {peer}, expected {expected}; check the peer's address and name"
        ))
    }

    fn agree(&mut self, init: &SessInit, known: PeerOverride) {
        let ours = self.settings.keepalive.as_secs().min(u16::MAX.into());
        self.keepalive = Duration::from_secs(ours.min(init.keepalive.into()));
        self.inbound.set_lenient(self.lenient);
        self.outbound.agree(
            known.segment_mru.unwrap_or(init.segment_mru),
            known.transfer_mru.unwrap_or(init.transfer_mru),
        );
    }
}
