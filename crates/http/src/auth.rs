//! Authentication of requests over TCP.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::token::Token;
use crate::{Failure, decode_percent};

/// The checks of requests over TCP.
#[derive(Debug, Clone)]
pub struct Auth {
    address: SocketAddr,
    token: Option<Token>,
    /// The reply to a request that is no question.
    read_only: &'static str,
}

impl Auth {
    /// Checks for a listener at this address; with a token, requests must carry it. `read_only` says what to do
    /// to those who would change something.
    pub fn new(address: SocketAddr, token: Option<Token>, read_only: &'static str) -> Self {
        Self { address, token, read_only }
    }

    /// TCP is read only.
    fn check(&self, request: &Request) -> Result<(), Failure> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Err(Failure::new(StatusCode::FORBIDDEN, self.read_only));
        }
        if self.address.ip().to_canonical().is_loopback() && !names_this_host(request) {
            let text = "the Host is not this host: use http://127.0.0.1, http://[::1] or http://localhost";
            return Err(Failure::new(StatusCode::MISDIRECTED_REQUEST, text));
        }
        match &self.token {
            Some(token) if !self.knows(token, request.headers()) => {
                let text = "no token, or a wrong one: send \"Authorization: Bearer TOKEN\", or open \
                    /?token=TOKEN once";
                Err(Failure::new(StatusCode::UNAUTHORIZED, text))
            }
            _ => Ok(()),
        }
    }

    fn knows(&self, token: &Token, headers: &HeaderMap) -> bool {
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
            let (scheme, guess) = value.to_str().ok()?.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| guess.trim())
        });
        let name = self.cookie();
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs =
            cookies.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
        bearer.is_some_and(|guess| token.is(guess))
            || pairs.any(|(key, guess)| key == name && token.is(guess))
    }

    /// Cookies do not distinguish ports (RFC 6265 §8.5), and a host may have several daemons.
    fn cookie(&self) -> String {
        format!("bentpipe-{}", self.address.port())
    }

    /// The login of a browser: moves the token from the URL to a cookie, so that no bookmark and no screen
    /// shows it.
    fn log_in(&self, uri: &Uri) -> Option<Response> {
        let token = self.token.as_ref()?;
        let (guess, rest) = split_token(uri.query()?)?;
        if !token.is(&guess) {
            return None;
        }
        let target = if rest.is_empty() { uri.path().to_owned() } else { format!("{}?{rest}", uri.path()) };
        // "//host/" would lead elsewhere (RFC 3986 §4.2).
        let target = format!("/{}", target.trim_start_matches('/'));
        let cookie = format!("{}={}; Path=/; HttpOnly; SameSite=Strict", self.cookie(), token.reveal());
        Some(
            (StatusCode::SEE_OTHER, [(header::LOCATION, target), (header::SET_COOKIE, cookie)])
                .into_response(),
        )
    }
}

/// Passes permitted requests on. Refused ones end their connection, so that it occupies no slot.
pub async fn require(State(auth): State<Arc<Auth>>, request: Request, next: Next) -> Response {
    let refusal = auth.check(&request).err();
    let is_unauthenticated =
        refusal.as_ref().is_some_and(|failure| failure.status() == StatusCode::UNAUTHORIZED);
    // A URL with the token also works for a browser that has the cookie already.
    if (refusal.is_none() || is_unauthenticated)
        && let Some(response) = auth.log_in(request.uri())
    {
        return response;
    }
    let Some(failure) = refusal else {
        return next.run(request).await;
    };
    let mut response = failure.into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    if is_unauthenticated {
        response
            .headers_mut()
            .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"bentpipe\""));
    }
    response
}

/// A page of another site can make its own name resolve to 127.0.0.1 and then read what is here (DNS
/// rebinding); but the browser still says that name. An absolute request target counts before the header (RFC
/// 9112 §3.2.2).
fn names_this_host(request: &Request) -> bool {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(only), None) => only.to_str().ok().and_then(|text| text.parse::<Authority>().ok()),
        _ => None,
    };
    let is_local = |authority: &Authority| {
        let host = authority.host();
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let is_loopback = bare.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback());
        !authority.as_str().contains('@') && (is_loopback || host.eq_ignore_ascii_case("localhost"))
    };
    host.as_ref().is_some_and(is_local) && request.uri().authority().is_none_or(is_local)
}

/// Takes `token=…` out of a query: its value, and what remains.
fn split_token(query: &str) -> Option<(String, String)> {
    let (tokens, rest): (Vec<&str>, Vec<&str>) =
        query.split('&').partition(|pair| pair.starts_with("token="));
    let guess = tokens.first()?.strip_prefix("token=")?;
    Some((String::from_utf8(decode_percent(guess)?).ok()?, rest.join("&")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_leaves_the_address_and_the_rest_stays() {
        let split = |query: &str| split_token(query);
        assert_eq!(split("token=a%2Bb+c"), Some(("a+b+c".into(), String::new())));
        assert_eq!(split("flows=all&token=abc&x=1"), Some(("abc".into(), "flows=all&x=1".into())));
        assert_eq!(split("nottoken=abc"), None);
        for broken in ["token=%", "token=%4", "token=%zz", "token=%+1", "token=%ff"] {
            assert_eq!(split(broken), None, "{broken}");
        }
    }

    #[test]
    fn only_names_of_this_host_are_its_own() {
        let is_own = |host: &str| {
            let request =
                Request::get("/").header(header::HOST, host).body(axum::body::Body::empty()).unwrap();
            names_this_host(&request)
        };
        for host in [
            "localhost",
            "LOCALHOST:7500",
            "127.0.0.1",
            "127.8.8.8:1",
            "[::1]",
            "[::1]:7500",
            "[::ffff:127.0.0.1]",
        ] {
            assert!(is_own(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.1",
            "[::2]:80",
            "a@127.0.0.1",
            "0.0.0.0",
        ] {
            assert!(!is_own(host), "{host}");
        }
    }
}
