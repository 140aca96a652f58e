//! A shell on a host for the services that run there.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Instant;

use crate::common::{Host, PATIENCE};

/// A shell in a host's network with mounts and processes of its own. What it starts finds an empty `/run`,
/// may bind files over those of the system, and ends with it.
pub(crate) struct Shell {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    folder: tempfile::TempDir,
}

impl Shell {
    pub(crate) fn open(host: &Host) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut child = host
            .command("unshare")
            .args([
                "--mount",
                "--propagation",
                "private",
                "--pid",
                "--fork",
                "--kill-child",
                "--mount-proc",
                "sh",
            ])
            .env("LC_ALL", "C")
            .env("T", folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let mut shell = Self { child, stdin, stdout, folder };
        shell.run("mount -t tmpfs none /run");
        shell
    }

    /// A file in the shell's folder, which it knows as `$T`.
    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).unwrap();
    }

    /// Lets the shell see its own copy of a folder or file, which it may change.
    pub(crate) fn own(&mut self, path: &str) {
        let copy = format!("$T/own{}", path.replace('/', "_"));
        self.run(&format!("cp -a {path} {copy} && mount --bind {copy} {path}"));
    }

    /// Runs a command, which must succeed, and returns what it printed.
    pub(crate) fn run(&mut self, command: &str) -> String {
        let (succeeded, said) = self.try_run(command);
        assert!(succeeded, "{command}: {said}");
        said
    }

    /// Starts a program that runs as long as the shell does, with its output in `$T/NAME.log`.
    pub(crate) fn start(&mut self, name: &str, command: &str) {
        self.run(&format!("{command} >$T/{name}.log 2>&1 </dev/null &"));
    }

    /// Runs a command again and again until it succeeds.
    pub(crate) fn wait_for(&mut self, command: &str) {
        let start = Instant::now();
        loop {
            let (succeeded, said) = self.try_run(command);
            if succeeded {
                return;
            }
            let logs = || self.logs();
            assert!(start.elapsed() < PATIENCE, "{command}: {said}\n{}", logs());
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }

    fn try_run(&mut self, command: &str) -> (bool, String) {
        let line = format!("{{ {command}\n}} >$T/said 2>&1; echo $?");
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
        let mut status = String::new();
        self.stdout.read_line(&mut status).unwrap();
        let said = std::fs::read(self.folder.path().join("said")).unwrap_or_default();
        (status.trim() == "0", String::from_utf8_lossy(&said).into_owned())
    }

    /// What the programs said that it has started.
    fn logs(&self) -> String {
        let entries = std::fs::read_dir(self.folder.path()).unwrap().flatten();
        let logs = entries.filter(|entry| entry.path().extension().is_some_and(|end| end == "log"));
        logs.map(|log| std::fs::read_to_string(log.path()).unwrap_or_default()).collect()
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // The shell is the first process of its namespace: with it the kernel ends all the others.
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}

/// Whether a program is installed; an ordinary PATH may lack the administrator's folders.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.map(|folder| folder.join(program)).any(|candidate| candidate.is_file())
}

/// The version of an installed Debian package, without its epoch.
pub(crate) fn version(package: &str) -> String {
    let output = std::process::Command::new("dpkg-query").args(["-W", "-f=${Version}", package]).output();
    let version =
        output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    match version.split_once(':').map_or(version.as_str(), |(_, version)| version) {
        "" => package.to_owned(),
        version => format!("{package} {version}"),
    }
}

/// The kernel's version without what its builder added.
pub(crate) fn kernel() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let numbers: Vec<&str> = release.trim().splitn(3, '.').take(2).collect();
    format!("Linux {}", numbers.join("."))
}
