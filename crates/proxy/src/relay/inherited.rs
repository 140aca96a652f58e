//! What of the relay goes to the next process, and comes from the last one.

use std::os::fd::{AsFd, OwnedFd};

use super::{Buffer, Channel, Pipe, RelayBuffer, RelaySocket};
use crate::upgrade::{ChannelSnapshot, RelayBufferSnapshot, SnapshotReader, SnapshotWriter};

impl RelaySocket {
    /// A socket of which epoll will say again what it has said before, but for the urgent data of an earlier moment.
    pub(crate) fn inherited(socket: OwnedFd, has_urgent_data: bool) -> Self {
        Self { has_urgent_data, ..Self::new(socket) }
    }

    pub(crate) fn has_urgent_data(&self) -> bool {
        self.has_urgent_data
    }
}

impl Channel {
    pub(crate) fn snapshot<'a>(&'a self, writer: &mut SnapshotWriter<'a>) -> ChannelSnapshot {
        let Self { held, ended, shut, is_bulk, bytes } = self;
        let held = held.as_ref().map(|buffer| match buffer {
            RelayBuffer::Buffer(buffer) => RelayBufferSnapshot::Buffer(writer.bytes(buffer.content())),
            RelayBuffer::Pipe(pipe) => {
                let [read, write] = pipe.ends().map(|end| writer.descriptor(end.as_fd()));
                RelayBufferSnapshot::Pipe { read, write, held: pipe.held() }
            }
        });
        ChannelSnapshot { bytes: *bytes, ended: *ended, shut: *shut, is_bulk: *is_bulk, held }
    }

    /// The channel of a snapshot, with what it holds.
    pub(crate) fn inherited(snapshot: ChannelSnapshot, reader: &mut SnapshotReader) -> Result<Self, String> {
        let ChannelSnapshot { bytes, ended, shut, is_bulk, held } = snapshot;
        let buffer = |held| match held {
            RelayBufferSnapshot::Buffer(place) => {
                Ok(RelayBuffer::Buffer(Buffer::holding(reader.bytes(place)?)))
            }
            RelayBufferSnapshot::Pipe { read, write, held } => {
                let [read, write] = [reader.descriptor(read)?, reader.descriptor(write)?];
                Pipe::holding(read, write, held)
                    .map(RelayBuffer::Pipe)
                    .map_err(|error| format!("a pipe: {error}"))
            }
        };
        Ok(Self { held: held.map(buffer).transpose()?, ended, shut, is_bulk, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upgrade::Snapshot;
    use std::io::{Read, Write};

    /// Hands a channel over as a process would to itself.
    fn hand_over(channel: &Channel) -> Channel {
        let mut writer = SnapshotWriter::default();
        let snapshot = channel.snapshot(&mut writer);
        let (mut reader, snapshot) = Snapshot::rehearse(writer, &snapshot);
        Channel::inherited(snapshot, &mut reader).unwrap()
    }

    #[test]
    fn what_a_buffer_holds_comes_over_and_what_has_left_it_does_not() {
        let channel = Channel {
            held: Some(RelayBuffer::Buffer(Buffer::holding(b"in flight"))),
            ended: true,
            shut: false,
            is_bulk: true,
            bytes: 7,
        };
        let over = hand_over(&channel);
        let Some(RelayBuffer::Buffer(buffer)) = &over.held else { panic!("{over:?}") };
        assert_eq!(
            (buffer.content(), over.ended, over.shut, over.is_bulk, over.bytes),
            (&b"in flight"[..], true, false, true, 7)
        );
    }

    #[test]
    fn what_a_pipe_holds_comes_over() {
        let (mut read, mut write) = std::io::pipe().unwrap();
        write.write_all(b"in flight").unwrap();
        let [first, second] = [read.try_clone().unwrap().into(), write.try_clone().unwrap().into()];
        let pipe = Pipe::holding(first, second, 9).unwrap();
        let channel = Channel { held: Some(RelayBuffer::Pipe(pipe)), ..Channel::default() };
        let over = hand_over(&channel);
        drop((channel, write));
        assert_eq!(over.held(), 9);
        drop(over);
        let mut content = String::new();
        read.read_to_string(&mut content).unwrap();
        assert_eq!(content, "in flight");
    }

    #[test]
    fn an_idle_channel_has_nothing_that_could_come_over() {
        let over = hand_over(&Channel::after(3));
        assert_eq!((over.buffers(), over.bytes()), (0, 3));
    }
}
