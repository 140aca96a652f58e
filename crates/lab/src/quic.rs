//! Downloads by QUIC (RFC 9000), which no gateway splits: quinn at both ends, as it is but for its windows.

use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quinn::congestion::{BbrConfig, ControllerFactory, CubicConfig};
use quinn::{ClientConfig, Connection, Endpoint, ServerConfig, TransportConfig, VarInt};
use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use sha2::{Digest, Sha256};
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::Error;
use crate::download::{Progress, Request};
use crate::unsplit::{Crossing, Measured};

/// The port of HTTP/3.
pub const PORT: u16 = 443;
/// The name in the server's certificate.
const NAME: &str = "server";
/// The windows of both ends, bytes: more than any of the laboratory's links holds with its queue, so that the
/// congestion control alone decides. quinn's default, 1.25 MB for a stream, is made for 100 ms.
const WINDOW: u32 = 32 << 20;
/// The windows of a crossing in bandwidth-delay products: the link holds one, the queues in front of it two at
/// the most, and BBR wants less than three.
const PRODUCTS: u64 = 4;
/// A connection is given up after so long without a packet.
const IDLE: Duration = Duration::from_secs(60);
/// How long an end waits before it checks whether it should stop.
const POLL: Duration = Duration::from_millis(100);

/// quinn's congestion controls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Congestion {
    /// CUBIC (RFC 9438), its default.
    Cubic,
    /// The first BBR, which quinn calls experimental.
    Bbr,
}

impl Congestion {
    /// Its name, as it is written and read.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Bbr => "bbr",
        }
    }

    /// Makes its state for each connection.
    pub fn factory(self) -> Arc<dyn ControllerFactory + Send + Sync> {
        match self {
            Self::Cubic => Arc::new(CubicConfig::default()),
            Self::Bbr => Arc::new(BbrConfig::default()),
        }
    }
}

impl FromStr for Congestion {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = [Self::Cubic, Self::Bbr].into_iter().find(|congestion| congestion.name() == name);
        found.ok_or_else(|| format!("quinn has no congestion control \"{name}\": choose cubic or bbr"))
    }
}

/// A server that answers each [`Request`] with its stream, and what it has seen of its connections.
pub struct Server {
    keys: CertifiedKey<KeyPair>,
    congestion: Congestion,
    window: u32,
    round_trips: Arc<Mutex<Vec<Duration>>>,
}

/// What a client has received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// The bytes of the stream.
    pub bytes: u64,
    /// Whether they are those that were sent, by SHA-256.
    pub intact: bool,
}

impl Server {
    /// A server with a certificate of its own; it does not listen yet.
    ///
    /// # Errors
    /// There is no key to be had.
    pub fn new(congestion: Congestion) -> io::Result<Self> {
        let keys = generate_simple_self_signed([NAME.to_owned()]).map_err(io::Error::other)?;
        Ok(Self { keys, congestion, window: WINDOW, round_trips: Arc::default() })
    }

    /// The same with windows of so many bytes at both ends. quinn gives a connection up when a stream has too
    /// many gaps, which BBR makes where it overfills a queue and the window is long.
    pub fn with_window(self, bytes: u64) -> Self {
        Self { window: u32::try_from(bytes).unwrap_or(WINDOW), ..self }
    }

    /// Serves in the network namespace of the calling thread, until it is over.
    ///
    /// # Errors
    /// The socket cannot be opened.
    pub fn run(&self, at: SocketAddr, over: impl Fn() -> bool) -> io::Result<()> {
        block_on(async {
            let endpoint = Endpoint::server(self.config()?, at)?;
            while !over() {
                if let Ok(Some(incoming)) = tokio::time::timeout(POLL, endpoint.accept()).await {
                    let round_trips = Arc::clone(&self.round_trips);
                    tokio::spawn(async move {
                        // The client's end is the end of the connection.
                        if let Ok(connection) = incoming.await {
                            tokio::spawn(record(connection.clone(), round_trips));
                            let _ = answer(&connection).await;
                        }
                    });
                }
            }
            Ok(())
        })
    }

    /// The smoothed round-trip time of each connection, each [`POLL`] (100 ms).
    pub fn round_trips(&self) -> Vec<Duration> {
        self.round_trips.lock().expect("nothing panics with it").clone()
    }

    /// Downloads from this server, in the network namespace of the calling thread, until the stream ends or
    /// it is over, and tells how many bytes have come each time that some do.
    ///
    /// # Errors
    /// The connection fails, or cannot be made.
    pub fn download(
        &self,
        at: SocketAddr,
        request: Request,
        mut count: impl FnMut(u64),
        over: impl Fn() -> bool,
    ) -> io::Result<Received> {
        block_on(async {
            let mut endpoint = Endpoint::client(([0, 0, 0, 0], 0).into())?;
            endpoint.set_default_client_config(self.client()?);
            let connection = endpoint.connect(at, NAME).map_err(io::Error::other)?.await?;
            let (mut ask, mut stream) = connection.open_bi().await?;
            ask.write_all(&request.encode()).await?;
            let (mut buffer, mut hash, mut bytes) = (vec![0; 1 << 16], Sha256::new(), 0);
            while !over() {
                match tokio::time::timeout(POLL, stream.read(&mut buffer)).await {
                    Ok(Ok(Some(length))) => {
                        hash.update(&buffer[..length]);
                        bytes += length as u64;
                        count(length as u64);
                    }
                    Ok(Ok(None)) => break,
                    Ok(Err(error)) => return Err(error.into()),
                    Err(_) => {}
                }
            }
            let sent = Request { bytes, ..request }.digest();
            let intact = bytes <= request.bytes && hash.finalize()[..] == sent;
            Ok(Received { bytes, intact })
        })
    }

    fn config(&self) -> io::Result<ServerConfig> {
        let key = PrivateKeyDer::try_from(self.keys.signing_key.serialize_der()).map_err(io::Error::other)?;
        let certificate = vec![self.keys.cert.der().clone()];
        let mut config = ServerConfig::with_single_cert(certificate, key).map_err(io::Error::other)?;
        config.transport_config(transport(self.congestion, self.window));
        Ok(config)
    }

    fn client(&self) -> io::Result<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.keys.cert.der().clone()).map_err(io::Error::other)?;
        let mut config = ClientConfig::with_root_certificates(Arc::new(roots)).map_err(io::Error::other)?;
        config.transport_config(transport(self.congestion, self.window));
        Ok(config)
    }
}

fn transport(congestion: Congestion, window: u32) -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport
        .stream_receive_window(window.into())
        .receive_window(window.into())
        .send_window(window.into())
        .max_idle_timeout(Some(VarInt::from_u32(IDLE.as_millis() as u32).into()))
        .congestion_controller_factory(congestion.factory());
    Arc::new(transport)
}

/// Answers the requests of a connection, one after another.
async fn answer(connection: &Connection) -> io::Result<()> {
    loop {
        let (mut stream, mut asked) = connection.accept_bi().await?;
        let mut wire = [0; Request::LENGTH];
        asked.read_exact(&mut wire).await.map_err(io::Error::other)?;
        let mut bytes = Request::decode(wire).stream();
        while let Some(chunk) = bytes.next_chunk() {
            stream.write_all(chunk).await?;
        }
        stream.finish().map_err(io::Error::other)?;
    }
}

/// Notes a connection's round-trip time until it is closed.
async fn record(connection: Connection, round_trips: Arc<Mutex<Vec<Duration>>>) {
    while tokio::time::timeout(POLL, connection.closed()).await.is_err() {
        round_trips.lock().expect("nothing panics with it").push(connection.rtt());
    }
}

/// On this thread, whose namespace the sockets then have.
fn block_on<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}

/// One download from the server to the client across a link.
///
/// # Errors
/// The link, a box or the connection failed.
pub fn cross(crossing: &Crossing, congestion: Congestion) -> Result<Measured, Error> {
    let fail = |source| Error::Transfer { run: format!("QUIC, {}", congestion.name()), source };
    let (topology, _boxes) = crossing.set_up("udp")?;
    let server = Server::new(congestion).map_err(fail)?;
    let server = server.with_window(PRODUCTS * crossing.rate.bytes_in(crossing.rtt));
    let address = topology.server_address(PORT);
    let request = Request { seed: crossing.seed, bytes: u64::MAX };
    let client = |progress: &Progress| {
        let (topology, server) = (&topology, &server);
        std::thread::scope(|scope| {
            let over = || progress.is_cancelled() || progress.is_finished();
            let serving = scope.spawn(move || topology.server.run(|| server.run(address, over)));
            let received = topology.client.run(|| {
                server.download(address, request, |bytes| progress.add(bytes), || progress.is_cancelled())
            });
            progress.finish();
            serving.join().expect("the server does not panic").map_err(io::Error::other)??;
            Ok(received.map_err(io::Error::other)??.intact)
        })
    };
    let mut measured = crossing.watch(&topology, client).map_err(fail)?;
    measured.set_round_trips(server.round_trips().iter().map(Duration::as_secs_f64));
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use super::*;

    /// A download over the loopback from a server that is up, until `stop` says so.
    fn download(request: Request, stop: impl Fn(u64) -> bool) -> (Received, u64) {
        let at = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let server = Server::new(Congestion::Bbr).unwrap();
        let (over, counted) = (AtomicBool::new(false), AtomicU64::new(0));
        let received = std::thread::scope(|scope| {
            scope.spawn(|| server.run(at, || over.load(Ordering::Relaxed)).unwrap());
            let count = |bytes| _ = counted.fetch_add(bytes, Ordering::Relaxed);
            let received = server.download(at, request, count, || stop(counted.load(Ordering::Relaxed)));
            over.store(true, Ordering::Relaxed);
            received.unwrap()
        });
        (received, counted.into_inner())
    }

    #[test]
    fn a_whole_stream_is_what_was_sent() {
        let request = Request { seed: 7, bytes: 1_000_001 };
        let (received, counted) = download(request, |_| false);
        assert_eq!(received, Received { bytes: request.bytes, intact: true });
        assert_eq!(counted, request.bytes);
    }

    #[test]
    fn a_part_of_a_stream_is_compared_with_as_much_of_it() {
        let (received, counted) = download(Request { seed: 7, bytes: u64::MAX }, |bytes| bytes > 300_000);
        assert!(received.intact && received.bytes == counted && counted > 300_000, "{received:?}");
    }

    #[test]
    fn a_congestion_control_is_found_by_its_name() {
        assert_eq!("bbr".parse(), Ok(Congestion::Bbr));
        assert!("reno".parse::<Congestion>().unwrap_err().contains("cubic or bbr"));
    }
}
