//! The form that eBPF congestion controls have in the running kernel, by its BTF.

use std::sync::OnceLock;

use libbpf_rs::btf::types::{FuncProto, Struct};
use libbpf_rs::btf::{Btf, BtfKind};

/// What differs between kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KernelForm {
    /// A link can hold a registration (Linux 6.4), so that it ends with its process, however that ends.
    pub(crate) has_links: bool,
    /// The place of the rate sample among the arguments of `cong_control`: 1 before Linux 6.10, 3 since.
    pub(crate) sample_argument: u32,
}

impl KernelForm {
    /// The latest one: what is assumed where the kernel does not describe itself. Nothing loads there.
    const LATEST: Self = Self { has_links: true, sample_argument: 3 };

    /// That of the running kernel.
    pub(crate) fn running() -> Self {
        static RUNNING: OnceLock<KernelForm> = OnceLock::new();
        *RUNNING.get_or_init(|| Btf::from_vmlinux().map_or(Self::LATEST, |btf| Self::of(&btf)))
    }

    fn of(btf: &Btf<'_>) -> Self {
        let arguments = arguments(btf, "tcp_congestion_ops", "cong_control");
        Self {
            has_links: btf.type_by_name::<Struct<'_>>("bpf_struct_ops_link").is_some(),
            sample_argument: arguments.map_or(Self::LATEST.sample_argument, |count| count - 1),
        }
    }
}

/// How many arguments the function has to which a member of a structure points; at least one.
fn arguments(btf: &Btf<'_>, structure: &str, member: &str) -> Option<u32> {
    let structure = btf.type_by_name::<Struct<'_>>(structure)?;
    let member = structure.iter().find(|field| field.name.is_some_and(|name| name == member))?;
    let mut function = btf.type_by_id::<libbpf_rs::btf::BtfType<'_>>(member.ty)?;
    while function.kind() != BtfKind::FuncProto {
        function = function.next_type()?;
    }
    let count = FuncProto::try_from(function).ok()?.len();
    u32::try_from(count).ok().filter(|&count| count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feature::running;

    #[test]
    fn the_running_kernel_has_the_form_of_its_version() {
        let Some(version) = running().filter(|_| Btf::from_vmlinux().is_ok()) else { return };
        let form = KernelForm::running();
        assert_eq!(form.has_links, version >= (6, 4), "{version:?}");
        assert_eq!(form.sample_argument, if version >= (6, 10) { 3 } else { 1 }, "{version:?}");
    }
}
