//! eBPF programs at an interface, where packets arrive or leave: by a link (tcx, Linux 6.6), else as a filter
//! of the classic queueing discipline clsact (tc-bpf(8)).
//!
//! A filter stays when its process is killed. It is known by its priority and handles, and removed at the next
//! attachment that is allowed to see whose it is.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_rs::{TC_EGRESS, TC_INGRESS, TcAttachPoint, TcHook, TcHookBuilder, libbpf_sys};

use crate::owner::{Owned, Owner, all_owned};

/// The priority of filters of ours, which no other program is likely to choose; that of those which come
/// before them; and their handles.
const PRIORITY: u32 = 0xbe47;
const PRIORITY_OF_FIRST: u32 = PRIORITY - 1;
const HANDLES: std::ops::RangeInclusive<u32> = 1..=16;

/// Where packets meet a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hook {
    /// As they come from the interface.
    Ingress,
    /// As they go to it.
    Egress,
}

/// The place of a program among those of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Before all that are there: by links of any owner, else ours only, among which the latest is the first.
    First,
    /// Behind all that are there.
    Last,
}

/// Where a program is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    interface: u32,
    hook: Hook,
    order: Order,
}

/// A program at an interface, until this is dropped.
#[derive(Debug)]
pub(crate) enum Attachment {
    /// Until the descriptor is closed, however the process ends.
    Link { link: OwnedFd },
    /// Until it is removed.
    Filter { filter: Filter },
}

/// A filter of clsact.
#[derive(Debug)]
pub(crate) struct Filter {
    place: Place,
    program: u32,
    _owner: Option<Owner>,
}

/// Where a filter of ours may be.
#[derive(Debug, Clone, Copy)]
struct Place {
    interface: i32,
    hook: Hook,
    priority: u32,
    handle: u32,
}

/// The hooks and priorities of filters of ours.
const LISTS: [(Hook, u32); 3] =
    [(Hook::Ingress, PRIORITY_OF_FIRST), (Hook::Egress, PRIORITY_OF_FIRST), (Hook::Egress, PRIORITY)];

/// The number of an interface of the calling thread's network namespace (if_nametoindex(3)).
pub(crate) fn index_of(interface: &str) -> io::Result<u32> {
    let name = CString::new(interface)?;
    // SAFETY: `name` ends with a zero and lives through the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

impl Target {
    /// The egress of an interface, behind the programs that are there already.
    pub(crate) fn egress(interface: u32) -> Self {
        Self { interface, hook: Hook::Egress, order: Order::Last }
    }

    /// Before the programs that are there already.
    pub(crate) fn first(interface: u32, hook: Hook) -> Self {
        Self { interface, hook, order: Order::First }
    }
}

impl Attachment {
    /// Whether it stays if the process is killed.
    pub(crate) fn is_filter(&self) -> bool {
        matches!(self, Self::Filter { .. })
    }

    /// Whether the program is still there: it goes with the interface, and others may remove it.
    pub(crate) fn is_there(&self) -> bool {
        match self {
            // An error says nothing about the program.
            Self::Link { link } => !interface_of(link.as_fd()).is_ok_and(|index| index == 0),
            Self::Filter { filter } => filter.place.program() == Some(filter.program),
        }
    }
}

/// Attaches a program. Needs `CAP_NET_ADMIN`.
pub(crate) fn attach(program: BorrowedFd<'_>, target: Target) -> io::Result<Attachment> {
    match attach_link(program, target) {
        Ok(link) => Ok(Attachment::Link { link }),
        // A kernel before 6.6 does not know the kind of link.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => attach_as_filter(program, target),
        Err(error) => Err(error),
    }
}

/// Attaches a program as kernels before 6.6 do it.
pub(crate) fn attach_as_filter(program: BorrowedFd<'_>, target: Target) -> io::Result<Attachment> {
    attach_filter(program, target).map(|filter| Attachment::Filter { filter })
}

/// Marks a program as this process's, for filters that it attaches once it may not make maps any more.
pub(crate) fn own(program: BorrowedFd<'_>) -> io::Result<Owner> {
    Owner::of(Owned::Program(id_of(program)?)).map_err(as_io)
}

/// bpf(2), `BPF_LINK_CREATE`.
fn attach_link(program: BorrowedFd<'_>, target: Target) -> io::Result<OwnedFd> {
    let interface = i32::try_from(target.interface).map_err(io::Error::other)?;
    let hook = match target.hook {
        Hook::Ingress => libbpf_sys::BPF_TCX_INGRESS,
        Hook::Egress => libbpf_sys::BPF_TCX_EGRESS,
    };
    let options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
        // Relative to no program: to all of them.
        flags: if target.order == Order::First { libbpf_sys::BPF_F_BEFORE } else { 0 },
        ..Default::default()
    };
    // SAFETY: the program is open, and the options live through the call.
    let link =
        unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), interface, hook, &raw const options) };
    if link < 0 {
        return Err(io::Error::from_raw_os_error(-link));
    }
    // SAFETY: the kernel has just made the descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}

/// The interface where a link holds its program; 0 once that has gone.
fn interface_of(link: BorrowedFd<'_>) -> io::Result<u32> {
    let mut info = libbpf_sys::bpf_link_info::default();
    let mut length = size_of::<libbpf_sys::bpf_link_info>() as u32;
    // SAFETY: the kernel writes at most `length` bytes into `info`.
    let outcome =
        unsafe { libbpf_sys::bpf_obj_get_info_by_fd(link.as_raw_fd(), (&raw mut info).cast(), &mut length) };
    if outcome < 0 {
        return Err(io::Error::from_raw_os_error(-outcome));
    }
    // SAFETY: all members of the union are integers, and the link is tcx's.
    Ok(unsafe { info.__bindgen_anon_1.tcx.ifindex })
}

/// The number of programs at the egress of an interface: of any owner by links, else ours only (bpf(2),
/// `BPF_PROG_QUERY`).
pub(crate) fn programs_at(interface: u32) -> io::Result<usize> {
    let interface = i32::try_from(interface).map_err(io::Error::other)?;
    let mut options = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as _,
        ..Default::default()
    };
    // SAFETY: `options` lives through the call and has room for no numbers of programs, as its zeros say.
    let outcome =
        unsafe { libbpf_sys::bpf_prog_query_opts(interface, libbpf_sys::BPF_TCX_EGRESS, &mut options) };
    match -outcome {
        // A kernel before 6.6 does not know the kind of link.
        libc::EINVAL => Ok(filters_at(interface).filter(|(place, _)| place.hook == Hook::Egress).count()),
        error @ 1.. => Err(io::Error::from_raw_os_error(error)),
        // SAFETY: the union's members are two names of the same number.
        _ => Ok(unsafe { options.__bindgen_anon_1.count } as usize),
    }
}

fn filters_at(interface: i32) -> impl Iterator<Item = (Place, u32)> {
    let places = LISTS.into_iter().flat_map(move |(hook, priority)| places(interface, hook, priority));
    places.filter_map(|place| Some((place, place.program()?)))
}

fn places(interface: i32, hook: Hook, priority: u32) -> impl Iterator<Item = Place> {
    HANDLES.map(move |handle| Place { interface, hook, priority, handle })
}

fn attach_filter(program: BorrowedFd<'_>, target: Target) -> io::Result<Filter> {
    let interface = i32::try_from(target.interface).map_err(io::Error::other)?;
    let id = id_of(program)?;
    // It has been there before if that is no error.
    let mut builder = TcHookBuilder::new(program);
    builder.ifindex(interface).hook(target.hook.point()).create().map_err(as_io)?;
    match remove_leftovers_at(interface) {
        Ok(0) => {}
        Ok(count) => {
            tracing::info!(interface, count, "removed programs that a killed daemon left at an interface")
        }
        Err(error) => tracing::debug!(%error, "cannot look for programs that were left at an interface"),
    }
    // Among filters of one priority, the kernel asks the latest first.
    let priority = if target.order == Order::First { PRIORITY_OF_FIRST } else { PRIORITY };
    let places = || places(interface, target.hook, priority);
    if places().any(|place| place.program() == Some(id)) {
        // As a link says it.
        return Err(io::Error::from_raw_os_error(libc::EEXIST));
    }
    let place = places().find(|place| place.program().is_none());
    let place = place.ok_or_else(|| io::Error::from_raw_os_error(libc::ERANGE))?;
    // A process that may not make maps, and has not called `own` before, has no mark: others that are started
    // take its filter for left behind.
    let owner = own(program).ok();
    place.hook(program).attach().map_err(as_io)?;
    Ok(Filter { place, program: id, _owner: owner })
}

impl Hook {
    fn point(self) -> TcAttachPoint {
        match self {
            Self::Ingress => TC_INGRESS,
            Self::Egress => TC_EGRESS,
        }
    }
}

impl Place {
    /// The program there, of whomever it is.
    fn program(self) -> Option<u32> {
        self.anything().query().ok()
    }

    fn hook(self, program: BorrowedFd<'_>) -> TcHook {
        let mut builder = TcHookBuilder::new(program);
        builder.ifindex(self.interface).handle(self.handle).priority(self.priority).hook(self.hook.point())
    }

    /// For questions about whatever is there: the builder wants a descriptor all the same, which is not read.
    fn anything(self) -> TcHook {
        self.hook(io::stdin().as_fd())
    }

    fn clear(self) -> io::Result<()> {
        self.anything().detach().map_err(as_io)
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        // The interface, and the filter with it, may have gone, or have become another's.
        if self.place.program() == Some(self.program)
            && let Err(error) = self.place.clear()
        {
            tracing::warn!(%error, "cannot remove a program from an interface; the next start does it");
        }
    }
}

/// Removes the filters of killed processes from all interfaces of the calling thread's network namespace, and
/// returns how many there were.
///
/// # Errors
/// Seeing whose they are takes `CAP_SYS_ADMIN`.
pub(crate) fn remove_leftovers() -> io::Result<usize> {
    let names = fs::read_to_string("/proc/thread-self/net/dev")?;
    let names = names.lines().filter_map(|line| Some(line.split_once(':')?.0.trim()));
    let indices = names.filter_map(|name| i32::try_from(index_of(name).ok()?).ok());
    indices.map(remove_leftovers_at).sum()
}

fn remove_leftovers_at(interface: i32) -> io::Result<usize> {
    let there: Vec<_> = filters_at(interface).collect();
    if there.is_empty() {
        return Ok(0);
    }
    let owned = all_owned()?;
    let left = there.into_iter().filter(|(_, id)| !owned.contains(&Owned::Program(*id)));
    Ok(left.filter(|(place, _)| place.clear().is_ok()).count())
}

/// The number of a program.
fn id_of(program: BorrowedFd<'_>) -> io::Result<u32> {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut length = size_of::<libbpf_sys::bpf_prog_info>() as u32;
    // SAFETY: the kernel writes at most `length` bytes into `info`.
    let outcome = unsafe {
        libbpf_sys::bpf_obj_get_info_by_fd(program.as_raw_fd(), (&raw mut info).cast(), &mut length)
    };
    if outcome < 0 { Err(io::Error::from_raw_os_error(-outcome)) } else { Ok(info.id) }
}

/// With the text of libbpf.
fn as_io(error: libbpf_rs::Error) -> io::Error {
    io::Error::other(error)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bentpipe_units::Rate;

    use super::*;
    use crate::router::{Router, RouterConfig, Variant};

    /// A router that is at no interface.
    fn router() -> Router {
        let capacity = Rate::mbps(10);
        let config = RouterConfig { capacity, variant: Variant::Xcp, longest_rtt: Duration::from_secs(2) };
        Router::detached(&config).unwrap()
    }

    #[test]
    fn a_filter_ends_with_its_owner_or_is_found_once_that_is_killed() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: needs root");
            return;
        }
        // A thread with a network of its own, which has a loopback interface.
        let tried = std::thread::spawn(|| {
            // SAFETY: the new namespace is this thread's alone, and no file descriptors are concerned.
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.unwrap();
            let (lo, routers) = (index_of("lo").unwrap(), [router(), router(), router()]);
            let targets =
                [Target::egress(lo), Target::first(lo, Hook::Egress), Target::first(lo, Hook::Ingress)];
            let attach = |place: usize| attach_filter(routers[place].program(), targets[place]).unwrap();
            let [ended, owned, killed] = [attach(0), attach(1), attach(2)];
            let interface = i32::try_from(lo).unwrap();
            let there = || filters_at(interface).count();
            assert_eq!(there(), 3);
            let again = attach_filter(routers[1].program(), targets[1]).unwrap_err();
            assert_eq!(again.raw_os_error(), Some(libc::EEXIST));
            drop(ended);
            assert_eq!(there(), 2);
            let mut killed = killed;
            killed._owner = None;
            std::mem::forget(killed);
            assert_eq!((remove_leftovers().unwrap(), there()), (1, 1));
            drop(owned);
            assert_eq!(there(), 0);
        });
        tried.join().unwrap();
    }
}
