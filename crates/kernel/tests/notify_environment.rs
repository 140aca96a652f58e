//! What of the service manager stands in the environment, and that it does not stay there. The process has
//! one thread, so that it may change its environment: no harness.

use std::env;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use bentpipe_kernel::notify::Notifier;

/// For the program that this one starts: what it is to print.
const CHILD: &str = "--environment";

fn main() {
    if env::args().any(|argument| argument == CHILD) {
        return print_environment();
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    let own = std::process::id();
    for (pid, expected) in [(own, Some(Duration::from_secs(30))), (own + 1, None)] {
        set(&[("NOTIFY_SOCKET", path.to_str().unwrap()), ("WATCHDOG_USEC", "30000000")]);
        set(&[("WATCHDOG_PID", &pid.to_string())]);
        let notifier = Notifier::from_environment();
        assert_eq!(notifier.watchdog_interval(), expected, "meant for {pid}, we are {own}");
        notifier.ready();
        let mut buffer = [0; 64];
        let length = manager.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"READY=1");
        assert_eq!(environment_of_a_child(), "", "a child must not speak for the service");
    }
    assert!(Notifier::from_environment().snapshot().is_none(), "what is forgotten is nobody");
    set(&[("NOTIFY_SOCKET", path.to_str().unwrap()), ("WATCHDOG_USEC", "soon")]);
    assert_eq!(Notifier::from_environment().watchdog_interval(), None);
    println!("the environment was read and forgotten");
}

fn set(variables: &[(&str, &str)]) {
    for (key, value) in variables {
        // SAFETY: this process has one thread.
        unsafe { env::set_var(key, value) };
    }
}

fn environment_of_a_child() -> String {
    let output = Command::new(env::current_exe().unwrap()).arg(CHILD).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn print_environment() {
    let ours = |key: &str| key == "NOTIFY_SOCKET" || key.starts_with("WATCHDOG_");
    for (key, value) in env::vars().filter(|(key, _)| ours(key)) {
        print!("{key}={value} ");
    }
}
