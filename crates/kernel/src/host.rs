//! Checks of this host for bentpipe, each finding with the line that fixes it.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::time::Duration;

use bentpipe_units::{ByteCount, Rate, Span, human};

use crate::divert::Divert;
use crate::explicit::Explicit;
use crate::feature::{self, Feature};
use crate::hybla::Hybla;
use crate::inject::{LoopbackInjector, RawSender};
use crate::packet_log::PacketLog;
use crate::program::{self, Outcome};
use crate::router::{self, Router, RouterConfig, Variant};
use crate::xcp::{MOUNT_CGROUPS, Xcp, XcpError, XcpParameters};
use crate::{congestion, sockopt};

mod check;

pub use check::{Check, Step};

/// How long `nft` may take to check rules.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// A link that the host's buffers must be able to fill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkNeeds {
    /// The leg's name.
    pub name: String,
    /// The link's rate.
    pub rate: Rate,
    /// The round-trip time of the empty link.
    pub rtt: Duration,
    /// The leg's fixed send buffer; `None` leaves the kernel's autotuning on.
    pub send_buffer: Option<ByteCount>,
    /// The leg's fixed receive buffer; `None` leaves the kernel's autotuning on.
    pub receive_buffer: Option<ByteCount>,
}

/// What is checked.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// The features that are used.
    pub features: Vec<Feature>,
    /// The links that buffers must fill.
    pub links: Vec<LinkNeeds>,
    /// Whether it is for any configuration: then the most useful congestion control of the kernel and
    /// forwarding of both families are checked too.
    pub for_any: bool,
}

impl Wanted {
    /// Everything that some configuration may use.
    pub fn everything(links: Vec<LinkNeeds>) -> Self {
        Self { features: Feature::ALL.into(), links, for_any: true }
    }

    fn has(&self, feature: Feature) -> bool {
        self.features.contains(&feature)
    }
}

/// Checks what the daemon relies on.
pub fn checks(wanted: &Wanted) -> Vec<Check> {
    let mut checks = vec![kernel_version(&wanted.features)];
    checks.extend(features(wanted));
    checks.extend(wanted.for_any.then(congestion_controls));
    checks.extend(wanted.has(Feature::RtoMax).then(rto_max));
    checks.extend([transparent_sockets(), syn_copies(), tproxy()]);
    if wanted.for_any {
        checks.extend([ipv4_forwarding(), ipv6_forwarding()]);
    }
    checks.push(tcp_options());
    for link in &wanted.links {
        checks.push(buffer("send", "tcp_wmem", link.send_buffer, link));
        checks.push(buffer("receive", "tcp_rmem", link.receive_buffer, link));
    }
    checks
}

/// Loads the eBPF programs that are wanted.
fn features(wanted: &Wanted) -> Vec<Check> {
    let mut checks = Vec::new();
    let own = [Feature::Hybla, Feature::Explicit, Feature::XcpOptions, Feature::XcpRouter, Feature::Divert];
    if own.into_iter().any(|feature| wanted.has(feature)) {
        checks.push(btf());
    }
    if wanted.has(Feature::Hybla) {
        checks.push(ebpf(Feature::Hybla, Hybla::acquire().map(|hybla| registered(hybla.name()))));
    }
    if wanted.has(Feature::Explicit) {
        let loaded = Explicit::acquire().map(|explicit| registered(explicit.name()));
        checks.push(ebpf(Feature::Explicit, loaded));
    }
    checks.extend(wanted.has(Feature::XcpOptions).then(xcp));
    checks.extend(wanted.has(Feature::XcpRouter).then(xcp_router));
    let divert = || ebpf(Feature::Divert, Divert::probe().map(|()| "loads".to_owned()));
    checks.extend(wanted.has(Feature::Divert).then(divert));
    checks
}

/// `features` are those that are used.
fn kernel_version(features: &[Feature]) -> Check {
    let release = feature::release();
    let lacks =
        |feature: &&Feature| feature::version(&release).is_none_or(|version| version < feature.kernel());
    let lacking: Vec<_> = features.iter().filter(lacks).collect();
    let Some((major, minor)) = lacking.iter().map(|feature| feature.kernel()).max() else {
        return Check::pass("kernel", format!("Linux {release}"));
    };
    let named: Vec<_> =
        lacking.iter().map(|feature| format!("{feature} (without: {})", feature.without())).collect();
    let found = format!("Linux {release} is too old for {}", named.join(", "));
    Check::fail("kernel", found, format!("use Linux {major}.{minor} or later"))
}

fn btf() -> Check {
    let path = "/sys/kernel/btf/vmlinux";
    match fs::metadata(path) {
        Ok(file) => Check::pass("BTF", format!("{path}, {}", human::bytes(file.len()))),
        Err(_) => Check::fail(
            "BTF",
            format!("no {path}"),
            "use a kernel built with CONFIG_DEBUG_INFO_BTF=y, as distributions' are",
        ),
    }
}

/// The result of loading a program.
fn ebpf<E: std::fmt::Display>(feature: Feature, loaded: Result<String, E>) -> Check {
    let name = format!("eBPF {feature}");
    match loaded {
        Ok(found) => Check::pass(name, found),
        Err(error) => Check::fail(name, format!("{error}; without: {}", feature.without()), feature.fix()),
    }
}

fn registered(name: &str) -> String {
    format!("loads and registers as {name}")
}

/// An end of XCP: the congestion control and its TCP options in this process's cgroup.
fn xcp() -> Check {
    let fallback = congestion::default();
    let loaded = Xcp::acquire(XcpParameters { p_xcp: true, capacity: None, fallback: &fallback });
    let is_cgroup = matches!(loaded, Err(XcpError::Cgroup { .. }));
    let check = ebpf(Feature::XcpOptions, loaded.map(|xcp| registered(xcp.name())));
    if !is_cgroup {
        return check;
    }
    Check::mendable(check.name, check.found, MOUNT_CGROUPS.split(" && ").map(Step::run).collect())
}

/// Loads the router without attaching it: on this host it would handle real packets.
fn xcp_router() -> Check {
    let longest_rtt = Duration::from_secs(1);
    let config = RouterConfig { capacity: Rate::mbps(10), variant: Variant::Xcp, longest_rtt };
    let loaded = Router::detached(&config).and_then(|_| router::programs_at("lo"));
    ebpf(Feature::XcpRouter, loaded.map(|_| "loads, and interfaces take it".to_owned()))
}

fn congestion_controls() -> Check {
    let available = congestion::available();
    let found = available.join(" ");
    if available.iter().any(|name| name == "bbr") {
        Check::pass("congestion controls", found)
    } else {
        Check::mendable("congestion controls", found, vec![Step::Module("tcp_bbr".into())])
    }
}

/// Whether the leg of this name, of this capacity, has the congestion control `wanted`.
pub fn congestion_control(wanted: &str, leg: &str, capacity: Option<Rate>) -> Check {
    let name = format!("congestion control, leg {leg}");
    let (resolved, reasons) = congestion::find(wanted, leg, capacity);
    if reasons.is_empty() {
        return Check::pass(name, format!("\"{wanted}\" is there, as {resolved}"));
    }
    let found = format!("{}; it would use {resolved} for \"{wanted}\"", reasons.join("; "));
    Check::fail(name, found, other_congestion_control(wanted))
}

fn other_congestion_control(wanted: &str) -> String {
    use congestion::{EXPLICIT, HYBLA, P_XCP, PACED, XCP};
    let mend = "mend what is said of eBPF, or choose congestion =";
    match wanted {
        EXPLICIT | XCP | P_XCP => return format!("{mend} \"{PACED}\""),
        HYBLA => return format!("{mend} \"bbr\""),
        PACED => return "modprobe tcp_bbr, if this kernel has it".to_owned(),
        _ => {}
    }
    let available = congestion::available();
    let of_kernel = available.iter().map(String::as_str).filter(|name| !name.starts_with("bp_"));
    let known: Vec<&str> = of_kernel.chain([EXPLICIT, PACED, HYBLA]).collect();
    format!("modprobe tcp_{wanted}, if this kernel has it; or set congestion to one of {}", known.join(", "))
}

fn rto_max() -> Check {
    let tried =
        TcpListener::bind("127.0.0.1:0").and_then(|s| sockopt::set_rto_max(&s, Duration::from_secs(1)));
    match tried {
        Ok(()) => Check::pass("RTO maximum", "settable per socket, 1 s to 120 s"),
        Err(error) => Check::fail("RTO maximum", format!("not settable: {error}"), Feature::RtoMax.fix()),
    }
}

/// Whether TCP in this network namespace takes a timeout for spurious when what it sent before is
/// acknowledged after (F-RTO, RFC 5682).
pub fn has_f_rto() -> bool {
    fs::read_to_string("/proc/sys/net/ipv4/tcp_frto").is_ok_and(|value| value.trim() != "0")
}

fn transparent_sockets() -> Check {
    let any: SocketAddr = ([127, 0, 0, 1], 0).into();
    let tried = TcpListener::bind(any).and_then(|socket| sockopt::set_transparent(&socket, &any));
    match tried {
        Ok(()) => Check::pass("transparent sockets", "allowed"),
        Err(error) => {
            Check::fail("transparent sockets", error.to_string(), "run as root, or with CAP_NET_ADMIN")
        }
    }
}

/// How SYNs come to the daemon, and how it lets them go.
fn syn_copies() -> Check {
    /// Not the daemon's, which only one process receives.
    const GROUP: u16 = 25199;
    let name = "SYN copies";
    match PacketLog::open(GROUP) {
        Ok(_) => {}
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            return Check::fail(name, error.to_string(), "run as root, or with CAP_NET_ADMIN");
        }
        Err(error) => {
            let found = format!("nfnetlink_log: {error}");
            return Check::mendable(name, found, vec![Step::Module("nfnetlink_log".into())]);
        }
    }
    match LoopbackInjector::open(0).and_then(|_| RawSender::open()) {
        Ok(_) => Check::pass(name, "logged to the daemon, which may send them"),
        Err(error) => {
            Check::fail(name, format!("packet and raw sockets: {error}"), "run as root, or with CAP_NET_RAW")
        }
    }
}

/// Asks the kernel to check, and not to load, a rule set with everything that interception uses.
fn tproxy() -> Check {
    let name = "TPROXY";
    let rules = "table inet bentpipe_check { chain c { type filter hook prerouting priority mangle; \
                 socket transparent 1 socket wildcard 0 meta mark set 1 accept; fib daddr type local return; \
                 fib daddr oifname \"lo\" meta nfproto ipv4 meta l4proto tcp tproxy ip to 127.0.0.1:1 accept; }; \
                 chain f { type filter hook forward priority 1000; limit rate over 9/second return; \
                 log group 25200 queue-threshold 1 prefix \"x\"; }; }";
    match program::run(Command::new("nft").args(["-c", "-f", "-"]), rules.as_bytes(), TIME_LIMIT) {
        Ok(Outcome { status: Some(status), .. }) if status.success() => {
            Check::pass(name, "nftables takes tproxy, socket and fib rules")
        }
        Ok(Outcome { status: None, .. }) => {
            let found = format!("nft does not end within {} s", TIME_LIMIT.as_secs());
            Check::fail(name, found, "look what it waits for: nft list tables")
        }
        Ok(Outcome { stderr, .. }) => {
            let said = String::from_utf8_lossy(&stderr).lines().next().unwrap_or_default().to_owned();
            let modules = ["nft_tproxy", "nft_socket", "nft_fib_inet", "nft_log", "nft_limit"]
                .map(|name| Step::Module(name.into()));
            let check = Check::mendable(name, said, modules.into());
            Check { fix: check.fix.map(|fix| format!("run as root; {fix}")), ..check }
        }
        Err(error) => {
            let found = format!("cannot run nft: {error}");
            Check::mendable(name, found, vec![Step::run("apt-get install -y nftables")])
        }
    }
}

/// Whether this network namespace forwards packets of IPv4.
pub fn ipv4_forwarding() -> Check {
    forwarding("IPv4", "net.ipv4.ip_forward")
}

/// Whether this network namespace forwards packets of IPv6.
pub fn ipv6_forwarding() -> Check {
    forwarding("IPv6", "net.ipv6.conf.all.forwarding")
}

fn forwarding(family: &str, key: &str) -> Check {
    let name = format!("{family} forwarding");
    match read(&format!("/proc/sys/{}", key.replace('.', "/"))).as_str() {
        "1" => Check::pass(name, "on"),
        "" => Check::fail(name, "this kernel has no such protocol", format!("none needed without {family}")),
        _ => Check::mendable(
            name,
            "off: packets are not forwarded, and connections that are not forwarded are not split",
            vec![Step::sysctl(key, 1)],
        ),
    }
}

/// The options of TCP that Hybla needs: SACK, timestamps and window scaling (PEPSAL).
fn tcp_options() -> Check {
    let name = "TCP options";
    let off: Vec<&str> = ["tcp_sack", "tcp_timestamps", "tcp_window_scaling"]
        .into_iter()
        .filter(|option| read(&format!("/proc/sys/net/ipv4/{option}")) == "0")
        .collect();
    if off.is_empty() {
        return Check::pass(name, "SACK, timestamps and window scaling are on");
    }
    let steps = off.iter().map(|option| Step::sysctl(format!("net.ipv4.{option}"), 1)).collect();
    Check::mendable(name, format!("off: {}", off.join(", ")), steps)
}

/// A buffer holds a window in flight and one that waits behind a hole; the kernel counts about as much again
/// for its own bookkeeping. So it takes four bandwidth-delay products: of a fixed buffer, which may exceed
/// the kernel's limits by privilege, or of the kernel's limits where it tunes the buffer.
fn buffer(direction: &str, key: &str, fixed: Option<ByteCount>, link: &LinkNeeds) -> Check {
    let name = format!("{direction} buffer, leg {}", link.name);
    let needed = link.rate.bytes_in(link.rtt).saturating_mul(4);
    if let Some(size) = fixed {
        return fixed_buffer(name, direction, size, ByteCount::new(needed), link);
    }
    let path = format!("/proc/sys/net/ipv4/{key}");
    let values: Vec<u64> = read(&path).split_whitespace().filter_map(|n| n.parse().ok()).collect();
    let [least, initial, most] = values.as_slice() else {
        return Check::fail(name, format!("cannot read {path}"), "mount /proc");
    };
    let link = format!("{} at {} round trip", link.rate, Span(link.rtt));
    let found = format!("up to {}; {link} takes {}", human::bytes(*most), human::bytes(needed));
    if *most >= needed {
        Check::pass(name, found)
    } else {
        Check::mendable(
            name,
            found,
            vec![Step::sysctl(format!("net.ipv4.{key}"), format!("{least} {initial} {needed}"))],
        )
    }
}

fn fixed_buffer(
    name: String,
    direction: &str,
    size: ByteCount,
    needed: ByteCount,
    link: &LinkNeeds,
) -> Check {
    let found = format!("fixed at {size}; {} at {} round trip takes {needed}", link.rate, Span(link.rtt));
    if size >= needed {
        Check::pass(name, found)
    } else {
        Check::fail(name, found, format!("{direction}_buffer = \"{needed}\", or leave it out"))
    }
}

/// Bits 1, to open with data, and 2, to take data with a SYN, of `net.ipv4.tcp_fastopen` (ip-sysctl).
const FAST_OPEN: u32 = 0b11;

/// Whether this network namespace allows both roles of TCP Fast Open, for the legs that use it.
pub fn fast_open() -> Check {
    let name = "TCP Fast Open";
    let value = read("/proc/sys/net/ipv4/tcp_fastopen");
    match value.parse::<u32>() {
        Ok(bits) if bits & FAST_OPEN == FAST_OPEN => {
            Check::pass(name, "opens with data and takes data with a SYN")
        }
        Ok(bits) => {
            let lacks = match bits & FAST_OPEN {
                0 => "neither opens with data nor takes any with a SYN",
                1 => "takes no data with a SYN",
                _ => "does not open with data",
            };
            let found = format!("net.ipv4.tcp_fastopen = {bits}: this host {lacks}");
            Check::mendable(name, found, vec![Step::sysctl("net.ipv4.tcp_fastopen", bits | FAST_OPEN)])
        }
        Err(_) => Check::fail(name, "this kernel has no net.ipv4.tcp_fastopen", "leave fast_open out"),
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(rate: &str) -> LinkNeeds {
        LinkNeeds {
            name: "satellite".into(),
            rate: rate.parse().unwrap(),
            rtt: Duration::from_millis(600),
            send_buffer: None,
            receive_buffer: None,
        }
    }

    #[test]
    fn a_buffer_too_small_for_the_link_comes_with_the_line_that_mends_it() {
        let check = buffer("send", "tcp_wmem", None, &link("100G"));
        assert!(!check.ok);
        assert!(check.fix.unwrap().starts_with("sysctl -w net.ipv4.tcp_wmem="));
    }

    #[test]
    fn a_slow_link_fits_any_buffer() {
        assert!(buffer("receive", "tcp_rmem", None, &link("1M")).ok);
    }

    #[test]
    fn a_fixed_buffer_is_judged_by_its_own_size() {
        let fixed = |bytes| buffer("send", "tcp_wmem", Some(ByteCount::new(bytes)), &link("10M"));
        assert!(fixed(3_000_000).ok);
        assert_eq!(fixed(2_999_999).fix.unwrap(), "send_buffer = \"3MB\", or leave it out");
        let huge = buffer("send", "tcp_wmem", Some(ByteCount::new(u64::MAX)), &link("100G"));
        assert!(huge.ok, "whatever the kernel's limits for autotuning are");
    }

    #[test]
    fn a_congestion_control_that_the_kernel_has_not_is_lacking_with_those_it_has() {
        assert!(congestion_control("reno", "geo", None).ok);
        let check = congestion_control("bbr9", "geo", None);
        let fix = check.fix.unwrap();
        assert!(!check.ok && check.found.contains("no congestion control \"bbr9\""), "{}", check.found);
        assert!(fix.contains("modprobe tcp_bbr9") && fix.contains("reno"), "{fix}");
    }

    #[test]
    fn what_no_leg_uses_is_not_checked() {
        let wanted = Wanted { features: vec![Feature::RtoMax], ..Wanted::default() };
        let names: Vec<String> = checks(&wanted).into_iter().map(|check| check.name).collect();
        assert!(names.iter().any(|name| name == "RTO maximum"), "{names:?}");
        for absent in ["eBPF", "BTF", "forwarding", "congestion controls"] {
            assert!(names.iter().all(|name| !name.contains(absent)), "{absent}: {names:?}");
        }
    }

    #[test]
    fn every_failed_check_suggests_a_remedy() {
        for check in checks(&Wanted::everything(vec![link("10M")])) {
            assert_eq!(check.ok, check.fix.is_none(), "{check:?}");
            assert!(!check.found.is_empty(), "{check:?}");
        }
    }
}
