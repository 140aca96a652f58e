//! A transfer as a payload: an HTTP/1.1 request as it would stand on the wire (RFC 9112 §2.1; media type
//! `application/http`, §10.2), whose body goes to the end of the payload.

use std::io::{self, Read};
use std::net::SocketAddr;

/// The most bytes before the body.
pub(crate) const MAX_HEAD: usize = 64 * 1024;
/// The most header fields.
const MAX_FIELDS: usize = 128;
/// The address of the original server.
const SERVER: &str = "bundle-server";
/// Hop-by-hop fields (RFC 9110 §7.6.1) and fields that frame the body.
const HOP_BY_HOP: [&str; 10] = [
    "connection",
    "content-length",
    "expect",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// A PUT without its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Envelope {
    /// The request target: path and query.
    pub(crate) target: String,
    /// The address of the original server; `None` for a file.
    pub(crate) server: Option<SocketAddr>,
    /// Fields for the server.
    pub(crate) fields: Vec<(String, Vec<u8>)>,
}

/// Why a payload is not a transfer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EnvelopeError {
    /// It cannot be read.
    #[error("cannot read the payload: {0}")]
    Read(#[from] io::Error),
    /// It is not an HTTP PUT.
    #[error("the payload is not an HTTP PUT: {0}")]
    NotAPut(String),
}

impl Envelope {
    /// The bytes before the body.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut head = format!("PUT {} HTTP/1.1\r\n", self.target).into_bytes();
        if let Some(server) = self.server {
            head.extend(format!("{SERVER}: {server}\r\n").bytes());
        }
        let options = self.connection_options();
        let is_end_to_end =
            |name: &str| is_end_to_end(name) && !options.iter().any(|o| o.eq_ignore_ascii_case(name));
        for (name, value) in self.fields.iter().filter(|(name, _)| is_end_to_end(name)) {
            head.extend(name.bytes());
            head.extend(b": ");
            head.extend(value);
            head.extend(b"\r\n");
        }
        head.extend(b"\r\n");
        head
    }

    /// Fields that the client declared as hop-by-hop (RFC 9110 §7.6.1).
    fn connection_options(&self) -> Vec<String> {
        let lists = self.fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case("connection"));
        let lists = lists.map(|(_, value)| String::from_utf8_lossy(value).into_owned());
        lists.flat_map(|list| list.split(',').map(|o| o.trim().to_owned()).collect::<Vec<_>>()).collect()
    }

    /// Reads the head of a payload; the reader is left at the first byte of the body. Returns the head's
    /// length, too.
    pub(crate) fn read(payload: &mut impl Read) -> Result<(Self, usize), EnvelopeError> {
        let mut head = Vec::with_capacity(512);
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            if head.len() == MAX_HEAD {
                return Err(EnvelopeError::NotAPut(format!("its head has more than {MAX_HEAD} bytes")));
            }
            if payload.read(&mut byte)? == 0 {
                return Err(EnvelopeError::NotAPut("its head does not end".into()));
            }
            head.push(byte[0]);
        }
        Ok((Self::decode(&head)?, head.len()))
    }

    fn decode(head: &[u8]) -> Result<Self, EnvelopeError> {
        let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
        let mut request = httparse::Request::new(&mut fields);
        let parsed = request.parse(head).map_err(|error| EnvelopeError::NotAPut(error.to_string()))?;
        // The parser is lenient about line ends: then the body would begin elsewhere.
        if parsed.is_complete() && parsed != httparse::Status::Complete(head.len()) {
            return Err(EnvelopeError::NotAPut("its lines do not end with CR and LF".into()));
        }
        let (Some(method), Some(target)) = (request.method, request.path) else {
            return Err(EnvelopeError::NotAPut("its first line is not complete".into()));
        };
        if method != "PUT" {
            return Err(EnvelopeError::NotAPut(format!("its method is {method}")));
        }
        // Any other form asks the server to act as a proxy (RFC 9112 §3.2.2).
        if !target.starts_with('/') {
            return Err(EnvelopeError::NotAPut(format!("its target {target:?} is not a path")));
        }
        let server =
            request.headers.iter().find(|field| field.name.eq_ignore_ascii_case(SERVER)).map(|field| {
                let text = std::str::from_utf8(field.value).unwrap_or_default();
                text.parse()
                    .map_err(|_| EnvelopeError::NotAPut(format!("{text:?} is not a server's address")))
            });
        let others = request.headers.iter().filter(|field| is_end_to_end(field.name));
        Ok(Self {
            target: target.to_owned(),
            server: server.transpose()?,
            fields: others.map(|field| (field.name.to_owned(), field.value.to_vec())).collect(),
        })
    }
}

/// Whether a field goes to the server. A client must not choose the original server.
fn is_end_to_end(name: &str) -> bool {
    !name.eq_ignore_ascii_case(SERVER)
        && !HOP_BY_HOP.iter().any(|of_a_connection| name.eq_ignore_ascii_case(of_a_connection))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_message_arrives_whole_without_connection_headers() {
        let field = |name: &str, value: &str| (name.to_owned(), value.as_bytes().to_vec());
        let sent = Envelope {
            target: "/a/b?c".into(),
            server: Some("192.0.2.1:80".parse().unwrap()),
            fields: vec![
                field("host", "example.org"),
                field("Connection", "close, X-Hop"),
                field("x-hop", "1"),
                field("Bundle-Server", "10.0.0.1:22"),
                field("content-length", "4"),
            ],
        };
        let mut payload = sent.encode();
        payload.extend(b"body");
        let mut reader = payload.as_slice();
        let (read, len) = Envelope::read(&mut reader).unwrap();
        assert_eq!(read, Envelope { fields: vec![field("host", "example.org")], ..sent });
        assert_eq!((reader, len), (&b"body"[..], payload.len() - 4));
    }

    #[test]
    fn unsuitable_payloads_name_the_missing_part() {
        for (payload, says) in [
            ("", "does not end"),
            ("GET / HTTP/1.1\r\n\r\n", "method is GET"),
            ("PUT / HTTP/1.1\r\nbundle-server: here\r\n\r\n", "not a server's address"),
            ("\u{0}\r\n\r\n", "not an HTTP PUT"),
            ("PUT http://third/ HTTP/1.1\r\n\r\n", "is not a path"),
            ("PUT / HTTP/1.1\n\nbody\r\n\r\n", "CR and LF"),
        ] {
            let error = Envelope::read(&mut payload.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(says), "{payload:?}: {error}");
        }
        let endless = io::repeat(b'x');
        assert!(Envelope::read(&mut { endless }).unwrap_err().to_string().contains("more than"));
    }

    proptest! {
        #[test]
        fn garbage_is_no_transfer_and_no_panic(garbage in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Envelope::read(&mut garbage.as_slice());
            let mut payload = b"PUT / HTTP/1.1\r\n".to_vec();
            payload.extend(&garbage);
            payload.extend(b"\r\n\r\n");
            let _ = Envelope::read(&mut payload.as_slice());
        }
    }
}
