//! The program in network namespaces: what it refuses, and that it leaves nothing behind.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use bentpipe_testbed::{Child, Namespace, Need, forwarding, require, veth};

const NEEDS: &[Need] =
    &[Need::Privileges, Need::Namespaces, Need::Tun, Need::Program("ip"), Need::Program("nft")];

fn missing() -> bool {
    match require(NEEDS) {
        Ok(()) => false,
        Err(missing) => {
            println!("skipped: needs root: {missing}");
            true
        }
    }
}

/// A host with the two interfaces of a gateway.
fn gateway() -> (Namespace, Namespace) {
    let (gateway, peer) = (Namespace::new("gateway").unwrap(), Namespace::new("peer").unwrap());
    for name in ["sat0", "lan0"] {
        veth(&gateway, name, &peer, name).unwrap();
    }
    forwarding(&gateway).unwrap();
    (gateway, peer)
}

/// With a folder of its own for the daemon's sockets, beside the file: several run at a time.
fn configuration(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let folder = file.path().with_extension("run");
    write!(file, "{text}[admin]\nfolder = \"{}\"\nlisten = \"off\"\n", folder.display()).unwrap();
    file
}

fn run_in(host: &Namespace, file: &tempfile::NamedTempFile) -> Command {
    let mut command = host.command(env!("CARGO_BIN_EXE_bentpipe"));
    command.args(["run", "-c"]).arg(file.path()).stdin(Stdio::null());
    command
}

/// Rules, policy routes and what the machine has registered; not the routes that each interface has for
/// itself, which come when it is up.
fn traces_of_a_daemon(host: &Namespace) -> String {
    let show = |program: &str, arguments: &[&str]| -> String {
        let output = host.command(program).args(arguments).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let routes = show("ip", &["route", "show", "table", "all"]);
    let by_itself = |route: &str| ["fe80:", "ff00:"].iter().any(|network| route.contains(network));
    show("nft", &["list", "ruleset"])
        + &show("ip", &["rule"])
        + &show("ip", &["-6", "rule"])
        + &routes.lines().filter(|route| !by_itself(route)).collect::<Vec<_>>().join("\n")
        + &show("ss", &["-ltn"])
}

/// A folder that anybody may write to, with a copy of the program: the build folder may lie where nobody but
/// root can go.
fn public_copy() -> tempfile::TempDir {
    let folder = tempfile::Builder::new().prefix("bentpipe").tempdir().unwrap();
    // By another process: a child that another test starts meanwhile would hold a file of this one open, and
    // the kernel runs no program that somebody may write to.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_bentpipe")).arg(folder.path()).status().unwrap();
    assert!(copied.success());
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    folder
}

/// Makes `command`, a `setpriv`, run that copy as the user nobody, in that folder.
fn as_nobody<'a>(command: &'a mut Command, copy: &tempfile::TempDir) -> &'a mut Command {
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
    command.arg(copy.path().join("bentpipe")).current_dir(copy).stdin(Stdio::null())
}

fn complaint(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    let errors: Vec<&str> = text.lines().filter(|line| line.starts_with("bentpipe: ")).collect();
    assert_eq!(errors.len(), 1, "{text}");
    errors[0].to_owned()
}

#[test]
fn a_daemon_whose_interface_is_missing_is_ready_and_says_what_it_waits_for() {
    if missing() {
        return;
    }
    let (gateway, peer) = gateway();
    let file = configuration("[legs.satellite]\ninterface = \"sat7\"\nrate = \"2Mbit/s\"\n");
    // Where the account that the daemon goes on as may send to.
    let manager = tempfile::Builder::new().permissions(mode(0o755)).tempdir().unwrap();
    let address = manager.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&address).unwrap();
    std::fs::set_permissions(&address, mode(0o777)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut command = run_in(&gateway, &file);
    command.env("NOTIFY_SOCKET", &address);
    let mut daemon = Running::spawn(command);
    let line = daemon.wait_for("waiting for interface sat7");
    assert!(line.contains("this host has ") && line.contains("sat0"), "{line}");
    let line = daemon.wait_for("; ready");
    let folder = file.path().with_extension("run");
    for part in [
        concat!("bentpipe ", env!("CARGO_PKG_VERSION"), " splits connections over "),
        "sat7 (leg satellite, explicit, 2Mbit/s), as ",
        &format!("as {} says", file.path().display()),
        "no page over TCP",
        &format!("status socket {}", folder.join("admin.sock").display()),
    ] {
        assert!(line.contains(part), "{part} in {line}");
    }
    let mut message = [0; 256];
    let mut told = Vec::new();
    while !told.iter().any(|line: &String| line.contains("waiting for interface sat7")) {
        let length = socket.recv(&mut message).unwrap_or_else(|error| panic!("{error} after {told:?}"));
        told.push(String::from_utf8_lossy(&message[..length]).into_owned());
    }
    assert!(told.contains(&"READY=1".to_owned()), "{told:?}");
    let said = |arguments: &[&str]| ordered(&gateway, &folder, arguments);
    assert!(
        said(&["status"]).contains("leg     satellite: waiting for interface sat7\n"),
        "{}",
        said(&["status"])
    );
    veth(&gateway, "sat7", &peer, "sat7").unwrap();
    daemon.wait_for("leg satellite: interface sat7 is there");
    let status: serde_json::Value = serde_json::from_str(&said(&["status", "--json"])).unwrap();
    assert_eq!((&status["legs"][0]["waiting"], &status["ready"]), (&serde_json::Value::Null, &true.into()));
    daemon.end();
}

#[test]
fn a_relative_configuration_is_found_from_any_folder_afterwards() {
    if missing() {
        return;
    }
    let (gateway, _peer) = gateway();
    let file = configuration("[legs.satellite]\ninterface = \"sat0\"\n");
    readable(&file);
    let (folder, name) = (file.path().parent().unwrap(), file.path().file_name().unwrap());
    let mut command = gateway.command(env!("CARGO_BIN_EXE_bentpipe"));
    command.args(["run", "-c"]).arg(name).current_dir(folder).stdin(Stdio::null());
    let mut daemon = Running::spawn(command);
    daemon.wait_for("; ready");
    let sockets = file.path().with_extension("run");
    let status = |gateway: &Namespace| -> serde_json::Value {
        serde_json::from_str(&ordered(gateway, &sockets, &["status", "--json"])).unwrap()
    };
    assert_eq!(status(&gateway)["config"], file.path().to_str().unwrap());
    assert!(ordered(&gateway, &sockets, &["reload"]).contains("nothing has changed"));
    let before = status(&gateway)["pid"].clone();
    ordered(&gateway, &sockets, &["upgrade"]);
    let after = status(&gateway);
    assert_ne!(after["pid"], before);
    assert_eq!(after["config"], file.path().to_str().unwrap());
    daemon.end_as(&after);
}

#[test]
fn reload_shows_every_change_and_with_upgrade_takes_over_for_those_that_need_it() {
    if missing() {
        return;
    }
    let (gateway, _peer) = gateway();
    let leg = "[legs.satellite]\ninterface = \"sat0\"\n";
    let file = configuration(&format!("{leg}[proxy]\nworkers = 1\n"));
    let sockets = file.path().with_extension("run");
    let write = |text: &str| {
        let admin = format!("[admin]\nfolder = \"{}\"\nlisten = \"off\"\n", sockets.display());
        std::fs::write(file.path(), format!("{text}{admin}")).unwrap();
    };
    let mut daemon = Running::start(&gateway, &file);
    let threads = |gateway: &Namespace| {
        let status = ordered(gateway, &sockets, &["status", "--json"]);
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        let tasks = std::fs::read_dir(format!("/proc/{}/task", status["pid"])).unwrap();
        let names = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap());
        let is_worker =
            |name: &String| name.trim().strip_prefix("bentpipe-").is_some_and(|n| n.parse::<u8>().is_ok());
        (names.filter(is_worker).count(), status)
    };
    // One at once, one for new connections, one later.
    write(&format!("{leg}rate = \"2Mbit/s\"\nrtt = \"500ms\"\n[proxy]\nworkers = 2\n"));
    let table = ordered(&gateway, &sockets, &["reload"]);
    for row in [
        "key                   before  after    takes effect",
        "proxy.workers         1       2        at the next upgrade or restart",
        "legs.satellite.rate   -       2Mbit/s  now",
        "legs.satellite.rtt    600ms   500ms    now, for new connections",
    ] {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert!(table.lines().any(|line| words(line) == words(row)), "{row} in\n{table}");
    }
    assert!(table.contains("the daemon uses the new configuration: 3 changes"), "{table}");
    daemon.wait_for("reload: proxy.workers: 1 -> 2; at the next upgrade or restart");
    daemon.wait_for("reload: legs.satellite.rate: 2Mbit/s, which was not set; now");
    daemon.wait_for("read again: 3 changes");
    // At a signal the log has the same lines; what waits is said again.
    daemon.child.signal(rustix::process::Signal::HUP).unwrap();
    daemon.wait_for("reload: proxy.workers: 1 -> 2; at the next upgrade or restart");
    daemon.wait_for("read again: 1 change");
    // What is refused has its reason, and nothing else of the file is applied.
    write(&format!("{leg}rate = \"3Mbit/s\"\n[proxy]\nworkers = 2\nmark = \"0x700\"\n"));
    let (table, complaint) = refused(&gateway, &sockets, &["reload"]);
    assert!(table.contains("refused: at the next restart") && table.contains("not applied"), "{table}");
    assert!(complaint.contains("proxy.mark: it takes effect only after a restart"), "{complaint}");
    daemon.wait_for("stays as it was: proxy.mark: it takes effect only after a restart");
    let (document, _) = refused(&gateway, &sockets, &["reload", "--json"]);
    let document: serde_json::Value = serde_json::from_str(&document).unwrap();
    assert_eq!(
        (&document["applied"], &document["refusals"][0]["key"]),
        (&false.into(), &"proxy.mark".into())
    );
    // The process that takes over has what waited, and the first rule that snoops.
    write(&format!(
        "{leg}rate = \"3Mbit/s\"\n[proxy]\nworkers = 2\n[[rules]]\naction = \"snoop\"\nport = 9\n"
    ));
    let (table, complaint) = refused(&gateway, &sockets, &["reload"]);
    assert!(table.contains("refused: at the next upgrade or restart"), "{table}");
    assert!(complaint.contains("rules[1]: the first rule with action = \"snoop\""), "{complaint}");
    let (before, first) = threads(&gateway);
    ordered(&gateway, &sockets, &["reload", "--upgrade"]);
    let (after, second) = threads(&gateway);
    assert_eq!((before, after), (1, 2));
    assert_ne!(first["pid"], second["pid"]);
    assert_eq!(second["legs"][0]["rate_bps"], 3_000_000);
    let again = ordered(&gateway, &sockets, &["reload", "--upgrade"]);
    assert!(again.contains("nothing has changed"), "{again}");
    assert_eq!(threads(&gateway).1["pid"], second["pid"], "there was nothing to take over for");
    daemon.end_as(&second);
}

#[test]
fn a_daemon_without_privileges_puts_its_xcp_router_at_an_interface_that_comes_later() {
    if missing() {
        return;
    }
    let (gateway, peer) = gateway();
    let file = configuration(
        "[proxy]\nuser = \"54321:54322\"\n[legs.satellite]\ninterface = \"sat7\"\ncongestion = \"xcp\"\n\
         rate = \"2Mbit/s\"\n",
    );
    let mut daemon = Running::start(&gateway, &file);
    assert_eq!(daemon.status("Uid"), ["54321"; 4].join("\t"));
    for _ in 0..2 {
        veth(&gateway, "sat7", &peer, "sat7").unwrap();
        daemon.wait_for("the XCP router is at interface sat7");
        assert!(gateway.command("ip").args(["link", "del", "sat7"]).status().unwrap().success());
    }
    daemon.end();
}

/// What a command for the daemon of this folder prints on standard output when it succeeds.
fn ordered(host: &Namespace, sockets: &std::path::Path, arguments: &[&str]) -> String {
    let output = order(host, sockets, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// What it prints on standard output and on standard error when it fails.
fn refused(host: &Namespace, sockets: &std::path::Path, arguments: &[&str]) -> (String, String) {
    let output = order(host, sockets, arguments);
    (String::from_utf8_lossy(&output.stdout).into_owned(), complaint(&output))
}

/// From a folder that has nothing to do with the daemon.
fn order(host: &Namespace, sockets: &std::path::Path, arguments: &[&str]) -> Output {
    let mut command = host.command(env!("CARGO_BIN_EXE_bentpipe"));
    command.args(arguments).arg("--folder").arg(sockets).current_dir("/").stdin(Stdio::null());
    command.output().unwrap()
}

#[test]
fn a_port_in_use_is_named() {
    if missing() {
        return;
    }
    let (gateway, _peer) = gateway();
    let taken = gateway.run(|| std::net::TcpListener::bind("127.0.0.1:7600").unwrap()).unwrap();
    let before = traces_of_a_daemon(&gateway);
    let file = configuration("[legs.satellite]\ninterface = \"sat0\"\n");
    let text = complaint(&run_in(&gateway, &file).output().unwrap());
    assert!(text.contains("7600"), "{text}");
    assert_eq!(traces_of_a_daemon(&gateway), before);
    drop(taken);
}

#[test]
fn without_privileges_the_daemon_names_the_missing_ones() {
    if missing() {
        return;
    }
    let (gateway, _peer) = gateway();
    let before = traces_of_a_daemon(&gateway);
    let file = configuration("[legs.satellite]\ninterface = \"sat0\"\n");
    std::fs::set_permissions(file.path(), std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let (copy, mut command) = (public_copy(), gateway.command("setpriv"));
    as_nobody(&mut command, &copy).args(["run", "-c"]).arg(file.path());
    let text = complaint(&command.output().unwrap());
    assert!(text.contains("CAP_NET_ADMIN") || text.contains("root"), "{text}");
    assert_eq!(traces_of_a_daemon(&gateway), before);
}

#[test]
fn a_daemon_that_is_told_to_end_leaves_the_host_as_it_was() {
    if missing() {
        return;
    }
    let (gateway, _peer) = gateway();
    let before = traces_of_a_daemon(&gateway);
    let file = configuration("[legs.satellite]\ninterface = \"sat0\"\n");
    let mut command = run_in(&gateway, &file);
    command.stderr(Stdio::piped());
    let mut daemon = Child::spawn(command).unwrap();
    let log = BufReader::new(daemon.stderr().unwrap());
    let ready = log.lines().map_while(Result::ok).any(|line| line.contains("ready"));
    assert!(ready, "the daemon ended before it was ready");
    assert_ne!(traces_of_a_daemon(&gateway), before, "the daemon has set nothing up");
    daemon.signal(rustix::process::Signal::TERM).unwrap();
    let status = daemon.wait_timeout(Duration::from_secs(10)).unwrap().expect("it ends at SIGTERM");
    assert_eq!(status.code(), Some(0));
    assert_eq!(traces_of_a_daemon(&gateway), before);
}

#[test]
fn a_daemon_on_a_host_that_forwards_nothing_is_not_ready_and_says_why() {
    if missing() {
        return;
    }
    let (gateway, _peer) = gateway();
    for key in ["ipv4.ip_forward", "ipv6.conf.all.forwarding"] {
        gateway.sysctl(&format!("net.{key}"), "0").unwrap();
    }
    let file = configuration("[legs.satellite]\ninterface = \"sat0\"\nrate = \"2Mbit/s\"\n");
    let mut daemon = Running::spawn(run_in(&gateway, &file));
    let line = daemon.wait_for("IPv4 forwarding: off");
    assert!(line.contains("sysctl -w net.ipv4.ip_forward=1"), "{line}");
    daemon.wait_for("; ready");
    let folder = file.path().with_extension("run");
    let status = || ordered(&gateway, &folder, &["status"]);
    let said = status();
    assert!(said.contains("NOT READY") && said.contains("problem IPv4 forwarding: off"), "{said}");
    // One interface that forwards is enough.
    gateway.sysctl("net.ipv4.conf.lan0.forwarding", "1").unwrap();
    let said = status();
    assert!(said.contains("  ready  ") && !said.contains("problem"), "{said}");
    daemon.end();
}

/// The account that a daemon goes on as must be able to read its configuration again.
fn readable(file: &tempfile::NamedTempFile) {
    std::fs::set_permissions(file.path(), mode(0o644)).unwrap();
}

fn mode(bits: u32) -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(bits)
}

/// A daemon of the program with what it logs.
struct Running {
    child: Child,
    log: std::io::Lines<BufReader<std::process::ChildStderr>>,
}

impl Running {
    fn start(host: &Namespace, file: &tempfile::NamedTempFile) -> Self {
        readable(file);
        let mut running = Self::spawn(run_in(host, file));
        running.wait_for("ready");
        running
    }

    fn spawn(mut command: Command) -> Self {
        command.stderr(Stdio::piped());
        let mut child = Child::spawn(command).unwrap();
        let log = BufReader::new(child.stderr().unwrap()).lines();
        Self { child, log }
    }

    /// Ends it in order.
    fn end(mut self) {
        self.child.signal(rustix::process::Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }

    /// Ends, in order, the process that has taken over from it, by what that says of itself.
    fn end_as(mut self, status: &serde_json::Value) {
        let successor = i32::try_from(status["pid"].as_i64().unwrap()).unwrap();
        let successor = rustix::process::Pid::from_raw(successor).unwrap();
        rustix::process::kill_process(successor, rustix::process::Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }

    fn wait_for(&mut self, what: &str) -> String {
        let mut lines = self.log.by_ref().map_while(Result::ok);
        lines
            .find(|line| line.contains(what))
            .unwrap_or_else(|| panic!("the daemon ended without saying {what}"))
    }

    /// The value of a line of /proc/PID/status.
    fn status(&self, key: &str) -> String {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{key}:")));
        line.unwrap_or_else(|| panic!("{key} in {text}")).trim().to_owned()
    }
}

#[test]
fn started_by_root_the_daemon_goes_on_as_an_ordinary_account_with_two_capabilities() {
    if missing() {
        return;
    }
    let (gateway, _peer) = gateway();
    let before = traces_of_a_daemon(&gateway);
    let text =
        "[proxy]\nuser = \"54321:54322\"\nhandshake = \"faithful\"\n[legs.satellite]\ninterface = \"sat0\"\n";
    let file = configuration(text);
    let mut daemon = Running::start(&gateway, &file);
    assert_eq!(daemon.status("Uid"), ["54321"; 4].join("\t"));
    assert_eq!(daemon.status("Gid"), ["54322"; 4].join("\t"));
    assert_eq!(daemon.status("Groups"), "");
    // CAP_NET_BIND_SERVICE is 10 and CAP_NET_ADMIN is 12 (linux/capability.h).
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(daemon.status(set), "0000000000001400", "{set}");
    }
    assert_eq!(daemon.status("NoNewPrivs"), "1");

    let tables =
        String::from_utf8(gateway.command("nft").args(["list", "tables"]).output().unwrap().stdout).unwrap();
    assert!(tables.contains("table inet bentpipe_held"), "{tables}");

    // Another congestion control was not needed before, and loading it would need what is gone.
    std::fs::write(file.path(), format!("{text}congestion = \"reno\"\n")).unwrap();
    daemon.child.signal(rustix::process::Signal::HUP).unwrap();
    daemon.wait_for("read again");
    std::fs::write(file.path(), format!("{text}congestion = \"hybla\"\n")).unwrap();
    daemon.child.signal(rustix::process::Signal::HUP).unwrap();
    daemon.wait_for("read again");
    let listeners =
        String::from_utf8(gateway.command("ss").args(["-ltni"]).output().unwrap().stdout).unwrap();
    assert!(listeners.contains("bp_hybla"), "{listeners}");

    std::fs::write(file.path(), "[legs.satellite]\ninterface = 7\n").unwrap();
    daemon.child.signal(rustix::process::Signal::HUP).unwrap();
    let line = daemon.wait_for("stays as it was");
    assert!(line.contains("legs.satellite.interface"), "{line}");

    daemon.end();
    assert_eq!(traces_of_a_daemon(&gateway), before);
}

#[test]
fn an_account_that_does_not_exist_is_named_and_nothing_is_left() {
    if missing() {
        return;
    }
    let (gateway, _peer) = gateway();
    let before = traces_of_a_daemon(&gateway);
    let file = configuration("[proxy]\nuser = \"nosuchuser\"\n[legs.satellite]\ninterface = \"sat0\"\n");
    let text = complaint(&run_in(&gateway, &file).output().unwrap());
    assert!(text.contains("proxy.user") && text.contains("nosuchuser"), "{text}");
    assert_eq!(traces_of_a_daemon(&gateway), before);
}

#[test]
fn the_demonstration_prints_one_document_and_leaves_the_machine_as_it_was() {
    if missing() {
        return;
    }
    let out = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_bentpipe"))
        .args(["demo", "--json", "--rate", "20M", "--rtt", "60ms", "--per", "0.1%", "--size", "1MB", "--out"])
        .arg(out.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let runs = document["runs"].as_array().unwrap();
    let names: Vec<_> = runs.iter().map(|run| run["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["reno", "cubic", "bbr", "bentpipe-hybla", "bentpipe"]);
    for run in runs {
        assert_eq!(
            (run["identical"].as_bool(), run["bytes"].as_u64()),
            (Some(true), Some(1_000_000)),
            "{run}"
        );
        assert!(run["goodput_bps"].as_f64().unwrap() <= document["limit_bps"].as_f64().unwrap(), "{run}");
    }
    let figure = std::fs::read_to_string(out.path().join("demo.svg")).unwrap();
    assert!(figure.starts_with("<svg") && figure.contains("bentpipe"));
}

#[test]
fn without_privileges_the_demonstration_runs_in_virtual_time_and_says_so() {
    if missing() {
        return;
    }
    let (copy, mut command) = (public_copy(), Command::new("setpriv"));
    let output = as_nobody(&mut command, &copy).args(["demo", "--json"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("virtual time") && text.contains("root"), "{text}");
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["world"], "sim");
    let runs = document["runs"].as_array().unwrap();
    assert!(runs.iter().any(|run| run["name"] == "bentpipe"), "{document}");
    for run in runs {
        assert_eq!((&run["identical"], &run["bytes"]), (&true.into(), &4_000_000.into()), "{run}");
    }
    assert!(copy.path().join("out/demo.svg").exists());
}

#[test]
fn without_privileges_kernel_experiments_name_the_missing_ones() {
    if missing() {
        return;
    }
    for arguments in [&["demo", "--on", "kernel"][..], &["radius", "--on", "kernel", "--delays", "1s"]] {
        let (copy, mut command) = (public_copy(), Command::new("setpriv"));
        let output = as_nobody(&mut command, &copy).args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(complaint(&output).contains(" here"), "{text}");
        assert!(text.contains("CAP_NET_ADMIN") && text.contains("run it as root"), "{text}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn an_experiment_on_a_full_disk_names_the_file_and_a_remedy() {
    if missing() {
        return;
    }
    let disk = tempfile::tempdir().unwrap();
    // The mount is gone with its namespace, which is gone with the command.
    let output = Command::new("unshare")
        .args([
            "--mount",
            "sh",
            "-c",
            "mount -t tmpfs -o size=4k none \"$1\" && exec \"$0\" lab run radius07-reach --out \"$1\"",
        ])
        .arg(env!("CARGO_BIN_EXE_bentpipe"))
        .arg(disk.path())
        .output()
        .unwrap();
    let text = complaint(&output);
    assert!(text.contains(disk.path().to_str().unwrap()) && text.contains("free some space"), "{text}");
}

#[test]
fn a_command_behind_the_link_knows_the_far_end_and_has_its_exit_code_passed_on() {
    if missing() {
        return;
    }
    let output = Command::new(env!("CARGO_BIN_EXE_bentpipe"))
        .args(["link", "--profile", "leo", "--", "sh", "-c", "test -n \"$BENTPIPE_FAR\" || exit 1; exit 7"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_link_that_mangles_says_how_much_it_did() {
    if missing() {
        return;
    }
    let command = "for n in 1 2 3 4 5 6 7 8 9 10; do echo $n > /dev/udp/$BENTPIPE_FAR/9; done; sleep 0.2";
    let output = Command::new(env!("CARGO_BIN_EXE_bentpipe"))
        .args(["link", "--duplicate", "100%", "--corrupt", "50%", "--reorder", "50%", "--reorder-by", "5ms"])
        .args(["--", "bash", "-c", command])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let line =
        text.lines().find(|line| line.contains("from the command")).unwrap_or_else(|| panic!("{text}"));
    for part in ["held back", ", 10 duplicated, ", "corrupted"] {
        assert!(line.contains(part), "{text}");
    }
}

#[test]
fn a_link_reports_each_agents_counters() {
    if missing() {
        return;
    }
    // The refusal of a connection: a SYN there, a reset back.
    let output = Command::new(env!("CARGO_BIN_EXE_bentpipe"))
        .args([
            "link",
            "--rate",
            "10M",
            "--delay",
            "5ms",
            "--snoop=2BDP",
            "--delayed-dup-acks",
            "20ms",
            "--arq",
        ])
        .args(["--", "bash", "-c", "exec 3<>/dev/tcp/$BENTPIPE_FAR/9"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("refused"), "{text}");
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("link: ")).collect();
    let starts =
        ["to the command", "from the command", "snoop", "delayed dup-ACKs", "ARQ, far end", "ARQ, this end"];
    assert_eq!(lines.len(), starts.len(), "{text}");
    for (line, start) in lines.iter().zip(starts) {
        assert!(line.starts_with(&format!("link: {start}")), "{text}");
    }
}

#[test]
fn a_command_that_does_not_exist_ends_as_in_a_shell() {
    if missing() {
        return;
    }
    for (command, code) in [("/no/such/command", 127), ("/etc/passwd", 126)] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_bentpipe")).args(["link", "--", command]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains(command), "{text}");
    }
}

#[test]
fn a_result_that_cannot_be_written_is_an_error() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_bentpipe"))
        .args(["doctor", "--json"])
        .stdout(full)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("cannot write the result"), "{text}");
}

#[test]
fn an_experiment_without_a_form_for_the_kernel_is_refused_with_those_that_have_one() {
    if missing() {
        return;
    }
    let out = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_bentpipe"));
    command.args(["lab", "run", "psats09-fig3", "--on", "kernel", "--out"]).arg(out.path());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("psats09-fig3 runs in virtual time only") && text.contains("lossy-link"), "{text}");
    assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 0);
}
