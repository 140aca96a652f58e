//! HTTP over Unix sockets, as the daemon and the bundle node speak it with local programs, and what both share
//! of their servers over TCP.
//!
//! [`Client`] sends requests; [`unix`] makes a server's socket, and [`tcp`] one for readers on other hosts;
//! [`server`] serves it within bounds; [`auth`] asks requests over TCP for a [`Token`]; [`Failure`] is an error
//! as a JSON reply.

pub mod auth;
mod body;
mod client;
mod connections;
mod reply;
pub mod server;
pub mod tcp;
mod token;
pub mod unix;
mod write_timeout;

pub use body::ReadBody;
pub use client::{Client, ClientError, Server};
pub use connections::ReplyBody;
pub use reply::Failure;
pub use token::{Token, TokenError};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

/// The characters of paths and query values that stay as they are: those that RFC 3986 §2.3 does not reserve,
/// and separators that need no escape in either place.
const KEPT: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// A path with percent-encoding where it is needed.
pub fn encode_path(path: &[u8]) -> String {
    percent_encode(path, &KEPT).to_string()
}

/// The bytes that percent-encoded text stands for (RFC 3986 §2.1); `None` if an encoding is invalid. A plus
/// sign is itself.
pub fn decode_percent(text: &str) -> Option<Vec<u8>> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let digits = part.get(..2).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(part.get(2..)?.as_bytes());
    }
    Some(bytes)
}

/// A path with a query, percent-encoded where it is needed.
pub fn encode_query(path: &str, query: &[(&str, String)]) -> String {
    const IN_VALUES: AsciiSet = KEPT.remove(b':').remove(b',');
    let mut target = path.to_owned();
    for (index, (name, value)) in query.iter().enumerate() {
        let separator = if index == 0 { '?' } else { '&' };
        target.extend([separator.to_string().as_str(), name, "="]);
        target.extend(percent_encode(value.as_bytes(), &IN_VALUES));
    }
    target
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_written_so_that_they_are_read_back() {
        let query = [("destination", "dtn://gs2/a b&c".to_owned()), ("wait", "1s".to_owned())];
        assert_eq!(encode_query("/x", &query), "/x?destination=dtn://gs2/a%20b%26c&wait=1s");
    }

    #[test]
    fn names_become_paths() {
        assert_eq!(encode_path(b"/a b/c%.txt"), "/a%20b/c%25.txt");
    }
}
