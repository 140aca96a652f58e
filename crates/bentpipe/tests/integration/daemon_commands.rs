//! The commands for a running daemon, against the daemon's own server with nothing behind it but figures.

// Each test uses a part of it.
#[allow(dead_code)]
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::common::{assert_misuse, bentpipe, command, refusal, success};
use bentpipe_admin::history::Recorder;
use bentpipe_admin::{Admin, Command as AdminCommand, DrainTimes, Identity, Sockets, View, serve};
use bentpipe_proxy::config::{AdminSettings, Change, Effect, Listen};
use bentpipe_proxy::telemetry::{Drain, FlowReport, Gain, LegReport, LimitsReport, PolicyReport};
use bentpipe_proxy::{ReloadReport, Stats};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Default)]
struct Figures {
    open: Arc<AtomicU64>,
    looks: Arc<AtomicU64>,
    draining: Arc<Mutex<Option<Drain>>>,
    bypass: Arc<AtomicBool>,
}

struct Daemon {
    figures: Figures,
    orders: Receiver<AdminCommand>,
    sockets: Sockets,
    admin: Admin,
    folder: TempDir,
}

impl Daemon {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let settings = AdminSettings {
            folder: folder.path().to_owned(),
            listen: Listen::Off,
            ..AdminSettings::default()
        };
        let sockets = Sockets::open(&settings, None, &[]).unwrap();
        let figures = Figures::default();
        figures.open.store(30, Ordering::SeqCst);
        let identity = Identity { config: PathBuf::from("/etc/bentpipe.toml"), program: "p".into() };
        let (sender, orders) = mpsc::channel();
        let admin = serve(&sockets, figures.clone(), identity, Recorder::default(), sender).unwrap();
        Self { figures, orders, sockets, admin, folder }
    }

    fn folder(&self) -> &str {
        self.folder.path().to_str().unwrap()
    }

    fn order(&self) -> AdminCommand {
        self.orders.recv_timeout(PATIENCE).unwrap()
    }

    fn end(self) {
        drop(self.admin);
        self.sockets.close();
    }
}

#[test]
fn status_is_a_screen_or_the_document() {
    let daemon = Daemon::start();
    let text = success(&bentpipe(&["status", "--folder", daemon.folder()]));
    assert!(text.starts_with("bentpipe 0.1.0  on ") && text.contains("  ready  up 1 min 1 s"), "{text}");
    assert!(text.contains("10.0.0.0:4000") && text.contains("and 20 more"), "{text}");
    let document = |flows: &[&str]| -> Value {
        let arguments = [&["status", "--json", "--folder", daemon.folder()], flows].concat();
        serde_json::from_str(&success(&bentpipe(&arguments))).unwrap()
    };
    assert_eq!(document(&[])["flows"].as_array().unwrap().len(), 30);
    assert_eq!(document(&["--flows", "3"])["flows"].as_array().unwrap().len(), 3);
    assert_eq!(document(&["--flows", "all"])["flows"].as_array().unwrap().len(), 30);
    assert_eq!(document(&["--flows", "0"])["legs"][0]["name"], "satellite");
    assert_misuse(&["status", "--flows", "some"], &["all"]);
}

#[test]
fn where_no_daemon_is_all_of_them_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    for arguments in [
        &["status"][..],
        &["status", "--json"],
        &["top"],
        &["reload"],
        &["drain"],
        &["drain", "--cancel"],
        &["bypass"],
        &["bypass", "on"],
    ] {
        refusal(
            &bentpipe(&[arguments, &["--folder", path]].concat()),
            &["cannot reach the daemon at", "admin.sock", "bentpipe run"],
        );
    }
}

#[test]
fn a_user_without_permission_is_told_how_to_get_it() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root: another user must be made");
        return;
    }
    let daemon = Daemon::start();
    // A copy where others may start it: the build's folder may be closed to them. Another process makes it:
    // what this one has open for writing, children of its other threads have open, too, and it could not run.
    let open = tempfile::Builder::new().permissions(mode(0o755)).tempdir().unwrap();
    let program = open.path().join("bentpipe");
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_bentpipe")).arg(&program).status().unwrap();
    assert!(copied.success());
    std::fs::set_permissions(daemon.folder.path(), mode(0o755)).unwrap();
    let mut stranger = Command::new(program);
    stranger.args(["status", "--folder", daemon.folder()]).uid(5000).gid(6000).current_dir("/");
    let output = stranger.output().unwrap();
    refusal(&output, &["no permission", "run this as root", "usermod -aG"]);
}

fn report() -> ReloadReport {
    let (key, effect) = ("proxy.workers".to_owned(), Effect::Upgrade);
    let changes = vec![Change { key, before: Some("2".into()), after: Some("4".into()), effect }];
    ReloadReport { applied: true, changes, ..ReloadReport::default() }
}

#[test]
fn reload_prints_the_daemons_answer() {
    let daemon = Daemon::start();
    let folder = daemon.folder();
    thread::scope(|scope| {
        let call = scope.spawn(|| bentpipe(&["reload", "--folder", folder]));
        let AdminCommand::Reload(answer) = daemon.order() else { panic!() };
        answer.send(report()).unwrap();
        let table = success(&call.join().unwrap());
        for words in
            ["proxy.workers  2       4      at the next upgrade or restart", "new configuration: 1 change"]
        {
            assert!(table.contains(words), "{table}");
        }
        let call = scope.spawn(|| bentpipe(&["reload", "--json", "--folder", folder]));
        let AdminCommand::Reload(answer) = daemon.order() else { panic!() };
        answer.send(report()).unwrap();
        let document: ReloadReport = serde_json::from_str(&success(&call.join().unwrap())).unwrap();
        assert_eq!(document, report());
        let call = scope.spawn(|| bentpipe(&["reload", "--folder", folder]));
        let AdminCommand::Reload(answer) = daemon.order() else { panic!() };
        answer.send(ReloadReport::unreadable("bentpipe.toml: key legs.a.rate: no unit")).unwrap();
        refusal(&call.join().unwrap(), &["refused", "key legs.a.rate: no unit"]);
    });
}

#[test]
fn drain_waits_for_the_end() {
    let daemon = Daemon::start();
    let folder = daemon.folder().to_owned();
    thread::scope(|scope| {
        let call = scope.spawn(|| bentpipe(&["drain", "--deadline", "5m", "--folder", &folder]));
        let AdminCommand::Drain(DrainTimes { deadline, stay }, answer) = daemon.order() else { panic!() };
        assert_eq!((deadline, stay), (Some(Duration::from_secs(300)), Duration::ZERO));
        *daemon.figures.draining.lock().unwrap() = Some(Drain { left_s: Some(300.0) });
        answer.send(Ok(())).unwrap();
        let looks = daemon.figures.looks.load(Ordering::SeqCst);
        while daemon.figures.looks.load(Ordering::SeqCst) < looks + 3 {
            thread::sleep(Duration::from_millis(10));
        }
        assert!(!call.is_finished(), "there are flows left");
        daemon.end();
        assert_eq!(success(&call.join().unwrap()), "the daemon has ended\n");
    });
}

#[test]
fn a_drain_that_is_not_waited_for_and_one_that_is_taken_back() {
    let daemon = Daemon::start();
    let folder = daemon.folder();
    thread::scope(|scope| {
        let call = scope.spawn(|| bentpipe(&["drain", "--no-deadline", "--no-wait", "--folder", folder]));
        let AdminCommand::Drain(times, answer) = daemon.order() else { panic!() };
        // Whoever takes it back has to find a daemon, also one that has nothing to do.
        assert_eq!(times, DrainTimes { deadline: None, stay: Duration::from_secs(20) });
        answer.send(Ok(())).unwrap();
        assert!(success(&call.join().unwrap()).contains("drain --cancel"));
        // The daemon's draining was never begun, which is how it looks when somebody has taken it back.
        let call = scope.spawn(|| bentpipe(&["drain", "--folder", folder]));
        let AdminCommand::Drain(DrainTimes { deadline, .. }, answer) = daemon.order() else { panic!() };
        assert_eq!(deadline, Some(Duration::from_secs(600)));
        answer.send(Ok(())).unwrap();
        refusal(&call.join().unwrap(), &["splits new connections again"]);
        let call = scope.spawn(|| bentpipe(&["drain", "--cancel", "--folder", folder]));
        let AdminCommand::StopDraining(answer) = daemon.order() else { panic!() };
        answer.send(Ok(())).unwrap();
        assert!(success(&call.join().unwrap()).contains("splits new connections again"));
    });
    assert_misuse(&["drain", "--deadline", "5s", "--no-deadline"], &["--no-deadline"]);
    assert_misuse(&["drain", "--cancel", "--no-wait"], &["--cancel"]);
    assert_misuse(&["drain", "--deadline", "10"], &["unit"]);
}

#[test]
fn the_bypass_is_switched_and_shown_and_what_cannot_be_kept_is_said() {
    let daemon = Daemon::start();
    let folder = daemon.folder();
    assert_eq!(
        success(&bentpipe(&["bypass", "--folder", folder])),
        "bypass off: new connections are split\n"
    );
    thread::scope(|scope| {
        for (switch, on) in [("on", true), ("off", false)] {
            let call = scope.spawn(move || bentpipe(&["bypass", switch, "--folder", folder]));
            let AdminCommand::SetBypass(wanted, answer) = daemon.order() else { panic!() };
            assert_eq!(wanted, on);
            daemon.figures.bypass.store(on, Ordering::SeqCst);
            answer.send(Ok(())).unwrap();
            let said = success(&call.join().unwrap());
            assert!(said.starts_with(&format!("bypass {switch}: new connections ")), "{said}");
        }
        let call = scope.spawn(|| bentpipe(&["bypass", "on", "--folder", folder]));
        let AdminCommand::SetBypass(true, answer) = daemon.order() else { panic!() };
        answer.send(Err("the bypass is on, but only until this daemon ends".into())).unwrap();
        refusal(&call.join().unwrap(), &["only until this daemon ends"]);
    });
    assert_misuse(&["bypass", "maybe"], &["on", "off"]);
}

#[test]
fn top_prints_once_without_a_terminal() {
    let daemon = Daemon::start();
    let text = success(&bentpipe(&["top", "--sort", "buffered", "--folder", daemon.folder()]));
    let first = text.lines().find(|line| line.starts_with("10.")).unwrap();
    assert!(first.starts_with("10.0.0.29:"), "{text}");
    assert!(!text.contains('\u{1b}') && text.contains("satellite"), "{text}");
}

#[test]
fn top_draws_anew_follows_keys_and_window_and_leaves_the_terminal_as_it_was() {
    let daemon = Daemon::start();
    let (master, slave) = pseudo_terminal();
    let before = tcgetattr(&slave).unwrap();
    let mut top = command(&["top", "--folder", daemon.folder()]);
    for stream in [Command::stdin, Command::stdout] {
        stream(&mut top, slave.try_clone().unwrap());
    }
    let mut top = top.spawn().unwrap();
    let mut screen = Screen { master: File::from(master), text: String::new() };
    screen.wait_for("sorted by throughput");
    assert!(!tcgetattr(&slave).unwrap().local_modes.contains(LocalModes::ICANON));
    let looks = daemon.figures.looks.load(Ordering::SeqCst);
    while daemon.figures.looks.load(Ordering::SeqCst) < looks + 2 {
        screen.wait_for("sorted by throughput");
    }
    screen.master.write_all(b"s").unwrap();
    screen.wait_for("sorted by up");
    tcsetwinsize(&slave, Winsize { ws_col: 20, ..window() }).unwrap();
    screen.wait_for("sorted by up   s: so\u{1b}[K");
    screen.master.write_all(b"q").unwrap();
    screen.wait_for("\u{1b}[?1049l");
    let status: ExitStatus = top.wait().unwrap();
    assert!(status.success(), "{status}");
    let after = tcgetattr(&slave).unwrap();
    assert_eq!((after.local_modes, after.input_modes), (before.local_modes, before.input_modes));
}

/// What a terminal has been told.
struct Screen {
    master: File,
    text: String,
}

impl Screen {
    /// Reads until this has come, and forgets what came before. A program that ends closes the terminal,
    /// which fails.
    fn wait_for(&mut self, part: &str) {
        loop {
            if let Some(place) = self.text.find(part) {
                self.text.drain(..place + part.len());
                return;
            }
            let mut bytes = [0; 4096];
            let len = self.master.read(&mut bytes).unwrap_or_else(|error| panic!("{error}: {}", self.text));
            self.text += &String::from_utf8_lossy(&bytes[..len]);
        }
    }
}

fn pseudo_terminal() -> (OwnedFd, OwnedFd) {
    use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
    let master = openpt(flags).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let slave = ioctl_tiocgptpeer(&master, flags).unwrap();
    tcsetwinsize(slave.as_fd(), window()).unwrap();
    (master, slave)
}

fn window() -> Winsize {
    Winsize { ws_col: 150, ws_row: 30, ws_xpixel: 0, ws_ypixel: 0 }
}

fn mode(bits: u32) -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(bits)
}

impl View for Figures {
    fn stats(&self) -> Stats {
        self.looks.fetch_add(1, Ordering::SeqCst);
        Stats { flows_open: self.open.load(Ordering::SeqCst), ..Stats::default() }
    }

    fn legs(&self) -> Vec<LegReport> {
        vec![LegReport { name: "satellite".into(), ..LegReport::default() }]
    }

    fn gain(&self) -> Gain {
        Gain::default()
    }

    fn policy(&self) -> PolicyReport {
        PolicyReport::default()
    }

    fn limits(&self) -> LimitsReport {
        LimitsReport::default()
    }

    fn flows(&self, most: usize) -> Vec<FlowReport> {
        (0..self.open.load(Ordering::SeqCst)).take(most).map(flow).collect()
    }

    fn is_ready(&self) -> bool {
        true
    }

    fn draining(&self) -> Option<Drain> {
        *self.draining.lock().unwrap()
    }

    fn bypass(&self) -> bool {
        self.bypass.load(Ordering::SeqCst)
    }

    fn uptime(&self) -> Duration {
        Duration::from_secs(61)
    }

    fn upgrades(&self) -> u64 {
        0
    }
}

/// The later ones are slower and have more in buffers.
fn flow(number: u64) -> FlowReport {
    let end = json!({"leg": "satellite", "srtt_s": 0.6, "min_rtt_s": 0.6, "rto_s": 1.0, "backoff": 0, "cwnd": 500,
        "ssthresh": null, "mss": 1448, "unacked": 1, "unsent_bytes": 0, "retransmissions": 1, "segments": 9,
        "timeouts": 0, "pacing_bps": null, "delivery_bps": 9_000_000});
    let flow = json!({"id": number, "client": format!("10.0.0.{number}:4000"), "server": "192.0.2.1:443", "weight": 1,
        "phase": "relaying", "age_s": 5.0, "idle_s": 0.0, "up_bytes": 1, "down_bytes": 2, "up_bps": 1e3,
        "down_bps": 1e6 - number as f64, "buffered_bytes": 4096 * number, "client_end": end, "server_end": end});
    serde_json::from_value(flow).unwrap()
}
