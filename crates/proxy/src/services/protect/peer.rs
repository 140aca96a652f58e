//! Whether the box at the other end of a protected leg answers, before the daemon runs: for `bentpipe doctor`.
//!
//! A hello that has heard nothing yet begins no session at the peer, which therefore diverts no packets, and
//! is answered all the same. So only such hellos are sent, each with a nonce of its own; the answer has that
//! nonce, which shows that both ways are open and that both boxes have the same key.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use bentpipe_kernel::host::Check;
use bentpipe_legs::ProtectSettings;
use bentpipe_protect::frame::MAX_OVERHEAD;
use bentpipe_protect::{Config as LegConfig, FrameError, Leg, Secret};
use bentpipe_units::{Span, Time};

use super::transport::Transport;
use super::{KEY_REMEDY, entropy, secret};
use crate::config::Config;

/// Between two hellos.
const INTERVAL: Duration = Duration::from_millis(300);
/// Hellos are sent for so long, and their answers waited for: some may be lost, and the way may be long.
const PATIENCE: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(5);
/// The shortest MTU that IPv6 takes (RFC 8200 §5).
const IPV6_MTU: usize = 1280;
/// Others than the owner, in a file's mode.
const OTHERS: u32 = 0o077;

/// For each leg that rules may protect: its key, whether the box at its other end answers, and what fits into
/// frames. Takes up to three seconds for a leg, and begins no session.
pub fn checks(config: &Config) -> Vec<Check> {
    config.protected_legs().flat_map(|(name, _, settings)| leg(name, settings)).collect()
}

fn leg(name: &str, settings: &ProtectSettings) -> Vec<Check> {
    let title = format!("protected leg {name}");
    let secret = match secret(settings) {
        Ok(secret) => secret,
        Err(reason) => return vec![Check::fail(title, reason, KEY_REMEDY)],
    };
    let (peer, port) = (settings.peer.get(), settings.port.get());
    let answer = match Transport::open(peer, port) {
        Ok(transport) => ask(&title, settings, transport, &secret),
        Err(error) if error.kind() == ErrorKind::AddrInUse => Check::pass(
            title,
            format!(
                "UDP port {port} is taken, as it is while the daemon runs; `bentpipe status` says whether the \
                 peer answers"
            ),
        ),
        Err(error) => Check::fail(
            title,
            format!("cannot open UDP port {port}: {error}"),
            format!("another port in legs.{name}.protect, at both ends"),
        ),
    };
    readable_key(name, settings).into_iter().chain([answer]).collect()
}

/// Warns of a key that others may read.
fn readable_key(name: &str, settings: &ProtectSettings) -> Option<Check> {
    let file = settings.key_file.as_ref()?;
    let mode = fs::metadata(file).ok()?.mode();
    (mode & OTHERS != 0).then(|| {
        let found = format!("others than its owner may read {} (mode {:03o})", file.display(), mode & 0o777);
        Check::warn(format!("key of leg {name}"), found, format!("chmod 600 {}", file.display()))
    })
}

fn ask(title: &str, settings: &ProtectSettings, mut transport: Transport, secret: &Secret) -> Check {
    let (peer, port) = (settings.peer.get(), settings.port.get());
    transport.follow();
    match answer(&transport, secret) {
        Ok(after) => {
            let longest = transport.mtu().saturating_sub(transport.headers() + MAX_OVERHEAD);
            let after = Span(Duration::from_millis(after.as_millis().max(1) as u64));
            let found = format!("{peer} answers after {after}; packets of up to {longest} bytes fit");
            if longest < IPV6_MTU {
                let needed = IPV6_MTU + transport.headers() + MAX_OVERHEAD;
                let found = format!("{found}, and IPv6 needs {IPV6_MTU}");
                return Check::warn(title, found, format!("an MTU of {needed} or more on the way to {peer}"));
            }
            Check::pass(title, found)
        }
        Err(why) => {
            let found = format!("{why}; until it does, what becomes of packets is for when_silent to say");
            let fix = format!(
                "bentpipe on {peer} with this host as its peer, the same key, cipher and port; UDP port {port} \
                 open from one to the other in the firewalls of both (`bentpipe doctor -c FILE` there, too)"
            );
            match why {
                // One box is always the first.
                Unanswered::Silent | Unanswered::OneWay => Check::warn(title, found, fix),
                Unanswered::Refused(_) | Unanswered::NoEntropy(_) => Check::fail(title, found, fix),
            }
        }
    }
}

/// Why a peer has not answered a hello.
#[derive(Debug, thiserror::Error)]
enum Unanswered {
    #[error("the peer has not answered within {}", Span(PATIENCE))]
    Silent,
    #[error("the peer says hello, and has not answered ours within {}", Span(PATIENCE))]
    OneWay,
    #[error("what comes from the peer is refused: {0}")]
    Refused(FrameError),
    #[error("there are no random numbers to ask with: {0}")]
    NoEntropy(std::io::Error),
}

/// Until the peer has answered one of our hellos: how long that took.
fn answer(transport: &Transport, secret: &Secret) -> Result<Duration, Unanswered> {
    let begun = Instant::now();
    let (mut asked, mut refused, mut heard) = (Vec::<(Instant, Leg)>::new(), None::<FrameError>, false);
    let (mut buffer, mut frame) = (vec![0; 1 << 16], Vec::new());
    while begun.elapsed() < PATIENCE {
        let now = Time::from_nanos(begun.elapsed().as_nanos() as u64);
        if asked.last().is_none_or(|(at, _)| at.elapsed() >= INTERVAL) {
            let entropy = entropy().map_err(Unanswered::NoEntropy)?;
            let mut leg = Leg::new(LegConfig::default(), secret.clone(), entropy);
            if leg.poll(now, &mut frame, || None).is_some() {
                transport.send(&frame);
            }
            asked.push((Instant::now(), leg));
        }
        while let Some(length) = transport.receive(&mut buffer) {
            for (at, leg) in &mut asked {
                match leg.on_frame(&mut buffer[..length].to_vec(), now) {
                    Ok(()) if leg.has_session() => return Ok(at.elapsed()),
                    Ok(()) => heard = true,
                    Err(error) => refused = Some(error),
                }
            }
        }
        std::thread::sleep(POLL);
    }
    Err(match (heard, refused) {
        (true, _) => Unanswered::OneWay,
        (false, Some(error)) => Unanswered::Refused(error),
        (false, None) => Unanswered::Silent,
    })
}
