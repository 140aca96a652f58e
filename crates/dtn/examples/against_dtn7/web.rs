//! What applications of dtn7-rs speak: its web interface (HTTP/1.1, RFC 9112) and its WebSockets (RFC 6455).

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// The longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(120);
/// The largest frame that is sent; dtn7-rs takes 16 MiB.
const FRAME: usize = 8 << 20;
/// What `GET /endpoint` says when there is no bundle.
const NOTHING: &[u8] = b"Nothing to receive";

/// A connection with `dtnd`'s web interface, which stays open from one request to the next.
#[derive(Debug)]
pub(crate) struct Web {
    stream: BufReader<TcpStream>,
}

/// A WebSocket of `dtnd`: the way for bundles that are longer than HTTP's 2 MiB, up to 64 MiB.
#[derive(Debug)]
pub(crate) struct WebSocket {
    stream: BufReader<TcpStream>,
}

impl Web {
    /// # Errors
    /// Nobody listens.
    pub(crate) fn connect(port: u16) -> io::Result<Self> {
        Ok(Self { stream: connect(port)? })
    }

    /// Hands over a payload as a bundle.
    ///
    /// # Errors
    /// It is not taken.
    pub(crate) fn send(&mut self, destination: &str, payload: &[u8]) -> io::Result<()> {
        let path = format!("/send?dst={destination}&lifetime=1h");
        self.request("POST", &path, payload).map(drop)
    }

    /// The next bundle of a service, encoded, if there is one. `dtnd` forgets it thereby.
    ///
    /// # Errors
    /// The conversation broke off.
    pub(crate) fn receive(&mut self, service: &str) -> io::Result<Option<Vec<u8>>> {
        let bundle = self.request("GET", &format!("/endpoint?{service}"), &[])?;
        Ok((bundle != NOTHING).then_some(bundle))
    }

    fn request(&mut self, method: &str, path: &str, body: &[u8]) -> io::Result<Vec<u8>> {
        let mut request =
            format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len())
                .into_bytes();
        request.extend_from_slice(body);
        self.stream.get_mut().write_all(&request)?;
        let (status, len) = head(&mut self.stream)?;
        let mut answer = vec![0; len];
        self.stream.read_exact(&mut answer)?;
        match status {
            200 => Ok(answer),
            _ => Err(broken(format!("{path}: {status} {}", String::from_utf8_lossy(&answer)))),
        }
    }
}

impl WebSocket {
    /// # Errors
    /// Nobody listens, or it is no `dtnd`.
    pub(crate) fn connect(port: u16) -> io::Result<Self> {
        let mut stream = connect(port)?;
        stream.get_mut().write_all(
            b"GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
              Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: YmVudHBpcGUtYmVudHBpcA==\r\n\r\n",
        )?;
        let (status, _) = head(&mut stream)?;
        if status != 101 {
            return Err(broken(format!("no WebSocket but {status}")));
        }
        let mut socket = Self { stream };
        socket.message(0x1, b"/data")?;
        socket.answer()?;
        Ok(socket)
    }

    /// Hands over a payload as a bundle.
    ///
    /// # Errors
    /// It is not taken.
    pub(crate) fn send(&mut self, source: &str, destination: &str, payload: &[u8]) -> io::Result<()> {
        self.message(0x2, &send_request(source, destination, payload))?;
        self.answer().map(drop)
    }

    fn message(&mut self, opcode: u8, content: &[u8]) -> io::Result<()> {
        let frames = content.chunks(FRAME).count().max(1);
        for index in 0..frames {
            let part = &content[index * FRAME..content.len().min((index + 1) * FRAME)];
            let opcode = if index == 0 { opcode } else { 0x0 };
            let last = if index + 1 == frames { 0x80 } else { 0 };
            let mut frame = vec![last | opcode];
            match part.len() {
                len @ ..126 => frame.push(0x80 | len as u8),
                len @ 126..0x1_0000 => {
                    frame.push(0x80 | 126);
                    frame.extend((len as u16).to_be_bytes());
                }
                len => {
                    frame.push(0x80 | 127);
                    frame.extend((len as u64).to_be_bytes());
                }
            }
            // The mask that every client has to use (§5.3). It keeps nothing secret, and zeros leave the
            // content as it is.
            frame.extend([0; 4]);
            frame.extend_from_slice(part);
            self.stream.get_mut().write_all(&frame)?;
        }
        Ok(())
    }

    /// The next text; `dtnd`'s pings need no answer within half a minute.
    fn answer(&mut self) -> io::Result<String> {
        loop {
            let mut start = [0; 2];
            self.stream.read_exact(&mut start)?;
            let len = match start[1] & 0x7F {
                126 => {
                    let mut len = [0; 2];
                    self.stream.read_exact(&mut len)?;
                    u64::from(u16::from_be_bytes(len))
                }
                127 => return Err(broken("an answer that long is none".into())),
                len => u64::from(len),
            };
            let mut content = Vec::new();
            (&mut self.stream).take(len).read_to_end(&mut content)?;
            let text = String::from_utf8_lossy(&content).into_owned();
            match start[0] & 0x0F {
                0x1 if text.starts_with("200") => return Ok(text),
                0x1 | 0x8 => return Err(broken(text)),
                _ => {}
            }
        }
    }
}

/// `WsSendData` of dtn7-rs, in CBOR (RFC 8949).
fn send_request(source: &str, destination: &str, payload: &[u8]) -> Vec<u8> {
    let mut request = vec![0xA5];
    for (name, text) in [("src", source), ("dst", destination)] {
        item(&mut request, 3, name.as_bytes());
        item(&mut request, 3, text.as_bytes());
    }
    item(&mut request, 3, b"delivery_notification");
    request.push(0xF4);
    item(&mut request, 3, b"lifetime");
    cbor_head(&mut request, 0, 3_600_000);
    item(&mut request, 3, b"data");
    item(&mut request, 2, payload);
    request
}

fn item(request: &mut Vec<u8>, major: u8, content: &[u8]) {
    cbor_head(request, major, content.len() as u32);
    request.extend_from_slice(content);
}

fn cbor_head(request: &mut Vec<u8>, major: u8, argument: u32) {
    request.push(major << 5 | 26);
    request.extend(argument.to_be_bytes());
}

fn connect(port: u16) -> io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(BufReader::with_capacity(256 << 10, stream))
}

/// The status of an answer and the length of its body.
fn head(stream: &mut impl BufRead) -> io::Result<(u16, usize)> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| broken(format!("no HTTP: {line:?}")))?;
    let mut len = 0;
    loop {
        line.clear();
        if stream.read_line(&mut line)? == 0 {
            return Err(broken("the answer breaks off".into()));
        }
        let Some((name, value)) = line.split_once(':') else { return Ok((status, len)) };
        if name.eq_ignore_ascii_case("content-length") {
            len = value.trim().parse().map_err(|_| broken(format!("{line:?} is no length")))?;
        }
    }
}

fn broken(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}
