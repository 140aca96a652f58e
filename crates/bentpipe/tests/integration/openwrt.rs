//! The service for OpenWrt (`dist/openwrt`): its configuration becomes one that the daemon takes. OpenWrt's
//! shell functions are played by a few lines that call back as those do; procd's write down what they get.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// `config_load` of OpenWrt evaluates what `uci export` prints, which has the form of the file: each line is a
/// call of config, option or list. They call back, and at the end comes a section without type.
const OPENWRT: &str = r#"
config_load() {
    section=
    . "$UCI/$1"
    [ -z "$section" ] || config_cb
}
reset_cb() {
    config_cb() { return 0; }
    option_cb() { return 0; }
    list_cb() { return 0; }
}
reset_cb
config() { section=${2:-cfg}; config_cb "$1" "$section"; }
option() { [ "$section.$1" != proxy.enabled ] || enabled_option=$2; option_cb "$1" "$2"; }
list() { list_cb "$1" "$2"; }
config_get_bool() { eval "$1=${enabled_option:-$4}"; }
for name in open_instance set_param close_instance add_reload_trigger; do
    eval "procd_$name() { echo procd_$name \"\$@\"; }"
done
logger() { :; }
start() { start_service; }
stop() { echo stop; }
"#;

fn dist(file: &str) -> String {
    format!("{}/../../dist/openwrt/{file}", env!("CARGO_MANIFEST_DIR"))
}

/// A router with this configuration.
struct Router {
    folder: tempfile::TempDir,
}

impl Router {
    fn with(config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("bentpipe"), config).unwrap();
        fs::write(folder.path().join("functions"), OPENWRT).unwrap();
        Self { folder }
    }

    /// Calls a function of the init script, with a program in place of the daemon's.
    fn call(&self, function: &str, program: &Path) -> Output {
        let script = format!(". \"$UCI/functions\"; . {}; {function}", dist("bentpipe.init"));
        Command::new("sh")
            .args(["-c", &script])
            .env("UCI", self.folder.path())
            .env("TOML", self.toml())
            .env("PROGRAM", program)
            .output()
            .unwrap()
    }

    fn start(&self) -> Output {
        self.call("start_service", Path::new(env!("CARGO_BIN_EXE_bentpipe")))
    }

    fn toml(&self) -> std::path::PathBuf {
        self.folder.path().join("etc/bentpipe.toml")
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The configuration that the package has, with this at its end.
fn packaged(enabled: bool, more: &str) -> String {
    let config = fs::read_to_string(dist("bentpipe.config")).unwrap();
    assert!(config.contains("option enabled '0'"), "the package starts nothing by itself");
    config.replace("enabled '0'", if enabled { "enabled '1'" } else { "enabled '0'" }) + more
}

#[test]
fn the_packaged_configuration_starts_the_daemon_once_it_is_enabled() {
    let off = Router::with(&packaged(false, ""));
    let output = off.start();
    assert!(output.status.success() && output.stdout.is_empty() && !off.toml().exists(), "{output:?}");

    let on = Router::with(&packaged(true, ""));
    let output = on.start();
    assert!(output.status.success(), "{output:?}");
    let said = text(&output.stdout);
    let command =
        format!("procd_set_param command {} run -c {}", env!("CARGO_BIN_EXE_bentpipe"), on.toml().display());
    for line in [&command, "procd_set_param respawn 3600 2 0", "procd_close_instance"] {
        assert!(said.contains(line), "{line} is not in {said}");
    }
}

#[test]
fn sections_are_tables_options_keys_and_lists_arrays() {
    let rules = "
config rule
	option action 'pass'
	list port '22'
	list port '6000-6010'
	option comment 'interactive'

config rule
	option action 'split'
	option weight '4'
	list server '192.0.2.0/24'

config access_log
	option file '/var/log/a \"quoted\" \\ name'
";
    let router = Router::with(&packaged(true, rules));
    let output = router.start();
    assert!(output.status.success(), "{output:?}");
    let toml = fs::read_to_string(router.toml()).unwrap();
    for part in [
        "[legs.satellite]\ninterface = \"eth1\"\nrate = \"10Mbit/s\"\n",
        "[limits]\nconnections = 1000\nbuffered = \"64MB\"\n",
        "[[rules]]\naction = \"pass\"\nport = [22, \"6000-6010\"]\ncomment = \"interactive\"\n",
        "[[rules]]\naction = \"split\"\nweight = 4\nserver = [\"192.0.2.0/24\"]\n",
        "[access_log]\nfile = \"/var/log/a \\\"quoted\\\" \\\\ name\"\n",
    ] {
        assert!(toml.contains(part), "{part} is not in {toml}");
    }
    assert!(!toml.contains("enabled"), "{toml}");
}

#[test]
fn a_bad_configuration_is_told_and_the_last_good_one_stays() {
    let router = Router::with(&packaged(true, ""));
    assert!(router.start().status.success());
    let good = fs::read_to_string(router.toml()).unwrap();
    fs::write(router.folder.path().join("bentpipe"), packaged(true, "").replace("10Mbit/s", "fast")).unwrap();
    let output = router.start();
    assert!(!output.status.success() && !text(&output.stdout).contains("procd"), "{output:?}");
    assert!(text(&output.stderr).contains("rate"), "{output:?}");
    assert_eq!(fs::read_to_string(router.toml()).unwrap(), good);
}

#[test]
fn a_running_daemon_is_reloaded_and_another_one_is_started() {
    let router = Router::with(&packaged(true, ""));
    // In the place of the program: it says with what it was called, and status succeeds if there is a daemon.
    let program = router.folder.path().join("program");
    let daemon = |runs: bool| {
        fs::write(&program, format!("#!/bin/sh\n[ $1 = status ] && exit {}\necho $*\n", i32::from(!runs)))
            .unwrap();
        fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    };
    daemon(true);
    assert_eq!(text(&router.call("reload_service", &program).stdout), "reload\n");
    daemon(false);
    let said = text(&router.call("reload_service", &program).stdout);
    assert!(said.starts_with("stop\nprocd_open_instance"), "{said}");
}

#[test]
fn the_daemon_gets_the_same_capabilities_as_from_systemd() {
    let unit = fs::read_to_string(dist("../bentpipe.service")).unwrap();
    let lines = unit.lines().filter_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let mut wanted: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    wanted.sort_unstable();
    let sets: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(dist("capabilities.json")).unwrap()).unwrap();
    for set in ["bounding", "effective", "permitted"] {
        let mut given: Vec<&str> =
            sets[set].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
        given.sort_unstable();
        assert_eq!(given, wanted, "{set}");
    }
}
