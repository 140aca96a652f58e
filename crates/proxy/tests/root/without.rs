//! A host that lacks what a leg asks for: the daemon says what, uses the next best, and connections flow.

use std::ffi::CString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;

use crate::common::exchange::Exchange;
use crate::common::{Net, Running, SERVER, network};
use bentpipe_kernel::router::{Router, RouterConfig, Variant};
use bentpipe_proxy::{Config, Daemon};
use bentpipe_units::Rate;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// Leaves a process without something, between fork(2) and execve(2): system calls only, and no memory
/// allocated.
type Loss = fn() -> io::Result<()>;

/// linux/capability.h; without `CAP_SYS_ADMIN` as well, which stands for the other two.
const CAP_SYS_ADMIN: libc::c_ulong = 21;
const CAP_PERFMON: libc::c_ulong = 38;
const CAP_BPF: libc::c_ulong = 39;

fn check(outcome: libc::c_int) -> io::Result<()> {
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn no_ebpf_rights() -> io::Result<()> {
    for capability in [CAP_SYS_ADMIN, CAP_PERFMON, CAP_BPF] {
        // SAFETY: it takes numbers only. What the bounding set lacks, root does not have after execve(2).
        check(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) })?;
    }
    Ok(())
}

fn bpf_is_forbidden() -> io::Result<()> {
    answer_bpf_with(libc::EPERM)
}

fn bpf_is_unknown() -> io::Result<()> {
    answer_bpf_with(libc::ENOSYS)
}

/// seccomp(2): bpf(2) fails with this error, everything else is as it was.
fn answer_bpf_with(error: libc::c_int) -> io::Result<()> {
    let instruction = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        // The number of the system call is the first word of `seccomp_data`.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_bpf as u32),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | error as u32),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the kernel copies the filter, which lives through the call.
    check(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) })
}

/// A mount namespace of its own, in which a file or folder is in the place of another.
fn put_in_place(of: &std::ffi::CStr, other: &std::ffi::CStr) -> io::Result<()> {
    own_mounts()?;
    let (other, of, none) = (other.as_ptr(), of.as_ptr(), std::ptr::null());
    // SAFETY: strings that end with a zero; a bind mount has neither type nor data.
    check(unsafe { libc::mount(other, of, none, libc::MS_BIND, none.cast()) })
}

/// The folder of the kernel's types is empty, as in kernels without `CONFIG_DEBUG_INFO_BTF`.
fn no_types() -> io::Result<()> {
    put_in_place(c"/sys/kernel/btf", c"/proc/sys/fs/binfmt_misc")
}

/// The kernel's types, but a field that the programs read has another name.
static RENAMED: OnceLock<CString> = OnceLock::new();

fn a_field_is_renamed() -> io::Result<()> {
    let types = RENAMED.get().ok_or(io::ErrorKind::NotFound)?;
    put_in_place(c"/sys/kernel/btf/vmlinux", types)
}

/// Where hierarchies of version 2 are usually mounted; one that is not there is no error.
const CGROUPS: [&std::ffi::CStr; 2] = [c"/sys/fs/cgroup/unified", c"/sys/fs/cgroup"];

/// A mount namespace of its own.
fn own_mounts() -> io::Result<()> {
    // SAFETY: it changes this process's view of file systems only.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
    let (root, none) = (c"/".as_ptr(), std::ptr::null());
    // SAFETY: strings that end with a zero; without a type and data this changes how mounts spread: not out
    // of here.
    check(unsafe { libc::mount(none, root, none, libc::MS_REC | libc::MS_PRIVATE, none.cast()) })
}

/// A mount namespace of its own, without control groups.
fn no_cgroups() -> io::Result<()> {
    own_mounts()?;
    for place in CGROUPS {
        // SAFETY: a string that ends with a zero.
        unsafe { libc::umount2(place.as_ptr(), libc::MNT_DETACH) };
    }
    Ok(())
}

fn leg(congestion: &str) -> String {
    format!(
        "[legs.satellite]\ninterface = \"sat0\"\ncongestion = \"{congestion}\"\nrate = \"50Mbit/s\"\nrtt = \"20ms\"\n"
    )
}

/// A daemon on the gateway that has suffered the loss, and the file in which its warnings are.
fn daemon_without(net: &Net, text: &str, loss: Loss) -> (Running, tempfile::NamedTempFile) {
    let log = tempfile::NamedTempFile::new().unwrap();
    let change = |command: &mut Command| {
        command.env(crate::common::LOG_VARIABLE, log.path());
        // SAFETY: the loss is a few system calls.
        unsafe { command.pre_exec(loss) };
    };
    let daemon = net.try_daemon_changed(text, change).unwrap_or_else(|error| panic!("daemon: {error}"));
    (daemon, log)
}

/// Lines of the log that speak of the satellite leg or the router, since `from`.
fn warnings(log: &tempfile::NamedTempFile) -> Vec<String> {
    let text = fs::read_to_string(log.path()).unwrap();
    text.lines()
        .filter(|line| line.contains(" WARN ") && line.contains("it needs"))
        .map(str::to_owned)
        .collect()
}

/// The congestion control of the gateway's half towards the server, of a connection that carries data both
/// ways.
fn flowing(net: &Net) -> String {
    let mut found = String::new();
    for address in SERVER {
        let (client, server) = net.connection(&net.listen(address));
        let port = server.local_addr().unwrap().port();
        found = net.gateway.output(&format!("ss -Htino state established dport = :{port}"));
        Exchange::start((client, server), 200_000).expect_identical();
    }
    found
}

/// The next best without any eBPF.
fn is_the_kernels(sockets: &str) -> bool {
    !sockets.contains("bp_") && ["hybla", "bbr", "cubic", "reno"].iter().any(|name| sockets.contains(name))
}

/// Whether the pacing of a socket has a ceiling: ss(8) shows both, with a slash between them.
fn has_ceiling(sockets: &str) -> bool {
    sockets
        .split_whitespace()
        .skip_while(|word| *word != "pacing_rate")
        .nth(1)
        .is_some_and(|rate| rate.contains('/'))
}

/// The running kernel's types with other names in the place of these.
fn renamed<const N: usize>(names: [&[u8]; N]) -> Vec<u8> {
    let mut types = fs::read("/sys/kernel/btf/vmlinux").unwrap();
    for name in names {
        let text = [b"\0", name, b"\0"].concat();
        let place = types.windows(text.len()).position(|window| window == text).expect("the name is there");
        types[place + 1] = b'X';
    }
    types
}

#[test]
fn without_ebpf_each_leg_has_the_kernels_best_and_the_log_says_why() {
    let Some(net) = network() else { return };
    let mut types = tempfile::NamedTempFile::new().unwrap();
    types.write_all(&renamed([b"lost_out", b"network_header"])).unwrap();
    RENAMED.set(CString::new(types.path().as_os_str().as_encoded_bytes()).unwrap()).unwrap();
    let losses: [(Loss, &str); 5] = [
        (no_ebpf_rights, "Operation not permitted"),
        (bpf_is_forbidden, "Operation not permitted"),
        (bpf_is_unknown, "Function not implemented"),
        (no_types, "No such process"),
        (a_field_is_renamed, "Invalid argument"),
    ];
    for (loss, reason) in losses {
        for (congestion, programs) in [
            ("hybla", &["Hybla"][..]),
            ("explicit", &["explicit rates"]),
            ("p-xcp", &["XCP router", "explicit rates"]),
        ] {
            let (mut daemon, log) = daemon_without(&net, &leg(congestion), loss);
            let said = warnings(&log);
            // The router is attached before there are legs; what becomes of the leg is one line.
            assert_eq!(said.len(), if congestion == "p-xcp" { 2 } else { 1 }, "{congestion}: {said:#?}");
            for program in programs {
                let named = said.iter().any(|line| {
                    line.contains(&format!("eBPF program of {program}"))
                        || line.contains(&format!("eBPF program of the {program}"))
                });
                assert!(named, "{program} in {said:#?}");
            }
            let last = said.last().unwrap();
            for words in ["leg satellite: ", reason, "Linux 6.0 with BTF", "CAP_BPF", "; it uses "] {
                assert!(last.contains(words), "{words} in {last}");
            }
            let sockets = flowing(&net);
            assert!(is_the_kernels(&sockets), "{congestion}: {sockets}");
            let is_paced = congestion != "hybla";
            assert_eq!(has_ceiling(&sockets), is_paced, "{sockets}");
            let in_use = daemon.stats_handle().leg("satellite").congestion.clone();
            assert_eq!(in_use.as_deref() == Some("paced"), is_paced, "{in_use:?}");
            assert_eq!(last.contains("; it uses paced (above "), is_paced, "{last}");
            // Nor is a reload, which asks again, the end of anything.
            daemon.reload(&leg("explicit").replace("50M", "40M")).unwrap();
            assert!(is_the_kernels(&flowing(&net)));
            // The listeners of before the reload live for a while, so that it would not settle soon.
            daemon.stop();
            net.expect_untouched();
        }
    }
}

#[test]
fn without_a_cgroup_hierarchy_a_leg_has_explicit_rates_instead_of_xcp() {
    let Some(net) = network() else { return };
    let (daemon, log) = daemon_without(&net, &leg("p-xcp"), no_cgroups);
    let text = fs::read_to_string(log.path()).unwrap();
    let said: Vec<&str> = text.lines().filter(|line| line.contains("cgroup")).collect();
    assert_eq!(said.len(), 1, "{text}");
    for words in ["leg satellite: ", "XCP's TCP options", "mount -t cgroup2", "it uses bp_explicit"] {
        assert!(said[0].contains(words), "{words} in {}", said[0]);
    }
    let sockets = flowing(&net);
    assert!(sockets.contains("bp_explicit"), "{sockets}");
    daemon.settle();
    // Explicit rates have no need of it.
    let (daemon, log) = daemon_without(&net, &leg("explicit"), no_cgroups);
    assert_eq!(warnings(&log), Vec::<String>::new());
    assert!(flowing(&net).contains("bp_explicit"));
    daemon.settle();
}

#[test]
fn an_interface_full_of_programs_costs_feedback_and_nothing_else() {
    let Some(net) = network() else { return };
    let config = RouterConfig {
        capacity: Rate::mbps(10),
        variant: Variant::Xcp,
        longest_rtt: std::time::Duration::from_secs(1),
    };
    let attach = || Router::attach("ground0", &config).ok();
    let others: Vec<_> = net.gateway.enter(|| std::iter::from_fn(attach).take(1000).collect());
    assert!((1..1000).contains(&others.len()));
    let (daemon, log) = daemon_without(&net, &leg("p-xcp"), || Ok(()));
    let said = warnings(&log);
    assert_eq!(said.len(), 1, "{said:#?}");
    for words in ["room for XCP's feedback in acknowledgements on ground0", "Linux 6.0", "it uses bp_pxcp"] {
        assert!(said[0].contains(words), "{words} in {}", said[0]);
    }
    // The server does not take XCP, so that its socket falls back.
    let sockets = flowing(&net);
    assert!(sockets.contains("bp_hybla"), "{sockets}");
    daemon.settle();
}

/// Whether this thread may load eBPF, as long as it is permitted to say so.
fn may_load(may: bool) {
    let ebpf = CapabilitySet::SYS_ADMIN | CapabilitySet::PERFMON | CapabilitySet::BPF;
    let mut sets = capabilities(None).unwrap();
    sets.effective.set(ebpf, may);
    set_capabilities(None, sets).unwrap();
}

#[test]
fn explicit_rates_that_a_reload_is_the_first_to_get_are_shared_out() {
    let Some(net) = network() else { return };
    let config = Config::parse("x", &leg("explicit")).unwrap();
    let later = Config::parse("x", &leg("explicit").replace("50M", "40M")).unwrap();
    let daemon = net.gateway.enter(|| {
        may_load(false);
        let mut daemon = Daemon::start(&config).unwrap();
        assert!(
            daemon.leg_summaries()[0].contains("paced instead of explicit"),
            "{:?}",
            daemon.leg_summaries()
        );
        may_load(true);
        assert!(daemon.reload(&later).applied);
        assert!(!daemon.leg_summaries()[0].contains("instead"), "{:?}", daemon.leg_summaries());
        daemon
    });
    assert!(flowing(&net).contains("bp_explicit"));
    let standings = daemon.link_estimates();
    assert_eq!(standings.len(), 1, "somebody decides the rates");
    net.gateway.enter(|| drop(daemon));
}

#[test]
fn a_host_that_has_everything_is_told_nothing() {
    let Some(net) = network() else { return };
    for congestion in ["hybla", "explicit", "p-xcp"] {
        let (mut daemon, log) = daemon_without(&net, &leg(congestion), || Ok(()));
        // Other timers make other legs, which share what is there.
        daemon.reload(&(leg(congestion) + "survive_outage = \"25m\"\n")).unwrap();
        assert_eq!(warnings(&log), Vec::<String>::new(), "{congestion}");
        daemon.stop();
    }
}
