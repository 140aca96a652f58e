//! What the commands of the laboratory share.

use std::fs::File;
use std::path::Path;

use anyhow::Context;
use bentpipe_testbed::Need;

/// The privileges and programs that a topology with a proxy needs. The proxy intercepts and loads eBPF, which
/// a user namespace does not allow.
pub(super) const TOPOLOGY_NEEDS: &[Need] =
    &[Need::Privileges, Need::Namespaces, Need::Tun, Need::Program("ip"), Need::Program("nft")];

/// Creates the folder of a result and checks that it is writable before the run, so that no result is lost
/// after a long run.
pub(super) fn prepare_folder(folder: &Path) -> anyhow::Result<()> {
    let trial = folder.join(format!(".bentpipe-{}.trial", std::process::id()));
    let outcome = std::fs::create_dir_all(folder)
        .and_then(|()| File::create_new(&trial))
        .and_then(|_| std::fs::remove_file(&trial));
    outcome.with_context(|| {
        format!("cannot write to the folder {}: choose one that is yours with --out DIR", folder.display())
    })
}
