//! `bentpipe doctor --fix` in a network namespace, whose kernel parameters are its own.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use bentpipe_testbed::{Namespace, Need, require};
use serde_json::Value;

fn missing() -> bool {
    match require(&[Need::Privileges, Need::Namespaces]) {
        Ok(()) => false,
        Err(missing) => {
            println!("skipped: needs root: {missing}");
            true
        }
    }
}

/// A host that does not forward, and a folder in the place of its /etc. Programs that would change the
/// machine that the test runs on, modprobe, mount and apt-get, are not to be found.
struct Host {
    namespace: Namespace,
    etc: tempfile::TempDir,
    programs: tempfile::TempDir,
}

impl Host {
    fn new() -> Self {
        let [etc, programs] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let host = Self { namespace: Namespace::new("host").unwrap(), etc, programs };
        for name in ["nft", "ip"] {
            let places =
                ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(|folder| Path::new(folder).join(name));
            if let Some(place) = places.iter().find(|place| place.exists()) {
                symlink(place, host.programs.path().join(name)).unwrap();
            }
        }
        assert!(host.shell("echo 0 > /proc/sys/net/ipv4/ip_forward").status.success());
        host
    }

    fn shell(&self, line: &str) -> Output {
        self.namespace.command("sh").args(["-c", line]).output().unwrap()
    }

    fn forwards(&self) -> bool {
        self.shell("cat /proc/sys/net/ipv4/ip_forward").stdout == b"1\n"
    }

    fn doctor(&self, arguments: &[&str]) -> Output {
        let mut command: Command = self.namespace.command(env!("CARGO_BIN_EXE_bentpipe"));
        command.args(["doctor", "--etc"]).arg(self.etc.path()).args(arguments).stdin(Stdio::null());
        command.env("PATH", self.programs.path()).output().unwrap()
    }

    fn lasting(&self) -> Option<String> {
        fs::read_to_string(self.etc.path().join("sysctl.d/60-bentpipe.conf")).ok()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn missing_settings_are_shown_applied_and_made_permanent() {
    if missing() {
        return;
    }
    let host = Host::new();
    let said = text(&host.doctor(&["--fix", "--yes"]).stdout);
    let place = |part: &str| said.find(part).unwrap_or_else(|| panic!("no {part} in {said}"));
    let shown = place("    sysctl -w net.ipv4.ip_forward=1    (IPv4 forwarding");
    let done = place("done    sysctl -w net.ipv4.ip_forward=1");
    let after = place("ok    IPv4 forwarding");
    assert!(shown < done && done < after, "{said}");
    assert!(host.forwards());
    assert!(host.lasting().unwrap().contains("\nnet.ipv4.ip_forward = 1\n"));
    let again = text(&host.doctor(&["--fix", "--yes"]).stdout);
    assert!(!again.contains("ip_forward"), "there is nothing left to do: {again}");
}

#[test]
fn an_unanswerable_question_means_no() {
    if missing() {
        return;
    }
    let host = Host::new();
    for arguments in [&["--fix"][..], &["--fix", "--json"]] {
        let output = host.doctor(arguments);
        let error = text(&output.stderr);
        assert!(!output.status.success() && error.contains("add --yes"), "{error}");
        let shown = text(&output.stdout) + &error;
        assert!(shown.contains("sysctl -w net.ipv4.ip_forward=1"), "the plan is shown all the same: {shown}");
        assert!(!host.forwards() && host.lasting().is_none());
    }
    assert!(!host.doctor(&["--yes"]).status.success(), "--yes to what?");
}

#[test]
fn json_has_the_result_of_each_step_including_failures() {
    if missing() {
        return;
    }
    let host = Host::new();
    // A file in the way of the folder.
    fs::write(host.etc.path().join("sysctl.d"), "").unwrap();
    let output = host.doctor(&["--fix", "--yes", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let done = document["done"].as_array().unwrap();
    let step = |name: &str| done.iter().find(|step| step["step"].as_str().unwrap().contains(name)).unwrap();
    assert!(step("net.ipv4.ip_forward=1")["error"].is_null() && host.forwards(), "{done:?}");
    let error = step("write ")["error"].as_str().unwrap();
    assert!(error.contains("sysctl.d/60-bentpipe.conf: Not a directory"), "{error}");
    let checks = document["checks"].as_array().unwrap();
    let forwarding = checks.iter().find(|check| check["name"] == "IPv4 forwarding").unwrap();
    assert_eq!(forwarding["ok"], true, "the checks are those after the steps");
}
