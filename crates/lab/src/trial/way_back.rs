//! A way back from the client that differs from the way out.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bentpipe_link::LinkConfig;
use bentpipe_link::agent::ack_filter::AckFilterConfig;
use bentpipe_link::agent::{AgentConfig, LinkEndConfig};
use bentpipe_units::{ByteCount, Rate};

use crate::topology::Topology;

/// The server's port for uploads.
const PORT: u16 = 9;
/// How long both sides wait for each other before they check whether the trial is over.
const PATIENCE: Duration = Duration::from_millis(100);

/// The direction from the client.
#[derive(Debug, Clone, PartialEq)]
pub struct WayBack {
    /// Its rate.
    pub rate: Rate,
    /// How much its queue holds.
    pub queue: ByteCount,
    /// Whether an ACK filter stands before it.
    pub filter: bool,
    /// The client's uploads, which never end.
    pub uploads: usize,
}

impl WayBack {
    /// Only acknowledgements use it.
    pub fn new(rate: Rate, queue: ByteCount) -> Self {
        Self { rate, queue, filter: false, uploads: 0 }
    }

    /// Sets it in the link.
    pub(super) fn apply(&self, link: &mut LinkConfig) {
        (link.reverse.rate, link.reverse.queue) = (Some(self.rate), Some(self.queue));
    }

    /// The agents at the client's end of the link.
    pub(super) fn end(&self) -> LinkEndConfig {
        let filter = self.filter.then(|| AgentConfig::AckFilter(AckFilterConfig::for_link(self.rate)));
        LinkEndConfig { agents: filter.into_iter().collect(), arq: None }
    }
}

/// What the server does with uploads: it reads them.
pub(super) struct Sink(TcpListener);

impl Sink {
    pub(super) fn open(topology: &Topology) -> io::Result<Self> {
        let address = topology.server_address(PORT);
        let listener = topology.server.run(|| TcpListener::bind(address)).map_err(io::Error::other)??;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Reads all uploads until the trial is over.
    pub(super) fn read(&self, over: &AtomicBool) -> io::Result<()> {
        let (mut uploads, mut buffer): (Vec<TcpStream>, _) = (Vec::new(), vec![0; 1 << 16]);
        while !over.load(Ordering::Relaxed) {
            match self.0.accept() {
                Ok((upload, _)) => uploads.push(upload),
                Err(error) if crate::download::is_timeout(&error) => {}
                Err(error) => return Err(error),
            }
            for upload in &mut uploads {
                upload.set_nonblocking(true)?;
                while matches!(upload.read(&mut buffer), Ok(1..)) {}
            }
            std::thread::sleep(PATIENCE / 10);
        }
        Ok(())
    }
}

/// One upload: it writes until the trial is over.
pub(super) fn upload(server: SocketAddr, over: &AtomicBool) -> io::Result<()> {
    let mut connection = TcpStream::connect(server)?;
    connection.set_write_timeout(Some(PATIENCE))?;
    let zeroes = vec![0; 1 << 14];
    while !over.load(Ordering::Relaxed) {
        match connection.write(&zeroes) {
            Ok(_) => {}
            Err(error) if crate::download::is_timeout(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
