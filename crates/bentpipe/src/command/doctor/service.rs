//! Checks whether the daemon could run as a service: its account, the folder of its sockets, the address and
//! the token of its page, its ports, and whether it is alone.

use std::fs;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bentpipe_admin::{Client, ClientError, Flows, check_token};
use bentpipe_kernel::host::{Check, Step};
use bentpipe_kernel::privileges::Account;
use bentpipe_proxy::config::{AdminSettings, Listen};
use bentpipe_proxy::{Config, Error, check_alone, host};

/// Everyone may write (chmod(2)), and only owners may remove their files.
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// Checks all of them.
pub(super) fn checks(config: &Config) -> Vec<Check> {
    let (mut checks, settings) = (vec![account(config.proxy.user.as_deref())], &config.admin);
    checks.push(folder(&settings.folder));
    checks.extend(settings.token_file.as_deref().map(token));
    if let Listen::At(address) = settings.listen {
        checks.push(page(address, || is_running(settings)));
    }
    if !is_running(settings) {
        checks.push(alone());
        checks.push(host::ports(config));
    }
    checks
}

/// Two daemons would split the same connections.
fn alone() -> Check {
    let name = "other daemons";
    match check_alone() {
        Ok(()) => Check::pass(name, "none splits connections in this network namespace"),
        Err(error @ Error::Refused(_)) => {
            Check::fail(name, error.to_string(), "bentpipe drain, or name its sockets in admin.folder")
        }
        Err(error) => Check::fail(name, error.to_string(), "run it as root"),
    }
}

/// Without a token that it can use the daemon does not start.
fn token(path: &Path) -> Check {
    let name = "token of the page";
    match check_token(path) {
        Ok(()) => Check::pass(name, format!("{} has one", path.display())),
        Err(error) => {
            let said = error.to_string();
            let fix = "name another file in admin.token_file, or leave it out and listen on 127.0.0.1";
            let (found, fix) = said.rsplit_once("; ").unwrap_or((&said, fix));
            Check::fail(name, found, fix)
        }
    }
}

/// The daemon runs as this one, or as `bentpipe`.
fn account(wanted: Option<&str>) -> Check {
    let (name, found) = ("account", wanted.unwrap_or("bentpipe"));
    match (Account::find(found), wanted) {
        (Ok(_), _) => Check::pass(name, format!("the daemon runs as {found}")),
        (Err(error), Some(_)) => {
            Check::fail(name, error.to_string(), "make the account, or name another: proxy.user")
        }
        // The installer creates the account, as the package does.
        (Err(_), None) => Check::fail(
            name,
            "there is no account bentpipe: the daemon runs as nobody, which other services may share",
            "useradd --system --user-group --no-create-home --shell /usr/sbin/nologin bentpipe",
        ),
    }
}

fn folder(path: &Path) -> Check {
    let name = "socket folder";
    match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Check::pass(name, format!("{} is made when the daemon starts", path.display()))
        }
        Err(error) => {
            Check::fail(name, format!("{}: {error}", path.display()), "name another in admin.folder")
        }
        Ok(data) if !data.is_dir() => {
            let found = format!("{} is no folder: no command reaches the daemon", path.display());
            Check::fail(name, found, "remove it, or name another in admin.folder")
        }
        Ok(data) if data.mode() & OTHERS_WRITE != 0 && data.mode() & STICKY == 0 => {
            let found =
                format!("everybody may write to {}, and put sockets of their own there", path.display());
            Check::mendable(name, found, vec![Step::run(&format!("chmod o-w {}", path.display()))])
        }
        Ok(_) => Check::pass(name, format!("{} is there", path.display())),
    }
}

/// Checks whether the address is free, or used by the running daemon.
fn page(address: SocketAddr, is_running: impl FnOnce() -> bool) -> Check {
    let name = "status page";
    match TcpListener::bind(address) {
        Ok(_) => Check::pass(name, format!("{address} is free")),
        Err(error) if error.kind() == ErrorKind::AddrInUse && is_running() => {
            Check::pass(name, format!("{address} is taken, and a daemon runs here"))
        }
        Err(error) => Check::fail(
            name,
            format!("{address}: {error}: page and metrics are on the Unix socket only"),
            "choose another address with admin.listen, or \"off\"",
        ),
    }
}

/// One that does not speak with everybody runs, too.
fn is_running(settings: &AdminSettings) -> bool {
    let asked = Client::new(&settings.folder).and_then(|client| client.status(Flows::Most(0)));
    !matches!(asked, Err(ClientError::NotRunning { .. } | ClientError::Start { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_missing_account_is_named_with_the_command_that_creates_it() {
        assert!(account(Some("nobody")).ok);
        let check = account(Some("no-such-account"));
        assert!(!check.ok && check.found.contains("no-such-account") && check.steps.is_empty(), "{check:?}");
        let check = account(None);
        assert_eq!(check.ok, Account::find("bentpipe").is_ok());
        assert!(check.ok || check.fix.is_some_and(|fix| fix.starts_with("useradd ")));
    }

    #[test]
    fn a_folder_where_everybody_may_put_sockets_is_lacking() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("run");
        assert!(folder(&path).found.contains("is made when"));
        fs::create_dir(&path).unwrap();
        for (mode, ok) in [(0o755, true), (0o777, false), (0o1777, true), (0o775, true)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(folder(&path).ok, ok, "{mode:o}");
        }
        let file = parent.path().join("file");
        fs::write(&file, "").unwrap();
        let check = folder(&file);
        assert!(!check.ok && check.found.contains("is no folder"), "{check:?}");
    }

    #[test]
    fn an_address_that_is_taken_is_well_where_the_daemon_runs() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        assert!(page(address, || true).ok);
        let check = page(address, || false);
        assert!(!check.ok && check.fix.as_ref().is_some_and(|fix| fix.contains("admin.listen")), "{check:?}");
        drop(taken);
        assert!(page(address, || false).found.contains("is free"));
        let elsewhere = SocketAddr::from(([192, 0, 2, 1], 7500));
        assert!(!page(elsewhere, || true).ok, "no address of this host");
    }

    #[test]
    fn a_token_that_others_may_read_is_lacking_with_the_command_that_hides_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        assert!(!token(&path).ok);
        fs::write(&path, "0123456789abcdef0123456789abcdef\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let check = token(&path);
        assert!(!check.ok && check.fix.as_ref().is_some_and(|fix| fix.contains("chmod o= ")), "{check:?}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(token(&path).ok);
    }

    #[test]
    fn without_an_answer_no_daemon_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let settings = AdminSettings { folder: folder.path().to_owned(), ..AdminSettings::default() };
        assert!(!is_running(&settings));
    }
}
