use std::ffi::CStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, unmount,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Lets the command see an empty folder in the place of `folder`, which must exist. What it and its children
/// write there vanishes with them, however they end. Starting it needs CAP_SYS_ADMIN.
pub fn with_own_folder(command: &mut Command, folder: &'static str) {
    // SAFETY: between fork and exec the closure makes three system calls and allocates nothing. The child has
    // one thread, which shares its mounts with nobody from the first call on.
    unsafe {
        command.pre_exec(move || {
            own_mounts()?;
            mount_memory(folder)
        })
    };
}

/// Lets the command see `content` in the file `path`, which must exist (where it is a symbolic link, in the
/// file behind it). Other processes see the file as it was. Starting it needs CAP_SYS_ADMIN.
pub fn with_file(command: &mut Command, path: &'static CStr, content: String) {
    // SAFETY: between fork and exec the closure makes system calls only and allocates nothing. The child has
    // one thread, which shares its mounts with nobody from the first call on.
    unsafe {
        command.pre_exec(move || {
            own_mounts()?;
            // The file's place exists as long as it is made; the file, as long as it is mounted.
            mount_memory(SCRATCH_FOLDER)?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let file = open(SCRATCH_FILE, flags, Mode::from_raw_mode(0o644))?;
            write_all(&file, content.as_bytes())?;
            mount_bind(SCRATCH_FILE, path)?;
            Ok(unmount(SCRATCH_FOLDER, UnmountFlags::DETACH)?)
        })
    };
}

/// A folder that every system has.
const SCRATCH_FOLDER: &str = "/tmp";
const SCRATCH_FILE: &CStr = c"/tmp/file";

/// Nothing that is mounted from here on is seen outside.
///
/// # Safety
/// As [`unshare_unsafe`]: nobody shares the calling process's descriptors.
unsafe fn own_mounts() -> io::Result<()> {
    // SAFETY: the caller's promise; NEWNS leaves descriptors alone.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS)? };
    Ok(mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?)
}

fn mount_memory(folder: &str) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount("tmpfs", folder, "tmpfs", flags, None::<&CStr>)?)
}

fn write_all(file: impl std::os::fd::AsFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = rustix::io::write(&file, bytes)?;
        bytes = &bytes[written..];
    }
    Ok(())
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

    #[test]
    fn a_program_reads_its_own_content_in_a_file_that_stays_as_it_was_for_others() {
        if !is_privileged() {
            return println!("skipped: needs root: mounts");
        }
        let before = std::fs::read("/etc/passwd").unwrap();
        let mut command = Command::new("cat");
        command.arg("/etc/passwd");
        with_file(&mut command, c"/etc/passwd", "nobody here\n".to_owned());
        let output = command.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "nobody here\n", "{output:?}");
        assert_eq!(std::fs::read("/etc/passwd").unwrap(), before);
    }
}
