//! What holds a congestion control in the kernel, and what of them processes have left behind.

use std::io;

use libbpf_rs::libbpf_sys;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, MapMut, MapType, OpenMapMut};

use super::StructOpsError;
use super::kernel_form::KernelForm;
use crate::owner::{Owned, Owner, all_owned, maps};

/// In which state a congestion control's map is: registered (`BPF_STRUCT_OPS_STATE_INUSE`). The value begins
/// with a count and this.
const REGISTERED: u32 = 1;
const STATE: usize = 4;

/// A registered congestion control, until it is dropped. Sockets that use it keep it.
#[derive(Debug)]
pub(crate) enum Registration {
    /// The kernel removes it with the process, too.
    Link { _link: Link },
    /// It stays if the process is killed; [`remove_leftovers`] then finds it.
    Element { _element: Element },
}

/// The one element of a congestion control's map: deleting it ends the registration.
#[derive(Debug)]
pub(crate) struct Element {
    map: MapHandle,
    /// Always there, but where a test plays a process that was killed.
    _owner: Option<Owner>,
}

impl Registration {
    /// Prepares the map of a congestion control for this kernel. Call it before the program is loaded.
    pub(crate) fn prepare(map: &mut OpenMapMut<'_>) -> libbpf_rs::Result<()> {
        if KernelForm::running().has_links { Ok(()) } else { map.set_map_flags(0) }
    }

    /// Registers a congestion control that has been [prepared](Self::prepare) and loaded.
    pub(crate) fn new(map: &mut MapMut<'_>, name: &str) -> Result<Self, StructOpsError> {
        let failed = |source| StructOpsError::Register { name: name.to_owned(), source };
        if KernelForm::running().has_links {
            return Ok(Self::Link { _link: map.attach_struct_ops().map_err(failed)? });
        }
        Ok(Self::Element { _element: Element::new(map).map_err(failed)? })
    }
}

impl Element {
    fn new(map: &mut MapMut<'_>) -> libbpf_rs::Result<Self> {
        let owner = Owner::of(Owned::Congestion(map.info()?.info.id))?;
        let element = MapHandle::try_from(&**map)?;
        // libbpf would delete the element by a descriptor that is closed with the loaded program.
        map.attach_struct_ops()?.disconnect();
        Ok(Self { map: element, _owner: Some(owner) })
    }
}

impl Drop for Element {
    fn drop(&mut self) {
        if let Err(error) = self.map.delete(&[0; 4]) {
            tracing::warn!(%error, "cannot unregister a congestion control; the next start does it");
        }
    }
}

/// Unregisters congestion controls of these names that no process owns any more, and returns how many. Where
/// links hold them there are none.
///
/// # Errors
/// Finding them takes `CAP_SYS_ADMIN`.
pub(crate) fn remove_leftovers(names: &[&str]) -> io::Result<usize> {
    if KernelForm::running().has_links { Ok(0) } else { remove_unowned(names) }
}

fn remove_unowned(names: &[&str]) -> io::Result<usize> {
    let candidates: Vec<_> = maps()?.into_iter().filter(|(_, map)| is_registered(map, names)).collect();
    let owned = all_owned()?;
    let left = candidates.into_iter().filter(|(id, _)| !owned.contains(&Owned::Congestion(*id)));
    Ok(left.filter(|(_, map)| map.delete(&[0; 4]).is_ok()).count())
}

/// Whether this is the map of a congestion control of one of these names that is registered without a link.
fn is_registered(map: &MapHandle, names: &[&str]) -> bool {
    let is_ours = map.map_type() == MapType::StructOps && names.iter().any(|name| map.name() == *name);
    let has_link = || map.info().is_ok_and(|info| info.info.map_flags & libbpf_sys::BPF_F_LINK != 0);
    let state = || map.lookup(&[0; 4], MapFlags::ANY).ok().flatten();
    let state = || Some(u32::from_ne_bytes(*state()?.get(STATE..)?.first_chunk()?));
    is_ours && !has_link() && state() == Some(REGISTERED)
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use libbpf_rs::skel::{OpenSkel, SkelBuilder};

    use super::*;
    use crate::congestion::available;
    use crate::skel::hybla as skel;
    use crate::struct_ops::write_name;

    /// Registers Hybla under this name, as on a kernel without links.
    fn register(name: &str) -> Element {
        let mut storage = MaybeUninit::uninit();
        let mut open = skel::HyblaSkelBuilder::default().open(&mut storage).unwrap();
        write_name(&mut open.struct_ops.bp_hybla_mut().name, name);
        open.maps.bp_hybla.set_map_flags(0).unwrap();
        let mut loaded = open.load().unwrap();
        Element::new(&mut loaded.maps.bp_hybla).unwrap()
    }

    #[test]
    fn without_links_a_registration_ends_with_its_owner_or_is_found_once_that_is_killed() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: needs root");
            return;
        }
        let has = |name: &str| available().iter().any(|other| other == name);
        let ended = register("bp_test_ended");
        assert!(has("bp_test_ended"));
        drop(ended);
        assert!(!has("bp_test_ended"));

        let owned = register("bp_test_owned");
        let mut killed = register("bp_test_killed");
        killed._owner = None;
        std::mem::forget(killed);
        assert!(remove_unowned(&["bp_other"]).unwrap() == 0 && has("bp_test_killed"));
        assert_eq!(remove_unowned(&["bp_hybla"]).unwrap(), 1);
        assert!(!has("bp_test_killed") && has("bp_test_owned"));
        drop(owned);
        assert!(!has("bp_test_owned"));
    }
}
