//! XCP and P-XCP as eBPF congestion controls: the routers of the path set the senders' rates.
//!
//! Two programs make an end of XCP. One is called for the sockets of this process's cgroup and writes and
//! reads TCP options; the other is the congestion control, and turns the returned feedback into a window.
//! They share a socket's state. A third, which is optional, goes to the network interface by which
//! acknowledgements leave ([`Xcp::make_room_on`]).
//!
//! Both ends of a connection must take part: a socket that has chosen [`Xcp::name`] before connect(2) offers
//! XCP with its SYN, and one that has chosen it before listen(2) takes the offer. If the other end is silent,
//! or becomes so, the socket changes over to [`XcpParameters::fallback`] by itself. Sockets with another
//! congestion control are left alone.
//!
//! Each process has copies of its own, one for each set of parameters. The kernel takes all of it back when
//! the process lets go of it, however the process ends; sockets that are left go on with the window that they
//! have, until the silence makes them fall back.

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

use bentpipe_units::Rate;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};

use crate::feature::Feature;
use crate::skel;
use crate::sockopt;
use crate::struct_ops::{self, StructOpsError, is_copy, lock, under_a_free_name, write_name};
use crate::tc_hook::{self, Target};

/// The names under which sockets choose XCP and P-XCP (tcp(7), `TCP_CONGESTION`), if no other copy has taken
/// them; the next ones have a number behind them.
pub const NAMES: [&str; 2] = ["bp_xcp", "bp_pxcp"];

/// Mounts the hierarchy where nothing else is on any host; it is looked for in the table of mounts.
pub(crate) const MOUNT_CGROUPS: &str = "mkdir -p /run/cgroup2 && mount -t cgroup2 none /run/cgroup2";

/// The parameters of an end of XCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XcpParameters<'a> {
    /// P-XCP: a loss is not congestion, so that the window stays (Zhou, Yeung and Li 2004). Otherwise a loss
    /// halves it, as it does every TCP's.
    pub p_xcp: bool,
    /// The leg's capacity, headers included: a flow requests it, and its window never exceeds two
    /// bandwidth-delay products. Unknown: a flow requests twice its rate.
    pub capacity: Option<Rate>,
    /// The congestion control of sockets whose other end does not take XCP. It must be there for as long as
    /// this is.
    pub fallback: &'a str,
}

/// Why XCP is not available. The message says which part of it failed.
#[derive(Debug, thiserror::Error)]
pub enum XcpError {
    /// There is no such congestion control to fall back to.
    #[error(
        "XCP cannot fall back to the congestion control \"{name}\": {source} \
         (choose one that this kernel has)"
    )]
    Fallback {
        /// The configured fallback.
        name: String,
        /// What the kernel said of it.
        source: io::Error,
    },
    /// The kernel did not take the program for TCP options.
    #[error("cannot load the eBPF program of XCP options: {0} ({n})", n = Feature::XcpOptions.needs())]
    Options(#[source] libbpf_rs::Error),
    /// There is no cgroup to attach it to.
    #[error("cannot open this process's cgroup for XCP's TCP options: {source} ({hint})")]
    Cgroup {
        /// What the system said.
        source: io::Error,
        /// The remedy.
        hint: String,
    },
    /// The cgroup did not take it.
    #[error("cannot attach XCP's TCP options to the cgroup {path}: {source} (it needs CAP_NET_ADMIN)")]
    Attach {
        /// The cgroup's directory.
        path: PathBuf,
        /// What the kernel said.
        source: libbpf_rs::Error,
    },
    /// The congestion control (struct_ops) is not to be had.
    #[error(transparent)]
    Control(#[from] StructOpsError),
    /// The network interface did not take its program.
    #[error(
        "cannot make room for XCP's feedback in acknowledgements on {interface}: {source} \
         ({}, and fewer than 63 programs there)",
        Feature::RoomInAcks.needs()
    )]
    Interface {
        /// The interface's name.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
}

/// While it lives, sockets of this process's cgroup can choose its [`name`](Self::name). Clones share the
/// registration.
#[derive(Debug, Clone)]
pub struct Xcp {
    registration: Arc<Registration>,
}

/// While it lives, full acknowledgements that leave by an interface have room for feedback: see
/// [`Xcp::make_room_on`]. Further calls share it.
#[derive(Debug)]
pub struct RoomInAcks {
    _links: Vec<Arc<tc_hook::Attachment>>,
}

#[derive(Debug)]
struct Registration {
    name: String,
    full_acks: OwnedFd,
    /// Where there is room, by the interface's number.
    rooms: Mutex<Vec<(u32, Weak<tc_hook::Attachment>)>>,
    // Dropped in this order, so that no socket chooses it meanwhile.
    _control: struct_ops::Registration,
    _options: libbpf_rs::Link,
}

/// The parameters by which copies differ.
#[derive(Debug, PartialEq, Eq)]
struct Key {
    p_xcp: bool,
    capacity: Option<Rate>,
    fallback: String,
}

impl Key {
    fn differs_in_capacity_only(&self, other: &Self) -> bool {
        (self.p_xcp, &self.fallback) == (other.p_xcp, &other.fallback)
    }
}

/// The copies of this process that are in use.
static CURRENT: Mutex<Vec<(Key, Weak<Registration>)>> = Mutex::new(Vec::new());

impl Xcp {
    /// Takes a reference to this process's copy with these parameters, loading it if this is the first one.
    ///
    /// A process that has dropped its privileges cannot load another copy. It then takes one that differs
    /// only in the capacity: a sender requests as much as before, and the routers limit it.
    ///
    /// # Errors
    /// [`XcpError`] on a kernel that lacks a part of it, or without the privileges.
    pub fn acquire(parameters: XcpParameters<'_>) -> Result<Self, XcpError> {
        let key = Key {
            p_xcp: parameters.p_xcp,
            capacity: parameters.capacity,
            fallback: parameters.fallback.to_owned(),
        };
        let mut current = lock(&CURRENT);
        current.retain(|(_, registration)| registration.strong_count() > 0);
        let known = current.iter().find(|(known, _)| *known == key);
        if let Some(registration) = known.and_then(|(_, registration)| registration.upgrade()) {
            return Ok(Self { registration });
        }
        let registration = match register(parameters) {
            Ok(registration) => Arc::new(registration),
            Err(error) => return next_to(&key, &current).ok_or(error),
        };
        current.push((key, Arc::downgrade(&registration)));
        Ok(Self { registration })
    }

    /// The name for `TCP_CONGESTION`.
    pub fn name(&self) -> &str {
        &self.registration.name
    }

    /// Makes sure that feedback gets through where losses are many.
    ///
    /// SACK blocks have the first claim to a header's room, and with a loss in every hundred segments over
    /// GEO they fill most acknowledgements. On this interface of the calling thread's network namespace, the
    /// last block of a full acknowledgement makes room for the feedback where that has waited for a few
    /// segments. Losing a block loses nothing: each is said in several acknowledgements (RFC 2018 §4).
    /// Without it feedback comes late where losses are many.
    ///
    /// It belongs to the end that receives.
    ///
    /// # Errors
    /// [`XcpError::Interface`] if there is no such interface, or on a kernel before 6.6.
    pub fn make_room_on(&self, interface: &str) -> Result<RoomInAcks, XcpError> {
        let failed = |source| XcpError::Interface { interface: interface.to_owned(), source };
        let index = tc_hook::index_of(interface).map_err(failed)?;
        let mut rooms = lock(&self.registration.rooms);
        rooms.retain(|(_, link)| link.strong_count() > 0);
        match tc_hook::attach(self.registration.full_acks.as_fd(), Target::egress(index)) {
            Ok(link) => {
                let link = Arc::new(link);
                rooms.push((index, Arc::downgrade(&link)));
                Ok(RoomInAcks { _links: vec![link] })
            }
            // An interface takes a program once. Another network namespace may have an interface of the same
            // number.
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                let there = rooms.iter().filter(|(at, _)| *at == index);
                Ok(RoomInAcks { _links: there.filter_map(|(_, link)| link.upgrade()).collect() })
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// The same on all interfaces that the calling thread's network namespace has now, except the loopback
    /// interface: the room that there is, and what each of the others said.
    pub fn make_room(&self) -> (Vec<RoomInAcks>, Vec<XcpError>) {
        let names = match interfaces() {
            Ok(names) => names,
            Err(source) => {
                let interface = "any interface".to_owned();
                return (Vec::new(), vec![XcpError::Interface { interface, source }]);
            }
        };
        let (mut room, mut failures) = (Vec::new(), Vec::new());
        for name in names.iter().filter(|name| *name != "lo") {
            match self.make_room_on(name) {
                Ok(more) => room.push(more),
                Err(error) => failures.push(error),
            }
        }
        (room, failures)
    }
}

/// Whether `name` is one that a copy of XCP or of P-XCP may have.
pub fn is_xcp(name: &str) -> bool {
    NAMES.iter().any(|base| is_copy(base, name))
}

fn register(parameters: XcpParameters<'_>) -> Result<Registration, XcpError> {
    check_fallback(parameters.fallback)?;
    let mut storage = MaybeUninit::uninit();
    let open =
        skel::xcp_options::XcpOptionsSkelBuilder::default().open(&mut storage).map_err(XcpError::Options)?;
    let mut options = open.load().map_err(XcpError::Options)?;
    let endpoints = options.maps.xcp_endpoints.as_fd();
    let base = NAMES[usize::from(parameters.p_xcp)];
    let (name, control) = under_a_free_name(base, |name| register_control(name, parameters, endpoints))?;
    let variables = options.maps.data_data.as_deref_mut().expect("the program has variables");
    write_name(&mut variables.congestion, &name);
    let full_acks = options.progs.xcp_full_acks.as_fd().try_clone_to_owned();
    let full_acks = full_acks.map_err(|error| XcpError::Options(error.into()))?;
    let path = cgroup_of_this_process()?;
    let cgroup = fs::File::open(&path).map_err(|source| XcpError::Cgroup {
        source,
        hint: format!("its directory is {}", path.display()),
    })?;
    let attached = options.progs.xcp_options.attach_cgroup(cgroup.as_raw_fd());
    let attached = attached.map_err(|source| XcpError::Attach { path, source })?;
    Ok(Registration { name, full_acks, rooms: Mutex::default(), _control: control, _options: attached })
}

/// The copy that differs from the wanted one in the capacity only, the largest if there are several, and a
/// line that says so.
fn next_to(wanted: &Key, current: &[(Key, Weak<Registration>)]) -> Option<Xcp> {
    let same = current.iter().filter(|(known, _)| known.differs_in_capacity_only(wanted));
    let (known, registration) = same.max_by_key(|(known, _)| known.capacity)?;
    let registration = registration.upgrade()?;
    let asked = known.capacity.map_or_else(|| "twice their rate".to_owned(), |rate| rate.to_string());
    tracing::warn!(
        "cannot load XCP for another rate without privileges: connections request {asked} at most until the \
         daemon is restarted"
    );
    Some(Xcp { registration })
}

/// A name that a socket does not take would be noticed only when it is needed.
fn check_fallback(name: &str) -> Result<(), XcpError> {
    let failed = |source| XcpError::Fallback { name: name.to_owned(), source };
    let probe = std::net::TcpListener::bind("127.0.0.1:0").map_err(failed)?;
    sockopt::set_congestion(probe, name).map_err(failed)
}

fn register_control(
    name: &str,
    parameters: XcpParameters<'_>,
    endpoints: BorrowedFd<'_>,
) -> Result<struct_ops::Registration, StructOpsError> {
    let failed = |source| StructOpsError::Load { feature: Feature::Xcp, source };
    let mut storage = MaybeUninit::uninit();
    let mut open = skel::xcp::XcpSkelBuilder::default().open(&mut storage).map_err(failed)?;
    let constants = open.maps.rodata_data.as_deref_mut().expect("the program has constants");
    constants.capacity = parameters.capacity.map_or(0, |capacity| capacity.bps() / 8);
    constants.ignores_loss = parameters.p_xcp.into();
    write_name(&mut constants.fallback, parameters.fallback);
    write_name(&mut open.struct_ops.bp_xcp_mut().name, name);
    open.maps.xcp_endpoints.reuse_fd(endpoints).map_err(failed)?;
    struct_ops::Registration::prepare(&mut open.maps.bp_xcp).map_err(failed)?;
    let mut loaded = open.load().map_err(failed)?;
    struct_ops::Registration::new(&mut loaded.maps.bp_xcp, name)
}

/// The directory of this process's cgroup of version 2 (cgroups(7)), which on hosts with both versions is not
/// the root.
fn cgroup_of_this_process() -> Result<PathBuf, XcpError> {
    let read = |path: &str| {
        fs::read_to_string(path)
            .map_err(|source| XcpError::Cgroup { source, hint: format!("it is said in {path}") })
    };
    let (cgroups, mounts) = (read("/proc/self/cgroup")?, read("/proc/self/mounts")?);
    cgroup_directory(&cgroups, &mounts, Path::exists).ok_or_else(|| XcpError::Cgroup {
        source: io::ErrorKind::NotFound.into(),
        hint: format!("mount the hierarchy of version 2: {MOUNT_CGROUPS}"),
    })
}

fn cgroup_directory(cgroups: &str, mounts: &str, exists: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let path = cgroups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let root = mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let place = words.next()?;
        (words.next()? == "cgroup2").then(|| Path::new(place))
    })?;
    // Where a part of the hierarchy is mounted, the path may be one from outside it; its root is then the
    // nearest there is.
    let own = root.join(path.trim_start_matches('/'));
    Some(if exists(&own) { own } else { root.to_owned() })
}

/// The names of the network interfaces of the calling thread's namespace (proc_pid_net(5)).
fn interfaces() -> io::Result<Vec<String>> {
    let table = fs::read_to_string("/proc/thread-self/net/dev")?;
    let rows = table.lines().filter_map(|line| line.split_once(':'));
    Ok(rows.map(|(name, _)| name.trim().to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_recognised_by_their_names() {
        assert!(is_xcp("bp_xcp") && is_xcp("bp_xcp2") && is_xcp("bp_pxcp") && is_xcp("bp_pxcp64"));
        assert!(!is_xcp("xcp") && !is_xcp("bp_xcpx") && !is_xcp("bp_hybla"));
    }

    #[test]
    fn the_cgroup_is_found_on_hosts_with_one_hierarchy_and_on_those_with_both() {
        let unified = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";
        let found = cgroup_directory("0::/system.slice/bentpipe.service\n", unified, |_| true);
        assert_eq!(found.unwrap(), Path::new("/sys/fs/cgroup/system.slice/bentpipe.service"));
        let hybrid = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let found = cgroup_directory("1:cpu:/a\n0::/\n", hybrid, |_| true);
        assert_eq!(found.unwrap(), Path::new("/sys/fs/cgroup/unified/"));
        let found = cgroup_directory("0::/outside\n", unified, |_| false);
        assert_eq!(found.unwrap(), Path::new("/sys/fs/cgroup"));
        assert_eq!(cgroup_directory("1:cpu:/a\n", hybrid, |_| true), None, "no version 2");
    }
}
