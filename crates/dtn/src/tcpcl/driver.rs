//! A session over a socket: two tasks around one [`Session`].
//!
//! One task reads: what comes goes from its buffer of 256 KiB to the host. The other writes: messages that wait, then a segment with its
//! head, from one buffer in one write. Whatever may block on a disk runs where blocking is allowed, so a slow disk of one session
//! stops no other; and while the reader waits for the disk, the writer goes on.
//!
//! What a peer can take: these two buffers, [`MAX_CONTROL`](super::session::MAX_CONTROL) bytes of answers that it does not read, and
//! a ticket for each transfer that it does not acknowledge, at most [`MAX_UNACKNOWLEDGED`](super::session::MAX_UNACKNOWLEDGED).
//! Before the session is established it can take the reader's buffer, and 30 s.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bentpipe_units::Time;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::message::{CONTACT_LEN, MAX_HEAD};
use super::session::{Event, Session};
use super::settings::{EndedBy, Role, SessionEnd, SessionSettings};
use super::tls::{Tls, explain};
use super::{Host, Incoming, Outgoing, Refusal};
use crate::Eid;

/// What is read at once, bytes; the rest of it is what one message without data needs.
const READ_BUFFER: usize = 256 << 10;
/// How long the last words may take to get out, and the other end to close after them.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// What is read after the end, so that closing resets nothing that is under way, bytes.
const MAX_AFTER_END: usize = 1 << 20;

type Reader = Box<dyn AsyncRead + Send + Unpin>;
type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// Runs a session over `stream` until it ends, whoever ends it. When `shutdown` becomes `true`, or its sender is dropped, the session ends
/// in order: what has begun is finished. If the future is dropped, the session is gone at once; in any case each
/// transfer whose fate is not known is given back to the host.
///
/// Blocks on disks within [`tokio::task::block_in_place`], so the runtime should be one with several threads.
pub async fn run(
    stream: TcpStream,
    role: Role,
    settings: SessionSettings,
    host: Arc<dyn Host>,
    mut shutdown: watch::Receiver<bool>,
) -> SessionEnd {
    let address = stream.peer_addr().ok();
    let place = address.map_or_else(|| "an unknown address".into(), |address| address.to_string());
    if let Err(error) = bentpipe_kernel::sockopt::set_nodelay(&stream) {
        tracing::debug!(%place, %error, "cannot set TCP_NODELAY");
    }
    let tls = settings.tls.clone();
    let epoch = Instant::now();
    let session = Session::new(role, settings, place.clone(), Time::ZERO);
    let shared = Arc::new(Shared { session: Mutex::new(session), wake: Notify::new(), host, epoch, place });
    let guard = Guard(shared.clone());
    let address = address.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |address| address.ip());
    if let Some((reader, writer)) = open(&shared, stream, role, &tls, address, &mut shutdown).await {
        exchange(&shared, reader, writer, shutdown).await;
    }
    drop(guard);
    let end = shared.lock().end().cloned();
    // Giving back the rest has ended what nothing else had ended.
    end.unwrap_or_else(|| SessionEnd {
        by: EndedBy::Us,
        reason: "the session was dropped".into(),
        in_order: false,
        peer: None,
    })
}

/// What both tasks know.
struct Shared {
    session: Mutex<Session>,
    /// There may be something to write.
    wake: Notify,
    host: Arc<dyn Host>,
    epoch: Instant,
    place: String,
}

/// Gives back what is left when the session is over, also where its future is dropped.
struct Guard(Arc<Shared>);

impl Drop for Guard {
    fn drop(&mut self) {
        let (peer, left) = {
            let mut session = self.0.lock();
            let left = session.abandon();
            (session.peer().cloned(), left)
        };
        if let Some(peer) = peer {
            blocking(|| left.into_iter().for_each(|ticket| self.0.host.returned(&peer, ticket)));
        }
    }
}

impl Shared {
    /// The lock is held for a few instructions, never across a call of the host. A panic within leaves a session that can still end.
    fn lock(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Time {
        Time::ZERO + self.epoch.elapsed()
    }

    fn is_over(&self) -> bool {
        self.lock().end().is_some()
    }

    fn failed(&self, attempt: &str, error: &io::Error) {
        let mut session = self.lock();
        match explain(error, &self.place) {
            Some(text) => session.give_up(EndedBy::Peer, text),
            None => session.connection_failed(attempt, error),
        }
    }

    /// Waits until something is due, and does it; at once if the session is over.
    async fn tick(&self) {
        let deadline = self.lock().deadline();
        // At least once a day, so that the end of time is no special case.
        let due = deadline.since(self.now()).min(Duration::from_secs(86_400));
        tokio::time::sleep(due).await;
        self.lock().on_time(self.now());
    }
}

/// Work that may wait for a disk.
fn blocking<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// Contact headers, and TLS where both want it; `None` if that was the session's end.
async fn open(
    shared: &Arc<Shared>,
    stream: TcpStream,
    role: Role,
    tls: &Tls,
    address: IpAddr,
    shutdown: &mut watch::Receiver<bool>,
) -> Option<(Reader, Writer)> {
    let opened = tokio::select! {
        opened = contact(shared, stream, role, tls, address) => opened,
        () = until_over(shared) => None,
        () = asked(shutdown, false) => {
            shared.lock().terminate(shared.now());
            None
        }
    };
    opened.filter(|_| !shared.is_over())
}

async fn until_over(shared: &Shared) {
    while !shared.is_over() {
        tokio::select! {
            () = shared.tick() => {}
            () = shared.wake.notified() => {}
        }
    }
}

async fn contact(
    shared: &Arc<Shared>,
    mut stream: TcpStream,
    role: Role,
    tls: &Tls,
    address: IpAddr,
) -> Option<(Reader, Writer)> {
    let mut out = Vec::new();
    shared.lock().take_control(&mut out, shared.now());
    let mut header = [0; CONTACT_LEN];
    let read = async {
        stream.write_all(&out).await?;
        stream.read_exact(&mut header).await
    };
    match read.await {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            shared.lock().receive_eof();
            return None;
        }
        Err(error) => {
            shared.failed("exchanging contact headers", &error);
            return None;
        }
    }
    out.clear();
    let event = {
        let mut session = shared.lock();
        let event = session.receive_contact(header, shared.now());
        session.take_control(&mut out, shared.now());
        event
    };
    if let Err(error) = stream.write_all(&out).await {
        shared.failed("exchanging contact headers", &error);
        return None;
    }
    if shared.is_over() {
        let _ = tokio::time::timeout(LAST_WORDS, stream.shutdown()).await;
        return None;
    }
    let (Some(Event::StartTls), Tls::Offer(config) | Tls::Require(config)) = (event, tls) else {
        let (reader, writer) = stream.into_split();
        return Some((Box::new(reader), Box::new(writer)));
    };
    match config.handshake(role, stream, &shared.place, address).await {
        Ok((stream, proven)) => {
            shared.lock().tls_done(proven);
            let (reader, writer) = tokio::io::split(stream);
            Some((Box::new(reader), Box::new(writer)))
        }
        Err(text) => {
            shared.lock().give_up(EndedBy::Us, text);
            None
        }
    }
}

/// The session itself.
async fn exchange(
    shared: &Arc<Shared>,
    reader: Reader,
    mut writer: Writer,
    mut shutdown: watch::Receiver<bool>,
) {
    let mut tasks = JoinSet::new();
    tasks.spawn(read(shared.clone(), reader));
    let written = write(shared, &mut writer, &mut shutdown).await;
    if written {
        last_words(shared, &mut writer).await;
        // Until the other end closes, or it takes too long; what is still read is thrown away.
        let _ = tokio::time::timeout(LAST_WORDS, tasks.join_next()).await;
    }
    tasks.shutdown().await;
}

/// Writes what is left to say, if that is possible soon.
async fn last_words(shared: &Shared, writer: &mut Writer) {
    let mut out = Vec::new();
    shared.lock().take_control(&mut out, shared.now());
    let say = async {
        writer.write_all(&out).await?;
        writer.flush().await?;
        writer.shutdown().await
    };
    let _ = tokio::time::timeout(LAST_WORDS, say).await;
}

/// Writes until the session is over. Says whether the last write was whole, so that another can follow.
async fn write(shared: &Shared, writer: &mut Writer, shutdown: &mut watch::Receiver<bool>) -> bool {
    let mut buffer = Vec::new();
    let mut sending: Option<Box<dyn Outgoing>> = None;
    let mut asked_to_end = *shutdown.borrow_and_update();
    if asked_to_end {
        shared.lock().terminate(shared.now());
    }
    while !shared.is_over() {
        if !fill(shared, &mut buffer, &mut sending) {
            return true;
        }
        if buffer.is_empty() {
            wait(shared, shutdown, &mut asked_to_end).await;
        } else if !put(shared, writer, &buffer, shutdown, &mut asked_to_end).await {
            return false;
        }
    }
    true
}

/// Fills the buffer with what is to be written next; nothing if there is nothing. `false` if the session must end here.
fn fill(shared: &Shared, buffer: &mut Vec<u8>, sending: &mut Option<Box<dyn Outgoing>>) -> bool {
    buffer.clear();
    let (limit, peer) = {
        let mut session = shared.lock();
        session.take_control(buffer, shared.now());
        if sending.as_ref().map(|outgoing| outgoing.ticket()) != session.sending() {
            // It was refused.
            *sending = None;
        }
        (session.may_begin(), session.peer().cloned())
    };
    if let (None, Some(limit), Some(peer)) = (&*sending, limit, &peer) {
        *sending = begin(shared, peer, limit);
    }
    let Some(outgoing) = sending else { return true };
    let Some(next) = shared.lock().segment(buffer, shared.now()) else { return true };
    if let Err(error) = blocking(|| append(outgoing.as_mut(), buffer, next.len)) {
        // RFC 9174 has no other way to break off a transfer: its segments can only end when it is complete.
        let text = format!("a bundle for {} could not be read from the store: {error}", shared.place);
        shared.lock().give_up(EndedBy::Us, text);
        buffer.clear();
        return false;
    }
    if next.end {
        *sending = None;
    }
    true
}

fn begin(shared: &Shared, peer: &Eid, limit: u64) -> Option<Box<dyn Outgoing>> {
    let outgoing = blocking(|| shared.host.next(peer, limit))?;
    let (ticket, len) = (outgoing.ticket(), outgoing.len());
    if len > limit {
        tracing::error!(place = %shared.place, len, limit, "a bundle is longer than what was asked for");
        blocking(|| shared.host.refused(peer, ticket, Refusal::NoResources));
        return None;
    }
    // Between the question and here the session may have ended, or the other end may want no more.
    let begun = {
        let mut session = shared.lock();
        let open = session.may_begin().is_some();
        if open {
            session.begin(ticket, len);
        }
        open
    };
    if !begun {
        blocking(|| shared.host.returned(peer, ticket));
    }
    begun.then_some(outgoing)
}

fn append(outgoing: &mut dyn Outgoing, buffer: &mut Vec<u8>, len: usize) -> io::Result<()> {
    let begin = buffer.len();
    buffer.resize(begin + len, 0);
    let mut left = &mut buffer[begin..];
    while !left.is_empty() {
        match outgoing.read(left)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => left = left.get_mut(read..).unwrap_or_default(),
        }
    }
    Ok(())
}

/// Waits until there may be something to write.
async fn wait(shared: &Shared, shutdown: &mut watch::Receiver<bool>, asked_to_end: &mut bool) {
    let peer = {
        let session = shared.lock();
        session.may_begin().and_then(|_| session.peer().cloned())
    };
    let ready = async {
        match &peer {
            Some(peer) => shared.host.ready(peer).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = shared.wake.notified() => {}
        () = ready => {}
        () = shared.tick() => {}
        () = asked(shutdown, *asked_to_end) => end_in_order(shared, asked_to_end),
    }
}

/// Writes the buffer; `false` if that was not possible or the session ended meanwhile.
async fn put(
    shared: &Shared,
    writer: &mut Writer,
    buffer: &[u8],
    shutdown: &mut watch::Receiver<bool>,
    asked_to_end: &mut bool,
) -> bool {
    let whole = async {
        writer.write_all(buffer).await?;
        writer.flush().await
    };
    tokio::pin!(whole);
    loop {
        tokio::select! {
            biased;
            written = &mut whole => {
                if let Err(error) = &written {
                    // The reader may know better why the other end has closed: it may have said so.
                    let _ = tokio::time::timeout(LAST_WORDS / 4, until_over(shared)).await;
                    shared.failed("writing", error);
                }
                return written.is_ok();
            }
            () = shared.tick() => {}
            () = shared.wake.notified() => {}
            () = asked(shutdown, *asked_to_end) => end_in_order(shared, asked_to_end),
        }
        if shared.is_over() {
            // A last chance, so that the reason for the end can follow what is half written.
            return matches!(tokio::time::timeout(LAST_WORDS, &mut whole).await, Ok(Ok(())));
        }
    }
}

async fn asked(shutdown: &mut watch::Receiver<bool>, already: bool) {
    if already {
        std::future::pending::<()>().await;
    }
    // Who has dropped the sender cannot ask any more, and wants no sessions either.
    let _ = shutdown.wait_for(|end| *end).await;
}

fn end_in_order(shared: &Shared, asked_to_end: &mut bool) {
    *asked_to_end = true;
    shared.lock().terminate(shared.now());
}

/// Ends the session where its reader ends otherwise: by a panic of the host.
struct Failed<'a>(&'a Shared);

impl Drop for Failed<'_> {
    fn drop(&mut self) {
        let text = format!("the session with {} failed in this node; its log says where", self.0.place);
        self.0.lock().give_up(EndedBy::Us, text);
        self.0.wake.notify_one();
    }
}

/// Reads until the session is over, or the other end has closed.
async fn read(shared: Arc<Shared>, mut reader: Reader) {
    let mut buffer = vec![0; READ_BUFFER + MAX_HEAD].into_boxed_slice();
    let mut filled = 0;
    let _guard = Failed(&shared);
    let mut receiver = Receiver { shared: &shared, peer: None, incoming: None };
    while !shared.is_over() {
        match read_some(&mut reader, &mut buffer[filled..]).await {
            Ok(0) => shared.lock().receive_eof(),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => shared.lock().receive_eof(),
            Err(error) => shared.failed("reading", &error),
            Ok(len) => {
                filled += len;
                let used = blocking(|| receiver.take(&buffer[..filled]));
                buffer.copy_within(used..filled, 0);
                filled -= used;
            }
        }
        shared.wake.notify_one();
    }
    drop(receiver);
    let mut left = MAX_AFTER_END;
    while let Ok(len @ 1..) = read_some(&mut reader, &mut buffer).await
        && len < left
    {
        left -= len;
    }
}

/// Reads what is there: at least a byte, or the end. TLS gives a record at a time, and each call of the host costs more than that.
async fn read_some(reader: &mut Reader, buffer: &mut [u8]) -> io::Result<usize> {
    poll_fn(|context| {
        let mut read = ReadBuf::new(buffer);
        loop {
            let before = read.filled().len();
            match Pin::new(&mut *reader).poll_read(context, &mut read) {
                Poll::Pending if before > 0 => return Poll::Ready(Ok(before)),
                Poll::Pending => return Poll::Pending,
                // An error comes again with the next read.
                Poll::Ready(Err(_)) if before > 0 => return Poll::Ready(Ok(before)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) if read.filled().len() == before || read.remaining() == 0 => {
                    return Poll::Ready(Ok(read.filled().len()));
                }
                Poll::Ready(Ok(())) => {}
            }
        }
    })
    .await
}

/// Hands what comes to the host.
struct Receiver<'a> {
    shared: &'a Shared,
    peer: Option<Eid>,
    incoming: Option<Box<dyn Incoming>>,
}

impl Receiver<'_> {
    /// Takes what is complete of `input`; the number of bytes.
    fn take(&mut self, input: &[u8]) -> usize {
        let shared = self.shared;
        shared.lock().set_busy(true, shared.now());
        let mut used = 0;
        loop {
            let (len, event) = shared.lock().receive(&input[used..], shared.now());
            used += len;
            match event {
                Some(event) => self.on_event(event),
                None if len == 0 => break,
                None => {}
            }
            if used == input.len() && shared.is_over() {
                break;
            }
        }
        shared.lock().set_busy(false, shared.now());
        used
    }

    fn on_event(&mut self, event: Event<'_>) {
        let (shared, host) = (self.shared, &self.shared.host);
        match (event, self.peer.clone()) {
            (Event::Introduced(peer), _) => self.introduce(peer),
            (Event::Begin { announced }, Some(peer)) => match host.receive(&peer, announced) {
                Ok(incoming) => self.incoming = Some(incoming),
                Err(why) => self.refuse(why),
            },
            (Event::Data(bytes), _) => {
                let written = self.incoming.as_mut().map_or(Err(Refusal::Retransmit), |i| i.write(bytes));
                written.unwrap_or_else(|why| self.refuse(why));
            }
            (Event::Complete, _) => {
                let finished = self.incoming.take().map_or(Err(Refusal::Retransmit), Incoming::finish);
                shared.lock().finished(finished);
                shared.wake.notify_one();
            }
            (Event::Abandoned, _) => self.incoming = None,
            (Event::Sent(ticket), Some(peer)) => host.sent(&peer, ticket),
            (Event::Refused(ticket, why), Some(peer)) => host.refused(&peer, ticket, why),
            // Before the introduction there are no transfers, and TLS begins before this task.
            (Event::StartTls | Event::Begin { .. } | Event::Sent(_) | Event::Refused(..), _) => {}
        }
    }

    fn introduce(&mut self, peer: Eid) {
        let shared = self.shared;
        let proven = shared.lock().proven().cloned();
        match shared.host.admit(&peer, proven.as_ref()) {
            Ok(()) => {
                shared.lock().admit(shared.now());
                self.peer = Some(peer);
            }
            Err(why) => shared.lock().turn_away(&why),
        }
    }

    fn refuse(&mut self, why: Refusal) {
        self.incoming = None;
        self.shared.lock().refuse(why);
    }
}
