use std::ffi::CStr;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Lets the command see an empty folder in the place of `folder`, which must exist. What it and its children
/// write there vanishes with them, however they end. Starting it needs CAP_SYS_ADMIN.
pub fn with_own_folder(command: &mut Command, folder: &'static str) {
    // SAFETY: between fork and exec the closure makes three system calls and allocates nothing. The child has
    // one thread, which shares its mounts with nobody from the first call on.
    unsafe {
        command.pre_exec(move || {
            unshare_unsafe(UnshareFlags::NEWNS)?;
            // Nothing that is mounted from here on is seen outside.
            mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
            let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
            Ok(mount("tmpfs", folder, "tmpfs", flags, None::<&CStr>)?)
        })
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::is_privileged;

    #[test]
    fn a_program_finds_its_folder_empty_and_leaves_nothing_there() {
        if !is_privileged() {
            return println!("skipped: needs root: mounts");
        }
        let name = format!("/tmp/bentpipe-mounts-{}", std::process::id());
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ls -A /tmp; touch {name} && ls /tmp")]);
        with_own_folder(&mut command, "/tmp");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(format!("/tmp/{}", String::from_utf8(output.stdout).unwrap().trim()), name);
        assert!(!std::path::Path::new(&name).exists());
    }
}
