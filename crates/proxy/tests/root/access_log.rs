//! The access log: each connection that ends is one line, whatever happens to the file.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
use rustix::process::Signal;
use rustix::thread::UnshareFlags;
use serde_json::Value;

use crate::common::{
    LOG_VARIABLE, Net, SERVER, abort, configuration, network, pattern, read_all, socket, socket_address,
    wait_until,
};

/// A configuration with an access log at this file.
fn logged(file: &Path, rest: &str) -> String {
    format!("{}[access_log]\nfile = \"{}\"\n{rest}\n", configuration("workers = 1"), file.display())
}

/// The lines of a file, each of which must be whole.
fn lines(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    assert!(text.is_empty() || text.ends_with('\n'), "{text}");
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

/// The lines of a file once there are so many; the writer is a moment behind.
fn wait_for_lines(file: &Path, count: usize) -> Vec<Value> {
    wait_until("the lines are written", || {
        fs::read_to_string(file).unwrap_or_default().matches('\n').count() >= count
    });
    let lines = lines(file);
    assert_eq!(lines.len(), count, "{lines:#?}");
    lines
}

fn end_of(line: &Value) -> (&str, Option<&str>) {
    (line["end"].as_str().unwrap(), line.get("by").map(|by| by.as_str().unwrap()))
}

/// A connection that is opened and closed in order, the client's end first.
fn pass_by(net: &Net, listener: &TcpListener) {
    let (client, mut server) = net.connection(listener);
    client.shutdown(Shutdown::Write).unwrap();
    read_all(&mut server).unwrap();
}

#[test]
fn each_way_of_ending_gives_its_line() {
    let Some(net) = network() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("access.log");
    let daemon =
        net.try_daemon(&(logged(&file, "") + "[limits]\nidle = \"3s\"\nhalf_closed = \"3s\"\n")).unwrap();
    let mut expected = 0;
    let mut next = |end: &str, by: Option<&str>| {
        expected += 1;
        let line = wait_for_lines(&file, expected).pop().unwrap();
        assert_eq!(end_of(&line), (end, by), "{line}");
        line
    };
    for address in SERVER {
        let listener = net.listen(address);
        for client_first in [true, false] {
            let (client, server) = net.connection(&listener);
            let ends = (client.local_addr().unwrap(), client.peer_addr().unwrap());
            let (mut first, mut second) = if client_first { (client, server) } else { (server, client) };
            first.write_all(&[7; 1000]).unwrap();
            first.shutdown(Shutdown::Write).unwrap();
            assert_eq!(read_all(&mut second).unwrap().len(), 1000);
            second.write_all(&[7; 30]).unwrap();
            drop(second);
            read_all(&mut first).unwrap();
            drop(first);
            let line = next("closed", Some(if client_first { "client" } else { "server" }));
            let bytes = if client_first { (1000, 30) } else { (30, 1000) };
            assert_eq!(
                (line["up_bytes"].as_u64(), line["down_bytes"].as_u64()),
                (Some(bytes.0), Some(bytes.1))
            );
            assert_eq!(
                (&line["client"], &line["server"]),
                (&ends.0.to_string().into(), &ends.1.to_string().into())
            );
            assert_eq!(
                (&line["client_leg"], &line["server_leg"]),
                (&"terrestrial".into(), &"satellite".into())
            );
            assert_eq!(
                (&line["handshake"], line.get("weight"), line.get("dscp")),
                (&"early".into(), None, None)
            );
            assert!(line["client_retransmissions"].is_u64() && line["server_retransmissions"].is_u64());
        }
        for client_resets in [true, false] {
            let (client, server) = net.connection(&listener);
            let (culprit, mut victim) = if client_resets { (client, server) } else { (server, client) };
            abort(culprit);
            assert!(victim.read(&mut [0]).is_err());
            next("reset", Some(if client_resets { "client" } else { "server" }));
        }
        let _idle = net.connection(&listener);
        let line = next("idle", None);
        // Idle time is counted in whole seconds.
        assert!(line["duration_s"].as_f64().unwrap() > 2.0, "{line}");
        let nobody = socket_address(address, 9);
        let _ = net.client.enter(|| TcpStream::connect(nobody)).map(|mut stream| stream.read(&mut [0]));
        next("refused", Some("server"));
    }
    let dead = socket_address("10.77.2.99", 80);
    let _ = net.client.enter(|| TcpStream::connect(dead)).map(|mut stream| stream.read(&mut [0]));
    next("unreachable", Some("server"));
    let listener = net.listen(SERVER[0]);
    let _open = net.connection(&listener);
    daemon.stop();
    next("stopped", None);
}

#[test]
fn a_line_tells_handshake_weight_and_dscp_and_text_has_a_fixed_number_of_fields() {
    let Some(net) = network() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("access.log");
    let rule = "[[rules]]\naction = \"split\"\nhandshake = \"faithful\"\nweight = 4\ndscp = \"ef\"\n";
    let mut daemon = net.try_daemon(&logged(&file, rule)).unwrap();
    let listener = net.listen(SERVER[0]);
    let to = listener.local_addr().unwrap();
    let connect = || {
        let client = net.client.enter(|| {
            let client = socket(&to);
            client.set_tos_v4(46 << 2).unwrap();
            client.connect(&to.into()).unwrap();
            client
        });
        let server = listener.accept().unwrap();
        drop((client, server));
    };
    connect();
    let line = wait_for_lines(&file, 1).pop().unwrap();
    assert_eq!(
        (&line["handshake"], &line["weight"], &line["dscp"]),
        (&"faithful".into(), &4.into(), &46.into())
    );
    let text = folder.path().join("text.log");
    daemon.reload(&logged(&text, &format!("format = \"text\"\n{rule}"))).unwrap();
    connect();
    pass_by(&net, &listener);
    wait_until("two lines of text", || fs::read_to_string(&text).unwrap_or_default().lines().count() == 2);
    let found = fs::read_to_string(&text).unwrap();
    for line in found.lines() {
        assert_eq!(line.split(' ').count(), 15, "{line}");
    }
    assert!(found.contains(" faithful 4\n") && found.contains(" early -\n"), "{found}");
}

#[test]
fn connections_beyond_a_limit_that_the_kernel_had_answered_have_their_lines() {
    let Some(net) = network() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("access.log");
    let limits = "[limits]\nconnections = 1\nat_limit = \"refuse\"\n";
    let mut daemon = net.try_daemon(&logged(&file, limits)).unwrap();
    let listener = net.listen(SERVER[0]);
    let to = listener.local_addr().unwrap();
    // A daemon that runs could close the kernel's gate after the first connection.
    daemon.signal(Signal::STOP);
    let burst: Vec<_> = net.client.enter(|| {
        let begin = || {
            let client = socket(&to);
            client.set_nonblocking(true).unwrap();
            let _ = client.connect(&to.into());
            client
        };
        (0..100).map(|_| begin()).collect()
    });
    daemon.signal(Signal::CONT);
    wait_until("some are refused by the daemon", || daemon.counter("flows_refused") > 0);
    drop((burst, listener));
    daemon.wait_for("flows_open", 0);
    wait_until("every connection has its line", || {
        let ended = daemon.counter("flows_refused") + daemon.counter("flows_total");
        fs::read_to_string(&file).unwrap().lines().count() as u64 == ended
    });
    let lines = lines(&file);
    let at_limit = lines.iter().filter(|line| end_of(line) == ("limit", Some("limits.connections")));
    assert_eq!(at_limit.count() as u64, daemon.counter("flows_refused"));
}

#[test]
fn a_full_file_is_rotated_and_only_so_many_are_kept() {
    let Some(net) = network() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("access.log");
    let mut daemon = net.try_daemon(&logged(&file, "max_size = \"10kB\"\nkeep = 2")).unwrap();
    let listener = net.listen(SERVER[0]);
    // A line has 250 bytes or so.
    for _ in 0..200 {
        pass_by(&net, &listener);
    }
    daemon.wait_for("flows_open", 0);
    daemon.stop();
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    for entry in fs::read_dir(folder.path()).unwrap() {
        let entry = entry.unwrap();
        lines(&entry.path());
        found.insert(entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len());
    }
    let names: Vec<&str> = found.keys().map(String::as_str).collect();
    assert_eq!(names, ["access.log", "access.log.1", "access.log.2"]);
    assert!(found.values().all(|&size| size > 0 && size <= 10_000), "{found:?}");
}

#[test]
fn a_file_that_another_program_renames_is_opened_again_at_a_reload_which_can_also_end_the_log() {
    let Some(net) = network() else { return };
    let folder = tempfile::tempdir().unwrap();
    let [file, renamed] = ["access.log", "access.log-2026"].map(|name| folder.path().join(name));
    let mut daemon = net.try_daemon(&logged(&file, "")).unwrap();
    let listener = net.listen(SERVER[0]);
    pass_by(&net, &listener);
    wait_for_lines(&file, 1);
    fs::rename(&file, &renamed).unwrap();
    pass_by(&net, &listener);
    wait_for_lines(&renamed, 2);
    daemon.reload(&logged(&file, "")).unwrap();
    pass_by(&net, &listener);
    wait_for_lines(&file, 1);
    let error = daemon.reload(&logged(&folder.path().join("missing/access.log"), "")).unwrap_err();
    assert!(error.contains("access_log.file") && error.contains("create the folder"), "{error}");
    pass_by(&net, &listener);
    wait_for_lines(&file, 2);
    daemon.reload(&configuration("workers = 1")).unwrap();
    assert!(!has_writer(daemon.pid()));
    pass_by(&net, &listener);
    daemon.wait_for("flows_finished", 5);
    daemon.stop();
    net.expect_untouched();
    assert_eq!(lines(&file).len(), 2);
}

/// Whether the process has the log's thread.
fn has_writer(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.into_iter().any(|name| name.trim() == "bentpipe-log")
}

#[test]
fn by_default_there_is_no_log_and_no_thread_for_it() {
    let Some(net) = network() else { return };
    let daemon = net.daemon("");
    assert!(!has_writer(daemon.pid()));
    daemon.settle();
}

#[test]
fn lines_of_an_upgrade_are_whole_and_none_is_missing() {
    let Some(net) = network() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("access.log");
    let text = logged(&file, "");
    let mut daemon = net.try_daemon(&text).unwrap();
    let listener = net.listen(SERVER[0]);
    let start = SystemTime::now();
    let (mut total, mut kept) = (0, Vec::new());
    for _ in 0..3 {
        let (mut clients, servers) = net.connections(&listener, 60);
        total += clients.len();
        kept.extend(clients.drain(40..));
        // They end while the next process takes over.
        let ending = std::thread::spawn(move || {
            for client in clients {
                drop(client);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        daemon.succeed(&net, &text).unwrap();
        ending.join().unwrap();
        drop(servers);
    }
    drop(kept);
    daemon.wait_for("flows_open", 0);
    let lines = wait_for_lines(&file, total);
    let clients: std::collections::BTreeSet<_> =
        lines.iter().map(|line| line["client"].to_string()).collect();
    assert_eq!(clients.len(), total, "each connection has one line");
    // A connection that has gone through several processes began when it began.
    let longest = lines.iter().map(|line| line["duration_s"].as_f64().unwrap()).fold(0.0, f64::max);
    assert!(longest <= start.elapsed().unwrap().as_secs_f64() && longest > 0.1, "{longest}");
    assert_eq!(daemon.counter("access_log_lost"), 0);
}

/// Runs `test` with a tmpfs at a folder; processes that it starts see it too, others do not.
fn with_tmpfs(folder: &Path, options: &'static std::ffi::CStr, test: impl FnOnce() + Send) {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: needs root: mounts a tmpfs");
    }
    let run = || {
        // SAFETY: the thread, new and about to end, gets mounts of its own; no memory or descriptors are
        // concerned.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }.unwrap();
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
        mount("tmpfs", folder, "tmpfs", MountFlags::empty(), Some(options)).unwrap();
        test();
        unmount(folder, UnmountFlags::DETACH).unwrap();
    };
    std::thread::scope(|scope| scope.spawn(run).join()).unwrap();
}

/// Runs `test` with a folder on a disk of 32 KiB.
fn on_a_small_disk(test: impl FnOnce(&Path) + Send) {
    let folder = tempfile::tempdir().unwrap();
    with_tmpfs(folder.path(), c"size=32k", || test(folder.path()));
}

#[test]
fn a_full_disk_loses_lines_that_are_counted_and_said_once_until_there_is_room_again() {
    on_a_small_disk(|folder| {
        let Some(net) = network() else { return };
        let [file, log]: [PathBuf; 2] =
            [folder.join("access.log"), tempfile::tempdir().unwrap().keep().join("log")];
        let daemon = net.try_daemon_changed(&logged(&file, "format = \"json\""), |command| {
            command.env(LOG_VARIABLE, &log);
        });
        let mut daemon = daemon.unwrap();
        let listener = net.listen(SERVER[0]);
        pass_by(&net, &listener);
        wait_for_lines(&file, 1);
        let ballast = folder.join("ballast");
        let mut filling = fs::File::create(&ballast).unwrap();
        while filling.write_all(&pattern(1, 1024)).is_ok() {}
        wait_until("lines are lost", || {
            pass_by(&net, &listener);
            daemon.counter("access_log_lost") > 10
        });
        daemon.wait_for("flows_open", 0);
        drop(filling);
        fs::remove_file(ballast).unwrap();
        pass_by(&net, &listener);
        let total = daemon.counter("flows_total");
        let expect = move |lost: u64| (total - lost) as usize;
        wait_until("the lines that fit", || {
            let lost = daemon.counter("access_log_lost");
            let text = fs::read_to_string(&file).unwrap();
            text.matches('\n').count() == expect(lost)
        });
        assert_eq!(lines(&file).len(), expect(daemon.counter("access_log_lost")));
        drop(daemon);
        let said = fs::read_to_string(&log).unwrap();
        assert_eq!(said.matches("lines of the access log are lost").count(), 1, "{said}");
        assert!(said.contains("the access log is written again"), "{said}");
        fs::remove_dir_all(log.parent().unwrap()).unwrap();
    });
}

#[test]
fn a_missing_folder_does_not_keep_connections_from_being_split_and_is_found_when_it_comes() {
    let Some(net) = network() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("later/access.log");
    let mut daemon = net.try_daemon(&logged(&file, "")).unwrap();
    let listener = net.listen(SERVER[0]);
    pass_by(&net, &listener);
    daemon.wait_for("access_log_lost", 1);
    fs::create_dir(file.parent().unwrap()).unwrap();
    wait_until("lines are written again", || {
        pass_by(&net, &listener);
        !lines(&file).is_empty()
    });
    daemon.stop();
    net.expect_untouched();
}

#[test]
fn the_journal_gets_a_field_for_each_value() {
    // Where the journal listens is the same for every process of a host, so the daemon gets a place of its
    // own.
    with_tmpfs(Path::new("/run"), c"size=1m", || {
        let Some(net) = network() else { return };
        fs::create_dir_all("/run/systemd/journal").unwrap();
        let journal = std::os::unix::net::UnixDatagram::bind("/run/systemd/journal/socket").unwrap();
        journal.set_read_timeout(Some(crate::common::PATIENCE)).unwrap();
        let text = format!("{}[access_log]\njournal = true\n", configuration("workers = 1"));
        let mut daemon = net.try_daemon(&text).unwrap();
        let listener = net.listen(SERVER[0]);
        pass_by(&net, &listener);
        let mut entry = [0; 4096];
        let length = journal.recv(&mut entry).unwrap();
        let entry = String::from_utf8_lossy(&entry[..length]).into_owned();
        for field in
            ["SYSLOG_IDENTIFIER=bentpipe-access\n", "\nBENTPIPE_END=closed\n", "\nBENTPIPE_BY=client\n"]
        {
            assert!(entry.contains(field), "{entry}");
        }
        drop(journal);
        fs::remove_file("/run/systemd/journal/socket").unwrap();
        pass_by(&net, &listener);
        daemon.wait_for("access_log_lost", 1);
        drop(daemon);
    });
}
