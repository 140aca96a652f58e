//! What `lo` must believe: SYNs come in by it whose source is another host, and whose destination is local
//! by our routes alone. A strict reverse path filter asks for the way back to the source; with these settings
//! it asks with our mark, and takes the answer that the way is local.

use std::fs;
use std::io;

use crate::error::Error;

const SETTINGS: [&str; 2] =
    ["/proc/sys/net/ipv4/conf/lo/accept_local", "/proc/sys/net/ipv4/conf/lo/src_valid_mark"];

/// Sets them, in the calling thread's network namespace, and returns those that were not set. They concern
/// no packet without a mark.
pub(super) fn prepare() -> Result<Vec<String>, Error> {
    let mut changed = Vec::new();
    for path in SETTINGS {
        let write = || -> io::Result<bool> {
            let is_set = fs::read_to_string(path)?.trim() != "0";
            if !is_set {
                fs::write(path, "1")?;
            }
            Ok(!is_set)
        };
        if write().map_err(Error::system(format!("set {path} to 1")))? {
            changed.push(path.to_owned());
        }
    }
    Ok(changed)
}

/// Takes back what [`prepare`] has changed.
pub(super) fn restore(changed: &[String]) {
    for path in changed {
        if let Err(error) = fs::write(path, "0") {
            tracing::warn!(%error, path, "cannot set it back to 0");
        }
    }
}
