use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::config::RelayKind;
use crate::snapshot::Section;

const KINDS: [RelayKind; 2] = [RelayKind::Copy, RelayKind::Splice];

/// A connection on loopback: a test's end, and ours as the relay has it.
fn connection() -> (TcpStream, RelaySocket) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (ours, _) = listener.accept().unwrap();
    ours.set_nonblocking(true).unwrap();
    (peer, RelaySocket::new(OwnedFd::from(ours)))
}

/// Pumps as a worker would, with epoll reporting everything each time, until `done` or the direction has
/// ended.
fn pump_until(
    channel: &mut Channel,
    from: &mut RelaySocket,
    to: &mut RelaySocket,
    pool: &mut BufferPool,
    bytes: u64,
) {
    while channel.bytes() < bytes {
        from.note(EventFlags::IN);
        to.note(EventFlags::OUT);
        if channel.pump(from, to, pool).unwrap() == Progress::Ended {
            return;
        }
        std::thread::yield_now();
    }
}

#[test]
fn bytes_and_end_of_file_arrive_as_they_were_sent() {
    for kind in KINDS {
        let (mut source, mut from) = connection();
        let (mut sink, mut to) = connection();
        let mut pool = BufferPool::new(kind);
        let data: Vec<u8> = (0..3_000_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
        let sent = data.clone();
        let sender = std::thread::spawn(move || source.write_all(&sent).unwrap());
        let receiver = std::thread::spawn(move || {
            let mut received = Vec::new();
            sink.read_to_end(&mut received).unwrap();
            received
        });
        let mut channel = Channel::default();
        pump_until(&mut channel, &mut from, &mut to, &mut pool, u64::MAX);
        sender.join().unwrap();
        assert!(receiver.join().unwrap() == data, "{kind:?}");
        assert_eq!((channel.bytes(), pool.in_use()), (3_000_000, 0), "{kind:?}");
    }
}

#[test]
fn a_stalled_destination_holds_one_buffer_and_stops_reading() {
    for kind in KINDS {
        let (mut source, mut from) = connection();
        let (_sink, mut to) = connection();
        let mut pool = BufferPool::new(kind);
        source.set_nonblocking(true).unwrap();
        let mut channel = Channel::default();
        let mut stalled = 0;
        let block = [7u8; 65536];
        while stalled < 100 {
            let before = channel.bytes();
            let source_full = source.write(&block).is_err();
            from.note(EventFlags::IN);
            to.note(EventFlags::OUT);
            channel.pump(&mut from, &mut to, &mut pool).unwrap();
            stalled = if source_full && channel.bytes() == before { stalled + 1 } else { 0 };
            assert!(pool.in_use() <= 1, "{kind:?}");
        }
        assert_eq!(pool.in_use(), 1, "{kind:?}");
        channel.release(&mut pool);
        assert_eq!(pool.in_use(), 0, "{kind:?}");
    }
}

#[test]
fn an_idle_direction_holds_nothing() {
    for kind in KINDS {
        let (mut source, mut from) = connection();
        let (mut sink, mut to) = connection();
        let mut pool = BufferPool::new(kind);
        let mut channel = Channel::default();
        source.write_all(b"x").unwrap();
        pump_until(&mut channel, &mut from, &mut to, &mut pool, 1);
        let mut byte = [0];
        sink.read_exact(&mut byte).unwrap();
        assert_eq!((byte[0], pool.in_use()), (b'x', 0), "{kind:?}");
    }
}

#[test]
fn a_turn_is_bounded_however_fast_the_ends_are() {
    for kind in KINDS {
        let (mut source, mut from) = connection();
        let (mut sink, mut to) = connection();
        let mut pool = BufferPool::new(kind);
        let sender = std::thread::spawn(move || source.write_all(&vec![1u8; 8 << 20]).unwrap());
        let receiver = std::thread::spawn(move || sink.read_to_end(&mut Vec::new()).unwrap());
        let mut channel = Channel::default();
        loop {
            from.note(EventFlags::IN);
            to.note(EventFlags::OUT);
            let before = channel.bytes();
            let progress = channel.pump(&mut from, &mut to, &mut pool).unwrap();
            assert!(channel.bytes() - before < TURN + (1 << 20), "{kind:?}");
            if progress == Progress::Ended {
                break;
            }
        }
        sender.join().unwrap();
        assert_eq!(receiver.join().unwrap(), 8 << 20, "{kind:?}");
    }
}

#[test]
fn an_end_that_is_known_early_comes_after_the_last_byte() {
    for kind in KINDS {
        for size in [0, 1, 1000, BULK - 1, BULK, BULK + 1, 1_000_000] {
            let (mut source, mut from) = connection();
            let (mut sink, mut to) = connection();
            let mut pool = BufferPool::new(kind);
            let data: Vec<u8> = (0..size).map(|i| ((i * 7) >> 3) as u8).collect();
            let sent = data.clone();
            let sender = std::thread::spawn(move || {
                source.write_all(&sent).unwrap();
                source.shutdown(std::net::Shutdown::Write).unwrap();
                source
            });
            let receiver = std::thread::spawn(move || {
                let mut received = Vec::new();
                sink.read_to_end(&mut received).unwrap();
                received
            });
            let mut channel = Channel::default();
            let mut progress = Progress::Waiting;
            while progress != Progress::Ended {
                from.note(EventFlags::IN | EventFlags::RDHUP);
                to.note(EventFlags::OUT);
                progress = channel.pump(&mut from, &mut to, &mut pool).unwrap();
            }
            sender.join().unwrap();
            assert!(receiver.join().unwrap() == data, "{kind:?} {size}");
        }
    }
}

#[test]
fn small_messages_are_copied_and_bulk_is_spliced() {
    let (mut source, mut from) = connection();
    let (sink, mut to) = connection();
    let mut pool = BufferPool::new(RelayKind::Splice);
    let mut channel = Channel::default();
    source.write_all(&[1; 1000]).unwrap();
    pump_until(&mut channel, &mut from, &mut to, &mut pool, 1000);
    assert!(!channel.is_bulk);
    // Nobody reads, so that what is held can be looked at.
    source.set_nonblocking(true).unwrap();
    let block = [2; 65536];
    let mut turns = 0;
    while !matches!(channel.held, Some(RelayBuffer::Pipe(_))) {
        turns += 1;
        assert!(turns < 10_000, "still not bulk after {} bytes", channel.bytes());
        let _ = source.write(&block);
        from.note(EventFlags::IN);
        to.note(EventFlags::OUT);
        channel.pump(&mut from, &mut to, &mut pool).unwrap();
    }
    let total = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut block = vec![0; 1 << 20];
            while let Ok(count @ 1..) = (&sink).read(&mut block) {
                total.fetch_add(count as u64, Ordering::Relaxed);
            }
        });
        // A message by itself, once all bulk has gone, is copied again.
        while channel.is_bulk {
            if total.load(Ordering::Relaxed) == channel.bytes() {
                let _ = source.write(&[3; 1000]);
            }
            from.note(EventFlags::IN);
            to.note(EventFlags::OUT);
            channel.pump(&mut from, &mut to, &mut pool).unwrap();
        }
        sink.shutdown(std::net::Shutdown::Both).unwrap();
    });
}

/// Hands a channel over as a process would to itself.
fn hand_over(channel: &Channel) -> Channel {
    Section::of(channel).unwrap().read().unwrap()
}

/// What a channel still has to write.
fn rest(channel: &mut Channel) -> Vec<u8> {
    let ((mut peer, mut to), (_source, mut from)) = (connection(), connection());
    let (bytes, mut pool) = (channel.bytes() + channel.held() as u64, BufferPool::new(RelayKind::Splice));
    pool.count_as_acquired(channel.buffers());
    pump_until(channel, &mut from, &mut to, &mut pool, bytes);
    drop(to);
    let mut content = Vec::new();
    // What is relayed is reset when it is closed.
    let _ = peer.read_to_end(&mut content);
    content
}

#[test]
fn buffered_bytes_are_handed_over_and_written_ones_are_not() {
    let buffer = Buffer::holding(b"gone and in flight", 9);
    let held = Some(RelayBuffer::Buffer(buffer));
    let mut over = hand_over(&Channel { held, ended: true, shut: false, is_bulk: true, bytes: 7 });
    assert_eq!((over.ended, over.shut, over.is_bulk, over.bytes), (true, false, true, 7));
    assert_eq!((over.held(), rest(&mut over)), (9, b"in flight".to_vec()));
}

#[test]
fn bytes_in_a_pipe_are_handed_over() {
    let ((mut source, mut from), mut pipe) = (connection(), Pipe::new().unwrap());
    source.write_all(b"in flight").unwrap();
    assert_eq!(pipe.fill(&mut from, usize::MAX).unwrap(), 9);
    let channel = Channel { held: Some(RelayBuffer::Pipe(pipe)), ..Channel::default() };
    let mut over = hand_over(&channel);
    drop(channel);
    assert_eq!(over.held(), 9);
    assert_eq!(rest(&mut over), b"in flight");
}

#[test]
fn an_idle_channel_has_nothing_that_could_come_over() {
    let over = hand_over(&Channel::after(3));
    assert_eq!((over.buffers(), over.bytes()), (0, 3));
}
