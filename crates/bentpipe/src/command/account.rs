//! The account that a daemon goes on as.

use anyhow::Context;
use bentpipe_kernel::privileges::Account;

/// The accounts that a daemon goes on as where the configuration names none, the first that there is.
const ACCOUNTS: [&str; 2] = ["bentpipe", "nobody"];

/// The account to go on as, what the configuration says under `key` or the first there is; none where there is no account to be
/// found.
pub(super) fn choose(wanted: Option<&str>, key: &'static str) -> anyhow::Result<Option<Account>> {
    if let Some(name) = wanted {
        return Ok(Some(Account::find(name).context(key)?));
    }
    let found = ACCOUNTS.into_iter().find_map(|name| Some((name, Account::find(name).ok()?)));
    match found {
        Some(("nobody", _)) => {
            tracing::warn!(
                "going on as nobody, whom others may be as well; better is an account of its own: useradd --system bentpipe"
            );
        }
        Some(_) => {}
        None => tracing::warn!(
            "there is neither an account bentpipe nor nobody: root's files stay open to the daemon"
        ),
    }
    Ok(found.map(|(_, account)| account))
}
