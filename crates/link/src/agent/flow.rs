use super::TcpHeader;

/// One direction of a TCP connection, from the sender of the data to their receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flow<E> {
    /// The end that sends the data.
    pub sender: E,
    /// The end that acknowledges them.
    pub receiver: E,
}

impl<E: Copy> Flow<E> {
    /// The flow whose data this segment may carry.
    pub fn of_data(header: &TcpHeader<'_, E>) -> Self {
        Self { sender: header.source, receiver: header.destination }
    }

    /// The flow whose data this segment acknowledges.
    pub fn of_acknowledgement(header: &TcpHeader<'_, E>) -> Self {
        Self { sender: header.destination, receiver: header.source }
    }
}
