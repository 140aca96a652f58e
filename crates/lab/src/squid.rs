//! Squid on the gateway, with bentpipe's congestion control on its satellite side, as the guide
//! `docs/guides/squid.md` sets it up: its files are taken from there.

use std::fs::{self, Permissions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bentpipe_kernel::sockopt;
use bentpipe_testbed::{Child, Namespace, find_tool};
use rustix::net::shutdown;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::Error;
use crate::download::Request;
use crate::topology::Topology;

/// The guide.
const GUIDE: &str = include_str!("../../../docs/guides/squid.md");
/// Where the guide's Squid takes intercepted connections.
pub const PORT: u16 = 3128;
/// A client of the guide's network; the far end of the satellite has it as a second address.
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 20, 0, 2);
/// Where it takes others, on the gateway itself.
const LOCAL_PORT: u16 = 3130;
/// The server's port, which the guide redirects.
const HTTP: u16 = 80;
/// How long Squid may take to start on a busy machine.
const START: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
/// How long a client waits for data before it looks at the time.
const READ_TIMEOUT: Duration = Duration::from_millis(200);

/// What a test says in Squid's configuration besides the guide: where it keeps its files.
const OF_A_TEST: &str = "\
pid_filename none
netdb_filename none
pinger_enable off
access_log none
shutdown_lifetime 0 seconds
";

/// A block of the guide: what is between the fence of this name and the next one.
///
/// # Panics
/// If the guide has no such block.
pub fn block(name: &str) -> &'static str {
    let fence = format!("```{name}\n");
    let (_, rest) = GUIDE.split_once(&fence).unwrap_or_else(|| panic!("the guide has no block {name}"));
    rest.split_once("```").map_or(rest, |(block, _)| block)
}

/// A running Squid with the guide's configuration. It ends when this value is dropped.
#[derive(Debug)]
pub struct Squid {
    _process: Child,
    _folder: TempDir,
}

impl Squid {
    /// Starts it on the gateway, and lets the gateway take the client's connections to port 80.
    ///
    /// # Errors
    /// [`Error::Proxy`] if it does not run soon, with the end of its log.
    pub fn start(topology: &Topology) -> Result<Self, Error> {
        let fail = |what: &str, why: String| Error::Proxy(format!("{what}: {why}"));
        let folder = tempfile::tempdir().map_err(|error| fail("no folder for Squid", error.to_string()))?;
        let log = folder.path().join("cache.log");
        let text = format!(
            "{}{OF_A_TEST}cache_log {}\ncoredump_dir {}\n",
            block("squid"),
            log.display(),
            folder.path().display()
        );
        let path = folder.path().join("squid.conf");
        // Squid gives up its privileges and writes as another user.
        fs::write(&path, text)
            .and_then(|()| fs::set_permissions(folder.path(), Permissions::from_mode(0o777)))
            .map_err(|error| fail("no configuration for Squid", error.to_string()))?;
        let mut command = topology.gateway.command(find_tool("squid"));
        command.args(["-N", "-f"]).arg(&path).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = Child::spawn(command)?;
        let begun = Instant::now();
        while !is_listening(&topology.gateway)? {
            if process.wait_timeout(POLL)?.is_some() || begun.elapsed() > START {
                return Err(fail("Squid does not run", fs::read_to_string(&log).unwrap_or_default()));
            }
        }
        topology.gateway.nft(block("nft"))?;
        Ok(Self { _process: process, _folder: folder })
    }
}

fn is_listening(gateway: &Namespace) -> Result<bool, Error> {
    Ok(gateway.run(|| TcpStream::connect((Ipv4Addr::LOCALHOST, LOCAL_PORT)).is_ok())?)
}

/// Gives the far end of the satellite the address of the guide's client, and the gateway the guide's route
/// there. With a name, the route asks for that congestion control in the place of the guide's; without, for
/// none.
///
/// # Errors
/// [`Error::Testbed`] with what `ip` said, for example that the kernel has no such congestion control.
pub fn route_to_client(topology: &Topology, congestion: Option<&str>) -> Result<(), Error> {
    topology.client.ip(&format!("addr add {CLIENT}/32 dev lo"))?;
    let line = block("sh").trim();
    let route = line.strip_prefix("ip ").expect("the block is a line of ip");
    let (route, name) = route.split_once(" congctl ").expect("the route asks for a congestion control");
    debug_assert_eq!(name, bentpipe_kernel::hybla::NAME);
    let asks = congestion.map(|name| format!(" congctl {name}")).unwrap_or_default();
    Ok(topology.gateway.ip(&format!("{route}{asks}"))?)
}

/// A web server on the terrestrial host, each of whose answers is the same stream. It ends when this value is
/// dropped.
#[derive(Debug)]
pub struct WebServer {
    listener: TcpListener,
    thread: Option<JoinHandle<()>>,
}

impl WebServer {
    /// Serves a stream with `congestion` on its side (the kernel's default without).
    ///
    /// # Errors
    /// Those of the socket.
    pub fn start(topology: &Topology, request: Request, congestion: Option<&str>) -> io::Result<Self> {
        let address = topology.server_address(HTTP);
        let listener = topology.server.run(|| TcpListener::bind(address)).map_err(io::Error::other)??;
        if let Some(name) = congestion {
            sockopt::set_congestion(&listener, name)?;
        }
        let accepting = listener.try_clone()?;
        let thread = std::thread::Builder::new().name("web server".into()).spawn(move || {
            while let Ok((connection, _)) = accepting.accept() {
                // A client that goes away ends its own answer only.
                std::thread::spawn(move || answer(connection, request));
            }
        })?;
        Ok(Self { listener, thread: Some(thread) })
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        // It fails only where nobody listens any more.
        let _ = shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer(mut connection: TcpStream, request: Request) -> io::Result<()> {
    read_head(&mut BufReader::new(connection.try_clone()?))?;
    // Nothing of it is kept in the cache: each download comes from here.
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nContent-Type: application/octet-stream\r\n\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n",
        request.bytes
    );
    connection.write_all(head.as_bytes())?;
    request.generate(|chunk| connection.write_all(chunk))
}

/// What a client got.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    /// The head of the answer.
    pub head: String,
    /// Bytes of its body.
    pub bytes: u64,
    /// Whether these are the first ones of the stream that the server sends.
    pub identical: bool,
    /// From the first SYN to the last byte.
    pub elapsed: Duration,
}

/// Loads the page as the guide's client, for at most so long.
///
/// # Errors
/// Those of the connection, and an answer that is not HTTP.
pub fn load(topology: &Topology, request: Request, most: Duration) -> io::Result<Page> {
    let server = topology.server_address(HTTP);
    let begun = Instant::now();
    let stream = topology.client.run(|| connect_from(CLIENT, server)).map_err(io::Error::other)??;
    stream.set_read_timeout(Some(READ_TIMEOUT))?;
    let get = format!("GET /stream HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", server.ip());
    (&stream).write_all(get.as_bytes())?;
    let mut reader = Patient { stream, until: begun + most };
    let mut buffered = BufReader::new(&mut reader);
    let head = read_head(&mut buffered)?;
    let (mut hash, mut bytes) = (Sha256::new(), 0);
    let (mut chunk, mut last) = (vec![0; 1 << 16], begun);
    loop {
        match buffered.read(&mut chunk) {
            Ok(0) => break,
            Ok(length) => {
                hash.update(&chunk[..length]);
                bytes += length as u64;
                last = Instant::now();
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => break,
            Err(error) => return Err(error),
        }
    }
    let digest: [u8; 32] = hash.finalize().into();
    let identical = bytes <= request.bytes && digest == request.digest_of_first(bytes);
    Ok(Page { head, bytes, identical, elapsed: last - begun })
}

/// Reads on after time-outs, but not after its end.
struct Patient {
    stream: TcpStream,
    until: Instant,
}

impl Read for Patient {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if Instant::now() >= self.until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match self.stream.read(buffer) {
                Err(error) if crate::download::is_timeout(&error) => {}
                outcome => return outcome,
            }
        }
    }
}

fn connect_from(local: Ipv4Addr, to: SocketAddr) -> io::Result<TcpStream> {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&socket, &SocketAddr::from((local, 0)))?;
    connect(&socket, &to)?;
    Ok(TcpStream::from(socket))
}

/// The lines to the empty one.
fn read_head(reader: &mut impl BufRead) -> io::Result<String> {
    const MOST: u64 = 16 << 10;
    let mut head = String::new();
    let mut limited = reader.take(MOST);
    while limited.read_line(&mut head)? > 0 {
        if head.ends_with("\r\n\r\n") {
            return Ok(head);
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "no HTTP"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_has_its_blocks_and_the_daemon_takes_its_configuration() {
        bentpipe_proxy::Config::parse("the guide", block("toml")).unwrap();
        assert!(block("squid").contains(&format!("http_port 0.0.0.0:{PORT} intercept")));
        assert!(block("squid").contains(&format!("http_port 127.0.0.1:{LOCAL_PORT}")));
        assert!(block("nft").contains(&format!("redirect to :{PORT}")));
        assert!(block("sh").contains(bentpipe_kernel::hybla::NAME));
    }

    #[test]
    fn a_head_ends_with_an_empty_line_and_no_head_is_an_error() {
        let mut reader = &b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nbody"[..];
        assert_eq!(read_head(&mut reader).unwrap(), "HTTP/1.1 200 OK\r\nA: b\r\n\r\n");
        assert_eq!(reader, b"body");
        assert!(read_head(&mut &b"nothing\r\n"[..]).is_err());
    }
}
