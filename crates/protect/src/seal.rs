//! Keys, encryption, and the replay window.
//!
//! A frame is sealed by an AEAD (RFC 5116) with its header as associated data. Its nonce is its number, which
//! no two frames of a key share: numbers begin at 0 in each session and direction, a session has nonces of
//! both boxes that were never used before, and these go into the keys (`handshake`).
//!
//! ```text
//! secret of a direction = HKDF-Extract(salt = nonce of the sender ‖ nonce of the receiver, pre-shared key)
//! key of an epoch       = HKDF-Expand(secret, "bentpipe protect 1 key" ‖ epoch)
//! IV of an epoch        = HKDF-Expand(secret, "bentpipe protect 1 iv" ‖ epoch), exclusive-ored with the number
//! ```
//!
//! (RFC 5869.) An epoch is 2²⁴ frames, so that no key meets the limits on AES-GCM (RFC 8446 §5.5), and nobody
//! has to agree on a change of keys: the number says it.

use ring::aead::{self, Aad, LessSafeKey, Nonce as AeadNonce, UnboundKey};
use ring::hkdf::{self, HKDF_SHA256, KeyType, Prk, Salt};
use serde::{Deserialize, Serialize};

use crate::wire::{FrameError, HEADER, TAG, expand_short, short};

/// Frames that share a key, as a power of two.
const EPOCH_BITS: u32 = 24;

/// How frames are encrypted and authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cipher {
    /// AES-128-GCM: the fastest where the processor has instructions for AES.
    Aes128Gcm,
    /// ChaCha20-Poly1305 (RFC 8439): the fastest where it has none.
    ChaCha20Poly1305,
    /// Neither encrypted nor authenticated: whoever can send to a box can inject packets.
    Insecure,
}

impl Cipher {
    pub(crate) fn code(self) -> u8 {
        match self {
            Cipher::Aes128Gcm => 1,
            Cipher::ChaCha20Poly1305 => 2,
            Cipher::Insecure => 0xff,
        }
    }

    fn algorithm(self) -> Option<&'static aead::Algorithm> {
        match self {
            Cipher::Aes128Gcm => Some(&aead::AES_128_GCM),
            Cipher::ChaCha20Poly1305 => Some(&aead::CHACHA20_POLY1305),
            Cipher::Insecure => None,
        }
    }

    /// Bytes that the tag takes in a frame.
    pub fn tag(self) -> usize {
        if self == Cipher::Insecure { 0 } else { TAG }
    }
}

/// A number that a box draws for one session and never uses again.
pub type SessionNonce = [u8; 16];

/// What both boxes know: the pre-shared key and how to use it.
#[derive(Clone)]
pub struct Secret {
    cipher: Cipher,
    key: [u8; 32],
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secret").field("cipher", &self.cipher).finish_non_exhaustive()
    }
}

impl Secret {
    /// A pre-shared key of 256 random bits; no password is one. With [`Cipher::Insecure`] it is not looked
    /// at, and
    /// [`insecure`](Self::insecure) says so more plainly.
    pub fn new(cipher: Cipher, key: [u8; 32]) -> Self {
        Self { cipher, key }
    }

    /// No protection at all against others: for laboratories, and for legs that are encrypted beneath.
    pub fn insecure() -> Self {
        Self { cipher: Cipher::Insecure, key: [0; 32] }
    }

    /// How frames are sealed.
    pub fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// The key schedule of what a box says under `context`.
    pub(crate) fn schedule(&self, context: &[&[u8]]) -> Schedule {
        let prk = Salt::new(HKDF_SHA256, &context.concat()).extract(&self.key);
        let mut id = [0];
        expand(&prk, &[b"id"], &mut id);
        Schedule { prk, cipher: self.cipher, id: id[0] }
    }
}

/// Derives `out.len()` bytes.
fn expand(prk: &Prk, info: &[&[u8]], out: &mut [u8]) {
    struct Length(usize);
    impl KeyType for Length {
        fn len(&self) -> usize {
            self.0
        }
    }
    let info: Vec<&[u8]> = std::iter::once(&b"bentpipe protect 1 "[..]).chain(info.iter().copied()).collect();
    let okm = prk.expand(&info, Length(out.len()));
    let filled = okm.and_then(|okm: hkdf::Okm<'_, Length>| okm.fill(out));
    filled.expect("no output here is longer than 255 hashes");
}

/// The secret of one direction of a session.
#[derive(Debug)]
pub(crate) struct Schedule {
    prk: Prk,
    cipher: Cipher,
    id: u8,
}

impl Schedule {
    /// A byte that tells keys apart without being one. One session in 256 has that of the session before; then
    /// the last frames of the old one are refused as not authentic, and a new one begins by a hello and not by
    /// its first frame.
    pub(crate) fn id(&self) -> u8 {
        self.id
    }

    /// Random-looking bytes that nobody without the secret can predict.
    pub(crate) fn derive<const N: usize>(&self, info: &[&[u8]]) -> [u8; N] {
        let mut out = [0; N];
        expand(&self.prk, info, &mut out);
        out
    }

    pub(crate) fn epoch(&self, epoch: u64) -> EpochKey {
        let key = self.cipher.algorithm().map(|algorithm| {
            let mut bytes = vec![0; algorithm.key_len()];
            expand(&self.prk, &[b"key", &epoch.to_be_bytes()], &mut bytes);
            LessSafeKey::new(UnboundKey::new(algorithm, &bytes).expect("the length is the algorithm's"))
        });
        EpochKey { epoch, key, iv: self.derive(&[b"iv", &epoch.to_be_bytes()]) }
    }
}

/// The key of one epoch.
#[derive(Debug)]
pub(crate) struct EpochKey {
    epoch: u64,
    /// `None` in insecure mode.
    key: Option<LessSafeKey>,
    iv: [u8; 12],
}

impl EpochKey {
    fn nonce(&self, number: u64) -> AeadNonce {
        let mut nonce = self.iv;
        nonce[4..].iter_mut().zip(number.to_be_bytes()).for_each(|(byte, part)| *byte ^= part);
        AeadNonce::assume_unique_for_key(nonce)
    }

    /// Seals what is in `out` from `start` on, of which the first `header` bytes stay readable.
    pub(crate) fn seal(&self, number: u64, out: &mut Vec<u8>, start: usize, header: usize) {
        let Some(key) = &self.key else { return };
        let (readable, secret) = out[start..].split_at_mut(header);
        let tag = key.seal_in_place_separate_tag(self.nonce(number), Aad::from(readable), secret);
        out.extend_from_slice(tag.expect("a frame is shorter than 2³² blocks").as_ref());
    }

    /// Opens a frame in place; the result is what is behind its header.
    pub(crate) fn open<'a>(
        &self,
        number: u64,
        frame: &'a mut [u8],
        header: usize,
    ) -> Result<&'a [u8], FrameError> {
        let bytes = frame.len();
        let Some((readable, secret)) = frame.split_at_mut_checked(header) else {
            return Err(FrameError::Truncated { what: "header", bytes });
        };
        match &self.key {
            None => Ok(secret),
            Some(key) => match key.open_in_place(self.nonce(number), Aad::from(readable), secret) {
                Ok(body) => Ok(body),
                Err(_) => Err(FrameError::NotAuthentic),
            },
        }
    }
}

/// Seals the frames of one direction of a session.
#[derive(Debug)]
pub struct Sealer {
    schedule: Schedule,
    key: EpochKey,
    next: u64,
}

impl Sealer {
    /// Goes on at this number, 0 in a new session.
    pub(crate) fn new(schedule: Schedule, next: u64) -> Self {
        let key = schedule.epoch(next >> EPOCH_BITS);
        Self { schedule, key, next }
    }

    /// Frames that were sealed.
    pub fn count(&self) -> u64 {
        self.next
    }

    /// Puts a frame into `out`, which is cleared: `head` is its first byte, `body` writes its content.
    pub(crate) fn seal(&mut self, head: u8, out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
        let number = self.next;
        self.next += 1;
        if number >> EPOCH_BITS != self.key.epoch {
            self.key = self.schedule.epoch(number >> EPOCH_BITS);
        }
        out.clear();
        out.extend_from_slice(&[head, self.schedule.id]);
        out.extend_from_slice(&short(number));
        body(out);
        self.key.seal(number, out, 0, HEADER);
    }

    #[cfg(test)]
    pub(crate) fn skip_to(&mut self, number: u64) {
        self.next = number;
    }
}

/// Opens the frames of the other direction, each once.
#[derive(Debug)]
pub struct Opener {
    schedule: Schedule,
    /// Of the epoch of the newest frame, and of the one before.
    keys: [EpochKey; 2],
    window: ReplayWindow,
}

impl Opener {
    /// Goes on with what has come, nothing in a new session.
    pub(crate) fn new(schedule: Schedule, window: ReplayWindow) -> Self {
        let newest = (window.end() >> EPOCH_BITS).max(1);
        let keys = [newest - 1, newest].map(|epoch| schedule.epoch(epoch));
        Self { schedule, keys, window }
    }

    /// What has come.
    pub(crate) fn window(&self) -> &ReplayWindow {
        &self.window
    }

    /// The key id that its frames have.
    pub fn id(&self) -> u8 {
        self.schedule.id()
    }

    /// Opens a frame in place: its number, and what is behind its header.
    ///
    /// # Errors
    /// It is shorter than a header, of another session, has come before or too late, or is not authentic. It
    /// has changed nothing then, but for the bytes of the frame.
    pub(crate) fn open<'a>(&mut self, frame: &'a mut [u8]) -> Result<(u64, &'a [u8]), FrameError> {
        let Some(header) = frame.first_chunk::<HEADER>() else {
            return Err(FrameError::Truncated { what: "header", bytes: frame.len() });
        };
        let [_, id, low @ ..] = *header;
        if id != self.id() {
            return Err(FrameError::UnknownKey { id });
        }
        let number = expand_short(low, self.window.end()).ok_or(FrameError::Old)?;
        self.window.check(number)?;
        let epoch = number >> EPOCH_BITS;
        let Some(cached) = self.keys.iter().position(|key| key.epoch == epoch) else {
            let key = self.schedule.epoch(epoch);
            let body = key.open(number, frame, HEADER)?;
            // Only an authentic frame changes what is kept.
            let oldest = usize::from(self.keys[0].epoch > self.keys[1].epoch);
            self.keys[oldest] = key;
            self.window.set(number);
            return Ok((number, body));
        };
        let body = self.keys[cached].open(number, frame, HEADER)?;
        self.window.set(number);
        Ok((number, body))
    }
}

/// Which numbers have come, of the newest [`SIZE`](Self::SIZE) (RFC 6479).
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "(u64, Vec<u64>)", into = "(u64, Vec<u64>)")]
pub struct ReplayWindow {
    /// The number behind the highest one.
    end: u64,
    /// A ring of bits.
    words: [u64; Self::WORDS],
}

impl From<ReplayWindow> for (u64, Vec<u64>) {
    fn from(window: ReplayWindow) -> Self {
        (window.end, window.words.to_vec())
    }
}

impl TryFrom<(u64, Vec<u64>)> for ReplayWindow {
    type Error = &'static str;

    fn try_from((end, words): (u64, Vec<u64>)) -> Result<Self, &'static str> {
        let words = words.try_into().map_err(|_| "a replay window of another size")?;
        Ok(Self { end, words })
    }
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self { end: 0, words: [0; Self::WORDS] }
    }
}

impl ReplayWindow {
    const WORDS: usize = 64;
    /// Numbers that may come later than the highest one. One word of the ring is being filled (RFC 6479 §2).
    pub const SIZE: u64 = (Self::WORDS as u64 - 1) * 64;

    /// The number behind the highest one that has come.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Whether a number may still come.
    ///
    /// # Errors
    /// It has come, or is so old that nobody knows.
    pub fn check(&self, number: u64) -> Result<(), FrameError> {
        if number.saturating_add(Self::SIZE) < self.end {
            return Err(FrameError::Old);
        }
        let known = number < self.end && self.words[Self::word(number)] >> (number % 64) & 1 == 1;
        if known { Err(FrameError::Replayed { number }) } else { Ok(()) }
    }

    /// Notes a number that [`check`](Self::check) has allowed.
    pub fn set(&mut self, number: u64) {
        if number >= self.end {
            let first_new = self.end.div_ceil(64);
            let words = (number / 64 + 1).saturating_sub(first_new).min(Self::WORDS as u64);
            (0..words).for_each(|i| self.words[Self::word((number / 64 - i) * 64)] = 0);
            self.end = number + 1;
        }
        self.words[Self::word(number)] |= 1 << (number % 64);
    }

    fn word(number: u64) -> usize {
        (number / 64 % Self::WORDS as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn pair(cipher: Cipher) -> (Sealer, Opener) {
        let secret = Secret::new(cipher, [7; 32]);
        let schedule = || secret.schedule(&[b"a", b"b"]);
        (Sealer::new(schedule(), 0), Opener::new(schedule(), ReplayWindow::default()))
    }

    fn sealed(sealer: &mut Sealer, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        sealer.seal(0x11, &mut out, |out| out.extend_from_slice(body));
        out
    }

    #[test]
    fn what_is_sealed_opens_once() {
        for cipher in [Cipher::Aes128Gcm, Cipher::ChaCha20Poly1305, Cipher::Insecure] {
            let (mut sealer, mut opener) = pair(cipher);
            let frame = sealed(&mut sealer, b"hello");
            assert_eq!(frame.len(), HEADER + 5 + cipher.tag());
            assert_eq!(frame[HEADER..HEADER + 5] == *b"hello", cipher == Cipher::Insecure);
            assert_eq!(opener.open(&mut frame.clone()).unwrap(), (0, &b"hello"[..]));
            assert_eq!(opener.open(&mut frame.clone()).unwrap_err(), FrameError::Replayed { number: 0 });
        }
    }

    #[test]
    fn keys_change_with_the_epoch_and_old_frames_still_open() {
        let (mut sealer, mut opener) = pair(Cipher::Aes128Gcm);
        for epoch in [0, 1, 2, 255, 256] {
            sealer.skip_to((epoch << EPOCH_BITS) + (1 << EPOCH_BITS) - 1);
            // Numbers are told by their last 24 bits, so that one must not fall behind by 2²³.
            opener.window.set(sealer.next - 100);
            let [mut before, mut after] = [b"before", b" after"].map(|body| sealed(&mut sealer, body));
            assert_eq!(opener.open(&mut after).unwrap().0, (epoch + 1) << EPOCH_BITS);
            assert_eq!(opener.open(&mut before).unwrap().1, b"before");
        }
        let secret = Secret::new(Cipher::Aes128Gcm, [7; 32]).schedule(&[b"a", b"b"]);
        let ivs: HashSet<[u8; 12]> = (0..100).map(|epoch| secret.epoch(epoch).iv).collect();
        assert_eq!(ivs.len(), 100);
    }

    #[test]
    fn another_key_another_session_and_the_other_direction_do_not_open() {
        let frame = sealed(&mut pair(Cipher::Aes128Gcm).0, b"hello");
        let other_key = Secret::new(Cipher::Aes128Gcm, [8; 32]).schedule(&[b"a", b"b"]);
        let other_direction = Secret::new(Cipher::Aes128Gcm, [7; 32]).schedule(&[b"b", b"a"]);
        for schedule in [other_key, other_direction] {
            let mut opener = Opener::new(schedule, ReplayWindow::default());
            assert!(matches!(opener.open(&mut frame.clone()), Err(FrameError::UnknownKey { .. })));
            // Even if the ids were the same.
            let mut forged = frame.clone();
            forged[1] = opener.schedule.id;
            assert_eq!(opener.open(&mut forged).unwrap_err(), FrameError::NotAuthentic);
        }
    }

    #[test]
    fn a_secret_does_not_print_its_key() {
        let text = format!("{:?}", Secret::new(Cipher::Aes128Gcm, [77; 32]));
        assert!(!text.contains("77") && text.contains("Aes128Gcm"), "{text}");
    }

    proptest! {
        #[test]
        fn whatever_is_changed_is_noticed(
            body in proptest::collection::vec(any::<u8>(), 0..100),
            bit: prop::sample::Index,
            cut: prop::sample::Index,
            chacha: bool,
        ) {
            let cipher = if chacha { Cipher::ChaCha20Poly1305 } else { Cipher::Aes128Gcm };
            let (mut sealer, mut opener) = pair(cipher);
            let frame = sealed(&mut sealer, &body);
            let mut forged = frame.clone();
            let bit = bit.index(8 * frame.len());
            forged[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(opener.open(&mut forged).is_err());
            prop_assert!(opener.open(&mut frame[..cut.index(frame.len())].to_vec()).is_err());
            let mut whole = frame;
            prop_assert_eq!(opener.open(&mut whole).unwrap(), (0, &body[..]));
        }

        /// Against a set that forgets nothing.
        #[test]
        fn the_replay_window_takes_each_number_once(steps in proptest::collection::vec((0u64..9000, any::<bool>()), 1..300)) {
            let mut window = ReplayWindow::default();
            let mut seen = HashSet::new();
            let mut base = 1 << 33;
            for (step, forward) in steps {
                let number = if forward { base += step % 700; base } else { base - step };
                let expected = if number + ReplayWindow::SIZE < window.end() {
                    Err(FrameError::Old)
                } else if seen.contains(&number) {
                    Err(FrameError::Replayed { number })
                } else {
                    Ok(())
                };
                prop_assert_eq!(window.check(number), expected);
                if window.check(number).is_ok() {
                    window.set(number);
                    seen.insert(number);
                }
            }
        }
    }
}
