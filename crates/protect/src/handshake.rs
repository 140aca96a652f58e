//! Which sessions of the two boxes belong together.
//!
//! Each box has a nonce that no session has used yet. A hello tells it, together with the nonce that was last
//! heard from the peer, and is authenticated by the pre-shared key. A hello whose echo is our unused nonce is
//! an answer to what we have said since we drew it, so the peer is there now and its own nonce is of now,
//! too: both make a session. Its keys depend on both nonces, so that no key comes twice, whichever box starts
//! anew, and no frame of an earlier session is authentic.
//!
//! A hello that someone replays looks like a peer that has started anew. While a session is alive, it is
//! answered by a hello that asks for nothing, and a hello that asks for nothing is not answered then. So a
//! peer that has started anew finds the echo of its unused nonce, and its next hello that of ours; the peer
//! of the session that is alive finds neither, and nothing changes.
//!
//! ```text
//! box A                                        box B
//! hello(a, –, asks)      ────────────────────►
//!                        ◄────────────────────  hello(b, echo a)
//! session (a, b) begins
//! hello(a, echo b)       ────────────────────►  session (b, a) begins; also by any frame of that session
//! ```
//!
//! There is no Diffie–Hellman exchange: who learns the pre-shared key can read what was recorded before.

use serde::{Deserialize, Serialize};

use crate::frame::HELLO;
use crate::seal::{Opener, ReplayWindow, Schedule, Sealer, Secret, SessionNonce};
use crate::wire::FrameError;

/// Bytes of a hello before what is sealed.
const HELLO_HEADER: usize = 1 + 1 + 16 + 8;
/// Bytes that are sealed in it.
const HELLO_BODY: usize = 1 + 16;
/// The flag of a hello that wants an answer.
const ASKS: u8 = 1;

/// The keys of a session.
#[derive(Debug)]
pub struct Session {
    /// For what we send.
    pub sealer: Sealer,
    /// For what the peer sends.
    pub opener: Opener,
    nonces: (SessionNonce, SessionNonce),
}

/// A session's place in its keys: which nonces they are made of, and which numbers are used up.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SessionRecord {
    nonces: (SessionNonce, SessionNonce),
    proof: [u8; 16],
    /// Frames that were sealed.
    sent: u64,
    came: ReplayWindow,
}

/// What a hello leads to.
#[derive(Debug)]
pub(crate) enum Greeting {
    /// A session begins; tell the peer by a hello.
    Begins(Box<Session>),
    /// The peer wants to hear a hello.
    Asks,
    /// Nothing new.
    Nothing,
}

/// The state of the handshake of one box with its peer.
#[derive(Debug)]
pub struct Handshake {
    secret: Secret,
    /// Derives unused nonces from what the box drew when it started.
    nonces: Schedule,
    drawn: u64,
    unused: SessionNonce,
    hellos: u64,
    /// The nonces of the session that runs, ours first.
    running: Option<(SessionNonce, SessionNonce)>,
    /// The nonce of the last hello, if it is not that of the session that runs.
    heard: Option<SessionNonce>,
    /// The session that begins with the first frame of it.
    prepared: Option<Box<Session>>,
}

impl Handshake {
    /// Before the first hello. `entropy` is drawn at random for each start of the box, by the system's
    /// generator; who uses the same one twice with the same secret gives the secret away.
    pub fn new(secret: Secret, entropy: [u8; 32]) -> Self {
        let nonces = secret.schedule(&[b"nonces", &entropy]);
        let mut handshake = Self {
            secret,
            nonces,
            drawn: 0,
            unused: [0; 16],
            hellos: 0,
            running: None,
            heard: None,
            prepared: None,
        };
        handshake.draw();
        handshake
    }

    fn draw(&mut self) {
        self.unused = self.nonces.derive(&[b"nonce", &self.drawn.to_be_bytes()]);
        self.drawn += 1;
    }

    /// Whether a session runs.
    pub fn is_established(&self) -> bool {
        self.running.is_some()
    }

    /// Puts a hello into `out`, which is cleared. One that asks is repeated until a session begins.
    pub(crate) fn hello(&mut self, asks: bool, out: &mut Vec<u8>) {
        let (nonce, echo) = match (self.heard, self.running) {
            (None, Some((ours, theirs))) => (ours, Some(theirs)),
            (heard, _) => (self.unused, heard),
        };
        out.clear();
        out.extend_from_slice(&[HELLO, self.secret.cipher().code()]);
        out.extend_from_slice(&nonce);
        out.extend_from_slice(&self.hellos.to_be_bytes());
        out.push(u8::from(asks) * ASKS);
        out.extend_from_slice(&echo.unwrap_or_default());
        // Each nonce has a key of its own for hellos, and their count never goes back.
        self.secret.schedule(&[b"hello", &nonce]).epoch(0).seal(self.hellos, out, 0, HELLO_HEADER);
        self.hellos += 1;
    }

    /// Takes a hello. `alive`: the peer has been heard of lately in the session that runs.
    pub(crate) fn on_hello(&mut self, frame: &mut [u8], alive: bool) -> Result<Greeting, FrameError> {
        let bytes = frame.len();
        let Some((&[_, cipher, ref rest @ ..], _)) = frame.split_first_chunk::<HELLO_HEADER>() else {
            return Err(FrameError::Truncated { what: "hello", bytes });
        };
        let ours = self.secret.cipher().code();
        if cipher != ours {
            return Err(FrameError::Cipher { theirs: cipher, ours });
        }
        let (theirs, number) = rest.split_at(16);
        let theirs: SessionNonce = theirs.try_into().expect("16 bytes are 16 bytes");
        let number = u64::from_be_bytes(number.try_into().expect("the header has 8 more"));
        let key = self.secret.schedule(&[b"hello", &theirs]).epoch(0);
        let body: &[u8; HELLO_BODY] = key
            .open(number, frame, HELLO_HEADER)?
            .try_into()
            .map_err(|_| FrameError::Malformed("a hello of the wrong length"))?;
        if theirs == self.unused || self.running.is_some_and(|(ours, _)| ours == theirs) {
            return Err(FrameError::Reflected);
        }
        let (asks, echo) = (body[0] & ASKS != 0, &body[1..]);
        if self.running.is_some_and(|running| running.1 == theirs) {
            // The peer may not have heard that the session has begun.
            self.forget_heard();
            return Ok(if asks { Greeting::Asks } else { Greeting::Nothing });
        }
        if echo == self.unused {
            let session = Box::new(self.session(theirs));
            self.begin(&session);
            return Ok(Greeting::Begins(session));
        }
        if alive && !asks {
            return Ok(Greeting::Nothing);
        }
        if self.heard != Some(theirs) {
            self.heard = Some(theirs);
            self.prepared = Some(Box::new(self.session(theirs)));
        }
        Ok(Greeting::Asks)
    }

    /// Takes a frame of a session that does not run: if it is the one that the peer has begun, it begins
    /// here, too. The session, the frame's number and its content.
    pub(crate) fn on_frame<'a>(
        &mut self,
        frame: &'a mut [u8],
    ) -> Result<(Box<Session>, u64, &'a [u8]), FrameError> {
        let id = frame.get(1).copied().unwrap_or_default();
        let prepared = self.prepared.as_mut().ok_or(FrameError::UnknownKey { id })?;
        let (number, body) = prepared.opener.open(frame)?;
        let session = self.prepared.take().ok_or(FrameError::UnknownKey { id })?;
        self.begin(&session);
        Ok((session, number, body))
    }

    fn session(&self, theirs: SessionNonce) -> Session {
        self.session_of((self.unused, theirs), 0, ReplayWindow::default())
    }

    fn session_of(&self, nonces: (SessionNonce, SessionNonce), sent: u64, came: ReplayWindow) -> Session {
        let (ours, theirs) = nonces;
        Session {
            sealer: Sealer::new(self.secret.schedule(&[b"data", &ours, &theirs]), sent),
            opener: Opener::new(self.secret.schedule(&[b"data", &theirs, &ours]), came),
            nonces,
        }
    }

    /// What tells whether two processes have the same secret, without telling the secret.
    fn proof(&self, nonces: (SessionNonce, SessionNonce)) -> SessionNonce {
        self.secret.schedule(&[b"handover", &nonces.0, &nonces.1]).derive(&[b"proof"])
    }

    /// What another process needs to go on with the session's keys; none of them is in it.
    pub(crate) fn record(&self, session: &Session) -> SessionRecord {
        let nonces = session.nonces;
        let came = session.opener.window().clone();
        SessionRecord { nonces, proof: self.proof(nonces), sent: session.sealer.count(), came }
    }

    /// The session of another process with the same secret.
    pub(crate) fn resume(&mut self, record: SessionRecord) -> Option<Session> {
        let SessionRecord { nonces, proof, sent, came } = record;
        if proof != self.proof(nonces) {
            return None;
        }
        let session = self.session_of(nonces, sent, came);
        self.running = Some(nonces);
        self.forget_heard();
        Some(session)
    }

    fn begin(&mut self, session: &Session) {
        self.running = Some(session.nonces);
        self.forget_heard();
        self.draw();
    }

    /// The session that runs is over for us.
    pub(crate) fn end(&mut self) {
        self.running = None;
    }

    fn forget_heard(&mut self) {
        self.heard = None;
        self.prepared = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seal::Cipher;

    fn handshake(entropy: u8) -> Handshake {
        Handshake::new(Secret::new(Cipher::ChaCha20Poly1305, [1; 32]), [entropy; 32])
    }

    fn hello(from: &mut Handshake, asks: bool) -> Vec<u8> {
        let mut out = Vec::new();
        from.hello(asks, &mut out);
        out
    }

    fn tell(from: &mut Handshake, to: &mut Handshake, asks: bool) -> Greeting {
        to.on_hello(&mut hello(from, asks), false).unwrap()
    }

    /// The three hellos of the picture above.
    fn establish(a: &mut Handshake, b: &mut Handshake) -> [Session; 2] {
        assert!(matches!(tell(a, b, true), Greeting::Asks));
        let Greeting::Begins(of_a) = tell(b, a, false) else { panic!("A should begin") };
        let Greeting::Begins(of_b) = tell(a, b, false) else { panic!("B should begin") };
        [*of_a, *of_b]
    }

    fn passes(from: &mut Session, to: &mut Session) -> bool {
        let mut frame = Vec::new();
        from.sealer.seal(0x15, &mut frame, |out| out.push(9));
        to.opener.open(&mut frame).is_ok_and(|(_, body)| body == [9])
    }

    #[test]
    fn three_hellos_make_a_session_with_a_key_for_each_direction() {
        let [mut a, mut b] = establish(&mut handshake(1), &mut handshake(2));
        assert!(passes(&mut a, &mut b) && passes(&mut b, &mut a));
        let mut echo = Vec::new();
        a.sealer.seal(0x15, &mut echo, |_| {});
        assert!(a.opener.open(&mut echo).is_err(), "a frame that comes back is not authentic");
    }

    #[test]
    fn a_frame_of_the_session_begins_it_where_the_last_hello_was_lost() {
        let (mut a, mut b) = (handshake(1), handshake(2));
        tell(&mut a, &mut b, true);
        let Greeting::Begins(mut of_a) = tell(&mut b, &mut a, false) else { panic!("A should begin") };
        let mut frame = Vec::new();
        of_a.sealer.seal(0x15, &mut frame, |out| out.push(9));
        let mut forged = frame.clone();
        forged[9] ^= 1;
        assert_eq!(b.on_frame(&mut forged).unwrap_err(), FrameError::NotAuthentic);
        let (mut of_b, number, body) = b.on_frame(&mut frame).unwrap();
        assert_eq!((number, body), (0, &[9][..]));
        assert!(b.is_established() && passes(&mut of_b, &mut of_a));
        assert!(b.on_frame(&mut frame.clone()).is_err());
    }

    #[test]
    fn a_peer_that_starts_anew_makes_a_new_session_with_other_keys() {
        let (mut a, mut b) = (handshake(1), handshake(2));
        let [mut old_a, mut old_b] = establish(&mut a, &mut b);
        let mut b = handshake(3);
        assert!(matches!(tell(&mut b, &mut a, true), Greeting::Asks));
        let Greeting::Begins(mut new_b) = tell(&mut a, &mut b, false) else { panic!("B should begin") };
        let Greeting::Begins(mut new_a) = tell(&mut b, &mut a, false) else { panic!("A should begin") };
        assert!(passes(&mut new_a, &mut new_b) && passes(&mut new_b, &mut new_a));
        assert!(!passes(&mut old_b, &mut new_a) && !passes(&mut new_b, &mut old_a));
    }

    #[test]
    fn whoever_replays_hellos_gets_an_answer_and_no_session() {
        let (mut a, mut b) = (handshake(1), handshake(2));
        let first = hello(&mut b, true);
        tell(&mut a, &mut b, true);
        let answer = hello(&mut b, false);
        let Greeting::Begins(_) = a.on_hello(&mut answer.clone(), false).unwrap() else {
            panic!("A should begin")
        };
        // B starts anew, and so there is another session.
        let mut b = handshake(3);
        tell(&mut b, &mut a, true);
        tell(&mut a, &mut b, false);
        let last = hello(&mut b, false);
        let Greeting::Begins(_) = a.on_hello(&mut last.clone(), false).unwrap() else {
            panic!("A should begin")
        };
        let running = a.running;
        for mut replayed in [first, answer, last] {
            let greeting = a.on_hello(&mut replayed, false).unwrap();
            assert!(matches!(greeting, Greeting::Asks | Greeting::Nothing), "{greeting:?}");
            assert_eq!(a.running, running);
        }
        let own = hello(&mut a, true);
        assert_eq!(a.on_hello(&mut own.clone(), false).unwrap_err(), FrameError::Reflected);
    }

    #[test]
    fn a_session_that_is_alive_is_not_disturbed_by_replays_and_ends_when_it_is_not() {
        // B said it before it started anew.
        let mut replayed = hello(&mut handshake(2), true);
        let (mut a, mut b) = (handshake(1), handshake(3));
        let mut sessions = establish(&mut a, &mut b);
        let heard = |a: &mut Handshake, frame: &mut [u8], alive| a.on_hello(frame, alive).unwrap();
        // A answers, and B, who has not said this, does not listen.
        assert!(matches!(heard(&mut a, &mut replayed.clone(), true), Greeting::Asks));
        let mut said = hello(&mut a, false);
        assert!(matches!(heard(&mut b, &mut said, true), Greeting::Nothing));
        let [of_a, of_b] = &mut sessions;
        assert!(passes(of_a, of_b) && passes(of_b, of_a));
        assert!(matches!(heard(&mut a, &mut replayed, false), Greeting::Asks));
    }

    #[test]
    fn a_peer_that_starts_anew_is_heard_while_the_session_is_alive() {
        let (mut a, mut b) = (handshake(1), handshake(2));
        establish(&mut a, &mut b);
        let mut b = handshake(3);
        let mut asks = hello(&mut b, true);
        assert!(matches!(a.on_hello(&mut asks, true).unwrap(), Greeting::Asks));
        let mut answer = hello(&mut a, false);
        assert!(matches!(b.on_hello(&mut answer, false).unwrap(), Greeting::Begins(_)));
        let mut last = hello(&mut b, false);
        assert!(matches!(a.on_hello(&mut last, true).unwrap(), Greeting::Begins(_)));
    }

    #[test]
    fn a_peer_that_missed_the_beginning_asks_and_is_told() {
        let (mut a, mut b) = (handshake(1), handshake(2));
        tell(&mut a, &mut b, true);
        let Greeting::Begins(_) = tell(&mut b, &mut a, false) else { panic!("A should begin") };
        // A's last hello was lost: B goes on asking.
        assert!(matches!(tell(&mut b, &mut a, true), Greeting::Asks));
        assert!(matches!(tell(&mut a, &mut b, false), Greeting::Begins(_)));
        assert!(
            matches!(tell(&mut b, &mut a, false), Greeting::Nothing),
            "an answer to an answer would never end"
        );
    }

    #[test]
    fn another_key_cipher_or_byte_is_told_apart() {
        let mut a = handshake(1);
        let mut stranger = Handshake::new(Secret::new(Cipher::ChaCha20Poly1305, [2; 32]), [9; 32]);
        assert_eq!(a.on_hello(&mut hello(&mut stranger, true), false).unwrap_err(), FrameError::NotAuthentic);
        let mut insecure = Handshake::new(Secret::insecure(), [9; 32]);
        let error = a.on_hello(&mut hello(&mut insecure, true), false).unwrap_err();
        assert_eq!(error, FrameError::Cipher { theirs: 255, ours: 2 });
        assert!(matches!(insecure.on_hello(&mut hello(&mut a, true), false), Err(FrameError::Cipher { .. })));
        let whole = hello(&mut handshake(5), true);
        for cut in 1..whole.len() {
            assert!(a.on_hello(&mut whole[..cut].to_vec(), false).is_err(), "{cut}");
        }
        for index in 2..whole.len() {
            let mut changed = whole.clone();
            changed[index] ^= 0x40;
            assert_eq!(a.on_hello(&mut changed, false).unwrap_err(), FrameError::NotAuthentic, "{index}");
        }
    }
}
