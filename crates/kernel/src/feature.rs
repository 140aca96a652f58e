//! Kernel features that bentpipe uses and not every Linux has: the version that brought each, and the
//! substitute without it.
//!
//! This is the only place that lists them: errors and `bentpipe doctor` use it, and a test compares
//! `docs/legs.md` with it.

use std::fmt;
use std::fs;

use rustix::thread::{CapabilitySet, capabilities};

/// One of these features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// TCP Hybla as an eBPF congestion control.
    Hybla,
    /// Explicit rates as an eBPF congestion control.
    Explicit,
    /// XCP's and P-XCP's eBPF congestion control.
    Xcp,
    /// The program that writes and reads XCP's TCP options.
    XcpOptions,
    /// The program at an interface that sets the rates of XCP's senders.
    XcpRouter,
    /// The program at an interface that makes room for XCP's feedback.
    RoomInAcks,
    /// The programs that take marked packets from an interface into a device, and back.
    Divert,
    /// The ceiling of the retransmission timeout, for each socket.
    RtoMax,
}

/// The description of a feature.
struct Facts {
    name: &'static str,
    kernel: (u32, u32),
    /// The parts of the kernel that it uses.
    made_of: &'static str,
    is_ebpf: bool,
    without: &'static str,
}

/// The capabilities without which no eBPF program loads (capabilities(7)).
const RIGHTS: &str = "CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN";
/// The kernel's description of its types, which programs are adapted to when they are loaded.
const BTF: &str = "/sys/kernel/btf/vmlinux";

impl Feature {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Hybla,
        Self::Explicit,
        Self::Xcp,
        Self::XcpOptions,
        Self::XcpRouter,
        Self::RoomInAcks,
        Self::Divert,
        Self::RtoMax,
    ];

    /// The first Linux that has it, major and minor number.
    pub const fn kernel(self) -> (u32, u32) {
        self.facts().kernel
    }

    /// The substitute, or the consequence, for legs without it.
    pub const fn without(self) -> &'static str {
        self.facts().without
    }

    /// Its requirements, for an error's text.
    pub fn needs(self) -> String {
        let Facts { kernel: (major, minor), made_of, is_ebpf, .. } = self.facts();
        let ebpf = if is_ebpf { format!(" with BTF, and root or {RIGHTS}") } else { String::new() };
        format!("it needs {made_of}, Linux {major}.{minor}{ebpf}")
    }

    /// The remedy where this host does not have it.
    pub fn fix(self) -> String {
        let (major, minor) = self.kernel();
        if running().is_some_and(|running| running < self.kernel()) {
            format!("use Linux {major}.{minor} or later")
        } else if self.facts().is_ebpf && fs::metadata(BTF).is_err() {
            "use a kernel built with CONFIG_DEBUG_INFO_BTF=y, as distributions' are".to_owned()
        } else if !self.facts().is_ebpf {
            format!("use a kernel that has it, Linux {major}.{minor} or later")
        } else if has_rights() {
            "see that bpf(2) is allowed (seccomp, kernel lockdown); if it is, this kernel is not like any that \
             docs/kernels.md lists: please report it with these lines"
                .to_owned()
        } else {
            format!("run as root, or with {RIGHTS}, where bpf(2) is allowed")
        }
    }

    const fn facts(self) -> Facts {
        const CONTROL: &str = "an eBPF congestion control that sets the pacing rate (struct_ops)";
        const OPTIONS: &str = "TCP options of eBPF (sock_ops) in a cgroup of version 2";
        const INTERFACE: &str = "eBPF at interfaces (tcx; before Linux 6.6 clsact, CONFIG_NET_CLS_BPF)";
        const OWN_HYBLA: &str = "the kernel's own hybla, else bbr, else the kernel's default";
        // As the example `without_ebpf` of bentpipe-lab measures it (docs/explicit.md).
        const CEILINGS: &str = "paced, the same rates as ceilings above BBR; measured over 10 Mbit/s and 600 ms: \
                                96% of the limit instead of 100% at PER 1%, 92% instead of 100% at PER 5%, no \
                                more queue";
        const PROBES: &str = "after an outage probes alone wake connections";
        const LATE: &str = "XCP, whose feedback comes late where losses are many";
        const UNPROTECTED: &str = "packets leave unprotected";
        let (name, kernel, made_of, without) = match self {
            Self::Hybla => ("Hybla", (6, 0), CONTROL, OWN_HYBLA),
            Self::Explicit => ("explicit rates", (6, 0), CONTROL, CEILINGS),
            Self::Xcp => ("XCP", (6, 0), CONTROL, "explicit rates"),
            Self::XcpOptions => ("XCP options", (6, 0), OPTIONS, "explicit rates"),
            Self::XcpRouter => ("XCP router", (6, 0), INTERFACE, "explicit rates"),
            Self::RoomInAcks => ("room in ACKs", (6, 0), INTERFACE, LATE),
            Self::Divert => ("diverted packets", (6, 0), INTERFACE, UNPROTECTED),
            Self::RtoMax => ("RTO maximum", (6, 15), "TCP_RTO_MAX_MS", PROBES),
        };
        Facts { name, kernel, made_of, is_ebpf: !matches!(self, Self::RtoMax), without }
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.facts().name)
    }
}

/// Whether this thread has the capabilities for eBPF.
fn has_rights() -> bool {
    let own = capabilities(None).map_or(CapabilitySet::empty(), |held| held.effective);
    let ebpf = CapabilitySet::BPF | CapabilitySet::PERFMON | CapabilitySet::NET_ADMIN;
    own.contains(CapabilitySet::SYS_ADMIN) || own.contains(ebpf)
}

/// The running kernel's release, as `uname -r` has it.
pub(crate) fn release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

/// Its major and minor number.
pub(crate) fn running() -> Option<(u32, u32)> {
    version(&release())
}

/// Those of a release such as `6.18.44-fc`.
pub(crate) fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_number() {
        assert_eq!(version("6.18.44-fc-v595"), Some((6, 18)));
        assert!(version("6.4.0") < version("6.15"));
        assert_eq!((version(""), version("linux")), (None, None));
    }

    #[test]
    fn missing_features_are_named_with_kernel_version_and_capabilities() {
        let needs = Feature::XcpRouter.needs();
        assert!(
            needs.contains("tcx") && needs.contains("Linux 6.0 with BTF") && needs.contains("CAP_PERFMON")
        );
        assert!(!Feature::RtoMax.needs().contains("CAP_"));
    }

    #[test]
    fn the_documented_table_says_the_same() {
        let page = include_str!("../../../docs/legs.md");
        for feature in Feature::ALL {
            let (major, minor) = feature.kernel();
            let row = format!("| {feature} | {major}.{minor} | {} |", feature.without());
            assert!(page.lines().any(|line| line.starts_with(&row)), "no \"{row}\" in docs/legs.md");
        }
    }
}
