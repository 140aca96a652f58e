use std::fs::OpenOptions;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use bentpipe_kernel::tun::DEV_NET_TUN;
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::missing::{Missing, MissingItem, Need};
use crate::namespace::find_tool;
use crate::privilege::is_privileged;

/// The needs of a [`SatelliteLink`](crate::SatelliteLink), in a process that may enter a user namespace
/// first.
pub const LINK_NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::Program("ip")];

/// Checks that this process, on this machine, has all of `needs`. Nothing is changed; namespaces are tried
/// out in a child process that ends at once.
///
/// # Errors
/// Everything that is missing, not only the first thing.
pub fn require(needs: &[Need]) -> Result<(), Missing> {
    let items: Vec<_> = needs.iter().filter_map(|&need| check(need)).collect();
    if items.is_empty() { Ok(()) } else { Err(Missing { items }) }
}

fn check(need: Need) -> Option<MissingItem> {
    let (found, fix) = match need {
        Need::Privileges => check_privileges(),
        Need::Namespaces => check_namespaces(),
        Need::Tun => check_tun(),
        Need::Program(program) => check_program(program),
    }?;
    Some(MissingItem { need, found, fix })
}

fn check_privileges() -> Option<(String, String)> {
    let found = "CAP_SYS_ADMIN and CAP_NET_ADMIN are not held".to_owned();
    (!is_privileged()).then(|| (found, "run it as root (sudo)".to_owned()))
}

fn check_namespaces() -> Option<(String, String)> {
    let tried = if is_privileged() {
        try_unshare(UnshareFlags::NEWNET)
    } else {
        try_unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNET)
    };
    let source = tried.err()?;
    let fix = if is_privileged() {
        "in a container, give it CAP_SYS_ADMIN and allow unshare(2) (docker run --privileged)".to_owned()
    } else {
        format!("run it as root (sudo){}", user_namespace_fix())
    };
    Some((format!("network namespaces cannot be made ({source})"), fix))
}

/// The sysctl that stands in the way of an ordinary user, on the distributions that have one.
fn user_namespace_fix() -> String {
    [
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "0", "user.max_user_namespaces=10000"),
    ]
    .into_iter()
    .filter(|(path, bad, _)| {
        std::fs::read_to_string(Path::new("/proc/sys").join(path)).is_ok_and(|value| value.trim() == *bad)
    })
    .map(|(_, _, setting)| format!(", or: sudo sysctl -w {setting}"))
    .collect()
}

fn check_tun() -> Option<(String, String)> {
    let error = OpenOptions::new().read(true).write(true).open(DEV_NET_TUN).err()?;
    let fix = match error.kind() {
        io::ErrorKind::NotFound => {
            "sudo modprobe tun; if the node is still missing: sudo mkdir -p /dev/net && \
             sudo mknod -m 0666 /dev/net/tun c 10 200 (in docker: --device /dev/net/tun)"
        }
        io::ErrorKind::PermissionDenied => "run it as root (sudo), or: sudo chmod 0666 /dev/net/tun",
        _ => "sudo modprobe tun (this kernel may have been built without CONFIG_TUN)",
    };
    Some((format!("{DEV_NET_TUN} cannot be opened ({error})"), fix.to_owned()))
}

fn check_program(program: &str) -> Option<(String, String)> {
    let package = match program {
        "ip" | "tc" | "ss" => "iproute2",
        "nft" => "nftables",
        other => other,
    };
    let found = format!("the program `{program}` is not installed");
    let fix = format!("sudo apt install {package} (or the package of that name of your distribution)");
    (!find_tool(program).is_file()).then_some((found, fix))
}

/// Makes namespaces in a child process. Only trying tells: security modules let unshare(2) pass and take its
/// capabilities away.
fn try_unshare(flags: UnshareFlags) -> io::Result<()> {
    let mut command = Command::new("/proc/self/exe");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: between fork and exec the closure makes two system calls and allocates nothing; with NEWUSER
    // and NEWNET the descriptor table stays shared with nobody. It ends the child, so that the program is
    // never run again.
    unsafe {
        command.pre_exec(move || {
            unshare_unsafe(flags)?;
            libc::_exit(0)
        });
    }
    // A child that ends before exec closes the pipe on which an error would come: that is success.
    command.spawn()?.wait().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let missing = require(&[Need::Program("no-such-tool")]).unwrap_err();
        assert_eq!(missing.items.len(), 1);
        let text = missing.to_string();
        assert!(text.contains("`no-such-tool` is not installed") && text.contains("apt install"), "{text}");
    }

    #[test]
    fn everything_that_is_missing_is_listed() {
        let missing = require(&[Need::Program("no-such-a"), Need::Program("sh"), Need::Program("no-such-b")]);
        assert_eq!(missing.unwrap_err().items.len(), 2);
    }

    #[test]
    fn needing_nothing_is_always_met() {
        assert_eq!(require(&[]), Ok(()));
    }
}
