//! Many connections at once, each with a number of its own, and visitors who come and go beside them.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use socket2::SockRef;

use super::{Net, PATIENCE, SERVER, pattern};

/// Bytes that visitors carry each way at most; the number decides how many.
const MOST_BYTES: u64 = 20_000;

/// Connections that are held, IPv4 and IPv6 in turn.
pub struct Crowd {
    listeners: [TcpListener; 2],
    members: Vec<Member>,
    /// Goes with each member's number, so that no answer of an earlier time is taken for one of now.
    round: u32,
}

struct Member {
    client: TcpStream,
    server: TcpStream,
}

/// How many visitors have come and gone, all of them with what they were sent.
#[derive(Debug, Default)]
pub struct Visits {
    pub orderly: AtomicU64,
    pub reset: AtomicU64,
}

/// How a visitor's connection ends.
#[derive(Debug, Clone, Copy)]
enum Farewell {
    ClientFirst,
    ServerFirst,
    Reset,
}

impl Crowd {
    pub fn new(net: &Net) -> Self {
        Self { listeners: SERVER.map(|address| net.listen(address)), members: Vec::new(), round: 0 }
    }

    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Opens `count` more connections, one after the other, so that the ends of each are known to belong
    /// together; each is tried at once. After each, `tell` gets their number.
    pub fn grow(&mut self, net: &Net, count: usize, mut tell: impl FnMut(usize) + Send) {
        net.client.enter(|| {
            for number in self.members.len()..self.members.len() + count {
                let member = Member::join(&self.listeners[number % 2]).and_then(|mut member| {
                    member.exchange(number, self.round)?;
                    Ok(member)
                });
                self.members.push(member.unwrap_or_else(|error| panic!("connection {number}: {error}")));
                tell(number + 1);
            }
        });
    }

    /// Every member's ends tell each other its number; how many did, and what befell the first that did not.
    pub fn prove_alive(&mut self) -> (usize, Option<String>) {
        self.round += 1;
        let mut dead = None;
        let mut alive = 0;
        for (number, member) in self.members.iter_mut().enumerate() {
            match member.exchange(number, self.round) {
                Ok(()) => alive += 1,
                Err(error) => dead = dead.or_else(|| Some(format!("connection {number}: {error}"))),
            }
        }
        (alive, dead)
    }

    /// Ends all connections by resets, which leave nothing behind that would wait for its time.
    pub fn scatter(self) {
        for member in &self.members {
            SockRef::from(&member.client).set_linger(Some(Duration::ZERO)).unwrap();
        }
    }
}

impl Member {
    fn join(listener: &TcpListener) -> io::Result<Self> {
        let client = TcpStream::connect(listener.local_addr()?)?;
        let (server, peer) = listener.accept()?;
        if peer != client.local_addr()? {
            return Err(io::Error::other(format!("the server sees {peer}, not {}", client.local_addr()?)));
        }
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
        }
        Ok(Self { client, server })
    }

    fn exchange(&mut self, number: usize, round: u32) -> io::Result<()> {
        let word = (number as u64) << 32 | u64::from(round);
        say(&mut self.client, &mut self.server, word)?;
        say(&mut self.server, &mut self.client, !word)
    }
}

/// One end says a word, and the other must hear it.
fn say(from: &mut TcpStream, to: &mut TcpStream, word: u64) -> io::Result<()> {
    let mut heard = [0; 8];
    from.write_all(&word.to_be_bytes())?;
    to.read_exact(&mut heard)?;
    if heard == word.to_be_bytes() {
        Ok(())
    } else {
        Err(io::Error::other(format!("{word:016x} arrived as {:016x}", u64::from_be_bytes(heard))))
    }
}

impl Visits {
    pub fn total(&self) -> u64 {
        self.orderly.load(Ordering::Relaxed) + self.reset.load(Ordering::Relaxed)
    }

    /// Lets visitors come to a listener, one every `interval` or as soon as the last has gone, until `stop`
    /// or for `most` of them.
    pub fn receive(
        &self,
        net: &Net,
        listener: &TcpListener,
        interval: Duration,
        most: u64,
        stop: &AtomicBool,
    ) {
        net.client.enter(|| {
            for number in 0..most {
                let start = Instant::now();
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let farewell = match number % 3 {
                    0 => Farewell::ClientFirst,
                    1 => Farewell::ServerFirst,
                    _ => Farewell::Reset,
                };
                visit(listener, number, farewell)
                    .unwrap_or_else(|error| panic!("visitor {number} ({farewell:?}): {error}"));
                let count = if matches!(farewell, Farewell::Reset) { &self.reset } else { &self.orderly };
                count.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(interval.saturating_sub(start.elapsed()));
            }
        });
    }
}

fn visit(listener: &TcpListener, number: u64, farewell: Farewell) -> io::Result<()> {
    let Member { mut client, mut server } = Member::join(listener)?;
    let bytes = pattern(number, (1 + number * 7919 % MOST_BYTES) as usize);
    carry(&mut client, &mut server, &bytes)?;
    carry(&mut server, &mut client, &bytes)?;
    match farewell {
        Farewell::ClientFirst => part(&mut client, &mut server),
        Farewell::ServerFirst => part(&mut server, &mut client),
        Farewell::Reset => {
            SockRef::from(&client).set_linger(Some(Duration::ZERO))?;
            drop(client);
            match server.read(&mut [0]) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(()),
                other => Err(io::Error::other(format!("a reset arrived as {other:?}"))),
            }
        }
    }
}

fn carry(from: &mut TcpStream, to: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    let mut arrived = vec![0; bytes.len()];
    from.write_all(bytes)?;
    to.read_exact(&mut arrived)?;
    if arrived == bytes { Ok(()) } else { Err(io::Error::other("bytes arrived changed")) }
}

/// One end says that it has finished, then the other does.
fn part(first: &mut TcpStream, second: &mut TcpStream) -> io::Result<()> {
    end(first, second)?;
    end(second, first)
}

fn end(from: &TcpStream, to: &mut TcpStream) -> io::Result<()> {
    from.shutdown(Shutdown::Write)?;
    match to.read(&mut [0])? {
        0 => Ok(()),
        _ => Err(io::Error::other("more arrived than was sent")),
    }
}
