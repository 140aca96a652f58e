//! Ethernet frames with a TCP segment, made and read byte by byte.

const ETHERNET: usize = 14;
const TCP: usize = 20;
const OPTION: usize = 16;

/// What a congestion header says: microseconds, nanoseconds, bytes per second.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeaderFields {
    pub(crate) rtt: u32,
    pub(crate) spacing: u32,
    pub(crate) feedback: i32,
}

#[derive(Debug, Clone)]
pub(crate) struct Segment {
    pub(crate) fields: Option<HeaderFields>,
    pub(crate) v6: bool,
    /// Bytes.
    pub(crate) payload: usize,
    /// Bytes of nothing in front of the congestion header, at most 24.
    pub(crate) nops: usize,
}

impl Segment {
    /// With the right checksum.
    pub(crate) fn frame(&self) -> Vec<u8> {
        let mut options = vec![1u8; self.nops];
        if let Some(HeaderFields { rtt, spacing, feedback }) = self.fields {
            options.extend([254, OPTION as u8, 0x42, 0x50]);
            options.extend(rtt.to_be_bytes());
            options.extend(spacing.to_be_bytes());
            options.extend(feedback.to_be_bytes());
        }
        options.resize(options.len().next_multiple_of(4), 0);
        let length = TCP + options.len() + self.payload;
        let mut frame = vec![2u8; 12];
        frame.extend(if self.v6 { ipv6(length) } else { ipv4(length) });
        let mut tcp = [0u8; TCP];
        tcp[..4].copy_from_slice(&[0x9c, 0x40, 0, 80]);
        tcp[12] = (((TCP + options.len()) / 4) as u8) << 4;
        tcp[13] = 0x18;
        frame.extend(tcp);
        frame.extend(options);
        frame.extend((0..self.payload).map(|byte| byte as u8));
        let checksum = !sum(&frame);
        write_checksum(&mut frame, checksum);
        frame
    }

    /// As the kernel's own TCP leaves it for later: with the sum of the pseudo header instead of the
    /// checksum.
    pub(crate) fn unfinished_frame(&self) -> Vec<u8> {
        let mut frame = self.frame();
        let pseudo = sum(&frame[..transport(&frame)]);
        let length = (frame.len() - transport(&frame)) as u16;
        let (sum, carry) = pseudo.overflowing_add(length);
        write_checksum(&mut frame, sum + u16::from(carry));
        frame
    }

    /// Bytes of the IP packets into which the segment is cut.
    pub(crate) fn wire_bytes(&self, segments: u32) -> u32 {
        let ip = self.frame().len() - ETHERNET;
        let headers = (ip - self.payload) as u32;
        ip as u32 + (segments.max(1) - 1) * headers
    }
}

/// The feedback in the congestion header of a frame that has one.
pub(crate) fn feedback_of(frame: &[u8]) -> i32 {
    let at = feedback_at(frame).expect("a congestion header");
    i32::from_be_bytes(frame[at..at + 4].try_into().unwrap())
}

/// The frame with zeros for feedback and checksum.
pub(crate) fn blank(frame: &[u8]) -> Vec<u8> {
    let mut blank = frame.to_vec();
    if let Some(at) = feedback_at(frame) {
        blank[at..at + 4].fill(0);
    }
    let checksum = transport(frame) + 16;
    blank[checksum..checksum + 2].fill(0);
    blank
}

pub(crate) fn checksum_is_right(frame: &[u8]) -> bool {
    sum(frame) == 0xffff
}

/// The packet of a device without link headers as a frame.
pub(crate) fn with_link_header(packet: &[u8]) -> Vec<u8> {
    let protocol = if packet[0] >> 4 == 6 { [0x86, 0xdd] } else { [8, 0] };
    [&[0; 12][..], &protocol, packet].concat()
}

/// What the segment carries.
pub(crate) fn payload(frame: &[u8]) -> &[u8] {
    let start = transport(frame);
    &frame[start + usize::from(frame[start + 12] >> 4) * 4..]
}

fn write_checksum(frame: &mut [u8], checksum: u16) {
    let at = transport(frame) + 16;
    frame[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
}

fn feedback_at(frame: &[u8]) -> Option<usize> {
    let options = transport(frame) + TCP;
    let position = frame[options..].windows(4).position(|bytes| bytes == [254, 16, 0x42, 0x50])?;
    Some(options + position + 12)
}

fn ipv4(length: usize) -> Vec<u8> {
    let total = ((20 + length) as u16).to_be_bytes();
    let mut header = vec![8, 0, 0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, 6, 0, 0];
    header.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    let checksum = !fold(words(&header[2..]));
    header[12..14].copy_from_slice(&checksum.to_be_bytes());
    header
}

fn ipv6(length: usize) -> Vec<u8> {
    let length = (length as u16).to_be_bytes();
    let mut header = vec![0x86, 0xdd, 0x60, 0, 0, 0, length[0], length[1], 6, 64];
    header.extend([0xfd, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 1]);
    header.extend([0xfd, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 2]);
    header
}

fn is_v6(frame: &[u8]) -> bool {
    frame[12..14] == [0x86, 0xdd]
}

fn transport(frame: &[u8]) -> usize {
    ETHERNET + if is_v6(frame) { 40 } else { 20 }
}

/// The sum of the segment and its pseudo header (RFC 9293 §3.1, RFC 8200 §8.1), carries folded.
fn sum(frame: &[u8]) -> u16 {
    let start = transport(frame);
    let addresses = if is_v6(frame) { ETHERNET + 8 } else { ETHERNET + 12 };
    let length = (frame.len() - start) as u32;
    fold(words(&frame[addresses..]) + length + 6)
}

fn words(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0))).sum()
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
