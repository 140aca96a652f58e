//! Sockets: the listeners that clients' connections reach, and the connections on to the servers.

pub(crate) mod early_data;
pub(crate) mod listener;
pub(crate) mod upstream;
