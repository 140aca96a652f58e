//! The name of a host, by its address (getnameinfo(3)): by /etc/hosts, DNS, or whatever nsswitch.conf(5)
//! says.

use std::ffi::CStr;
use std::net::IpAddr;
use std::ptr::null_mut;

/// `NI_MAXHOST` of netdb.h.
const MAX_HOST: usize = 1025;
/// The longest name of a host (RFC 1035 §2.3.4).
const LONGEST: usize = 253;

/// The name of the host with this address; `None` where it has none, or nobody answers. Blocks for as long as
/// the resolver waits for an answer (resolv.conf(5): five seconds for each server and attempt).
///
/// Who runs the reverse zone of an address says what its name is: it proves nothing. What is no host name by
/// its letters is not returned.
pub fn reverse_lookup(address: IpAddr) -> Option<String> {
    let mut host = [0_u8; MAX_HOST];
    let code = match address.to_canonical() {
        IpAddr::V4(address) => {
            let socket_address = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: 0,
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.octets()) },
                sin_zero: [0; 8],
            };
            name_info(&socket_address, &mut host)
        }
        IpAddr::V6(address) => {
            let socket_address = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: 0,
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: address.octets() },
                sin6_scope_id: 0,
            };
            name_info(&socket_address, &mut host)
        }
    };
    let name = CStr::from_bytes_until_nul(&host).ok()?.to_str().ok()?;
    (code == 0 && is_host_name(name)).then(|| name.to_owned())
}

/// getnameinfo(3) with `sockaddr_in` or `sockaddr_in6`.
fn name_info<T>(address: &T, host: &mut [u8; MAX_HOST]) -> libc::c_int {
    // SAFETY: the address is a socket address of its whole length, the buffer is as long as is said, and a
    // null pointer with length 0 asks for no service.
    unsafe {
        libc::getnameinfo(
            std::ptr::from_ref(address).cast(),
            size_of::<T>() as libc::socklen_t,
            host.as_mut_ptr().cast(),
            MAX_HOST as libc::socklen_t,
            null_mut(),
            0,
            libc::NI_NAMEREQD,
        )
    }
}

fn is_host_name(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    !name.is_empty() && name.len() <= LONGEST && name.chars().all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn this_host_knows_its_own_loopback_addresses_by_name() {
        let hosts = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
        let name = reverse_lookup(Ipv4Addr::LOCALHOST.into());
        let Some(name) = name else {
            assert!(!hosts.lines().any(|line| line.starts_with("127.0.0.1")), "{hosts}");
            return;
        };
        assert!(hosts.contains(&name) || name == "localhost", "{name}");
    }

    #[test]
    fn what_is_no_name_by_its_letters_is_none() {
        for name in ["", "a b", "<script>", "x\u{1b}[2J", &"x".repeat(254)] {
            assert!(!is_host_name(name), "{name:?}");
        }
        assert!(is_host_name("_dmarc.mail-1.example.org"));
    }
}
