//! `bentpipe link` as a user of mahimahi expects it. The caller is a host of its own, with a server on it, so
//! that nothing here depends on the machine's network or changes it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use bentpipe_testbed::{Namespace, Need, require, with_file};

const GREETING: &str = "hello from the caller\n";
const GUIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guides/mahimahi.md");
const RESULTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results.md");
const PATIENCE: Duration = Duration::from_secs(20);

fn missing() -> bool {
    let needs = [Need::Privileges, Need::Namespaces, Need::Tun, Need::Program("ip"), Need::Program("nft")];
    let programs = [Need::Program("curl"), Need::Program("bash")];
    match require(&[&needs[..], &programs].concat()) {
        Ok(()) => false,
        Err(missing) => {
            println!("skipped: needs root: {missing}");
            true
        }
    }
}

/// A host that forwards, with an HTTP server on port 8080.
fn caller() -> Namespace {
    caller_with(GREETING.to_owned())
}

/// The same with another text.
fn caller_with(content: String) -> Namespace {
    let caller = Namespace::new("caller").unwrap();
    caller.sysctl("net.ipv4.ip_forward", "1").unwrap();
    let listener = caller.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 8080))).unwrap().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, content) = (stream.unwrap(), content.clone());
            thread::spawn(move || {
                let _ = stream.read(&mut [0; 4096]);
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", content.len());
                let _ = stream.write_all((head + &content).as_bytes());
            });
        }
    });
    caller
}

/// A shell command of the caller, in which `bentpipe` is the program under test.
fn shell(caller: &Namespace, folder: &Path, line: &str) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_bentpipe"));
    let path = std::env::var("PATH").unwrap();
    let mut command = caller.command("sh");
    command
        .args(["-c", line])
        .current_dir(folder)
        .env("PATH", format!("{}:{path}", program.parent().unwrap().display()))
        .env("SHELL", "/bin/bash")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn run(caller: &Namespace, folder: &Path, line: &str, input: &str) -> Output {
    let mut child = shell(caller, folder, line).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The commands of both columns of the guide's first table.
fn commands_of_the_guide() -> Vec<(String, String)> {
    let guide = std::fs::read_to_string(GUIDE).unwrap();
    let section = guide.split("## Ten commands").nth(1).unwrap().split("\n## ").next().unwrap();
    let code = |cell: &str| cell.split('`').nth(1).map(str::to_owned);
    let row = |line: &str| {
        let mut cells = line.split(" | ");
        Some((code(cells.next()?)?, code(cells.next()?)?))
    };
    section.lines().filter(|line| line.starts_with("| `")).filter_map(row).collect()
}

#[test]
fn the_ten_commands_of_the_guide_for_mahimahis_users_run_and_reach_the_caller() {
    if missing() {
        return;
    }
    let (caller, folder) = (caller(), tempfile::tempdir().unwrap());
    std::fs::write(folder.path().join("outages.csv"), "start_s,duration_s\n60,5\n").unwrap();
    let commands = commands_of_the_guide();
    assert_eq!(commands.len(), 10, "{commands:?}");
    for (theirs, ours) in commands {
        assert!(theirs.starts_with("mm-"), "{theirs}");
        let started = Instant::now();
        let input = "echo \"prompt: $BENTPIPE_PROMPT\"; curl -s http://$BENTPIPE_BASE:8080/\n";
        let output = run(&caller, folder.path(), &ours, input);
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{ours}: {stderr}");
        assert!(stdout.ends_with(GREETING), "{ours}: {stdout}{stderr}");
        assert!(stderr.contains("link: from the command"), "{ours}: {stderr}");
        // The handshake and the request take two round trips.
        let delayed = started.elapsed() >= Duration::from_millis(1200);
        assert!(!ours.contains("--delay 300ms") || delayed, "{ours}: {:?}", started.elapsed());
        let label = !ours.contains(" -- ") && stdout.starts_with("prompt: [link");
        assert!(ours.contains(" -- ") || label, "{ours}: {stdout}");
    }
    let content = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    for (log, kinds) in [("up.log", ["# ", "+ ", "- "]), ("down.log", ["# ", "+ ", "- "])] {
        let log = text(&content(log));
        assert!(log.contains("# base timestamp: 0\n"), "{log}");
        assert!(kinds.iter().all(|kind| log.contains(&format!(" {kind}"))), "{log}");
    }
    assert_eq!(content("link.pcapng")[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
    assert!(content("link.pcapng").windows(GREETING.len()).any(|bytes| bytes == GREETING.as_bytes()));
}

#[test]
fn a_shell_shows_the_link_in_its_prompt_and_a_nested_one_both() {
    if missing() {
        return;
    }
    let (caller, folder) = (caller(), tempfile::tempdir().unwrap());
    let line = "script -qec 'bentpipe link --delay 10ms' /dev/null";
    let output = run(&caller, folder.path(), line, "bentpipe link --per 1%\nexit\nexit\n");
    let stdout = text(&output.stdout);
    assert!(stdout.contains("[link 10ms] "), "{stdout}");
    assert!(stdout.contains("[link 10ms] [link per 1%] "), "{stdout}");
}

#[test]
fn nothing_of_the_connection_to_the_caller_outlives_a_kill() {
    if missing() {
        return;
    }
    let (caller, folder) = (caller(), tempfile::tempdir().unwrap());
    let show = |program: &str, arguments: &[&str]| {
        text(&caller.command(program).args(arguments).output().unwrap().stdout)
    };
    let state = || {
        show("ip", &["addr"])
            + &show("ip", &["route", "show", "table", "all"])
            + &show("nft", &["list", "ruleset"])
    };
    let before = state();
    let line =
        "exec bentpipe link --internet -- sh -c 'curl -s http://$BENTPIPE_BASE:8080/; exec sleep 1000'";
    let mut running = shell(&caller, folder.path(), line).spawn().unwrap();
    let mut greeting = vec![0; GREETING.len()];
    running.stdout.take().unwrap().read_exact(&mut greeting).unwrap();
    assert_eq!(text(&greeting), GREETING);
    let during = state();
    assert!(during.contains("bplink") && during.contains("masquerade"), "{during}");
    running.kill().unwrap();
    running.wait().unwrap();
    let started = Instant::now();
    while state() != before {
        assert!(started.elapsed() < PATIENCE, "before:\n{before}\nnow:\n{}", state());
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn names_are_resolved_by_a_server_that_only_the_caller_reaches() {
    if missing() {
        return;
    }
    let (caller, folder) = (caller(), tempfile::tempdir().unwrap());
    let server = caller.run(|| UdpSocket::bind("127.0.0.53:53")).unwrap().unwrap();
    thread::spawn(move || answer_every_name(&server));
    let line = "bentpipe link --delay 100ms --internet -- getent ahostsv4 satellite.example";
    let mut command = shell(&caller, folder.path(), line);
    with_file(&mut command, c"/etc/resolv.conf", "nameserver 127.0.0.53\n".to_owned());
    let started = Instant::now();
    let output = command.output().unwrap();
    assert!(text(&output.stdout).starts_with("192.0.2.7 "), "{output:?}");
    assert!(started.elapsed() >= Duration::from_millis(200), "queries cross the link");
}

/// Answers any query with 192.0.2.7 (RFC 1035 §4).
fn answer_every_name(server: &UdpSocket) {
    let mut packet = [0; 512];
    while let Ok((length, client)) = server.recv_from(&mut packet) {
        let query = &packet[..length];
        let name = query[12..].iter().position(|byte| *byte == 0).unwrap();
        let question = &query[12..12 + name + 1 + 4];
        let mut answer = query[..2].to_vec();
        answer.extend([0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
        answer.extend(question);
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 7]);
        let _ = server.send_to(&answer, client);
    }
}

#[test]
fn a_caller_that_does_not_forward_is_told_with_the_remedy() {
    if missing() {
        return;
    }
    let caller = Namespace::new("caller").unwrap();
    caller.sysctl("net.ipv4.ip_forward", "0").unwrap();
    let output = run(&caller, Path::new("/"), "bentpipe link --internet -- true", "");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("sysctl -w net.ipv4.ip_forward=1"), "{output:?}");
}

#[test]
fn up_and_down_have_rates_of_their_own_and_the_log_tells_each_packet() {
    if missing() {
        return;
    }
    let (caller, folder) = (caller(), tempfile::tempdir().unwrap());
    let line = "bentpipe link --up-delay 50ms --down-delay 150ms --log log.csv --internet -- \
                sh -c 'curl -s http://$BENTPIPE_BASE:8080/'";
    let output = run(&caller, folder.path(), line, "");
    assert!(output.status.success(), "{output:?}");
    let log = std::fs::read_to_string(folder.path().join("log.csv")).unwrap();
    let rows: Vec<Vec<&str>> = log.lines().skip(1).map(|line| line.split(',').collect()).collect();
    let delays = |direction: &str| -> Vec<f64> {
        let arrived = rows.iter().filter(|row| row[1] == direction && row[2] == "arrive");
        arrived.map(|row| row[6].parse().unwrap()).collect()
    };
    let (up, down) = (delays("up"), delays("down"));
    // The last packets may be on their way when the command ends.
    assert!(up.len() >= 3 && down.len() >= 3, "{log}");
    // Packets may be late on a busy machine, never early.
    assert!(up.iter().all(|delay| *delay >= 0.05) && up.iter().any(|delay| *delay < 0.15), "{up:?}");
    assert!(down.iter().all(|delay| *delay >= 0.15), "{down:?}");
    let page = std::fs::read_to_string(RESULTS).unwrap();
    for column in log.lines().next().unwrap().split(',') {
        assert!(page.contains(&format!("\n| `{column}` |")), "{column} is not in docs/results.md");
    }
}

#[test]
fn what_the_link_does_to_real_packets_is_as_its_options_say() {
    if missing() {
        return;
    }
    let (caller, folder) = (caller_with("x".repeat(1_000_000)), tempfile::tempdir().unwrap());
    let link = "[[link]]\nname = \"link\"\nrate = \"8Mbit/s\"\ndelay = \"30ms\"\nqueue = \"20kB\"\nper = \"1%\"\n\
                duplicate = \"2%\"\nreorder = \"2%\"\nreorder_by = \"3ms\"\n\
                outages = [{ start = \"1.5s\", duration = \"200ms\" }]\n\
                reverse = { rate = \"1Mbit/s\", delay = \"20ms\" }\n";
    std::fs::write(folder.path().join("link.toml"), link).unwrap();
    std::fs::write(folder.path().join("outages.csv"), "start_s,duration_s\n1.5,0.2\n").unwrap();
    let line = "bentpipe link --down-rate 8M --down-delay 30ms --up-rate 1M --up-delay 20ms --queue 20kB --per 1% \
                --duplicate 2% --reorder 2% --reorder-by 3ms --outages outages.csv --log log.csv --internet -- \
                sh -c 'curl -s --max-time 15 http://$BENTPIPE_BASE:8080/ | wc -c; sleep 0.5'";
    let output = run(&caller, folder.path(), line, "");
    assert!(output.status.success(), "{output:?}");
    // A machine as busy as this one may be late; all else is exact.
    let verify = "bentpipe verify log.csv link.toml --late 2s";
    let output = run(&caller, folder.path(), verify, "");
    let said = text(&output.stdout);
    assert!(output.status.success() && said.ends_with("all as the scenario says\n"), "{output:?}");
    let packets: u64 = said.split(' ').next().unwrap().parse().unwrap();
    assert!(packets > 500, "{said}");
    let wrong = "bentpipe verify log.csv link.toml --late 2s --set link.link.delay=30.001ms";
    let output = run(&caller, folder.path(), wrong, "");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stdout).contains("link forward: delay: packet 1 "), "{output:?}");
}

#[test]
fn a_trace_changes_the_delay_of_one_direction_and_one_of_mahimahi_is_read_as_it_is() {
    if missing() {
        return;
    }
    let (caller, folder) = (caller(), tempfile::tempdir().unwrap());
    std::fs::write(folder.path().join("later.csv"), "at_s,delay\n0,20ms\n0.1,150ms\n").unwrap();
    std::fs::write(folder.path().join("down.trace"), "10\n20\n30\n").unwrap();
    let line = "bentpipe link --up-trace later.csv --down-trace down.trace --log log.csv --internet -- \
                sh -c 'sleep 0.2; curl -s http://$BENTPIPE_BASE:8080/'";
    let output = run(&caller, folder.path(), line, "");
    assert!(output.status.success() && text(&output.stdout) == GREETING, "{output:?}");
    let log = std::fs::read_to_string(folder.path().join("log.csv")).unwrap();
    let rows = log.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
    let arrived = rows.filter(|row| row[1] == "up" && row[2] == "arrive");
    let delays: Vec<f64> = arrived.map(|row| row[6].parse().unwrap()).collect();
    // Packets may be late on a busy machine, never early.
    assert!(delays.len() >= 3 && delays.iter().all(|delay| *delay >= 0.15), "{log}");
    std::fs::write(folder.path().join("wrong.csv"), "at_s,rate\n0,fast\n").unwrap();
    let output = run(&caller, folder.path(), "bentpipe link --trace wrong.csv -- true", "");
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("wrong.csv") && said.contains("line 2"), "{said}");
}

#[test]
fn packets_that_have_not_arrived_at_the_end_are_not_called_delivered() {
    if missing() {
        return;
    }
    let (caller, folder) = (caller(), tempfile::tempdir().unwrap());
    // 100 bytes take 80 s.
    let line = "bentpipe link --rate 10bit/s --interval=100ms -- \
                bash -c 'for n in 1 2 3; do echo $n > /dev/udp/$BENTPIPE_FAR/9; done; sleep 0.5'";
    let output = run(&caller, folder.path(), line, "");
    let stderr = text(&output.stderr);
    assert!(stderr.contains("3 packets sent, 0 delivered, 3 still queued or on the way"), "{stderr}");
    let intervals = stderr.lines().filter(|line| line.starts_with("link: ") && line.contains(" | ")).count();
    assert!(intervals >= 4, "{stderr}");
}

#[test]
fn a_file_that_cannot_be_written_is_named_before_the_command_runs() {
    if missing() {
        return;
    }
    let caller = caller();
    for option in ["--log", "--pcap", "--up-log", "--down-log"] {
        let line = format!("bentpipe link {option} /nowhere/file -- echo ran");
        let output = run(&caller, Path::new("/"), &line, "");
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stdout.is_empty(), "{output:?}");
        assert!(text(&output.stderr).contains("/nowhere/file: No such file"), "{output:?}");
    }
}
