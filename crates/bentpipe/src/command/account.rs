//! The account that a daemon drops to.

use anyhow::Context;
use bentpipe_kernel::privileges::Account;

/// The default accounts that a daemon drops to: the first that exists.
const ACCOUNTS: [&str; 2] = ["bentpipe", "nobody"];

/// The account to drop to: the one that the configuration names under `key`, or the first default that
/// exists. `None` if there is none.
pub(super) fn choose(wanted: Option<&str>, key: &'static str) -> anyhow::Result<Option<Account>> {
    if let Some(name) = wanted {
        return Ok(Some(Account::find(name).context(key)?));
    }
    let found = ACCOUNTS.into_iter().find_map(|name| Some((name, Account::find(name).ok()?)));
    match found {
        Some(("nobody", _)) => {
            tracing::warn!(
                "running as `nobody`, which other services may share, so that only root may upgrade it; create \
                 an account of its own: useradd --system bentpipe"
            );
        }
        Some(_) => {}
        None => tracing::warn!(
            "there is neither an account bentpipe nor nobody: the daemon keeps access to root's files"
        ),
    }
    Ok(found.map(|(_, account)| account))
}
