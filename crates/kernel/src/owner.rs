//! Who owns what stays in the kernel after its process.
//!
//! Where a link holds an eBPF program, the kernel removes it with the process. Where there are no links (for
//! congestion controls before Linux 6.4, at interfaces before 6.6) it stays. A process therefore keeps a
//! [mark](Owner) as long as it lives: a map of its own, which says what it owns. What has no mark was left
//! behind by a process that could not remove it, and is removed at the next start. Unlike a process's number
//! or a lock on a file, a map is seen from every namespace.

use std::io;

use libbpf_rs::libbpf_sys;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

/// The name of the maps.
const NAME: &str = "bp_owner";

/// What may be left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owned {
    /// The map of this number, which holds a congestion control.
    Congestion(u32),
    /// The program of this number, at an interface.
    Program(u32),
}

/// A mark: something belongs to this process as long as the mark is held.
#[derive(Debug)]
pub(crate) struct Owner {
    _map: MapHandle,
}

impl Owner {
    /// Marks something as this process's. Call it before others can see that thing, or they may take it for
    /// left behind. Needs `CAP_BPF`.
    pub(crate) fn of(owned: Owned) -> libbpf_rs::Result<Self> {
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
            ..Default::default()
        };
        let map = MapHandle::create(MapType::Array, Some(NAME), 4, 8, 1, &options)?;
        map.update(&[0; 4], &owned.encode(), MapFlags::ANY)?;
        Ok(Self { _map: map })
    }
}

impl Owned {
    fn encode(self) -> [u8; 8] {
        let (kind, id) = match self {
            Self::Congestion(id) => (0u32, id),
            Self::Program(id) => (1, id),
        };
        (u64::from(kind) << 32 | u64::from(id)).to_ne_bytes()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let value = u64::from_ne_bytes(bytes.try_into().ok()?);
        match (value >> 32, value as u32) {
            (0, id) => Some(Self::Congestion(id)),
            (1, id) => Some(Self::Program(id)),
            _ => None,
        }
    }
}

/// All that processes own by such marks. Ask for it *after* what is looked at, or what comes in between seems
/// to be left behind.
///
/// # Errors
/// Those of [`maps`].
pub(crate) fn all_owned() -> io::Result<Vec<Owned>> {
    let is_mark = |map: &MapHandle| map.name() == NAME && map.map_type() == MapType::Array;
    let value = |map: &MapHandle| map.lookup(&[0; 4], MapFlags::ANY).ok().flatten();
    let marks = maps()?.into_iter().filter(|(_, map)| is_mark(map));
    Ok(marks.filter_map(|(_, map)| Owned::decode(&value(&map)?)).collect())
}

/// All maps of the machine, with their numbers.
///
/// # Errors
/// Listing them takes `CAP_SYS_ADMIN` (bpf(2)).
pub(crate) fn maps() -> io::Result<Vec<(u32, MapHandle)>> {
    let mut found = Vec::new();
    let mut id = 0;
    loop {
        // SAFETY: `id` is read and written during the call only.
        let outcome = unsafe { libbpf_sys::bpf_map_get_next_id(id, &mut id) };
        match -outcome {
            0 => {}
            libc::ENOENT => return Ok(found),
            error => return Err(io::Error::from_raw_os_error(error)),
        }
        // One that has just gone is no error.
        if let Ok(map) = MapHandle::from_map_id(id) {
            found.push((id, map));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_as_they_were_written() {
        for owned in [Owned::Congestion(0), Owned::Congestion(u32::MAX), Owned::Program(7)] {
            assert_eq!(Owned::decode(&owned.encode()), Some(owned));
        }
        assert_eq!(Owned::decode(&u64::MAX.to_ne_bytes()), None);
        assert_eq!(Owned::decode(&[0; 4]), None);
    }
}
