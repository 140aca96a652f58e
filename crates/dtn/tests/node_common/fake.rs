//! A peer that speaks TCPCL as it likes.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use bentpipe_dtn::DtnTime;
use bentpipe_dtn::bundle::{Bundle, Decoder, Piece};
use bentpipe_dtn::convergence::Refusal;
use bentpipe_dtn::tcpcl::message::{Message, SegmentFlags, SegmentHead, SessInit, TransferExtensions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::LONG;

/// The other end of a session with a node.
pub struct Fake {
    pub stream: TcpStream,
    input: Vec<u8>,
    /// The bytes of the node's transfer that is coming, and transfers that came before they were asked for.
    coming: Vec<u8>,
    came: VecDeque<(u64, Vec<u8>)>,
    next_id: u64,
    /// Whether the node has answered with its own name.
    pub welcomed: bool,
}

impl Fake {
    /// Connects, and says who it is; both then have a session.
    pub async fn connect(address: SocketAddr, id: &str) -> Self {
        Self::connect_with(address, id, u64::MAX).await
    }

    /// The same, taking transfers of so many bytes.
    pub async fn connect_with(address: SocketAddr, id: &str, transfer_mru: u64) -> Self {
        Self::over(TcpStream::connect(address).await.unwrap(), id, transfer_mru).await
    }

    /// The same over a connection that is there.
    pub async fn over(mut stream: TcpStream, id: &str, transfer_mru: u64) -> Self {
        // Else the delayed acknowledgement of a segment's head holds up its data.
        stream.set_nodelay(true).unwrap();
        stream.write_all(b"dtn!\x04\x00").await.unwrap();
        stream.read_exact(&mut [0; 6]).await.unwrap();
        let (input, coming, came) = (Vec::new(), Vec::new(), VecDeque::new());
        let mut fake = Self { stream, input, coming, came, next_id: 0, welcomed: false };
        fake.say(&Message::SessInit(SessInit {
            keepalive: 60,
            segment_mru: 1 << 20,
            transfer_mru,
            node: id.into(),
            critical_extension: None,
        }))
        .await;
        fake.welcomed = matches!(fake.hear().await, Some(Message::SessInit(_)));
        fake
    }

    pub async fn say(&mut self, message: &Message) {
        let mut out = Vec::new();
        message.encode(&mut out);
        // Who has closed has said why, and that is read.
        let _ = self.stream.write_all(&out).await;
    }

    /// The next message, without a segment's data; `None` at the end.
    pub async fn hear(&mut self) -> Option<Message> {
        loop {
            if let Some((message, len)) = Message::decode(&self.input).unwrap() {
                self.input.drain(..len);
                return Some(message);
            }
            let read = tokio::time::timeout(LONG, self.stream.read_buf(&mut self.input)).await;
            match read.expect("the node says something") {
                Ok(1..) => {}
                _ => return None,
            }
        }
    }

    /// The next message that is no keepalive, with a segment's data.
    pub async fn hear_all(&mut self) -> Option<(Message, Vec<u8>)> {
        loop {
            let message = self.hear().await?;
            let len = match &message {
                Message::Keepalive => continue,
                Message::Segment(head) => head.len as usize,
                _ => 0,
            };
            while self.input.len() < len {
                if self.stream.read_buf(&mut self.input).await.unwrap_or(0) == 0 {
                    return None;
                }
            }
            return Some((message, self.input.drain(..len).collect()));
        }
    }

    /// Transfers these bytes in one segment; the answer, `None` if the session ended instead.
    pub async fn transfer(&mut self, bytes: &[u8]) -> Option<Result<(), Refusal>> {
        self.begin(bytes, true).await;
        self.answer().await
    }

    /// Sends the first segment of a transfer, or all of it.
    pub async fn begin(&mut self, bytes: &[u8], end: bool) -> u64 {
        let (id, extensions) = (self.next_id, TransferExtensions::default());
        self.next_id += 1;
        let len = bytes.len() as u64;
        let flags = SegmentFlags::of(true, end);
        self.say(&Message::Segment(SegmentHead { flags, id, extensions, len })).await;
        let _ = self.stream.write_all(bytes).await;
        id
    }

    pub async fn answer(&mut self) -> Option<Result<(), Refusal>> {
        loop {
            match self.hear_all().await? {
                (Message::Ack { flags, .. }, _) if flags.is_end() => return Some(Ok(())),
                (Message::Refuse { reason, .. }, _) => return Some(Err(reason)),
                (Message::Segment(head), data) => self.take(head, data).await,
                _ => {}
            }
        }
    }

    /// A transfer of the node, which is acknowledged: its number, and its bytes.
    pub async fn receive(&mut self) -> (u64, Vec<u8>) {
        loop {
            if let Some(transfer) = self.came.pop_front() {
                return transfer;
            }
            let Some((message, data)) = self.hear_all().await else { panic!("the session has ended") };
            if let Message::Segment(head) = message {
                self.take(head, data).await;
            }
        }
    }

    /// Acknowledges a segment, and keeps what came.
    async fn take(&mut self, SegmentHead { flags, id, .. }: SegmentHead, data: Vec<u8>) {
        self.coming.extend(data);
        self.say(&Message::Ack { flags, id, len: self.coming.len() as u64 }).await;
        if flags.is_end() {
            self.came.push_back((id, std::mem::take(&mut self.coming)));
        }
    }

    /// Refuses the node's next transfer for this reason.
    pub async fn refuse_next(&mut self, reason: Refusal) {
        loop {
            let Some((message, _)) = self.hear_all().await else { panic!("the session has ended") };
            if let Message::Segment(SegmentHead { id, .. }) = message {
                return self.say(&Message::Refuse { reason, id }).await;
            }
        }
    }

    /// Whether the session still is one: a keepalive is answered by nothing, and not by an end.
    pub async fn is_alive(&mut self) -> bool {
        self.say(&Message::Keepalive).await;
        let mut byte = [0];
        let looked = tokio::time::timeout(Duration::from_millis(50), self.stream.peek(&mut byte)).await;
        !matches!(looked, Ok(Ok(0) | Err(_)))
    }
}

/// A bundle of an hour's lifetime, made now.
pub fn bundle(source: &str, sequence: u64, destination: &str, len: u64) -> Bundle {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
    let created = DtnTime::from_unix(now);
    let mut bundle = Bundle::new(source, created, sequence, destination, Duration::from_secs(3600));
    bundle.payload_len = len;
    bundle
}

/// A bundle as it is on the wire.
pub fn encoded(bundle: &Bundle, payload: &[u8]) -> Vec<u8> {
    let mut tail = bundle.tail();
    tail.update(payload);
    [&bundle.head()[..], payload, &tail.finish()].concat()
}

/// The other way around.
pub fn decoded(wire: &[u8]) -> (Bundle, Vec<u8>) {
    let (mut decoder, mut head, mut payload, mut rest) = (Decoder::new(), None, Vec::new(), wire);
    loop {
        let (taken, piece) = decoder.feed(rest).unwrap();
        rest = &rest[taken..];
        match piece {
            Piece::Head(bundle) => head = Some(*bundle),
            Piece::Payload(part) => payload.extend_from_slice(part),
            Piece::End => {}
            Piece::More => return (head.unwrap(), payload),
        }
    }
}
